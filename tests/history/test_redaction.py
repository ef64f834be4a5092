"""Redaction patterns that are stored for all processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import terminal

import holdfast
from growth import growth
from holdfast import Holdfast, InvalidCall
from holdfast.history.redaction import redact_json
from holdfast.loops import LoopEngine
from holdfast.tree.fold import Redactor
from patience import until

SECRET = "sk-1234567890"


pytest_plugins = ["postgres_fixtures"]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("url"))
    return ":memory:" if request.param == "memory" else str(tmp_path / "runs.db")


@pytest.fixture
def hf(where: str) -> Iterator[Holdfast]:
    with holdfast.open(where) as opened:
        yield opened


def test_added_patterns_apply_to_later_commits(hf: Holdfast) -> None:
    log = hf.history("log")
    state = {"api_key": SECRET, "n": 1}
    log.commit(state)
    assert hf.change_redaction(add=["api_*"]).patterns == ("api_*",)
    log.commit(state)
    assert [version.state["api_key"] for version in log.versions()] == ["[redacted]", SECRET]
    hf.change_redaction(remove=["api_*"])
    log.commit(state)
    assert log.head.state["api_key"] == SECRET


def test_added_patterns_apply_to_items_of_a_long_list(hf: Holdfast) -> None:
    log = hf.history("log")
    state = {"users": [{"api_key": SECRET, "n": n} for n in range(20)]}
    log.commit(state)
    hf.change_redaction(add=["api_*"])
    again = log.head.copy()
    again["users"].append({"api_key": SECRET, "n": 20})
    log.commit(again)
    assert {user["api_key"] for user in log.head.state["users"]} == {"[redacted]"}


def test_stored_patterns_apply_along_with_those_of_open(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        hf.change_redaction(add=["kept"])
    with holdfast.open(tmp_path / "runs.db", redact=["given"]) as hf:
        state = hf.history("log").commit({"kept": 1, "given": 2, "n": 3}).state
        assert state == {"kept": "[redacted]", "given": "[redacted]", "n": 3}
        assert hf.redaction.patterns == ("kept",)


@pytest.mark.slow
def test_patterns_of_another_process_are_applied(where: str) -> None:
    """Also by a process that had the store open before, in threads and in event loops."""
    if where == ":memory:":
        return
    with holdfast.open(where) as hf:
        log = hf.history("log")
        log.commit({"pin": SECRET})
        code = "import sys, holdfast; holdfast.open(sys.argv[1]).change_redaction(add=[sys.argv[2]])"
        subprocess.run([sys.executable, "-c", code, where, "pin"], check=True)
        until(lambda: log.commit({"pin": SECRET}).state["pin"] == "[redacted]", "the redaction")
        subprocess.run([sys.executable, "-c", code, where, "pan"], check=True)

        async def commit() -> bool:
            return bool(log.commit({"pan": SECRET}).state["pan"] == "[redacted]")

        until(lambda: asyncio.run(commit()), "the redaction in a loop")


def test_recorded_steps_replay_after_a_change_of_patterns(hf: Holdfast) -> None:
    calls = []

    @holdfast.step(name="redaction_call")
    def call(password: str, n: int) -> int:
        calls.append(n)
        return n

    @holdfast.workflow(name="redaction_flow")
    def flow() -> int:
        found = call(SECRET, n=1) + call(password=SECRET, n=2)
        holdfast.ask("continue?")
        return found + call(SECRET, 3)

    run = hf.run(flow, run_id="flow")
    assert calls == [1, 2]
    hf.change_redaction(add=["*password*"])
    assert hf.resume("flow").status == "suspended"
    hf.change_redaction(add=["other"])
    hf.change_redaction(remove=["*password*"])
    (prompt,) = hf.inbox()
    run = hf.answer(prompt.id, True)
    assert (run.result, calls) == (6, [1, 2, 3])


def test_loops_redact_default_patterns_unless_switched_off(hf: Holdfast) -> None:
    loops = LoopEngine(hf)
    state = {
        "db_Password": SECRET,
        "api_key": SECRET,
        "client_secret": SECRET,
        "access_token": SECRET,
        "tokens": 3,
    }
    loops.set_project_state("p", dict(state))
    found = loops.get_project_state("p")["state"]
    assert {name for name in state if found[name] == "[redacted]"} == state.keys() - {"tokens"}
    assert hf.history("log").commit(state).state == state
    hf.change_redaction(defaults=False)
    loops.set_project_state("q", dict(state))
    assert loops.get_project_state("q")["state"]["access_token"] == SECRET


@pytest.mark.parametrize("pattern", ["", "*", "**?", 3, None, "x" * 300, "a\x1b"])
def test_invalid_patterns_are_refused(pattern: object) -> None:
    with holdfast.open(":memory:") as hf, pytest.raises(InvalidCall):
        hf.change_redaction(add=[pattern])  # type: ignore[list-item]  # what callers without types pass


def test_pattern_that_is_not_stored_cannot_be_removed(hf: Holdfast) -> None:
    with pytest.raises(InvalidCall, match="config redact list"):
        hf.change_redaction(remove=["x"])


@pytest.mark.slow
def test_command_config_redact_stores_patterns(tmp_path: Path) -> None:
    holdfast.open(tmp_path / "holdfast.db").close()
    for command in (["add", "pin", "*card*"], ["remove", "pin"], ["defaults", "off"]):
        assert terminal.call("config", "redact", *command, cwd=tmp_path).code == 0
    assert terminal.call("config", "redact", "remove", "pin", cwd=tmp_path).code == 2
    listed = terminal.call("config", "redact", "list", cwd=tmp_path).out.splitlines()
    assert listed[:2] == ["*card*\teverywhere", "*password*\toff"]
    with holdfast.open(tmp_path / "holdfast.db") as hf:
        assert (hf.redaction.patterns, hf.redaction.defaults) == (("*card*",), False)


@pytest.mark.slow
def test_redact_json_takes_linear_time_and_accepts_deep_values() -> None:
    def nested(size: int) -> object:
        value: object = {"key": 1}
        for _ in range(size):
            value = [{"a": value, "key": 2}]
        return value

    redactor = Redactor(["key"])
    assert growth(lambda value: redact_json(value, redactor), nested, 10_000) < 30
    given = {"a": [{"key": 1, "b": {"n": [1, {"key": {}}]}}]}
    assert redact_json(given, redactor) == {
        "a": [{"key": "[redacted]", "b": {"n": [1, {"key": "[redacted]"}]}}]
    }
    assert given["a"][0]["key"] == 1, "what was given stays"
