"""Whose a schema is, and its tables: checked, made, or brought up to date, when a store is opened.

The files `sql/postgres/NNNN_*.sql` are the formats, each the change from the one before; the table `format` says
which one a schema has.

Invariant: a schema that is not ours, or of a newer format, is not changed; of many processes that open one at the same
time, one makes it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from holdfast.errors import IncompatibleFormat, StoreUnavailable
from holdfast.store.postgres_link import Connection, Link
from holdfast.store.postgres_locks import MIGRATING, lock_number
from holdfast.store.postgres_url import parse

# From the tables themselves: what `to_regclass` says may be from before a lock was waited for.
_THERE = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
_TABLES = "SELECT EXISTS (SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s)"
_FORMAT = _TABLES.replace("nspname = %s", "nspname = %s AND relname = 'format'")


def prepare(link: Link, *, create: bool) -> None:
    """Make a schema ready for use; `IncompatibleFormat` if it cannot be."""
    if _format(link) == len(migrations()):
        return

    def migrate(connection: Connection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(schema, MIGRATING),))
        version = _found(connection, schema, link.shown)
        if version is None and not create:
            raise StoreUnavailable(f"there is no store at {link.shown}", store=link.shown, missing=True)
        if version is None:
            if not _says(connection, _THERE, schema):
                connection.execute(f"CREATE SCHEMA {_quoted(schema)}")
            connection.execute("CREATE TABLE format (version BIGINT NOT NULL)")
            connection.execute("INSERT INTO format VALUES (0)")
        for statements in migrations()[version or 0 :]:
            connection.execute(statements)
        connection.execute("UPDATE format SET version = %s", (len(migrations()),))

    schema = link.address.schema
    link.transact(migrate)


def formats_of(url: str, timeout: float = 5.0) -> tuple[int, int]:
    """The format of a store, and the newest that is known here. Changes nothing."""
    link = Link(parse(url), "durable", timeout)
    link.open_first()
    try:
        version = _format(link)
    finally:
        link.close()
    if version is None:
        raise StoreUnavailable(f"there is no store at {link.shown}", store=link.shown, missing=True)
    return version, len(migrations())


@cache
def migrations() -> tuple[str, ...]:
    """The statements that lead from each format to the next."""
    folder = Path(__file__).parent / "sql" / "postgres"
    return tuple(path.read_text() for path in sorted(folder.glob("[0-9]*.sql")))


def _format(link: Link) -> int | None:
    return link.read(lambda connection: _found(connection, link.address.schema, link.shown))


def _found(connection: Connection, schema: str, shown: str) -> int | None:
    """The format of a schema; None if it is yet to be made."""
    # In this order: another process may make all tables, the format's included, between the two statements.
    has_tables = _says(connection, _TABLES, schema)
    if not _says(connection, _FORMAT, schema):
        if has_tables:
            raise IncompatibleFormat(
                f"the schema {schema!r} of {shown} holds tables, but not Holdfast's: open it with another ?schema="
            )
        return None
    row = connection.execute("SELECT version FROM format").fetchone()
    version = int(row[0]) if row is not None else 0
    if version > len(migrations()):
        raise IncompatibleFormat(
            f"{shown} has format {version}, this Holdfast knows up to {len(migrations())}: upgrade Holdfast"
        )
    return version


def _says(connection: Connection, statement: str, schema: str) -> bool:
    row = connection.execute(statement, (schema,)).fetchone()
    return row is not None and bool(row[0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
