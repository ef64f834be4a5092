"""Damaged rows and pages of a SQLite store are reported and never served."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from database import Database
from holdfast.errors import CorruptStore, HoldfastError, InvalidCall
from holdfast.model.records import QuestionRecord, RunRecord, TimelineRecord
from holdfast.store.protocol import Append, QuestionPlace
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.conformance.queues import claim, enqueue, ids
from holdfast.testing.samples import (
    ALL,
    advanced,
    commit,
    content,
    digest,
    event,
    everything,
    history,
    mark,
    new_run,
    upload,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


#: A statement that damages a store, and a read that notices it.
_DAMAGE: list[tuple[str, Callable[[SQLiteStore, RunRecord], object]]] = [
    ("UPDATE run SET size = size + 1", lambda store, run: store.run("run")),
    ("UPDATE run SET id = 'other'", lambda store, run: store.run_by_key(run.key)),
    ("UPDATE run SET head = 1", lambda store, run: store.runs()),
    ("UPDATE run SET parent = 2", lambda store, run: store.run("run")),
    ("UPDATE run SET parent = NULL", lambda store, run: store.runs()),
    ("UPDATE run SET due = due - 1", lambda store, run: store.runs(due=9)),
    ("UPDATE run SET owner = 'other'", lambda store, run: store.run_by_key(run.key)),
    ("UPDATE run SET owner = NULL", lambda store, run: store.run("run")),
    ("UPDATE run SET detail = x'00'", lambda store, run: store.run("run")),
    ("UPDATE run SET detail = NULL", lambda store, run: store.run("run")),
    ("UPDATE run SET until = 'soon'", lambda store, run: store.run("run")),
    ("UPDATE value SET data = x'00'", lambda store, run: store.value("breaker")),
    ("UPDATE value SET data = 'data'", lambda store, run: store.value("breaker")),
    ("UPDATE value SET revision = 7", lambda store, run: store.value("breaker")),
    (
        "UPDATE value SET name = 'other'",
        lambda store, run: store.value("breaker") or store.value("other"),
    ),
    ("UPDATE value SET sum = x'00'", lambda store, run: store.value("breaker")),
    ("DROP TABLE value", lambda store, run: store.value("breaker")),
    ("UPDATE timeline SET parent = 2", lambda store, run: store.timelines(run.key)),
    ("UPDATE mark SET at = 0", lambda store, run: store.marks(run.key)),
    (
        "UPDATE journal SET detail = x'00' WHERE number IS NULL",
        lambda store, run: store.journal(run=run.key, after=0, limit=9),
    ),
    ("UPDATE journal SET kind = 99 WHERE number = 2", lambda store, run: store.versions(run.key)),
    ("UPDATE journal SET seal = 5 WHERE number = 2", lambda store, run: store.packs(run.key, [2])),
    (
        "UPDATE artifact_piece SET data = x'00' WHERE n = 2",
        lambda store, run: list(store.artifact_pieces(digest(content("large", 3 << 20)))),
    ),
    (
        "UPDATE artifact_piece SET data = 'text' WHERE n = 2",
        lambda store, run: list(store.artifact_pieces(digest(content("large", 3 << 20)))),
    ),
    ("DROP TABLE mark", lambda store, run: store.marks(run.key)),
]


def test_changed_row_is_refused(path: Path, tmp_path: Path) -> None:
    large = content("large", 3 << 20)
    with closing(SQLiteStore(tmp_path / "intact.db")) as store:
        line = TimelineRecord(number=1, parent=0, at=1)
        parts = {"timeline": line, "events": [event()], "uploads": [upload(large)], "holds": [digest(large)]}
        made = new_run(parent=7, due=9, owner="me", until=9, detail=b"waits")
        run = commit(store, commit(store, made, change=parts))
        store.set_value("breaker", b"data", 0)
        mark(store, run, 1, "good")
    for statement, read in _DAMAGE:
        shutil.copy(tmp_path / "intact.db", path)
        with closing(SQLiteStore(path)) as store:
            read(store, run)
            with Database(path) as connection:
                connection.execute(statement)
            with pytest.raises(CorruptStore):
                read(store, run)


def test_nothing_is_collected_with_a_damaged_hold(tmp_path: Path) -> None:
    large = content("large", 70_000)
    for table, value in product(("hold", "artifact"), ("x'00'", "5", "x'" + "00" * 32 + "'")):
        path, folder = tmp_path / f"{table}-{len(value)}.db", tmp_path / f"{table}-{len(value)}"
        with closing(SQLiteStore(path, artifacts=folder)) as store:
            commit(store, new_run(), change={"uploads": [upload(large)], "holds": [digest(large)]})
            with Database(path) as connection:
                connection.execute(f"UPDATE {table} SET digest = {value}")
            with pytest.raises(CorruptStore):
                store.collect(before=ALL)
            assert [found for found in folder.rglob("*") if found.is_file()]


def test_damaged_record_of_an_artifact_is_not_collected(path: Path, tmp_path: Path) -> None:
    with closing(SQLiteStore(path, artifacts=tmp_path / "large")) as store:
        store.put_artifact(upload(b"free"), 5)
        with Database(path) as connection:
            connection.execute("UPDATE artifact SET digest = 5")
        with pytest.raises(CorruptStore):
            store.collect(before=ALL)


def test_damaged_page_is_found_by_the_check(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        history(store, 200)
    with Database(path) as connection:
        (schema,) = zip(
            *connection.execute("SELECT pageno FROM dbstat WHERE name = 'sqlite_schema'"), strict=True
        )
    data = bytearray(path.read_bytes())
    for page in set(range(1, len(data) // 4096 + 1)) - {*schema}:
        data[(page - 1) * 4096 : (page - 1) * 4096 + 12] = b"\xff" * 12
    path.write_bytes(data)
    with closing(SQLiteStore(path)) as store:
        assert store.check()
        with pytest.raises(HoldfastError):
            everything(store)


def test_damaged_version_does_not_affect_others(path: Path) -> None:
    store = SQLiteStore(path)
    one, other = commit(store, new_run("one")), commit(store, new_run("other"))
    with Database(path) as connection:
        connection.execute("UPDATE journal SET seal = 'text' WHERE run = ?", (one.key,))
    assert list(store.packs_of([(one.key, 1), (other.key, 1)])) == [(other.key, 1)]
    store.close()


def test_statement_beyond_limits_of_sqlite_is_not_reported_as_damage(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        for statement in ("SELECT " + "?, " * 40_000 + "?", "SELECT 1 WHERE " + "1 = 2 OR " * 1500 + "1 = 2"):
            with pytest.raises(InvalidCall, match="ask for less"), store._database.reader() as connection:
                connection.execute(statement)
            assert store.runs() == []


def test_damaged_run_leaves_its_queue(tmp_path: Path) -> None:
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


def test_damaged_question_is_never_served(path: Path) -> None:
    damages = ["assignee = 'eve'", "priority = 9", "kind = 'odd'", "wake = 'x'", "expires = 1.5"]
    asked = QuestionRecord(number=1, opened=5, assignee="ana", wake=7)
    with closing(SQLiteStore(path)) as store:
        for number, damage in enumerate(damages):
            run = store.append(Append(expect=None, run=new_run(f"run-{number}"), questions=[asked]))
            with Database(path) as connection:
                connection.execute(f"UPDATE question SET {damage} WHERE run = ?", (run.key,))
            for read in (
                partial(store.open_questions, now=0),
                partial(store.open_questions, now=0, run=run.key),
                partial(store.questions_of, run.key),
            ):
                with pytest.raises(CorruptStore, match="damaged"):
                    read()
            # A change of the run's questions replaces the row, and deleting the run removes its places.
            run = store.append(Append(expect=run, run=advanced(run), questions=[asked]))
            assert len(store.questions_of(run.key)) == 1
            with Database(path) as connection:
                connection.execute(f"UPDATE question SET {damage} WHERE run = ?", (run.key,))
            store.delete_run(run)
            assert store.open_questions(now=0) == []
            assert store.check() == []


def test_question_without_its_run_is_found_by_the_check(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        asked = QuestionRecord(number=1, opened=5)
        run = store.append(Append(expect=None, run=new_run(), questions=[asked]))
        with Database(path) as connection:
            connection.execute("DELETE FROM run WHERE key = ?", (run.key,))
        assert [found for found in store.check() if "question" in found]
        assert store.open_questions(now=0) == []


def test_repeated_page_of_questions_is_refused(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        asked = QuestionRecord(number=1, opened=5)
        store.append(Append(expect=None, run=new_run(), questions=[asked]))
        with Database(path) as connection:
            connection.execute("UPDATE question_place SET rank = 7")
        with pytest.raises(CorruptStore):
            store.open_questions(now=0, after=QuestionPlace(0, 5, 1, 1))
