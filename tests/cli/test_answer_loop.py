"""Questions of agent loops on the command line: listed, shown and answered as those of stalled runs."""

from __future__ import annotations

import project_folder
import pytest
from project_folder import ProjectFolder

from holdfast.loops import LoopEngine

project = project_folder.project
CONTROL = "loop/report/control"


@pytest.fixture
def asking(project: ProjectFolder) -> ProjectFolder:
    """A loop that asks what to do: its state changed after its last snapshot."""
    with project.open() as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.save_loop_snapshot("report", {"loop_count": 1, "plan": {"a": 1, "b": [2]}})
        engine.update_project_state("report", {"loop_count": 2, "memory": ["odd"]})
        engine.auto_restore_if_configured("report", "crash")
    return project


def state(project: ProjectFolder) -> object:
    with project.open() as hf:
        return LoopEngine(hf, check_every=None).get_project_state("report")["state"]


def test_inbox_lists_the_question_of_a_loop(asking: ProjectFolder) -> None:
    (question,) = asking.json("inbox", "--kind", "loop")
    assert (question["run"], question["project"], question["workflow"]) == (CONTROL, "report", None)
    assert question["details"]["initial"] == [
        {"path": path, "changes": [f"+ {path}: {value}"]}
        for path, value in (("loop_count", "2"), ("plan", "{'a': 1, 'b': [2]}"), ("memory", "['odd']"))
    ]
    assert asking.json("inbox", "--kind", "stalled") == []


def test_question_of_a_loop_is_described_on_a_terminal(asking: ProjectFolder) -> None:
    screen = asking.terminal("answer", CONTROL)
    screen.until("answer:").type("resume\n")
    assert screen.end() == 0
    for line in (
        "loop report is stalled: crash",
        "last good version  1",
        "loop_count: 1 → 2",
        "+ memory: ['odd']",
    ):
        assert line in screen.text


def test_question_is_answered_by_the_run_of_the_loop(asking: ProjectFolder) -> None:
    (question,) = asking.json("inbox", "--run", "loop/report")
    assert question["run"] == CONTROL
    asking.json("answer", "loop/report", "rollback")
    assert state(asking) == {"loop_count": 1, "plan": {"a": 1, "b": [2]}}
    assert asking.json("inbox", "--run", "loop/report") == []


@pytest.mark.parametrize(
    ("answer", "after"),
    [
        (["resume"], {"loop_count": 2, "plan": {"a": 1, "b": [2]}, "memory": ["odd"]}),
        (["rollback", "--to", "1"], {"loop_count": 1, "plan": {"a": 1, "b": [2]}}),
        (["reinitialize", "--keep", "plan.b", "--keep", "memory"], {"plan": {"b": [2]}, "memory": ["odd"]}),
        (["cancel"], {"loop_count": 2, "plan": {"a": 1, "b": [2]}, "memory": ["odd"]}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_question_of_a_loop_is_answered_once(
    asking: ProjectFolder, answer: list[str], after: dict[str, object]
) -> None:
    (question,) = asking.json("inbox")
    done = asking.call("answer", question["id"], *answer, "--actor", "Ada")
    assert (done.code, done.out) == (0, f"answered {question['id']}: {answer[0]}\n")
    assert state(asking) == after
    assert asking.json("inbox") == []
    assert "answered already, by Ada" in asking.call("answer", question["id"], "resume").err
    (answered,) = asking.json("inbox", "--answered")
    assert (answered["actor"], answered["details"]["choice"]) == ("Ada", answer[0])
    assert (answered["kind"], answered["project"]) == ("loop", "report")


def test_runs_of_a_loop_are_found_by_its_prefix_and_control_runs_are_not_listed(
    asking: ProjectFolder,
) -> None:
    assert [run["id"] for run in asking.json("runs")] == ["loop/report"]
    assert asking.json("show", "loop/rep")["run"] == "loop/report"
