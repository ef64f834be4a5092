"""Projects as wholes: limits of restores, lists and pages, deletion at any moment, and what other lists leave out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from loop_fixtures import Clock, good, refused

import holdfast
from holdfast import Holdfast, Retention
from holdfast.agent_loops.agents import AgentHeartbeats
from holdfast.loops import LoopEngine
from patience import until

pytest_plugins = ["postgres_fixtures"]

HOUR = 3600.0


@pytest.fixture
def looping(engine: LoopEngine) -> LoopEngine:
    """A project that is restored by configuration."""
    engine.save_loop_snapshot("p", {"loop_count": 1})
    engine.configure("p", loop_autoresume=True)
    return engine


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    return str(request.getfixturevalue("url"))


def stall(engine: LoopEngine, clock: Clock) -> dict[str, Any]:
    """Let an agent stall; return the reaction."""
    engine.log_agent_start("p", "writer", timeout=1)
    clock.forward(2)
    (stalled,) = good(engine.check_timeouts())["stalled"]
    result = stalled["result"]
    assert isinstance(result, dict)
    return result


# Restores by configuration


def test_restores_are_counted_within_an_hour(looping: LoopEngine, clock: Clock) -> None:
    """Three at once, then one as each of them is an hour ago: the window slides."""
    start = clock.now
    for minute in (0, 20, 40):
        clock.now = start + minute * 60
        assert stall(looping, clock)["status"] == "restored"
    clock.now = start + HOUR + 10
    assert stall(looping, clock)["status"] == "restored", "the first is an hour ago"
    clock.now = start + HOUR + 19 * 60
    asked = stall(looping, clock)
    assert (asked["status"], asked["auto_restored"]) == ("question", False)
    assert "restored 3 times within an hour" in asked["reason"]
    clock.now = start + 100 * HOUR
    assert stall(looping, clock)["question_id"] == asked["question_id"], "only a person continues"


@pytest.mark.parametrize("by", ["answer", "restore"])
def test_person_who_decides_starts_the_count_again(looping: LoopEngine, clock: Clock, by: str) -> None:
    for _ in range(3):
        assert stall(looping, clock)["status"] == "restored"
    question = stall(looping, clock)["question_id"]
    if by == "answer":
        good(looping.answer_question(question, "resume"))
    else:
        assert looping.restore_last_snapshot("p")["question_id"] == question
    for _ in range(3):
        assert stall(looping, clock)["status"] == "restored"
    assert stall(looping, clock)["status"] == "question"


def test_number_of_restores_is_configured(looping: LoopEngine, clock: Clock) -> None:
    looping.configure("p", max_restores=0)
    assert stall(looping, clock)["status"] == "question"
    looping.restore_last_snapshot("p")
    looping.configure("p", max_restores=5)
    found = [stall(looping, clock)["status"] for _ in range(6)]
    assert found == ["restored"] * 5 + ["question"]
    looping.configure("p", max_restores=None)
    assert looping.get_config("p")["config"]["max_restores"] == 3


def test_restores_by_hand_are_not_counted(looping: LoopEngine, clock: Clock) -> None:
    for _ in range(10):
        good(looping.restore_last_snapshot("p"))
    assert stall(looping, clock)["status"] == "restored"


def test_concurrent_crashes_are_restored_at_most_three_times(hf: Holdfast, looping: LoopEngine) -> None:
    barrier, found = threading.Barrier(8), []

    def crash() -> None:
        mine = LoopEngine(hf, check_every=None)
        barrier.wait(60)
        found.append(mine.auto_restore_if_configured("p", "crash")["status"])

    threads = [threading.Thread(target=crash) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.count("question") >= 5
    assert len(hf.history("loop/p").timelines()) <= 4
    assert len(hf.inbox()) == 1


@pytest.mark.parametrize("autoresume", [True, False])
def test_monitor_reports_a_project_once(
    hf: Holdfast, looping: LoopEngine, clock: Clock, autoresume: bool
) -> None:
    """However many of its agents have stalled: one restore, or one question, one alert."""
    looping.configure("p", loop_autoresume=autoresume)
    for number in range(7):
        looping.log_agent_start("p", f"agent {number}", timeout=60)
    looping.log_agent_start("q", "agent", timeout=60)
    clock.forward(61)
    monitor = hf.monitor()
    action = "recover" if autoresume else "stall"
    expected = {("loop/p", action), ("loop/q", "stall")}
    for found in (monitor.plan(), monitor.look()):
        assert {(each.run, each.action) for each in found} == expected
        assert len(found) == 2
    assert monitor.look() == []
    assert len(hf.history("loop/p").timelines()) == 1 + autoresume


# Lists and pages


def test_projects_are_listed_in_pages(engine: LoopEngine) -> None:
    names = [f"p/{number}" for number in range(23)]
    for number, name in enumerate(names):
        # Some have a state, some a configuration, some both, in either order.
        if number % 3 != 0:
            engine.set_project_state(name, {"loop_count": number})
        if number % 3 != 1:
            engine.configure(name, every=60)
    newest = engine.get_projects()
    assert (sorted(newest["projects"]), newest["next"]) == (sorted(names), None)
    for limit in (1, 7, 23, 24, 1000):
        found: list[str] = []
        after = None
        while True:
            page = good(engine.get_projects(limit=limit, after=after))
            overview = good(engine.get_overview(limit=limit, after=after))
            assert [each["project_id"] for each in overview["projects"]] == page["projects"]
            assert len(page["projects"]) <= limit
            found += page["projects"]
            after = page["next"]
            if after is None:
                break
        assert found == newest["projects"]
    for wrong in (0, -1, True, "5", 1.5):
        assert refused(engine.get_projects(limit=wrong), "invalid")  # type: ignore[arg-type]
        assert refused(engine.get_overview(limit=wrong), "invalid")  # type: ignore[arg-type]
    assert refused(engine.get_projects(after="unknown"), "not_found")
    assert refused(engine.get_projects(after=""), "invalid_reference")


def test_page_continues_where_a_project_was_added_or_deleted(engine: LoopEngine) -> None:
    for number in range(6):
        engine.set_project_state(f"p{number}", {})
    page = engine.get_projects(limit=2)
    assert page["projects"] == ["p5", "p4"]
    engine.set_project_state("p6", {})
    engine.delete_project("p3")
    assert engine.get_projects(limit=2, after=page["next"])["projects"] == ["p2", "p1"]


def test_overview_shows_what_each_project_does(hf: Holdfast, engine: LoopEngine, clock: Clock) -> None:
    engine.save_loop_snapshot("idle", {"loop_count": 4})
    engine.set_project_state("running", {"loop_count": 2})
    engine.log_agent_start("running", "writer", timeout=60)
    engine.set_project_state("waiting", {"loop_count": "odd"})
    question = engine.auto_restore_if_configured("waiting", "crash")["question_id"]
    engine.log_agent_start("waiting", "writer", timeout=60)
    engine.configure("bare", loop_autoresume=True)
    found = {each["project_id"]: each for each in engine.get_overview()["projects"]}
    assert {name: each["status"] for name, each in found.items()} == {
        "bare": "idle",
        "waiting": "waiting",
        "running": "running",
        "idle": "idle",
    }
    assert (found["idle"]["loop"], found["idle"]["last_good"], found["idle"]["run"]) == (4, 1, "loop/idle")
    assert found["running"]["agents"]["writer"]["deadline"] == "2023-11-14T22:14:20+00:00"
    assert (found["waiting"]["question_id"], found["waiting"]["loop"]) == (question, 0)
    assert (found["bare"]["version"], found["bare"]["loop_autoresume"]) == (None, True)
    assert engine.get_project("waiting")["question"]["question_id"] == question
    assert refused(engine.get_project("none"), "not_found")


def test_overview_that_is_read_again_reads_no_state(
    hf: Holdfast, engine: LoopEngine, states_read: list[str]
) -> None:
    """The page asks for it whenever something happens, and states may be long."""
    for project in ("p", "q"):
        engine.save_loop_snapshot(project, {"loop_count": 1})
        engine.configure(project, max_restores=1)
    first = good(engine.get_overview())["projects"]
    states_read.clear()
    assert good(engine.get_overview())["projects"] == first
    assert set(states_read) == {"loop/p/control", "loop/q/control"}
    engine.save_loop_snapshot("p")
    assert [each["last_good"] for each in good(engine.get_overview())["projects"]] == [1, 2]


def test_long_id_is_known_after_a_restore(hf: Holdfast, engine: LoopEngine) -> None:
    """Its runs have a shortened name, and no control record has the id."""
    project = "my project " + "水" * 500
    engine.save_loop_snapshot(project, {"loop_count": 1})
    good(engine.restore_last_snapshot(project))
    hf.history(hf.runs(prefix="loop/")[0].id).commit({"written": "past the engine"})
    assert engine.get_projects() == {"status": "ok", "projects": [project], "next": None}
    assert [each["project_id"] for each in engine.get_overview()["projects"]] == [project]
    assert engine.get_projects(limit=1, after=project)["projects"] == []


def test_unreadable_project_does_not_hide_the_others(hf: Holdfast, engine: LoopEngine) -> None:
    long = "x" * 500
    for project in ("p", long, "q"):
        engine.set_project_state(project, {"loop_count": 1})
        engine.log_agent_start(project, "writer")
    for run in hf.runs(prefix="loop/"):
        if run.id.startswith("loop/xx") and run.id.endswith("/control"):
            hf.history(run.id).commit("no control record")
    assert len(good(engine.get_projects())["projects"]) == 3
    found = good(engine.get_overview())["projects"]
    assert [each.get("loop") for each in found if each["project_id"] in ("p", "q")] == [1, 1]
    assert [each["code"] for each in found if each["project_id"] not in ("p", "q")] == ["corrupt_store"]


def test_runs_of_the_engine_are_left_out_of_lists(hf: Holdfast, engine: LoopEngine, clock: Clock) -> None:
    """Only the state is listed; the others are found by their prefix."""
    hf.history("mine").commit({})
    engine.set_project_state("p", {})
    engine.log_agent_start("p", "writer", timeout=60)
    clock.forward(30)
    engine.agent_progress("p", "writer")
    engine.configure("bare", every=60)
    assert [run.id for run in hf.runs()] == ["loop/p", "mine"]
    assert [run.id for run in hf.iter_runs()] == ["loop/p", "mine"]
    assert [run.id for run in hf.runs(limit=1)] == ["loop/p"]
    assert [run.id for run in hf.runs(limit=1, after="loop/p")] == ["mine"]
    for status in ("running", "manual", "suspended", "paused"):
        assert not [run.id for run in hf.runs(status=status) if run.id.endswith(("/control", "/beats"))]
    assert [run.id for run in hf.runs(prefix="loop/")] == [
        "loop/bare/control",
        "loop/p/beats",
        "loop/p/control",
        "loop/p",
    ]
    assert hf.get("loop/p").id == "loop/p"


def test_audit_is_bounded_by_retention(hf: Holdfast, engine: LoopEngine) -> None:
    engine.configure("p", audit_retention=Retention(last=20))
    for _ in range(200):
        engine.log_agent_start("p", "writer")
        engine.log_agent_complete("p", "writer", "failed")
    assert len(hf.history("loop/p/control").versions(limit=1000)) < 20 + 64 + 5
    assert engine.get_audit("p", limit=5)["audit"][-1]["action"] == "agent.ended"
    assert engine.get_config("p")["config"]["audit_retention"] == {"last": 20}
    assert engine.get_projects()["projects"] == ["p"]


def test_audit_counts_the_entries_that_it_returns(looping: LoopEngine, clock: Clock) -> None:
    """Restores are timelines of the state, and the rest is in the control record: both are counted."""
    for _ in range(3):
        stall(looping, clock)
    assert looping.get_audit("p")["count"] == 1 + 3 * 3
    for limit in (1, 4, 10, 11):
        found = looping.get_audit("p", limit=limit)
        assert found["count"] == len(found["audit"]) == min(limit, 10)
        assert found["audit"] == looping.get_audit("p")["audit"][-limit:]


# Deletion


def test_deleted_project_leaves_nothing(hf: Holdfast, engine: LoopEngine, clock: Clock) -> None:
    engine.save_loop_snapshot("p", {"memory": "x" * 100_000})
    engine.save_loop_snapshot("other", {"loop_count": 9})
    engine.log_agent_start("p", "writer", timeout=60)
    clock.forward(30)
    engine.agent_progress("p", "writer")
    engine.auto_restore_if_configured("p", "crash")
    engine.log_agent_complete("p", "writer", "failed")
    assert engine.delete_project("p") == {"status": "deleted", "project_id": "p"}
    assert [run.id for run in hf.runs(prefix="loop/")] == ["loop/other"]
    assert (hf.inbox(), engine.get_projects()["projects"]) == ([], ["other"])
    for reply in (
        engine.delete_project("p"),
        engine.get_project_state("p"),
        engine.get_audit("p"),
        engine.get_config("p"),
        engine.get_agents("p"),
        engine.get_questions("p"),
        engine.restore_last_snapshot("p"),
        engine.log_agent_complete("p", "writer"),
    ):
        assert "no project 'p'" in refused(reply, "not_found")
    assert hf.verify().ok


def test_deleted_project_can_be_made_again(engine: LoopEngine, clock: Clock) -> None:
    for _ in range(3):
        engine.set_project_state("p", {"loop_count": 1, "loop_autoresume": True})
        engine.save_loop_snapshot("p")
        assert stall(engine, clock)["status"] == "restored"
        assert good(engine.delete_project("p"))["status"] == "deleted"
        assert refused(engine.get_project_state("p"), "not_found")


def test_project_with_running_agents_is_deleted_by_force_only(
    hf: Holdfast, looping: LoopEngine, clock: Clock
) -> None:
    looping.log_agent_start("p", "writer", timeout=60)
    before = hf.stats().versions
    assert "has running agents: writer" in refused(looping.delete_project("p"), "already_running")
    for wrong in ("yes", 1, None):
        assert refused(looping.delete_project("p", force=wrong), "invalid")  # type: ignore[arg-type]
    assert hf.stats().versions == before
    good(looping.delete_project("p", force=True))
    assert refused(looping.agent_progress("p", "writer"), "not_found")
    assert refused(looping.reset_agent("p", "writer"), "not_found")
    assert refused(looping.log_agent_complete("p", "writer"), "not_found")
    assert refused(looping.log_agent_complete("p", "writer", token=1, state={}), "not_running")
    clock.forward(61)
    assert looping.check_timeouts()["stalled"] == []
    assert hf.runs(prefix="loop/") == []


def test_interrupted_deletion_is_repeated(
    hf: Holdfast, engine: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    engine.auto_restore_if_configured("p", "crash")
    real = Holdfast.delete

    def die(self: Holdfast, run_id: str, **how: Any) -> None:
        if run_id.endswith("/control"):
            raise SystemExit
        real(self, run_id, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Holdfast, "delete", die)
        with pytest.raises(SystemExit):
            engine.delete_project("p")
    assert engine.get_projects()["projects"] == ["p"], "it is listed, so that it can be deleted"
    good(engine.delete_project("p"))
    assert hf.runs(prefix="loop/") == []


def test_heartbeat_during_a_deletion_leaves_nothing(
    hf: Holdfast, looping: LoopEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat is written after the deletion, by an agent that ran before it."""
    looping.log_agent_start("p", "writer", timeout=60)
    clock.forward(30)
    record = AgentHeartbeats.record

    def late(self: AgentHeartbeats, *args: Any) -> bool:
        good(LoopEngine(hf, check_every=None).delete_project("p", force=True))
        return record(self, *args)

    monkeypatch.setattr(AgentHeartbeats, "record", late)
    assert refused(looping.agent_progress("p", "writer"), "not_found")
    assert hf.runs(prefix="loop/") == []


def test_deletion_while_agents_send_heartbeats(where: str) -> None:
    """However they meet, each call has an answer, and nothing of the project is left."""
    with holdfast.open(where, durability="fast") as hf:
        engine = LoopEngine(hf, check_every=None)
        for turn in range(8):
            engine.save_loop_snapshot("p", {"loop_count": turn})
            for name in "abc":
                engine.log_agent_start("p", name, timeout=0.001)
            codes: set[str] = set()
            sent = threading.Event()

            def beat(name: str, codes: set[str] = codes, sent: threading.Event = sent) -> None:
                mine = LoopEngine(hf, check_every=None)
                while (reply := mine.agent_progress("p", name))["status"] == "ok":
                    sent.set()
                codes.add(reply["code"])

            threads = [threading.Thread(target=beat, args=(name,)) for name in "abc"]
            for thread in threads:
                thread.start()
            assert sent.wait(60)
            good(engine.delete_project("p", force=True))
            for thread in threads:
                thread.join(60)
            assert codes <= {"not_running", "not_found"}
            assert hf.runs(prefix="loop/") == []


def test_project_is_deleted_while_a_checker_works(where: str) -> None:
    with holdfast.open(where, durability="fast") as hf:
        engine = LoopEngine(hf, check_every=None)
        with engine.checker(0.002) as checker:
            for turn in range(10):
                engine.save_loop_snapshot("p", {"loop_count": turn})
                engine.configure("p", loop_autoresume=turn % 2 == 0, every=0.001)
                engine.log_agent_start("p", "writer", timeout=0.005)
                reached = checker.checks + turn % 4
                until(lambda reached=reached: checker.checks >= reached)  # type: ignore[misc]
                good(engine.delete_project("p", force=True))
            assert checker.alive
        assert [run.id for run in hf.runs(prefix="loop/")] == []
        assert hf.inbox() == []
        assert hf.verify().ok
