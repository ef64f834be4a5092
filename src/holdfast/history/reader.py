"""Read one run's trees: from the store's rows, checked, to frozen values.

All histories of a run in a process share one reader. It knows the run's *lineage*: numbers below 1 are versions of the
run that this one was forked from, counted back from the fork point, so a fork copies nothing and refers to versions of
its origin as to its own.

A hash protects the content of a row, not its existence: damaged database pages can make rows vanish from a list,
repeat, or change order. `is_complete` and `check_timelines` compare lists with the numbers in the run's record.

Invariant: no byte of a pack is decoded before its hash has been checked. A list that grew since the run was read
passes as complete.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar
from weakref import WeakValueDictionary

import msgspec

from holdfast.errors import BadData, CorruptStore, CorruptVersion, HoldfastError, NotFound, UnknownTimeZone
from holdfast.history.hashes import check_hash
from holdfast.model.records import RunRecord, TimelineRecord, VersionRecord
from holdfast.store.process_fork import StoredContent
from holdfast.store.protocol import Store
from holdfast.tree.block import digest, directory_of, node_of, open_block
from holdfast.tree.codec import ARTIFACT, open_box
from holdfast.tree.containers import Group, Vector
from holdfast.tree.fold import artifacts_within
from holdfast.tree.frozen import DICTS, LISTS, At, Box, FrozenDict, FrozenList, are_flat, aux_of, reveal, thaw
from holdfast.tree.load import Known, Loader, Slot
from holdfast.tree.values import NATIVE


def is_complete(run: RunRecord, numbers: Sequence[int], *, before: int | None, limit: int) -> bool:
    """Return whether these can be the numbers of a run's newest versions before one, newest first. For a pruned run
    only the whole list can be checked."""
    top = run.last if before is None else min(run.last, before - 1)
    if run.epoch == 0:
        first = numbers[0] if numbers else 0
        return first >= top and list(numbers) == list(range(first, max(0, first - limit), -1))
    if any(one <= other for one, other in pairwise(numbers)):
        return False
    known = sum(number <= run.last for number in numbers)
    return before is not None or len(numbers) == limit or known == run.kept


def check_timelines(
    run: RunRecord, lines: Sequence[TimelineRecord], *, after: int = 1
) -> list[TimelineRecord]:
    """Return the timelines of a run as it was read, those after a number; `CorruptStore` if one is missing."""
    known = [line for line in lines if line.number <= run.timeline]
    if [line.number for line in known] != list(range(after + 1, run.timeline + 1)):
        raise CorruptStore(
            f"run {run.id!r} has lost timelines: verify the store, restore the run from a bundle", run=run.id
        )
    return known


#: A cache keeps this many items in any case, and more while they take fewer bytes than this, overhead included.
_CACHED = 128
_CACHED_BYTES = 1024 * 1024
_OVERHEAD = 1024
#: An empty directory, encoded.
_NO_BLOCKS = b"\x90"

Key = TypeVar("Key")
Item = TypeVar("Item")


class Head(NamedTuple):
    """The head of a run: the run's record, the version's record, and its state (internal, frozen)."""

    run: RunRecord
    version: VersionRecord
    root: Any
    #: The newest version up to this one that moved nodes of the state, 0 if none did; None if not known yet.
    moved: int | None = None

    @property
    def number(self) -> int:
        """The number of the version."""
        return self.version.number


class BaseState(NamedTuple):
    """A state that a change is made from (internal, frozen); it need not be that of a version."""

    root: Any
    #: The number of its version in the run's lineage; None if it is not the state of a version.
    number: int | None = None


class _Pack(NamedTuple):
    """A pack that was checked and opened."""

    #: Still encoded, as the nodes are.
    roots: Any
    #: For each further block: the slot after its last node, and its hash.
    directory: list[Any]
    #: The slot of the first item of `nodes`, which are preceded by the roots and the directory.
    first: int
    #: Still encoded: most reads need few of them.
    nodes: list[Any]


class _SizedCache(Generic[Key, Item]):
    """The items read last, limited by their size. Thread-safe."""

    def __init__(self) -> None:
        self._items: OrderedDict[Key, tuple[Item, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    def get(self, key: Key) -> Item | None:
        found = self._items.get(key)
        return None if found is None else found[0]

    def add(self, key: Key, item: Item, size: int) -> None:
        """Cache an item that was read from `size` bytes."""
        size += _OVERHEAD
        items = self._items
        with self._lock:
            if key in items:
                return
            items[key] = item, size
            self._bytes += size
            while len(items) > _CACHED and self._bytes > _CACHED_BYTES:
                self._bytes -= items.popitem(last=False)[1][1]


class Reader:
    """Reads the versions of one run."""

    def __init__(self, store: Store, run: RunRecord) -> None:
        self.store = store
        self.run = run
        self.space = object()
        self._known: Known = WeakValueDictionary()
        #: The newest head known here; other processes may have committed since.
        self.head: Head | None = None
        self._origin: Reader | None = None
        self._packs: _SizedCache[int, _Pack] = _SizedCache()
        self._blocks: _SizedCache[tuple[int, int], list[Any]] = _SizedCache()

    @property
    def loader(self) -> Loader:
        """A new loader of trees per call: caching it would create a reference cycle."""
        return Loader(self.space, self._known, self.fetch, self._large)

    def remember(self, node: Any, at: At) -> None:
        """Cache a node that was written just now."""
        self._known[at] = node

    def note_head(self, head: Head) -> None:
        """Record a head, unless a newer one is known."""
        if self.head is None or self.head.run.revision < head.run.revision:
            self.head = head

    def state(self, number: int) -> Any:
        """Return the internal state of a version."""
        return self.loader.load(self.roots(number)[0], number)

    def state_of_head(self, run: RunRecord, version: VersionRecord) -> Any:
        """Return the internal state of the head of a run that was read just now, and cache it."""
        head = self.head
        if head is not None and head.version.number == version.number and head.run.key == run.key:
            return head.root
        root = self.state(version.number)
        self.note_head(Head(run, version, root))
        return root

    def part(self, number: int, which: int) -> Any:
        """Return a root of a version (see `builder`) for callers; None if the version has none."""
        return self.show(self.root(number, which))

    def root(self, number: int, which: int) -> Any:
        """Return a root of a version (see `builder`), internal; None if the version has none."""
        roots = self.roots(number)
        return self.loader.load(roots[which], number) if which < len(roots) else None

    def find(self, number: int, path: Sequence[Any]) -> tuple[Any, int]:
        """Return the internal value at a path, and the version that stored the innermost node around it."""
        return self.loader.find(self.roots(number)[0], number, path)

    def roots(self, number: int) -> list[Any]:
        """Return the roots of a version, undecoded."""
        if number < 1 and self.run.origin is not None:
            return self.origin.roots(number + self.run.origin[1])
        pack = self._packs.get(number) or self._load([number])[number]
        roots = self._decoded(number, node_of, pack.roots)
        if type(roots) is not list:
            raise self._broken(number, "has no list of roots")
        if not roots:
            raise self._pruned(number)
        return roots

    def is_cached(self, number: int) -> bool:
        """Return whether the pack of a version is cached."""
        return number in self._packs

    def prefetch(self, records: Sequence[VersionRecord]) -> None:
        """Read the packs of versions, whose records were checked, together into the cache. A damaged pack is reported
        when it is used."""
        wanted = [record for record in records if record.number not in self._packs]
        packs = self.store.pack_bytes(self.run.key, [record.number for record in wanted])
        for record in wanted:
            data = packs.get(record.number)
            if type(data) is bytes and digest(data) == record.pack_hash:
                self._unpack(record.number, data)

    def show(self, value: Any) -> Any:
        """Return an internal value for callers."""
        return reveal(value, self._open)

    def read(self, number: int, given: VersionRecord | None = None) -> VersionRecord:
        """Return the checked record of a version, and cache its pack. `given` is the row if it was read already."""
        if given is None and number > 0:
            given = next(iter(self._rows([number])), None)
        if given is None or given.pruned:
            return self.record(number)
        record = check_hash(self.run.id, given)
        self._unpack(number, record.pack or b"")
        return msgspec.structs.replace(record, pack=None)

    def plain(self, value: Any) -> Any:
        """Return an internal value as a private copy of ordinary, mutable values."""
        kind = type(value)
        if kind in NATIVE:
            return value
        if kind in DICTS:
            if kind is FrozenDict and NATIVE.issuperset(map(type, value.values())):
                return dict(value)
            plain = self.plain
            return {key: item if type(item) in NATIVE else plain(item) for key, item in value.items()}
        if kind in LISTS:
            if kind is FrozenList and NATIVE.issuperset(map(type, value)):
                return list(value)
            spine = aux_of(value)
            if type(spine) is Vector:
                return list(chain.from_iterable(map(self._copies, (*spine.levels[0], spine.tail))))
            return list(map(self.plain, value))
        return self._open(value) if kind is Box else thaw(value)

    def _copies(self, group: Group) -> Iterable[Any]:
        """Return private copies of the items of a list. Versions share groups, so a group is examined once."""
        if group.flat is None:
            group.flat = are_flat(group.items)
        return map(dict.copy, group.items) if group.flat else map(self.plain, group.items)

    def record(self, number: int) -> VersionRecord:
        """Return the checked record of a version of this run or its lineage; `NotFound` if it was pruned."""
        if number < 1 and self.run.origin is not None:
            return self.origin.record(number + self.run.origin[1])
        try:
            found = self.store.versions(
                self.run.key, after=number - 1, before=number + 1, limit=1, pruned=True
            )
        except CorruptStore as error:
            raise self._unreadable(number, error) from error
        if not found:
            self._missing(number)
        record = check_hash(self.run.id, found[0])
        if record.pruned:
            raise self._pruned(number)
        return record

    @property
    def origin(self) -> Reader:
        """The reader of the run that this one was forked from."""
        assert self.run.origin is not None
        run = self.store.run_by_key(self.run.origin[0])
        if run is None:
            raise CorruptVersion(
                f"run {self.run.id!r} was forked from a run that is no longer in the store", run=self.run.id
            )
        # It may have been pruned, or detached from an origin of its own, since.
        if self._origin is None or self._origin.run.epoch != run.epoch:
            self._origin = Reader(self.store, run)
        return self._origin

    def _open(self, box: Box) -> Any:
        """Return the object of a box; its artifacts are bound to the store."""
        opened = open_box(box)
        if box.code == ARTIFACT or ARTIFACT in box.data:
            for artifact in artifacts_within(opened):
                artifact.bind(StoredContent(self.store, bytes.fromhex(artifact.digest)))
        return opened

    def _large(self, name: bytes) -> bytes:
        try:
            return b"".join(self.store.artifact_pieces(name))
        except CorruptStore:
            # Another writer may have deleted it meanwhile: by now it is missing, or stored again.
            return b"".join(self.store.artifact_pieces(name))

    def fetch(self, places: Sequence[Slot]) -> dict[Slot, Any]:
        """Return decoded nodes of this run or its lineage."""
        # Sorted, so that every block is opened once even if there are more than are cached.
        own = sorted(places if self.run.origin is None else [place for place in places if place[0] > 0])
        packs = self._load(dict.fromkeys(number for number, _ in own))
        found = {place: self._node(packs[place[0]], *place) for place in own}
        if len(own) < len(places):
            assert self.run.origin is not None
            shift = self.run.origin[1]
            got = self.origin.fetch([(number + shift, slot) for number, slot in places if number < 1])
            found.update({(number - shift, slot): node for (number, slot), node in got.items()})
        return found

    def _node(self, pack: _Pack, number: int, slot: int) -> Any:
        first, nodes = pack.first, pack.nodes
        if slot < first + 2:
            index = bisect_right(pack.directory, slot, key=itemgetter(0))
            first = pack.directory[index - 1][0] if index else 0
            nodes = self._block(number, index, pack.directory[index][1])
        # Pruning leaves nil in the slot of a node that no version needs.
        node = self._decoded(number, node_of, nodes[slot - first]) if 0 <= slot - first < len(nodes) else None
        if node is None:
            raise self._lost(number, f"has no node {slot}")
        return node

    def _block(self, number: int, index: int, expected: bytes) -> list[Any]:
        nodes = self._blocks.get((number, index))
        if nodes is None:
            try:
                data = self.store.block(self.run.key, number, index)
            except CorruptStore as error:
                raise self._unreadable(number, error) from error
            if data is None:
                raise self._lost(number, f"has lost block {index}")
            if type(data) is not bytes or digest(data) != expected:
                raise self._lost(number, f"fails the hash of block {index}")
            nodes = self._decoded(number, open_block, data)
            self._blocks.add((number, index), nodes, len(data))
        return nodes

    def _load(self, numbers: Collection[int]) -> dict[int, _Pack]:
        """Return the packs of these versions, checked and decoded."""
        known, run_id = self._packs, self.run.id
        found = {number: pack for number in numbers if (pack := known.get(number)) is not None}
        missing = [number for number in numbers if number not in found]
        if not missing:
            return found
        fresh = {
            record.number: self._unpack(record.number, check_hash(run_id, record).pack or b"")
            for record in self._rows(missing)
        }
        found.update(fresh)
        for number in missing:
            if number not in found:
                self._missing(number)
        return found

    def _rows(self, numbers: Sequence[int]) -> list[VersionRecord]:
        """Return the rows of these versions, unchecked; `CorruptVersion` names one that the store cannot read."""
        try:
            return self.store.packs(self.run.key, numbers)
        except CorruptStore as error:
            if len(numbers) == 1:
                raise self._unreadable(numbers[0], error) from error
        return list(chain.from_iterable(self._rows([number]) for number in numbers))

    def _unpack(self, number: int, data: bytes) -> _Pack:
        """Open a checked pack and cache it."""
        nodes = self._decoded(number, open_block, data)
        if len(nodes) < 2:
            raise self._broken(number, "has a pack without roots")
        if bytes(nodes[1]) == _NO_BLOCKS:
            pack = _Pack(nodes[0], [], -2, nodes)
        else:
            directory = self._decoded(number, directory_of, nodes[1])
            pack = _Pack(nodes[0], directory, directory[-1][0] - 2, nodes)
        self._packs.add(number, pack, len(data))
        return pack

    def _decoded(self, number: int, decode: Callable[[Any], Any], data: Any) -> Any:
        try:
            return decode(data)
        except UnknownTimeZone:
            raise
        except BadData as error:
            raise self._broken(number, f"cannot be decoded ({error})") from error

    def _unreadable(self, number: int, error: CorruptStore) -> CorruptVersion:
        return self._broken(number, f"cannot be read ({error})")

    def _missing(self, number: int) -> NoReturn:
        fresh = self.store.run_by_key(self.run.key)
        if fresh is None or fresh.id != self.run.id:
            raise NotFound(f"run {self.run.id!r} was deleted", run=self.run.id, version=number)
        if number > fresh.last or number == 0:
            raise NotFound(f"run {self.run.id!r} has no version {number}", run=self.run.id, version=number)
        raise self._pruned(number) if fresh.epoch else self._broken(number, "is missing")

    def _lost(self, number: int, what: str) -> HoldfastError:
        """Return the error for a missing part of a version: pruned since this reader was created, or damaged."""
        fresh = self.store.run_by_key(self.run.key)
        if fresh is None or fresh.epoch != self.run.epoch:
            return self._pruned(number)
        return self._broken(number, what)

    def _pruned(self, number: int) -> NotFound:
        return NotFound(
            f"version {number} of run {self.run.id!r} was pruned", run=self.run.id, version=number
        )

    def _broken(self, number: int, what: str) -> CorruptVersion:
        return CorruptVersion(
            f"version {number} of run {self.run.id!r} {what}: other versions stay readable; run verify, "
            "and restore this one from a bundle",
            run=self.run.id,
            version=number,
        )
