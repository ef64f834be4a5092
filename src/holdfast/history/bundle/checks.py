"""Check a bundle from its first frame to its last, before anything of it is written.

Invariant: a bundle that passes is complete, in order, and consistent in every hash, count and name. Its versions, head
and timelines form a history in which `verify` finds no problem: every reference between nodes has been followed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.errors import (
    BadData,
    CorruptVersion,
    IncompatibleFormat,
    InvalidReference,
    InvalidSnapshot,
    UnknownTimeZone,
)
from holdfast.history.bundle.frames import (
    AnyFrame,
    ArtifactFrame,
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
from holdfast.history.bundle.secret_keys import FoundSecret, SecretKeys
from holdfast.history.hashes import NO_PARENT, check_hash
from holdfast.model.names import check_run_id, check_tag
from holdfast.model.records import PIN, EventRecord, MarkRecord, TimelineRecord, VersionRecord
from holdfast.struct_types import resolved
from holdfast.tree.block import (
    BRANCH,
    BUCKET,
    FORK,
    TRIE,
    VECTOR,
    Raw,
    Ref,
    Refs,
    Sealed,
    digest,
    directory_of,
    items_of,
    node_of,
    open_block,
    refuse_ext_keys,
)
from holdfast.tree.codec import MAX_DEPTH, check_key, open_key
from holdfast.tree.containers import BITS, MAX_LEVEL, child_index, hash_key
from holdfast.tree.fold import Redactor
from holdfast.tree.frozen import DICTS, LISTS
from holdfast.tree.load import artifacts
from holdfast.tree.values import NATIVE

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
        self._shapes = _NodeShapes()
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
            DetailFields.read(version.detail)
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


class DetailFields(msgspec.Struct):
    """The fields in the details of versions and the data of events that Holdfast relies on."""

    note: str | None = None
    actor: str | None = None
    merged: int | None = None
    moved: int | None = None
    version: int | None = None

    @classmethod
    def read(cls, data: bytes) -> None:
        """Raise an error if the data are not a dict, or these fields have other types."""
        if data:
            msgspec.msgpack.decode(data, type=resolved(cls))


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


T = TypeVar("T")


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
    """Checks the frames of a bundle, and keeps all but the versions and the contents of artifacts."""

    def __init__(self, header: RunFrame, secrets: SecretKeys | None = None) -> None:
        self.chain = VersionChecker(header)
        self._secrets = secrets
        #: The pieces of an artifact that may hold secrets.
        self._leaf: list[bytes] | None = None
        self.timelines: list[TimelineRecord] = []
        self.marks: list[MarkRecord] = []
        self.events: list[EventRecord] = []
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
        counts = (len(self.timelines), self._versions, len(self.marks), len(self.events), len(self.artifacts))
        if counts != msgspec.structs.astuple(frame):
            raise InvalidSnapshot("some of its parts are missing")


#: Values in a state. A few nodes that refer to each other twice on each of many levels would exceed any memory.
MAX_WEIGHT = 100_000_000


class _Value(NamedTuple):
    """A value: its levels of containers, and the number of values in it. A node that is referred to twice counts twice,
    as it does for a reader of the whole value."""

    depth: int = 0
    weight: int = 1


class _Group(NamedTuple):
    """A group of a vector: the levels of groups below it, the number of its items, and their shape."""

    level: int
    size: int
    items: _Value
    #: Whether it is a list, which is a value as well.
    is_list: bool = False


class _Way(NamedTuple):
    """A part of a trie."""

    size: int
    #: Its values.
    items: _Value
    #: The hash of one of its keys, and the number of levels on which the hashes of all of them agree.
    hashed: int
    agreed: int
    #: Its level in the trie; None if not known yet, with the path that it takes from its own level on.
    level: int | None
    ways: tuple[int, ...] = ()


#: The shape in the slot of a pruned node.
_ABSENT = ()


class _NodeShapes:
    """The shapes of the nodes of all versions added so far: the kinds of value that a reference to each can be.

    A decoder checks a node by itself. Whether the nodes that it refers to exist, and are of the required kind, shows
    when all are checked, oldest first: children are written before their parents.

    Invariant: a tree of nodes that passed can be read. No reference leads to a missing node, to a node of the wrong
    kind or back to itself; the counts of long lists and wide dicts are right, and each key of a wide dict is where its
    hash says.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[Any]] = {}

    def add(self, version: int, nodes: Iterable[Any]) -> None:
        """Add the nodes of the next version in the order of their slots; None for pruned ones."""
        own: list[Any] = []
        self._known[version] = own
        for node in nodes:
            # A node is never a reference itself.
            _require(type(node) is not Ref)
            own.append(_ABSENT if node is None else self._node(node, version))

    def check(self, roots: Sequence[Any], version: int) -> None:
        """Raise `IncompatibleFormat` if the roots of a version cannot be read."""
        for root in roots:
            depth, weight = self._value(root, version)
            _require(depth <= MAX_DEPTH + 1)
            if weight > MAX_WEIGHT:
                raise IncompatibleFormat(
                    f"a state holds more than {MAX_WEIGHT:,} values, most of them again and again: reading it would "
                    "exhaust the memory"
                )

    def _node(self, node: Any, version: int) -> Any:
        """Return the shape of a node: a group, a part of a trie, or a value."""
        if type(node) in (list, Sealed) or (type(node) is Raw and node.code == BRANCH):
            return self._group(node, version)
        if type(node) is Raw and node.code in (FORK, BUCKET):
            return self._way(node, version)
        return self._value(node, version)

    def _at(self, ref: Ref, version: int) -> Any:
        slots = self._known.get(version - ref.back, ())
        _require(ref.slot < len(slots) and slots[ref.slot] is not _ABSENT)
        return slots[ref.slot]

    def _at_as(self, kind: type[T], ref: Ref, version: int) -> T:
        found: T = self._at(ref, version)
        _require(type(found) is kind)
        return found

    def _value(self, value: Any, version: int) -> _Value:
        """Return the shape of a value; the content of a leaf is not counted."""
        kind = type(value)
        if kind in NATIVE:
            return _LEAF
        if kind is Ref:
            found = self._at(value, version)
            if type(found) is _Group:
                # A list is a value and a group.
                _require(found.is_list)
                return _around(found.items)
            _require(type(found) is _Value)
            return _Value(*found)
        if kind is list:
            return _around(self._values(items_of(value), version))
        if kind is dict:
            for key in value:
                check_key(key)
            return _around(self._values(value.values(), version))
        if kind is Raw and value.code == VECTOR:
            height, count, root, tail = value.parts
            end = self._group(tail, version)
            _require(end.level == 0)
            if root is None:
                _require(height == count == 0)
                return _around(end.items)
            top = self._group(root, version)
            _require((top.level, top.size) == (height, count))
            return _around(_together([top.items, end.items]))
        if kind is Raw and value.code == TRIE:
            next_, count, root = value.parts
            way = self._way(root, version)
            _require(way.size == count <= next_ and _fits(way, 0))
            return _around(way.items)
        _require(kind not in (Raw, Refs, Sealed))
        return _LEAF

    def _values(self, values: Collection[Any], version: int) -> _Value:
        if NATIVE.issuperset(map(type, values)):
            return _Value(0, len(values))
        return _together([self._value(value, version) for value in values])

    def _group(self, raw: Any, version: int) -> _Group:
        if type(raw) is Ref:
            return self._at_as(_Group, raw, version)
        if type(raw) is list:
            values = items_of(raw)
            return _Group(0, len(values), self._values(values, version), is_list=True)
        if type(raw) is Sealed:
            return _Group(0, len(raw.items), _together(list(map(_whole, raw.items))))
        _require(type(raw) is Raw and raw.code == BRANCH and bool(raw.parts))
        children = [self._group(child, version) for child in raw.parts[1::2]]
        _require([child.size for child in children] == raw.parts[::2])
        _require(len({child.level for child in children}) == 1)
        items = _together([child.items for child in children])
        return _Group(children[0].level + 1, sum(raw.parts[::2]), items)

    def _way(self, raw: Any, version: int) -> _Way:
        if type(raw) is Ref:
            return self._at_as(_Way, raw, version)
        _require(type(raw) is Raw and raw.code in (FORK, BUCKET))
        if raw.code == FORK:
            return _fork(
                [(at, self._way(way, version)) for at, way in enumerate(raw.parts) if way is not None]
            )
        keys = list(map(open_key, raw.parts[1::3]))
        for key in keys:
            check_key(key)
        items = self._values(raw.parts[2::3], version)
        _require(len(set(raw.parts[::3])) == len(dict.fromkeys(keys)) == len(keys) > 0)
        hashes = list(map(hash_key, keys))
        return _Way(len(keys), items, hashes[0], _agreed(*hashes), None)


def _fork(below: list[tuple[int, _Way]]) -> _Way:
    """Check the children of an inner node of a trie, and return the shape of the node."""
    _require(bool(below))
    at, first = below[0]
    size = sum(way.size for _, way in below)
    items = _together([way.items for _, way in below])
    if len(below) == 1 and first.level is None:
        return _Way(size, items, first.hashed, first.agreed, None, (at, *first.ways))
    # Its level is where the hashes of its children differ.
    level = (first.level or 0) - 1 if len(below) == 1 else _agreed(first.hashed, below[1][1].hashed)
    _require(level >= 0)
    for place, way in below:
        _require(
            child_index(way.hashed, level) == place
            and _fits(way, level + 1)
            and _agreed(first.hashed, way.hashed) >= level
        )
    return _Way(size, items, first.hashed, level, level)


def _fits(way: _Way, level: int) -> bool:
    """Return whether a subtree of a trie may start at a level: its hashes lead there."""
    if way.level is not None:
        return way.level == level
    return way.agreed >= level + len(way.ways) and all(
        child_index(way.hashed, at) == each for at, each in enumerate(way.ways, level)
    )


def _agreed(*hashes: int) -> int:
    """Return the number of levels on which hashes agree."""
    different = 0
    for other in hashes:
        different |= hashes[0] ^ other
    return ((different & -different).bit_length() - 1) // BITS if different else MAX_LEVEL


def _whole(value: Any) -> _Value:
    """Return the shape of a value in a sealed group, which must not hold references or parts of a spine."""
    kind = type(value)
    if kind in NATIVE:
        return _LEAF
    if kind in DICTS:
        for key in value:
            check_key(key)
        return _around(_together(list(map(_whole, value.values()))))
    if kind in LISTS:
        return _around(_together(list(map(_whole, value))))
    _require(kind not in (Raw, Ref, Refs, Sealed))
    return _LEAF


_LEAF = _Value()


def _together(values: Sequence[_Value]) -> _Value:
    """Return the shape of several values: the deepest level, and the number of all values."""
    return _Value(max((value.depth for value in values), default=0), sum(value.weight for value in values))


def _around(items: _Value) -> _Value:
    """Return the shape of a container with these items."""
    return _Value(items.depth + 1, items.weight + 1)


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise IncompatibleFormat("a node refers to a missing node, or to one of the wrong kind")
