"""`holdfast inbox`, `holdfast answer` and `holdfast signal`: the operator's inbox."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import flows
import msgspec
import project_folder
import pytest
from project_folder import ProjectFolder, one_line

import holdfast
from patience import until

project = project_folder.project
CHOICE = {"enum": ["yes", "later", 3]}
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


@dataclass
class Approval:
    ok: bool
    days: list[int] = field(default_factory=list)


APPROVAL = msgspec.json.schema(Approval)
APPROVALS = msgspec.json.schema(list[Approval])


@pytest.fixture
def asking(project: ProjectFolder) -> ProjectFolder:
    project.run(flows.asking, {"type": "boolean"}, run_id="ask-1")
    project.run(flows.waiting, run_id="wait-1")
    project.forget()
    return project


def test_inbox_lists_open_questions(asking: ProjectFolder) -> None:
    asking.run(flows.parent, run_id="parent-1")
    done = asking.call("inbox")
    assert done.code == 0
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("ask-1#1", "ask-1", "Shall it be published?"),
        ("parent-1.cli_child#1", "parent-1.cli_child", "Is the child well?"),
    ]
    found = asking.json("inbox", "--run", "ask")
    assert [(each["id"], each["schema"], each["address"]) for each in found] == [
        ("ask-1#1", {"type": "boolean"}, "ask")
    ]
    screen = asking.terminal("inbox")
    assert screen.end() == 0
    assert "true | false" in screen.text
    assert "question" in screen.text


def test_inbox_without_questions(project: ProjectFolder) -> None:
    project.run(flows.shop, run_id="shop-1")
    assert project.call("inbox") == (0, "", "")
    assert project.json("inbox") == []
    screen = project.terminal("inbox")
    assert (screen.end(), screen.text) == (0, "no open questions")


def test_answer_without_code_is_stored(asking: ProjectFolder) -> None:
    done = asking.call("answer", "ask-1#1", "true", "--actor", "ann")
    assert (done.code, done.err) == (0, "")
    assert done.out == ("answered ask-1#1; continue the run with holdfast resume ask-1 --app MODULE\n")
    assert asking.world == []
    assert asking.call("inbox").out == ""
    (reported,) = asking.json("inbox", "--answered")
    assert (reported["actor"], reported["answer"]) == ("ann", True)
    assert asking.call("inbox", "--answered").out.split("\t")[5:7] == ["true", "ann"]
    assert asking.call("resume", "ask-1", "--app", "flows").code == 0
    assert asking.look("ask-1")[:2] == ("completed", True)
    with asking.open() as hf:
        assert "ann" in [event.data.get("actor") for event in hf.get("ask-1").events()]


@pytest.mark.parametrize("name", ["ask-1#1", "ask-1", "ask"])
def test_answer_with_code_resumes_the_run(asking: ProjectFolder, name: str) -> None:
    found = asking.json("answer", name, "false", "--app", "flows")
    assert (found["status"], found["result"]) == ("completed", False)
    assert asking.world == ["answer False"]


def test_answer_no_resume_only_stores(asking: ProjectFolder) -> None:
    found = asking.json("answer", "ask-1", "false", "--app", "flows", "--no-resume")
    assert found == {"run": "ask-1", "status": "suspended"}
    assert asking.world == []


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "boolean"}, "yes", True),
        ({"type": "boolean"}, "no", False),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "Y", True),
        ({"type": "boolean"}, "FALSE", False),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "null"}, "null", None),
        ({"type": "string"}, "a word", "a word"),
        ({"type": "string"}, '"a word"', "a word"),
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, "", ""),
        ({"type": "integer"}, "3", 3),
        (CHOICE, "later", "later"),
        (CHOICE, '"later"', "later"),
        (CHOICE, "yes", "yes"),
        (CHOICE, "3", 3),
        (FORM, '{"ok": true}', {"ok": True}),
        (None, "a word", "a word"),
        (None, "[1, null]", [1, None]),
        (None, "yes", "yes"),
    ],
)
def test_answer_is_parsed_by_the_schema(project: ProjectFolder, schema: Any, typed: str, value: Any) -> None:
    project.run(flows.asking, schema, run_id="ask-1")
    found = project.json("answer", "ask-1", typed, "--app", "flows")
    assert (found["status"], found["result"]) == ("completed", value)


@pytest.mark.parametrize(
    ("schema", "typed"),
    [
        ({"type": "boolean"}, "maybe"),
        ({"type": "boolean"}, "1"),
        ({"type": "integer"}, "3.5"),
        ({"type": "integer"}, "three"),
        (CHOICE, "never"),
        (CHOICE, '"3"'),
        (FORM, '{"ok": 1}'),
        (FORM, "{}"),
        (FORM, "{"),
    ],
)
def test_answer_that_does_not_fit_is_refused(project: ProjectFolder, schema: Any, typed: str) -> None:
    project.run(flows.asking, schema, run_id="ask-1")
    before = project.bytes()
    one_line(project.call("answer", "ask-1", typed, "--app", "flows"), 2)
    assert project.bytes() == before


@pytest.mark.parametrize(
    ("schema", "typed", "wanted"),
    [
        ({"type": "boolean"}, "maybe", "true | false"),
        ({"type": "boolean"}, "1", "true | false"),
        ({"type": "integer"}, "three", "integer"),
        (APPROVAL, "yes", "{ok: true | false, days?: [integer, …]}"),
        (APPROVALS, "yes", "[{ok: true | false, days?: [integer, …]}, …]"),
    ],
)
def test_answer_error_names_the_expected_type(
    project: ProjectFolder, schema: Any, typed: str, wanted: str
) -> None:
    project.run(flows.asking, schema, run_id="ask-1")
    line = one_line(project.call("answer", "ask-1", typed), 2)
    assert line == f"holdfast: {typed!r} is not an answer to ask-1#1: expected {wanted}"


def test_answer_to_a_run_of_a_queue_leaves_it_to_the_workers(project: ProjectFolder) -> None:
    with project.open() as hf:
        run = hf.enqueue(flows.asking, {"type": "boolean"}, run_id="ask-1")
        with hf.worker():
            until(lambda: run.status == "suspended")
    done = project.call("answer", "ask-1", "yes", "--app", "flows")
    assert (done.code, done.err) == (0, "")
    assert "answered ask-1#1; a worker or monitor with its code will resume ask-1" in done.out


def test_answer_to_a_run_without_questions_says_so(project: ProjectFolder) -> None:
    project.run(flows.asking, {"type": "boolean"}, run_id="ask-1")
    project.json("answer", "ask-1", "yes", "--no-resume")
    assert "run 'ask-1' has no open question" in one_line(project.call("answer", "ask-1", "yes"), 3)


def test_answer_prefers_an_exact_run_id(project: ProjectFolder) -> None:
    for run_id in ("job-1", "job-10", "job-10.x"):
        project.run(flows.asking, {"type": "boolean"}, run_id=run_id)
    assert project.json("answer", "job-1", "yes", "--app", "flows")["run"] == "job-1"
    assert "could be any of job-10#1, job-10.x#1" in one_line(project.call("answer", "job-", "yes"), 2)
    assert project.json("answer", "job-10", "yes", "--app", "flows")["run"] == "job-10"


def test_inbox_never_truncates_an_id(project: ProjectFolder) -> None:
    run_id = "a-run-with-a-rather-long-name-of-50-characters-0001"
    schema = {"type": "object", "properties": {'a "quoted" name': {"type": "string"}}}
    project.run(flows.asking, schema, run_id=run_id)
    screen = project.terminal("inbox", columns=80)
    assert screen.end() == 0
    assert f"{run_id}#1" in screen.text
    assert "Shall it be" in screen.text
    wide = project.terminal("inbox", columns=250)
    wide.end()
    assert '{"a \\"quoted\\" name"?: string}' in wide.text


def test_answer_given_twice_is_refused(asking: ProjectFolder) -> None:
    assert asking.call("answer", "ask-1#1", "true", "--app", "flows").code == 0
    line = one_line(asking.call("answer", "ask-1#1", "true", "--app", "flows"), 4)
    assert line.startswith("holdfast: question 'ask-1#1' has been answered already, by an unnamed actor")
    assert asking.json("answer", "ask-1#1", "true", code=4)["code"] == "invalid_answer"
    assert "holdfast inbox" in one_line(asking.call("answer", "ask-1", "true"), 3)


def test_answer_to_an_outdated_question_is_refused(project: ProjectFolder) -> None:
    text = "Delete staging?"

    @holdfast.workflow(name="cli_changing", changed="allow")
    def changing() -> bool:
        return bool(holdfast.ask(text, schema=bool))

    project.run(changing, run_id="changing")
    text = "Delete prod?"
    with project.open() as hf:
        hf.resume("changing", answers={"ask": True})
    line = one_line(project.call("answer", "changing#1", "true"), 4)
    assert line.startswith("holdfast: question 'changing#1' is outdated")
    assert [each["text"] for each in project.json("inbox")] == ["Delete prod?"]


def test_answer_reports_the_next_question(project: ProjectFolder) -> None:
    project.run(flows.asking_twice, run_id="twice-1")
    done = project.call("answer", "twice-1", "a", "--app", "flows")
    assert (done.code, done.out) == (
        5,
        'suspended  twice-1: open questions: twice-1#2: "Second?" (holdfast answer twice-1#2)\n',
    )
    found = project.json("answer", "twice-1", "b", "--app", "flows")
    assert found["result"] == ["a", "b"]


def test_answer_of_a_child_resumes_the_parent(project: ProjectFolder) -> None:
    project.run(flows.parent, run_id="parent-1")
    done = project.call("answer", "parent-1.cli_child#1", "fine", "--no-resume")
    assert "continue the run with holdfast resume parent-1 --app MODULE" in done.out
    found = project.json("resume", "parent-1", "--app", "flows")
    assert found["result"] == "the child says fine"
    project.run(flows.parent, run_id="parent-2")
    found = project.json("answer", "parent-2", "well", "--app", "flows")
    assert (found["run"], found["result"]) == ("parent-2", "the child says well")


@pytest.mark.parametrize(("typed", "code"), [("yes\n", 0), ("maybe\n", 2), ("\x03", 130)])
def test_answer_asks_for_a_value_on_a_terminal(asking: ProjectFolder, typed: str, code: int) -> None:
    before = asking.bytes()
    screen = asking.terminal("answer", "ask-1", "--app", "flows")
    screen.until("Shall it be published?  [true | false]").until("answer:")
    assert screen.type(typed).end() == code
    assert "Traceback" not in screen.text
    assert (asking.bytes() == before) is (code != 0)
    assert ("completed  ask-1@" in screen.text) is (code == 0)


def test_answer_in_a_pipe_needs_a_value(asking: ProjectFolder) -> None:
    line = one_line(asking.call("answer", "ask-1", stdin="true\n"), 2)
    assert "pass the answer as the second argument" in line


def test_answer_to_a_missing_question_is_refused(asking: ProjectFolder) -> None:
    assert "did you mean 'ask-1#1'?" in one_line(asking.call("answer", "ask-1#2", "true"), 3)
    assert "`holdfast inbox` lists" in one_line(asking.call("answer", "zzz", "true"), 3)
    asking.run(flows.asking, None, run_id="ask-2")
    line = one_line(asking.call("answer", "ask", "true"), 2)
    assert "could be any of ask-1#1, ask-2#1" in line


def test_signal_ends_a_wait(asking: ProjectFolder) -> None:
    found = asking.json(
        "signal", "wait-1", "printer", '{"paper": "thick"}', "--app", "flows", "--actor", "bob"
    )
    assert (found["status"], found["result"]) == ("completed", {"paper": "thick"})
    assert asking.world == ["count 1"]


def test_signal_without_code_or_data_is_stored(asking: ProjectFolder) -> None:
    done = asking.call("signal", "wait", "printer")
    assert (done.code, done.out) == (
        0,
        "sent printer; continue the run with holdfast resume wait-1 --app MODULE\n",
    )
    assert asking.json("resume", "wait-1", "--app", "flows")["result"] is None


def test_signal_before_the_wait_is_stored(asking: ProjectFolder) -> None:
    """It waits for something else."""
    found = asking.json("signal", "wait-1", "other", "1", "--app", "flows")
    assert (found["status"], found["waits"], found["until"]) == ("suspended", ["printer"], None)
    assert asking.look("wait-1")[0] == "suspended"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["wait-1", "printer", "{"], 2, "is not JSON"),
        (["wait-1", ""], 2, "a signal needs a name"),
        (["shop-1", "printer"], 2, "run 'shop-1' is completed: it receives no more signals"),
        (["missing", "printer"], 3, "there is no run 'missing'"),
    ],
)
def test_signal_usage_errors_are_reported(
    asking: ProjectFolder, arguments: list[str], code: int, text: str
) -> None:
    asking.run(flows.shop, run_id="shop-1")
    before = asking.bytes()
    assert text in one_line(asking.call("signal", *arguments), code)
    assert text in json.dumps(asking.json("signal", *arguments, code=code))
    assert asking.bytes() == before


def test_inbox_is_filtered_and_paged(project: ProjectFolder) -> None:
    for number in range(4):
        project.run(flows.asking, {"type": "boolean"}, run_id=f"team/{number}")
    project.forget()
    done = project.call("assign", "team/2#1", "--assignee", "ana", "--due", "2h", "--priority", "5")
    assert (done.code, done.out) == (0, done.out)
    (found,) = project.json("inbox", "--assignee", "ana")
    assert (found["id"], found["priority"], found["assignee"]) == ("team/2#1", 5, "ana")
    assert [each["id"] for each in project.json("inbox", "-n", "2")] == ["team/2#1", "team/0#1"]
    assert [each["id"] for each in project.json("inbox", "--after", "team/0#1")] == ["team/1#1", "team/3#1"]
    assert project.json("inbox", "--waiting-longer-than", "1h") == []
    assert len(project.json("inbox", "--waiting-longer-than", "0s")) == 4
    assert project.json("inbox", "--kind", "stalled") == project.json("inbox", "--workflow", "other") == []
    screen = project.terminal("inbox", "-n", "1")
    assert screen.end() == 0
    assert "--after team/2#1" in screen.text
    assert "ana" in screen.text
    project.json("assign", "team/2#1", "--clear", "due", "--clear", "assignee", "--clear", "escalation")
    assert project.json("inbox", "--assignee", "ana") == []
    assert project.json("answer", "team/2#1", "true")["run"] == "team/2"


def test_assign_refuses_what_cannot_be(project: ProjectFolder) -> None:
    project.run(flows.asking, {"type": "boolean"}, run_id="ask-1")
    project.forget()
    for options in (
        [],
        ["--priority", "101"],
        ["--priority", "9" * 40],
        ["--due", "soon"],
        ["--assignee", "a" * 10_000],
        ["--assignee", "\x1b[31m"],
        ["--escalate-to", "boss"],
        ["--remind-every", "0s"],
        ["--clear", "odd"],
    ):
        done = project.call("assign", "ask-1", *options)
        assert done.code != 0
        assert "Traceback" not in done.err
    for unknown in ("nobody#1", "loop/none/control#1", "#"):
        assert project.call("assign", unknown, "--priority", "1").code != 0
    assert project.call("inbox", "--after", "nobody#1").code != 0
    assert project.json("inbox")[0]["priority"] == 0
