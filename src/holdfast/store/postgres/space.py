"""The space of deleted rows, used again soon.

PostgreSQL uses it again after a VACUUM. Autovacuum looks for tables that need one once a minute, so that two large
values that are replaced several times a second would take the space of a minute of them. Therefore, a process that has
deleted as much as a part of some tables vacuums them itself, unless they are so large that this would take long.

Invariant: a failed VACUUM is not an error, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.store.postgres.connection_pool import PostgresPool

#: Deleted bytes from which tables are vacuumed, and the part of their size, so that the cost per deleted byte is
#: bounded.
_LEAST, _PART = 1_000_000, 0.2
#: Larger tables are left to autovacuum.
_MOST = 256_000_000


class DeletedSpace:
    """The bytes that this process has deleted from some tables since it vacuumed them."""

    def __init__(self, pool: PostgresPool, tables: Sequence[str]) -> None:
        self._pool, self._tables = pool, tables
        self._size_of = f"SELECT ({' + '.join(f'pg_table_size({table!r})' for table in tables)})::bigint"
        self._deleted = 0
        self._limit = _LEAST

    def add(self, size: int) -> None:
        """Count deleted bytes, and vacuum the tables if there are enough of them."""
        self._deleted += max(size, 0)
        if self._deleted < self._limit:
            return
        self._deleted = 0
        with suppress(HoldfastError):
            total: int = self._pool.rows(self._size_of)[0][0]
            self._limit = max(_LEAST, int(total * _PART))
            if total <= _MOST:
                self._pool.vacuum(self._tables, briefly=True)
