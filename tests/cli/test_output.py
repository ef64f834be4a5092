"""Output of all commands: streams, errors, and stored text that cannot control a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from filled_store import EVIL, LONG, SampleStore
from in_process import call
from terminal import Terminal

import holdfast
from holdfast.cli.output import Output
from holdfast.operator_view.text import as_json, dumps

#: Commands that only look, each as it would be typed.
LOOKING = [
    ["runs"],
    ["log", "[red]hostile[/red]"],
    ["show", "[red]hostile[/red]"],
    ["diff", "[red]hostile[/red]@1"],
    ["compare", "[red]hostile[/red]", "hand"],
    ["blame", "[red]hostile[/red]"],
    ["events", "[red]hostile[/red]"],
    ["tag", "[red]hostile[/red]"],
    ["prune", "--all", "--keep-last", "1", "--dry-run"],
    ["verify"],
    ["stats"],
    ["doctor"],
    ["artifacts", "ls"],
    ["artifacts", "ls", "hand"],
    ["export", "[red]hostile[/red]"],
    ["migrate"],
    ["completion", "bash"],
    ["gc"],
    ["inbox"],
]
CODES = {"doctor": 1}


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_output_never_controls_a_terminal(sample: SampleStore, command: list[str]) -> None:
    """`screen` looks at every byte that reached it."""
    text = sample.screen(*command, code=CODES.get(command[0], 0))
    if "[red]hostile[/red]" in command and command[0] not in ("events", "blame", "tag", "log"):
        assert "[red]" in text


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_output_json_and_fields_hold_no_control_character(sample: SampleStore, command: list[str]) -> None:
    reported = sample.call("--json", *command)
    assert (reported.code, reported.err) == (CODES.get(command[0], 0), "")
    for line in reported.out.splitlines():
        json.loads(line)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", reported.out)
    plain = sample.call(*command)
    if command[0] != "completion":
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", plain.out)
    assert plain.code == reported.code


@pytest.mark.parametrize(
    "command",
    [["runs"], ["log", LONG], ["show", LONG], ["blame", LONG], ["compare", LONG, "hand"], ["tag", LONG]],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("columns", [20, 40])
def test_output_fits_narrow_terminals(sample: SampleStore, command: list[str], columns: int) -> None:
    assert sample.screen(*command, columns=columns)


def test_error_is_one_red_line_on_a_terminal(sample: SampleStore) -> None:
    opened = Terminal("show", "nosuch", cwd=sample.folder)
    assert opened.end() == 3
    assert opened.text == "holdfast: there is no run 'nosuch': `holdfast runs` lists them"
    assert opened.raw.startswith(b"\x1b[31m")
    plain = Terminal("show", "nosuch", cwd=sample.folder, NO_COLOR="1")
    assert plain.end() == 3
    assert b"\x1b" not in plain.raw


def test_error_is_printed_to_standard_error(sample: SampleStore) -> None:
    done = call("show", "nosuch", cwd=sample.folder)
    assert (done.code, done.out) == (3, "")
    assert done.err == "holdfast: there is no run 'nosuch': `holdfast runs` lists them\n"
    reported = call("show", "nosuch", "--json", cwd=sample.folder)
    assert (reported.code, reported.out) == (3, "")
    record = json.loads(reported.err)
    assert (record["code"], record["details"]) == ("not_found", {"run": "nosuch"})


def test_error_escapes_a_hostile_argument(sample: SampleStore) -> None:
    for arguments in (["show", EVIL], ["tag", "hand", EVIL], [EVIL], ["runs", "--since", EVIL]):
        opened = Terminal(*arguments, cwd=sample.folder, NO_COLOR="1")
        assert opened.end() in (2, 3)
        assert b"\x1b" not in opened.raw
        assert b"owned\x07" not in opened.raw


def test_traceback_is_printed_only_with_debug(sample: SampleStore) -> None:
    assert "Traceback" not in call("show", "nosuch", cwd=sample.folder).err
    assert "Traceback" in call("show", "nosuch", "--debug", cwd=sample.folder).err


def test_shared_options_are_accepted_before_and_after_the_command(sample: SampleStore) -> None:
    before = call("--json", "--store", sample.store, "log", "hand", cwd=sample.folder.parent)
    after = call("log", "hand", "--json", "--store", sample.store, cwd=sample.folder.parent)
    assert before == after
    assert before.code == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1234567891, "0.1234567891"),
        (0.000043, "0.000043"),
        (60.0, "60"),
        (1e300, "1e+300"),
        (1e-300, "1e-300"),
        (100.0, "100"),
        (float("nan"), "nan"),
    ],
)
def test_output_keeps_all_digits_of_a_number(
    value: float, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Output().fields([value])
    assert capsys.readouterr().out == f"{text}\n"


def test_output_of_a_state_is_json() -> None:
    values = [0.1234567891, 1.0, "a\tb", None, True, [1, {"a": b"x"}]]
    found = [json.loads(dumps(as_json(value))) for value in values]
    assert found[:5] == values[:5]
    assert found[5] == as_json(values[5])


def test_output_json_is_indented_on_a_terminal_only(sample: SampleStore) -> None:
    for command in (["stats", "--json"], ["show", "hand", "deep"], ["verify", "--json"], ["gc", "--json"]):
        line = sample.pipe(*command)
        assert line.count("\n") == 1
    shown = sample.screen("stats", "--json")
    assert shown.startswith('{\n  "store": "holdfast.db",\n')
    assert sample.screen("gc", "--json").startswith('{\n  "artifacts": 0,')


def test_progress_is_shown_on_a_terminal_only(own: SampleStore) -> None:
    assert own.screen("verify").count("\n") == 0
    done = call("verify", cwd=own.folder)
    assert done.err == ""


def test_output_of_actions_is_escaped(own: SampleStore) -> None:
    """A run's name may hold signs that turn a line around."""
    with own.open() as hf:
        hf.history("a\u202eb").commit({})
    assert own.screen("tag", "a\u202eb", "[red]x") == "tagged a\\u202eb@1 as a\\u202eb:[red]x"
    assert own.pipe("pin", "a\u202eb").startswith("pinned a\\u202eb@1")
    assert own.screen("show", "a\u202eb").splitlines()[0].split() == ["version", "a\\u202eb@1"]


def test_output_fields_hold_no_formula(tmp_path: Path) -> None:
    """A spreadsheet computes what begins like one, also in quotation marks; numbers it may."""
    with holdfast.open(tmp_path / "holdfast.db") as hf:
        log = hf.history("=cmd()")
        log.commit({"n": -5, "x": "=1+1"}, step="@SUM(1)", note="+1+1")
        log.commit({"n": -6.5, "x": "-2+3"}, step="-2+3")
    assert call("runs", cwd=tmp_path).out.startswith("'=cmd()\t")
    cells = [
        cell for line in call("log", "=cmd()", cwd=tmp_path).out.splitlines() for cell in line.split("\t")
    ]
    assert "'@SUM(1)" in cells
    assert "'-2+3" in cells
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "@")]
    cells = [
        cell
        for line in call("diff", "=cmd()@1", "@2", cwd=tmp_path).out.splitlines()
        for cell in line.split("\t")
    ]
    assert {"-5", "-6.5", '\'"=1+1"', '\'"-2+3"'} <= set(cells)
    assert json.loads(call("runs", "--json", cwd=tmp_path).out)[0]["id"] == "=cmd()"
