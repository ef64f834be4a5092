"""An open store: lists of runs and versions, events, statistics, deletion."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_clock import Clock

import holdfast
from database import Database
from holdfast import (
    CorruptVersion,
    History,
    Holdfast,
    InvalidCall,
    NotFound,
    Opaque,
    Retention,
    StaleVersion,
    Version,
    thaw,
)
from holdfast.model.public import Event
from holdfast.model.records import RunRecord
from holdfast.store.protocol import Append

# Runs


@pytest.fixture
def some(hf: Holdfast, clock: Clock) -> Holdfast:
    for number, status in enumerate(["running", "completed", "failed", "running", "completed"], 1):
        hf.history(f"run-{number}").commit({"n": number}, status=status, step="plan")
        clock.forward(hours=1)
    return hf


def test_runs_are_listed_newest_first_with_their_fields(some: Holdfast) -> None:
    some.history("run-3").commit({"n": 0}, step="write", tags=["good"], status="completed")
    some.history("run-3").rollback(to=1)
    assert [run.id for run in some.runs()] == ["run-5", "run-4", "run-3", "run-2", "run-1"]
    run = some.runs()[2]
    assert (run.id, run.status, run.step, run.head, run.versions) == ("run-3", "failed", "plan", 1, 2)
    assert (run.timeline, run.tags, run.origin, run.workflow) == (2, ("good",), None, None)
    assert run.created == dt.datetime(2023, 11, 15, 0, 13, 20, tzinfo=dt.UTC)
    assert run.updated == dt.datetime(2023, 11, 15, 3, 13, 20, tzinfo=dt.UTC)
    assert run.size > 0


def test_runs_are_filtered(some: Holdfast) -> None:
    def ids(**wanted: Any) -> list[str]:
        return [run.id for run in some.runs(**wanted)]

    some.history("run-2").tag(1, "good")
    some.history("run-2").tag(1, "best")
    some.history("run-4").tag(1, "good")
    assert ids(status="running") == ["run-4", "run-1"]
    assert ids(status=["failed", "completed"]) == ["run-5", "run-3", "run-2"]
    assert ids(status=[]) == []
    assert ids(tags=["good"]) == ["run-4", "run-2"]
    assert ids(tags=["good", "best"]) == ["run-2"]
    assert ids(tags=["none"]) == []
    assert ids(workflow="none") == []
    assert ids(since=dt.datetime(2023, 11, 15, 1, 0, tzinfo=dt.UTC)) == ["run-5", "run-4"]
    assert (ids(prefix="run-4"), ids(prefix="run-", limit=1), ids(prefix="RUN")) == (["run-4"], ["run-5"], [])
    for prefix in (7, "\ud800", "x" * 201):
        with pytest.raises(holdfast.InvalidCall, match="prefix"):
            ids(prefix=prefix)
    assert ids(status="running", tags=["good"], limit=1) == ["run-4"]


def test_get_returns_a_run_whose_summary_is_that_of_the_list(some: Holdfast) -> None:
    assert [some.get(run.id).summary for run in some.runs()] == some.runs()
    with pytest.raises(holdfast.InvalidReference, match="'run-' could be any of run-1, run-2"):
        some.get("run-", prefix=True)
    with pytest.raises(NotFound, match="there is no run 'walk'"):
        some.get("walk")


def test_runs_filters_by_interrupted_and_manual(hf: Holdfast) -> None:
    now = hf._context.clock()
    for name, workflow, owner in (
        ("lost", "flow", None),
        ("live", "flow", hf._engine.owner),
        ("by-hand", None, None),
    ):
        until = 0 if owner is None else now + 60_000_000
        record = RunRecord(id=name, workflow=workflow, created=now, updated=now, owner=owner, until=until)
        hf._store.append(Append(expect=None, run=record))

    def ids(*status: str) -> list[str]:
        return [run.id for run in hf.runs(status=status)]

    assert ids("interrupted") == ["lost"]
    assert ids("manual") == ["by-hand"]
    assert ids("interrupted", "manual") == ["by-hand", "lost"]
    assert ids("running") == ids("running", "manual") == ["by-hand", "live", "lost"]
    assert [run.id for run in hf.runs(status=["manual", "interrupted"], limit=1, after="by-hand")] == ["lost"]


def test_runs_are_listed_by_fifty_tags_at_most(some: Holdfast) -> None:
    names = [f"tag-{number}" for number in range(51)]
    for name in names:
        some.history("run-2").tag(1, name)
    assert [run.id for run in some.runs(tags=names[1:] * 100)] == ["run-2"]
    assert [run.id for run in some.iter_runs(tags=names[:50])] == ["run-2"]
    for lists in (some.runs, some.iter_runs):
        with pytest.raises(InvalidCall, match="at most 50 tags, not 51"):
            lists(tags=names)


def test_runs_are_paged_without_gaps_or_repeats(some: Holdfast) -> None:
    found: list[str] = []
    while page := some.runs(limit=2, after=found[-1] if found else None):
        assert len(page) <= 2
        found += [run.id for run in page]
    assert found == ["run-5", "run-4", "run-3", "run-2", "run-1"]


@pytest.mark.slow
def test_iter_runs_yields_all_runs_while_others_are_changed_and_deleted(hf: Holdfast) -> None:
    ids = [f"run-{number}" for number in range(1200)]
    for run_id in ids:
        hf.history(run_id).commit({}, tags=["odd"] if run_id[-1] in "13579" else ())
    assert len(hf.runs()) == 100
    assert [run.id for run in hf.iter_runs()] == ids[::-1]
    assert len(list(hf.iter_runs(tags=["odd"]))) == 600
    for run in hf.iter_runs(status="running"):
        if run.tags:
            hf.delete(run.id)
        else:
            hf.history(run.id).commit({}, status="completed")
    assert [run.id for run in hf.iter_runs()] == ids[-2::-2]
    assert list(hf.iter_runs(status="running")) == []
    with pytest.raises(holdfast.InvalidCall, match="status"):
        hf.iter_runs(status="sleeping")


# Versions


def test_iter_versions_yields_all_versions(hf: Holdfast) -> None:
    log = hf.history("run-1")
    for number in range(1, 601):
        log.commit({"n": number}, step="even" if number % 2 == 0 else None)
    assert len(log.versions()) == 100
    assert [version.number for version in log.iter_versions()] == list(range(600, 0, -1))
    assert [version.number for version in log.iter_versions(step="even")] == list(range(600, 0, -2))
    log.prune(Retention(last=3))
    assert [version.number for version in log.iter_versions()] == [600, 599, 598]


def test_completed_steps_of_all_versions_read_each_once(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are asked for page by page."""
    log = hf.history("run-1")
    for number in range(1, 1001):
        log.commit({"n": number}, step=f"step-{number}")
    read: list[int] = []
    versions = hf._store.versions

    def counted(*arguments: Any, **wanted: Any) -> Any:
        found = versions(*arguments, **wanted)
        read.extend(record.number for record in found)
        return found

    monkeypatch.setattr(hf._store, "versions", counted)
    names = [f"step-{number}" for number in range(1, 1001)]
    for version in log.iter_versions():
        assert version.completed_steps == names[: version.number]
    # Once for the list, once for the names.
    assert len(read) <= 2 * 1000 + 256


def test_completed_steps_are_those_of_the_ancestors_on_every_timeline(hf: Holdfast) -> None:
    log = hf.history("run-1")
    chance = random.Random(7)
    for number in range(1, 201):
        if number > 1 and chance.random() < 0.2:
            log.rollback(to=chance.randint(1, number - 1))
        made = log.commit({"n": number}, step=chance.choice([None, "plan", "write"]))
        if chance.random() < 0.3:
            assert made.completed_steps == _names_of_ancestors(log, made)
    found = log.versions(limit=200)
    chance.shuffle(found)
    for version in found:
        assert version.completed_steps == _names_of_ancestors(log, version)
    log.prune(Retention(last=50))
    for version in log.versions():
        assert version.completed_steps == _names_of_ancestors(log, version)


def _names_of_ancestors(log: History, version: Version) -> list[str]:
    return [each.step for each in log.ancestors(version) if each.step is not None][::-1]


def test_versions_are_filtered_and_paged(hf: Holdfast) -> None:
    log = hf.history("run-1")
    for number in range(1, 11):
        log.commit(
            {"n": number}, step="even" if number % 2 == 0 else None, tags=["third"] if number % 3 == 0 else ()
        )
    log.rollback(to=4)
    log.commit({"n": 11}, step="even", kind="timed")

    def numbers(**wanted: Any) -> list[int]:
        return [version.number for version in log.versions(**wanted)]

    assert numbers() == list(range(11, 0, -1))
    assert numbers(limit=3) == [11, 10, 9]
    assert numbers(limit=3, before=9) == [8, 7, 6]
    assert numbers(before=1) == []
    assert numbers(step="even") == [11, 10, 8, 6, 4, 2]
    assert numbers(tag="third") == [9, 6, 3]
    assert numbers(tag="third", step="even") == [6]
    assert numbers(timeline=2) == [11]
    assert numbers(kind="step", limit=2) == [10, 8]
    assert numbers(kind="timed") == [11]
    assert numbers(kind="initial") == [1]
    assert numbers(step="none") == numbers(timeline=9) == []


def test_list_of_versions_reads_no_state(file: Path) -> None:
    with holdfast.open(file) as hf:
        hf.history("run-1").commit({"n": 1}, step="plan", note="kept")
    with Database(file) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(length(pack))")
    connection.close()
    with holdfast.open(file) as hf:
        (listed,) = hf.history("run-1").versions()
        assert (listed.number, listed.step, listed.note) == (1, "plan", "kept")
        with pytest.raises(CorruptVersion):
            listed.state  # noqa: B018 - the reading is what is tested


# Events


def read_on(read: Any, limit: int) -> list[Event]:
    found: list[Event] = []
    while page := read(after=found[-1].cursor if found else 0, limit=limit):
        found += page
    return found


def test_journal_has_each_version_once_in_order(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({"n": 1})
    log.commit({"n": 2}, step="plan", status="completed")
    log.rollback(to=1)
    log.tag(2, "good")
    hf.history("run-2").commit({})
    log.commit({"n": 3})
    hf.fork("run-1@2", "run-3")
    kinds = [(entry.kind, entry.version, entry.step) for entry in log.events()]
    assert kinds == [
        ("version.saved", 1, None),
        ("version.saved", 2, "plan"),
        ("run.rolled_back", None, None),
        ("version.tagged", 2, None),
        ("version.saved", 3, None),
        ("run.forked", 2, None),
    ]
    saved = log.events()[1]
    assert saved.data == {"parent": 1, "timeline": 1, "kind": "step", "status": "completed"}
    assert (saved.run, saved.at) == ("run-1", log.at(2).at)
    everything = hf.events()
    assert [entry for entry in everything if entry.run == "run-1"] == log.events()
    assert {entry.run for entry in everything} == {"run-1", "run-2", "run-3"}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_events_after_a_cursor_are_complete_and_not_repeated(hf: Holdfast, limit: int) -> None:
    for number in range(10):
        log = hf.history(f"run-{number % 3}")
        log.commit({"n": number})
        log.pin("head")
    hf.delete("run-1")
    for read in (hf.events, hf.history("run-0").events):
        whole = read(limit=1000)
        assert read_on(read, limit) == whole
        assert [entry.cursor for entry in whole] == sorted({entry.cursor for entry in whole})


def test_events_after_the_last_cursor_are_those_committed_since(file: Path) -> None:
    with holdfast.open(file) as one, holdfast.open(file) as other:
        log = one.history("run-1")
        log.commit({"n": 1})
        cursor = other.events()[-1].cursor
        assert other.events(after=cursor) == []
        log.commit({"n": 2})
        one.history("run-2").commit({})
        assert [(entry.run, entry.version) for entry in other.events(after=cursor)] == [
            ("run-1", 2),
            ("run-2", 1),
        ]


def test_cursor_is_valid_after_a_run_was_deleted(hf: Holdfast) -> None:
    hf.history("old").commit({})
    last = hf.history("new")
    last.commit({})
    cursor = hf.events()[-1].cursor
    hf.delete("new")
    hf.history("newer").commit({})
    assert [(entry.run, entry.version) for entry in hf.events(after=cursor)] == [("newer", 1)]


# Numbers


def test_stats_count_runs_versions_and_bytes(hf: Holdfast) -> None:
    assert (hf.stats().runs, hf.stats().versions, hf.stats().artifacts) == (0, 0, 0)
    log = hf.history("run-1")
    log.commit({"doc": "x" * 100_000})
    log.commit({"n": 1})
    log.pin(1)
    hf.history("run-2").commit({})
    stats = hf.stats()
    assert (stats.runs, stats.versions, stats.events, stats.artifacts) == (2, 3, 1, 1)
    assert stats.artifact_bytes >= 100_000
    assert stats.pack_bytes == sum(run.size for run in hf.runs())


def test_gc_with_compact_shrinks_the_file(file: Path) -> None:
    with holdfast.open(file) as hf:
        for number in range(10):
            hf.history(f"run-{number}").commit({"text": [f"{number}.{i} " * 60 for i in range(500)]})
            if number:
                hf.delete(f"run-{number}")
        before = hf.stats().file_bytes or 0
        hf.gc(grace=0, compact=True)
        after = hf.stats().file_bytes or 0
        assert 0 < after < before / 2
        assert len(hf.version("run-0").state["text"]) == 500
        assert hf.verify().ok


# Deleting


def test_deleted_run_is_not_found_and_its_id_can_be_used_again(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({"n": 1}, tags=["good"])
    log.commit({"n": 2})
    log.rollback(to=1)
    held = log.at(2)
    hf.delete("run-1")
    for call in (
        lambda: log.head,
        log.versions,
        lambda: hf.version("run-1"),
        lambda: hf.delete("run-1"),
    ):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(NotFound):
        held.state  # noqa: B018 - the reading is what is tested
    assert (hf.runs(), hf.events(), hf.stats().versions) == ([], [], 0)
    again = log.commit({"fresh": True})
    assert (again.number, again.timeline, again.tags) == (1, 1, ())
    assert [version.number for version in log.versions()] == [1]
    assert log.head.state == {"fresh": True}


def test_forks_of_a_deleted_run_stay_readable(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({"docs": {f"d{n}": f"text {n} " * 50 for n in range(100)}, "list": list(range(200))})
    for number in range(3):
        with log.edit() as state:
            state["docs"][f"d{number}"] = "changed"
    child = hf.fork("run-1@3", "child")
    with child.edit() as state:
        state["list"].append("child")
    grandchild = hf.fork("child@1", "grandchild")
    with grandchild.edit() as state:
        state["list"].insert(0, "grandchild")
    expected = {log.id: [thaw(version.state) for version in log.versions()] for log in (child, grandchild)}
    hf.delete("run-1")
    for fork in (child, grandchild):
        assert [thaw(version.state) for version in fork.versions()] == expected[fork.id]
        with fork.edit() as state:
            state["docs"]["d50"] = "after"
        assert fork.head.size < 3000, "it still shares nodes"
    assert {run.id: run.origin for run in hf.runs()} == {"child": None, "grandchild": "child@1"}
    assert hf.verify().ok
    hf.delete("child")
    assert grandchild.head.state["list"][:2] == ["grandchild", 0]
    assert grandchild.at(1).state == expected["grandchild"][1]
    grandchild.prune(Retention(last=1))
    assert grandchild.head.state["docs"]["d50"] == "after"
    assert hf.verify().ok


# Two open stores on one file


def test_two_open_stores_read_each_others_commits(file: Path) -> None:
    with holdfast.open(file) as one, holdfast.open(file) as other:
        left, right = one.history("r"), other.history("r")
        for number in range(20):
            writer, reader = (left, right) if number % 2 else (right, left)
            with writer.edit() as state:
                state[f"k{number}"] = number
            assert reader.head.state == {f"k{n}": n for n in range(number + 1)}
        left.prune(Retention(last=2))
        assert [version.number for version in right.versions()] == [20, 19]
        with right.edit() as state:
            state["more"] = 1
        assert left.head.state["more"] == 1
        with pytest.raises(StaleVersion):
            left.commit({}, expected=20)
        other.delete("r")
        left.commit({"new": 1})
        assert right.head.state == {"new": 1}
        assert one.verify().ok


@pytest.mark.slow
def test_another_process_reads_the_commits(file: Path) -> None:
    with holdfast.open(file) as hf:
        hf.history("r").commit({"n": (1, 2)})
        code = f"import holdfast; print(holdfast.open({str(file)!r}).version('r').state)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "{'n': (1, 2)}"


# Types and secrets


def test_unregistered_type_survives_a_bundle(hf: Holdfast, request: pytest.FixtureRequest) -> None:
    @dataclasses.dataclass
    class Later:
        x: int

    tag = request.node.name
    log = hf.history("r")
    log.commit({"thing": Opaque(tag, {"x": 1}), "n": 0})
    with log.edit() as state:
        state["n"] = 1
    assert log.head.state["thing"] == Opaque(tag, {"x": 1})
    assert log.blame("thing").version.number == 1
    holdfast.register(Later, tag)
    assert log.at(1).state["thing"] == Later(1)
    with log.edit() as state:
        state["thing"].x = 2
    assert log.head.state["thing"] == Later(2)


def test_secrets_are_replaced_before_they_are_stored(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with holdfast.open(file, redact=["*password*", "api_key"]) as hf:
        log = hf.history("r")
        log.commit({"db": {"Password": "s3cr3t-one", "user": "ada"}, "api_key": ["s3cr3t-two"]})
        with log.edit(
            result={"api_key": "s3cr3t-three"}, annotations={"my_password_2": "s3cr3t-four"}
        ) as state:
            state["list"] = [{"api_key": "s3cr3t-five"}]
        assert log.head.state["db"]["user"] == "ada"
        assert "s3cr3t" not in repr((log.head.state, log.head.result, log.head.annotations, log.export()))
        stored = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"s3cr3t" not in stored
    assert "s3cr3t" not in caplog.text


CONTROL_CHARACTERS = "a\x1b[2Jb\r\u202ec\x9b"


def test_repr_escapes_control_characters() -> None:
    @holdfast.workflow(name="repr_quiet")
    def quiet() -> None: ...

    with holdfast.open(":memory:") as hf:
        version = hf.history("log").commit({CONTROL_CHARACTERS: 1}, step=CONTROL_CHARACTERS)
        run = hf.run(quiet, run_id="quiet", tags=["t"])
        shown = [repr(each) for each in (version, run, hf.get("log").summary, hf.history("log").versions())]
    for text in shown:
        assert text.isprintable(), text
    assert shown[0] == "<Version log@1 a\\e[2Jb\\r\\u202ec\\u009b>"
