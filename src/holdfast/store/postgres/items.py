"""The statements for items in which PostgreSQL differs, and the search by vector on the server.

The server compares vectors if it has the extension pgvector: exactly, with each vector of the searched namespaces and
without an approximate index, so that a prefix or a filter never hides a result. If the extension is not installed and
may not be created, vectors are read and compared in this process.

Invariant: both ways give the same order, up to rounding, if the squares of all numbers are within the range of a
four-byte float, in which the server computes.
"""

# ruff: noqa: S608 - statements are made of constants, and of the name of a schema that is quoted

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from holdfast.errors import HoldfastError
from holdfast.log import warn
from holdfast.store.items import ITEM, ItemDialect, bounds, read_key
from holdfast.store.postgres.connection_pool import PostgresPool, quote_name
from holdfast.store.postgres.schema import lock_class
from holdfast.store.protocol import ItemKey, Namespace
from holdfast.store.vectors import other_length

Search: TypeAlias = Callable[[Namespace, bytes, str, int], list[tuple[float, ItemKey]]]

#: The most dimensions of pgvector's type.
_MAX_DIMENSIONS = 16_000
_IS_AVAILABLE = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
_SCHEMA = (
    "SELECT nspname::text FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace "
    "WHERE extname = 'vector'"
)
#: Not in the schema of the store: other stores of the database use it, too.
_CREATE = "CREATE EXTENSION IF NOT EXISTS vector SCHEMA public"
#: The operator, and the score that is made of its result.
_METRICS = {
    "cosine": ("<=>", "coalesce(nullif(1 - {}, 'NaN'), 0)"),
    "inner_product": ("<#>", "-{}"),
    "l2": ("<->", "-{}"),
}


def unpack_vector(vector: bytes) -> list[float]:
    """Return the numbers of a vector."""
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def _pack(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _encode_names(names: Sequence[tuple[bytes, bytes]]) -> Sequence[Any]:
    return [namespace for namespace, _ in names], [key for _, key in names]


def item_dialect(schema: str) -> ItemDialect:
    """Return the statements for the items of a schema."""
    return ItemDialect(
        find_many=(
            # LIMIT keeps it a search in the index for each name, however the planner estimates the table.
            f"SELECT {ITEM} FROM unnest($1::bytea[], $2::bytea[]) given (namespace, key) CROSS JOIN LATERAL (SELECT * "
            "FROM item WHERE item.namespace = given.namespace AND item.key = given.key LIMIT 1) item"
        ),
        encode_names=_encode_names,
        encode_vector=unpack_vector,
        decode_vector=_pack,
        skip_locked=" FOR UPDATE SKIP LOCKED",
        lock=(
            f"SELECT count(pg_advisory_xact_lock({lock_class(schema, 'items')}, number::int)) "
            "FROM unnest($1::bigint[]) number"
        ),
    )


class ServerSearch:
    """Searches by vector: on the server if it can, else with `in_process`."""

    def __init__(self, pool: PostgresPool, in_process: Search) -> None:
        self._pool = pool
        self._in_process = in_process
        #: The quoted schema of pgvector; empty if there is none, None if that is not known yet.
        self._schema: str | None = None

    def nearest(
        self, prefix: Namespace, vector: bytes, metric: str, limit: int
    ) -> list[tuple[float, ItemKey]]:
        """Return the names of the items whose best vector scores highest."""
        if self._schema is None:
            self._schema = self._find_schema()
        dimensions = len(vector) // 4
        if not self._schema or dimensions > _MAX_DIMENSIONS:
            return self._in_process(prefix, vector, metric, limit)
        values = (*bounds(prefix), dimensions, unpack_vector(vector), limit)
        rows = self._pool.rows(_statement(self._schema, metric), values)
        found = [(row[2], read_key(row)) for row in rows]
        for score, key in found:
            if score is None:
                raise other_length(key, dimensions)
        return found

    def _find_schema(self) -> str:
        row = self._pool.row(_SCHEMA)
        if row is None and self._pool.row(_IS_AVAILABLE) is not None:
            try:
                self._pool.write(lambda connection: connection.change(_CREATE), slow=True)
            except HoldfastError as error:
                warn("pgvector cannot be created, so vectors are compared in this process: %s", error)
            row = self._pool.row(_SCHEMA)
        return "" if row is None else quote_name(row[0])


def _statement(schema: str, metric: str) -> str:
    operator, score = _METRICS[metric]
    distance = f"(vector::{schema}.vector OPERATOR({schema}.{operator}) $4::real[]::{schema}.vector)"
    # A vector of another length sorts first, without a score.
    return (
        "SELECT namespace, key, CASE WHEN bool_and(cardinality(vector) = $3) "
        f"THEN max(CASE WHEN cardinality(vector) = $3 THEN {score.format(distance)} END) END AS best "
        "FROM item_vector WHERE namespace >= $1 AND namespace < $2 GROUP BY namespace, key "
        "ORDER BY best DESC NULLS FIRST, namespace, key LIMIT $5"
    )
