"""Help: every command explains itself."""

from __future__ import annotations

import json
import re

import click
import pytest
from filled_store import SampleStore
from terminal import call

from holdfast.cli.app import COMMANDS, program

NAMES = [name for group in COMMANDS.values() for name, _, _ in group]
LINES = {name: line for group in COMMANDS.values() for name, _, line in group}


def command(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_help_summary_matches_the_help_of_the_command(name: str) -> None:
    """The help starts with the summary of the list, and may continue."""
    text = command(name).help
    assert text
    assert text.split("\n\n")[0].startswith(LINES[name].rstrip("."))


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_every_option(name: str) -> None:
    found = command(name)
    everything = [found, *(found.commands.values() if isinstance(found, click.Group) else ())]
    for each in everything:
        names = {option for parameter in each.params for option in parameter.opts}
        assert {"--store", "--json", "--debug", "--app"} <= names, each.name
        for parameter in each.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{each.name} {parameter.opts}"
                assert parameter.help.endswith((".", "…", ")")), parameter.help


@pytest.mark.parametrize("name", NAMES)
def test_help_of_every_command(sample: SampleStore, name: str) -> None:
    for flag in ("--help", "-h"):
        done = sample.call(name, flag)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"Usage: holdfast {name}")
        assert max(map(len, done.out.splitlines())) <= 110


def test_help_truncates_no_summary(sample: SampleStore) -> None:
    lines = sample.call("artifacts", "--help").out.partition("Commands:\n")[2].splitlines()
    assert len(lines) == 3
    assert all(line.endswith(".") and not line.endswith("...") for line in lines), lines


def test_help_lists_own_options_first(sample: SampleStore) -> None:
    options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", sample.call("prune", "--help").out, re.MULTILINE)
    assert options[0] == "--all"
    assert options[-5:] == ["--store", "--app", "--json", "--debug", "--help"]


def test_help_of_the_program_lists_all_commands(sample: SampleStore) -> None:
    text = sample.pipe("--help")
    for name, line in LINES.items():
        assert re.search(rf"^  {name} +{re.escape(line.split(',')[0][:30])}", text, re.MULTILINE), name
    assert "RUN@12, RUN@head, RUN~2" in text
    assert text == sample.pipe(), "alone it says the same"
    assert "Change runs" in sample.screen("--help")


def test_version_option_prints_the_version(sample: SampleStore) -> None:
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\S*\n", sample.pipe("--version"))


@pytest.mark.parametrize(
    ("typed", "reported"),
    [
        ("lgo", "there is no command 'lgo': did you mean 'log'?"),
        ("xyzzy", "there is no command 'xyzzy': `holdfast --help` lists the commands"),
        ("--nosuch", "no such option"),
    ],
)
def test_help_suggests_a_similar_command(sample: SampleStore, typed: str, reported: str) -> None:
    done = call(typed, cwd=sample.folder)
    assert (done.code, done.out) == (2, "")
    assert reported in done.err.lower()
    assert json.loads(call("--json", typed, cwd=sample.folder).err)["code"] == "usage"
