"""The tools of `holdfast mcp` that change something, called by the protocol's own client through real pipes.

Two servers for all tests, in one folder: `knowing` has the code of the workflows, `bare` has not. So each test has runs
of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flows
import pytest
from project_folder import ProjectFolder
from tool_agent import Agent, agent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changing")


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProjectFolder]:
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("HOLDFAST")]:
        monkeypatch.delenv(name)
    made = ProjectFolder(folder)
    yield made
    made.forget()
    for name in ("broken", "stuck-kelp"):
        (folder / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def knowing(folder: Path) -> Iterator[Agent]:
    with agent(folder, "--app", "flows") as found:
        yield found


@pytest.fixture(scope="module")
def bare(folder: Path) -> Iterator[Agent]:
    with agent(folder) as found:
        yield found


def test_rollback_is_described_then_done(project: ProjectFolder, knowing: Agent) -> None:
    project.run(flows.shop, run_id="shop-1")
    project.forget()
    before = project.bytes()
    lines = knowing.read("rollback", run="shop", to="~2")
    assert lines[0] == "Nothing was changed. This would be done; the last line is the call that does it."
    assert lines[-1] == 'rollback {"run": "shop-1", "to": 4, "confirm": true}'
    plan = knowing.call("rollback", run="shop", to=3, reason="wrong rock")
    assert plan["changed"] is False
    assert plan["ready"] is True
    assert plan["preview"]["undo"] == ["order#2"]
    assert "Compensations will run first, in this order: order#2." in plan["would"]
    assert (project.bytes(), project.world) == (before, [])
    call = plan["call"]
    assert call == {
        "tool": "rollback",
        "arguments": {"run": "shop-1", "to": 3, "reason": "wrong rock", "confirm": True},
    }
    done = knowing.call(call["tool"], **call["arguments"])
    assert (done["changed"], done["run"], done["status"], done["result"]) == (
        True,
        "shop-1",
        "completed",
        2,
    )
    assert project.world == ["undo rock", "order rock", "count 2"]
    (line,) = knowing.call("log", run="shop-1")["timelines"][1:]
    assert (line["parent"], line["reason"], line["actor"]) == (3, "wrong rock", "mcp")


def test_rollback_without_resume_needs_no_code(project: ProjectFolder, bare: Agent) -> None:
    project.run(flows.asking, None, run_id="leave-1")
    plan = bare.call("rollback", run="leave-1", to=1)
    assert plan["ready"] is False
    assert "needs the code of workflow 'cli_asking'" in plan["missing"]
    assert "resume=false" in plan["missing"]
    done = bare.call("rollback", run="leave-1", to=1, resume=False, confirm=True)
    assert (done["status"], done["version"], done["timeline"]) == ("paused", 1, 2)


def test_rollback_reports_a_run_that_fails_on_resume(project: ProjectFolder, knowing: Agent) -> None:
    project.touch("broken")
    project.run(flows.failing, run_id="fail-1")
    done = knowing.call("rollback", run="fail-1", to=2, confirm=True)
    assert (done["status"], done["error"]["message"]) == ("failed", "the cup is broken")
    project.touch("stuck-kelp")
    error = knowing.refused("rollback", run="fail-1", to=1, confirm=True)
    assert error["code"] == "compensation_failed"
    assert "kelp cannot be sent back" in error["message"]


def test_fork_is_described_then_done(project: ProjectFolder, knowing: Agent) -> None:
    project.run(flows.shop, run_id="tray-1")
    project.forget()
    before = project.bytes()
    plan = knowing.call("fork", ref="tray~3", new="tray-2", set={"n": 41})
    assert plan["would"] == ["A new run tray-2 will start with the state of tray-1@3.", "n will be 41."]
    assert project.bytes() == before
    done = knowing.call(plan["call"]["tool"], **plan["call"]["arguments"])
    assert (done["run"], done["changed"]) == ("tray-2", True)
    assert project.world == []
    assert knowing.call("show", ref="tray-2", path="n")["value"] == 41
    assert knowing.refused("fork", ref="tray-1", new="tray-2", confirm=True)["code"] == "already_exists"
    gone_on = knowing.call("fork", ref="tray-1@3", set={"n": 6}, resume=True, confirm=True)
    assert (gone_on["status"], gone_on["result"]) == ("completed", 7)
    assert knowing.call("log", run="tray-2")["versions"][-1]["actor"] == "mcp"


def test_answer_is_described_then_done(project: ProjectFolder, knowing: Agent) -> None:
    project.run(flows.asking, {"type": "boolean"}, run_id="yes-1")
    before = project.bytes()
    plan = knowing.call("answer", question="yes", value=True)
    assert plan["would"][:2] == ['yes-1#1 asks: "Shall it be published?"', "the answer is true"]
    assert project.bytes() == before
    assert len(knowing.call("inbox", run="yes-1")["questions"]) == 1
    error = knowing.refused("answer", question="yes", value={"no": "bool"})
    assert error["code"] == "invalid_answer"
    done = knowing.call(plan["call"]["tool"], **plan["call"]["arguments"])
    assert (done["run"], done["status"], done["result"]) == ("yes-1", "completed", True)
    assert project.world[-1] == "answer True"
    late = knowing.refused("answer", question="yes-1#1", value=True)
    assert late["code"] == "invalid_answer"
    assert knowing.call("inbox", answered=True, run="yes-1")["questions"][0]["actor"] == "mcp"


def test_answer_sent_as_text_is_parsed(project: ProjectFolder, bare: Agent) -> None:
    cases: dict[str, tuple[Any, str, Any]] = {
        "bool": ({"type": "boolean"}, "yes", True),
        "int": ({"type": "integer"}, "3", 3),
        "str": ({"type": "string"}, "3", "3"),
        "any": (None, "3", "3"),
        "dict": ({"type": "object"}, '{"a": 1}', {"a": 1}),
    }
    for name, (schema, _, _) in cases.items():
        project.run(flows.asking, schema, run_id=name)
    for name, (_, text, got) in cases.items():
        assert bare.call("answer", question=f"{name}#1", value=text)["value"] == got
        done = bare.call("answer", question=f"{name}#1", value=text, confirm=True)
        # Without the code, another process resumes the run.
        assert done["status"] == "suspended"
    with project.open() as hf:
        for name, (_, _, got) in cases.items():
            assert hf.resume(name).result == got


def test_described_call_equals_the_call_made(project: ProjectFolder, bare: Agent) -> None:
    """Marked values are unchanged, and a call that is too long is left out, not truncated."""
    with project.open() as hf:
        hf.history("plain").commit({})
    pair = {"$holdfast": "tuple", "value": [1, 2]}
    plan = bare.call("fork", ref="plain", new="pair", set={"pair": pair})
    assert plan["call"]["arguments"]["set"] == plan["set"] == {"pair": pair}
    bare.call("fork", **plan["call"]["arguments"])
    many = {f"part{number}": "x" * 500 for number in range(500)}
    plan = bare.call("fork", ref="plain", new="many", set=many)
    assert plan["call"] is None
    assert plan["would"][-1] == "and 461 more"
    bare.call("fork", ref="plain", new="many", set=many, confirm=True)
    with project.open() as hf:
        assert hf.version("pair").state["pair"] == (1, 2)
        assert hf.version("many").state == many


def test_answer_to_a_child_run_resumes_its_parent(project: ProjectFolder, knowing: Agent) -> None:
    project.run(flows.parent, run_id="parent-1")
    (question,) = [each for each in knowing.call("inbox")["questions"] if each["run"].startswith("parent-1")]
    done = knowing.call("answer", question=question["id"], value="very well", confirm=True)
    assert (done["run"], done["result"]) == ("parent-1", "the child says very well")


def test_answer_reports_the_next_question(project: ProjectFolder, knowing: Agent) -> None:
    project.run(flows.asking_twice, run_id="twice-1")
    assert knowing.read("answer", question="twice-1", value="a", confirm=True)[1:] == [
        "twice-1@2  suspended",
        'it asks twice-1#2: "Second?"',
        "it waits for twice-1#2",
    ]


def test_inbox_pages_answered_questions(project: ProjectFolder, bare: Agent) -> None:
    ids = [f"often#{number}" for number in range(1, 111)]
    with project.open() as hf:
        hf.run(flows.asking_often, len(ids), run_id="often")
        for each in ids:
            hf.answer(each, "yes", resume=False)
    seen: list[str] = []
    following: dict[str, Any] | None = {}
    while following is not None:
        found = bare.call("inbox", answered=True, run="often", limit=60, **following)
        seen += [question["id"] for question in found["questions"]]
        following = found["next"]
    assert seen == ids[::-1]
