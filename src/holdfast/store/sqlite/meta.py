"""Write the metadata of a run as rows of a SQLite store; `store.sql` finds runs by them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.meta import MetaRow, facets_of
from holdfast.store.sqlite.connection import SQLiteConnection


def put_meta(
    connection: SQLiteConnection, key: int, rows: Sequence[MetaRow], *, is_new: bool = False
) -> None:
    """Replace the metadata of a run; `is_new` if it has none yet."""
    old = [] if is_new else connection.rows("SELECT name, value FROM meta WHERE run=? ORDER BY name", (key,))
    if old:
        connection.execute("DELETE FROM meta WHERE run=?", (key,))
        places = [(facet, key) for facet in facets_of([(name, value) for name, value in old])]
        connection.executemany("DELETE FROM meta_place WHERE facet=? AND run=?", places)
    if rows:
        connection.executemany(
            "INSERT INTO meta (run, name, value) VALUES (?, ?, ?)", [(key, *row) for row in rows]
        )
        connection.executemany(
            "INSERT INTO meta_place (facet, run) VALUES (?, ?)", [(facet, key) for facet in facets_of(rows)]
        )
