"""Small values that belong to no run, and who holds which run, in PostgreSQL.

Invariant: a value is replaced only by a writer who has seen the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import CorruptStore, StaleVersion
from holdfast.store.postgres_link import Connection, Link
from holdfast.store.sqlite_rows import row_sum


class Values:
    """The table `value`, and the leases in the table `run`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def get(self, name: str) -> tuple[bytes, int] | None:
        rows = self._link.rows("SELECT data, revision, sum FROM value WHERE name = %s", (name,))
        if not rows:
            return None
        data, revision, guard = rows[0]
        if row_sum(name, data, revision) != guard:
            raise CorruptStore(f"the value {name!r} is damaged: verify the store")
        return data, revision

    def set(self, name: str, data: bytes, expect: int) -> int:
        revision = expect + 1

        def write(connection: Connection) -> None:
            guard = row_sum(name, data, revision)
            if expect:
                statement = "UPDATE value SET data=%s, revision=%s, sum=%s WHERE name=%s AND revision=%s"
                done = connection.execute(statement, (data, revision, guard, name, expect))
            else:
                done = connection.execute(
                    "INSERT INTO value VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    (name, data, revision, guard),
                )
            if done.rowcount != 1:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")

        self._link.transact(write)
        return revision

    def drop(self, name: str, expect: int) -> None:
        def write(connection: Connection) -> None:
            done = connection.execute("DELETE FROM value WHERE name=%s AND revision=%s", (name, expect))
            if done.rowcount != 1:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")

        self._link.transact(write)

    def names(self, prefix: str, after: str, limit: int) -> list[str]:
        wanted = "name >= %s AND name > %s AND starts_with(name, %s)"
        statement = f"SELECT name FROM value WHERE {wanted} ORDER BY name LIMIT %s"  # noqa: S608 - constants only
        return [row[0] for row in self._link.rows(statement, (prefix, after, prefix, limit))]

    def renew(self, runs: Sequence[int], owner: str, until: int) -> None:
        statement = "UPDATE run SET until=%s WHERE key = ANY(%b::bigint[]) AND owner=%s AND until < %s"

        def write(connection: Connection) -> None:
            connection.execute(statement, (until, list(runs), owner, until))
            self._link.time.measure(connection)

        # Done twice, it is as done once.
        self._link.read(write)
