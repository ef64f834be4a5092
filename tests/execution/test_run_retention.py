"""What a run needs to go on outlives pruning, forks, bundles, edits, large events and damage elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import three_step_flow
from three_step_flow import FAIL, RAN, three, work

import holdfast
from database import Database
from holdfast import Holdfast, InvalidCall, NotFound, Retention, step, workflow

hf = three_step_flow.hf


def test_pruning_keeps_what_a_failed_run_replays(hf: Holdfast) -> None:
    FAIL[:] = [3]
    run = hf.run(three, raises=False)
    hf.history(run.id).prune(Retention(last=1))
    FAIL.clear()
    RAN.clear()
    assert hf.resume(run.id).result == [10, 20, 30]
    assert RAN == [3]


def test_pruning_keeps_what_a_live_fork_replays(hf: Holdfast) -> None:
    run = hf.run(three)
    fork = hf.fork(f"{run.id}@3")
    hf.history(run.id).prune(Retention(last=1))
    with pytest.raises(InvalidCall, match="forked"):
        hf.delete(run.id)
    RAN.clear()
    assert hf.resume(fork.id).result == [10, 20, 30]
    assert RAN == [3]
    hf.delete(run.id)


def test_replay_refuses_a_gap_in_the_history(hf: Holdfast, tmp_path: Path) -> None:
    run = hf.run(three)
    fork = hf.fork(f"{run.id}@3")
    hf.export_run(fork.id, tmp_path / "fork.bundle")
    RAN.clear()
    hf.import_run(tmp_path / "fork.bundle", run_id="imported")
    with pytest.raises(NotFound, match=r"not resumed|first version"):
        hf.resume("imported")
    assert RAN == []
    assert hf.get("imported").status == "paused"


def test_pruning_keeps_the_record_of_compensations(hf: Holdfast) -> None:
    undone: list[int] = []

    @step(name="kept_undo", compensate=undone.append)
    def order(n: int) -> int:
        return n

    @workflow(name="kept_orders")
    def orders() -> int:
        return order(1) + order(2)

    run = hf.run(orders)
    log = run.history()
    log.pin(1)
    log.prune(Retention(last=1))
    hf.rollback(run.id, to=1, resume=False)
    assert undone == [2, 1]


def test_bundle_contains_the_waits_of_a_run(hf: Holdfast, tmp_path: Path) -> None:
    @workflow(name="kept_asks")
    def asks() -> Any:
        return holdfast.ask("Well?", schema=int)

    run = hf.run(asks, run_id="asks")
    hf.export_run(run.id, tmp_path / "run.bundle")
    hf.import_run(tmp_path / "run.bundle", run_id="other")
    assert sorted(prompt.id for prompt in hf.inbox()) == ["asks#1", "other#1"]
    assert hf.answer("other#1", 5).result == 5
    assert hf.get("asks").status == "suspended"

    FAIL[:] = [2]
    failed = hf.run(three, run_id="three", raises=False)
    hf.export_run(failed.id, tmp_path / "failed.bundle")
    hf.import_run(tmp_path / "failed.bundle", run_id="again")
    assert isinstance(hf.get("again").error, ConnectionError)


def test_subscription_continues_after_a_damaged_version(hf: Holdfast, tmp_path: Path) -> None:
    hf.run(three, run_id="a")
    hf.run(three, run_id="b")
    with Database(tmp_path / "runs.db") as connection:
        connection.execute(
            "UPDATE journal SET steps = 77 WHERE number = 2 AND run = (SELECT key FROM run WHERE id = 'a')"
        )
    kinds = [(event.run, event.kind) for event in hf.events()]
    assert ("a", "version.damaged") in kinds
    assert ("b", "run.completed") in kinds


def test_delete_removes_child_runs(hf: Holdfast) -> None:
    @workflow(name="kept_asking")
    def asking() -> Any:
        return holdfast.ask("Well?")

    @workflow(name="kept_parent")
    def parent() -> Any:
        return asking()

    hf.run(parent, run_id="p")
    hf.delete("p")
    assert hf.inbox() == []
    assert hf.run(parent, run_id="p").status == "suspended"


def test_edit_of_a_completed_run_keeps_its_result(hf: Holdfast) -> None:
    run = hf.run(three)
    with run.history().edit(step="by hand") as state:
        state["more"] = 1
    assert run.result == [10, 20, 30]
    assert hf.resume(run.id).result == [10, 20, 30]


def test_large_signals_are_not_written_with_every_commit(hf: Holdfast) -> None:
    large = {"text": "word " * 20_000, "list": list(range(100))}

    @workflow(name="kept_mail")
    def reads() -> Any:
        first = holdfast.wait_for("start")
        done = [work(n) for n in range(3)]
        return [first, done, holdfast.wait_for("document"), holdfast.wait_for("document")]

    run = hf.run(reads)
    hf.signal(run.id, "document", large)
    hf.signal(run.id, "document", {"small": 1})
    record = hf._store.run(run.id)
    assert record is not None
    assert len(record.detail) < 2_000
    hf.signal(run.id, "start", large)
    assert run.result == [large, [0, 10, 20], large, {"small": 1}]


def test_unreadable_run_is_not_taken_over(hf: Holdfast, tmp_path: Path) -> None:
    FAIL[:] = [3]
    run = hf.run(three, run_id="r", raises=False)
    FAIL.clear()
    with Database(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE journal SET pack = x'00' || pack WHERE number = 2")
    with holdfast.open(tmp_path / "runs.db") as other:
        with pytest.raises(holdfast.CorruptVersion):
            other.resume("r")
        record = other._store.run("r")
        assert record is not None
        assert (record.status, record.owner) == ("failed", None)
    assert run.status == "failed"
