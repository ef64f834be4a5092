"""`holdfast diff` and `holdfast compare`"""

from __future__ import annotations

import json
from typing import Any

import pytest
from filled_store import SampleStore


def test_diff_on_a_terminal_lists_changes(sample: SampleStore) -> None:
    assert sample.screen("diff", "hand@4", "hand@7").splitlines() == [
        "hand@4 → hand@7",
        "~ n  3 → 2",
        "+ second  2",
        '~ (note)  null → "better"',
        '+ (tags[0])  "good"',
    ]


def test_diff_in_a_pipe_prints_fields(sample: SampleStore) -> None:
    assert sample.rows("diff", "hand@4", "@7") == [
        ["changed", "n", "3", "2"],
        ["added", "second", "", "2"],
        ["changed", "(note)", "null", '"better"'],
        ["added", "(tags[0])", "", '"good"'],
    ]


def test_diff_prints_json(sample: SampleStore) -> None:
    found = json.loads(sample.pipe("diff", "hand@4", "hand@5", "--json"))
    assert (found["a"], found["b"]) == ("hand@4", "hand@5")
    assert found["changes"] == [
        {
            "kind": "changed",
            "of": "state",
            "path": "n",
            "source": None,
            "old": 3,
            "new": 4,
            "summary": "n: 3 → 4",
        }
    ]


@pytest.mark.parametrize("other", ["hand@7", "@7", "7", ":good", "~2"])
def test_diff_second_version_may_omit_the_run(sample: SampleStore, other: str) -> None:
    found = sample.json("diff", "hand@4", other)
    assert found["a"] == "hand@4"
    assert found["b"] in ("hand@7", "hand@2"), "~2 goes along the head's own line"


def test_diff_of_one_version_compares_with_head_or_parent(sample: SampleStore) -> None:
    assert sample.json("diff", "report-1@2")["b"] == "report-1@6"
    found = sample.json("diff", "report-1")
    assert (found["a"], found["b"]) == ("report-1@5", "report-1@6")


def test_diff_compares_two_runs(sample: SampleStore) -> None:
    found = sample.json("diff", "report-1@3", "forked")
    assert [change["path"] for change in found["changes"] if change["of"] == "state"] == ["plan.days"]


def test_diff_exit_code_reports_differences(sample: SampleStore) -> None:
    sample.pipe("diff", "hand@4", "hand@5", "--exit-code", code=1)
    sample.pipe("diff", "hand@4", "hand@4", "--exit-code", code=0)
    sample.pipe("diff", "hand@4", "hand@5", code=0)


def test_diff_reports_no_difference(sample: SampleStore) -> None:
    assert sample.screen("diff", "hand", "hand").splitlines() == ["hand@9 → hand@9", "no difference"]
    assert sample.call("diff", "hand", "hand").out == ""


def test_diff_stat_counts_changes(sample: SampleStore) -> None:
    lines = sample.screen("diff", "hand@4", "hand@7", "--stat").splitlines()
    assert [line.split() for line in lines] == [
        ["part", "added", "removed", "changed", "moved"],
        ["(note)", "0", "0", "1", "0"],
        ["(tags)", "1", "0", "0", "0"],
        ["n", "0", "0", "1", "0"],
        ["second", "1", "0", "0", "0"],
        ["4", "changes"],
    ]
    assert sample.json("diff", "hand@4", "hand@5", "--stat") == [
        {"part": "n", "added": 0, "removed": 0, "changed": 1, "moved": 0}
    ]


def test_diff_prints_a_json_patch(sample: SampleStore) -> None:
    patch = [{"op": "replace", "path": "/n", "value": 4}]
    assert json.loads(sample.pipe("diff", "hand@4", "hand@5", "--json-patch")) == patch
    assert sample.json("diff", "hand@4", "hand@5", "--json-patch") == patch
    assert "omit" in sample.refused("diff", "hand", "--json-patch", "--path", "n", code=2)


@pytest.mark.parametrize(
    ("a", "b", "path", "wanted"),
    [
        ("report-1@1", "report-1", "plan", [("added", "plan")]),
        ("report-1@1", "report-1", "plan.days", [("added", "plan.days")]),
        ("report-1", "report-1@1", "plan.tasks[0].done", [("removed", "plan.tasks[0].done")]),
        ("report-1@3", "forked", "plan", [("changed", "plan.days")]),
        ("report-1@3", "forked", "found", []),
        ("report-1@1", "report-1", "published", [("added", "published")]),
    ],
)
def test_diff_below_a_path(sample: SampleStore, a: str, b: str, path: str, wanted: list[Any]) -> None:
    """Also of what came or went with all that is around it."""
    found = sample.json("diff", a, b, "--path", path)["changes"]
    assert [(change["kind"], change["path"]) for change in found] == wanted


def test_diff_of_a_missing_path_is_refused(sample: SampleStore) -> None:
    reported = sample.refused("diff", "hand@1", "hand@2", "--path", "nowhere", code=3)
    assert "there is no value at nowhere in hand@1 or hand@2" in reported
    assert "path '['" in sample.refused("diff", "hand", "--path", "[", code=2)


def test_diff_of_the_first_version_needs_another(sample: SampleStore, own: SampleStore) -> None:
    with own.open() as hf:
        hf.history("single").commit({})
    assert "name two versions" in own.refused("diff", "single", code=3)
    assert sample.refused("diff", "nosuch", code=3)


def test_diff_escapes_hostile_values(sample: SampleStore) -> None:
    text = sample.screen("diff", "[red]hostile[/red]@1", columns=200)
    assert "[red]value[/red]" in text
    assert "\\u001b[2J" in text
    assert all(len(row) == 4 for row in sample.rows("diff", "[red]hostile[/red]@1"))


def test_diff_fits_a_narrow_terminal(sample: SampleStore) -> None:
    lines = sample.screen("diff", "hand@1", "hand@7", columns=40).splitlines()
    assert all(len(line) <= 40 for line in lines)


def test_diff_patch_ignores_metadata_in_the_exit_code(sample: SampleStore) -> None:
    """The state of the last version is that of the one before; its result is another."""
    assert sample.pipe("diff", "report-1@5", "@6", "--exit-code", code=1)
    assert sample.pipe("diff", "report-1@5", "@6", "--json-patch", "--exit-code") == "[]\n"
    sample.pipe("diff", "report-1@4", "@5", "--json-patch", "--exit-code", code=1)


def test_compare_on_a_terminal_is_a_table(sample: SampleStore) -> None:
    lines = sample.screen("compare", "report-1", "report-2").splitlines()
    assert [line.split() for line in lines[:7]] == [
        ["step", "report-1@6", "report-2@4"],
        ["(initial)", "1", "=", "1"],
        ["plan", "2", "=", "2"],
        ["search", "3", "=", "3"],
        ["search#2", "4", "=", "4"],
        ["publish", "5", "≠"],
        ["(final)", "6", "≠"],
    ]
    assert "- published  true" in lines


def test_compare_prints_fields_and_json(sample: SampleStore) -> None:
    rows = sample.rows("compare", "report-1", "report-2")
    assert rows[1] == ["plan", "2", "same", "2"]
    assert rows[-1] == ["(final)", "6", "differs", ""]
    found = json.loads(sample.pipe("compare", "report-1", "report-2", "--json"))
    assert found["steps"][-1] == {
        "step": None,
        "address": None,
        "kind": "final",
        "a": 6,
        "b": None,
        "same": False,
        "a_code": None,
        "b_code": None,
        "same_code": None,
    }
    assert (found["steps"][3]["address"], found["steps"][3]["kind"]) == ("search#2", "step")
    assert {"published", "result"} <= {change["path"] for change in found["changes"]}


def test_compare_of_equal_runs(sample: SampleStore) -> None:
    assert sample.screen("compare", "hand", "hand") == "no difference"


def test_compare_escapes_a_run_id_like_markup(sample: SampleStore) -> None:
    assert "[red]hostile[/red]@2" in sample.screen("compare", "[red]hostile[/red]", "hand", columns=400)


def test_compare_with_a_missing_version_is_refused(sample: SampleStore) -> None:
    assert "no run 'nosuch'" in sample.refused("compare", "hand", "nosuch", code=3)
    assert "missing argument 'B'" in sample.refused("compare", "hand", code=2)
