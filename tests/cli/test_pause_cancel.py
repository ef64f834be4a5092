"""`holdfast pause` and `holdfast cancel`."""

from __future__ import annotations

import flows
import project_folder
import pytest
import terminal
from filled_store import SampleStore
from project_folder import ProjectFolder

project = project_folder.project


@pytest.fixture
def waiting(project: ProjectFolder) -> ProjectFolder:
    project.run(flows.sleeping, 3600, run_id="wait-1")
    return project


@pytest.mark.parametrize(("command", "status"), [("pause", "paused"), ("cancel", "cancelled")])
def test_pause_and_cancel_stop_an_idle_run_at_once(waiting: ProjectFolder, command: str, status: str) -> None:
    done = waiting.call(command, "wait-1", "--reason", "enough")
    assert (done.code, done.out) == (0, f"wait-1 is {status}\n")
    assert "wait-1, which is suspended" in done.err
    assert waiting.look("wait-1")[0] == status
    assert waiting.json(command, "wait-1") == {"run": "wait-1", "status": status}
    with waiting.open() as hf:
        assert "enough" in str([event.data for event in hf.get("wait-1").events()]) + str(
            hf.get("wait-1").head.note
        )


@pytest.mark.parametrize("command", ["pause", "cancel"])
def test_pause_and_cancel_dry_run_changes_nothing(waiting: ProjectFolder, command: str) -> None:
    before = waiting.bytes()
    assert "wait-1, which is suspended" in waiting.call(command, "wait-1", "--dry-run").out
    assert waiting.json(command, "wait-1", "--dry-run") == {
        "dry_run": True,
        "run": "wait-1",
        "status": "suspended",
    }
    assert waiting.bytes() == before


@pytest.mark.parametrize("command", ["pause", "cancel"])
@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("\x03", 130)])
def test_pause_and_cancel_ask_on_a_terminal(
    waiting: ProjectFolder, command: str, typed: str, code: int
) -> None:
    before = waiting.bytes()
    screen = waiting.terminal(command, "wait-1").until("Go ahead?")
    assert screen.type(typed).end() == code
    assert "Traceback" not in screen.text
    assert (waiting.bytes() == before) is (typed != "y\n")


@pytest.mark.parametrize("command", ["pause", "cancel"])
def test_pause_and_cancel_of_an_ended_run_conflict(project: ProjectFolder, command: str) -> None:
    project.run(flows.shop, run_id="shop-1")
    before = project.bytes()
    code, text = terminal.seen(command, "shop-1", cwd=project.folder)
    assert (code, text) == (4, "shop-1 had ended already: it is completed")
    assert project.bytes() == before


def test_cancel_cancels_children(project: ProjectFolder) -> None:
    project.run(flows.parent, run_id="parent-1")
    done = project.call("cancel", "parent-1")
    assert "its children are cancelled, too: parent-1.cli_child" in done.err
    assert project.look("parent-1.cli_child")[0] == "cancelled"


@pytest.mark.parametrize(("command", "status"), [("pause", "paused"), ("cancel", "cancelled")])
def test_pause_and_cancel_of_a_running_run_wait_for_the_next_step(
    project: ProjectFolder, command: str, status: str
) -> None:
    broken = project.touch("broken")
    project.run(flows.failing, run_id="fail-1")
    broken.unlink()
    project.rewrite('did("fragile")', 'did("fragile")\n    wait_for_file("go")')
    project.rewrite("return fragile()", "fragile()\n    return fragile()")
    other = project.terminal("resume", "fail-1", "--yes", "--app", "flows")
    project_folder.until(lambda: project.world.count("fragile") == 2)
    done = project.call(command, "fail-1")
    assert (done.code, done.out) == (0, f"fail-1 is being advanced: it will be {status} at the next step\n")
    project.touch("go")
    assert other.end() == 0, other.text
    assert other.text.splitlines()[-1].startswith(f"{status}  fail-1@")
    assert project.look("fail-1")[0] == status
    assert project.world.count("fragile") == 2


def test_paused_run_is_resumed(waiting: ProjectFolder) -> None:
    assert waiting.call("pause", "wait-1").code == 0
    assert waiting.call("resume", "wait-1", "--app", "flows").code == 0
    assert waiting.look("wait-1")[0] == "suspended"


@pytest.mark.parametrize("command", ["pause", "cancel"])
def test_pause_and_cancel_of_a_manual_run_are_refused(project: ProjectFolder, command: str) -> None:
    with project.open() as hf:
        hf.history("notes").commit({"a": 1})
    before = project.bytes()
    refused = project.call(command, "notes", "--yes")
    assert refused.code == 2
    assert refused.err == f"holdfast: run 'notes' is a manual run: there is nothing to {command}\n"
    assert project.bytes() == before


@pytest.mark.parametrize("command", ["pause", "cancel"])
def test_pause_and_cancel_name_an_interrupted_run(sample: SampleStore, command: str) -> None:
    assert "died, which is interrupted" in sample.call(command, "died", "--dry-run").out
