"""Workflow State Persistence of CAS (LangGraphRuntime on Supabase), claim by claim, in the order of its document.

Its two stores are a SQLite file and PostgreSQL here; its agents are steps.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from web_server import serving

import holdfast
from database import Database
from holdfast import (
    AlreadyRunning,
    Breaker,
    BreakerOpen,
    Holdfast,
    InvalidCall,
    InvalidReference,
    NotFound,
    Retry,
    Run,
    step,
    workflow,
)
from holdfast.testing import isolated_definitions
from patience import until

pytest_plugins = ["postgres_fixtures"]

ID = "cas-content-strategy-1709213456789"
#: Every call of an agent, in order.
CALLS: list[str] = []
#: What the cas_marketer does, for each call; the last one repeats.
MARKETER: list[Callable[[], str]] = []


@step(retry=None)
def cas_analyst(topic: str) -> str:
    CALLS.append("cas_analyst")
    holdfast.state()["insights"] = f"insights on {topic}"
    holdfast.state().setdefault("agent_results", []).append("cas_analyst")
    return f"insights on {topic}"


@step(retry=None)
def cas_marketer(insights: str) -> str:
    CALLS.append("cas_marketer")
    text = (MARKETER.pop(0) if len(MARKETER) > 1 else MARKETER[0])()
    holdfast.state()["copy"] = text
    holdfast.state()["agent_results"].append("cas_marketer")
    return text


@workflow(name="cas-content-strategy")
def content_strategy(topic: str) -> str:
    return cas_marketer(cas_analyst(topic))


def good() -> str:
    return "a calm text"


def bad() -> str:
    return "BUY NOW!!!"


def down() -> str:
    raise ConnectionError("the network is down")


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    MARKETER[:] = [good]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("url") if request.param == "postgres" else tmp_path / "cas.db")


@pytest.fixture
def hf(place: str) -> Iterator[Holdfast]:
    with holdfast.open(place) as opened:
        yield opened


def interrupted(hf: Holdfast) -> Run:
    """Return the run of a workflow whose cas_marketer failed."""
    MARKETER[:] = [down, good]
    with pytest.raises(ConnectionError):
        hf.run(content_strategy, "AI", run_id=ID)
    return hf.get(ID)


def line(run: Run) -> list[tuple[int, int | None, int, str | None]]:
    """Return number, parent, timeline and step of all versions, oldest first."""
    found = [(each.number, each.parent, each.timeline, each.step) for each in run.history().iter_versions()]
    return found[::-1]


PROGRAM = """
import os, signal, sys
import holdfast
from holdfast import step, workflow

@step
def cas_analyst(topic):
    print("cas_analyst", flush=True)
    return "insights on " + topic

@step
def cas_marketer(insights):
    print("cas_marketer", flush=True)
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return "a calm text"

@workflow(name="cas-content-strategy")
def content_strategy(topic):
    return cas_marketer(cas_analyst(topic))

if __name__ == "__main__":
    with holdfast.open(sys.argv[1], lease=1) as hf:
        if "die" in sys.argv:
            hf.run(content_strategy, "AI", run_id=sys.argv[2])
        else:
            print(hf.resume(sys.argv[2]).result)
"""


class TestWorkflowResumeFunctionality:
    """Workflow Resume Functionality"""

    def test_latest_version_is_loaded(self, hf: Holdfast) -> None:
        """A resume starts from the newest version of the run, and says from which one."""
        run = interrupted(hf)
        assert (run.head.number, run.head.step) == (2, "cas_analyst")
        assert hf.resume(ID).resumed_from == 2

    def test_type_does_not_come_from_the_id(self, hf: Holdfast) -> None:
        """Unlike the original, which parses the workflow out of the id, a run knows its workflow: any id will do."""
        for run_id in ("42", "cas-content-strategy", "other-flow-1709213456789", "名前 / 1"):
            MARKETER[:] = [down, good]
            assert hf.run(content_strategy, "AI", run_id=run_id, raises=False).status == "failed"
            assert hf.get(run_id).workflow == "cas-content-strategy"
            assert hf.resume(run_id).result == "a calm text"

    def test_execution_resumes_from_the_state(self, hf: Holdfast) -> None:
        """The state of the last version is what the next step works on."""
        interrupted(hf)
        state = hf.resume(ID).state
        assert state == {
            "insights": "insights on AI",
            "agent_results": ["cas_analyst", "cas_marketer"],
            "copy": "a calm text",
        }

    def test_event_is_logged(self, hf: Holdfast) -> None:
        """The journal has an event for each resume, with the version that it started from."""
        interrupted(hf)
        run = hf.resume(ID)
        assert [event.version for event in run.events() if event.kind == "run.resumed"] == [2]

    def test_final_state_is_a_version(self, hf: Holdfast) -> None:
        """The end of a resumed run is a version of its own."""
        interrupted(hf)
        head = hf.resume(ID).head
        assert (head.number, head.kind, head.status) == (4, "final", "completed")

    def test_result_is_returned(self, hf: Holdfast) -> None:
        """A resume returns the run with the value that the workflow returned."""
        interrupted(hf)
        assert hf.resume(ID).result == "a calm text"

    def test_completed_step_is_not_repeated(self, hf: Holdfast) -> None:
        """Unlike the original, which repeats the last completed step, no recorded step runs again."""
        interrupted(hf)
        hf.resume(ID)
        assert CALLS == ["cas_analyst", "cas_marketer", "cas_marketer"]

    def test_completed_workflow_is_not_run_again(self, hf: Holdfast) -> None:
        """Unlike the original, which runs a completed workflow again, a resume returns its result and runs nothing."""
        hf.run(content_strategy, "AI", run_id=ID)
        before = line(hf.get(ID))
        assert hf.resume(ID).result == "a calm text"
        assert CALLS == ["cas_analyst", "cas_marketer"]
        assert line(hf.get(ID)) == before

    def test_two_resumes_at_once_run_it_once(self, hf: Holdfast) -> None:
        """Unlike the original, where two resumes at once both run the rest, one runs it and the other is refused."""
        interrupted(hf)
        entered, leave = threading.Event(), threading.Event()

        def slow() -> str:
            entered.set()
            assert leave.wait(60)
            return "a calm text"

        MARKETER[:] = [slow]
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(hf.resume, ID)
            assert entered.wait(60)
            with pytest.raises(AlreadyRunning):
                hf.resume(ID)
            leave.set()
            assert first.result(60).result == "a calm text"
        assert CALLS == ["cas_analyst", "cas_marketer", "cas_marketer"]

    @pytest.mark.parametrize("run_id", ["unknown-1", "", "../x", "a\0b", "'; DROP TABLE run; --"])
    def test_unknown_run_is_refused(self, hf: Holdfast, run_id: str) -> None:
        """A run that does not exist cannot be resumed, and trying creates nothing."""
        with pytest.raises((NotFound, InvalidReference)):
            hf.resume(run_id)
        assert hf.runs() == []


class TestWorkflowRollbackFunctionality:
    """Workflow Rollback Functionality"""

    def test_version_is_loaded_and_state_rolled_back(self, hf: Holdfast) -> None:
        """A rollback makes the state of the given version the state of the run."""
        hf.run(content_strategy, "AI", run_id=ID)
        run = hf.rollback(ID, 2, resume=False)
        assert (run.head.number, run.status) == (2, "paused")
        assert run.state == {"insights": "insights on AI", "agent_results": ["cas_analyst"]}

    def test_execution_resumes_from_the_version(self, hf: Holdfast) -> None:
        """Execution continues from the version: the steps before it are replayed, those after it run again."""
        MARKETER[:] = [bad, good]
        hf.run(content_strategy, "AI", run_id=ID)
        run = hf.rollback(ID, 2)
        assert run.result == "a calm text"
        assert CALLS == ["cas_analyst", "cas_marketer", "cas_marketer"]

    def test_event_is_logged(self, hf: Holdfast) -> None:
        """The journal says from which version to which the run was rolled back, why and by whom."""
        hf.run(content_strategy, "AI", run_id=ID)
        run = hf.rollback(ID, 2, reason="bad copy", actor="ana")
        (event,) = [each for each in run.events() if each.kind == "run.rolled_back"]
        assert event.data == {"since": 4, "to": 2, "timeline": 2, "reason": "bad copy", "actor": "ana"}

    def test_new_versions_follow(self, hf: Holdfast) -> None:
        """After a rollback from version 5 to version 3, the next versions are 6 and 7."""
        log = hf.history("five")
        for number in range(1, 6):
            log.commit({"n": number}, step=f"step-{number}")
        log.rollback(3)
        made = [log.commit({"n": 10 * number}, step="again").number for number in (1, 2)]
        assert (made, log.at(6).parent) == ([6, 7], 3)

    def test_result_is_returned(self, hf: Holdfast) -> None:
        """A rollback returns the run, with the result of the new timeline."""
        MARKETER[:] = [bad, good]
        assert hf.run(content_strategy, "AI", run_id=ID).result == "BUY NOW!!!"
        assert hf.rollback(ID, 2).result == "a calm text"

    @pytest.mark.parametrize("to", [0, -1, 5, 99, 10**17, "unknown", None, 2.0, True])
    def test_wrong_version_is_refused(self, hf: Holdfast, to: Any) -> None:
        """A version that does not exist is refused, and the run stays as it was."""
        hf.run(content_strategy, "AI", run_id=ID)
        with pytest.raises((NotFound, InvalidReference, InvalidCall)):
            hf.rollback(ID, to)
        run = hf.get(ID)
        assert (run.status, run.head.number, run.rolled_back_from, CALLS) == (
            "completed",
            4,
            None,
            ["cas_analyst", "cas_marketer"],
        )


class TestWorkflowHistoryQuery:
    """Workflow History Query"""

    def test_all_versions_are_listed(self, hf: Holdfast) -> None:
        """The summary lists every version, abandoned ones included, and the iterator any number of them."""
        hf.run(content_strategy, "AI", run_id=ID)
        hf.rollback(ID, 2)
        log = hf.history(ID)
        assert [each.version for each in log.summary()] == [6, 5, 4, 3, 2, 1]
        assert [each.version for each in log.iter_summary()] == [6, 5, 4, 3, 2, 1]
        assert [each.version for each in log.summary(limit=2, before=5)] == [4, 3]

    def test_version_number_and_time(self, hf: Holdfast) -> None:
        """Each entry has the version's number and the time of its commit in UTC."""
        before = datetime.now(UTC) - timedelta(seconds=60)
        hf.run(content_strategy, "AI", run_id=ID)
        times = [each.created for each in hf.history(ID).summary()]
        assert times == sorted(times, reverse=True)
        assert all(before < at < before + timedelta(seconds=600) for at in times)

    def test_current_step_and_completed_steps(self, hf: Holdfast) -> None:
        """Each entry names the step that made the version, and the steps completed up to it in their order."""
        hf.run(content_strategy, "AI", run_id=ID)
        found = [(each.step, list(each.completed_steps)) for each in hf.history(ID).summary()]
        assert found[::-1] == [
            (None, []),
            ("cas_analyst", ["cas_analyst"]),
            ("cas_marketer", ["cas_analyst", "cas_marketer"]),
            (None, ["cas_analyst", "cas_marketer"]),
        ]

    def test_number_of_agent_results(self, hf: Holdfast) -> None:
        """The number of completed steps costs no further read."""
        hf.run(content_strategy, "AI", run_id=ID)
        assert [len(each.completed_steps) for each in hf.history(ID).summary()] == [2, 2, 1, 0]

    def test_context_keys(self, hf: Holdfast) -> None:
        """Each entry has the names of the top-level keys of the state."""
        hf.run(content_strategy, "AI", run_id=ID)
        assert [each.keys for each in hf.history(ID).summary()][::-1] == [
            (),
            ("insights", "agent_results"),
            ("insights", "agent_results", "copy"),
            ("insights", "agent_results", "copy"),
        ]

    def test_failed_steps_are_not_completed(self, hf: Holdfast) -> None:
        """A step that failed is not among the completed ones."""
        run = interrupted(hf)
        assert list(run.history().summary(limit=1)[0].completed_steps) == ["cas_analyst"]

    @pytest.mark.parametrize(
        "page",
        [
            {"limit": 0},
            {"limit": -1},
            {"limit": True},
            {"limit": "5"},
            {"before": 0},
            {"before": 2.0},
            {"before": "2"},
        ],
        ids=str,
    )
    def test_wrong_page_is_refused(self, hf: Holdfast, page: dict[str, Any]) -> None:
        """A page that cannot be is an error, not an empty list; one before the first version is empty."""
        hf.run(content_strategy, "AI", run_id=ID)
        with pytest.raises(InvalidCall):
            hf.history(ID).summary(**page)
        assert hf.history(ID).summary(before=1) == []

    def test_keys_of_any_state(self, hf: Holdfast) -> None:
        """Keys are listed whatever they are, at most 32 with the number of all; a state that is not a dict has none."""
        log = hf.history("odd")
        wide = {f"key-{number}": number for number in range(100)}
        for state in ({1: "a", "<script>": 2, "x" * 9_000: 3}, wide, [1, 2], None, "text"):
            log.commit(state)
        found = {each.version: (each.keys, each.key_count) for each in log.summary()}
        keys, count = found[1]
        assert keys is not None
        assert (keys[:2], count, len(keys[2]) < 200) == (("1", "<script>"), 3, True)
        assert found[2] == (tuple(wide)[:32], 100)
        assert found[3] == found[4] == found[5] == ((), 0)

    def test_history_of_an_unknown_run(self, hf: Holdfast) -> None:
        """Unlike the original, which returns an empty list for an unknown id, a typo is an error."""
        with pytest.raises(NotFound):
            hf.history("cas-content-strategy-0").summary()


class TestDashboardUpdates:
    """Dashboard Updates"""

    def test_dashboard_has_versions_resumes_and_rollbacks(self, hf: Holdfast) -> None:
        """Unlike in the original, whose dashboard is a file that people edit, the page reads the store: the versions of
        a run, and from which one it was resumed or rolled back."""
        interrupted(hf)
        hf.resume(ID)
        hf.rollback(ID, 2)
        with serving(hf) as served:
            run = served.get(f"/runs/{ID}")
            assert (run["status"], run["resumed_from"], run["rolled_back_from"]) == ("completed", 2, 4)
            versions = served.get(f"/runs/{ID}/versions")["versions"]
        assert [(each["version"], each["timeline"]) for each in versions] == [
            (6, 2), (5, 2), (4, 1), (3, 1), (2, 1), (1, 1),
        ]  # fmt: skip


class TestCheckpointVersioning:
    """Checkpoint Versioning"""

    def test_version_increments_with_each_save(self, hf: Holdfast) -> None:
        """The start, each step and the end are versions 1 to 4."""
        run = hf.run(content_strategy, "AI", run_id=ID)
        assert line(run) == [
            (1, None, 1, None),
            (2, 1, 1, "cas_analyst"),
            (3, 2, 1, "cas_marketer"),
            (4, 3, 1, None),
        ]
        assert [run.history().at(number).kind for number in (1, 4)] == ["initial", "final"]

    def test_each_version_keeps_its_state(self, hf: Holdfast) -> None:
        """Every version keeps the state as it was, whatever happens later."""
        run = hf.run(content_strategy, "AI", run_id=ID)
        hf.rollback(ID, 1)
        log = run.history()
        assert [log.at(number).state.get("agent_results", []) for number in range(1, 5)] == [
            [],
            ["cas_analyst"],
            ["cas_analyst", "cas_marketer"],
            ["cas_analyst", "cas_marketer"],
        ]

    def test_versions_do_not_race(self, hf: Holdfast) -> None:
        """Unlike the original, where two writers may take the same number, the commit assigns each number once."""
        log = hf.history("counter")
        log.commit({"n": 0})

        def add(_: int) -> None:
            def one_more(state: dict[str, int]) -> None:
                state["n"] += 1

            hf.history("counter").update(one_more)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(add, range(40)))
        assert sorted(each.number for each in log.iter_versions()) == list(range(1, 42))
        assert log.head.state == {"n": 40}

    def test_small_change_stores_a_small_row(self, hf: Holdfast) -> None:
        """Unlike the original, which stores the whole state with every version, a version stores what changed."""
        log = hf.history("large")
        noise = [os.urandom(40).hex() for _ in range(5_000)]
        log.commit({"documents": noise, "n": 0})
        with log.edit(step="count") as state:
            state["n"] = 1
        assert log.at(1).size > 100_000
        assert log.at(2).size < 2_000


class TestResumeWorkflowFlow:
    """Resume Workflow Flow"""

    def test_crash_between_steps(self, place: str, tmp_path: Path) -> None:
        """After a process was killed in the second step, another one resumes from version 2 and completes the run."""
        program = tmp_path / "agents.py"
        program.write_text(PROGRAM)
        killed = subprocess.run(
            [sys.executable, str(program), place, ID, "die"], capture_output=True, text=True, check=False
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert killed.stdout.split() == ["cas_analyst", "cas_marketer"]
        with holdfast.open(place) as hf:
            assert hf.get(ID).head.number == 2
            until(lambda: not hf.get(ID).alive, "the end of the lease")
        done = subprocess.run(
            [sys.executable, str(program), place, ID], capture_output=True, text=True, check=False
        )
        assert done.stdout.split("\n")[:2] == ["cas_marketer", "a calm text"], done.stderr
        with holdfast.open(place) as hf:
            run = hf.get(ID)
            assert (run.status, run.resumed_from) == ("completed", 2)
            assert [each[0] for each in line(run)] == [1, 2, 3, 4]

    def test_network_error_in_a_step(self, hf: Holdfast) -> None:
        """After an error of the network the run keeps what was completed, and a later resume completes it."""
        run = interrupted(hf)
        assert (run.status, run.failure is not None) == ("failed", True)
        assert hf.resume(ID).status == "completed"
        assert [each[0] for each in line(hf.get(ID))] == [1, 2, 3, 4]


class TestRollbackWorkflowFlow:
    """Rollback Workflow Flow"""

    def test_bad_output_is_made_again(self, hf: Holdfast) -> None:
        """A completed run with a bad output is rolled back to the version before it, and completes again."""
        MARKETER[:] = [bad, good]
        assert hf.run(content_strategy, "AI", run_id=ID).result == "BUY NOW!!!"
        run = hf.rollback(ID, 2)
        assert (run.status, run.result) == ("completed", "a calm text")
        assert CALLS == ["cas_analyst", "cas_marketer", "cas_marketer"]

    def test_version_timeline(self, hf: Holdfast) -> None:
        """Versions 5 and 6 follow version 2 on a new timeline, and versions 3 and 4 stay as they were."""
        MARKETER[:] = [bad, good]
        hf.run(content_strategy, "AI", run_id=ID)
        run = hf.rollback(ID, 2)
        assert line(run) == [
            (1, None, 1, None),
            (2, 1, 1, "cas_analyst"),
            (3, 2, 1, "cas_marketer"),
            (4, 3, 1, None),
            (5, 2, 2, "cas_marketer"),
            (6, 5, 2, None),
        ]
        log = run.history()
        assert (log.at(4).result, log.at(6).result) == ("BUY NOW!!!", "a calm text")
        assert [each.number for each in log.ancestors()] == [6, 5, 2, 1]
        assert list(log.summary(limit=1)[0].completed_steps) == ["cas_analyst", "cas_marketer"]

    def test_nothing_of_the_abandoned_timeline_leaks(self, hf: Holdfast) -> None:
        """The new timeline sees nothing of the discarded versions."""
        MARKETER[:] = [bad, good]
        hf.run(content_strategy, "AI", run_id=ID)
        run = hf.rollback(ID, 2)
        assert run.state["agent_results"] == ["cas_analyst", "cas_marketer"]
        assert "BUY" not in json.dumps(run.state)


class TestWorkflowRecovery:
    """Workflow Recovery"""

    def test_failed_run_is_resumed_by_its_handler(self, hf: Holdfast) -> None:
        """The error of a failed workflow reaches the caller, who resumes the run by its id without repeating a step."""
        MARKETER[:] = [down, good]
        with pytest.raises(ConnectionError) as failure:
            hf.run(content_strategy, "AI", run_id=ID)
        assert any(ID in note for note in failure.value.__notes__)
        assert hf.resume(ID).result == "a calm text"
        assert CALLS.count("cas_analyst") == 1


class TestAgentOutputCorrection:
    """Agent Output Correction"""

    def test_version_before_a_step_is_found_and_run_again(self, hf: Holdfast) -> None:
        """The summary shows which version precedes the bad step; a rollback to it runs that step again."""
        MARKETER[:] = [bad, good]
        hf.run(content_strategy, "AI", run_id=ID)
        (wrong,) = [each for each in hf.history(ID).summary() if each.step == "cas_marketer"]
        assert wrong.parent == 2
        run = hf.rollback(ID, wrong.parent, reason="wrong tone")
        assert run.state["copy"] == "a calm text"


class TestDebuggingAndAnalysis:
    """Debugging & Analysis"""

    def test_each_step_can_be_inspected(self, hf: Holdfast) -> None:
        """One loop prints version, step, completed steps, their number and the keys of the state."""
        hf.run(content_strategy, "AI", run_id=ID)
        printed = [
            f"{each.version}: {each.step or each.kind}, {' → '.join(each.completed_steps)}, "
            f"{len(each.completed_steps)}, {', '.join(each.keys or ())}"
            for each in reversed(hf.history(ID).summary())
        ]
        assert printed == [
            "1: initial, , 0, ",
            "2: cas_analyst, cas_analyst, 1, insights, agent_results",
            "3: cas_marketer, cas_analyst → cas_marketer, 2, insights, agent_results, copy",
            "4: final, cas_analyst → cas_marketer, 2, insights, agent_results, copy",
        ]

    def test_values_of_a_step_can_be_read(self, hf: Holdfast) -> None:
        """For any version, arguments, result and what changed in the state are there."""
        hf.run(content_strategy, "AI", run_id=ID)
        made = hf.history(ID).at(3)
        assert (dict(made.arguments or {}), made.result) == ({"insights": "insights on AI"}, "a calm text")
        changes = hf.history(ID).diff(2, 3).changes
        assert [(each.kind, each.where) for each in changes] == [
            ("added", "agent_results[1]"),
            ("added", "copy"),
        ]


class TestABTestingDifferentAgents:
    """A/B Testing Different Agents"""

    def test_rollback_with_another_agent(self, hf: Holdfast) -> None:
        """A rollback can run the rest with another agent in the place of one, and both outputs stay."""
        hf.run(content_strategy, "AI", run_id=ID)
        run = hf.rollback(ID, 2, overrides={"cas_marketer": lambda insights: insights.upper()})
        log = run.history()
        assert (log.at(4).result, run.result) == ("a calm text", "INSIGHTS ON AI")
        ran = log.at(5).implementation
        assert ran is not None
        assert ran.overridden

    def test_outputs_are_compared(self, hf: Holdfast) -> None:
        """A fork runs independently of the original, and a comparison shows step by step where the two differ."""
        hf.run(content_strategy, "AI", run_id=ID)
        hf.fork(f"{ID}@2", "agent-b", overrides={"cas_marketer": lambda insights: insights.upper()})
        assert hf.resume("agent-b").result == "INSIGHTS ON AI"
        text = str(hf.compare(ID, "agent-b"))
        assert "cas_marketer" in text
        assert CALLS.count("cas_analyst") == 1
        assert hf.get(ID).result == "a calm text"


class TestCoreInfrastructure:
    """Core Infrastructure"""

    def test_database(self, place: str) -> None:
        """State is in a database, and a process that opens it later finds it."""
        with holdfast.open(place) as hf:
            hf.run(content_strategy, "AI", run_id=ID)
        with holdfast.open(place) as hf:
            assert hf.get(ID).result == "a calm text"
            assert hf.verify().ok

    def test_circuit_breaker(self, hf: Holdfast) -> None:
        """After failures in a row an agent's breaker refuses calls without making them."""
        made: list[int] = []

        @step(name="cas_broken", breaker=Breaker(failures=2, reset=600), retry=None)
        def broken() -> None:
            made.append(1)
            raise ConnectionError("down")

        @workflow(name="cas_breaker")
        def calls() -> None:
            broken()

        for error in (ConnectionError, ConnectionError, BreakerOpen):
            with pytest.raises(error):
                hf.run(calls)
        assert len(made) == 2

    def test_message_bus(self, hf: Holdfast) -> None:
        """As the original plans it: events of runs reach subscribers, in order."""
        seen: list[str] = []
        with hf.subscribe(lambda event: seen.append(event.kind), kinds=["run.*"]):
            hf.run(content_strategy, "AI", run_id=ID)
            until(lambda: len(seen) == 2)
        assert seen == ["run.started", "run.completed"]

    def test_retry_logic(self, hf: Holdfast) -> None:
        """As the original plans it: a step is tried again after a transient error, with a growing delay."""
        made: list[int] = []

        @step(name="cas_flaky", retry=Retry(3, delay=0.001))
        def flaky() -> int:
            made.append(1)
            if len(made) < 3:
                raise ConnectionError("down")
            return len(made)

        @workflow(name="cas_retry")
        def tries() -> int:
            return flaky()

        run = hf.run(tries)
        assert (run.result, run.history().versions(step="cas_flaky")[0].attempt) == (3, 3)

    @pytest.mark.parametrize("error", [ValueError, KeyError, TypeError, ZeroDivisionError, AttributeError])
    def test_mistakes_are_not_tried_again(self, hf: Holdfast, error: type[Exception]) -> None:
        """Only errors that may pass are tried again: a wrong value or a mistake in the program fails the step at
        once."""
        made: list[int] = []

        with isolated_definitions():

            @step(name="cas_wrong", retry=Retry(3, delay=0.001))
            def wrong() -> None:
                made.append(1)
                raise error("wrong")

            @workflow(name="cas_mistake")
            def mistake() -> None:
                wrong()

            with pytest.raises(error):
                hf.run(mistake)
        assert len(made) == 1

    def test_event_starts_a_workflow(self, hf: Holdfast) -> None:
        """As the original plans it: an event of one workflow starts another, once, with the event as its argument."""
        with isolated_definitions():

            @workflow(name="cas-source")
            def source() -> str:
                return "insights"

            @workflow(name="cas-reaction", on="run.completed", of=source)
            def reaction(event: dict[str, Any]) -> str:
                return f"after {event['run']}"

            hf.run(source, run_id=ID)
            until(lambda: hf.runs(workflow="cas-reaction", status="completed"))
            (run,) = hf.runs(workflow="cas-reaction")
        assert hf.get(run.id).result == f"after {ID}"


class TestStep1ResumeFunctionality:
    """Test Resume Functionality"""

    def test_resumed_from_version(self, hf: Holdfast) -> None:
        """The run says from which version it was resumed, and that it never was if a completed run is resumed."""
        interrupted(hf)
        assert hf.get(ID).resumed_from is None
        assert hf.resume(ID).resumed_from == 2
        assert hf.resume(ID).resumed_from == 2


class TestStep2RollbackFunctionality:
    """Test Rollback Functionality"""

    def test_available_versions(self, hf: Holdfast) -> None:
        """The summary gives the versions that a rollback can go to."""
        hf.run(content_strategy, "AI", run_id=ID)
        assert [each.version for each in reversed(hf.history(ID).summary())] == [1, 2, 3, 4]

    def test_rolled_back_from_is_the_version_that_was_left(self, hf: Holdfast) -> None:
        """Unlike the original, which reports the target, the run names the version that it was rolled back from."""
        hf.run(content_strategy, "AI", run_id=ID)
        run = hf.rollback(ID, 2)
        assert run.rolled_back_from == 4
        assert (run.history().timelines()[-1].parent, run.resumed_from) == (2, 2)


class TestStep3QueryWorkflowHistory:
    """Query Workflow History"""

    def test_page_reads_no_state(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        """A page of the summary is one query of versions and reads no state, however large the states are."""
        log = hf.history("large")
        for number in range(5):
            log.commit({"n": number, "text": os.urandom(50_000).hex()}, step=f"step-{number}")
        asked: list[str] = []

        def count(name: str) -> None:
            real = getattr(hf._store, name)

            def counted(*args: Any, **more: Any) -> Any:
                asked.append(name)
                return real(*args, **more)

            monkeypatch.setattr(hf._store, name, counted)

        for name in ("versions", "packs", "pack_bytes", "block", "artifact_pieces", "marks"):
            count(name)
        page = log.summary()
        assert (page[0].version, page[0].keys) == (5, ("n", "text"))
        assert asked == ["versions"]


class TestStep4VerifyInTheDatabase:
    """Verify in Supabase"""

    @pytest.fixture
    def query(
        self, place: str, hf: Holdfast, request: pytest.FixtureRequest
    ) -> Iterator[Callable[[str], list[Any]]]:
        if place.startswith("postgres"):
            with psycopg.connect(request.getfixturevalue("server"), autocommit=True) as server:
                server.execute(f'SET search_path TO "{request.getfixturevalue("schema")}"')
                yield lambda text: server.execute(text).fetchall()
        else:
            connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
            yield lambda text: connection.execute(text).fetchall()
            connection.close()

    def test_versions_with_sql(self, hf: Holdfast, query: Callable[[str], list[Any]]) -> None:
        """A SQL view has the versions of a run with their step and the number of completed steps."""
        hf.run(content_strategy, "AI", run_id=ID)
        hf.rollback(ID, 2)
        assert query(
            "SELECT version, parent, timeline, step, completed_steps FROM holdfast_versions "
            f"WHERE run_id = '{ID}' ORDER BY version"
        ) == [
            (1, None, 1, None, 0),
            (2, 1, 1, "cas_analyst", 1),
            (3, 2, 1, "cas_marketer", 2),
            (4, 3, 1, None, 2),
            (5, 2, 2, "cas_marketer", 2),
            (6, 5, 2, None, 2),
        ]

    def test_events_with_sql(self, hf: Holdfast, query: Callable[[str], list[Any]]) -> None:
        """A SQL view has the events of a run in their order, its resumes and rollbacks included."""
        hf.run(content_strategy, "AI", run_id=ID)
        hf.rollback(ID, 2, reason="bad copy")
        kinds = [
            row[0]
            for row in query(f"SELECT kind FROM holdfast_events WHERE run_id = '{ID}' ORDER BY position")
        ]
        assert kinds == [
            "run.started",
            "step.completed",
            "step.completed",
            "run.completed",
            "run.rolled_back",
            "run.resumed",
            "step.completed",
            "run.completed",
        ]
        assert query("SELECT timeline, started_from, reason FROM holdfast_timelines") == [(2, 2, "bad copy")]


class TestAutoIncrementingVersions:
    """Auto-Incrementing Versions"""

    def test_no_version_conflicts(self, hf: Holdfast) -> None:
        """Numbers are simple, predictable and never conflict."""
        log = hf.history("plain")
        assert [log.commit({"n": number}).number for number in range(4)] == [1, 2, 3, 4]

    def test_versions_can_have_names(self, hf: Holdfast) -> None:
        """Unlike the original, a version can have names: tags, by which it is found and rolled back to."""
        hf.run(content_strategy, "AI", run_id=ID)
        hf.history(ID).tag(2, "researched")
        assert hf.version(f"{ID}:researched").number == 2
        assert hf.rollback(ID, "researched").history().at(5).parent == 2


class TestResumeFromLatest:
    """Resume from Latest"""

    def test_after_a_rollback_the_latest_is_the_head(self, hf: Holdfast) -> None:
        """Unlike the original, where the highest number wins, a resume after a rollback continues at its target."""
        MARKETER[:] = [bad, good]
        hf.run(content_strategy, "AI", run_id=ID)
        hf.rollback(ID, 2, resume=False)
        run = hf.resume(ID)
        assert (run.resumed_from, run.result) == (2, "a calm text")


class TestRollbackCreatesNewTimeline:
    """Rollback Creates New Timeline"""

    def test_nothing_is_deleted(self, hf: Holdfast) -> None:
        """The full history stays, and even the abandoned end can become the head again."""
        MARKETER[:] = [bad, good]
        hf.run(content_strategy, "AI", run_id=ID)
        hf.rollback(ID, 2)
        run = hf.rollback(ID, 4, resume=False)
        assert run.state["copy"] == "BUY NOW!!!"
        assert [each[0] for each in line(run)] == [1, 2, 3, 4, 5, 6]


class TestSeparateResumeAndRollback:
    """Separate Resume vs Rollback"""

    def test_intents_are_separate(self, hf: Holdfast) -> None:
        """Resume takes no version and starts no timeline; rollback needs a version and starts one."""
        interrupted(hf)
        assert len(hf.resume(ID).history().timelines()) == 1
        assert len(hf.rollback(ID, 2).history().timelines()) == 2
        with pytest.raises(TypeError):
            hf.rollback(ID)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            hf.resume(ID, 2)  # type: ignore[call-arg, arg-type]


class TestHistoryQueryReturnsSummary:
    """History Query Returns Summary"""

    def test_states_are_read_only_when_asked_for(self, hf: Holdfast) -> None:
        """A summary has no state; the state of a version is read when it is asked for."""
        hf.run(content_strategy, "AI", run_id=ID)
        (newest, *_) = hf.history(ID).summary()
        assert not hasattr(newest, "state")
        assert hf.history(ID).at(newest.version).state["copy"] == "a calm text"

    def test_long_history_is_paged(self, hf: Holdfast) -> None:
        """Unlike the original, which returns all versions in one list, a long history is read page by page."""
        log = hf.history("long")
        log.commit({"n": 0})
        for number in range(120):
            with log.edit(step=f"step-{number}") as state:
                state["n"] = number
        page = log.summary(limit=10)
        assert ([each.version for each in page], len(page[0].completed_steps)) == (
            list(range(121, 111, -1)),
            120,
        )
        assert page[0].completed_steps[-2:] == ["step-118", "step-119"]


class TestWhatThisUnlocks:
    """What This Unlocks"""

    def test_audit_trail(self, hf: Holdfast) -> None:
        """The journal of a run has its whole life in order."""
        interrupted(hf)
        hf.resume(ID)
        hf.rollback(ID, 2, reason="bad copy", actor="ana")
        kinds = [event.kind for event in hf.get(ID).events()]
        assert kinds == [
            "run.started",
            "step.completed",
            "step.failed",
            "run.failed",
            "run.resumed",
            "step.completed",
            "run.completed",
            "run.rolled_back",
            "run.resumed",
            "step.completed",
            "run.completed",
        ]
        assert hf.verify().ok

    @pytest.mark.parametrize(
        "change",
        [
            "step = 'cas_analyst'",
            "at = at - 1",
            "pack = (SELECT other.pack FROM journal AS other WHERE other.number = 2)",
        ],
    )
    def test_later_change_is_found(self, tmp_path: Path, change: str) -> None:
        """Unlike in the original, verification finds a version that was changed in the database later: another step,
        another time, the state of another version."""
        with holdfast.open(tmp_path / "audit.db") as hf:
            hf.run(content_strategy, "AI", run_id=ID)
            assert hf.verify().ok
        with Database(tmp_path / "audit.db") as database:
            assert database.change(f"UPDATE journal SET {change} WHERE number = 3", ()) == 1
        with holdfast.open(tmp_path / "audit.db") as hf:
            found = hf.verify()
            assert not found.ok
            assert (ID, 3) in [(each.run, each.version) for each in found.problems]
            assert hf.version(f"{ID}@2").state["insights"] == "insights on AI"
