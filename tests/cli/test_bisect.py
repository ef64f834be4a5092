"""`holdfast bisect`"""

from __future__ import annotations

import json
import sys

import pytest
from filled_store import SampleStore

#: Passes while there are fewer than two finds.
FEWER = [sys.executable, "-c", "import json, sys; sys.exit(len(json.load(sys.stdin).get('found', [])) > 1)"]


def test_bisect_on_a_terminal_lists_checked_versions(sample: SampleStore) -> None:
    lines = sample.screen("bisect", "report-1", "--", *FEWER).splitlines()
    assert lines[-1] == "report-1@4 (search#2) is the first version that fails"
    assert lines[0] == "  report-1@6: bad"
    assert lines[1] in ("  report-1@3: good", "  report-1@4: bad")


def test_bisect_in_a_pipe_prints_only_the_result(sample: SampleStore) -> None:
    assert (
        sample.pipe("bisect", "report-1", "--", *FEWER)
        == "report-1@4 (search#2) is the first version that fails\n"
    )


def test_bisect_prints_json(sample: SampleStore) -> None:
    found = json.loads(sample.pipe("bisect", "--json", "report-1", "--", *FEWER))
    assert (found["version"], found["address"]) == (4, "search#2")
    assert 2 <= found["tried"] <= 4


def test_bisect_passes_options_to_the_command(sample: SampleStore) -> None:
    done = sample.call("bisect", "report-1", "--", "sh", "-c", "exit 1", "--json", "--store")
    assert done.out == "report-1@1 (initial) is the first version that fails\n"


def test_bisect_searches_between_good_and_bad(sample: SampleStore) -> None:
    known = ["--good", "report-1@3", "--bad", "5"]
    assert sample.json("bisect", "report-1", *known, "--", *FEWER)["version"] == 4


def test_bisect_reports_that_no_version_fails(sample: SampleStore) -> None:
    assert sample.pipe("bisect", "report-1", "--", "true", code=1) == "no version fails: head passes\n"
    assert sample.json("bisect", "report-1", "--", "true", code=1)["version"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["report-1"], 2, "missing argument"),
        (["report-1", "--goood", "3", "--", "true"], 2, "no such option"),
        (["report-1", "sh", "-c", "exit 1"], 2, "no such option"),
        (["report-1@2", "--", "true"], 2, "name versions with --good and --bad"),
        (["report-1", "--", "sh", "-c", "kill -9 $$"], 2, "was ended by signal 9"),
        (["report-1", "--", "sh", "-c", "exit 143"], 2, "was ended by signal 15"),
        (["nosuch", "--", "true"], 3, "no run 'nosuch'"),
        (["report-1", "--good", "99", "--", "true"], 3, "no version 99"),
        (["hand", "--good", "5", "--", "false"], 2, "not an ancestor"),
        (["report-1", "--", "no-such-command"], 2, "cannot be run: No such file"),
        (["report-1", "--", "sh", "-c", "exit 127"], 2, "exited with 127"),
    ],
)
def test_bisect_usage_errors_are_reported(
    sample: SampleStore, arguments: list[str], code: int, reported: str
) -> None:
    assert reported in sample.refused("bisect", *arguments, code=code)
