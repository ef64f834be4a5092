"""`holdfast resume`."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress

import flows
import project_folder
import pytest
import terminal
from project_folder import ProjectFolder, one_line

from holdfast import LimitExceeded, Limits

project = project_folder.project


@pytest.fixture
def failed(project: ProjectFolder) -> ProjectFolder:
    """A run that failed at its second step; the cause is gone."""
    broken = project.touch("broken")
    project.run(flows.failing, run_id="fail-1")
    broken.unlink()
    project.forget()
    return project


def test_resume_in_a_pipe_replays_recorded_steps(failed: ProjectFolder) -> None:
    done = failed.call("resume", "fail-1", "--app", "flows")
    assert (done.code, done.out) == (0, 'completed  fail-1@4: "whole"\n')
    assert "1 completed step will be replayed from history." in done.err
    assert failed.world == ["fragile"]
    assert failed.look("fail-1")[:2] == ("completed", "whole")


def test_resume_prints_the_outcome_as_json(failed: ProjectFolder) -> None:
    found = failed.json("resume", "fail-1", "--app", "flows")
    assert found == {"run": "fail-1", "status": "completed", "version": 4, "timeline": 1, "result": "whole"}


def test_resume_dry_run_needs_no_code(failed: ProjectFolder) -> None:
    before = failed.bytes()
    done = failed.call("resume", "fail-1", "--dry-run")
    assert done.code == 0
    assert "1 completed step will be replayed from history." in done.out
    found = failed.json("resume", "fail-1", "--dry-run")
    assert (found["dry_run"], found["replayed"], found["known"]) == (True, ["order"], False)
    assert failed.bytes() == before
    assert failed.world == []


@pytest.mark.parametrize(("typed", "code", "status"), [("y\n", 0, "completed"), ("n\n", 1, "failed")])
def test_resume_asks_on_a_terminal(failed: ProjectFolder, typed: str, code: int, status: str) -> None:
    before = failed.bytes()
    screen = failed.terminal("resume", "fail-1", "--app", "flows")
    screen.until("will be replayed from history").until("Go ahead?")
    assert failed.bytes() == before
    assert screen.type(typed).end() == code
    assert ("✓ fragile" in screen.text) is (status == "completed")
    assert ("nothing was changed" in screen.text) is (status == "failed")
    assert failed.look("fail-1")[0] == status


def test_resume_interrupted_at_the_question_changes_nothing(failed: ProjectFolder) -> None:
    before = failed.bytes()
    screen = failed.terminal("resume", "fail-1", "--app", "flows").until("Go ahead?")
    assert screen.interrupt().end() == 130
    assert screen.text.splitlines()[-1] == "holdfast: interrupted; nothing is lost"
    assert "Traceback" not in screen.text
    assert failed.bytes() == before


def test_resume_yes_asks_nothing(failed: ProjectFolder) -> None:
    code, text = terminal.seen("resume", "fail-1", "--yes", "--app", "flows", cwd=failed.folder)
    assert code == 0
    assert "Go ahead?" not in text


def test_resume_without_code_says_how_to_name_it(failed: ProjectFolder) -> None:
    line = one_line(failed.call("resume", "fail-1"), 2)
    assert "resume needs the code of workflow 'cli_failing'" in line
    assert "--app module" in line
    assert "[tool.holdfast] app" in line
    found = failed.json("resume", "fail-1", code=2)
    assert (found["code"], found["details"]) == ("invalid", {"workflow": "cli_failing"})


def test_resume_that_fails_again_exits_with_1(failed: ProjectFolder) -> None:
    failed.touch("broken")
    done = failed.call("resume", "fail-1", "--app", "flows")
    assert done.code == 1
    assert "ValueError: the cup is broken" in done.out
    assert "holdfast resume fail-1" in done.out
    found = failed.json("resume", "fail-1", "--app", "flows", code=1)
    assert (found["status"], found["error"]["message"]) == ("failed", "the cup is broken")


def test_resume_of_a_completed_run_prints_its_result(project: ProjectFolder) -> None:
    project.run(flows.shop, run_id="shop-1")
    before = project.bytes()
    screen = project.terminal("resume", "shop-1")
    assert screen.end() == 0
    assert screen.text == "completed  shop-1@6: 2"
    assert project.bytes() == before


def test_resume_from_an_address_runs_again(project: ProjectFolder) -> None:
    project.run(flows.shop, run_id="shop-1")
    project.forget()
    plan = project.json("resume", "shop-1", "--from", "order#2", "--dry-run")
    assert (plan["undo"], plan["again"]) == (["order#2"], ["order#2", "count#2"])
    done = project.call("resume", "shop-1", "--from", "order#2", "--app", "flows")
    assert done.code == 0, done
    assert "Compensations will run first, in this order: order#2." in done.err
    assert project.world == ["undo rock", "order rock", "count 2"]
    line = one_line(project.call("resume", "shop-1", "--from", "nope", "--app", "flows"), 3)
    assert "has recorded no step 'nope'" in line


@pytest.mark.parametrize(
    ("flow", "arguments", "waits"),
    [
        (flows.sleeping, (3600,), "sleep"),
        (flows.waiting, (), "printer"),
        (flows.asking, ({"type": "boolean"},), '1: "Shall it be published?"'),
        (flows.parent, (), '1: "Is the child well?"'),
    ],
)
def test_resume_exits_with_5_only_for_questions(
    project: ProjectFolder, flow: object, arguments: tuple[object, ...], waits: str
) -> None:
    project.run(flow, *arguments, run_id="wait-1")
    code = 5 if "?" in waits else 0
    done = project.call("resume", "wait-1", "--app", "flows")
    assert (done.code, done.out[:9]) == (code, "suspended")
    assert waits in done.out
    found = project.json("resume", "wait-1", "--app", "flows", code=code)
    assert found["status"] == "suspended"
    assert len(found["questions"]) == ("?" in waits)
    assert ("(in 60 min)" in done.out, found["until"] is not None) == (waits == "sleep",) * 2


def test_resume_of_a_cancelled_run_is_refused(project: ProjectFolder) -> None:
    project.run(flows.sleeping, 3600, run_id="wait-1")
    assert project.call("cancel", "wait-1").code == 0
    screen = project.terminal("resume", "wait-1", "--app", "flows")
    assert screen.end() == 2
    assert "Go ahead?" not in screen.text
    line = one_line(project.call("resume", "wait-1", "--app", "flows"), 2)
    assert "was cancelled" in line
    assert "holdfast rollback wait-1 --to VERSION" in line


def test_resume_of_an_asynchronous_workflow(project: ProjectFolder) -> None:
    broken = project.touch("broken")
    project.run(flows.walking, run_id="walk-1")
    assert project.call("resume", "walk-1", "--app", "flows").code == 1
    broken.unlink()
    done = project.call("resume", "walk-1", "--app", "flows")
    assert (done.code, done.out) == (0, "completed  walk-1@4: 2\n")
    assert project.world == ["acount", "acount"]


def test_resume_of_a_manual_run_is_refused(project: ProjectFolder) -> None:
    with project.open() as hf:
        hf.history("by-hand").commit({"a": 1})
    assert "manual run" in one_line(project.call("resume", "by-hand", "--app", "flows"), 2)


def test_resume_of_a_running_run_conflicts_until_its_process_is_killed(project: ProjectFolder) -> None:
    project.touch("go-a")
    (project.folder / "start.py").write_text(
        "import flows, holdfast\nholdfast.open('holdfast.db').run(flows.long, ['a', 'b'], run_id='long-1')\n"
    )
    other = subprocess.Popen(
        [terminal.PROGRAM[0], "start.py"], cwd=project.folder, env=terminal.environment()
    )
    try:
        project.until("begin b")
        done = project.call("resume", "long-1", "--app", "flows")
        assert done.code == 4
        assert done.err.splitlines()[-1] == (
            "holdfast: run 'long-1' is being advanced elsewhere: wait for it, or cancel it"
        )
        assert project.json("resume", "long-1", "--app", "flows", code=4)["code"] == "already_running"
        assert project.call("rollback", "long-1", "--to", "1", "--app", "flows").code == 4
        assert [run["status"] for run in project.json("runs")] == ["running"]
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert [run["status"] for run in project.json("runs")] == ["interrupted"]
    project.touch("go-b")
    project.forget()
    done = project.call("resume", "long-1", "--app", "flows")
    assert (done.code, done.out) == (0, "completed  long-1@6: 2\n")
    assert project.world == ["begin b", "end b", "count 2"]


def test_resume_with_changed_code_is_refused(failed: ProjectFolder) -> None:
    failed.rewrite("return fragile()", 'return "x" + fragile()')
    done = failed.call("resume", "fail-1", "--app", "flows", "--changed", "refuse")
    assert done.code == 4
    assert "use --changed allow" in done.err
    assert (
        failed.json("resume", "fail-1", "--app", "flows", "--changed", "refuse", code=4)["code"]
        == "code_changed"
    )
    assert failed.look("fail-1")[0] == "failed"
    done = failed.call("resume", "fail-1", "--app", "flows", "--changed", "allow")
    assert (done.code, done.out) == (0, 'completed  fail-1@4: "xwhole"\n')


def test_resume_with_a_divergence_is_refused_or_runs_again(project: ProjectFolder) -> None:
    (project.folder / "topic.txt").write_text("kelp")
    broken = project.touch("broken")
    project.run(flows.reading, run_id="read-1")
    broken.unlink()
    (project.folder / "topic.txt").write_text("rock")
    done = project.call("resume", "read-1", "--app", "flows")
    assert done.code == 4
    assert "holdfast resume read-1 --from topic" in done.err
    assert "holdfast resume read-1 --changed accept" in done.err
    assert project.json("resume", "read-1", "--app", "flows", code=4)["code"] == "replay_diverged"
    assert project.look("read-1")[0] == "failed"
    done = project.call("resume", "read-1", "--app", "flows", "--on-divergence", "rerun")
    assert (done.code, done.out.split(": ")[1]) == (0, '"rock"\n')
    assert project.world == ["topic kelp", "topic rock"]


def test_resume_keeps_the_output_of_steps_apart(failed: ProjectFolder) -> None:
    failed.rewrite('did("fragile")', 'did("fragile"), print("a word")')
    done = failed.call("resume", "fail-1", "--app", "flows", "--json")
    assert done.out.startswith('{"run"')
    assert done.err == "a word\n"


def test_resume_with_a_higher_limit_continues(project: ProjectFolder) -> None:
    with suppress(LimitExceeded):
        project.run(flows.shop, run_id="shop-1", limits=Limits(steps=1, cost=5))
    project.forget()
    shown = project.json("show", "shop-1")
    assert shown["failure"]["type"] == "holdfast.errors.LimitExceeded"
    shown = shown["spending"]
    assert shown["limits"] == {"steps": 1, "cost": 5}
    assert shown["spent"] | {"seconds": 0} == {"cost": 0, "tokens": 0, "steps": 1, "seconds": 0}
    refused = project.call("resume", "shop-1", "--app", "flows")
    assert "has used up its limit of steps (1 of 1)" in refused.out + refused.err
    assert "`holdfast resume shop-1 --limit steps=N` tries again" in refused.out
    for bad in ("steps=many", "stops=3", "steps=-1", "steps"):
        assert project.call("resume", "shop-1", "--app", "flows", "--limit", bad).code == 2
    assert project.call("resume", "shop-1", "--app", "flows", "--limit", "steps=9").code == 0
    assert project.look("shop-1")[0] == "completed"
    assert project.json("show", "shop-1")["spending"]["limits"] == {"steps": 9, "cost": 5}
