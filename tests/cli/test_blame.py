"""`holdfast blame`"""

from __future__ import annotations

import json

from shelf import LONG, Shelf


def test_blame_on_a_terminal_is_a_table(shelf: Shelf) -> None:
    lines = [line.split() for line in shelf.screen("blame", "report-1").splitlines()]
    assert lines[0] == ["path", "version", "step", "when", "value"]
    assert [line[:3] for line in lines[1:]] == [
        ["plan", "2", "plan"],
        ["found", "4", "search#2"],
        ["published", "5", "publish"],
    ]


def test_blame_in_a_pipe_prints_fields(shelf: Shelf) -> None:
    rows = shelf.rows("blame", "report-1", "plan")
    assert [row[:3] for row in rows] == [["plan.days", "2", "plan"], ["plan.tasks", "2", "plan"]]
    assert rows[0][4] == "3"


def test_blame_prints_json(shelf: Shelf) -> None:
    (found,) = json.loads(shelf.pipe("blame", "report-1", "found[0]", "--json"))
    assert (found["path"], found["ref"], found["step"], found["value"]) == (
        "found[0]",
        "report-1@3",
        "search",
        "kelp",
    )


def test_blame_depth_lists_levels(shelf: Shelf) -> None:
    paths = [part["path"] for part in shelf.json("blame", "report-1", "--depth", "2")]
    assert paths == ["plan.days", "plan.tasks", "found[0]", "found[1]", "published"]
    assert [part["path"] for part in shelf.json("blame", "report-1", "--depth", "0")] == [""]
    assert "(all)" in shelf.screen("blame", "report-1", "--depth", "0")


def test_blame_of_a_version_reads_that_state(shelf: Shelf) -> None:
    assert [part["version"] for part in shelf.json("blame", "report-1@3", "found")] == [3]


def test_blame_follows_a_merge_of_a_manual_run(shelf: Shelf) -> None:
    found = {part["path"]: part["version"] for part in shelf.json("blame", "hand")}
    assert found["second"] == 7
    assert found["third"] == 8
    assert {row[0]: row[2] for row in shelf.rows("blame", "hand")}["second"] == "manual"


def test_blame_of_a_pruned_history(shelf: Shelf) -> None:
    assert shelf.json("blame", "pruned")[0]["version"] == 8


def test_blame_escapes_hostile_values(shelf: Shelf) -> None:
    text = shelf.screen("blame", "[red]hostile[/red]", columns=300)
    assert "[red]value[/red]" in text
    assert all(len(row) == 5 for row in shelf.rows("blame", "[red]hostile[/red]"))
    assert all(len(line) <= 40 for line in shelf.screen("blame", LONG, columns=40).splitlines())


def test_blame_of_a_missing_path_is_refused(shelf: Shelf) -> None:
    assert "there is nothing at nowhere" in shelf.refused("blame", "hand", "nowhere", code=3)
    assert "no run" in shelf.refused("blame", "nosuch", code=3)
    assert "path" in shelf.refused("blame", "hand", "a..b", code=2)
    assert "--depth" in shelf.refused("blame", "hand", "--depth", "-1", code=2)
