"""Agents: start, heartbeats, completion; a stalled agent is found once, by any process."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
from loop_fixtures import Clock, good, refused, state_of

import holdfast
from holdfast import Holdfast
from holdfast.agent_loops.agents import AgentHeartbeats, Beat, deadline
from holdfast.agent_loops.control import Agent, ControlLog
from holdfast.agent_loops.project import Project
from holdfast.agent_loops.questions import Questions
from holdfast.agent_loops.states import States
from holdfast.loops import LoopEngine


@pytest.fixture
def project(engine: LoopEngine) -> LoopEngine:
    """A project with a snapshot, and a state after it."""
    engine.configure("p", loop_autoresume=True)
    engine.save_loop_snapshot("p", {"loop_count": 1, "memory": "good"})
    engine.set_project_state("p", {"loop_count": 2, "memory": "half done"})
    return engine


def test_completed_agent_saves_a_snapshot(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"loop_count": 4})
    started = engine.log_agent_start("p", "planner", timeout=60, actor="Ada")
    assert started == {
        "status": "started",
        "project_id": "p",
        "agent": "planner",
        "token": 1,
        "timestamp": "2023-11-14T22:13:20+00:00",
        "deadline": "2023-11-14T22:14:20+00:00",
        "unfinished": None,
    }
    assert list(engine.get_agents("p")["running"]) == ["planner"]
    done = engine.log_agent_complete("p", "planner", "completed")
    assert (done["status"], done["agent_status"], done["snapshot"]["loop"]) == ("logged", "completed", 4)
    found = engine.get_snapshot_history("p")["snapshots"]
    assert [(each["loop"], each["actor"], each["note"]) for each in found] == [
        (4, "planner", "agent planner completed")
    ]
    assert engine.get_agents("p")["running"] == {}


def test_failed_agent_saves_no_snapshot(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"loop_count": 4})
    engine.log_agent_start("p", "planner")
    done = engine.log_agent_complete("p", "planner", "failed")
    assert (done["agent_status"], done["snapshot"]) == ("failed", None)
    assert engine.get_snapshot_history("p")["snapshot_count"] == 0
    assert [entry["action"] for entry in engine.get_audit("p")["audit"]] == ["agent.started", "agent.ended"]


def test_completion_accepts_a_state_and_needs_no_start(engine: LoopEngine) -> None:
    done = engine.log_agent_complete("p", "planner", state={"loop_count": 5})
    assert done["snapshot"]["loop"] == 5
    assert "no project 'q'" in refused(engine.log_agent_complete("q", "planner"), "not_found")
    engine.log_agent_start("q", "planner")
    empty = engine.log_agent_complete("q", "planner")
    assert (empty["status"], empty["snapshot"]["code"]) == ("logged", "not_found"), "it has no state"


def test_stalled_agent_is_found_and_the_last_snapshot_restored(project: LoopEngine, clock: Clock) -> None:
    project.log_agent_start("p", "planner", timeout=60)
    clock.forward(60)
    assert project.check_timeouts()["stalled"] == []
    clock.forward(0.5)
    found = project.check_timeouts()
    (stalled,) = found["stalled"]
    assert (found["status"], found["checked"], found["errors"]) == ("ok", 1, [])
    assert (stalled["project_id"], stalled["agent"], stalled["timeout"]) == ("p", "planner", 60.0)
    assert (stalled["result"]["status"], stalled["result"]["loop"]) == ("restored", 1)
    assert state_of(project) == {"loop_count": 1, "memory": "good"}
    again = project.check_timeouts()
    assert (again["stalled"], again["finished"]) == ([], []), "and not a second time"
    audit = project.get_audit("p")["audit"]
    assert [entry["action"] for entry in audit] == [
        "configured",
        "agent.started",
        "agent.stalled",
        "restored",
    ]
    assert "'planner' after 60 s" in audit[-1]["reason"]


@pytest.mark.parametrize("autoresume", [True, False])
def test_agent_that_a_caller_found_stalled_is_ended_with_the_decision(
    hf: Holdfast, project: LoopEngine, clock: Clock, autoresume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies in between would leave an ended agent, with neither a restore nor a question."""
    project.configure("p", loop_autoresume=autoresume)
    for name in ("planner", "writer"):
        project.log_agent_start("p", name)
    before = hf.history("loop/p/control").head.number
    with monkeypatch.context() as patch:
        patch.setattr(Questions, "follow", lambda *_: {"status": "killed"})
        project.auto_restore_if_configured("p", "no answer", agent="planner", actor="watch")
    made = hf.history("loop/p/control").head
    assert (made.number, made.step, made.actor, made.note) == (
        before + 1,
        "agent.stalled",
        "watch",
        "no answer",
    )
    agents = project.get_agents("p")
    assert list(agents["running"]) == ["writer"]
    assert agents["ended"]["planner"]["how"] == "stalled"
    if autoresume:
        clock.forward(61)
        assert [each["status"] for each in project.check_timeouts("p")["finished"]] == ["restored"]
    else:
        (question,) = hf.inbox()
        assert (question.details["agents"], question.details["symptom"]) == (["planner"], "silent")
    for agent in ("planner", "nobody"):
        refused(project.auto_restore_if_configured("p", agent=agent), "not_running")
    refused(project.auto_restore_if_configured("p", agent=""), "invalid")


def test_stalled_agent_cannot_complete(project: LoopEngine, clock: Clock) -> None:
    token = project.log_agent_start("p", "planner", timeout=60)["token"]
    clock.forward(61)
    project.check_timeouts()
    count = project.get_snapshot_history("p")["snapshot_count"]
    for reply in (
        project.log_agent_complete("p", "planner", state={"from": "another life"}),
        project.log_agent_complete("p", "planner", token=token),
        project.agent_progress("p", "planner"),
    ):
        assert "found stalled at 2023" in refused(reply, "not_running")
    assert project.get_snapshot_history("p")["snapshot_count"] == count
    assert project.get_agents("p")["ended"]["planner"]["how"] == "stalled"
    good(project.log_agent_start("p", "planner"))
    good(project.log_agent_complete("p", "planner"))


@pytest.mark.parametrize("autoresume", [True, False])
def test_completing_agent_is_not_ended_while_its_snapshot_is_saved(
    project: LoopEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch, autoresume: bool
) -> None:
    """Otherwise the last good snapshot would be from an agent that was refused."""
    project.configure("p", loop_autoresume=autoresume)
    project.log_agent_start("p", "planner", timeout=60)
    clock.forward(60)
    save = States.save
    replies: list[dict[str, Any]] = []

    def slow(*args: Any, **how: Any) -> Any:
        clock.forward(5)
        replies.append(project.check_timeouts("p"))
        replies.append(project.reset_agent("p", "planner"))
        return save(*args, **how)

    monkeypatch.setattr(States, "save", slow)
    done = good(project.log_agent_complete("p", "planner", state={"loop_count": 3}))
    assert done["snapshot"]["status"] == "saved"
    assert replies[0]["stalled"] == []
    assert "is completing" in refused(replies[1], "already_running")
    assert project.get_agents("p")["running"] == project.get_agents("p")["ended"] == {}
    assert project.check_timeouts()["stalled"] == []
    assert [entry["action"] for entry in project.get_audit("p")["audit"]].count("agent.completed") == 1


def test_agent_that_stalls_just_before_completion_saves_nothing(
    project: LoopEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process finds the agent stalled while it completes."""
    project.log_agent_start("p", "planner", timeout=60)
    clock.forward(61)
    change = ControlLog.change
    count = project.get_snapshot_history("p")["snapshot_count"]

    def late(book: ControlLog, decide: Any) -> Any:
        monkeypatch.setattr(ControlLog, "change", change)
        assert len(project.check_timeouts()["stalled"]) == 1
        return change(book, decide)

    monkeypatch.setattr(ControlLog, "change", late)
    refused(project.log_agent_complete("p", "planner", state={"from": "another life"}), "not_running")
    assert project.get_snapshot_history("p")["snapshot_count"] == count
    assert state_of(project) == {"loop_count": 1, "memory": "good"}


def test_agent_killed_while_completing_is_found_stalled_later(
    project: LoopEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    project.log_agent_start("p", "planner", timeout=10)
    with monkeypatch.context() as patch:
        patch.setattr(States, "save", dies)
        with pytest.raises(KeyboardInterrupt):
            project.log_agent_complete("p", "planner")
    clock.forward(59)
    assert project.check_timeouts()["stalled"] == []
    clock.forward(2)
    assert len(project.check_timeouts()["stalled"]) == 1


def test_agent_started_again_during_completion_keeps_running(
    project: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.log_agent_start("p", "planner")
    save = States.save
    tokens: list[int] = []

    def slow(*args: Any, **how: Any) -> Any:
        tokens.append(project.log_agent_start("p", "planner")["token"])
        return save(*args, **how)

    monkeypatch.setattr(States, "save", slow)
    good(project.log_agent_complete("p", "planner"))
    assert project.get_agents("p")["running"]["planner"]["token"] == tokens[0]


def test_number_of_remembered_ended_agents_is_bounded(engine: LoopEngine, clock: Clock) -> None:
    engine.set_project_state("p", {})
    for number in range(130):
        engine.log_agent_start("p", f"agent-{number}", timeout=60)
        clock.forward(10)
        engine.agent_progress("p", f"agent-{number}")
        engine.reset_agent("p", f"agent-{number}")
    ended = engine.get_agents("p")["ended"]
    assert list(ended)[-1] == "agent-129"
    assert len(ended) == 100
    assert len(AgentHeartbeats(engine._hf._engine, "p").read()) == 1
    # The last ones are still refused.
    refused(engine.log_agent_complete("p", "agent-129"), "not_running")


def test_heartbeats_keep_a_long_agent_from_stalling(project: LoopEngine, clock: Clock) -> None:
    project.log_agent_start("p", "planner", timeout=60)
    for _ in range(10):
        clock.forward(50)
        assert good(project.agent_progress("p", "planner"))["noted"] is True
        assert project.check_timeouts()["stalled"] == []
    clock.forward(61)
    assert len(project.check_timeouts()["stalled"]) == 1
    assert refused(project.agent_progress("p", "never started"), "not_running")


def test_check_before_a_deadline_reads_the_control_record_only(
    hf: Holdfast, project: LoopEngine, clock: Clock, states_read: list[str]
) -> None:
    """Checkers look at all running projects every few seconds."""
    project.log_agent_start("p", "planner", timeout=60)
    clock.forward(40)
    project.agent_progress("p", "planner")
    monitor = hf.monitor()
    assert monitor.look() == [], "the first check of a store also fills the index of questions"
    states_read.clear()
    assert monitor.look() == []
    assert states_read == ["loop/p/control"]
    clock.forward(40)
    states_read.clear()
    assert monitor.look() == [], "its heartbeat was in time"
    assert states_read == ["loop/p/control", "loop/p/beats"]
    clock.forward(40)
    assert [alert.run for alert in monitor.look()] == ["loop/p"]


def test_heartbeats_take_little_space_and_are_not_in_the_audit(
    hf: Holdfast, project: LoopEngine, clock: Clock
) -> None:
    project.log_agent_start("p", "planner", timeout=100)
    before = project.get_audit("p")["count"]
    noted = 0
    for _ in range(1000):
        clock.forward(3)
        noted += good(project.agent_progress("p", "planner"))["noted"]
    assert 240 <= noted <= 260, "at most one in ten seconds is written"
    assert len(hf.history("loop/p/beats").versions(limit=1000)) < 80
    assert project.get_audit("p")["count"] == before
    assert hf.verify()


def test_heartbeat_of_an_earlier_start_does_not_extend_a_later_one(project: LoopEngine, clock: Clock) -> None:
    project.log_agent_start("p", "planner", timeout=1000)
    clock.forward(900)
    project.agent_progress("p", "planner")
    first = project.log_agent_start("p", "planner", timeout=10)
    assert first["unfinished"] == {"token": 1, "started": "2023-11-14T22:13:20+00:00"}
    clock.forward(11)
    assert [stalled["token"] for stalled in project.check_timeouts()["stalled"]] == [first["token"]]


def test_deadline_ignores_a_heartbeat_of_another_start() -> None:
    agent = Agent(token=2, started=1_000_000, timeout=10)
    assert deadline(agent, Beat(token=1, at=5_000_000)) == 11_000_000 == deadline(agent, None)
    assert deadline(agent, Beat(token=2, at=5_000_000)) == 15_000_000


def test_start_replaces_an_earlier_start_of_the_agent(project: LoopEngine) -> None:
    one = project.log_agent_start("p", "planner")["token"]
    two = project.log_agent_start("p", "planner")["token"]
    assert "token 1" in refused(project.log_agent_complete("p", "planner", token=one), "not_running")
    assert refused(project.agent_progress("p", "planner", token=one), "not_running")
    good(project.log_agent_complete("p", "planner", token=two))


def test_timeouts_apply_by_call_agent_project_and_engine(hf: Holdfast, clock: Clock) -> None:
    engine = LoopEngine(hf, timeout=40, check_every=None)
    engine.configure("p", timeout=30, timeouts={"slow": 20, "endless": math.inf})
    for project, agent, timeout in (
        ("p", "a", 10), ("p", "slow", None), ("p", "b", None), ("q", "c", None), ("p", "endless", None),
    ):  # fmt: skip
        good(engine.log_agent_start(project, agent, timeout=timeout))
    order = []
    for _ in range(50):
        clock.forward(1)
        order += [
            (round(clock.now - 1_700_000_000), each["agent"]) for each in engine.check_timeouts()["stalled"]
        ]
    assert order == [(11, "a"), (21, "slow"), (31, "b"), (41, "c")]
    clock.forward(1e8)
    assert engine.check_timeouts()["stalled"] == []
    engine.configure("p", timeouts={"slow": None})
    assert engine.get_config("p")["config"]["timeouts"] == {"endless": "never"}


def test_reset_ends_an_agent_and_leaves_the_state(project: LoopEngine, clock: Clock) -> None:
    project.log_agent_start("p", "planner", timeout=60)
    assert project.reset_agent("p", "planner", reason="hopeless", actor="Ada")["status"] == "reset"
    assert "reset by Ada" in refused(project.log_agent_complete("p", "planner"), "not_running")
    assert refused(project.reset_agent("p", "planner"), "not_running")
    clock.forward(61)
    assert project.check_timeouts()["stalled"] == []
    assert state_of(project)["memory"] == "half done", "the state stays"
    entry = project.get_audit("p")["audit"][-1]
    assert (entry["action"], entry["actor"], entry["reason"]) == ("agent.reset", "Ada", "hopeless")


def test_concurrent_checkers_restore_once_per_timeout(
    hf: Holdfast, project: LoopEngine, clock: Clock
) -> None:
    for agent in ("one", "two"):
        project.log_agent_start("p", agent, timeout=60)
    clock.forward(61)
    ready, found = threading.Barrier(8), []

    def check() -> None:
        engine = LoopEngine(hf, check_every=None)
        ready.wait(30)
        found.append(engine.check_timeouts())

    threads = [threading.Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(len(each["stalled"]) for each in found) == [0] * 7 + [2]
    assert len(hf.history("loop/p").timelines()) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_task_of_a_dead_checker_is_finished_once(
    hf: Holdfast, project: LoopEngine, clock: Clock, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker dies after it has decided, before the restore or just after it."""
    restore = Project.restore

    def die(self: Project, *args: Any, **kwargs: Any) -> Any:
        if moment == "after":
            restore(self, *args, **kwargs)
        raise SystemExit

    project.log_agent_start("p", "planner", timeout=60)
    clock.forward(61)
    with monkeypatch.context() as patch:
        patch.setattr(Project, "restore", die)
        with pytest.raises(SystemExit):
            project.check_timeouts()
    other = LoopEngine(hf, check_every=None)
    assert other.check_timeouts()["finished"] == [], "the process may still be executing it"
    lines = len(hf.history("loop/p").timelines())
    assert lines == (1 if moment == "before" else 2)
    if moment == "after":
        good(other.update_project_state("p", {"memory": "continued"}))
    clock.forward(61)
    (finished,) = other.check_timeouts()["finished"]
    assert (finished["status"], finished["version"]) == ("restored", 1)
    assert len(hf.history("loop/p").timelines()) == 2, "one restore for one timeout"
    assert state_of(other)["memory"] == ("good" if moment == "before" else "continued")
    clock.forward(1000)
    assert other.check_timeouts()["finished"] == []


def test_restore_made_by_another_process_is_not_repeated(
    hf: Holdfast, project: LoopEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is suspended between reading the head and the restore, and resumes after another took over."""
    begin, other = Project.start_timeline, LoopEngine(hf, check_every=None)
    slept: list[Any] = []

    def sleep(self: Project, *args: Any, **kwargs: Any) -> Any:
        if not slept:
            slept.append(True)
            clock.forward(61)
            slept.append(other.check_timeouts()["finished"])
            good(other.update_project_state("p", {"memory": "continued"}))
        return begin(self, *args, **kwargs)

    monkeypatch.setattr(Project, "start_timeline", sleep)
    reply = project.auto_restore_if_configured("p", "crash")
    assert [each["status"] for each in slept[1]] == ["restored"]
    assert (reply["status"], reply["version"], reply["by_another"]) == ("restored", 1, True)
    assert (len(hf.history("loop/p").timelines()), state_of(project)["memory"]) == (2, "continued")


def test_write_during_a_restore_is_not_lost(
    hf: Holdfast, project: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, other = Project.start_timeline, LoopEngine(hf, check_every=None)
    written: list[Any] = []

    def intrude(self: Project, *args: Any, **kwargs: Any) -> Any:
        if not written:
            written.append(other.update_project_state("p", {"late": 1}))
        return begin(self, *args, **kwargs)

    monkeypatch.setattr(Project, "start_timeline", intrude)
    assert project.restore_last_snapshot("p")["kept"] == ["late"]
    assert state_of(project) == {"loop_count": 1, "memory": "good", "late": 1}


def test_agents_survive_a_restart(file: Path, clock: Clock) -> None:
    with holdfast.open(file, clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.configure("p", loop_autoresume=True)
        engine.save_loop_snapshot("p", {"loop_count": 1})
        engine.log_agent_start("p", "planner", timeout=60)
        clock.forward(50)
        engine.agent_progress("p", "planner")
    with holdfast.open(file, clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        clock.forward(50)
        assert engine.check_timeouts()["stalled"] == []
        clock.forward(11)
        assert [each["result"]["status"] for each in engine.check_timeouts()["stalled"]] == ["restored"]


def test_project_that_cannot_be_read_does_not_hide_the_others(
    hf: Holdfast, project: LoopEngine, clock: Clock
) -> None:
    project.log_agent_start("broken", "planner", timeout=60)
    project.log_agent_start("p", "planner", timeout=60)
    hf.history("loop/broken/control").commit("no control record", status="running")
    clock.forward(61)
    found = project.check_timeouts()
    assert [each["project_id"] for each in found["stalled"]] == ["p"]
    assert [(each["project"], each["code"]) for each in found["errors"]] == [("broken", "corrupt_store")]
