"""Restoring: the stuck execution is fenced, the run goes on from its last good version, at most so often, and whoever
dies half-way is followed by another."""

from __future__ import annotations

import threading

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

from holdfast import LeaseLost, Watchdog, step, workflow
from holdfast.fleet.monitor import recovery
from holdfast.fleet.monitor.detectors import Finding
from holdfast.fleet.monitor.monitor import Monitor
from holdfast.fleet.monitor.unowned_runs import UnownedRuns
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import detail_of

stage = s.stage
pytest_plugins = ["postgres_fixtures"]
BACK = Watchdog(heartbeat_timeout=60, autoresume=True, max_recoveries=2)


def hung(stage: Stage, times: int, at: str = "hang") -> None:
    s.wait_until(lambda: control.begun.count(at) >= times)


def test_run_is_recovered_a_few_times_then_stalled(stage: Stage) -> None:
    control.hangs["hang"] = 3
    stage.begin(s.stuck, watchdog=BACK)
    for turn in range(2):
        hung(stage, turn + 1)
        (alert,) = stage.look(after=61)
        assert alert.action == "recover"
    hung(stage, 3)
    (alert,) = stage.look(after=61)
    assert alert.action == "stall"
    assert stage.frozen().details["restores"] == 2
    assert control.begun == ["first", "hang", "hang", "hang"]
    lines = stage.hf.get("run").history().timelines()
    assert [(line.number, line.parent, line.actor) for line in lines] == [
        (1, None, None),
        (2, 2, "monitor"),
        (3, 2, "monitor"),
    ]
    told = [event for event in stage.hf.get("run").events() if event.kind == "run.recovered"]
    assert [(event.data["restores"], event.data["symptom"], event.data["to"]) for event in told] == [
        (1, "silent", 2),
        (2, "silent", 2),
    ]


def test_recovered_run_completes(stage: Stage) -> None:
    control.hangs["hang"] = 1
    run = stage.begin(s.stuck, watchdog=BACK)
    hung(stage, 1)
    stage.look(after=61)
    s.wait_until(lambda: run.status == "completed")
    assert run.result == "hang is over"
    stage.join()
    assert [type(error) for error in stage.raised] == [LeaseLost]
    assert [version.step for version in run.history().ancestors()] == [None, "m_hang", "m_mark", None]


def test_fenced_execution_cannot_commit(stage: Stage) -> None:
    control.hangs["hang"] = 2
    run = stage.begin(s.stuck, watchdog=BACK)
    hung(stage, 1)
    first = stage.threads[0]
    stage.look(after=61)
    hung(stage, 2)
    head = run.head.number
    control.gates["hang"][0].set()
    first.join(s.PATIENCE)
    # It has come to its end: nothing of it is kept, and the one that took over goes on.
    assert [type(error) for error in stage.raised] == [LeaseLost]
    assert (run.head.number, run.status) == (head, "running")
    assert run.alive


def test_fenced_execution_of_another_engine_cannot_commit(stage: Stage) -> None:
    if stage.where == ":memory:":
        pytest.skip("one engine alone has it")
    with stage.open() as other:
        control.hangs["hang"] = 1
        run = stage.begin(s.stuck, watchdog=BACK, hf=other)
        hung(stage, 1)
        stage.seconds += 61
        other._engine.keeper.beat()
        assert [alert.action for alert in stage.look()] == ["recover"]
        s.wait_until(lambda: run.status == "completed")
        # The other engine finds out by itself, though its step hangs.
        assert other._engine.claimed("run")
        stage.seconds += 61
        other._engine.keeper.beat()
        assert not other._engine.claimed("run")
        stage.join()
    assert [type(error) for error in stage.raised] == [LeaseLost]


def test_heartbeat_of_an_earlier_execution_is_ignored(stage: Stage) -> None:
    if stage.where == ":memory:":
        pytest.skip("one engine alone has it")
    with stage.open() as other:
        control.hangs["hang"] = 2
        stage.hf.enqueue(s.stuck, run_id="run", watchdog=BACK)
        with other.worker(monitor=False):
            hung(stage, 1)
            stage.seconds += 61
            other._engine.keeper.beat()
            assert len(stage.look()) == 1
            # The same worker has it again, and has said nothing of it yet.
            hung(stage, 2)
            assert stage.look() == []
            control.let_go()


def test_looping_run_is_rolled_back_to_before_the_loop(stage: Stage) -> None:
    control.hangs["after"] = 1
    run = stage.begin(s.repeating, 5, watchdog=Watchdog(max_repeats=5, autoresume=True))
    hung(stage, 1, "after")
    (alert,) = stage.look()
    assert (alert.symptom, alert.action) == ("looping", "recover")
    s.wait_until(lambda: run.status == "completed")
    (line,) = run.history().timelines()[1:]
    assert line.parent == 3
    assert run.history().at(3).step == "m_same"


def test_run_over_budget_is_never_recovered(stage: Stage) -> None:
    control.hangs["after"] = 1
    stage.begin(s.counting, 5, watchdog=Watchdog(max_steps=3, autoresume=True))
    hung(stage, 1, "after")
    assert [alert.action for alert in stage.look()] == ["stall"]


def test_recovery_compensates_the_steps_that_it_rolls_back(stage: Stage) -> None:
    @workflow(name="r_orders", watchdog=Watchdog(max_repeats=3, autoresume=True))
    def orders() -> None:
        for _ in range(3):
            s.order("kelp")
        control.hang("after")

    control.hangs["after"] = 1
    run = stage.begin(orders)
    hung(stage, 1, "after")
    (alert,) = stage.look()
    assert alert.symptom == "looping"
    s.wait_until(lambda: stage.look() or run.status == "completed")
    assert control.undone == ["kelp", "kelp"]


@pytest.mark.parametrize("at", ["fenced", "rolled back"])
def test_recovery_of_a_dead_monitor_is_finished_by_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    control.hangs["hang"] = 1
    run = stage.begin(s.stuck, watchdog=BACK)
    hung(stage, 1)
    stage.look()
    with monkeypatch.context() as patch:
        # It does no more than this.
        patch.setattr(UnownedRuns, "resume_all", lambda _: [])
        if at == "fenced":
            patch.setattr(UnownedRuns, "finish", lambda *_: None)
        assert len(stage.look(after=61)) == 1
    assert run.status == "queued"
    assert len(run.history().timelines()) == (1 if at == "fenced" else 2)
    second = stage.hf.monitor(interval=1)
    stage.seconds += 60
    second.look()
    s.wait_until(lambda: run.status == "completed")
    assert run.result == "hang is over"
    assert [line.parent for line in run.history().timelines()] == [None, 2]
    assert stage.kinds().count("run.recovered") == 1


def test_rollback_that_another_process_finished_is_not_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker claims the run, and moves its head, between the monitor's fencing it and finishing the rollback."""
    control.hangs["hang"] = 1
    run = stage.hf.enqueue(s.stuck, run_id="run", watchdog=BACK)
    finish = UnownedRuns.finish

    def late(orphans: UnownedRuns, taken: RunRecord) -> None:
        stage.hf._runner.finish_rollback(taken)
        finish(orphans, taken)

    monkeypatch.setattr(UnownedRuns, "finish", late)
    with stage.hf.worker(monitor=False):
        hung(stage, 1)
        assert [alert.action for alert in stage.look(after=61)] == ["recover"]
        s.wait_until(lambda: run.status == "completed")
    assert [line.parent for line in run.history().timelines()] == [None, 2]
    assert stage.kinds().count("run.recovered") == 1


def test_two_monitors_at_once_recover_a_run_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    control.hangs["hang"] = 2
    run = stage.begin(s.stuck, watchdog=BACK)
    hung(stage, 1)
    monitors = [stage.hf.monitor(interval=1) for _ in range(4)]
    for monitor in monitors:
        # As if each held the lease.
        monkeypatch.setattr(monitor._leadership, "take", lambda *_: True)
    stage.seconds += 61
    stage.hf._engine.keeper.beat()
    barrier, found = threading.Barrier(4), []

    def look(monitor: Monitor) -> None:
        barrier.wait()
        found.extend(monitor.look())

    threads = [threading.Thread(target=look, args=(monitor,)) for monitor in monitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1
    hung(stage, 2)
    assert stage.kinds().count("run.recovered") == 1
    assert len(run.history().timelines()) == 2
    assert control.begun.count("hang") == 2


def test_watchdog_and_recovery_count_survive_recoveries_and_a_restart(stage: Stage) -> None:
    watch = Watchdog(heartbeat_timeout=60, autoresume=True, max_recoveries=4, idle_timeout=1000)
    control.hangs["hang"] = 5
    run = stage.begin(s.stuck, watchdog=watch)
    for turn in range(1, 4):
        hung(stage, turn)
        assert [alert.action for alert in stage.look(after=61)] == ["recover"]
        record = stage.hf._store.run("run")
        assert record is not None
        facts = detail_of(record)
        assert (facts.watchdog_policy, facts.restores) == (watch, turn)
    hung(stage, 4)
    if stage.where != ":memory:":
        with stage.open() as again:
            record = again._store.run("run")
            assert record is not None
            assert detail_of(record).watchdog_policy == watch
    assert [alert.action for alert in stage.look(after=61)] == ["recover"]
    hung(stage, 5)
    assert [alert.action for alert in stage.look(after=61)] == ["stall"]
    assert run.status == "stalled"


# Parts


def test_stalled_child_ends_with_its_timeline(stage: Stage) -> None:
    @workflow(name="r_frozen_part", watchdog=Watchdog(heartbeat_timeout=60))
    def part() -> str:
        return s.hang("hang")

    @workflow(name="r_around")
    def around() -> str:
        s.mark("around")
        return part()

    control.hangs["hang"] = 1
    run = stage.begin(around)
    hung(stage, 1)
    stage.look(after=61)
    (child,) = run.children
    assert stage.hf.get(child).status == "stalled"
    stage.join()
    s.wait_until(lambda: run.status == "suspended" and not stage.hf._engine.claimed("run"))
    assert stage.hf.preview("run", 1).cancelled == (child,)
    stage.hf.rollback("run", to=1, resume=False)
    assert stage.hf.get(child).status == "cancelled"
    assert stage.hf.inbox() == []


def test_stuck_child_is_recovered_and_its_parents_continue(stage: Stage) -> None:
    @workflow(name="r_part", watchdog=BACK)
    def part() -> str:
        return s.hang("hang")

    @workflow(name="r_whole")
    def whole() -> str:
        s.mark("whole")
        return f"whole: {part()}"

    control.hangs["hang"] = 1
    run = stage.begin(whole)
    hung(stage, 1)
    assert [(alert.run, alert.action) for alert in stage.look(after=61)] == [("run.r_part", "recover")]
    s.wait_until(lambda: stage.look() or run.status == "completed")
    assert run.result == "whole: hang is over"
    assert control.begun.count("whole") == 1


def test_parent_waits_for_a_stalled_child(stage: Stage) -> None:
    @workflow(name="r_frozen_part", watchdog=Watchdog(heartbeat_timeout=60))
    def part() -> str:
        return s.hang("hang")

    @workflow(name="r_frozen_whole")
    def whole() -> str:
        return f"whole: {part()}"

    control.hangs["hang"] = 1
    run = stage.begin(whole)
    hung(stage, 1)
    assert [alert.action for alert in stage.look(after=61)] == ["stall"]
    s.wait_until(lambda: run.status == "suspended")
    prompt = stage.frozen("run.r_frozen_part")
    stage.hf.answer(prompt.id, "resume")
    s.wait_until(lambda: run.status == "completed")
    assert run.result == "whole: hang is over"


def test_worker_frees_the_slot_of_a_hanging_step(stage: Stage) -> None:
    control.hangs["hang"] = 1
    run = stage.hf.enqueue(s.stuck, run_id="run", watchdog=BACK)
    worker = stage.hf.worker(concurrency=1, monitor=False).start()
    hung(stage, 1)
    stage.look(after=61)
    s.wait_until(lambda: run.status == "completed")
    worker.stop()
    assert worker.join(s.PATIENCE)
    assert control.begun == ["first", "hang", "hang"]


@step(name="r_undo_hangs", compensate=lambda: control.hang("undo"))
def hard_to_undo() -> None:
    control.begun.append("done")


def test_hanging_compensation_is_taken_over(stage: Stage) -> None:
    @workflow(name="r_hard", watchdog=BACK)
    def hard() -> None:
        hard_to_undo()

    stage.hf.run(hard, run_id="run")
    control.hangs["undo"] = 1
    raised: list[BaseException] = []

    def back() -> None:
        try:
            stage.hf.rollback("run", to=1)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=back)
    stage.threads.append(thread)
    thread.start()
    hung(stage, 1, "undo")
    run = stage.hf.get("run")
    assert [alert.action for alert in stage.look(after=61)] == ["recover"]
    s.wait_until(lambda: stage.look() or run.status == "completed")
    assert control.begun == ["done", "undo", "undo", "done"]
    stage.join()
    assert isinstance(raised[0], LeaseLost)


def test_recovery_leaves_a_run_that_has_continued(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(s.stuck, watchdog=BACK)
    hung(stage, 1)
    run = stage.hf._store.run("run")
    assert run is not None
    stage.join()
    finding = Finding(symptom="silent", why="it was", since=0, good=2)
    for act in (recovery.recover, recovery.stall, recovery.hand_over, recovery.report):
        assert act(stage.hf._engine, run, finding) is None
    assert stage.hf.get("run").status == "completed"


def test_monitor_stops_when_its_engine_closes(stage: Stage) -> None:
    monitor = stage.hf.monitor(interval=0.01).start()
    stage.hf.close()
    assert monitor.join(s.PATIENCE)
    stage.hf = stage.open()
