"""Examining a run's versions one after the other, as they leave for a bundle or arrive in one.

Invariant: versions that pass, with the head and the timelines that `close` was given, make up a history that
`verify` finds nothing wrong with: every reference from node to node has been followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import BadData, CorruptVersion, UnknownTimeZone
from holdfast.history.frames import RunFrame
from holdfast.history.seal import NO_PARENT, check
from holdfast.model.records import TimelineRecord, VersionRecord
from holdfast.struct_types import resolved
from holdfast.tree.block import digest, directory_of, node_of, open_block, refuse_ext_keys
from holdfast.tree.load import artifacts
from holdfast.tree.shape import Shapes

#: A block holds 64 KiB of nodes, and no node is smaller than a byte.
_MOST_SLOTS = 1 << 20


class Chain:
    """The versions of a run as they pass, oldest first: each is examined by itself and against its parent."""

    def __init__(self, run: RunFrame) -> None:
        self.run = run
        self.size = 0
        #: Numbers of the versions that are not pruned.
        self.alive: set[int] = set()
        #: Artifacts that versions refer to.
        self.held: set[bytes] = set()
        self._links: dict[int, bytes] = {}
        self._shapes = Shapes()
        self._highest = -(1 << 63)
        #: The last version of each timeline, and the timeline of the head.
        self._ends: dict[int, int] = {}
        self._line = 0

    def add(self, version: VersionRecord, blocks: Sequence[bytes]) -> list[bytes]:
        """Examine the next version; gives the artifacts that it refers to."""
        number = version.number
        if not self._highest < number <= self.run.last:
            raise self._broken(number, "is out of order")
        try:
            check(self.run.id, version)
        except CorruptVersion as error:
            raise self._broken(number, "fails its hash") from error
        problem = self._stub_problem(version) if version.pruned else self._problem(version)
        if problem is not None:
            raise self._broken(number, problem)
        try:
            Facts.read(version.detail)
            roots, nodes = _nodes_of(version, blocks)
            self._shapes.add(number, nodes)
            self._shapes.check(roots, number)
            holds = sorted({name for node in (roots, *nodes) for name in artifacts(node)})
        except UnknownTimeZone:
            raise
        except Exception as error:
            raise self._broken(number, f"cannot be decoded ({error})") from error
        if version.size != len(version.pack or b"") + sum(map(len, blocks)):
            raise self._broken(number, "is not of the size that it says")
        self._highest = self._ends[version.timeline] = number
        if number == self.run.head:
            self._line = version.timeline
        self._links[number] = version.hash[:8]
        self.size += version.size
        self.held.update(holds)
        if not version.pruned:
            self.alive.add(number)
        return holds

    def close(self, timelines: Sequence[TimelineRecord]) -> None:
        """Examine the whole after the last version."""
        run = self.run
        if run.epoch == 0 and len(self.alive) != run.last:
            raise self._broken(run.last, "is not there, or one before it is missing")
        if run.head not in self.alive and (run.head, run.last) != (0, 0):
            raise self._broken(run.head, "is the head but is not there")
        if len(timelines) != run.timeline - 1:
            raise self._broken(
                run.head, f"is on one of {run.timeline} timelines, of which some are not there"
            )
        for number, line in enumerate(timelines, 2):
            if line.number != number or not 0 < line.parent <= run.last:
                raise self._broken(line.parent, f"cannot be where timeline {line.number} started")
        if (
            run.head
            and run.head != self._ends[self._line]
            and all(line.parent != run.head for line in timelines)
        ):
            raise self._broken(run.head, "is the head but not at the end of a timeline")

    def _problem(self, version: VersionRecord) -> str | None:
        if not 0 <= version.parent < version.number or version.timeline > self.run.timeline:
            return "names a parent or a timeline that it cannot have"
        link = self._links.get(version.parent) if version.parent else NO_PARENT
        return None if version.prev == link else "does not link to its parent"

    def _stub_problem(self, version: VersionRecord) -> str | None:
        if self.run.epoch == 0:
            return "is pruned in a run of which nothing was pruned"
        fits = (
            0 <= version.parent < version.number if version.number > 0 else version.parent == version.number
        )
        return None if fits else "names a parent that it cannot have"

    def _broken(self, number: int, what: str) -> CorruptVersion:
        return CorruptVersion(
            f"version {number} of run {self.run.id!r} {what}", run=self.run.id, version=number
        )


class Facts(msgspec.Struct):
    """Those of the encoded facts of versions and events that others rely on."""

    note: str | None = None
    actor: str | None = None
    merged: int | None = None
    moved: int | None = None
    version: int | None = None

    @classmethod
    def read(cls, data: bytes) -> None:
        """Refuse what is no table of facts."""
        if data:
            msgspec.msgpack.decode(data, type=resolved(cls))


def _nodes_of(version: VersionRecord, blocks: Sequence[bytes]) -> tuple[list[Any], list[Any]]:
    """The roots of a version, and the nodes in all its slots. Raises anything if they are not sound."""
    packed_roots, packed_directory, *packed = open_block(version.pack or b"")
    refuse_ext_keys(packed_roots)
    roots, directory = node_of(packed_roots), directory_of(packed_directory)
    if [expected for _, expected in directory] != list(map(digest, blocks)):
        raise BadData("a block fails its hash")
    if type(roots) is not list or bool(roots) == version.pruned:
        raise BadData("it has no state, or one that it should not have")
    for raw in packed:
        refuse_ext_keys(raw)
    nodes: list[Any] = []
    for (end, _), block in zip(directory, blocks, strict=True):
        inside = open_block(block)
        for raw in inside:
            refuse_ext_keys(raw)
        nodes += map(node_of, inside)
        if len(nodes) > end or (len(nodes) < end and not version.pruned):
            raise BadData("a block holds other nodes than its pack says")
        # A pack that was thinned has shorter blocks; its slots keep their numbers.
        if end - len(nodes) > _MOST_SLOTS:
            raise BadData("a block claims to have had more nodes than any block may")
        nodes += [None] * (end - len(nodes))
    nodes += map(node_of, packed)
    return roots, nodes
