"""Connection pools in transaction mode, such as PgBouncer's `pool_mode = transaction`, found out by how they behave.

Such a pool may give each transaction of one connection to another session of the server: settings such as
`search_path`, prepared statements and LISTEN, on all of which this store relies, do not last.

Invariant: a connection that a pool gave is used only if it kept its session during another's transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.errors import StoreUnavailable

if TYPE_CHECKING:
    from holdfast.store.postgres_link import Connection


def refuse_transaction_pool(first: Connection, connect: Callable[[], Connection], shown: str) -> None:
    """Raise `StoreUnavailable`, and close the connection, if it does not keep its session of the server."""
    session = _session(first)
    # A pool introduces itself with a process number of its own; the server's own connections cost no further check.
    if session == first.info.backend_pid:
        return
    try:
        with closing(connect()) as second:
            second.execute("BEGIN")
            kept = _session(second) != session and _session(first) == session
            second.roll_back()
        if not kept:
            raise StoreUnavailable(
                f"{shown} is a connection pool in transaction mode, in which settings and prepared statements of a "
                "connection do not last: open the server itself, or a pool in session mode (PgBouncer: pool_mode = "
                "session)"
            )
    except BaseException:
        first.close()
        raise


def _session(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
