"""Other writers of a SQLite file, which an old SQLite does not bear.

Invariant: whoever is alone with a file is never warned, and nobody twice.
"""

from __future__ import annotations

import logging
import sqlite3

log = logging.getLogger("holdfast.store")

#: SQLite before this has a bug that can corrupt a WAL when several processes write.
_SAFE_WAL = (3, 51, 3)


class Others:
    """What a writing connection has seen of other writers."""

    def __init__(self) -> None:
        self._warned = sqlite3.sqlite_version_info >= _SAFE_WAL
        self._seen: int | None = None

    def look(self, connection: sqlite3.Connection) -> None:
        """Warn once if others write to the file too and SQLite is one that may corrupt it then."""
        if self._warned:
            return
        seen = connection.execute("PRAGMA data_version").fetchone()[0]
        if self._seen is not None and seen != self._seen:
            self._warned = True
            log.warning(
                "SQLite %s can corrupt a database that several processes write to (fixed in 3.51.3): "
                "upgrade SQLite, or let one process write",
                sqlite3.sqlite_version,
            )
        self._seen = seen

    def forget(self) -> None:
        """What was changed until now was changed by ourselves."""
        self._seen = None
