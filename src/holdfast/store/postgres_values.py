"""Small values that belong to no run, and who holds which run, in PostgreSQL.

Invariant: a value is replaced only by a writer who has seen the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import CorruptStore, StaleVersion
from holdfast.store.postgres_link import Connection, Link
from holdfast.store.postgres_time import SERVER_NOW
from holdfast.store.sqlite_rows import row_sum

_OF_OWNER = "key = ANY(%b::bigint[]) AND owner = %s AND until"
_NOW = f"coalesce(%s::bigint, {SERVER_NOW})"
#: A row that is being written is passed over: a commit renews the lease by itself, and one that takes long must not
#: keep the leases of other runs from being renewed.
_RENEW = (
    f"WITH held AS (SELECT key FROM run WHERE {_OF_OWNER} > {_NOW} AND until < %s "  # noqa: S608 - constants only
    "ORDER BY key FOR UPDATE SKIP LOCKED), "
    "renewed AS (UPDATE run SET until = %s FROM held WHERE run.key = held.key) "
    f"SELECT key FROM run WHERE {_OF_OWNER} <= {_NOW}"
)


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

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        def write(connection: Connection) -> list[int]:
            now = self._link.time.stated()
            held = (list(runs), owner, now)
            found = connection.execute(_RENEW, (*held, until, until, *held)).fetchall()
            self._link.time.measure(connection)
            return [row[0] for row in found]

        # Done twice, it is as done once.
        return self._link.read(write)
