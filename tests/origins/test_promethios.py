"""The Snapshot-Based Loop Resume Engine of Promethios, claim by claim, with `holdfast.loops`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from web_server import TOKENS, Served, serving

import holdfast
from database import Database
from holdfast import Holdfast, QuestionPolicy, Retention
from holdfast.loops import LoopEngine
from holdfast.web.operation import Role
from patience import until

pytest_plugins = ["postgres_fixtures"]

P = "my_project_123"
CRASHES = ("timeout", "crash", "freeze", "operator intervention")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "loops.db"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, file: Path, clock: Clock) -> Iterator[Holdfast]:
    where = ":memory:" if request.param == "memory" else file
    if request.param == "postgres":
        where = request.getfixturevalue("url")
    with holdfast.open(where, durability="fast", clock=clock, redact=["*api_key*"]) as opened:
        yield opened


@pytest.fixture
def engine(hf: Holdfast) -> LoopEngine:
    return LoopEngine(hf, check_every=None)


@pytest.fixture
def project(engine: LoopEngine) -> LoopEngine:
    """A project that was restorable at loop 1, and is half way through loop 2."""
    engine.save_loop_snapshot(P, {"loop_count": 1, "memory": ["goal"], "completed_steps": ["planner"]})
    engine.set_project_state(P, {"loop_count": 2, "memory": ["goal", "odd"], "scratch": "half done"})
    return engine


@pytest.fixture(params=[False, True], ids=["post", "legacy"])
def served(request: pytest.FixtureRequest, hf: Holdfast) -> Iterator[Served]:
    with serving(hf, legacy_get=request.param) as found:
        yield found


@pytest.fixture
def legacy(hf: Holdfast) -> Iterator[Served]:
    with serving(hf, legacy_get=True) as found:
        yield found


def state_of(engine: LoopEngine, project_id: str = P) -> Any:
    return engine.get_project_state(project_id)["state"]


def timelines(hf: Holdfast) -> int:
    return len(hf.history(f"loop/{P}").timelines())


def run_example(text: str, engine: LoopEngine, **more: Any) -> dict[str, Any]:
    """Run an example of the document, in which methods of an engine replace the functions that it imports."""
    text = textwrap.dedent(text)
    imported = re.findall(r"^from app\.modules\.loop_resume_engine import (\w+)$", text, re.M)
    names = {**{name: getattr(engine, name) for name in imported}, **more}
    exec(re.sub(r"^from app.*$", "", text, flags=re.M), names)
    return names


def curl(command: str, served: Served, role: Role = Role.OPERATOR) -> Any:
    """Run a command of the document with the address and a token of a real server."""
    arguments = shlex.split(command.replace("http://localhost:8000", served.url))
    arguments += ["--silent", "--show-error", "--header", f"Authorization: Bearer {TOKENS[role]}"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


class TestOverview:
    """Overview"""

    @pytest.mark.parametrize("reason", CRASHES)
    def test_last_known_good_memory_is_restored(self, project: LoopEngine, reason: str) -> None:
        """Whatever stopped the loop, the project gets the state of its last snapshot again, exactly."""
        project.configure(P, loop_autoresume=True)
        assert project.auto_restore_if_configured(P, reason)["status"] == "restored"
        assert state_of(project) == {
            "loop_count": 1,
            "memory": ["goal"],
            "completed_steps": ["planner"],
            "loop_autoresume": True,
        }

    def test_loop_continues_where_it_left_off(self, file: Path, clock: Clock) -> None:
        """After a crash, another process reads the loop number and the completed agents, and continues from there."""
        with holdfast.open(file, clock=clock) as first:
            engine = LoopEngine(first, check_every=None)
            engine.save_loop_snapshot(P, {"loop_count": 7, "completed_steps": ["planner", "writer"]})
            engine.log_agent_start(P, "critic", timeout=60)
            engine.set_project_state(P, {"loop_count": 8, "completed_steps": []})
        clock.forward(61)
        with holdfast.open(file, clock=clock) as second:
            engine = LoopEngine(second, check_every=None)
            engine.configure(P, loop_autoresume=True)
            (stalled,) = engine.check_timeouts()["stalled"]
            found = stalled["result"]
            assert (found["loop"], found["agents_completed"]) == (7, ["planner", "writer"])
            state = state_of(engine)
            state["completed_steps"].append("critic")
            assert engine.set_project_state(P, state)["status"] == "set"
            assert state_of(engine)["completed_steps"] == ["planner", "writer", "critic"]

    def test_reinitialization_is_proposed_with_memory_differences(self, project: LoopEngine) -> None:
        """The operator sees every difference with its old and new value, and names the memory that a clean start
        keeps."""
        asked = project.auto_restore_if_configured(P, "crash")
        assert "reinitialize" in asked["choices"]
        assert {each["path"]: (each["change"], each["old"], each["new"]) for each in asked["diff"]} == {
            "loop_count": ("changed", 1, 2),
            "memory[1]": ("added", None, "odd"),
            "scratch": ("added", None, "half done"),
            "completed_steps": ("removed", ["planner"], None),
        }
        clean = project.answer_question(asked["question_id"], "reinitialize", keep=["memory"], actor="Ada")
        assert (clean["status"], clean["carried"]) == ("reinitialized", ["memory"])
        assert state_of(project) == {"memory": ["goal", "odd"]}

    def test_differences_are_paged(self, engine: LoopEngine) -> None:
        """A difference of any size is read page by page, each change once."""
        engine.save_loop_snapshot(P, {})
        engine.update_project_state(P, {f"key {number:04}": number for number in range(2500)})
        found, after = [], 0
        while after is not None:
            page = engine.compare(P, 1, limit=700, after=after)
            found += page["diff"]
            after = page["next"]
        assert [each["path"] for each in found] == [f'["key {number:04}"]' for number in range(2500)]
        assert page["diff_count"] == 2500


class TestModule:
    """Loop Resume Engine Module"""

    def test_functions_have_their_names(self, project: LoopEngine) -> None:
        """The functions of the module are methods of `LoopEngine(hf)`, and each returns a dict with a `status`."""
        project.configure(P, loop_autoresume=True)
        for call in ("save_loop_snapshot", "restore_last_snapshot", "auto_restore_if_configured"):
            assert getattr(project, call)(P)["status"] in ("saved", "restored")
        assert project.get_snapshot_history(P)["has_last_snapshot"] is True

    def test_question_is_seen_outside(self, hf: Holdfast, project: LoopEngine) -> None:
        """Unlike the prompts of the original, which only the project's state has, a question is in the inbox of the
        store with those of workflows, and over HTTP."""
        asked = project.auto_restore_if_configured(P, "crash")
        (question,) = hf.inbox()
        assert (question.id, question.kind, question.project) == (asked["question_id"], "loop", P)
        assert "crash" in question.text
        assert hf.inbox(kind="loop") == [question] == [hf.question(question.id)]
        with serving(hf) as served:
            (shown,) = served.get("/inbox", kind="loop")
            assert (shown["id"], shown["project"]) == (question.id, P)

    @pytest.mark.parametrize(
        ("choice", "how", "state"),
        [
            ("resume", {}, {"loop_count": 2, "memory": ["goal", "odd"], "scratch": "half done"}),
            ("rollback", {}, {"loop_count": 1, "memory": ["goal"], "completed_steps": ["planner"]}),
            (
                "rollback",
                {"version": 2},
                {"loop_count": 2, "memory": ["goal", "odd"], "scratch": "half done"},
            ),
            ("reinitialize", {"keep": ["memory"]}, {"memory": ["goal", "odd"]}),
            ("cancel", {}, {"loop_count": 2, "memory": ["goal", "odd"], "scratch": "half done"}),
        ],
    )
    def test_question_is_answered_with_the_verbs_of_runs(
        self, hf: Holdfast, project: LoopEngine, choice: str, how: dict[str, Any], state: Any
    ) -> None:
        """A question is answered where those of runs are: resume, rollback to a version, reinitialize with a list of
        memory to keep, or cancel."""
        project.log_agent_start(P, "writer")
        question = project.auto_restore_if_configured(P, "crash")["question_id"]
        hf.answer(question, choice, actor="Ada", **how)
        assert state_of(project) == state
        assert hf.inbox() == []
        assert list(project.get_agents(P)["running"]) == ([] if choice == "cancel" else ["writer"])
        with pytest.raises(holdfast.InvalidAnswer, match="answered already, by Ada"):
            hf.answer(question, "resume", actor="Bob")

    def test_wrong_answers_change_nothing(self, hf: Holdfast, project: LoopEngine) -> None:
        """An answer that does not fit is refused, and the question stays open."""
        question = project.auto_restore_if_configured(P, "crash")["question_id"]
        wrong: list[tuple[Any, dict[str, Any]]] = [
            ("yes", {}), (True, {}), (None, {}), ({}, {}), ("Resume", {}), ("resume", {"version": 1}),
            ("resume", {"keep": ["memory"]}), ("rollback", {"version": 99}), ("rollback", {"version": -1}),
            ("rollback", {"version": "no tag"}), ("reinitialize", {"keep": ["gaol"]}),
            ("reinitialize", {"keep": ["memory[7]"]}), ("cancel", {"version": 1}),
        ]  # fmt: skip
        before = state_of(project)
        for choice, how in wrong:
            with pytest.raises(holdfast.InvalidAnswer):
                hf.answer(question, choice, **how)
        for unknown in (question + "9", question.replace("control", "beats"), f"loop/{P}/control", "#", "\0"):
            with pytest.raises(holdfast.HoldfastError):
                hf.answer(unknown, "resume")
        assert [each.id for each in hf.inbox()] == [question]
        assert (state_of(project), timelines(hf)) == (before, 1)

    def test_question_has_who_and_when(self, hf: Holdfast, project: LoopEngine, clock: Clock) -> None:
        """A project says who is to answer and by when; the monitor reminds and escalates; a question never expires."""
        policy = QuestionPolicy(
            assignee="ana", priority=7, due=3600, remind_every=600, escalate_after=7200, escalate_to="bo"
        )
        project.configure(P, question=policy)
        asked = project.auto_restore_if_configured(P, "crash")
        assert (asked["assignee"], asked["priority"], asked["due"]) == ("ana", 7, "2023-11-14T23:13:20+00:00")
        monitor = hf.monitor()
        clock.forward(601)
        monitor.look()
        assert (hf.question(asked["question_id"]).reminders, len(hf.inbox(assignee="ana"))) == (1, 1)
        clock.forward(10_000)
        monitor.look()
        (question,) = hf.inbox(assignee="bo", waiting_longer_than=10_000)
        assert question.escalated
        assert hf.assign(question.id, assignee="cy", priority=0).assignee == "cy"
        clock.forward(10 * 365 * 86_400)
        monitor.look()
        assert [each.id for each in hf.inbox()] == [question.id]

    def test_history_lists_snapshots(self, engine: LoopEngine, clock: Clock) -> None:
        """The history has every snapshot with its number, loop, time and completed agents, oldest first."""
        for loop in range(5):
            engine.save_loop_snapshot(P, {"loop_count": loop, "completed_steps": ["a"] * loop})
            clock.forward(60)
        history = engine.get_snapshot_history(P)
        assert [each["loop"] for each in history["snapshots"]] == list(range(5))
        assert [len(each["agents_completed"]) for each in history["snapshots"]] == list(range(5))
        times = [each["timestamp"] for each in history["snapshots"]]
        assert times == sorted(set(times))
        assert [each["loop"] for each in engine.get_snapshot_history(P, limit=2)["snapshots"]] == [3, 4]


class TestLoopMonitor:
    """Loop Monitor Integration"""

    def test_silent_agent_is_found(self, project: LoopEngine, clock: Clock) -> None:
        """An agent that sent no heartbeat for longer than its timeout is found, and not before."""
        project.log_agent_start(P, "writer", timeout=60)
        clock.forward(59)
        assert project.check_timeouts()["stalled"] == []
        project.agent_progress(P, "writer")
        clock.forward(59)
        assert project.check_timeouts()["stalled"] == []
        clock.forward(2)
        (stalled,) = project.check_timeouts()["stalled"]
        assert (stalled["agent"], stalled["timeout"]) == ("writer", 60.0)

    def test_timeout_restores_the_snapshot(self, project: LoopEngine, clock: Clock) -> None:
        """If the project is configured to, a timeout restores the last snapshot, and says so."""
        project.configure(P, loop_autoresume=True)
        project.log_agent_start(P, "writer", timeout=60)
        clock.forward(61)
        found = project.check_timeouts(P)
        assert found["auto_restored"] is True
        assert found["stalled"][0]["result"]["auto_restored"] is True
        assert state_of(project)["loop_count"] == 1

    def test_second_check_does_not_restore_again(
        self, hf: Holdfast, project: LoopEngine, clock: Clock
    ) -> None:
        """Unlike the original, a stalled agent is restored once: a second check finds nothing, and work after the
        restore stays."""
        project.configure(P, loop_autoresume=True)
        project.log_agent_start(P, "writer", timeout=60)
        clock.forward(61)
        assert len(project.check_timeouts()["stalled"]) == 1
        project.update_project_state(P, {"loop_count": 3})
        for _ in range(3):
            clock.forward(61)
            found = LoopEngine(hf, check_every=None).check_timeouts()
            assert (found["stalled"], found["finished"], found["auto_restored"]) == ([], [], False)
        assert (state_of(project)["loop_count"], timelines(hf)) == (3, 2)

    def test_monitor_finds_agents_of_any_process(
        self, hf: Holdfast, project: LoopEngine, clock: Clock
    ) -> None:
        """The monitor of the store looks for stalled agents, whichever process started them."""
        project.configure(P, loop_autoresume=True)
        project.log_agent_start(P, "writer", timeout=60)
        monitor = hf.monitor()
        assert monitor.look() == []
        clock.forward(61)
        (planned,) = monitor.plan()
        assert (planned.symptom, planned.action, timelines(hf)) == ("silent", "recover", 1)
        (alert,) = monitor.look()
        assert (alert.run, alert.symptom, alert.action) == (f"loop/{P}", "silent", "recover")
        assert "'writer' sent no heartbeat for 60 s" in alert.why
        assert (monitor.look(), timelines(hf)) == ([], 2)

    def test_late_agent_is_refused(self, project: LoopEngine, clock: Clock) -> None:
        """Unlike in the original, an agent that continues after it was found stalled cannot write over the restored
        state."""
        project.configure(P, loop_autoresume=True)
        project.log_agent_start(P, "writer", timeout=60)
        state = state_of(project)
        clock.forward(61)
        project.check_timeouts()
        assert project.log_agent_complete(P, "writer")["code"] == "not_running"
        assert project.set_project_state(P, {**state, "memory": ["late"]})["code"] == "stale_version"
        assert state_of(project)["memory"] == ["goal"]

    def test_completion_saves_a_snapshot(self, engine: LoopEngine) -> None:
        """An agent that completes saves a snapshot; one that failed does not."""
        engine.set_project_state(P, {"loop_count": 4})
        for status in ("completed", "failed", "completed"):
            engine.log_agent_start(P, "writer")
            engine.log_agent_complete(P, "writer", status)
        assert engine.get_snapshot_history(P)["snapshot_count"] == 2


class TestDebugRoutes:
    """Debug Routes"""

    def test_snapshots_are_managed_by_hand(self, hf: Holdfast, engine: LoopEngine, served: Served) -> None:
        """Save, restore and history have the routes of the original, and its keys in their replies."""
        engine.set_project_state(P, {"loop_count": 3, "completed_steps": ["planner"]})
        client = served.client(Role.OPERATOR)
        saved = client.post(f"/api/debug/loop/snapshot/save/{P}").json()
        assert (saved["status"], saved["loop"], saved["agents_completed"]) == ("saved", 3, ["planner"])
        engine.update_project_state(P, {"loop_count": 9})
        restored = client.post(f"/api/debug/loop/snapshot/restore/{P}").json()
        assert (restored["status"], restored["loop"]) == ("restored", 3)
        assert restored["agents_completed"] == ["planner"]
        history = served.client(Role.VIEWER).get(f"/api/debug/loop/snapshot/history/{P}").json()
        assert (history["snapshot_count"], history["has_last_snapshot"]) == (1, True)
        assert {"loop", "timestamp", "agents_completed"} <= set(history["snapshots"][0])

    def test_get_changes_nothing(self, hf: Holdfast, project: LoopEngine, served: Served) -> None:
        """Unlike in the original, a GET changes nothing: not by a link, an image or a browser that loads ahead. With
        `--legacy-get`, programs may use it, pages of other sites still not."""
        before = hf.history(f"loop/{P}").head.number
        is_legacy = served.server.app.service.settings.legacy_get
        for route in ("save", "restore"):
            path = f"/api/debug/loop/snapshot/{route}/{P}"
            for site in ("cross-site", "same-site", "none"):
                found = served.browser().get(path, headers={"sec-fetch-site": site})
                assert found.status_code in (403, 405)
            assert served.client(Role.VIEWER).get(path).status_code == (403 if is_legacy else 405)
        assert hf.history(f"loop/{P}").head.number == before
        assert served.client().get(path).status_code == (200 if is_legacy else 405)

    def test_agents_are_logged_by_get_as_before(
        self, engine: LoopEngine, clock: Clock, legacy: Served
    ) -> None:
        """With `--legacy-get`, the calls of the original's client work with their values in the query."""
        engine.set_project_state(P, {"loop_count": 1, "loop_autoresume": True})
        client = legacy.client(Role.OPERATOR)

        def get(route: str, **query: Any) -> Any:
            return client.get(f"/api/debug/loop/{route}/{P}", params=query).json()

        assert get("agent/start", agent="writer", timeout=60)["status"] == "started"
        done = get("agent/complete", agent="writer", status="completed")
        assert done["snapshot"]["status"] == "saved"
        get("agent/start", agent="writer", timeout=60)
        assert get("agent/timeout")["auto_restored"] is False
        clock.forward(61)
        assert get("agent/timeout")["auto_restored"] is True
        get("agent/start", agent="writer", timeout=60)
        assert get("agent/timeout", agent="writer", reason="frozen")["auto_restored"] is True

    def test_unknown_project_is_not_found(self, engine: LoopEngine, served: Served) -> None:
        """A route for an unknown project answers 404, and creates nothing."""
        client = served.client()
        for project in ("none", "..%2F..%2Fetc%2Fpasswd", "a%00b", "x" * 10_000, "%F0%9F%90%99"):
            for method, path in (
                ("POST", "snapshot/save"),
                ("POST", "snapshot/restore"),
                ("GET", "snapshot/history"),
                ("POST", "agent/timeout"),
            ):
                found = client.request(method, f"/api/debug/loop/{path}/{project}")
                assert (found.status_code, found.json()["code"]) == (404, "not_found"), found.text
        assert engine.get_projects()["projects"] == []


class TestSaving:
    """Saving Snapshots"""

    def test_current_state_is_saved(self, engine: LoopEngine) -> None:
        """A snapshot has the project's state as it is now, exactly; a later change of the caller's objects does not
        reach it."""
        state: dict[str, Any] = {"loop_count": 1, "memory": {"deep": [1, (2, 3), {4}, b"x", None, 1.5]}}
        engine.set_project_state(P, state)
        saved = engine.save_loop_snapshot(P)
        state["memory"]["deep"].append("later")
        assert (saved["status"], saved["loop"], saved["replaced"]) == ("saved", 1, [])
        assert state_of(engine)["memory"] == {"deep": [1, (2, 3), {4}, b"x", None, 1.5]}

    def test_circular_references_are_removed(self, engine: LoopEngine) -> None:
        """Circular references are replaced, and unlike in the original listed."""
        state: dict[str, Any] = {"loop_count": 1, "nodes": [{"name": "a"}]}
        state["self"] = state
        state["nodes"][0]["parent"] = state["nodes"]
        saved = engine.save_loop_snapshot(P, state)
        assert sorted(saved["replaced"]) == ["nodes[0].parent", "self"]
        assert state_of(engine)["nodes"][0]["name"] == "a"
        json.dumps(state_of(engine))

    def test_snapshot_has_a_time(self, engine: LoopEngine, clock: Clock) -> None:
        """A snapshot has the time at which it was saved, with a time zone, and its number."""
        clock.forward(10)
        saved = engine.save_loop_snapshot(P, {})
        assert (saved["timestamp"], saved["version"]) == ("2023-11-14T22:13:30+00:00", 1)

    def test_snapshots_do_not_contain_each_other(self, hf: Holdfast, engine: LoopEngine) -> None:
        """Unlike in the original, where a snapshot has all snapshots before it and their size grows without bound, the
        state has no snapshot in it, and the hundredth takes as much as the second."""
        engine.set_project_state(P, {"loop_count": 0, "memory": ["x" * 1000]})
        sizes = []
        for loop in range(100):
            engine.update_project_state(P, {"loop_count": loop})
            engine.save_loop_snapshot(P)
            sizes.append(engine.get_snapshot_history(P, limit=1)["snapshots"][0]["size"])
        assert set(state_of(engine)) == {"loop_count", "memory"}
        assert max(sizes[1:]) <= sizes[1] + 20
        assert sum(sizes) < 100 * 500, "what did not change is stored once"

    def test_any_text_is_a_project_of_its_own(self, hf: Holdfast, engine: LoopEngine) -> None:
        """A project id is any text, and never the name of another project, a run or a file."""
        ids = [
            ".", "..", "...", "../../etc/passwd", "a/b", "a%2Fb", "a b", " a b", "%", "head", "control", "p/control",
            "p", "p/beats", "\0", "\x1b[31m", "名前", "\u202e", "'; DROP TABLE run; --", "<script>", "x" * 10_000,
            "x" * 9_999 + "y",
        ]  # fmt: skip
        for number, project in enumerate(ids):
            assert engine.save_loop_snapshot(project, {"loop_count": number})["status"] == "saved", project
        assert engine.get_projects()["projects"] == ids[::-1]
        for number, project in enumerate(ids):
            engine.update_project_state(project, {"loop_count": -1})
            assert engine.restore_last_snapshot(project)["loop"] == number
        assert len(hf.runs(limit=100)) == len(ids)
        assert hf.verify().ok

    def test_state_that_is_not_a_dict_is_refused(self, project: LoopEngine) -> None:
        """A state that is not a dict is an error in the result, and changes nothing."""
        before = state_of(project)
        for wrong in ([1], "state", 7, True, b"x", object(), {1}):
            found = project.save_loop_snapshot(P, wrong)
            assert (found["status"], found["code"]) == ("error", "invalid")
        assert project.save_loop_snapshot("unknown")["code"] == "not_found"
        assert (state_of(project), project.get_snapshot_history(P)["snapshot_count"]) == (before, 1)


class TestRestoring:
    """Restoring Snapshots"""

    def test_last_snapshot_is_restored(self, project: LoopEngine) -> None:
        """The last snapshot becomes the state, and the result says which one and what has changed."""
        found = project.restore_last_snapshot(P, keep_unknown=False)
        assert (found["status"], found["loop"], found["version"]) == ("restored", 1, 1)
        assert "loop_count: 2 → 1" in [each["summary"] for each in found["diff"]]
        assert state_of(project) == {"loop_count": 1, "memory": ["goal"], "completed_steps": ["planner"]}

    def test_every_field_is_restored(self, engine: LoopEngine) -> None:
        """Unlike in the original, which keeps a few essential fields, every field of the snapshot is restored."""
        state = {"loop_count": 1, "mine": {"deep": [1]}, "registry": {}, "": 0, "snapshots": ["mine"], "1": 1}
        engine.save_loop_snapshot(P, state)
        engine.set_project_state(P, {})
        engine.restore_last_snapshot(P)
        assert state_of(engine) == state

    def test_restored_state_replaces_the_current_one(self, project: LoopEngine) -> None:
        """With `configure(keep_unknown=False)`, and for automatic restores by default, the snapshot replaces the state
        completely; by hand, keys that it does not have are kept and listed unless that is said."""
        found = project.restore_last_snapshot(P)
        assert (found["kept"], state_of(project)["scratch"]) == (["scratch"], "half done")
        project.configure(P, keep_unknown=False)
        assert project.restore_last_snapshot(P)["kept"] == []
        assert "scratch" not in state_of(project)

    def test_history_survives_restores(self, hf: Holdfast, project: LoopEngine) -> None:
        """Unlike in the original, no snapshot is lost by a restore: earlier, later and abandoned ones stay."""
        for loop in (2, 3):
            project.save_loop_snapshot(P, {"loop_count": loop})
        for version in (1, 4, 3, 1):
            assert project.restore_snapshot(P, version)["status"] == "restored"
            assert [each["loop"] for each in project.get_snapshot_history(P)["snapshots"]] == [1, 2, 3]
        assert hf.verify().ok

    def test_autoresume_survives_restores(self, project: LoopEngine, clock: Clock) -> None:
        """Unlike in the original, `loop_autoresume` is not lost by a restore, so that the next timeout restores,
        too."""
        project.set_project_state(P, {**state_of(project), "loop_autoresume": True})
        for _ in range(3):
            project.log_agent_start(P, "writer", timeout=60)
            clock.forward(3600)
            assert project.check_timeouts()["auto_restored"] is True
            assert state_of(project)["loop_autoresume"] is True
            assert project.get_config(P)["config"]["loop_autoresume"] is True

    def test_writer_from_before_a_restore_is_refused(self, hf: Holdfast, project: LoopEngine) -> None:
        """Unlike in the original, a program that read the state before the restore does not write it back."""
        other = LoopEngine(hf, check_every=None)
        old = state_of(other)
        project.restore_last_snapshot(P)
        found = other.set_project_state(P, old)
        assert (found["status"], found["code"]) == ("error", "stale_version")
        assert state_of(project)["loop_count"] == 1

    def test_project_without_a_snapshot(self, engine: LoopEngine) -> None:
        """Without a snapshot the result says so, and the state stays; an unknown project is an error."""
        engine.set_project_state(P, {"loop_count": 1})
        assert engine.restore_last_snapshot(P)["status"] == "no snapshot available"
        assert state_of(engine) == {"loop_count": 1}
        assert engine.restore_last_snapshot("unknown")["code"] == "not_found"

    def test_damaged_snapshot_is_skipped(self, file: Path, clock: Clock) -> None:
        """A damaged snapshot is never restored: the one before it is, and the result names the damaged one."""
        with holdfast.open(file, clock=clock) as hf:
            engine = LoopEngine(hf, check_every=None)
            for loop in (1, 2, 3):
                engine.save_loop_snapshot(P, {"loop_count": loop, "memory": f"memory {loop}"})
            engine.update_project_state(P, {"memory": "odd"})
        with Database(file) as connection:
            connection.execute(
                "UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 3 AND run = "
                "(SELECT key FROM run WHERE id = ?)",
                [f"loop/{P}"],
            )
        connection.close()
        with holdfast.open(file, clock=clock) as hf:
            engine = LoopEngine(hf, check_every=None)
            assert "damaged" in engine.get_snapshot_history(P)["snapshots"][-1]
            found = engine.restore_last_snapshot(P)
            assert (found["status"], found["loop"], found["skipped"]) == ("restored", 2, [3])
            assert state_of(engine)["memory"] == "memory 2"

    def test_restore_by_hand_closes_the_question(self, hf: Holdfast, project: LoopEngine) -> None:
        """A restore by hand answers the open question of the project, and names it."""
        question = project.auto_restore_if_configured(P, "crash")["question_id"]
        assert project.restore_last_snapshot(P, actor="Ada")["question_id"] == question
        assert hf.inbox() == []
        (answered,) = hf.inbox(open=False)
        assert (answered.id, answered.actor, answered.details["choice"]) == (question, "Ada", "rollback")
        assert project.restore_last_snapshot(P)["question_id"] is None


class TestAutomaticRestoration:
    """Automatic Restoration"""

    def test_enabled_project_is_restored(self, project: LoopEngine) -> None:
        """With `loop_autoresume` the last snapshot replaces the state completely, and the result has the reason."""
        project.configure(P, loop_autoresume=True)
        found = project.auto_restore_if_configured(P, "crash")
        assert (found["status"], found["auto_restored"], found["reason"]) == ("restored", True, "crash")
        assert set(state_of(project)) == {"loop_count", "memory", "completed_steps", "loop_autoresume"}

    def test_unknown_keys_are_kept_if_configured(self, project: LoopEngine) -> None:
        """`configure(keep_unknown=True)` keeps the keys that the snapshot does not have, also in automatic restores."""
        project.configure(P, loop_autoresume=True, keep_unknown=True)
        assert project.auto_restore_if_configured(P)["kept"] == ["scratch"]
        assert state_of(project)["scratch"] == "half done"

    def test_other_project_asks(self, hf: Holdfast, project: LoopEngine) -> None:
        """Without `loop_autoresume` nothing is restored: a question is asked, one per project however often it is
        called."""
        for reason in (*CRASHES, "crash"):
            found = project.auto_restore_if_configured(P, reason)
            assert (found["status"], found["auto_restored"]) == ("question", False)
        assert found["reasons"] == list(CRASHES)
        assert (len(hf.inbox()), timelines(hf)) == (1, 1)

    def test_restore_is_logged(self, project: LoopEngine, clock: Clock) -> None:
        """The audit, which no restore touches, has the reason, the actor and the time of each decision and restore."""
        project.configure(P, loop_autoresume=True)
        clock.forward(5)
        project.auto_restore_if_configured(P, "crash", actor="watcher")
        project.restore_last_snapshot(P)
        audit = [(each["action"], each["reason"], each["actor"]) for each in project.get_audit(P)["audit"]]
        assert audit == [
            ("configured", None, None),
            ("restore.decided", "crash", "watcher"),
            ("restored", "crash", "watcher"),
            ("restored", "restored by hand", None),
        ]

    def test_missing_snapshot_asks(self, hf: Holdfast, engine: LoopEngine) -> None:
        """With `loop_autoresume` and no snapshot, a person is asked instead of nothing being done."""
        engine.set_project_state(P, {"loop_count": 1, "loop_autoresume": True})
        found = engine.auto_restore_if_configured(P, "crash")
        assert (found["status"], found["reason"]) == ("question", "crash; no snapshot of it was saved")
        with pytest.raises(holdfast.InvalidAnswer, match="no snapshot to roll back to"):
            hf.answer(found["question_id"], "rollback")
        hf.answer(found["question_id"], "rollback", version=1)
        assert (state_of(engine)["loop_count"], hf.inbox()) == (1, [])

    def test_hot_loop_is_stopped(self, hf: Holdfast, project: LoopEngine, clock: Clock) -> None:
        """Unlike in the original, a loop that stalls again and again is not restored for ever: after three restores
        within an hour a person is asked, and nothing is restored until the answer."""
        project.configure(P, loop_autoresume=True)
        found = []
        for _ in range(8):
            project.log_agent_start(P, "writer", timeout=1)
            clock.forward(2)
            (stalled,) = project.check_timeouts()["stalled"]
            found.append(stalled["result"]["status"])
        assert found == ["restored"] * 3 + ["question"] * 5
        assert timelines(hf) == 4
        (question,) = hf.inbox()
        assert "restored 3 times within an hour" in question.text
        hf.answer(question.id, "resume")
        assert project.auto_restore_if_configured(P, "crash")["status"] == "restored", "a person has decided"

    def test_restores_of_another_hour_do_not_count(self, project: LoopEngine, clock: Clock) -> None:
        """A loop that stalls from time to time is restored each time: only the restores of the last hour count."""
        project.configure(P, loop_autoresume=True)
        for _ in range(8):
            project.log_agent_start(P, "writer", timeout=1)
            clock.forward(1500)
            assert project.check_timeouts()["auto_restored"] is True

    def test_callback_wakes_the_loop(self, hf: Holdfast, project: LoopEngine) -> None:
        """The user's loop is called back after each restore and answer, and reads a state that is in the store."""
        project.configure(P, loop_autoresume=True)
        seen: list[dict[str, Any]] = []

        def wake(recovery: dict[str, Any]) -> None:
            seen.append({**recovery, "loop": LoopEngine(hf).get_project_state(P)["state"].get("loop_count")})

        with project.on_recovery(wake, P):
            project.auto_restore_if_configured(P, "crash")
            until(lambda: seen)
            project.configure(P, loop_autoresume=False)
            question = project.auto_restore_if_configured(P, "again")["question_id"]
            hf.answer(question, "resume", actor="Ada")
            until(lambda: len(seen) == 2)
        assert [(each["event"], each["reason"], each["actor"]) for each in seen] == [
            ("restored", "crash", None),
            ("resumed", "again", "Ada"),
        ]
        assert (seen[0]["project_id"], seen[0]["version"], seen[0]["loop"]) == (P, 1, 1)


class TestSavingExample:
    """Usage: Saving a Snapshot"""

    def test_program(self, engine: LoopEngine, capsys: pytest.CaptureFixture[str]) -> None:
        """The program of the document saves a snapshot and prints its loop."""
        engine.set_project_state(P, {"loop_count": 3})
        run_example(
            """
            from app.modules.loop_resume_engine import save_loop_snapshot

            # Save a snapshot of the current project state
            result = save_loop_snapshot("my_project_123")
            print(f"Snapshot saved at loop {result['loop']}")
            """,
            engine,
        )
        assert capsys.readouterr().out == "Snapshot saved at loop 3\n"

    @needs_curl
    def test_curl(self, engine: LoopEngine, legacy: Served) -> None:
        """The command of the document works with `--legacy-get` and a token; without a token it is refused."""
        engine.set_project_state(P, {"loop_count": 3})
        command = 'curl -X GET "http://localhost:8000/api/debug/loop/snapshot/save/my_project_123"'
        assert curl(command, legacy)["status"] == "saved"
        refused = subprocess.run(
            [*shlex.split(command.replace("http://localhost:8000", legacy.url)), "-s"],
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert json.loads(refused.stdout)["status"] == 401
        assert engine.get_snapshot_history(P)["snapshot_count"] == 1


class TestRestoringExample:
    """Usage: Restoring from a Snapshot"""

    EXAMPLE = """
        from app.modules.loop_resume_engine import restore_last_snapshot

        # Restore from the last snapshot
        result = restore_last_snapshot("my_project_123")
        if result["status"] == "restored":
            print(f"Project restored to loop {result['loop']}")
        else:
            print(f"Restoration failed: {result['message']}")
        """

    def test_program(self, project: LoopEngine, capsys: pytest.CaptureFixture[str]) -> None:
        """The program of the document restores the project and prints its loop."""
        run_example(self.EXAMPLE, project)
        assert capsys.readouterr().out == "Project restored to loop 1\n"

    def test_program_without_a_snapshot(self, engine: LoopEngine, capsys: pytest.CaptureFixture[str]) -> None:
        """Its other branch has a message, for a project without a snapshot and for an unknown one."""
        run_example(self.EXAMPLE, engine)
        engine.set_project_state(P, {})
        run_example(self.EXAMPLE, engine)
        unknown, empty = capsys.readouterr().out.splitlines()
        assert unknown.startswith("Restoration failed: there is no project")
        assert empty == f"Restoration failed: project '{P}' cannot be restored: no snapshot of it was saved"

    @needs_curl
    def test_curl(self, project: LoopEngine, legacy: Served) -> None:
        """The command of the document works with `--legacy-get` and a token."""
        command = 'curl -X GET "http://localhost:8000/api/debug/loop/snapshot/restore/my_project_123"'
        assert curl(command, legacy)["loop"] == 1
        assert curl(command, legacy, Role.VIEWER)["status"] == 403
        assert state_of(project)["loop_count"] == 1


class TestHistoryExample:
    """Usage: Viewing Snapshot History"""

    def test_program(self, engine: LoopEngine, capsys: pytest.CaptureFixture[str]) -> None:
        """The program of the document prints the number of snapshots, and loop and time of each."""
        for loop in (1, 2):
            engine.save_loop_snapshot(P, {"loop_count": loop})
        run_example(
            """
            from app.modules.loop_resume_engine import get_snapshot_history

            # Get snapshot history
            history = get_snapshot_history("my_project_123")
            print(f"Project has {history['snapshot_count']} snapshots")
            for snapshot in history['snapshots']:
                print(f"Loop {snapshot['loop']} at {snapshot['timestamp']}")
            """,
            engine,
        )
        assert capsys.readouterr().out.splitlines() == [
            "Project has 2 snapshots",
            "Loop 1 at 2023-11-14T22:13:20+00:00",
            "Loop 2 at 2023-11-14T22:13:20+00:00",
        ]

    @needs_curl
    def test_curl(self, project: LoopEngine, served: Served) -> None:
        """The command of the document works on every server: it changes nothing, so a viewer may use it."""
        command = 'curl -X GET "http://localhost:8000/api/debug/loop/snapshot/history/my_project_123"'
        assert curl(command, served, Role.VIEWER)["snapshot_count"] == 1


class TestIntegration:
    """Integration with Loop Monitor"""

    ROUTE = """
        def log_agent_complete_route(project_id: str, agent: str, status: str = "completed"):
            # Log agent execution complete
            result = log_agent_execution_complete(project_id, agent, status)

            # Save snapshot after agent completion
            if status == "completed":
                snapshot_result = save_snapshot_on_agent_complete(project_id, agent)
        """

    @pytest.mark.parametrize("autoresume", [True, False])
    def test_monitor_restores_or_asks(
        self, hf: Holdfast, project: LoopEngine, clock: Clock, autoresume: bool
    ) -> None:
        """A detected agent leads to a restore if auto-resume is enabled, otherwise to a question, in one step that
        either happens as a whole or not at all."""
        project.configure(P, loop_autoresume=autoresume)
        project.log_agent_start(P, "writer", timeout=60)
        clock.forward(61)
        (stalled,) = project.check_timeouts()["stalled"]
        assert stalled["result"]["status"] == ("restored" if autoresume else "question")
        assert (len(hf.inbox()), timelines(hf)) == ((0, 2) if autoresume else (1, 1))
        assert project.get_agents(P)["ended"]["writer"]["how"] == "stalled"

    def test_route_of_the_document(self, engine: LoopEngine) -> None:
        """The route of the document runs as it is, with `log_agent_complete` and `save_loop_snapshot` for its two
        functions."""
        engine.set_project_state(P, {"loop_count": 1})
        names = run_example(
            self.ROUTE,
            engine,
            log_agent_execution_complete=engine.log_agent_complete,
            save_snapshot_on_agent_complete=lambda project, agent: engine.save_loop_snapshot(
                project, actor=agent
            ),
        )
        route = names["log_agent_complete_route"]
        engine.log_agent_start(P, "writer")
        route(P, "writer")
        saved = engine.get_snapshot_history(P)["snapshots"]
        assert {(each["loop"], each["actor"]) for each in saved} == {(1, "writer")}
        engine.log_agent_start(P, "writer")
        route(P, "writer", "failed")
        assert engine.get_snapshot_history(P)["snapshot_count"] == len(saved)
        assert engine.get_agents(P)["running"] == {}

    def test_one_call_does_both(self, engine: LoopEngine) -> None:
        """Unlike in the original, where a crash between the two calls loses the snapshot, one call saves it before the
        completion is logged."""
        engine.set_project_state(P, {"loop_count": 1})
        engine.log_agent_start(P, "writer")
        done = engine.log_agent_complete(P, "writer", "completed")
        assert (done["status"], done["snapshot"]["status"], done["snapshot"]["loop"]) == (
            "logged",
            "saved",
            1,
        )
        assert engine.get_audit(P)["audit"][-1]["version"] == done["snapshot"]["version"]


class TestConfiguration:
    """Configuration"""

    @pytest.mark.parametrize("by", ["state", "configure"])
    def test_autoresume_is_set_by_project(self, engine: LoopEngine, by: str) -> None:
        """`loop_autoresume` is set in the state of a project, as before, or by `configure`; other projects are not
        affected."""
        for project in (P, "other"):
            engine.save_loop_snapshot(project, {"loop_count": 1})
        if by == "state":
            engine.set_project_state(P, {**state_of(engine), "loop_autoresume": True})
        else:
            engine.configure(P, loop_autoresume=True)
        assert engine.auto_restore_if_configured(P)["status"] == "restored"
        assert engine.auto_restore_if_configured("other")["status"] == "question"
        assert state_of(engine)["loop_autoresume"] is True
        engine.set_project_state(P, {**state_of(engine), "loop_autoresume": False})
        assert engine.auto_restore_if_configured(P)["status"] == "question"

    def test_wrong_settings_are_refused(self, project: LoopEngine) -> None:
        """A setting that cannot be used is refused where it is given: a text such as "true" does not switch it on."""
        wrong: list[dict[str, Any]] = [
            {"loop_autoresume": "true"}, {"loop_autoresume": 1}, {"loop_autoresume": None}, {"max_restores": -1},
            {"max_restores": True}, {"keep_unknown": "no"}, {"timeout": -1}, {"timeout": "60"},
            {"question": "ana"}, {"question": {"assignee": "ana"}}, {"audit_retention": "all"},
        ]  # fmt: skip
        before = project.get_config(P)
        for given in wrong:
            assert project.configure(P, **given)["code"] == "invalid", given
        assert project.set_project_state(P, {"loop_autoresume": "true"})["code"] == "invalid"
        assert project.get_config(P) == before

    def test_snapshots_are_saved_on_completion_and_by_hand(self, engine: LoopEngine) -> None:
        """Snapshots are saved when an agent completes, and by hand at any time; a set state is not one."""
        engine.set_project_state(P, {"loop_count": 1})
        assert engine.get_snapshot_history(P)["snapshot_count"] == 0
        engine.log_agent_start(P, "writer")
        engine.log_agent_complete(P, "writer")
        engine.save_loop_snapshot(P)
        assert engine.get_snapshot_history(P)["snapshot_count"] == 2


class TestErrorHandling:
    """Error Handling"""

    def test_errors_are_in_the_result(self, hf: Holdfast, engine: LoopEngine) -> None:
        """No function raises: an error is a result with a message for people and a code for programs."""
        hostile: list[Any] = [None, 7, b"x", [], {}, object(), "", "x" * 10_001, float("nan"), True]
        for project in hostile:
            for call in (
                engine.save_loop_snapshot,
                engine.restore_last_snapshot,
                engine.auto_restore_if_configured,
                engine.get_snapshot_history,
                engine.get_project_state,
            ):
                found = call(project)
                assert found["status"] == "error"
                assert found["message"]
                assert found["code"] in ("invalid_reference", "invalid"), found
        hf.close()
        assert engine.save_loop_snapshot(P)["code"] == "store_unavailable"

    def test_history_is_preserved_when_errors_occur(self, hf: Holdfast, project: LoopEngine) -> None:
        """A call that fails changes neither the state nor the history."""
        before = (state_of(project), project.get_snapshot_history(P))
        for failed in (
            project.restore_snapshot(P, 99),
            project.restore_snapshot(P, "no such tag"),
            project.save_loop_snapshot(P, "no dict"),
            project.save_loop_snapshot(P, tags=["head"]),
            project.save_loop_snapshot(P, actor="x" * 10_000),
            project.restore_last_snapshot(P, keep_unknown="no"),  # type: ignore[arg-type]
            project.set_project_state(P, {}, expected=99),
            project.log_agent_complete(P, "never started", token=7),
        ):
            assert failed["status"] == "error", failed
        assert (state_of(project), project.get_snapshot_history(P)) == before
        assert hf.verify().ok


class TestSecurity:
    """Security Considerations"""

    def test_snapshots_are_under_the_controls_of_the_state(self, hf: Holdfast, project: LoopEngine) -> None:
        """Snapshots are in the store of the state; `delete_project` deletes both, with the history and the audit."""
        assert project.delete_project(P)["status"] == "deleted"
        assert project.get_snapshot_history(P)["code"] == "not_found"
        assert (project.get_projects()["projects"], hf.runs(prefix="loop/")) == ([], [])

    def test_routes_need_a_token_with_a_role(self, project: LoopEngine, served: Served) -> None:
        """The routes are protected as all others are: without a token 401, and for changes by a viewer 403."""
        for route in ("snapshot/save", "snapshot/restore", "agent/timeout"):
            path = f"/api/debug/loop/{route}/{P}"
            assert served.client(None).post(path).status_code == 401
            assert served.client(Role.VIEWER).post(path).status_code == 403
        history = f"/api/debug/loop/snapshot/history/{P}"
        assert served.client(None).get(history).status_code == 401
        assert served.client(Role.VIEWER).get(history).status_code == 200

    def test_snapshots_have_no_secrets(self, hf: Holdfast, engine: LoopEngine) -> None:
        """Keys that look like secrets, or that the store is opened to redact, are never stored: in no snapshot,
        question, difference or audit."""
        secret = "sk-0123456789"
        state = {"loop_count": 1, "api_key": secret, "deep": [{"password": secret, "my_api_key_2": [secret]}]}
        engine.save_loop_snapshot(P, state)
        engine.update_project_state(P, {"api_key": secret + "x", "loop_count": 2})
        replies = [
            engine.get_project_state(P),
            engine.auto_restore_if_configured(P, "crash"),
            engine.compare(P, 1),
            engine.export(P),
            engine.get_audit(P),
        ]
        assert secret not in json.dumps(replies)
        assert state_of(engine)["deep"][0] == {"password": "[redacted]", "my_api_key_2": "[redacted]"}


class TestPerformance:
    """Performance Considerations"""

    def test_values_that_cannot_be_stored_are_replaced(self, engine: LoopEngine) -> None:
        """Values that cannot be stored become short texts, unlike in the original named by path, and the rest of the
        state is exact."""
        state: dict[str, Any] = {"fine": {"x": [1]}, "file": open, "made": object(), "later": iter([1])}
        saved = engine.save_loop_snapshot(P, state)
        assert set(saved["replaced"]) == {"file", "made", "later"}
        assert state_of(engine)["fine"] == {"x": [1]}
        assert all(isinstance(state_of(engine)[name], str | dict) for name in ("file", "made", "later"))

    def test_long_history_stays_small(self, hf: Holdfast, engine: LoopEngine) -> None:
        """A history of many snapshots costs what has changed, not a copy of the state each."""
        memory = [f"finding {number} " + "x" * 100 for number in range(500)]
        engine.set_project_state(P, {"loop_count": 0, "memory": memory})
        first = hf.stats().pack_bytes
        for loop in range(200):
            engine.update_project_state(P, {"loop_count": loop})
            engine.save_loop_snapshot(P)
        assert hf.stats().pack_bytes - first < 200 * 1000

    def test_old_snapshots_are_cleaned_up(self, engine: LoopEngine) -> None:
        """With `configure(retention=20)`, snapshots and audit are bounded however long the project runs, and the last
        good snapshot stays."""
        engine.configure(P, retention=20, audit_retention=50)
        for loop in range(150):
            engine.log_agent_start(P, "writer")
            engine.log_agent_complete(P, "writer", state={"loop_count": loop})
        history = engine.get_snapshot_history(P)
        assert history["snapshot_count"] <= 25
        assert history["snapshots"][-1]["loop"] == 149
        assert engine.get_audit(P)["count"] <= 50 + 64
        assert engine.restore_last_snapshot(P)["loop"] == 149


class TestFuture:
    """Future Enhancements"""

    def test_snapshot_pruning(self, engine: LoopEngine, clock: Clock) -> None:
        """Old snapshots are removed by number or age; the last good one and tagged ones stay."""
        for loop in range(10):
            engine.save_loop_snapshot(P, {"loop_count": loop}, tags=["good"] if loop == 2 else [])
        assert engine.prune(P, Retention(last=3))["status"] == "pruned"
        assert [each["loop"] for each in engine.get_snapshot_history(P)["snapshots"]] == [2, 7, 8, 9]
        clock.forward(8 * 86_400)
        engine.prune(P, Retention(within=timedelta(days=7)))
        assert [each["loop"] for each in engine.get_snapshot_history(P)["snapshots"]] == [2, 9]

    def test_pruning_keeps_an_old_snapshot_that_was_restored(self, engine: LoopEngine) -> None:
        """After a restore the last good snapshot is an old one, and stays."""
        for loop in range(10):
            engine.save_loop_snapshot(P, {"loop_count": loop})
        engine.restore_snapshot(P, 3)
        assert engine.prune(P, Retention(last=2))["status"] == "pruned"
        assert [each["loop"] for each in engine.get_snapshot_history(P)["snapshots"]] == [2, 8, 9]
        engine.update_project_state(P, {"loop_count": 7})
        assert engine.restore_last_snapshot(P)["loop"] == 2

    def test_differential_snapshots(self, engine: LoopEngine) -> None:
        """A snapshot stores only what differs from the state before."""
        engine.save_loop_snapshot(P, {"loop_count": 1, "memory": [f"{n} {'x' * 50}" for n in range(1000)]})
        engine.update_project_state(P, {"loop_count": 2})
        engine.save_loop_snapshot(P)
        first, second = engine.get_snapshot_history(P)["snapshots"]
        assert second["size"] * 20 < first["size"]

    def test_scheduled_snapshots(self, hf: Holdfast, engine: LoopEngine, clock: Clock) -> None:
        """Snapshots are saved at intervals if something has changed, by whichever process checks."""
        engine.set_project_state(P, {"loop_count": 1})
        engine.schedule(P, 60)
        monitor = hf.monitor()
        for loop in (2, 3):
            monitor.look()
            engine.update_project_state(P, {"loop_count": loop})
            clock.forward(61)
        monitor.look()
        monitor.look()
        assert [each["loop"] for each in engine.get_snapshot_history(P)["snapshots"]] == [1, 2, 3]

    def test_snapshot_tagging(self, project: LoopEngine) -> None:
        """Snapshots have labels of the operator, by which they are found and restored."""
        project.tag(P, 1, "known-good")
        assert project.get_snapshot_history(P)["snapshots"][0]["tags"] == ["known-good"]
        assert project.restore_snapshot(P, "known-good")["version"] == 1
        assert project.tag(P, 2, "../head~1")["code"] == "invalid_reference"

    def test_snapshot_comparison(self, project: LoopEngine) -> None:
        """Two snapshots are compared, with old and new values."""
        found = project.compare(P, 1, 2)
        changes = {each["path"]: (each["old"], each["new"]) for each in found["diff"]}
        assert changes["loop_count"] == (1, 2)
        assert project.compare(P, 1, 1)["same"] is True

    def test_snapshot_export_and_import(self, project: LoopEngine) -> None:
        """A snapshot is exported as JSON and imported in another environment, and one that was changed on the way is
        refused."""
        text = json.dumps(project.export(P)["document"])
        with holdfast.open(":memory:") as elsewhere:
            other = LoopEngine(elsewhere, check_every=None)
            assert other.import_(text.replace("goal", "gaol"))["code"] == "invalid_snapshot"
            assert other.import_(text)["project_id"] == P
            assert state_of(other) == {"loop_count": 1, "memory": ["goal"], "completed_steps": ["planner"]}
            assert other.restore_last_snapshot(P)["status"] == "restored"


class TestConclusion:
    """Conclusion"""

    def test_progress_is_not_lost(self, hf: Holdfast, project: LoopEngine) -> None:
        """A restore deletes nothing: what the loop did since the snapshot stays in the history, and can be compared and
        brought back."""
        lost = state_of(project)
        project.restore_last_snapshot(P, keep_unknown=False)
        project.update_project_state(P, {"loop_count": 5})
        assert holdfast.thaw(hf.history(f"loop/{P}").at(2).state) == lost
        assert project.restore_snapshot(P, 2, keep_unknown=False)["status"] == "restored"
        assert state_of(project) == lost
