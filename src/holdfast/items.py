"""Items of an open store: values under a namespace and a key, which belong to no run.

Lists are read in pages of names, which grow: a search that finds enough at once reads little, one that finds nothing
reads each value of its namespaces once, in pages of bounded size. Values are read a few at a time, whatever the size
of a page.

Invariant: a value is read exactly as it was put, apart from redacted parts, or it is refused when it is put. An expired
item is never returned, whether it was deleted or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.errors import InvalidCall, UnsupportedValue
from holdfast.model.names import short
from holdfast.model.records import ItemRecord
from holdfast.store.items import encode_namespace, encode_text
from holdfast.store.process_fork import ProcessBound
from holdfast.store.protocol import ItemKey, ItemPut, Namespace, Store
from holdfast.tree import path as paths
from holdfast.tree.block import open_block, squeeze
from holdfast.tree.codec import ARTIFACT, decode, encode
from holdfast.tree.fold import Redactor, artifacts_within
from holdfast.tree.terms import TermQuery, terms_of

__all__ = ["EncodedValue", "ItemKey", "Items", "NewItem", "Selection", "StoredItem"]

#: Bytes of an encoded namespace, and of a key: PostgreSQL's indexes take 2,700 bytes.
MAX_NAME = 1_200
#: Bytes of an encoded value. The row is one piece, in memory and in the database.
MAX_VALUE = 16 << 20
#: Names of the first page, if the caller does not know how many it needs.
_FIRST_PAGE = 32
#: Names at most of a page, if few of its items are selected.
LARGEST_PAGE = 65_536
#: Names at least of a page of rows that must be sorted.
_SORTED_PAGE = 128
#: Values and namespaces that are read at once.
_VALUES = 64
_NAMESPACES = 256
_FEW_NAMESPACES = 8
#: More items than a store can have.
_ALL = 1 << 40
#: Times at most that the expiry of an item is postponed within its time to live.
_RENEWALS = 20
#: Items that a sweep deletes in one transaction.
_SWEPT = 1000


class Redacting(Protocol):
    """The redaction of a store."""

    @property
    def redactor(self) -> Redactor | None:
        """The current redactor; None if nothing is redacted."""


class EncodedValue(NamedTuple):
    """A value to put: its bytes, and the value as it will be read, with redacted parts replaced."""

    data: bytes
    value: Any
    #: The terms by which it is found, of the redacted value.
    terms: tuple[bytes, ...]


class Selection(NamedTuple):
    """Selects values: those that match. `terms` selects these and perhaps others, without reading values."""

    matches: Callable[[Any], bool]
    terms: TermQuery | None = None


class NewItem(NamedTuple):
    """An item to put."""

    key: ItemKey
    data: bytes
    #: Microseconds after the last use at which it expires.
    ttl: int | None = None
    vectors: Sequence[bytes] = ()
    terms: tuple[bytes, ...] = ()


class StoredItem(NamedTuple):
    """An item as it was read."""

    record: ItemRecord
    value: Any


class Items(ProcessBound):
    """The items of an open store. Safe to use from many threads."""

    def __init__(self, store: Store, redaction: Redacting) -> None:
        self._store = store
        self._redaction = redaction

    def encode(self, value: Any) -> EncodedValue:
        """Encode a value. `UnsupportedValue` if it cannot be stored exactly, with the path of the part that cannot."""
        redactor = self._redaction.redactor
        try:
            encoded = encode(value, None if redactor is None else redactor.hides)
        except UnsupportedValue as error:
            raise paths.name_place(error) from None
        if len(encoded) > MAX_VALUE:
            raise UnsupportedValue(
                f"the value of an item has {len(encoded):,} bytes; the maximum is {MAX_VALUE:,}: split it into several "
                "items, or store it elsewhere and put its address"
            )
        if ARTIFACT in encoded and next(artifacts_within(value), None) is not None:
            raise UnsupportedValue(
                "an item cannot hold an artifact, which only versions of runs refer to: put the content itself"
            )
        data = squeeze([msgspec.Raw(encoded)])
        return EncodedValue(data, value if redactor is None else decode(encoded), terms_of(encoded))

    def put(self, new: Sequence[NewItem], deletes: Sequence[ItemKey] = ()) -> None:
        """Store items and delete others, in one commit. Names differ."""
        for item in new:
            _check_length("the namespace", item.key.namespace, len(encode_namespace(item.key.namespace)))
            _check_length("the key", item.key.key, len(encode_text(item.key.key)))
        now = self._store.now()
        puts = [
            ItemPut(
                ItemRecord(
                    namespace=item.key.namespace,
                    key=item.key.key,
                    data=item.data,
                    created=now,
                    # A microsecond apart, so that a list has them in the order of this call.
                    updated=now + index,
                    ttl=item.ttl,
                    expires=None if item.ttl is None else now + item.ttl,
                    terms=item.terms,
                ),
                item.vectors,
            )
            for index, item in enumerate(new)
        ]
        if puts or deletes:
            self._store.put_items(puts, deletes)

    def find(self, key: ItemKey) -> StoredItem | None:
        """Return the item of a name; None if it is missing or has expired."""
        for record in self._live((key,)):
            return StoredItem(record, decode(open_block(record.data)[0]))
        return None

    def get(self, keys: Sequence[ItemKey]) -> dict[ItemKey, StoredItem]:
        """Return the items of these names; missing and expired ones are omitted."""
        return {
            ItemKey(record.namespace, record.key): StoredItem(record, decode(open_block(record.data)[0]))
            for record in self._live(keys)
        }

    def _live(self, keys: Sequence[ItemKey]) -> list[ItemRecord]:
        """Return the records of these names that have not expired."""
        records = self._store.items(keys)
        for record in records:
            if record.expires is not None:
                now = self._store.now()
                return [each for each in records if each.expires is None or each.expires > now]
        return records

    def recent(
        self,
        prefix: Namespace,
        want: int = _FIRST_PAGE,
        selection: Selection | None = None,
        skip: int = 0,
    ) -> Iterator[StoredItem]:
        """Yield the items in all namespaces with a prefix that are selected, those put last first, without the first
        `skip`. `want` is the number that the caller expects to use of the others.

        Each page starts with the newest item again and has several times as many. If few items of a large page are
        selected, all others are read in the order of their names, and those that are selected are sorted. So an item
        that is put again meanwhile, whatever its time, is not missed, but may come last: either the last page has all
        names at one moment, or the order does not change. Only the names of the first pages and of the selected items
        are kept in memory.

        Terms are used at once if the index has its rows in order. Otherwise the items that match must be sorted, which
        is done when few of the newest items match.
        """
        terms = None if selection is None else selection.terms
        uses_terms = terms is not None and terms.is_point
        # The store skips without reading values, but only a value decides whether it is selected.
        skipped_by_store = skip if selection is None else 0
        skip -= skipped_by_store
        size = min(max(want + skip, 1), LARGEST_PAGE)
        seen: set[ItemKey] = set()
        found = 0
        while True:
            if skipped_by_store:
                page = self._store.live_items(
                    prefix, now=self._store.now(), skip=skipped_by_store, limit=size
                )
            else:
                page = self._store.recent_items(prefix, limit=size, terms=terms if uses_terms else None)
            for item in self._selected((name for name in page if name not in seen), selection):
                found += 1
                if found > skip:
                    yield item
            if len(page) < size:
                return
            seen.update(page)
            is_rare = found < size / 8 and not skipped_by_store
            if not is_rare:
                size = min(8 * size, _ALL)
            elif terms is not None and not uses_terms:
                uses_terms, size = True, min(max(8 * size, _SORTED_PAGE), LARGEST_PAGE)
            elif size < LARGEST_PAGE:
                size = min(8 * size, LARGEST_PAGE)
            else:
                break
        rest = [
            (item.record.updated, item.record.namespace, item.record.key)
            for item in self._selected((name for name in self._names(prefix) if name not in seen), selection)
        ]
        rest.sort(reverse=True)
        names = (ItemKey(namespace, key) for _, namespace, key in rest)
        yield from islice(self._selected(names, selection), max(skip - found, 0), None)

    def nearest(
        self,
        prefix: Namespace,
        vector: bytes,
        metric: str,
        want: int = _FIRST_PAGE,
        selection: Selection | None = None,
    ) -> Iterator[tuple[float, StoredItem]]:
        """Yield the selected items in all namespaces with a prefix that have a vector, with their scores, best first.

        A page costs a comparison of all vectors. Where terms select the items, few may be among the best: all are
        ranked at once, and the values of the others are not read.
        """
        chosen: set[ItemKey] | None = None
        size = max(want, 1)
        if selection is not None and selection.terms is not None:
            chosen, size = set(self._store.recent_items(prefix, limit=_ALL, terms=selection.terms)), _ALL
        seen: set[ItemKey] = set()
        while True:
            page = self._store.nearest_items(prefix, vector, metric, size)
            scores = {key: score for score, key in page if key not in seen}
            for item in self._in_order([key for key in scores if chosen is None or key in chosen]):
                if selection is None or selection.matches(item.value):
                    yield scores[ItemKey(item.record.namespace, item.record.key)], item
            if len(page) < size:
                return
            seen.update(scores)
            size = min(8 * size, _ALL)

    def namespaces(
        self,
        prefix: Namespace,
        depth: int | None,
        matches: Callable[[Namespace], bool],
        want: int = _FIRST_PAGE,
    ) -> Iterator[Namespace]:
        """Yield the namespaces with a prefix that match, in order, each shortened to `depth` labels, once. `want` is
        the number that the caller expects to use."""
        now = self._store.now()
        after: Namespace | None = None
        skip = False
        last: Namespace | None = None
        # With a depth, a page may be shortened to one namespace, and the next page skips all others like it.
        size = _FEW_NAMESPACES if depth is not None else min(max(want, 1), _NAMESPACES)
        while True:
            page = self._store.namespaces(prefix, after=after, skip=skip, limit=size, now=now)
            for namespace in page:
                shortened = namespace[:depth]
                if shortened != last and matches(namespace):
                    last = shortened
                    yield shortened
            if len(page) < size:
                return
            # All namespaces below the last result would be shortened to it.
            skip = depth is not None and len(page[-1]) >= depth and page[-1][:depth] == last
            after = last if skip else page[-1]
            size = min(4 * size, _NAMESPACES)

    def renew(self, items: Sequence[StoredItem]) -> None:
        """Postpone the expiry of items that have a time to live: it counts from now. One that was postponed less than
        a twentieth of that time ago is left as it is, so that most reads write nothing."""
        now = self._store.now()
        due = [item.record for item in items if _is_due(item.record, now)]
        if due:
            self._store.renew_items(due, now)

    def sweep(self) -> int:
        """Delete all items that have expired; return their number."""
        now = self._store.now()
        total = 0
        while deleted := self._store.sweep_items(now, _SWEPT):
            total += deleted
        return total

    def _names(self, prefix: Namespace) -> Iterator[ItemKey]:
        """Yield the names of the items in all namespaces with a prefix, in order; all that exist throughout."""
        after: ItemKey | None = None
        while page := self._store.item_names(prefix, after=after, limit=LARGEST_PAGE):
            yield from page
            after = page[-1]

    def _selected(self, keys: Iterable[ItemKey], selection: Selection | None) -> Iterator[StoredItem]:
        for item in self._in_order(keys):
            if selection is None or selection.matches(item.value):
                yield item

    def _in_order(self, keys: Iterable[ItemKey]) -> Iterator[StoredItem]:
        left = iter(keys)
        while page := list(islice(left, _VALUES)):
            found = self.get(page)
            for key in page:
                item = found.get(key)
                if item is not None:
                    yield item


def _is_due(record: ItemRecord, now: int) -> bool:
    """Return whether the expiry of an item is to be postponed."""
    if record.ttl is None or record.expires is None:
        return False
    return now + record.ttl - record.expires >= record.ttl / _RENEWALS


def _check_length(what: str, name: Any, size: int) -> None:
    if size > MAX_NAME:
        raise InvalidCall(f"{what} {short(name)} has {size:,} bytes in UTF-8; the maximum is {MAX_NAME:,}")
