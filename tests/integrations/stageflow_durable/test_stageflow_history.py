"""The history of a durable pipeline: its events and versions, rollback, and concurrent writers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stageflow.api import Pipeline, StageContext, StageKind
from stageflow.pipeline.dag import UnifiedStageExecutionError
from stageflow_stages import Log, chain, fails, hurried, ok, run, stage, steps

import holdfast
from database import Database
from holdfast import CorruptVersion, Holdfast, InvalidCall, LeaseLost, NotFound, Retention
from holdfast.integrations.stageflow import durable, results_of, snapshot_of

pytest_plugins = ["postgres_fixtures"]


class Sink:
    """An event sink that collects events."""

    def __init__(self, error: Exception | None = None) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self._error = error

    async def emit(self, *, type: str, data: dict[str, Any] | None) -> None:  # noqa: A002 - as Stageflow has it
        self.try_emit(type=type, data=data)

    def try_emit(self, *, type: str, data: dict[str, Any] | None) -> None:  # noqa: A002
        if self._error is not None:
            raise self._error
        self.heard.append((type, data or {}))

    def of(self, what: str) -> list[dict[str, Any]]:
        return [data for kind, data in self.heard if kind == f"pipeline.checkpoint_{what}"]


# Events


def test_events_are_in_the_journal_and_the_sink(hf: Holdfast, log: Log) -> None:
    trouble: list[Any] = [ValueError("no")]
    pipeline = chain(log, "plan", "act", act=lambda: trouble[0])
    first, second = Sink(), Sink()
    heard = []
    with hf.subscribe(lambda event: heard.append(event.kind), kinds=["pipeline.*"]):
        fails(durable(pipeline, hf, "r"), event_sink=first, request_id=None)
        trouble[0] = ok()
        run(durable(pipeline, hf, "r"), event_sink=second)
    saved, restored = "pipeline.checkpoint_saved", "pipeline.checkpoint_restored"
    journal = [event for event in hf.history("r").events() if event.kind in (saved, restored)]
    assert [
        (event.kind, event.version, event.data.get("stage"), event.data.get("status")) for event in journal
    ] == [
        (saved, 1, None, None),
        (saved, 2, "plan", "ok"),
        (saved, 3, "act", "fail"),
        (restored, 3, None, None),
        (saved, 4, "act", "ok"),
    ]
    assert [event.step for event in journal] == [None, "plan", None, None, "act"]
    assert heard == [event.kind for event in journal]
    assert [(data["version"], data["stage"], data["status"]) for data in first.of("saved")] == [
        (1, None, None),
        (2, "plan", "ok"),
        (3, "act", "fail"),
    ]
    assert first.of("restored") == []
    (event,) = second.of("restored")
    assert (
        event["run"],
        event["version"],
        event["stages"],
        event["pipeline"],
    ) == ("r", 3, ["plan"], "chain")
    assert "pipeline_run_id" in event
    assert [data["version"] for data in second.of("saved")] == [4]


def test_failing_sink_does_not_fail_the_pipeline(hf: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan", "act"), hf, "r")
    run(flow, event_sink=Sink(OSError("full")))
    run(flow, event_sink=Sink(OSError("full")))
    assert hf.get("r").status == "completed"


# Looking into it


def test_each_version_is_the_state_after_a_stage(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", "act", "end", act=ok(tasks=[{"done": False}]))
    run(durable(pipeline, hf, "r"), input_text="kelp", metadata={"who": {"name": "ada"}})
    history = hf.history("r")
    assert [list(results_of(version)) for version in reversed(history.versions())] == [
        [],
        ["plan"],
        ["plan", "act"],
        ["plan", "act", "end"],
    ]
    assert {snapshot_of(version).input_text for version in history.versions()} == {"kelp"}
    assert history.at(3).get("stages.act.data.tasks[0].done") is False
    assert history.blame("stages.act.data").version.number == 3
    assert history.blame("snapshot.metadata.who.name").version.number == 1
    assert [change.path for change in hf.diff("r@2", "r@3").changes] == [("stages", "act")]
    assert history.at(4).completed_steps == ["plan", "act", "end"]
    assert [version.status for version in reversed(history.versions())] == [
        "running",
        "running",
        "running",
        "completed",
    ]


def test_snapshot_is_stored_once(hf: Holdfast, log: Log) -> None:
    names = [f"s{number}" for number in range(30)]
    run(durable(chain(log, *names), hf, "r"), metadata={"text": [f"word {n} of a text" for n in range(2000)]})
    sizes = [version.size for version in reversed(hf.history("r").versions())]
    assert sizes[0] > 4_000
    assert max(sizes[1:]) < 1_500


def test_prune_keeps_the_run_resumable(hf: Holdfast, log: Log) -> None:
    trouble: list[Any] = [ValueError("no")]
    pipeline = chain(log, "plan", "act", "end", end=lambda: trouble[0])
    fails(durable(pipeline, hf, "r"), input_text="kelp")
    hf.history("r").prune(Retention(last=1))
    trouble[0] = ok()
    run(durable(pipeline, hf, "r"), input_text="kelp")
    assert log.taken() == ["plan", "act", "end", "end"]


def test_run_resumes_from_an_imported_bundle(hf: Holdfast, log: Log, tmp_path: Path) -> None:
    trouble: list[Any] = [ValueError("no")]
    pipeline = chain(log, "plan", "act", act=lambda: trouble[0])
    fails(durable(pipeline, hf, "r"), input_text="kelp")
    hf.export_run("r", tmp_path / "r.bundle")
    trouble[0] = ok()
    with holdfast.open(tmp_path / "elsewhere.db") as other:
        other.import_run(tmp_path / "r.bundle")
        log.clear()
        run(durable(pipeline, other, "r"), input_text="kelp")
    assert log.taken() == ["act"]


def test_corrupt_version_is_refused_before_a_stage_runs(tmp_path: Path, log: Log) -> None:
    file = tmp_path / "runs.db"
    pipeline = chain(log, "plan", "act", plan={"text": "a text that stands out"})
    with holdfast.open(file) as hf:
        run(durable(pipeline, hf, "r"))
    log.clear()
    with Database(file) as db:
        data = db.value("SELECT pack FROM journal WHERE number = 2")
        db.execute("UPDATE journal SET pack = ? WHERE number = 2", (data[:-1] + bytes([data[-1] ^ 1]),))
    with holdfast.open(file) as hf, pytest.raises(CorruptVersion, match="version 2"):
        run(durable(pipeline, hf, "r"))
    assert log.taken() == []


# Rollback


def test_rollback_goes_to_or_before_a_stage(hf: Holdfast, log: Log) -> None:
    counter = iter(range(100))
    pipeline = chain(log, "plan", "search", "write", search=lambda: ok(n=next(counter)))
    flow = durable(pipeline, hf, "r")
    run(flow, input_text="kelp")
    log.clear()
    target = flow.rollback(to="search", reason="too long", actor="ada")
    assert (target.number, target.step) == (3, "search")
    assert hf.get("r").status == "running"
    results = run(flow)
    assert log.taken() == ["write"]
    assert results["search"].data == {"n": 0}
    flow.rollback(before="search")
    results = run(flow)
    assert log.taken() == ["search", "write"]
    assert results["search"].data == {"n": 1}
    history = hf.history("r")
    assert [(line.number, line.parent, line.reason) for line in history.timelines()] == [
        (1, None, None),
        (2, 3, "too long"),
        (3, 2, None),
    ]
    assert [results_of(history.at(number))["search"].data["n"] for number in (3, 4, 5, 6, 7)] == [
        0,
        0,
        0,
        1,
        1,
    ]
    assert history.verify().ok
    # The command line's way: any version by its number.
    hf.rollback("r", to=1)
    assert list(run(flow)) == ["plan", "search", "write"]
    assert log.taken() == ["plan", "search", "write"]


def test_rollback_considers_only_ancestors_of_the_head(hf: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan", "act"), hf, "r")
    run(flow)
    flow.rollback(before="act")
    with pytest.raises(NotFound, match=r"not completed a stage 'act'.*plan"):
        flow.rollback(to="act")


def test_invalid_rollback_is_refused(hf: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan", "act"), hf, "r")
    with pytest.raises(NotFound, match="'r'"):
        flow.rollback(to="plan")
    run(flow)
    for wrong in ({}, {"to": "plan", "before": "plan"}, {"to": 2}, {"before": b"plan"}):
        with pytest.raises(InvalidCall, match="name of a stage"):
            flow.rollback(**wrong)
    with pytest.raises(NotFound, match="plan"):
        flow.rollback(to="plam")
    assert hf.history("r").head.number == 3


def test_stage_that_ends_after_a_rollback_is_refused(hf: Holdfast, log: Log) -> None:
    """The run is rolled back while a stage is running."""

    def act(ctx: StageContext) -> None:
        if log.count("act") == 1:
            hf.history("r").rollback(to=1)

    pipeline = chain(log, "plan").with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
    error = fails(durable(pipeline, hf, "r"))
    assert isinstance(error.original, LeaseLost)
    assert "rolled back" in str(error.original)
    assert hf.history("r").head.number == 1
    assert len(hf.history("r").versions()) == 2
    run(durable(pipeline, hf, "r"))
    assert log.taken() == ["plan", "act", "plan", "act"]


def test_stage_that_ends_after_a_rollback_and_another_execution_is_refused(hf: Holdfast, log: Log) -> None:
    async def act(ctx: StageContext) -> None:
        if log.count("act") == 1:
            hf.history("r").rollback(to=1)
            await durable(whole, hf, "r").run()

    whole = chain(log, "plan").with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
    error = fails(durable(whole, hf, "r"))
    assert isinstance(error.original, LeaseLost)
    assert hf.history("r").head.status == "completed"
    assert hf.history("r").timelines()[-1].number == 2


# Two at once


def test_concurrent_executions_record_a_stage_once(hf: Holdfast) -> None:
    met = 0
    both: list[Any] = []

    async def act(ctx: StageContext) -> dict[str, Any]:
        nonlocal met
        met += 1
        mine = met
        while met < 2:
            await asyncio.sleep(0)
        return {"by": mine}

    pipeline = Pipeline(name="p").with_stage("act", act, StageKind.WORK)

    async def main() -> None:
        flows = [durable(pipeline, hf, "r").run(), durable(pipeline, hf, "r").run()]
        both.extend(await asyncio.gather(*flows, return_exceptions=True))

    asyncio.run(main())
    (good,) = [found for found in both if not isinstance(found, Exception)]
    (bad,) = [found for found in both if isinstance(found, Exception)]
    assert isinstance(getattr(bad, "original", None), LeaseLost)
    assert "another execution" in str(bad)
    assert results_of(hf.history("r").head) == good
    assert hf.get("r").status == "completed"


def test_concurrent_manual_commit_is_preserved(hf: Holdfast, log: Log) -> None:
    def act(ctx: StageContext) -> None:
        with hf.history("r").edit(note="by hand") as state:
            state["remark"] = "mind the gap"

    pipeline = chain(log, "plan").with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
    run(durable(pipeline, hf, "r"))
    assert hf.history("r").head.state["remark"] == "mind the gap"
    assert steps(hf.history("r")) == ["initial", "plan", "by hand", "act"]


class Signal:
    """A value that signals when it is captured, which is right before it is written."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()


def _split(signal: Signal) -> str:
    signal.taken.set()
    return "a signal"


holdfast.register(Signal, split=_split, join=lambda parts: Signal())


def test_cancelled_execution_waits_for_its_write(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"

    async def main(hf: Holdfast) -> None:
        signal, lock = Signal(), Database(file)
        task = asyncio.ensure_future(durable(locking(signal, lock), hf, "r").run())
        await signal.taken.wait()
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        lock.execute("ROLLBACK")
        lock.close()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(results_of(hf.history("r").head)) == ["good"]

    with holdfast.open(file) as hf:
        asyncio.run(main(hf))


def test_output_written_after_the_stage_timeout_is_kept(tmp_path: Path) -> None:
    """The stage times out while its output is written: the pipeline fails, and the next run replays the stage."""
    file = tmp_path / "runs.db"

    async def main(hf: Holdfast) -> None:
        signal, lock = Signal(), Database(file)
        flow = durable(locking(signal, lock), hf, "r")
        task = asyncio.ensure_future(flow.run(hurried("good", 20)))
        await signal.taken.wait()
        # Timers go off in the order of their times, however slow the machine is.
        asyncio.get_running_loop().call_later(0.1, lock.execute, "ROLLBACK")
        with pytest.raises(UnifiedStageExecutionError, match="timed out"):
            await task
        lock.close()
        assert steps(hf.history("r")) == ["initial", "good", "failed"]
        assert hf.get("r").status == "failed"
        assert (await flow.run())["good"].data["n"] == 1
        assert hf.get("r").status == "completed"

    with holdfast.open(file) as hf:
        asyncio.run(main(hf))


def locking(signal: Signal, lock: Database) -> Pipeline:
    """A stage whose output cannot be written until the lock is released."""

    async def good(ctx: StageContext) -> dict[str, Any]:
        lock.execute("BEGIN IMMEDIATE")
        return {"signal": signal, "n": 1}

    return Pipeline(name="p").with_stage("good", good, StageKind.WORK)
