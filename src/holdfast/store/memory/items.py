"""The items of a store in memory: its `ItemStore`.

Invariant: `_namespaces` has the encoded namespaces of `_items`, in order, and `_expiring` the names of the items that
expire, in the order in which they do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from heapq import nlargest, nsmallest
from itertools import islice, takewhile

from msgspec.structs import replace

from holdfast.model.records import ItemRecord
from holdfast.store.items import bounds, decode_namespace, encode_namespace, first_after
from holdfast.store.protocol import ItemKey, ItemPut, Namespace
from holdfast.store.vectors import rank
from holdfast.tree.terms import TermQuery


class MemoryItems:
    """Items by namespace and key. `lock` returns the store's lock."""

    def __init__(self, lock: Callable[[], AbstractContextManager[object]]) -> None:
        self._lock = lock
        self._items: dict[bytes, dict[str, ItemPut]] = {}
        self._namespaces: list[bytes] = []
        self._expiring: list[tuple[int, bytes, str]] = []

    def put(self, puts: Sequence[ItemPut], deletes: Sequence[ItemKey] = ()) -> None:
        """Store items and delete others; for each put, delete two expired items if one has a time to live."""
        with self._lock():
            self._put(puts)
            for key in deletes:
                self._delete(encode_namespace(key.namespace), key.key)
            if any(put.record.ttl is not None for put in puts):
                self._sweep(max(put.record.created for put in puts), 2 * len(puts))

    def _put(self, puts: Sequence[ItemPut]) -> None:
        for put in puts:
            record = put.record
            name = encode_namespace(record.namespace)
            if name not in self._items:
                self._items[name] = {}
                insort(self._namespaces, name)
            old = self._items[name].get(record.key)
            if old is not None and _is_live(old.record, record.created):
                record = replace(record, created=old.record.created)
            self._replace(name, ItemPut(record, tuple(put.vectors)))

    def find(self, keys: Sequence[ItemKey]) -> list[ItemRecord]:
        """Return the items of these names."""
        with self._lock():
            return [found.record for found in map(self._get, keys) if found is not None]

    def recent(
        self,
        prefix: Namespace,
        *,
        limit: int = 100,
        terms: TermQuery | None = None,
    ) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix, newest first."""
        return self._newest(prefix, lambda record: terms is None or terms.selects(record.terms), limit)

    def live(self, prefix: Namespace, *, now: int, skip: int = 0, limit: int = 100) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix that have not expired, newest first, without the
        first `skip`."""
        return self._newest(prefix, lambda record: _is_live(record, now), skip + limit)[skip:]

    def names(self, prefix: Namespace, *, after: ItemKey | None = None, limit: int = 100) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix, in order, after a name."""
        found: list[ItemKey] = []
        start = b"" if after is None else encode_namespace(after.namespace)
        with self._lock():
            for name in self._range(prefix, start):
                namespace = decode_namespace(name)
                keys: Iterable[str] = self._items[name]
                if after is not None and namespace == after.namespace:
                    keys = (key for key in keys if key > after.key)
                found += [ItemKey(namespace, key) for key in nsmallest(limit - len(found), keys)]
                if len(found) >= limit:
                    break
        return found

    def _newest(self, prefix: Namespace, selects: Callable[[ItemRecord], bool], limit: int) -> list[ItemKey]:
        found = (
            (put.record.updated, put.record.namespace, put.record.key)
            for put in self._within(prefix)
            if selects(put.record)
        )
        with self._lock():
            newest = nlargest(limit, found)
        return [ItemKey(namespace, key) for _, namespace, key in newest]

    def nearest(
        self, prefix: Namespace, vector: bytes, metric: str, limit: int
    ) -> list[tuple[float, ItemKey]]:
        """Return the names of the items whose best vector scores highest."""
        with self._lock():
            vectors = [
                (ItemKey(put.record.namespace, put.record.key), each)
                for put in self._within(prefix)
                for each in put.vectors
            ]
        return rank(vectors, vector, metric, limit)

    def namespaces(
        self, prefix: Namespace, *, after: Namespace | None = None, skip: bool = False, limit: int = 100, now: int
    ) -> list[Namespace]:  # fmt: skip
        """Return the namespaces with a prefix that have an item that has not expired, in order."""
        start = b"" if after is None else first_after(after, skip)
        live = (
            name
            for name in self._range(prefix, start)
            if any(_is_live(put.record, now) for put in self._items[name].values())
        )
        with self._lock():
            return list(map(decode_namespace, islice(live, limit)))

    def renew(self, records: Sequence[ItemRecord], now: int) -> None:
        """Let items expire later, unless they have changed since they were read."""
        with self._lock():
            for record in records:
                found = self._get(ItemKey(record.namespace, record.key))
                if found is not None and found.record == record and record.ttl is not None:
                    renewed = found._replace(record=replace(record, expires=now + record.ttl))
                    self._replace(encode_namespace(record.namespace), renewed)

    def sweep(self, now: int, limit: int) -> int:
        """Delete items that have expired; return their number."""
        with self._lock():
            return self._sweep(now, limit)

    def _sweep(self, now: int, limit: int) -> int:
        expired = list(islice(takewhile(lambda each: each[0] <= now, self._expiring), limit))
        for _, name, key in expired:
            self._delete(name, key)
        return len(expired)

    def _get(self, key: ItemKey) -> ItemPut | None:
        return self._items.get(encode_namespace(key.namespace), {}).get(key.key)

    def _replace(self, name: bytes, put: ItemPut) -> None:
        """Store an item in place of the one of its name."""
        record = put.record
        self._forget_expiry(name, self._items[name].get(record.key))
        self._items[name][record.key] = put
        if record.expires is not None:
            insort(self._expiring, (record.expires, name, record.key))

    def _delete(self, name: bytes, key: str) -> None:
        found = self._items.get(name, {})
        self._forget_expiry(name, found.pop(key, None))
        if not found and name in self._items:
            del self._items[name], self._namespaces[bisect_left(self._namespaces, name)]

    def _forget_expiry(self, name: bytes, old: ItemPut | None) -> None:
        if old is not None and old.record.expires is not None:
            del self._expiring[bisect_left(self._expiring, (old.record.expires, name, old.record.key))]

    def _range(self, prefix: Namespace, start: bytes = b"") -> Iterator[bytes]:
        # A generator, so that nothing is read before the caller has the lock.
        first, end = bounds(prefix)
        yield from islice(
            self._namespaces,
            bisect_left(self._namespaces, max(first, start)),
            bisect_left(self._namespaces, end),
        )

    def _within(self, prefix: Namespace) -> Iterator[ItemPut]:
        for name in self._range(prefix):
            yield from self._items[name].values()


def _is_live(record: ItemRecord, now: int) -> bool:
    return record.expires is None or record.expires > now
