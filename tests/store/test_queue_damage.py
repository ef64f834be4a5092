"""A damaged record stands in nobody's way: the other runs of its queue are claimed."""

from __future__ import annotations

from pathlib import Path

from database import Database
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.conformance_queue import claim, enqueue, ids


def test_a_damaged_run_leaves_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    for name in ("a", "b", "c"):
        enqueue(store, name)
    store.close()
    with Database(path) as connection:
        connection.execute("UPDATE run SET step = 'changed' WHERE id = 'a'")
    store = SQLiteStore(path)
    assert ids(claim(store)) == ["b", "c"]
    assert claim(store) == []
    store.close()
