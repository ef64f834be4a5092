"""Runs in a queue that no worker claims because none knows their workflow: reported, then left to an operator."""

from __future__ import annotations

import logging
from typing import Any

import monitor_stage as s
import msgspec
import pytest
from monitor_stage import Stage

import holdfast
from holdfast import workflow
from holdfast.fleet.presence import Announcement, announced
from holdfast.testing import isolated_definitions
from patience import until

stage = s.stage
pytest_plugins = ["postgres_fixtures"]

#: Seconds after which a run is stopped.
PATIENCE = 601


@workflow(name="unclaimed_known")
def known() -> str:
    return "done"


def announce(stage: Stage, name: str, workflows: list[str], queues: tuple[str, ...] = ("default",)) -> None:
    """Let a worker of another process be there."""
    until_then = int((stage.seconds + 1e6) * 1e6)
    store = stage.hf._store
    value = store.value(f"worker/{name}")
    data = msgspec.msgpack.encode(Announcement(until_then, list(queues), workflows))
    store.set_value(f"worker/{name}", data, 0 if value is None else value[1])


def test_run_that_no_worker_knows_is_reported_once_and_gets_into_the_inbox(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    hf = stage.hf
    hf.enqueue("unclaimed_missing", run_id="run")
    with hf.worker(poll=0.01, monitor=False), caplog.at_level(logging.WARNING, "holdfast"):
        hf.enqueue(known, run_id="other")
        until(lambda: hf.get("other").status == "completed")
        for _ in range(3):
            assert stage.look(10) == []
        said = [record.getMessage() for record in caplog.records if "run run" in record.getMessage()]
        assert len(said) == 1
        assert "no worker of queue 'default' knows its workflow 'unclaimed_missing'" in said[0]
        stage.seconds += PATIENCE
        # The worker renews its announcement.
        until(lambda: announced(hf._store, int(stage.seconds * 1e6)))
        (plan,) = stage.monitor.plan()
        assert (plan.run, plan.symptom, plan.action) == ("run", "unclaimed", "stall")
        assert hf.get("run").status == "queued"
        (alert,) = stage.look()
        assert (alert.run, alert.symptom, alert.action) == ("run", "unclaimed", "stall")
        assert stage.look(PATIENCE) == []
        assert "'unclaimed_missing'" in stage.frozen().text
    assert stage.kinds().count("run.stalled") == 1

    # A deploy later, a person lets it go on.
    @workflow(name="unclaimed_missing")
    def missing() -> str:
        return "found"

    hf.answer(stage.frozen().id, "resume")
    with hf.worker(poll=0.01, monitor=False):
        until(lambda: hf.get("run").status == "completed")
    assert announced(hf._store, int(stage.seconds * 1e6)) == []


def test_run_that_another_worker_knows_is_left_to_it(stage: Stage) -> None:
    stage.hf.enqueue("unclaimed_missing", run_id="run")
    announce(stage, "one", ["unclaimed_known"])
    announce(stage, "two", ["unclaimed_missing"])
    assert stage.look(PATIENCE) == []
    # It serves another queue now.
    announce(stage, "two", ["unclaimed_missing"], ("special",))
    assert [alert.run for alert in stage.look(PATIENCE)] == ["run"]


def test_run_is_left_alone_while_no_worker_serves_its_queue(stage: Stage) -> None:
    stage.hf.enqueue("unclaimed_missing", run_id="run", queue="reports")
    assert stage.look(PATIENCE) == []
    announce(stage, "one", ["unclaimed_known"])
    assert stage.look(PATIENCE) == []
    assert stage.hf.get("run").status == "queued"


def test_run_that_is_due_later_is_left_alone(stage: Stage) -> None:
    announce(stage, "one", ["unclaimed_known"])
    stage.hf.enqueue("unclaimed_missing", run_id="run", delay=2 * PATIENCE)
    assert stage.look(PATIENCE) == []
    assert stage.look(PATIENCE) == []
    assert [alert.run for alert in stage.look(PATIENCE + 5)] == ["run"]


def test_answered_run_whose_workflow_is_gone_is_found(stage: Stage) -> None:
    hf = stage.hf

    with isolated_definitions():

        @workflow(name="unclaimed_asking")
        def asking() -> Any:
            return holdfast.ask("Go?")

        hf.enqueue(asking, run_id="run")
        with hf.worker(poll=0.01, monitor=False):
            until(lambda: hf.get("run").status == "suspended")
    announce(stage, "one", ["unclaimed_known"])
    assert stage.look(PATIENCE) == []
    (question,) = hf.inbox()
    hf.answer(question.id, "yes")
    assert [alert.run for alert in stage.look(PATIENCE + 5)] == ["run"]


def test_unclaimed_runs_are_found_page_by_page(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.fleet.monitor.unowned_runs._PAGE", 3)
    announce(stage, "one", ["unclaimed_known"])
    names = [f"run{number}" for number in range(7)]
    for name in names:
        stage.hf.enqueue("unclaimed_missing", run_id=name)
    found = [len(stage.look(PATIENCE))]
    found += [len(stage.look()) for _ in range(4)]
    assert sum(found) == len(names)
    assert max(found) <= 3


def test_announcements_of_dead_workers_are_removed(stage: Stage) -> None:
    announce(stage, "dead", ["unclaimed_known"])
    stage.hf._store.set_value("worker/nonsense", b"\xc1", 0)
    now = int((stage.seconds + 1e6) * 1e6)
    assert announced(stage.hf._store, now + 1) == []
    assert announced(stage.hf._store, now + 3_700_000_000) == []
    assert stage.hf._store.value_names("worker/") == ["worker/nonsense"]
