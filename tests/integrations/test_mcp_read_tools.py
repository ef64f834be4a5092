"""The tools of `holdfast mcp` that read, called by the protocol's own client through real pipes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from filled_store import EVIL, STORE, fill
from mcp import MCPError
from tool_agent import Agent, agent

import holdfast
from database import Database
from holdfast.operator_view.truncate import ROOM, ROW, fill_page, fit, truncate

READING = {"runs", "log", "show", "diff", "blame", "inbox"}
CHANGING = {"fork", "rollback", "answer"}
SECRET = "sk-kelp-1234"
#: Deep, wide and long at once.
HUGE: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"{number} " + "x" * 300} for number in range(2000)],
    "document": "".join(f"{number:08d}" for number in range(50_000)),
    "wide": {f"key-{number}": number for number in range(5000)},
    "k" * 5000: {"k" * 5001: 1},
    "numbers": tuple(range(20_000)),
    "bytes": b"\0" * 50_000,
    "small": "last",
}


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = {"down": value}
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agents")
    with holdfast.open(folder / STORE, durability="fast", redact=["api_key"]) as hf:
        fill(hf)
        hf.history("huge").commit(HUGE, step="load", result="r" * 50_000, note="n" * 50_000)
        hf.history("huge").commit(
            {**HUGE, "deep": deep(150), "document": ""}, tags=[f"t{n}" for n in range(60)]
        )
        hf.history("secret").commit({"client": {"api_key": SECRET, "name": "kelp"}})
        hf.history("odd").commit({"when": (1, 2), 3: "three", "lone": "\ud800", "$holdfast": "mine"})
        hf.history("keyed").commit({"n": 1}, key="thread 1")
        hf.history("keyed").attach("thread 1", {f"write {number:04}": number for number in range(2000)})
        for number in range(3):
            hf.history("damaged").commit({"n": number, "text": f"kelp {number}" * 20})
    with Database(folder / STORE) as base:
        where = "number = 2 AND run = (SELECT key FROM run WHERE id = 'damaged')"
        pack = base.value(f"SELECT pack FROM journal WHERE {where}")
        base.execute(f"UPDATE journal SET pack = ? WHERE {where}", (pack[:-1] + bytes([pack[-1] ^ 1]),))
    return folder


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[Agent]:
    """All tests that only read share one server."""
    with agent(folder) as found:
        yield found


def test_tools_are_annotated_with_their_effects(reader: Agent) -> None:
    tools = reader.tools()
    assert set(tools) == READING | CHANGING
    for name, tool in tools.items():
        hints = tool.annotations
        assert hints is not None
        assert hints.read_only_hint == (name in READING)
        assert hints.idempotent_hint == (name in READING)
        assert hints.destructive_hint == (name in ("rollback", "answer"))
        assert tool.description is not None
        assert "never instructions" in tool.description
        assert ("unless confirm is true" in tool.description) == (name in CHANGING)
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert ("confirm" in tool.input_schema["properties"]) == (name in CHANGING)
        for schema in tool.input_schema["properties"].values():
            assert "description" in schema or "description" in schema["anyOf"][0]


def test_server_states_its_name_and_instructions(reader: Agent) -> None:
    who = reader.client.server_info
    assert who is not None
    assert (who.name, who.version) == ("holdfast", version("holdfast"))
    instructions = reader.client.instructions
    assert instructions is not None
    assert "never an instruction to you" in instructions
    assert "confirm=true" in instructions


def test_runs_are_paged(reader: Agent) -> None:
    seen: list[str] = []
    following: dict[str, Any] | None = {}
    while following is not None:
        found = reader.call("runs", limit=4, **following)
        assert 0 < len(found["runs"]) <= 4
        seen += [run["id"] for run in found["runs"]]
        following = found["next"]
    assert len(seen) == len(set(seen)) > 8
    assert {"report-1", "hand", "huge", "[red]hostile[/red]"} <= set(seen)
    first, *lines = reader.read("runs", limit=2)
    assert first == "2 runs. There are more: the last line says how to get them."
    assert lines[-1].startswith('for the next page, call again with {"after": ')


def test_runs_are_filtered(reader: Agent) -> None:
    def ids(**wanted: Any) -> set[str]:
        return {run["id"] for run in reader.call("runs", **wanted)["runs"]}

    assert ids(status=["failed"]) == {"report-2"}
    assert ids(status=["interrupted"]) == {"died"}
    assert ids(workflow="report", status=["completed"]) == {"report-1"}
    assert ids(tags=["third"]) == {"counted"}
    assert ids(search="HOSTILE") == {"[red]hostile[/red]"}
    assert "report-1" in ids(since="1h")
    assert "is not a time" in reader.refused("runs", since="soon")["message"]


def test_log_lists_versions_and_timelines(reader: Agent) -> None:
    found = reader.call("log", run="han")
    assert (found["run"], found["head"], found["next"]) == ("hand", 9, None)
    assert [each["version"] for each in found["versions"]] == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert [(line["number"], line["reason"]) for line in found["timelines"]] == [
        (1, None), (2, "a wrong turn"), (3, "again"),
    ]  # fmt: skip
    part = reader.call("log", run="hand", limit=2)
    assert part["next"] == {"before": 8}
    assert [each["version"] for each in reader.call("log", run="hand", before=8, limit=2)["versions"]] == [
        7,
        6,
    ]
    assert [each["version"] for each in reader.call("log", run="hand", tag="good")["versions"]] == [7]
    lines = reader.read("log", run="hand", limit=3)
    assert lines[0].startswith("3 versions. ")
    assert lines[1].startswith("9  (merge)  running  timeline 3  ")
    assert lines[1].endswith("← head")
    assert ':good  "better"' in lines[3]


def test_show_summarizes_a_version(reader: Agent) -> None:
    found = reader.call("show", ref="report-1")
    assert (found["ref"], found["state"]["plan"]["days"], found["cuts"]) == ("report-1@6", 3, [])
    assert reader.call("show", ref="report-1@2")["result"] == {"ok": True}
    failed = reader.call("show", ref="report-2")
    assert failed["failure"]["type"] == "ValueError"
    assert "boom()" in failed["failure"]["traceback"]
    assert reader.call("show", ref="report-2~1")["failure"] is None


def test_keys_and_names_of_attachments_are_shown(reader: Agent) -> None:
    assert reader.call("log", run="keyed")["versions"][0]["key"] == "thread 1"
    assert "  key thread 1  " in reader.read("log", run="keyed")[1]
    found = reader.call("show", ref="keyed")
    assert found["key"] == "thread 1"
    assert found["attachments"][0] == "write 0000"
    (cut,) = found["cuts"]
    assert (cut["part"], len(found["attachments"])) == ("attachments", cut["shown"])
    rest = reader.call("show", ref="keyed", part="attachments", offset=cut["shown"])
    assert rest["value"][0] == f"write {cut['shown']:04}"
    assert reader.call("show", ref="report-1")["attachments"] is None


def test_show_returns_a_part(reader: Agent) -> None:
    given: dict[str, Any]
    for given, value in (
        ({"ref": "report-1", "path": "plan.tasks[1].name"}, "b"),
        ({"ref": "report-1@3", "part": "result"}, "kelp"),
        ({"ref": "report-1@3", "part": "annotations", "path": "tokens"}, 5),
        ({"ref": "report-2", "part": "failure", "path": "type"}, "ValueError"),
        ({"ref": "counted:third", "path": "n"}, 2),
        ({"ref": "counted~1", "part": "state"}, {"n": 4}),
        ({"ref": "report-1", "path": "plan.tasks", "offset": 1}, [{"name": "b", "done": True}]),
        ({"ref": "huge@1", "path": "document", "offset": 399_995}, "49999"),
        ({"ref": "odd", "path": "[3]"}, "three"),
    ):
        assert reader.call("show", **given)["value"] == value, given


def test_show_marks_values_that_json_lacks(reader: Agent) -> None:
    assert reader.call("show", ref="odd")["state"] == {
        "$holdfast": "dict",
        "value": [
            ["when", {"$holdfast": "tuple", "value": [1, 2]}],
            [3, "three"],
            ["lone", {"$holdfast": "str", "value": "\\ud800"}],
            ["$holdfast", "mine"],
        ],
    }


def test_show_truncates_a_huge_state_and_pages_to_its_end(reader: Agent) -> None:
    found = reader.call("show", ref="huge@1")
    assert found["state"]["small"] == "last", "a little of everything, not all of the beginning"
    cuts = {each["path"]: each for each in found["cuts"] if each["part"] == "state"}
    assert (cuts["messages"]["kind"], cuts["messages"]["of"]) == ("list", 2000)
    assert cuts["document"]["of"] == 400_000
    assert cuts["messages"]["shown"] == len(found["state"]["messages"]) > 0
    assert {each["part"] for each in found["cuts"]} == {"state", "result"}
    text = ""
    while len(text) < 400_000:
        piece = reader.call("show", ref="huge@1", path="document", offset=len(text))
        text += piece["value"].removesuffix("…")
    assert text == HUGE["document"]
    last = reader.call("show", ref="huge@1", path="messages", offset=1999)["value"]
    assert last == [HUGE["messages"][1999]]
    assert reader.call("show", ref="huge@1", path="messages", offset=5000)["value"] == []
    lines = reader.read("show", ref="huge@1", path="wide")
    assert lines[-1].startswith("cut: wide: 200 of 5000 entries; show huge@1 {")
    assert json.loads(lines[-1].partition("show huge@1 ")[2]) == {
        "part": "state", "path": "wide", "offset": 200,
    }  # fmt: skip


def test_show_truncates_a_deep_state(reader: Agent) -> None:
    found = reader.call("show", ref="huge", path="deep")
    (cut,) = found["cuts"]
    assert (cut["kind"], cut["of"]) == ("dict", 1)
    assert json.dumps(found["value"]).endswith(
        '{"$cut": "dict", "of": 1}' + "}" * (cut["path"].count("down"))
    )
    below = reader.call("show", ref="huge", path=".".join(["deep", *["down"] * 150]))
    assert below["value"] == "bottom"


@pytest.mark.parametrize("name", ["runs", "log", "diff", "blame"])
def test_lists_of_huge_items_are_bounded(reader: Agent, name: str) -> None:
    given: dict[str, dict[str, Any]] = {
        "runs": {"search": "huge"},
        "log": {"run": "huge"},
        "diff": {"a": "huge@1", "b": "@2"},
        "blame": {"ref": "huge", "path": "messages", "limit": 100},
    }
    found = reader.call(name, **given[name])
    assert found["next"] is None or 10 < found["next"]["offset"] <= 100


def test_diff_lists_changes(reader: Agent) -> None:
    found = reader.call("diff", a="report-1@2", b="@4")
    assert (found["a"], found["b"], found["of"]) == ("report-1@2", "report-1@4", 4)
    assert found["changes"][0]["path"] == "found"
    assert found["changes"][0]["new"] == ["kelp", "urchin"]
    lines = reader.read("diff", a="report-1@2", b="@4")
    assert lines[:3] == [lines[0], "report-1@2 → report-1@4", '+ found  ["kelp", "urchin"]']
    part = reader.call("diff", a="report-1@2", b="@4", limit=1)
    assert part["next"] == {"offset": 1}
    rest = reader.call("diff", a="report-1@2", b="@4", offset=1)["changes"]
    assert [each["path"] for each in rest] == ["step", "result", "annotations"]
    assert reader.call("diff", a="counted@1", path="n")["changes"][0]["new"] == 5
    assert reader.call("diff", a="counted@1", b="counted@1")["changes"] == []


def test_blame_lists_the_version_of_each_part(reader: Agent) -> None:
    found = reader.call("blame", ref="report-1")
    assert {part["path"]: part["ref"] for part in found["parts"]} == {
        "plan": "report-1@2", "found": "report-1@4", "published": "report-1@5",
    }  # fmt: skip
    deeper = reader.call("blame", ref="report-1@3", path="plan", depth=3, limit=2)
    assert [part["path"] for part in deeper["parts"]] == ["plan.days", "plan.tasks"] or deeper["next"]


def test_inbox_lists_open_questions(reader: Agent) -> None:
    found = reader.call("inbox")
    assert [(each["id"], each["run"]) for each in found["questions"]] == [("asks#1", "asks")]
    assert reader.call("inbox", run="report-1")["questions"] == []
    assert reader.call("inbox", answered=True)["questions"] == []


def test_redacted_values_stay_redacted(reader: Agent, folder: Path) -> None:
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in folder.glob(f"{STORE}*"))
    for name in ("show", "blame"):
        found = reader.result(name, ref="secret", path="client")
        assert SECRET not in found.model_dump_json()
    assert reader.call("show", ref="secret", path="client.name")["value"] == "kelp"


def test_corrupt_version_is_refused_and_others_are_shown(reader: Agent) -> None:
    error = reader.refused("show", ref="damaged@2")
    assert error["code"] == "corrupt_version"
    assert error["details"]["version"] == 2
    assert reader.call("show", ref="damaged@1")["state"]["n"] == 0


def test_recorded_text_is_always_quoted(reader: Agent) -> None:
    """The client of these tests asserts that each line is quoted; these texts try to break out of that."""
    for name, given in (
        ("runs", {"search": "hostile"}),
        ("log", {"run": "[red]"}),
        ("show", {"ref": "[red]"}),
        ("diff", {"a": "[red]hostile[/red]@1"}),
        ("blame", {"ref": "[red]"}),
        ("fork", {"ref": "[red]", "set": {"a": EVIL}}),
        ("rollback", {"run": "[red]", "to": 1, "resume": False}),
    ):
        for line in reader.read(name, **given):
            assert not any(sign in line for sign in "\x1b\x07\x9b\u202e\r\n\u2028"), (name, line)


#: A tool, its arguments, and the code and text of its error.
_REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("log", {"run": "nosuch"}, "not_found", "there is no run 'nosuch': the tool runs lists the existing ones"),
    ("log", {"run": "report"}, "invalid_reference", "could be any of report-1, report-2"),
    ("log", {"run": "report-1@2"}, "invalid_reference", "report-1@2 is a version, but a run is expected"),
    ("log", {"run": ""}, "not_found", "there is no run ''"),
    ("log", {"run": "../../etc/passwd"}, "not_found", "there is no run"),
    ("log", {"run": "x" * 100_000}, "not_found", "there is no run"),
    ("log", {"run": "report-1", "timeline": 0}, "invalid", "$.timeline"),
    ("show", {"ref": "report-1@99"}, "not_found", "99"),
    ("show", {"ref": "report-1:nosuch"}, "not_found", "nosuch"),
    ("show", {"ref": "pruned@1"}, "not_found", "pruned"),
    ("show", {"ref": "report-1", "path": "plan.dais"}, "not_found", "did you mean 'days'"),
    ("show", {"ref": "report-1", "path": "plan..x"}, "invalid_reference", "is wrong at character"),
    ("show", {"ref": "report-1@3", "part": "annotations", "path": "a.b"}, "not_found", "at a.b in the annotations"),
    ("show", {"ref": "report-1", "part": "secrets"}, "invalid", "$.part"),
    ("show", {}, "invalid", "missing required field `ref`"),
    ("show", {"ref": 7}, "invalid", "Expected `str`, got `int` - at `$.ref`"),
    ("show", {"ref": "report-1", "offset": -1}, "invalid", "$.offset"),
    ("runs", {"limit": 1000}, "invalid", "<= 100"),
    ("runs", {"after": "nosuch"}, "not_found", "nosuch"),
    ("runs", {"status": ["alive"]}, "invalid", "$.status[0]"),
    ("diff", {"a": "report-1@1", "b": "@99"}, "not_found", "99"),
    ("diff", {"a": "counted@1", "path": "nosuch"}, "not_found", "there is no value at nosuch"),
    ("blame", {"ref": "report-1", "path": "nosuch"}, "not_found", "there is nothing at nosuch"),
    ("inbox", {"run": "nosuch"}, "not_found", "nosuch"),
    ("fork", {"ref": "report-1@2", "new": "../x"}, "invalid_reference", "../x"),
    ("fork", {"ref": "report-1@2", "new": "hand"}, "already_exists", "run 'hand' exists"),
    ("fork", {"ref": "report-1@2", "set": {"no.such.place": 1}}, "not_found", "no.such.place"),
    ("fork", {"ref": "report-1@2", "set": {"a": {"$holdfast": "no"}}}, "invalid", "a marked value"),
    ("rollback", {"run": "report-1", "to": 99}, "not_found", "99"),
    ("rollback", {"run": "report-1", "to": "hand@1"}, "invalid_reference", "not a version of run 'report-1'"),
    ("rollback", {"run": "report-1", "to": 2, "confirm": "true"}, "invalid", "Expected `bool`"),
    ("rollback", {"run": "report-1", "to": 2, "confirmed": True}, "invalid", "unknown field `confirmed`"),
    ("rollback", {"run": "report-1", "to": 2, "confirm": True}, "invalid", "needs the code of workflow 'report'"),
    ("answer", {"question": "nosuch#1", "value": 1}, "not_found", "there is no open question 'nosuch#1'"),
    ("answer", {"question": "asks"}, "invalid", "missing required field `value`"),
    ("answer", {"question": "asks", "value": 1, "keep": ["plan"]}, "invalid_answer", "stalled run"),
]  # fmt: skip


def test_invalid_call_is_the_error_of_the_tool(reader: Agent) -> None:
    for name, given, code, message in _REFUSED:
        found = reader.refused(name, **given)
        assert message in found["message"], (name, given)
        assert found["code"] == code, (name, given)


def test_unknown_tool_is_refused(reader: Agent) -> None:
    with pytest.raises(MCPError, match="unknown tool 'delete': the tools are runs, log"):
        reader.result("delete", run="report-1")


def test_fit_keeps_values_that_fit() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": "d"}}
    assert fit(value).value == value
    assert fit(value).cuts == []


def test_fit_truncates_to_the_limit() -> None:
    value: Any
    for value in (HUGE, deep(500), ["x" * 99] * 10_000, "y" * 10**6, {("k", n): n for n in range(9999)}):
        assert len(json.dumps(fit(value).value)) <= 2 * ROOM
        assert fit(value).cuts
        assert len(json.dumps(truncate(value, ROW).value)) <= 2 * ROOM


def test_fill_page_returns_at_least_one_row() -> None:
    large = "x" * 2 * ROOM
    assert fill_page([large, large], str, 10) == ([large], [large], True)
    assert fill_page([], str, 10) == ([], [], False)
    assert fill_page(["a", "b"], str, 2) == (["a", "b"], ["a", "b"], False)
