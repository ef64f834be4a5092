"""Small values that belong to no run, and who holds which run: the rest of what a SQLite store keeps.

Invariant: a value is replaced only by a writer who has seen the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from holdfast.errors import CorruptStore, StaleVersion
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_link import Link
from holdfast.store.sqlite_rows import beyond, row_sum

_OF_OWNER = "key IN (SELECT value FROM json_each(?)) AND owner=?"
_RENEW = f"UPDATE run SET until=? WHERE {_OF_OWNER} AND until > ? AND until < ?"  # noqa: S608 - constants only
_EXPIRED = f"SELECT key FROM run WHERE {_OF_OWNER} AND until <= ?"  # noqa: S608 - constants only


class Values:
    """The table `value`, and the leases in the table `run`."""

    def __init__(self, link: Link, clock: Callable[[], int]) -> None:
        self._link = link
        self._clock = clock

    def get(self, name: str) -> tuple[bytes, int] | None:
        with self._link.reader() as connection:
            row = connection.row("SELECT data, revision, sum FROM value WHERE name=?", (name,))
        if row is None:
            return None
        if row_sum(name, row[0], row[1]) != row[2]:
            raise CorruptStore(f"the value {name!r} is damaged: verify the store")
        return row[0], row[1]

    def set(self, name: str, data: bytes, expect: int) -> int:
        revision = expect + 1

        def write(connection: Connection) -> None:
            guard = row_sum(name, data, revision)
            if expect:
                statement = "UPDATE value SET data=?, revision=?, sum=? WHERE name=? AND revision=?"
                connection.execute(statement, (data, revision, guard, name, expect))
            else:
                connection.execute(
                    "INSERT OR IGNORE INTO value VALUES (?, ?, ?, ?)", (name, data, revision, guard)
                )
            if connection.changes() != 1:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")

        self._link.write(write)
        return revision

    def drop(self, name: str, expect: int) -> None:
        def write(connection: Connection) -> None:
            connection.execute("DELETE FROM value WHERE name=? AND revision=?", (name, expect))
            if connection.changes() != 1:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")

        self._link.write(write)

    def names(self, prefix: str, after: str, limit: int) -> list[str]:
        with self._link.reader() as connection:
            rows = connection.rows(
                "SELECT name FROM value WHERE name >= ? AND name > ? AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?",
                (prefix, after, beyond(prefix), limit),
            )
        return [row[0] for row in rows]

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        keys = json.dumps(list(runs))

        def write(connection: Connection) -> list[int]:
            # A transaction that may write keeps claims out: the lease cannot run out unnoticed before the update.
            now = self._clock()
            connection.execute(_RENEW, (until, keys, owner, now, until))
            return [row[0] for row in connection.rows(_EXPIRED, (keys, owner, now))]

        return self._link.write(write)
