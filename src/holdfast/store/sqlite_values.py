"""Small values that belong to no run, and who holds which run: the rest of what a SQLite store keeps.

Invariant: a value is replaced only by a writer who has seen the one before it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.errors import CorruptStore, StaleVersion
from holdfast.store.sqlite_link import Link
from holdfast.store.sqlite_rows import beyond, row_sum


class Values:
    """The table `value`, and the leases in the table `run`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def get(self, name: str) -> tuple[bytes, int] | None:
        with self._link.reader() as connection:
            row = connection.execute("SELECT data, revision, sum FROM value WHERE name=?", (name,)).fetchone()
        if row is None:
            return None
        if row_sum(name, row[0], row[1]) != row[2]:
            raise CorruptStore(f"the value {name!r} is damaged: verify the store")
        return row[0], row[1]

    def set(self, name: str, data: bytes, expect: int) -> int:
        revision = expect + 1

        def write(connection: sqlite3.Connection) -> None:
            guard = row_sum(name, data, revision)
            if expect:
                statement = "UPDATE value SET data=?, revision=?, sum=? WHERE name=? AND revision=?"
                done = connection.execute(statement, (data, revision, guard, name, expect))
            else:
                done = connection.execute(
                    "INSERT OR IGNORE INTO value VALUES (?, ?, ?, ?)", (name, data, revision, guard)
                )
            if done.rowcount != 1:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")

        self._link.write(write)
        return revision

    def drop(self, name: str, expect: int) -> None:
        def write(connection: sqlite3.Connection) -> None:
            done = connection.execute("DELETE FROM value WHERE name=? AND revision=?", (name, expect))
            if done.rowcount != 1:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")

        self._link.write(write)

    def names(self, prefix: str, after: str, limit: int) -> list[str]:
        with self._link.reader() as connection:
            rows = connection.execute(
                "SELECT name FROM value WHERE name >= ? AND name > ? AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?",
                (prefix, after, beyond(prefix), limit),
            ).fetchall()
        return [row[0] for row in rows]

    def renew(self, runs: Sequence[int], owner: str, until: int) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "UPDATE run SET until=? WHERE key=? AND owner=? AND until < ?",
                [(until, run, owner, until) for run in runs],
            )

        self._link.write(write)
