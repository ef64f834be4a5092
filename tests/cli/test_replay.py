"""`holdfast replay`."""

from __future__ import annotations

import flows
import project_folder
import pytest
from project_folder import ProjectFolder, one_line

project = project_folder.project


@pytest.fixture
def chancy(project: ProjectFolder) -> ProjectFolder:
    """A run whose step gave `kelp`, and would give `rock` now."""
    (project.folder / "topic.txt").write_text("kelp")
    project.run(flows.chancy, run_id="chance-1")
    project.run(flows.shop, run_id="shop-1", state={"n": 0})
    project.forget()
    (project.folder / "topic.txt").write_text("rock")
    return project


def test_replay_validate_of_equal_results(chancy: ProjectFolder) -> None:
    before = chancy.bytes()
    done = chancy.call("replay", "shop-1", "--validate", "--app", "flows")
    assert (done.code, done.out) == (0, "")
    assert "run 4 recorded steps of cli_shop again" in done.err
    assert chancy.json("replay", "shop-1", "--validate", "--app", "flows") == []
    assert chancy.world == ["order kelp", "count 1", "order rock", "count 2"] * 2
    assert chancy.bytes() == before
    screen = chancy.terminal("replay", "shop-1", "--validate", "--yes", "--app", "flows")
    assert screen.end() == 0
    assert "no difference in 4 recorded steps" in screen.text


def test_replay_validate_reports_differences(chancy: ProjectFolder) -> None:
    before = chancy.bytes()
    done = chancy.call("replay", "chance-1", "--validate", "--app", "flows")
    assert (done.code, done.out.splitlines()[0]) == (1, "other\tresult\tkelp\trock")
    found = chancy.json("replay", "chance-1", "--validate", "--app", "flows", code=1)
    assert found[0] == {"address": "other", "what": "result", "recorded": "kelp", "now": "rock"}
    assert chancy.bytes() == before
    screen = chancy.terminal("replay", "chance-1", "--validate", "--app", "flows")
    screen.until("side effects included").until("Go ahead?").type("y\n")
    assert screen.end() == 1
    assert "recorded" in screen.text
    assert '"rock"' in screen.text


@pytest.mark.parametrize(("typed", "code"), [("n\n", 1), ("\x03", 130)])
def test_replay_asks_before_it_runs(chancy: ProjectFolder, typed: str, code: int) -> None:
    screen = chancy.terminal("replay", "shop-1", "--validate", "--app", "flows").until("Go ahead?")
    assert screen.type(typed).end() == code
    assert chancy.world == []


@pytest.mark.parametrize("how", ["--validate", "--republish"])
def test_replay_dry_run_needs_no_code(chancy: ProjectFolder, how: str) -> None:
    before = chancy.bytes()
    done = chancy.call("replay", "shop-1", how, "--dry-run")
    assert done.code == 0
    assert chancy.json("replay", "shop-1", how, "--dry-run") == {
        "dry_run": True,
        "run": "shop-1",
        "steps": ["order", "count", "order#2", "count#2"],
    }
    assert (chancy.bytes(), chancy.world) == (before, [])


def test_replay_republish_writes_events_again(chancy: ProjectFolder) -> None:
    done = chancy.call("replay", "shop-1", "--republish", "--app", "flows")
    assert (done.code, done.out) == (0, "completed  shop-1@6: 2\n")
    assert chancy.world == []


def test_replay_republish_resumes_and_reports_the_outcome(project: ProjectFolder) -> None:
    project.touch("broken")
    project.run(flows.failing, run_id="fail-1")
    found = project.json("replay", "fail-1", "--republish", "--app", "flows", code=1)
    assert found["status"] == "failed"
    project.run(flows.asking, {"type": "boolean"}, run_id="ask-1")
    assert project.json("replay", "ask-1", "--republish", "--app", "flows", code=5)["questions"] == [
        "ask-1#1"
    ]


def test_replay_of_an_asynchronous_workflow(project: ProjectFolder) -> None:
    project.run(flows.walking, run_id="walk-1")
    assert project.json("replay", "walk-1", "--validate", "--app", "flows") == []
    assert project.world == ["acount"] * 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "use --validate or --republish"),
        (["--validate", "--republish"], "use --validate or --republish"),
        (["--validate"], "replay needs the code of workflow 'cli_shop'"),
    ],
)
def test_replay_usage_errors_are_reported(chancy: ProjectFolder, arguments: list[str], text: str) -> None:
    assert text in one_line(chancy.call("replay", "shop-1", *arguments), 2)


def test_replay_of_a_manual_run_is_refused(project: ProjectFolder) -> None:
    with project.open() as hf:
        hf.history("by-hand").commit({})
    assert "there are no steps to replay" in one_line(project.call("replay", "by-hand", "--validate"), 2)
