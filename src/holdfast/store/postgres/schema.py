"""The schema of a PostgreSQL store: checked, created or migrated when the store is opened; numbers of advisory locks.

The files `sql/NNNN_*.sql` are the formats, each a migration from the one before; the table `format` holds the format of
a schema.

Invariant: a schema that is not a Holdfast store, or has a newer format, is not changed; of many processes that open one
at the same time, one creates it. Processes of one schema, and only they, compute the same numbers of locks.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from holdfast.errors import IncompatibleFormat, StoreUnavailable
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.connection_pool import PostgresPool, quote_name
from holdfast.store.postgres.url import parse
from holdfast.store.questions import (
    PLACE,
    QUESTION,
    SELECT_WITH_DETAIL,
    place_rows,
    question_row,
    stored_questions,
)

#: The format with an index of open questions, which is filled from the records of runs.
_WITH_QUESTIONS = 3
_INSERT_QUESTION = (
    f"INSERT INTO question ({QUESTION}, sum) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"  # noqa: S608
)
_INSERT_PLACE = f"INSERT INTO question_place ({PLACE}) VALUES ($1, $2, $3, $4, $5, $6)"  # noqa: S608
#: Held while the tables are created or migrated.
_MIGRATING = "migrating"
#: Shared by transactions that store or refer to artifacts; exclusive for a collection.
ARTIFACTS = "artifacts"
#: Shared by transactions that have taken positions in the journal, until their rows are visible.
POSITIONS = "places"


def lock_number(schema: str, name: str) -> int:
    """Return the number of a lock, for the functions that take 64 bits."""
    return int.from_bytes(_hash(schema, name)[:8], "big", signed=True)


def lock_class(schema: str, name: str) -> int:
    """Return the first number of a family of locks, for the functions that take twice 32 bits."""
    return int.from_bytes(_hash(schema, name)[:4], "big") >> 1


def _hash(schema: str, name: str) -> bytes:
    return sha256(f"holdfast\0{schema}\0{name}".encode()).digest()


# From the catalog tables: `to_regclass` may answer as of before the wait for a lock.
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"
_HAS_TABLES = (
    "SELECT EXISTS (SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE nspname = $1)"
)
_HAS_FORMAT = (
    "SELECT EXISTS (SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE nspname = $1 AND relname = 'format')"
)


def prepare(pool: PostgresPool, *, create: bool) -> None:
    """Create or migrate the tables of a schema; `IncompatibleFormat` if it is not a store."""
    if _format(pool) == len(migrations()):
        return

    def migrate(connection: PostgresConnection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock($1)", (lock_number(schema, _MIGRATING),))
        version = _found(connection, schema, pool.shown)
        if version is None and not create:
            raise StoreUnavailable(f"there is no store at {pool.shown}", store=pool.shown, missing=True)
        if version is None:
            if not connection.value(_HAS_SCHEMA, (schema,)):
                connection.execute(f"CREATE SCHEMA {quote_name(schema)}")
            connection.execute("CREATE TABLE format (version BIGINT NOT NULL)")
            connection.execute("INSERT INTO format VALUES (0)")
        for number, statements in enumerate(migrations()[version or 0 :], (version or 0) + 1):
            connection.execute(statements)
            if number == _WITH_QUESTIONS:
                found = stored_questions(connection.rows(SELECT_WITH_DETAIL))
                rows = [(key, each) for key, questions in found for each in questions]
                connection.change_many(_INSERT_QUESTION, [question_row(*row) for row in rows])
                connection.change_many(_INSERT_PLACE, [place for row in rows for place in place_rows(*row)])
        connection.execute("UPDATE format SET version = $1", (len(migrations()),))

    schema = pool.address.schema
    pool.write(migrate)


def formats_of(url: str, timeout: float = 5.0) -> tuple[int, int]:
    """Return the format of a store and the newest known one. Changes nothing."""
    pool = PostgresPool(parse(url), "durable", timeout)
    pool.open_first()
    try:
        version = _format(pool)
    finally:
        pool.close()
    if version is None:
        raise StoreUnavailable(f"there is no store at {pool.shown}", store=pool.shown, missing=True)
    return version, len(migrations())


@cache
def migrations() -> tuple[str, ...]:
    """Return the statements of each migration."""
    folder = Path(__file__).parent / "sql"
    return tuple(path.read_text() for path in sorted(folder.glob("[0-9]*.sql")))


def _format(pool: PostgresPool) -> int | None:
    return pool.read(lambda connection: _found(connection, pool.address.schema, pool.shown))


def _found(connection: PostgresConnection, schema: str, shown: str) -> int | None:
    """Return the format of a schema; None if it has no tables yet."""
    # In this order: another process may create all tables between the two statements.
    has_tables = connection.value(_HAS_TABLES, (schema,))
    if not connection.value(_HAS_FORMAT, (schema,)):
        if has_tables:
            raise IncompatibleFormat(
                f"the schema {schema!r} of {shown} holds tables that are not Holdfast's: open it with another ?schema="
            )
        return None
    row = connection.row("SELECT version FROM format")
    version = int(row[0]) if row is not None else 0
    if version > len(migrations()):
        raise IncompatibleFormat(
            f"{shown} has format {version}, this Holdfast knows up to {len(migrations())}: upgrade Holdfast"
        )
    return version
