"""Attachments in PostgreSQL: stored by one statement, in one round trip.

Invariant: a statement that is repeated, after a lost connection, changes nothing and returns the same.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import CommitUnknown, StoreUnavailable
from holdfast.model.names import short
from holdfast.model.records import AttachmentRecord
from holdfast.store.attachments import ON_CONFLICT, SQLAttachments
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.connection_pool import PostgresPool
from holdfast.store.postgres.prepared import PreparedStatement, execute_prepared
from holdfast.store.protocol import run_is_gone
from holdfast.store.sql import SQLDialect

#: Columns of attachments without the run, and rows of them.
COLUMNS = "key, name, at, data, hash"
GIVEN = "unnest(%s::text[], %s::text[], %s::bigint[], %s::bytea[], %s::bytea[])"
#: Returns 0 if there is the run, and the positions of the attachments that were stored, from 1. The lock excludes
#: deleting the run, and nothing else. In order: two statements that lock rows in different orders could deadlock.
_ATTACH = {
    replace: (
        "WITH held AS (SELECT key AS run FROM run WHERE key = %s::bigint FOR KEY SHARE), "
        f"given AS (SELECT * FROM {GIVEN} WITH ORDINALITY given ({COLUMNS}, n)), "
        f"written AS (INSERT INTO attachment (run, {COLUMNS}) SELECT run, {COLUMNS} FROM held, given "
        f"ORDER BY key, name {action} RETURNING key, name) "
        "SELECT 0::bigint FROM held UNION ALL SELECT n FROM given JOIN written USING (key, name)"
    )
    for replace, action in ON_CONFLICT.items()
}
_IS_STORED = "SELECT 1 FROM attachment WHERE run = $1 AND key = $2 AND name = $3 AND hash = $4"


class PostgresAttachments:
    """Stores attachments; `SQLAttachments` reads them."""

    def __init__(self, pool: PostgresPool, dialect: SQLDialect) -> None:
        self._pool = pool
        stored = SQLAttachments(pool, dialect)
        self.of_keys = stored.of_keys
        self.names = stored.names
        self.page = stored.page
        self.keys = stored.keys

    def attach(self, run: int, attachments: Sequence[AttachmentRecord], *, replace: bool) -> list[bool]:
        """Store attachments together; return for each whether it was stored."""
        statement = PreparedStatement(_ATTACH[replace], [run, *attachment_columns(attachments)])
        tries = 0

        def write(connection: PostgresConnection) -> list[bool]:
            nonlocal tries
            tries += 1
            (found,) = execute_prepared(connection, [statement])
            if 0 not in found:
                raise run_is_gone(run)
            return [
                number in found or (tries > 1 and self._is_stored(connection, run, each))
                for number, each in enumerate(attachments, 1)
            ]

        try:
            return self._pool.read(write)
        except StoreUnavailable as error:
            if not tries:
                raise
            keys = sorted({each.key for each in attachments})
            raise CommitUnknown(
                f"the server did not answer while attachments of {short(keys)} were written, and the outcome is "
                "unknown: write them again, which has no further effect",
                keys=keys,
            ) from error

    def _is_stored(self, connection: PostgresConnection, run: int, attachment: AttachmentRecord) -> bool:
        """Return whether an earlier try, whose answer was lost, stored an attachment."""
        values = (run, attachment.key, attachment.name, attachment.hash)
        return connection.row(_IS_STORED, values) is not None


def attachment_columns(attachments: Sequence[AttachmentRecord]) -> list[list[Any]]:
    """Return the values of `GIVEN`."""
    return [[getattr(each, name) for each in attachments] for name in COLUMNS.split(", ")]
