"""Items in the tables of a database: the statements and the logic that SQLite and PostgreSQL share.

A namespace is stored as bytes: each label in UTF-8, with 00 FF in place of each 00, and a 00 after it. No byte of UTF-8
is FF, so the namespaces with a prefix are the range from the prefix to the prefix and FF, and bytes have the order of
labels. Keys are stored in UTF-8. Both databases compare bytes alike, and neither changes or refuses any of them.

Invariant: two namespaces never have the same bytes. An item is read only if its checksum, which covers its name, is
right. All terms and vectors of an item are written and deleted in the transaction that writes or deletes the item.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from holdfast.errors import CorruptStore
from holdfast.model.records import ItemRecord
from holdfast.store.protocol import ItemKey, ItemPut, Namespace
from holdfast.store.rows import row_sum
from holdfast.store.sql import SQLConnection, SQLDatabase
from holdfast.store.vectors import Ranking, page_size
from holdfast.tree.terms import TermQuery, TermRange

#: After every byte of a namespace.
_END = b"\xff"
#: Rows of terms that are read rather than compared with others.
_FEW = 64
#: Rows that `check` reads at once.
_PAGE = 100
#: Namespaces whose bytes are cached: a search reads many items of one.
_CACHED = 1024
#: Different locks of names. A transaction takes no more, however many items it puts.
_LOCKS = 512

#: The columns of an item.
ITEM = "item.namespace, item.key, created, updated, ttl, expires, terms, data, sum"
_FIND = f"SELECT {ITEM} FROM item WHERE namespace = $1 AND key = $2"
_FIRST_PAGE = f"SELECT {ITEM} FROM item ORDER BY namespace, key LIMIT {_PAGE}"
_NEXT_PAGE = (
    f"SELECT {ITEM} FROM item WHERE (namespace, key) > ($1, $2) ORDER BY namespace, key LIMIT {_PAGE}"
)
_PUT = (
    "INSERT INTO item (namespace, key, created, updated, ttl, expires, terms, data, sum) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (namespace, key) DO UPDATE SET "
    "created = excluded.created, updated = excluded.updated, ttl = excluded.ttl, expires = excluded.expires, "
    "terms = excluded.terms, data = excluded.data, sum = excluded.sum"
)
#: The columns of `_forget`.
_GONE = "namespace, key, updated, terms"
_DELETE = f"DELETE FROM item WHERE namespace = $1 AND key = $2 RETURNING {_GONE}"
_RENEW = "UPDATE item SET expires = $1, sum = $2 WHERE namespace = $3 AND key = $4 AND sum = $5"

#: The first and the last namespace of a range.
_EDGES = (
    "SELECT (SELECT namespace FROM item WHERE namespace >= $1 AND namespace < $2 ORDER BY namespace LIMIT 1), "
    "(SELECT namespace FROM item WHERE namespace >= $1 AND namespace < $2 ORDER BY namespace DESC LIMIT 1)"
)
_NEWEST_FIRST = "ORDER BY updated DESC, namespace DESC, key DESC LIMIT"
_NAMES = "SELECT updated, namespace, key FROM item"
#: In the order of the index: the cost does not depend on the number of items.
_RECENT_OF_ONE = f"{_NAMES} WHERE namespace = $1 ORDER BY updated DESC, key DESC LIMIT $2"
#: Sorts the index entries of the range, without the values.
_RECENT = f"{_NAMES} WHERE namespace >= $1 AND namespace < $2 {_NEWEST_FIRST} $3"
#: Reads a row for each item that is skipped, to know whether it has expired.
_IS_LIVE = "(expires IS NULL OR expires > $1)"
_LIVE_OF_ONE = (
    f"{_NAMES} WHERE {_IS_LIVE} AND namespace = $2 ORDER BY updated DESC, key DESC LIMIT $3 OFFSET $4"
)
_LIVE = f"{_NAMES} WHERE {_IS_LIVE} AND namespace >= $2 AND namespace < $3 {_NEWEST_FIRST} $4 OFFSET $5"
#: In the order of the primary key, which no put of an existing item changes.
_IN_ORDER = (
    "SELECT namespace, key FROM item WHERE (namespace, key) >= ($1, $2) AND namespace < $3 "
    "ORDER BY namespace, key LIMIT $4"
)
#: One search in the index for each namespace, however many items it has.
_FOUND = (
    "WITH RECURSIVE found (namespace) AS ("
    "SELECT (SELECT namespace FROM item WHERE namespace >= $1 AND namespace < $2 ORDER BY namespace LIMIT 1) "
    "UNION ALL SELECT (SELECT item.namespace FROM item WHERE item.namespace > found.namespace "
    "AND item.namespace < $2 ORDER BY item.namespace LIMIT 1) FROM found WHERE found.namespace IS NOT NULL)"
)
#: Without EXISTS, which PostgreSQL may turn into a join that reads all items, in another order.
_NAMESPACES = (
    f"{_FOUND} SELECT namespace FROM found WHERE namespace IS NOT NULL AND (SELECT 1 FROM item "
    "WHERE item.namespace = found.namespace AND (expires IS NULL OR expires > $3) LIMIT 1) = 1 LIMIT $4"
)

_PUT_TERM = (
    "INSERT INTO item_term (namespace, term, updated, key) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
)
_DELETE_TERM = "DELETE FROM item_term WHERE namespace = $1 AND term = $2 AND updated = $3 AND key = $4"
#: Reads all terms of the namespace.
_DELETE_TERMS = "DELETE FROM item_term WHERE namespace = $1 AND key = $2"
_HAS_TERM = "SELECT 1 FROM item_term WHERE namespace = $1 AND term = $2 AND updated = $3 AND key = $4"
_LOST_TERM = (
    "SELECT 1 FROM item_term WHERE NOT EXISTS (SELECT 1 FROM item WHERE item.namespace = item_term.namespace "
    "AND item.key = item_term.key AND item.updated = item_term.updated) LIMIT 1"
)

_PUT_VECTOR = "INSERT INTO item_vector (namespace, key, n, vector, sum) VALUES ($1, $2, $3, $4, $5)"
_DELETE_VECTORS = "DELETE FROM item_vector WHERE namespace = $1 AND key = $2"
_VECTORS = (
    "SELECT namespace, key, n, vector, sum FROM item_vector WHERE (namespace, key, n) > ($1, $2, $3) "
    "AND namespace < $4 ORDER BY namespace, key, n LIMIT $5"
)
_LOST_VECTOR = (
    "SELECT 1 FROM item_vector WHERE NOT EXISTS (SELECT 1 FROM item "
    "WHERE item.namespace = item_vector.namespace AND item.key = item_vector.key) LIMIT 1"
)


_encode_terms = msgspec.msgpack.Encoder().encode
_decode_terms = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode


class ItemDialect(NamedTuple):
    """The statements in which a database differs from others."""

    #: Items of a list of names.
    find_many: str
    #: Convert names to the values of `find_many`, and a vector to a value of its column and back.
    encode_names: Callable[[Sequence[tuple[bytes, bytes]]], Sequence[Any]]
    encode_vector: Callable[[bytes], Any]
    decode_vector: Callable[[Any], bytes]
    #: Ends a selection of rows to delete: those that another transaction has locked are left out.
    skip_locked: str = ""
    #: Run before the first item is put by this process.
    prepare: Sequence[str] = ()
    #: Locks the numbers $1 until the end of the transaction; None if there is one writer at a time anyway.
    lock: str | None = None


@lru_cache(maxsize=_CACHED)
def encode_namespace(namespace: Namespace) -> bytes:
    """Return the bytes of a namespace."""
    return b"".join(encode_text(label).replace(b"\0", b"\0\xff") + b"\0" for label in namespace)


@lru_cache(maxsize=_CACHED)
def decode_namespace(data: bytes) -> Namespace:
    """Return the namespace of its bytes."""
    # An escaped zero is followed by FF, the end of a label is not.
    labels = data.replace(b"\0\xff", _END).split(b"\0")[:-1]
    return tuple(decode_text(label.replace(_END, b"\0")) for label in labels)


def encode_text(text: str) -> bytes:
    """Return the bytes of a label or a key; any text has some."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Return the text of its bytes."""
    return data.decode("utf-8", "surrogatepass")


def bounds(prefix: Namespace) -> tuple[bytes, bytes]:
    """Return the range of namespaces with a prefix, itself included: the first, and the end."""
    start = encode_namespace(prefix)
    return start, start + _END


def first_after(after: Namespace, skip: bool) -> bytes:
    """Return the first bytes after a namespace; with `skip`, after all namespaces of which it is a prefix."""
    return encode_namespace(after) + (_END if skip else b"\0")


class SQLItems:
    """The items of a database."""

    def __init__(self, database: SQLDatabase, dialect: ItemDialect) -> None:
        self._database = database
        self._dialect = dialect
        self._is_prepared = not dialect.prepare
        # The condition on `expires` is repeated: a row may have been renewed since it was selected.
        self._sweep_some = (
            "WITH expired AS (SELECT namespace, key FROM item WHERE expires <= $1 ORDER BY expires LIMIT $2"
            f"{dialect.skip_locked}) DELETE FROM item WHERE expires <= $1 "
            f"AND (namespace, key) IN (SELECT namespace, key FROM expired) RETURNING {_GONE}"
        )

    def put(self, puts: Sequence[ItemPut], deletes: Sequence[ItemKey] = ()) -> None:
        """Store items and delete others, atomically.

        If an item has a time to live, two expired ones are deleted for each that is put: without a sweeper, too, there
        are never many. Rows of `item` are locked before their terms and vectors, as by `sweep`.
        """

        def write(connection: SQLConnection) -> None:
            if not self._is_prepared:
                for statement in self._dialect.prepare:
                    connection.change(statement)
            self._lock(connection, [*names, *deleted])
            if puts:
                # After the names are locked, so that an item that another transaction has just put is visible.
                old = self._find(connection, names)
                created = dict(_created(old, puts))
                rows = [_row(put.record, created.get((put.record.namespace, put.record.key))) for put in puts]
                connection.change_many(_PUT, rows)
                _forget(connection, names, [_gone(row) for row in old])
                connection.change_many(_PUT_TERM, [term for put in puts for term in _term_rows(put.record)])
                connection.change_many(_PUT_VECTOR, list(self._vector_rows(puts)))
            _forget(connection, deleted, [row for name in deleted for row in connection.rows(_DELETE, name)])
            if any(put.record.ttl is not None for put in puts):
                self._sweep(connection, max(put.record.created for put in puts), 2 * len(puts))

        # In one order, so that two transactions do not wait for each other.
        puts = sorted(puts, key=lambda put: (put.record.namespace, put.record.key))
        names = [_name(put.record) for put in puts]
        deleted = sorted(map(_name, deletes))
        self._database.write(write)
        self._is_prepared = True

    def find(self, keys: Sequence[ItemKey]) -> list[ItemRecord]:
        """Return the items of these names."""
        return list(map(_record, self._find(self._database, list(map(_name, keys)))))

    def recent(
        self,
        prefix: Namespace,
        *,
        limit: int = 100,
        terms: TermQuery | None = None,
    ) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix, newest first."""
        first, last = self._edges(prefix)
        if first is None:
            return []
        if terms is not None:
            if first == last:
                terms = self._narrow(first, terms)
            rows = self._database.rows(*_by_terms(first, last, limit, terms))
        elif first == last:
            rows = self._database.rows(_RECENT_OF_ONE, (first, limit))
        else:
            rows = self._database.rows(_RECENT, (*bounds(prefix), limit))
        return _newest_first(rows)

    def live(self, prefix: Namespace, *, now: int, skip: int = 0, limit: int = 100) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix that have not expired, newest first, without the
        first `skip`."""
        first, last = self._edges(prefix)
        if first is None:
            return []
        if first == last:
            return _newest_first(self._database.rows(_LIVE_OF_ONE, (now, first, limit, skip)))
        return _newest_first(self._database.rows(_LIVE, (now, *bounds(prefix), limit, skip)))

    def names(self, prefix: Namespace, *, after: ItemKey | None = None, limit: int = 100) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix, in order, after a name."""
        start, end = bounds(prefix)
        if after is None:
            rows = self._database.rows(_IN_ORDER, (start, b"", end, limit))
        else:
            last = _name(after)
            first = max((start, b""), (last[0], last[1] + b"\0"))
            # Checked with the last name of the page before: otherwise a damaged index could list one page forever.
            rows = [last, *self._database.rows(_IN_ORDER, (*first, end, limit))]
        _check_order(rows)
        return list(map(read_key, rows if after is None else rows[1:]))

    def _edges(self, prefix: Namespace) -> tuple[Any, Any]:
        """Return the first and the last namespace with a prefix, encoded; None if there are none."""
        edges = self._database.row(_EDGES, bounds(prefix))
        return (None, None) if edges is None else (edges[0], edges[1])

    def _narrow(self, namespace: bytes, terms: TermQuery) -> TermQuery:
        """Return a query for one of several groups if that has few rows: the others may have very many."""
        if len(terms.having) + len(terms.lacking) > 1:
            for group in terms.having:
                few = TermQuery((group,))
                if len(self._database.rows(*_by_terms(namespace, namespace, _FEW, few))) < _FEW:
                    return few
        return terms

    def nearest(
        self, prefix: Namespace, vector: bytes, metric: str, limit: int
    ) -> list[tuple[float, ItemKey]]:
        """Return the names of the items whose best vector scores highest; compares all vectors with the prefix."""
        ranking = Ranking(vector, metric)
        for rows in self._iter_vectors(*bounds(prefix), page_size(vector)):
            ranking.add([read_key(row) for row in rows], [self._vector(row) for row in rows])
        return ranking.best(limit)

    def namespaces(
        self, prefix: Namespace, *, after: Namespace | None = None, skip: bool = False, limit: int = 100, now: int
    ) -> list[Namespace]:  # fmt: skip
        """Return the namespaces with a prefix that have an item that has not expired, in order."""
        start, end = bounds(prefix)
        if after is not None:
            start = max(start, first_after(after, skip))
        rows = self._database.rows(_NAMESPACES, (start, end, now, limit))
        _check_order(rows)
        return [_decoded(decode_namespace, row[0]) for row in rows]

    def renew(self, records: Sequence[ItemRecord], now: int) -> None:
        """Let items expire later, unless they have changed since they were read."""

        def write(connection: SQLConnection) -> None:
            self._lock(connection, [change[2:4] for change in changes])
            connection.change_many(_RENEW, changes)

        changes: list[tuple[Any, ...]] = []
        for record in records:
            if record.ttl is not None:
                old, new = _row(record), _row(msgspec.structs.replace(record, expires=now + record.ttl))
                changes.append((new[5], new[-1], *old[:2], old[-1]))
        if changes:
            changes.sort(key=lambda change: change[2:4])
            self._database.write(write)

    def sweep(self, now: int, limit: int) -> int:
        """Delete items that have expired; return their number."""

        return self._database.write(lambda connection: self._sweep(connection, now, limit), slow=True)

    def _lock(self, connection: SQLConnection, names: Sequence[tuple[Any, ...]]) -> None:
        """Lock names until the end of the transaction, in one order: two transactions never wait for each other."""
        if self._dialect.lock is not None:
            numbers = sorted({crc32(namespace + key) % _LOCKS for namespace, key in names})
            connection.rows(self._dialect.lock, (numbers,))

    def _sweep(self, connection: SQLConnection, now: int, limit: int) -> int:
        gone = connection.rows(self._sweep_some, (now, limit))
        _forget(connection, [row[:2] for row in gone], gone)
        return len(gone)

    def check(self) -> Iterator[str]:
        """Yield what is wrong with items: damaged rows, missing terms, and terms and vectors without an item."""
        rows = self._database.rows(_FIRST_PAGE)
        while rows:
            yield from _problems(self._check_row, rows)
            after = rows[-1][:2]
            rows = self._database.rows(_NEXT_PAGE, after)
            _check_order([after, *(row[:2] for row in rows)])
        for rows in self._iter_vectors(b"", _END, _PAGE):
            yield from _problems(self._vector, rows)
        if self._database.row(_LOST_TERM) is not None:
            yield "the table item_term has rows that belong to no item"
        if self._database.row(_LOST_VECTOR) is not None:
            yield "the table item_vector has rows that belong to no item"

    def _find(
        self, source: SQLConnection | SQLDatabase, names: list[tuple[bytes, bytes]]
    ) -> list[tuple[Any, ...]]:
        if len(names) == 1:
            return source.rows(_FIND, names[0])
        return source.rows(self._dialect.find_many, self._dialect.encode_names(names)) if names else []

    def _check_row(self, row: tuple[Any, ...]) -> None:
        for term in _term_rows(_record(row)):
            if self._database.row(_HAS_TERM, term) is None:
                raise _damaged("the index of item", row)

    def _vector_rows(self, puts: Sequence[ItemPut]) -> Iterator[tuple[Any, ...]]:
        for put in puts:
            for n, vector in enumerate(put.vectors):
                place = (*_name(put.record), n)
                yield *place, self._dialect.encode_vector(vector), row_sum(*place, vector)

    def _iter_vectors(self, start: bytes, end: bytes, size: int) -> Iterator[list[tuple[Any, ...]]]:
        after: tuple[Any, ...] = (start, b"", -1)
        while rows := self._database.rows(_VECTORS, (*after, end, size)):
            _check_order([after, *(row[:3] for row in rows)])
            yield rows
            after = rows[-1][:3]

    def _vector(self, row: tuple[Any, ...]) -> bytes:
        vector: bytes = _decoded(self._dialect.decode_vector, row[3])
        if row_sum(*row[:3], vector) != row[4]:
            raise _damaged("a vector of item", row)
        return vector


def _name(key: ItemKey | ItemRecord) -> tuple[bytes, bytes]:
    return encode_namespace(key.namespace), encode_text(key.key)


def read_key(row: Sequence[Any]) -> ItemKey:
    """Return the name of an item from the first two columns of a row."""
    return ItemKey(_decoded(decode_namespace, row[0]), _decoded(decode_text, row[1]))


def _row(record: ItemRecord, created: int | None = None) -> tuple[Any, ...]:
    values = (
        *_name(record),
        record.created if created is None else created,
        record.updated,
        record.ttl,
        record.expires,
        _encode_terms(record.terms),
        record.data,
    )
    return *values, row_sum(*values)


def _term_rows(record: ItemRecord) -> list[tuple[Any, ...]]:
    namespace, key = _name(record)
    return [(namespace, term, record.updated, key) for term in record.terms]


def _created(
    old: Sequence[tuple[Any, ...]], puts: Sequence[ItemPut]
) -> Iterator[tuple[tuple[Namespace, str], int]]:
    """Yield when items that will be replaced were created."""
    now = {(put.record.namespace, put.record.key): put.record.created for put in puts}
    for row in old:
        with suppress(CorruptStore):
            record = _record(row)
            name = record.namespace, record.key
            if record.expires is None or record.expires > now[name]:
                yield name, record.created


def _gone(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what `_forget` needs of the row of an item."""
    is_damaged = row_sum(*row[:-1]) != row[-1]
    return row[0], row[1], row[3], None if is_damaged else row[6]


def _forget(
    connection: SQLConnection, names: Sequence[tuple[Any, ...]], gone: Sequence[tuple[Any, ...]]
) -> None:
    """Delete the vectors of these names, which a lost row of an item may have left, and the terms of the items that
    were deleted or replaced."""
    terms = []
    is_damaged = False
    for namespace, key, updated, encoded in gone:
        try:
            terms += [(namespace, term, updated, key) for term in _decode_terms(encoded)]
        except (msgspec.DecodeError, TypeError):
            is_damaged = True
    if connection.change_many(_DELETE_TERM, terms) != len(terms) or is_damaged:
        connection.change_many(_DELETE_TERMS, [row[:2] for row in gone])
    connection.change_many(_DELETE_VECTORS, names)


def _record(row: tuple[Any, ...]) -> ItemRecord:
    namespace, key, created, updated, ttl, expires, terms, data, guard = row
    if row_sum(namespace, key, created, updated, ttl, expires, terms, data) != guard:
        raise _damaged("item", row)
    return ItemRecord(
        namespace=_decoded(decode_namespace, namespace),
        key=_decoded(decode_text, key),
        created=created,
        updated=updated,
        ttl=ttl,
        expires=expires,
        terms=_decode_terms(terms),
        data=data,
    )


def _by_terms(first: bytes, last: bytes, limit: int, terms: TermQuery) -> tuple[str, list[Any]]:
    """Return the statement that selects by terms in a range of namespaces, and its values.

    If a field of one namespace has a single value, its rows are read in the order of the index: the cost does not
    depend on how many there are. Otherwise the rows in the ranges are read and sorted.
    """
    values: list[Any] = []

    def bind(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    def within(table: str) -> str:
        shown = ", ".join(f"{table}.{name} AS {name}" for name in ("updated", "namespace", "key"))
        # Of one namespace, an index has the rows in order; of several, the namespaces are searched one by one.
        source = table if first == last else f"found CROSS JOIN {table}"
        place = bind(first) if first == last else "found.namespace"
        return f"SELECT {shown} FROM {source} WHERE {table}.namespace = {place}"

    def term_rows(term: TermRange) -> str:
        rows = within("item_term")
        if term.first == term.last:
            return f"{rows} AND term = {bind(term.first)}"
        return f"{rows} AND term >= {bind(term.first)} AND term <= {bind(term.last)}"

    def newest(rows: str) -> str:
        return f"{rows} {_NEWEST_FIRST} {bind(limit)}"

    def any_of(ranges: Sequence[TermRange], each: Callable[[str], str]) -> str:
        return " UNION ".join(f"SELECT * FROM ({each(term_rows(term))}) AS part" for term in ranges)

    start = ""
    if first != last:
        start = f"{_FOUND} "
        bind(first)
        bind(last + _END)
    if len(terms.having) == 1 and not terms.lacking:
        rows = any_of(terms.having[0], newest)
    else:
        groups = [f"SELECT * FROM ({any_of(group, str)}) AS part" for group in terms.having]
        rows = " INTERSECT ".join(groups) or within("item")
        for term in terms.lacking:
            rows += f" EXCEPT {term_rows(term)}"
    return f"{start}{newest(rows)}", values


def _decoded(decode: Callable[[Any], Any], stored: Any) -> Any:
    try:
        return decode(stored)
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptStore("an index of items is damaged: verify the store") from error


def _damaged(what: str, row: Sequence[Any]) -> CorruptStore:
    shown = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in row[:2]]
    namespace = shown[0].rstrip("\0").replace("\0", "/")
    return CorruptStore(
        f"{what} {shown[1]!r:.60} in namespace {namespace!r:.120} is damaged: put it again, or delete it"
    )


def _problems(read: Callable[[tuple[Any, ...]], Any], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    for row in rows:
        try:
            read(row)
        except CorruptStore as error:
            yield str(error)


def _newest_first(rows: list[tuple[Any, ...]]) -> list[ItemKey]:
    """Return the names in rows that start with the time of the put."""
    _check_order(rows[::-1])
    return [read_key(row[1:]) for row in rows]


def _check_order(rows: Sequence[Sequence[Any]]) -> None:
    """Refuse rows that are repeated or out of order: reading page by page might never end."""
    try:
        is_sorted = all(tuple(one) < tuple(other) for one, other in pairwise(rows))
    except TypeError:
        is_sorted = False
    if not is_sorted:
        raise CorruptStore("an index of items is damaged and lists rows out of order: verify the store")
