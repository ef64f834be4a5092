"""Reading one run's trees: from the store's rows, checked, to frozen values.

A reader is shared by all histories of a run in a process. It knows the run's *lineage*: numbers below 1 are
versions of the run that this one was forked from, counted back from the fork point, so a fork costs nothing
and refers to what it came from as to its own past.

Invariant: no byte of a pack is decoded before its hash has been checked.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar
from weakref import WeakValueDictionary

import msgspec

from holdfast.errors import BadData, CorruptStore, CorruptVersion, HoldfastError, NotFound, UnknownTimeZone
from holdfast.history.seal import check
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.store.base import Store
from holdfast.store.unpicklable import StoredContent
from holdfast.tree.block import digest, directory_of, node_of, open_block
from holdfast.tree.codec import ARTIFACT, open_box
from holdfast.tree.fold import artifacts_within
from holdfast.tree.frozen import DICTS, LISTS, At, Box, FrozenDict, FrozenList, are_flat, aux_of, reveal, thaw
from holdfast.tree.load import Known, Loader, Place
from holdfast.tree.spine import Group, Vector
from holdfast.tree.values import NATIVE

#: So many packs and so many blocks are kept at hand in any case, and more as long as they are small: so many bytes,
#: each with what the object around it takes.
_KEPT = 128
_KEPT_BYTES = 1024 * 1024
_AROUND = 1024
#: An empty directory, encoded.
_NO_BLOCKS = b"\x90"

Key = TypeVar("Key")
Item = TypeVar("Item")


class Head(NamedTuple):
    """Where a run stands: its record, its head's record, and the head's state (internal, frozen)."""

    run: RunRecord
    version: VersionRecord
    root: Any
    #: The newest version up to this one that moved parts of the state, 0 if none did; None if that is not known yet.
    moved: int | None = None

    @property
    def number(self) -> int:
        """The number of the version."""
        return self.version.number


class Start(NamedTuple):
    """A state that a change is made from (internal, frozen), which need not be that of a version."""

    root: Any
    #: The version whose state it is, counted as the lineage of the run counts; None if it is the state of none.
    number: int | None = None


class _Pack(NamedTuple):
    """A checked and opened pack."""

    #: Still encoded, as the nodes are.
    roots: Any
    #: For each further block: the slot after its last node, and its hash.
    directory: list[Any]
    #: The slot that the first item of `nodes` would have: roots and directory stand before the nodes.
    first: int
    #: Each still encoded: most readers need few of them.
    nodes: list[Any]


class _AtHand(Generic[Key, Item]):
    """What was read last. Safe to use from many threads."""

    def __init__(self) -> None:
        self._items: OrderedDict[Key, tuple[Item, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    def get(self, key: Key) -> Item | None:
        found = self._items.get(key)
        return None if found is None else found[0]

    def keep(self, key: Key, item: Item, size: int) -> None:
        """Have an item at hand that was read from so many bytes."""
        size += _AROUND
        items = self._items
        with self._lock:
            if key in items:
                return
            items[key] = item, size
            self._bytes += size
            while len(items) > _KEPT and self._bytes > _KEPT_BYTES:
                self._bytes -= items.popitem(last=False)[1][1]


class Reader:
    """Reads the versions of one run."""

    def __init__(self, store: Store, run: RunRecord) -> None:
        self.store = store
        self.run = run
        self.space = object()
        self._known: Known = WeakValueDictionary()
        #: The newest head known; others may have moved on.
        self.head: Head | None = None
        self._origin: Reader | None = None
        self._packs: _AtHand[int, _Pack] = _AtHand()
        self._blocks: _AtHand[tuple[int, int], list[Any]] = _AtHand()

    @property
    def loader(self) -> Loader:
        """Reads trees. Made for each reading: held, the two would hold each other, and stay until they are found to."""
        return Loader(self.space, self._known, self.fetch, self._large)

    def remember(self, node: Any, at: At) -> None:
        """Keep a node that was written just now: it need not be read again."""
        self._known[at] = node

    def adopt(self, space: object) -> None:
        """Take over the address space in which the run's first version was written."""
        self.space = space

    def state(self, number: int) -> Any:
        """The internal state of a version."""
        return self.loader.load(self.roots(number)[0], number)

    def state_of_head(self, run: RunRecord, version: VersionRecord) -> Any:
        """The internal state of a version that is the head of a run that was read just now. It stays at hand: heads are
        read again and again, and others share most of what they hold."""
        head = self.head
        if head is not None and head.version.number == version.number and head.run.key == run.key:
            return head.root
        root = self.state(version.number)
        if head is None or head.run.revision < run.revision:
            self.head = Head(run, version, root)
        return root

    def part(self, number: int, which: int) -> Any:
        """Another root of a version (see `commit`), as a caller may see it; None where it has none."""
        return self.show(self.frozen_part(number, which))

    def frozen_part(self, number: int, which: int) -> Any:
        """The same, internal."""
        roots = self.roots(number)
        return self.loader.load(roots[which], number) if which < len(roots) else None

    def root(self, number: int, which: int) -> Any:
        """One of the roots of a version (see `commit`), internal; None where it has none."""
        roots = self.roots(number)
        return self.loader.load(roots[which], number) if which < len(roots) else None

    def find(self, number: int, path: Sequence[Any]) -> tuple[Any, int]:
        """The internal value at a path, and the version that stored the innermost node around it."""
        return self.loader.find(self.roots(number)[0], number, path)

    def roots(self, number: int) -> list[Any]:
        """What a version is made of, undecoded."""
        if number < 1 and self.run.origin is not None:
            return self.origin.roots(number + self.run.origin[1])
        pack = self._packs.get(number) or self._load([number])[number]
        roots = self._decoded(number, node_of, pack.roots)
        if type(roots) is not list:
            raise self._broken(number, "has no list of roots")
        if not roots:
            raise self._pruned(number)
        return roots

    def at_hand(self, number: int) -> bool:
        """Has the pack of a version been read?"""
        return number in self._packs

    def read_ahead(self, records: Sequence[VersionRecord]) -> None:
        """Read the packs of versions of this run, whose records were checked, together: they will be asked for soon.
        What is not as it should be is left to whoever asks for it."""
        wanted = [record for record in records if record.number not in self._packs]
        packs = self.store.pack_bytes(self.run.key, [record.number for record in wanted])
        for record in wanted:
            data = packs.get(record.number)
            if type(data) is bytes and digest(data) == record.pack_hash:
                self._unpack(record.number, data)

    def show(self, value: Any) -> Any:
        """An internal value as a caller may see it."""
        return reveal(value, self._open)

    def read(self, number: int, given: VersionRecord | None = None) -> VersionRecord:
        """The same as `record`, with the version's pack on the way; `given` if it was read already, unchecked."""
        if given is None and number > 0:
            given = next(iter(self._rows([number])), None)
        if given is None or given.pruned:
            return self.record(number)
        record = check(self.run.id, given)
        self._unpack(number, record.pack or b"")
        return msgspec.structs.replace(record, pack=None)

    def plain(self, value: Any) -> Any:
        """An internal value as a private copy of ordinary, mutable values."""
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
        """Private copies of the items of a list. Versions share groups, so each is looked at once."""
        if group.flat is None:
            group.flat = are_flat(group.items)
        return map(dict.copy, group.items) if group.flat else map(self.plain, group.items)

    def record(self, number: int) -> VersionRecord:
        """The checked record of a version of this run or its lineage; `NotFound` if it was pruned."""
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
        record = check(self.run.id, found[0])
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
                f"run {self.run.id!r} was forked from a run that is gone from the store", run=self.run.id
            )
        # It may have been pruned, or have taken over what it needs from an origin of its own, since.
        if self._origin is None or self._origin.run.epoch != run.epoch:
            self._origin = Reader(self.store, run)
        return self._origin

    def _open(self, box: Box) -> Any:
        """The object of a box; the artifacts in it can be read."""
        opened = open_box(box)
        if box.code == ARTIFACT or ARTIFACT in box.data:
            for artifact in artifacts_within(opened):
                artifact.bind(StoredContent(self.store, bytes.fromhex(artifact.digest)))
        return opened

    def _large(self, name: bytes) -> bytes:
        return b"".join(self.store.artifact_pieces(name))

    def fetch(self, places: Sequence[Place]) -> dict[Place, Any]:
        """Decoded nodes, of this run or its lineage."""
        # In order, so that every block is opened once even if there are more than are kept at hand.
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
        # Pruning leaves nil in the slot of a node that nobody needs.
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
            self._blocks.keep((number, index), nodes, len(data))
        return nodes

    def _load(self, numbers: Collection[int]) -> dict[int, _Pack]:
        """The packs of these versions, checked and decoded."""
        known, run_id = self._packs, self.run.id
        found = {number: pack for number in numbers if (pack := known.get(number)) is not None}
        missing = [number for number in numbers if number not in found]
        if not missing:
            return found
        fresh = {
            record.number: self._unpack(record.number, check(run_id, record).pack or b"")
            for record in self._rows(missing)
        }
        found.update(fresh)
        for number in missing:
            if number not in found:
                self._missing(number)
        return found

    def _rows(self, numbers: Sequence[int]) -> list[VersionRecord]:
        """The rows of these versions, unchecked; `CorruptVersion` names one that the store cannot read."""
        try:
            return self.store.packs(self.run.key, numbers)
        except CorruptStore as error:
            if len(numbers) == 1:
                raise self._unreadable(numbers[0], error) from error
        return list(chain.from_iterable(self._rows([number]) for number in numbers))

    def _unpack(self, number: int, data: bytes) -> _Pack:
        """A checked pack, opened; it stays at hand."""
        nodes = self._decoded(number, open_block, data)
        if len(nodes) < 2:
            raise self._broken(number, "has a pack without roots")
        if bytes(nodes[1]) == _NO_BLOCKS:
            pack = _Pack(nodes[0], [], -2, nodes)
        else:
            directory = self._decoded(number, directory_of, nodes[1])
            pack = _Pack(nodes[0], directory, directory[-1][0] - 2, nodes)
        self._packs.keep(number, pack, len(data))
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
        """Why a part of a version is not there: versions were pruned since this reader was made, or damage."""
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
