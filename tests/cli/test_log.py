"""`holdfast log`"""

from __future__ import annotations

import json

import pytest
from filled_store import LONG, STORE, SampleStore
from terminal import call

from database import Database


def test_log_on_a_terminal_draws_lanes(sample: SampleStore) -> None:
    """Three timelines, the second of which was merged into the third."""
    lines = sample.screen("log", "hand").splitlines()
    assert [line[:15].rstrip() for line in lines] == [
        "●        9  (me",
        "├─╮",
        "○ │      8  (ma",
        "│ ○      7  (ma",
        "│ ○      6  (ma",
        "│ │ ○    5  (ma",
        "│ │ ○    4  (ma",
        "│ ├─╯",
        "│ ○      3  (ma",
        "├─╯",
        "○        2  (ma",
        "○        1  (in",
    ]
    assert lines[0].endswith("← head")
    assert lines[3].endswith(':good  "better"')
    assert lines[4].endswith('timeline 2: "a wrong turn"')
    assert lines[8].endswith("pinned")


def test_log_on_a_terminal_describes_steps(sample: SampleStore) -> None:
    text = sample.screen("log", "report-1")
    assert [line.split()[1:3] for line in text.splitlines()] == [
        ["6", "(final)"],
        ["5", "publish"],
        ["4", "search#2"],
        ["3", "search"],
        ["2", "plan"],
        ["1", "(initial)"],
    ]
    assert "took" in text


def test_log_in_a_pipe_prints_fields(sample: SampleStore) -> None:
    rows = sample.rows("log", "hand")
    assert [row[0] for row in rows] == list("987654321")
    assert all(len(row) == 11 for row in rows)
    assert rows[2][:5] == ["7", "2", "manual", "manual", "running"]
    assert rows[2][8:] == ["good", "better", ""]


def test_log_prints_json(sample: SampleStore) -> None:
    found = json.loads(sample.pipe("log", "report-1", "--json"))
    assert [version["address"] for version in found] == [None, "publish", "search#2", "search", "plan", None]
    assert found[0]["status"] == "completed"
    assert len({version["hash"] for version in found}) == 6


def test_log_graph_in_a_pipe_has_no_colours(sample: SampleStore) -> None:
    out = sample.pipe("log", "hand", "--graph")
    assert "├─╯" in out
    assert "\x1b" not in out
    assert sample.call("log", LONG, "--graph").out.count("記") == 30


def test_log_no_graph_on_a_terminal_is_a_table(sample: SampleStore) -> None:
    lines = sample.screen("log", "hand", "--no-graph").splitlines()
    assert lines[0].split() == [
        "version",
        "timeline",
        "step",
        "kind",
        "status",
        "at",
        "took",
        "size",
        "tags",
        "note",
        "key",
    ]
    assert lines[1].split()[:5] == ["9", "3", "merge", "merge", "running"]


def test_log_has_the_keys_of_versions(own: SampleStore) -> None:
    with own.open() as hf:
        hf.history("keyed").commit({"n": 1})
        hf.history("keyed").commit({"n": 2}, key="thread [bold]1[/bold]")
    assert [version["key"] for version in own.json("log", "keyed")] == ["thread [bold]1[/bold]", None]
    assert [row[-1] for row in own.rows("log", "keyed")] == ["thread [bold]1[/bold]", ""]
    lines = own.screen("log", "keyed", columns=200).splitlines()
    assert lines[0].endswith("key thread [bold]1[/bold]  ← head")
    assert "key" not in lines[1]


def test_log_oneline_prints_number_and_step(sample: SampleStore) -> None:
    assert sample.screen("log", "report-1", "--oneline").splitlines()[1] == "○    5  publish"
    assert sample.call("log", "report-1", "--oneline").out.splitlines()[1] == "5\t1\tpublish"


def test_log_reports_more_versions_on_a_terminal(sample: SampleStore) -> None:
    lines = sample.screen("log", "hand", "-n", "3").splitlines()
    assert lines[-1] == "more versions: -n 30, or --before 7"
    assert [line[:3].rstrip() for line in lines[:4]] == ["●", "├─╮", "○ │", "│ ○"], (
        "lines continue below the list"
    )
    assert "more" not in sample.screen("log", "hand", "-n", "9")
    done = sample.call("log", "hand", "-n", "3")
    assert (done.out.count("\n"), done.err) == (3, "")


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (["--before", "3"], [2, 1]),
        (["--timeline", "2"], [7, 6]),
        (["--tag", "good"], [7]),
        (["--step", "nosuch"], []),
        (["-n", "1"], [9]),
    ],
)
def test_log_filters_versions(sample: SampleStore, choice: list[str], wanted: list[int]) -> None:
    assert [version["version"] for version in sample.json("log", "hand", *choice)] == wanted


def test_log_of_a_step_draws_no_lines(sample: SampleStore) -> None:
    lines = sample.screen("log", "report-1", "--step", "search").splitlines()
    assert [line.split()[:3] for line in lines] == [["○", "4", "search#2"], ["○", "3", "search"]]
    assert sample.screen("log", "report-1", "--step", "nosuch") == "no such versions"


def test_log_of_pruned_versions_shows_a_gap(sample: SampleStore) -> None:
    lines = sample.screen("log", "pruned").splitlines()
    assert [line[:8].split() for line in lines] == [["●", "8"], ["○", "7"], ["┆"], ["○", "4"]]


def test_log_of_a_fork(sample: SampleStore) -> None:
    found = sample.json("log", "forked")
    assert found[0]["kind"] == "fork"
    assert found[0]["note"] == "another try"


def test_log_on_a_narrow_terminal_keeps_the_lanes(sample: SampleStore) -> None:
    lines = sample.screen("log", "hand", columns=40).splitlines()
    assert len(lines) == 12
    assert all(len(line) <= 40 for line in lines)


def test_log_never_splits_wide_characters(sample: SampleStore) -> None:
    for columns in (40, 41):
        lines = sample.screen("log", LONG, columns=columns).splitlines()
        assert len(lines) == 1
        assert lines[0].endswith("…")


def test_log_escapes_hostile_names(sample: SampleStore) -> None:
    text = sample.screen("log", "[red]hostile[/red]", columns=400)
    assert "\\e[2J" in text
    assert "[red]loud[/red]" in text
    assert ":[red]tag" in text
    assert len(text.splitlines()) == 2
    assert all(len(row) == 11 for row in sample.rows("log", "[red]hostile[/red]"))


def test_log_accepts_a_prefix(sample: SampleStore) -> None:
    assert sample.json("log", "han") == sample.json("log", "hand")


@pytest.mark.parametrize(
    ("name", "code", "reported"),
    [
        ("report", 2, "'report' could be any of report-1, report-2: write more of it"),
        ("reprot-1", 3, "there is no run 'reprot-1': did you mean 'report-1'?"),
        ("nothing-like-it", 3, "there is no run 'nothing-like-it': `holdfast runs` lists them"),
        ("", 3, "there is no run '': `holdfast runs` lists them"),
        ("\x1b[31m", 3, "there is no run '\\x1b[31m': `holdfast runs` lists them"),
    ],
)
def test_log_of_an_unknown_run_is_refused(sample: SampleStore, name: str, code: int, reported: str) -> None:
    assert sample.refused("log", name, code=code) == reported


def test_log_needs_a_run(sample: SampleStore) -> None:
    assert sample.refused("log", code=2) == "missing argument 'RUN' (see `holdfast log --help`)"


def test_log_escapes_characters_that_cannot_be_encoded(sample: SampleStore) -> None:
    assert "\\u25cf" in call("log", "hand", "--graph", cwd=sample.folder, PYTHONIOENCODING="ascii").out


def test_log_of_a_version_is_refused(sample: SampleStore) -> None:
    reported = sample.refused("log", "hand@2", code=2)
    assert reported.startswith("hand@2 is a version, but a run is expected: --before N")
    assert "no run 'hnad@2'" in sample.refused("log", "hnad@2", code=3)


def test_log_marks_a_damaged_version(own: SampleStore) -> None:
    with Database(own.folder / STORE) as connection:
        connection.execute(
            "UPDATE journal SET kind = 99 WHERE number = 4 AND run = (SELECT key FROM run WHERE id = 'report-1')"
        )
    lines = own.screen("log", "report-1").splitlines()
    assert [line.split()[1] for line in lines] == list("654321")
    assert "(damaged)" in lines[2]
    assert "holdfast verify" in lines[2]
    assert [row[2] for row in own.rows("log", "report-1")][2] == "damaged"
    found = own.json("log", "report-1")
    assert [version["damaged"] for version in found] == [False, False, True, False, False, False]
    assert "version 4" in own.refused("show", "report-1@4", code=6)


def test_log_finds_versions_by_annotations(sample: SampleStore) -> None:
    def numbers(*conditions: str) -> list[int]:
        options = [part for each in conditions for part in ("--where", each)]
        return [each["version"] for each in sample.json("log", "report-1", *options)]

    assert numbers("model=small-1", "cost>0.005") == [4, 3]
    assert numbers("cost>0.5") == numbers('tokens="5"') == numbers("unknown!=1") == []
    assert numbers("tokens=5.0") == [4, 3]


def test_log_refuses_conditions_that_it_cannot_read(sample: SampleStore) -> None:
    for wrong, message in [
        ("model", "is not a condition"),
        ("=7", "is not a condition"),
        ("cost>null", "compares numbers or texts"),
    ]:
        assert message in sample.refused("log", "report-1", "--where", wrong, code=2)
