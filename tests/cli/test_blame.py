"""`holdfast blame`"""

from __future__ import annotations

import json

from filled_store import LONG, SampleStore


def test_blame_on_a_terminal_is_a_table(sample: SampleStore) -> None:
    lines = [line.split() for line in sample.screen("blame", "report-1").splitlines()]
    assert lines[0] == ["path", "version", "step", "when", "value"]
    assert [line[:3] for line in lines[1:]] == [
        ["plan", "2", "plan"],
        ["found", "4", "search#2"],
        ["published", "5", "publish"],
    ]


def test_blame_in_a_pipe_prints_fields(sample: SampleStore) -> None:
    rows = sample.rows("blame", "report-1", "plan")
    assert [row[:3] for row in rows] == [["plan.days", "2", "plan"], ["plan.tasks", "2", "plan"]]
    assert rows[0][4] == "3"


def test_blame_prints_json(sample: SampleStore) -> None:
    (found,) = json.loads(sample.pipe("blame", "report-1", "found[0]", "--json"))
    assert (found["path"], found["ref"], found["step"], found["value"]) == (
        "found[0]",
        "report-1@3",
        "search",
        "kelp",
    )


def test_blame_depth_lists_levels(sample: SampleStore) -> None:
    paths = [part["path"] for part in sample.json("blame", "report-1", "--depth", "2")]
    assert paths == ["plan.days", "plan.tasks", "found[0]", "found[1]", "published"]
    assert [part["path"] for part in sample.json("blame", "report-1", "--depth", "0")] == [""]
    assert "(all)" in sample.screen("blame", "report-1", "--depth", "0")


def test_blame_of_a_version_reads_that_state(sample: SampleStore) -> None:
    assert [part["version"] for part in sample.json("blame", "report-1@3", "found")] == [3]


def test_blame_follows_a_merge_of_a_manual_run(sample: SampleStore) -> None:
    found = {part["path"]: part["version"] for part in sample.json("blame", "hand")}
    assert found["second"] == 7
    assert found["third"] == 8
    assert {row[0]: row[2] for row in sample.rows("blame", "hand")}["second"] == "manual"


def test_blame_of_a_pruned_history(sample: SampleStore) -> None:
    assert sample.json("blame", "pruned")[0]["version"] == 8


def test_blame_escapes_hostile_values(sample: SampleStore) -> None:
    text = sample.screen("blame", "[red]hostile[/red]", columns=300)
    assert "[red]value[/red]" in text
    assert all(len(row) == 5 for row in sample.rows("blame", "[red]hostile[/red]"))
    assert all(len(line) <= 40 for line in sample.screen("blame", LONG, columns=40).splitlines())


def test_blame_of_a_missing_path_is_refused(sample: SampleStore) -> None:
    assert "there is nothing at nowhere" in sample.refused("blame", "hand", "nowhere", code=3)
    assert "no run" in sample.refused("blame", "nosuch", code=3)
    assert "path" in sample.refused("blame", "hand", "a..b", code=2)
    assert "--depth" in sample.refused("blame", "hand", "--depth", "-1", code=2)
