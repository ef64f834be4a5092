"""The SQL views, read as people read them: with the standard library's sqlite3 and with psycopg."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import CorruptStore, Holdfast, Retention
from holdfast.store.sqlite.schema import migrations, views
from holdfast.tree.codec import decode

pytest_plugins = ["postgres_fixtures"]
HOSTILE = ["'; DROP TABLE run; --", "<script>", "a\x1b[31m", "%_\\", "x" * 90, "Grüße 🪸"]
#: The columns of version 1 of the views. One that was released is never renamed or removed.
COLUMNS = {
    "holdfast_views": ["version"],
    "holdfast_runs": [
        "run_id", "workflow", "status", "created_at", "updated_at", "head", "timeline", "versions", "step",
        "completed_steps", "size", "parent_run", "forked_from_run", "forked_from_version", "queue", "due_at", "owner",
        "lease_until",
    ],
    "holdfast_versions": [
        "run_id", "version", "parent", "timeline", "kind", "status", "step", "completed_steps", "created_at", "size",
        "tags", "pinned", "is_head", "key", "hash",
    ],
    "holdfast_events": ["position", "run_id", "created_at", "kind", "version", "step", "data"],
    "holdfast_timelines": ["run_id", "timeline", "started_from", "created_at", "reason", "actor"],
    "holdfast_tags": ["run_id", "version", "tag"],
    "holdfast_meta": ["run_id", "name", "value"],
}  # fmt: skip

Query = Callable[[str], list[dict[str, Any]]]


class SqlStore:
    """An open store, and a connection of another tool to its database."""

    def __init__(self, hf: Holdfast, query: Query) -> None:
        self.hf = hf
        self.query = query


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    if request.param == "sqlite":
        with holdfast.open(tmp_path / "runs.db") as hf:
            connection = sqlite3.connect(f"file:{tmp_path}/runs.db?mode=ro", uri=True)
            connection.row_factory = sqlite3.Row
            yield SqlStore(hf, lambda text: [dict(row) for row in connection.execute(text)])
            connection.close()
        return
    schema = request.getfixturevalue("schema")
    with (
        holdfast.open(request.getfixturevalue("url")) as hf,
        psycopg.connect(request.getfixturevalue("server"), autocommit=True) as server,
    ):
        server.execute(f'SET search_path TO "{schema}"')

        def query(text: str) -> list[dict[str, Any]]:
            cursor = server.execute(text)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor]

        yield SqlStore(hf, query)


@holdfast.step
def view_analyst(topic: str) -> str:
    return f"insights on {topic}"


@holdfast.step
def view_flaky() -> None:
    raise OSError("down")


@holdfast.workflow(name="view_flow")
def flow(topic: str) -> str:
    try:
        view_flaky()
    except OSError:
        return view_analyst(topic)
    return ""


@holdfast.workflow(name="view_parent")
def parent() -> str:
    return flow("AI")


def _fill(hf: Holdfast) -> None:
    hf.run(flow, "AI", run_id="done", meta={"customer": 7, "env": "test"})
    hf.run(parent, run_id="above")
    hf.enqueue(flow, "AI", run_id="waiting", queue="night", delay=1_000)
    hf.fork("done@2", "fork")
    log = hf.history("hand", meta={"customer": "7"})
    log.commit({"n": 1}, key="thread 1", annotations={"cost": 1})
    log.commit({"n": 2, "text": "x" * 5_000}, step="plan", tags=["good", "best, or so"], note="why")
    log.pin(2)
    log.add_event("agent.woke", {"by": "cron", "n": [1, None, "ü"]}, version=2)
    log.rollback(1, reason="wrong turn", actor="ana")
    log.commit({"n": 3}, step="again")
    for number, text in enumerate(HOSTILE):
        made = hf.history(f"hostile-{number}", meta={"text": text})
        made.commit({}, step=text, actor=text)
        made.rollback(1, reason=text, actor=text)
    hf.history("hostile-0").tag(1, "<script>")


def _time(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def test_columns_are_those_of_the_documented_version(opened: SqlStore) -> None:
    _fill(opened.hf)
    for view, columns in COLUMNS.items():
        rows = opened.query(f"SELECT * FROM {view}")
        assert rows, view
        assert list(rows[0]) == columns
    assert opened.query("SELECT version FROM holdfast_views") == [{"version": 1}]
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "query-with-sql.md").read_text()
    for view, columns in COLUMNS.items():
        assert f"`{view}`" in text
        assert all(f"`{column}`" in text for column in columns)


def test_runs_agree_with_the_api(opened: SqlStore) -> None:
    _fill(opened.hf)
    rows = {row["run_id"]: row for row in opened.query("SELECT * FROM holdfast_runs")}
    runs = list(opened.hf.iter_runs())
    assert rows.keys() == {run.id for run in runs}
    for run in runs:
        row, handle = rows[run.id], opened.hf.get(run.id)
        expected = (run.workflow, run.status, run.head, run.timeline, run.versions, run.step, run.size)
        names = ("workflow", "status", "head", "timeline", "versions", "step", "size")
        assert tuple(row[name] for name in names) == expected
        assert (_time(row["created_at"]), _time(row["updated_at"])) == (run.created, run.updated)
        assert (row["completed_steps"], row["parent_run"]) == (handle.head.steps, handle.parent)
    assert (rows["fork"]["forked_from_run"], rows["fork"]["forked_from_version"]) == ("done", 2)
    waiting = rows["waiting"]
    assert waiting["queue"] == "night"
    assert _time(waiting["due_at"]) - _time(waiting["created_at"]) == timedelta(seconds=1_000)
    assert (waiting["owner"], waiting["lease_until"]) == (None, None)


def test_versions_agree_with_the_api(opened: SqlStore) -> None:
    _fill(opened.hf)
    opened.hf.history("hand").prune(Retention(last=1))
    rows = {(row["run_id"], row["version"]): row for row in opened.query("SELECT * FROM holdfast_versions")}
    seen = 0
    for run in opened.hf.iter_runs():
        for version in opened.hf.history(run.id).iter_versions():
            row = rows[run.id, version.number]
            for name in ("parent", "timeline", "kind", "status", "step", "size", "key", "hash"):
                assert row[name] == getattr(version, name), name
            assert row["completed_steps"] == version.steps
            assert _time(row["created_at"]) == version.at
            assert row["tags"] == (", ".join(sorted(version.tags)) or None)
            assert bool(row["pinned"]) is version.pinned
            assert bool(row["is_head"]) is (version.number == run.head)
            seen += 1
    assert len(rows) == seen


def test_events_agree_with_the_api(opened: SqlStore) -> None:
    _fill(opened.hf)
    rows = {row["position"]: row for row in opened.query("SELECT * FROM holdfast_events")}
    events = opened.hf.events(limit=10_000)
    assert len(rows) == len(events)
    for event in events:
        row = rows[event.cursor]
        assert (row["run_id"], row["kind"], _time(row["created_at"])) == (event.run, event.kind, event.at)
        if event.saved:
            assert (row["version"], row["step"], row["data"]) == (event.version, event.step, None)
        else:
            assert (row["version"], row["step"]) == (None, None)
            assert decode(bytes(row["data"])).keys() >= event.data.keys() - {"question_id"}
    kinds = {event.kind for event in events}
    assert {"run.started", "step.failed", "step.completed", "run.completed", "run.queued"} <= kinds
    assert {"version.saved", "run.rolled_back", "agent.woke"} <= kinds


def test_timelines_tags_and_metadata_agree_with_the_api(opened: SqlStore) -> None:
    _fill(opened.hf)
    lines = opened.query("SELECT * FROM holdfast_timelines ORDER BY run_id, timeline")
    assert [
        (row["run_id"], row["timeline"], row["started_from"], row["reason"], row["actor"]) for row in lines
    ] == [
        ("hand", 2, 1, "wrong turn", "ana"),
        *((f"hostile-{number}", 2, 1, text, text) for number, text in enumerate(HOSTILE)),
    ]
    tags = opened.query("SELECT * FROM holdfast_tags ORDER BY run_id, version, tag")
    assert [tuple(row.values()) for row in tags] == [
        ("hand", 2, "best, or so"),
        ("hand", 2, "good"),
        ("hostile-0", 1, "<script>"),
    ]
    found: dict[str, dict[str, Any]] = {}
    for row in opened.query("SELECT * FROM holdfast_meta"):
        found.setdefault(row["run_id"], {})[row["name"]] = json.loads(row["value"])
    assert found == {run.id: run.meta for run in opened.hf.iter_runs() if run.meta}
    assert found["hostile-0"] == {"text": HOSTILE[0]}


def test_a_role_that_may_only_read_the_views_can_read_them(url: str, server: str, schema: str) -> None:
    with holdfast.open(url) as hf:
        _fill(hf)
    role = f"reader_{schema}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{role}"')
        try:
            connection.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{role}"')
            for view in COLUMNS:
                connection.execute(f'GRANT SELECT ON "{schema}".{view} TO "{role}"')
            connection.execute(f'SET ROLE "{role}"')
            for view in COLUMNS:
                assert connection.execute(f'SELECT * FROM "{schema}".{view}').fetchall()
            for statement in (f'SELECT * FROM "{schema}".run', f'DELETE FROM "{schema}".holdfast_meta'):
                with pytest.raises(
                    (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)
                ):
                    connection.execute(statement)
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f'DROP OWNED BY "{role}"')
            connection.execute(f'DROP ROLE "{role}"')


# Plans

_OF_A_RUN = "SELECT * FROM {} WHERE run_id = 'done'"
_OF_THE_END = "SELECT * FROM holdfast_events ORDER BY position DESC LIMIT 10"
_VERSION_COLUMNS = (
    "number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, external, pack"
)


@pytest.mark.parametrize("view", ["holdfast_runs", "holdfast_versions", "holdfast_events", "holdfast_meta"])
def test_sqlite_finds_the_rows_of_a_run_by_an_index(tmp_path: Path, view: str) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        _fill(hf)
    connection = sqlite3.connect(tmp_path / "runs.db")
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {_OF_A_RUN.format(view)}")]
    connection.close()
    assert plan[0].startswith("SEARCH run USING"), plan
    assert not any(f"SCAN {table}" in line for line in plan for table in ("run", "journal", "meta")), plan


def test_postgres_finds_the_rows_of_a_run_by_an_index(url: str, server: str, schema: str) -> None:
    with holdfast.open(url) as hf:
        _fill(hf)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema}"')
        # Many runs with the versions and the events of one.
        connection.execute(
            f"INSERT INTO run SELECT g + 100, 'r' || g, {_RUN_COLUMNS} FROM run, generate_series(1, 5000) g "
            "WHERE run.id = 'hand'"
        )
        copied = ", ".join(f"journal.{name}" for name in _VERSION_COLUMNS.split(", "))
        connection.execute(
            f"INSERT INTO journal (run, {_VERSION_COLUMNS}) SELECT g + 100, {copied} "
            "FROM generate_series(1, 5000) g, journal JOIN run ON run.key = journal.run WHERE run.id = 'hand'"
        )
        connection.execute("INSERT INTO meta SELECT g + 100, 'n', g::text FROM generate_series(1, 5000) g")
        # The server does so itself after many changes.
        connection.execute("ANALYZE")
        statements = [_OF_A_RUN.format(view) for view in COLUMNS if view != "holdfast_views"]
        for statement in (*statements, _OF_THE_END):
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {statement}"))
            assert not any(f"Seq Scan on {table}" in plan for table in ("run", "journal", "meta")), plan


_RUN_COLUMNS = (
    "workflow, status, created, updated, head, last, timeline, revision, epoch, origin_run, origin_version, step, "
    "size, kept, parent, due, owner, detail, until, sum, attempt"
)


# Views in a file that others may have changed


def _changed(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP VIEW holdfast_runs", "CREATE VIEW holdfast_runs AS SELECT 1 AS run_id"),
        ("CREATE VIEW more AS SELECT 1",),
        ("CREATE VIEW holdfast_more AS SELECT 1",),
        (
            "DROP TABLE mark",
            "CREATE VIEW mark AS SELECT 1 AS run, '' AS name, 1 AS number, 1 AS at, x'' AS sum",
        ),
        ("CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM journal; END",),
        ("DROP VIEW holdfast_tags", "CREATE VIEW holdfast_tags AS " + " " * 5 + "SELECT 1"),
    ],
)
def test_a_file_with_other_views_or_triggers_is_refused(tmp_path: Path, statements: tuple[str, ...]) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        hf.history("a").commit({})
    _changed(path, *statements)
    with pytest.raises(CorruptStore, match="never creates"):
        holdfast.open(path)


def test_a_file_without_a_view_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        hf.history("a").commit({})
    _changed(path, "DROP VIEW holdfast_runs")
    with holdfast.open(path) as hf:
        assert [run.id for run in hf.runs()] == ["a"]
        assert hf.verify().ok


def test_the_views_of_a_new_file_are_exactly_ours(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holdfast.open(path).close()
    connection = sqlite3.connect(path)
    found = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'view'"))
    connection.close()
    assert found == views()
    assert found.keys() == COLUMNS.keys()


def test_statements_of_holdfast_do_not_read_views() -> None:
    source = Path(holdfast.__file__).parent
    names = [name for name in COLUMNS if name != "holdfast_views"]
    for path in source.rglob("*.py"):
        assert not any(name in path.read_text() for name in names), path
    assert sum(text.count("CREATE VIEW") for text in migrations()) == len(COLUMNS)
