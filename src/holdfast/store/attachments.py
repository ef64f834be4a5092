"""The attachments of a database: the statements and the logic that SQLite and PostgreSQL share.

Invariant: an attachment belongs to a run that exists, and is replaced only on request.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.records import AttachmentRecord
from holdfast.store.protocol import run_is_gone
from holdfast.store.rows import attachment_record, attachment_row
from holdfast.store.sql import SQLConnection, SQLDatabase, SQLDialect

_KEEP = "ON CONFLICT (run, key, name) DO NOTHING"
_REPLACE = (
    "ON CONFLICT (run, key, name) DO UPDATE SET at = excluded.at, data = excluded.data, hash = excluded.hash"
)
#: What to do if the place of an attachment is taken.
ON_CONFLICT = {False: _KEEP, True: _REPLACE}
INSERT_ATTACHMENT = {
    replace: f"INSERT INTO attachment (run, key, name, at, data, hash) VALUES ($1, $2, $3, $4, $5, $6) {action}"
    for replace, action in ON_CONFLICT.items()
}
_SELECT = "SELECT run, key, name, at, data, hash FROM attachment "


class SQLAttachments:
    """Stores and reads attachments."""

    _PAGE = f"{_SELECT}WHERE run = $1 AND (key, name) > ($2, $3) ORDER BY key, name LIMIT $4"
    _KEYS = "SELECT key FROM attachment WHERE run = $1 GROUP BY key HAVING max(at) < $2 ORDER BY key"
    _NAMES = "SELECT name FROM attachment WHERE run = $1 AND key = $2 ORDER BY name"
    _OF_KEY = f"{_SELECT}WHERE run = $1 AND key = $2 ORDER BY name"

    def __init__(self, database: SQLDatabase, dialect: SQLDialect) -> None:
        self._database = database
        self._dialect = dialect

    def attach(self, run: int, attachments: Sequence[AttachmentRecord], *, replace: bool) -> list[bool]:
        """Store attachments together; return for each whether it was stored."""

        def write(connection: SQLConnection) -> list[bool]:
            if connection.row("SELECT 1 FROM run WHERE key = $1", (run,)) is None:
                raise run_is_gone(run)
            return [
                connection.change(INSERT_ATTACHMENT[replace], attachment_row(run, each)) == 1
                for each in attachments
            ]

        return self._database.write(write)

    def of_keys(self, run: int, keys: Sequence[str]) -> list[AttachmentRecord]:
        """Return all attachments of some keys, by key and name."""
        if len(keys) == 1:
            rows = self._database.rows(self._OF_KEY, (run, keys[0]))
        else:
            rows = self._database.rows(
                self._dialect.attachments_of, (run, self._dialect.encode_list(sorted(set(keys))))
            )
        return list(map(attachment_record, rows))

    def names(self, run: int, key: str) -> list[str]:
        """Return the names of the attachments of a key, in order."""
        return [name for (name,) in self._database.rows(self._NAMES, (run, key))]

    def page(
        self, run: int, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[AttachmentRecord]:
        """Return attachments after a key and a name, by key and name."""
        rows = self._database.rows(self._PAGE, (run, *after, limit))
        return list(map(attachment_record, rows))

    def keys(self, run: int, *, before: int) -> list[str]:
        """Return the keys of the attachments that were all stored before a time, in order."""
        return [key for (key,) in self._database.rows(self._KEYS, (run, before))]
