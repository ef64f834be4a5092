"""Runs that an earlier version of Holdfast left unfinished, in each status: they are read and resumed.

The bundles in `stopped_runs` were exported by the code before questions, signals and watchdogs had these names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, LimitExceeded, Limits, Run, Watchdog, step, workflow
from holdfast.model.run_detail import detail_of

FOLDER = Path(__file__).parent / "stopped_runs"
#: The status of each run when it was exported.
STATUSES = {
    "answered": "suspended",
    "limited": "suspended",
    "paused": "paused",
    "question": "suspended",
    "queued": "queued",
    "recovering": "queued",
    "rollback": "paused",
    "stalled": "stalled",
}
UNDONE: list[str] = []


@step(name="stopped_record")
def record(name: str) -> str:
    holdfast.state().setdefault("done", []).append(name)
    return name


def cancel_booking(result: str) -> None:
    UNDONE.append(result)


@step(name="stopped_book", compensate=cancel_booking)
def book(name: str) -> str:
    return name


@workflow(name="stopped_asks", version="1")
def asks() -> Any:
    record("a")
    answer = holdfast.ask("Deploy?")
    return [answer, holdfast.wait_for("go"), record("b")]


@workflow(name="stopped_counts", version="1")
def counts() -> Any:
    return [record(name) for name in "abcd"]


@workflow(name="stopped_books", version="1")
def books() -> Any:
    for name in "abc":
        book(name)
    return holdfast.ask("Done?")


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    UNDONE.clear()
    with holdfast.open(tmp_path / "runs.db", durability="fast") as opened:
        yield opened


def imported(hf: Holdfast, name: str) -> Run:
    hf.import_run(FOLDER / f"{name}.bundle")
    run = hf.get(name)
    assert run.status == STATUSES[name]
    return run


def test_every_stopped_run_is_read(hf: Holdfast) -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(STATUSES)
    for name in STATUSES:
        imported(hf, name)
    assert hf.verify().ok
    assert [question.id for question in hf.inbox()] == [
        "question#1",
        "paused#1",
        "limited#1",
        "stalled#1",
        "stalled#2",
        "rollback#1",
    ]
    (answered,) = hf.inbox(open=False)
    assert (answered.id, answered.text, answered.answer, answered.actor) == (
        "answered#1",
        "Deploy?",
        {"ok": True},
        "Ada",
    )


def test_stopped_run_with_a_question_is_answered(hf: Holdfast) -> None:
    for name in ("question", "paused"):
        run = imported(hf, name)
        hf.resume(run.id)
        hf.answer(f"{name}#1", 1)
        assert hf.signal(run.id, "go", 2).result == [1, 2, "b"]
        assert run.state == {"done": ["a", "b"]}


def test_stopped_run_receives_its_answer_and_a_large_signal(hf: Holdfast) -> None:
    run = imported(hf, "answered")
    assert hf.resume(run.id).result == [{"ok": True}, "x" * 1000, "b"]


def test_stopped_run_keeps_its_limits(hf: Holdfast) -> None:
    run = imported(hf, "limited")
    assert run.limits == Limits(steps=2)
    hf.signal(run.id, "go", resume=False)
    with pytest.raises(LimitExceeded):
        hf.answer("limited#1", 1)
    assert hf.resume(run.id, limits=Limits(steps=20)).result == [1, None, "b"]


def test_stopped_run_in_a_queue_keeps_its_place_watchdog_and_limits(hf: Holdfast) -> None:
    run = imported(hf, "queued")
    assert run.limits == Limits(tokens=1000)
    record = run.history().run_record()
    assert detail_of(record).watchdog_policy == Watchdog(heartbeat_timeout=60, autoresume=True)
    hf.requeue(run.id)
    assert hf.queue("q").runs == {"queued": 1}
    with hf.worker(queues=["q"], monitor=False):
        assert run.wait(60).result == list("abcd")


def test_stopped_run_that_is_stalled_is_answered(hf: Holdfast) -> None:
    run = imported(hf, "stalled")
    question = hf.question("stalled#2")
    assert {name: question.details[name] for name in ("symptom", "address", "attempt", "stack", "version")} == {
        "symptom": "silent", "address": "stopped_book", "attempt": 1, "stack": "somewhere", "version": 2,
    }  # fmt: skip
    assert hf.answer(question.id, "rollback").status == "suspended"
    assert UNDONE == ["c", "b"]
    assert [line.parent for line in run.history().timelines()] == [None, 2]


def test_stopped_rollback_is_finished(hf: Holdfast) -> None:
    run = imported(hf, "rollback")
    assert hf.resume(run.id).status == "suspended"
    # "c" was compensated before.
    assert UNDONE == ["b", "a"]
    line = run.history().timelines()[-1]
    assert (line.parent, line.reason, line.actor) == (1, "wrong", "Ada")


def test_stopped_recovery_is_finished_by_a_monitor(hf: Holdfast) -> None:
    run = imported(hf, "recovering")
    monitor = hf.monitor()
    monitor.look()
    monitor.wait()
    assert run.status == "suspended"
    assert UNDONE == ["c", "b", "a"]
    assert [event.data["symptom"] for event in run.events() if event.kind == "run.recovered"] == ["silent"]
