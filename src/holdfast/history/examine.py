"""Examining a bundle from its first frame to its last, before anything of it is written.

Invariant: a bundle that passes is complete, in order, and agrees with itself in every hash, count and name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from holdfast.errors import CorruptVersion, InvalidReference, InvalidSnapshot
from holdfast.history.chain import Chain, Facts
from holdfast.history.frames import (
    AnyFrame,
    ArtifactFrame,
    BlockFrame,
    EndFrame,
    EventFrame,
    MarkFrame,
    PieceFrame,
    RunFrame,
    Source,
    TimelineFrame,
    VersionFrame,
)
from holdfast.history.secret_keys import Secret, SecretKeys
from holdfast.model.names import check_run_id, check_tag
from holdfast.model.records import PIN, EventRecord, MarkRecord, TimelineRecord, VersionRecord
from holdfast.tree.fold import Redactor

#: In what order frames come; blocks come right after their version.
_RANKS: dict[type, int] = {
    RunFrame: 0,
    TimelineFrame: 1,
    VersionFrame: 2,
    MarkFrame: 3,
    EventFrame: 4,
    ArtifactFrame: 5,
    PieceFrame: 5,
    EndFrame: 6,
}
_LAST = _RANKS[EndFrame]

S = TypeVar("S", bound=msgspec.Struct)


def entries(source: Source) -> Iterator[tuple[AnyFrame, list[bytes]]]:
    """The frames of a bundle, which must be in order; versions together with their blocks."""
    frames = source.frames()
    rank = -1
    for frame in frames:
        before, rank = rank, _RANKS.get(type(frame), -1)
        if rank < max(before, 0) or (rank == 0) != (before == -1) or before == _LAST:
            raise InvalidSnapshot("its parts are not in order")
        blocks: list[bytes] = []
        if isinstance(frame, VersionFrame):
            for _ in range(frame.blocks):
                block = next(frames, None)
                if not isinstance(block, BlockFrame):
                    raise InvalidSnapshot(f"version {frame.number} lacks a block")
                blocks.append(block.data)
        yield frame, blocks
    if rank != _LAST:
        raise InvalidSnapshot("it is cut short")


def examine(source: Source, free: Callable[[str], None], redact: Redactor | None = None) -> Examination:
    """Read a whole bundle, or `InvalidSnapshot` with what is wrong with it. `free` is asked, before all the
    rest is read, to refuse the run's id if it cannot be used. With `redact`, a bundle is refused that holds a value
    under a key that is to be redacted."""
    reading = entries(source)
    header = next(reading)[0]
    assert isinstance(header, RunFrame)
    try:
        check_run_id(header.id)
    except InvalidReference as error:
        raise InvalidSnapshot(str(error)) from error
    free(header.id)
    found = Examination(header, None if redact is None else SecretKeys(redact))
    for frame, blocks in reading:
        found.take(frame, blocks)
    return found


def record(kind: type[S], frame: msgspec.Struct, **more: Any) -> S:
    """A record with those of its fields that a frame has, and more."""
    names = (name for name in frame.__struct_fields__ if name in kind.__struct_fields__)
    return kind(**{**{name: getattr(frame, name) for name in names}, **more})


class Examination:
    """What a bundle was found to hold, but for its versions and the contents of its artifacts."""

    def __init__(self, header: RunFrame, secrets: SecretKeys | None = None) -> None:
        self.chain = Chain(header)
        self._secrets = secrets
        #: The pieces of an artifact in which secrets may be.
        self._leaf: list[bytes] | None = None
        self.timelines: list[TimelineRecord] = []
        self.marks: list[MarkRecord] = []
        self.events: list[EventRecord] = []
        #: Digests and sizes, in order of the digests.
        self.artifacts: list[tuple[bytes, int]] = []
        self._versions = 0
        self._content = sha256()
        self._missing = 0

    def take(self, frame: AnyFrame, blocks: list[bytes]) -> None:
        """Examine the next frame."""
        if isinstance(frame, PieceFrame):
            self._piece(frame.data)
        elif isinstance(frame, VersionFrame):
            self._version(frame, blocks)
        elif isinstance(frame, TimelineFrame):
            self.timelines.append(record(TimelineRecord, frame))
        elif isinstance(frame, MarkFrame):
            self._mark(frame)
        elif isinstance(frame, EventFrame):
            self._event(frame)
        elif isinstance(frame, ArtifactFrame):
            self._artifact(frame)
        elif isinstance(frame, EndFrame):
            self._end(frame)

    def _version(self, frame: VersionFrame, blocks: list[bytes]) -> None:
        try:
            holds = self.chain.add(record(VersionRecord, frame), blocks)
        except CorruptVersion as error:
            raise InvalidSnapshot(str(error)) from error
        if holds != frame.holds:
            raise InvalidSnapshot(f"version {frame.number} names other artifacts than it refers to")
        self._versions += 1
        self._refuse_secret(lambda secrets: secrets.in_version(frame.number, frame.pack, blocks))

    def _mark(self, frame: MarkFrame) -> None:
        try:
            name = frame.name if frame.name == PIN else check_tag(frame.name)
        except InvalidReference as error:
            raise InvalidSnapshot(str(error)) from error
        if frame.number not in self.chain.alive:
            raise InvalidSnapshot(f"version {frame.number} is tagged {name!r} but is not there")
        self.marks.append(record(MarkRecord, frame))

    def _event(self, frame: EventFrame) -> None:
        try:
            Facts.read(frame.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidSnapshot(f"an event holds what is no event's data ({error})") from error
        self.events.append(record(EventRecord, frame))
        self._refuse_secret(lambda secrets: secrets.in_event(frame.kind, frame.data))

    def _artifact(self, frame: ArtifactFrame) -> None:
        self._whole()
        if self.artifacts and frame.digest <= self.artifacts[-1][0]:
            raise InvalidSnapshot("its artifacts are not in order")
        self.artifacts.append((frame.digest, frame.size))
        self._content = sha256()
        self._missing = frame.size

    def _piece(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing < 0:
            raise InvalidSnapshot("it holds more of an artifact than its size")
        self._content.update(data)
        digest, size = self.artifacts[-1]
        starts = self._missing + len(data) == size
        if starts and self._secrets is not None and self._secrets.is_leaf(digest, data):
            self._leaf = []
        if self._leaf is not None:
            self._leaf.append(data)

    def _whole(self) -> None:
        if self.artifacts:
            name = self.artifacts[-1][0]
            if self._missing or self._content.digest() != name:
                raise InvalidSnapshot(f"artifact {name.hex()[:12]} does not fit its hash")
            if self._leaf is not None:
                data, self._leaf = b"".join(self._leaf), None
                self._refuse_secret(lambda secrets: secrets.in_leaf(name, data))

    def _refuse_secret(self, find: Callable[[SecretKeys], Secret | None]) -> None:
        """Refuse a bundle in which a value is found that is to be redacted."""
        if self._secrets is None:
            return
        try:
            found = find(self._secrets)
        except Exception as error:
            raise InvalidSnapshot(f"it cannot be searched for secrets ({error})") from error
        if found is not None:
            of = "" if found.version is None else f" of version {found.version}"
            raise InvalidSnapshot(
                f"the {found.part}{of} holds a value under {found.path}, which this store redacts, and no value of a "
                "bundle can be replaced. Redact it where it comes from, or import it as it is with secrets='keep' "
                "(--keep-secrets)",
                run=self.chain.run.id,
                **found._asdict(),
            )

    def _end(self, frame: EndFrame) -> None:
        self._whole()
        try:
            self.chain.close(self.timelines)
        except CorruptVersion as error:
            raise InvalidSnapshot(str(error)) from error
        if {name for name, _ in self.artifacts} != self.chain.held:
            raise InvalidSnapshot("its artifacts are not those that its versions refer to")
        if len({(mark.number, mark.name) for mark in self.marks}) != len(self.marks):
            raise InvalidSnapshot("a version has one tag twice")
        counts = (len(self.timelines), self._versions, len(self.marks), len(self.events), len(self.artifacts))
        if counts != msgspec.structs.astuple(frame):
            raise InvalidSnapshot("some of its parts are missing")
