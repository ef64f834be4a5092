"""Stalled runs in the inbox: the diagnosis, and each choice."""

from __future__ import annotations

import threading

import project_folder
import pytest
from project_folder import ProjectFolder

import holdfast
from holdfast import Watchdog, step, workflow

project = project_folder.project
FLOWS = """
import holdfast
from holdfast import step, workflow

@step(name="cli_plan")
def plan(what):
    holdfast.state()[what] = True

@step(name="cli_stuck")
def stuck():
    return "over"

@workflow(name="cli_frozen", version="1")
def frozen():
    plan("plan")
    plan("notes")
    return stuck()
"""


@pytest.fixture
def frozen(project: ProjectFolder) -> ProjectFolder:
    """A run that stalled in its third step; the code that the program loads does not hang."""
    (project.folder / "thaw.py").write_text(FLOWS)
    time, hangs, over = [1_000_000_000.0], threading.Event(), threading.Event()

    @step(name="cli_plan")
    def plan(what: str) -> None:
        holdfast.state()[what] = True

    @step(name="cli_stuck")
    def stuck() -> str:
        hangs.set()
        over.wait(project_folder.DEADLINE)
        return "over"

    @workflow(name="cli_frozen", version="1", watchdog=Watchdog(heartbeat_timeout=60))
    def flow() -> str:
        plan("plan")
        plan("notes")
        return stuck()

    def run() -> None:
        with pytest.raises(holdfast.LeaseLost):
            hf.run(flow, run_id="frozen-1", state={"title": "kelp"})

    with holdfast.open(project.folder / project_folder.STORE, durability="fast", clock=lambda: time[0]) as hf:
        thread = threading.Thread(target=run)
        thread.start()
        assert hangs.wait(project_folder.DEADLINE)
        time[0] += 61
        assert len(hf.monitor().look()) == 1
        over.set()
        thread.join()
    return project


def test_stalled_run_is_in_the_inbox(frozen: ProjectFolder) -> None:
    (found,) = frozen.json("inbox")
    assert (found["id"], found["schema"]["enum"][1]) == ("frozen-1#1", "rollback")
    details = found["details"]
    assert (details["symptom"], details["address"], details["version"]) == ("silent", "cli_stuck", 3)
    assert [part["path"] for part in details["initial"]] == ["plan", "notes"]


def test_answer_shows_the_diagnosis_before_it_asks(frozen: ProjectFolder) -> None:
    screen = frozen.terminal("answer", "frozen-1", "--app", "thaw")
    screen.until("answer:")
    for text in (
        "frozen-1 is stalled: step cli_stuck has sent no heartbeat for 61 s",
        "cli_stuck, attempt 1",
        "last good version  3",
        "over.wait(",
        "changes since the start",
        "+ plan: True",
    ):
        assert text in screen.text
    screen.type("cancel\n")
    assert screen.end() == 0
    assert frozen.look("frozen-1")[0] == "cancelled"


def test_answer_resume_resumes_the_stalled_run(frozen: ProjectFolder) -> None:
    found = frozen.json("answer", "frozen-1", "resume", "--app", "thaw")
    assert (found["status"], found["result"], found["timeline"]) == ("completed", "over", 1)


def test_answer_rollback_rolls_the_stalled_run_back(frozen: ProjectFolder) -> None:
    found = frozen.json("answer", "frozen-1#1", "rollback", "--to", "2", "--app", "thaw", "--actor", "ann")
    assert (found["status"], found["timeline"]) == ("completed", 2)
    (reported,) = frozen.json("inbox", "--answered")
    assert (reported["actor"], reported["details"]) == ("ann", {"choice": "rollback", "version": 2})


def test_answer_reinitialize_keeps_the_named_parts(frozen: ProjectFolder) -> None:
    found = frozen.json("answer", "frozen-1", "reinitialize", "--keep", "notes", "--app", "thaw")
    assert found["status"] == "completed"
    with frozen.open() as hf:
        (restarted,) = [each for each in hf.history("frozen-1").versions() if each.kind == "manual"]
        assert restarted.state == {"title": "kelp", "notes": True}


def test_answer_without_code_leaves_the_run_to_others(frozen: ProjectFolder) -> None:
    done = frozen.call("answer", "frozen-1", "resume")
    assert (done.code, done.err) == (0, "")
    assert "frozen-1#1; a worker or monitor" in done.out
    assert frozen.look("frozen-1")[0] == "queued"
    assert frozen.call("resume", "frozen-1", "--app", "thaw").code == 0
    assert frozen.look("frozen-1")[:2] == ("completed", "over")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["restart"], "one of resume, rollback, reinitialize, cancel"),
        (["rollback", "--to", "9"], "no version 9"),
        (["reinitialize", "--keep", "nothing"], "plan, notes"),
        (["resume", "--keep", "plan"], "keep goes with the choice reinitialize"),
    ],
)
def test_answer_that_does_not_fit_is_refused(frozen: ProjectFolder, given: list[str], why: str) -> None:
    done = frozen.call("answer", "frozen-1", *given)
    assert done.code == 2
    assert why in done.err
    assert frozen.look("frozen-1")[0] == "stalled"


def test_second_answer_is_refused(frozen: ProjectFolder) -> None:
    assert frozen.call("answer", "frozen-1", "cancel", "--actor", "ann").code == 0
    done = frozen.call("answer", "frozen-1#1", "resume")
    assert done.code == 4
    assert "answered already, by ann at" in done.err


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_watch_ends_with_the_question(frozen: ProjectFolder, how: list[str]) -> None:
    done = frozen.process("watch", "frozen-1", *how, timeout=20)
    assert done.code == 5
    assert how or "(holdfast answer frozen-1#1)" in done.out
