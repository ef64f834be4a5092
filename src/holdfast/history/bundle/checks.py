"""Check a bundle from its first frame to its last, before anything of it is written.

Invariant: a bundle that passes is complete, in order, and consistent in every hash, count and name. Its versions, head
and timelines form a history in which `verify` finds no problem: every reference between nodes has been followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.errors import BadData, CorruptVersion, InvalidReference, InvalidSnapshot, UnknownTimeZone
from holdfast.history.attachments import check_decodes
from holdfast.history.bundle.frames import (
    AnyFrame,
    ArtifactFrame,
    AttachmentFrame,
    BundleReader,
    EndFrame,
    EventFrame,
    MarkFrame,
    PieceFrame,
    RunFrame,
    TimelineFrame,
    VersionFrame,
    to_record,
)
from holdfast.history.bundle.node_shapes import NodeShapes
from holdfast.history.bundle.secret_keys import FoundSecret, SecretKeys
from holdfast.history.hashes import NO_PARENT, check_hash
from holdfast.model.names import (
    check_attachment_key,
    check_attachment_name,
    check_run_id,
    check_tag,
    check_version_key,
    rollback_of,
)
from holdfast.model.records import (
    PIN,
    AttachmentRecord,
    EventRecord,
    MarkRecord,
    TimelineRecord,
    VersionRecord,
)
from holdfast.struct_types import resolved
from holdfast.tree.block import digest, directory_of, node_of, open_block, refuse_ext_keys
from holdfast.tree.fold import Redactor
from holdfast.tree.load import artifacts

#: A block holds at most 64 KiB of nodes, and a node is at least one byte.
_MOST_SLOTS = 1 << 20


class VersionChecker:
    """Checks the versions of a run, oldest first: each by itself and against its parent."""

    def __init__(self, run: RunFrame) -> None:
        self.run = run
        self.size = 0
        #: Numbers of the versions that are not pruned.
        self.alive: set[int] = set()
        #: Artifacts that versions refer to.
        self.held: set[bytes] = set()
        self._links: dict[int, bytes] = {}
        self._keys: set[str] = set()
        self._shapes = NodeShapes()
        self._highest = -(1 << 63)
        #: The last version of each timeline, and the timeline of the head.
        self._ends: dict[int, int] = {}
        self._line = 0

    def add(self, version: VersionRecord, blocks: Sequence[bytes]) -> list[bytes]:
        """Check the next version; return the artifacts that it refers to."""
        number = version.number
        if not self._highest < number <= self.run.last:
            raise self._broken(number, "is out of order")
        try:
            check_hash(self.run.id, version)
        except CorruptVersion as error:
            raise self._broken(number, "fails its hash") from error
        problem = self._stub_problem(version) if version.pruned else self._problem(version)
        if problem is not None:
            raise self._broken(number, problem)
        try:
            VersionFields.read(version.detail)
            roots, nodes = _nodes_of(version, blocks)
            self._shapes.add(number, nodes)
            self._shapes.check(roots, number)
            holds = sorted({name for node in (roots, *nodes) for name in artifacts(node)})
        except UnknownTimeZone:
            raise
        except Exception as error:
            raise self._broken(number, f"cannot be decoded ({error})") from error
        if version.size != len(version.pack or b"") + sum(map(len, blocks)):
            raise self._broken(number, "does not have the size that it claims")
        self._highest = self._ends[version.timeline] = number
        if number == self.run.head:
            self._line = version.timeline
        self._links[number] = version.hash[:8]
        self.size += version.size
        self.held.update(holds)
        if not version.pruned:
            self.alive.add(number)
        if version.key is not None:
            self._keys.add(version.key)
        return holds

    def close(self, timelines: Sequence[TimelineRecord]) -> None:
        """Check the run as a whole after the last version."""
        run = self.run
        if run.epoch == 0 and len(self.alive) != run.last:
            raise self._broken(run.last, "is missing, or one before it is")
        if run.head not in self.alive and (run.head, run.last) != (0, 0):
            raise self._broken(run.head, "is the head but is missing")
        if len(timelines) != run.timeline - 1:
            raise self._broken(run.head, f"is on one of {run.timeline} timelines, of which some are missing")
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
        if version.key is not None and (version.key in self._keys or not _can_be_key(version.key)):
            return "has a key that it cannot have"
        link = self._links.get(version.parent) if version.parent else NO_PARENT
        return None if version.prev == link else "does not link to its parent"

    def _stub_problem(self, version: VersionRecord) -> str | None:
        if version.key is not None:
            return "is pruned and has a key"
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


class DetailFields(msgspec.Struct):
    """The fields in the details of versions and the data of events that Holdfast relies on."""

    note: str | None = None
    actor: str | None = None
    merged: int | None = None
    moved: int | None = None
    needs: int | None = None
    version: int | None = None

    @classmethod
    def read(cls, data: bytes) -> None:
        """Raise an error if the data are not a dict, or these fields have other types."""
        if data:
            msgspec.msgpack.decode(data, type=resolved(cls))


class VersionFields(DetailFields):
    """The fields in the details of versions that Holdfast relies on."""

    keys: tuple[list[str] | None, int] | None = None


def _can_be_key(key: str) -> bool:
    try:
        return bool(check_version_key(key))
    except InvalidReference:
        return False


def _nodes_of(version: VersionRecord, blocks: Sequence[bytes]) -> tuple[list[Any], list[Any]]:
    """Return the roots of a version, and the nodes in all its slots. Damage may raise any exception."""
    packed_roots, packed_directory, *packed = open_block(version.pack or b"")
    refuse_ext_keys(packed_roots)
    roots, directory = node_of(packed_roots), directory_of(packed_directory)
    if [expected for _, expected in directory] != list(map(digest, blocks)):
        raise BadData("a block fails its hash")
    if type(roots) is not list or bool(roots) == version.pruned:
        raise BadData("it has no state, or is pruned and has one")
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
        # A pruned version has shorter blocks; its slots keep their numbers.
        if end - len(nodes) > _MOST_SLOTS:
            raise BadData("a block claims to have had more nodes than any block may")
        nodes += [None] * (end - len(nodes))
    nodes += map(node_of, packed)
    return roots, nodes


def examine(
    source: BundleReader, check_id: Callable[[str], None], redact: Redactor | None = None
) -> BundleExaminer:
    """Check a whole bundle; `InvalidSnapshot` with the first problem. `check_id` is called with the run's id before the
    rest is read. With `redact`, refuse a bundle that holds a value under a key that would be redacted."""
    reading = source.entries()
    header = next(reading)[0]
    assert isinstance(header, RunFrame)
    try:
        check_run_id(header.id)
    except InvalidReference as error:
        raise InvalidSnapshot(str(error)) from error
    check_id(header.id)
    found = BundleExaminer(header, None if redact is None else SecretKeys(redact))
    for frame, blocks in reading:
        found.add(frame, blocks)
    return found


class BundleExaminer:
    """Checks the frames of a bundle, and keeps all but the versions, the attachments and the contents of artifacts."""

    def __init__(self, header: RunFrame, secrets: SecretKeys | None = None) -> None:
        self.chain = VersionChecker(header)
        self._secrets = secrets
        #: The pieces of an artifact that may hold secrets.
        self._leaf: list[bytes] | None = None
        self.timelines: list[TimelineRecord] = []
        self.marks: list[MarkRecord] = []
        self.events: list[EventRecord] = []
        #: The place of the last attachment, and how many there are.
        self._attached = ("", "")
        self._attachments = 0
        #: Digests and sizes, in order of the digests.
        self.artifacts: list[tuple[bytes, int]] = []
        self._versions = 0
        self._content = sha256()
        self._missing = 0

    def add(self, frame: AnyFrame, blocks: list[bytes]) -> None:
        """Check the next frame."""
        if isinstance(frame, PieceFrame):
            self._piece(frame.data)
        elif isinstance(frame, VersionFrame):
            self._version(frame, blocks)
        elif isinstance(frame, TimelineFrame):
            self.timelines.append(to_record(TimelineRecord, frame))
        elif isinstance(frame, MarkFrame):
            self._mark(frame)
        elif isinstance(frame, EventFrame):
            self._event(frame)
        elif isinstance(frame, AttachmentFrame):
            self._attachment(frame)
        elif isinstance(frame, ArtifactFrame):
            self._artifact(frame)
        elif isinstance(frame, EndFrame):
            self._end(frame)

    def _version(self, frame: VersionFrame, blocks: list[bytes]) -> None:
        try:
            holds = self.chain.add(to_record(VersionRecord, frame), blocks)
        except CorruptVersion as error:
            raise InvalidSnapshot(str(error)) from error
        if holds != frame.holds:
            raise InvalidSnapshot(f"version {frame.number} lists other artifacts than it refers to")
        self._versions += 1
        self._refuse_secret(lambda secrets: secrets.in_version(frame.number, frame.pack, blocks))

    def _mark(self, frame: MarkFrame) -> None:
        try:
            name = frame.name if frame.name == PIN else check_tag(frame.name)
        except InvalidReference as error:
            raise InvalidSnapshot(str(error)) from error
        if frame.number not in self.chain.alive:
            raise InvalidSnapshot(f"version {frame.number} is tagged {name!r} but is missing")
        self.marks.append(to_record(MarkRecord, frame))

    def _event(self, frame: EventFrame) -> None:
        try:
            DetailFields.read(frame.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidSnapshot(f"an event has invalid data ({error})") from error
        self.events.append(to_record(EventRecord, frame))
        self._refuse_secret(lambda secrets: secrets.in_event(frame.kind, frame.data))

    def _attachment(self, frame: AttachmentFrame) -> None:
        if (frame.key, frame.name) <= self._attached:
            raise InvalidSnapshot("its attachments are not in order")
        if (rollback_of(frame.key) or 0) > self.chain.run.timeline:
            raise InvalidSnapshot(f"an attachment of key {frame.key!r} belongs to a timeline that is missing")
        record = to_record(AttachmentRecord, frame)
        try:
            check_attachment_key(frame.key)
            check_attachment_name(frame.name)
            check_decodes(self.chain.run.id, record)
        except Exception as error:
            raise InvalidSnapshot(f"an attachment cannot be stored ({error})") from error
        self._attached = frame.key, frame.name
        self._attachments += 1
        self._refuse_secret(lambda secrets: secrets.in_attachment(frame.key, frame.name, frame.data))

    def _artifact(self, frame: ArtifactFrame) -> None:
        self._end_artifact()
        if self.artifacts and frame.digest <= self.artifacts[-1][0]:
            raise InvalidSnapshot("its artifacts are not in order")
        self.artifacts.append((frame.digest, frame.size))
        self._content = sha256()
        self._missing = frame.size

    def _piece(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing < 0:
            raise InvalidSnapshot("an artifact is larger than its size")
        self._content.update(data)
        digest, size = self.artifacts[-1]
        starts = self._missing + len(data) == size
        if starts and self._secrets is not None and self._secrets.is_leaf(digest, data):
            self._leaf = []
        if self._leaf is not None:
            self._leaf.append(data)

    def _end_artifact(self) -> None:
        if self.artifacts:
            name = self.artifacts[-1][0]
            if self._missing or self._content.digest() != name:
                raise InvalidSnapshot(f"artifact {name.hex()[:12]} does not match its hash")
            if self._leaf is not None:
                data, self._leaf = b"".join(self._leaf), None
                self._refuse_secret(lambda secrets: secrets.in_leaf(name, data))

    def _refuse_secret(self, find: Callable[[SecretKeys], FoundSecret | None]) -> None:
        """Refuse a bundle if a value is found that would be redacted."""
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
                "bundle can be replaced. Redact it before the export, or import it as it is with secrets='keep' "
                "(--keep-secrets)",
                run=self.chain.run.id,
                **found._asdict(),
            )

    def _end(self, frame: EndFrame) -> None:
        self._end_artifact()
        try:
            self.chain.close(self.timelines)
        except CorruptVersion as error:
            raise InvalidSnapshot(str(error)) from error
        if {name for name, _ in self.artifacts} != self.chain.held:
            raise InvalidSnapshot("its artifacts are not those that its versions refer to")
        if len({(mark.number, mark.name) for mark in self.marks}) != len(self.marks):
            raise InvalidSnapshot("a version has the same tag twice")
        counts = (
            len(self.timelines),
            self._versions,
            len(self.marks),
            len(self.events),
            len(self.artifacts),
            self._attachments,
        )
        if counts != msgspec.structs.astuple(frame):
            raise InvalidSnapshot("some of its parts are missing")
