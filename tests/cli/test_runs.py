"""`holdfast runs`"""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from filled_store import LONG, STORE, SampleStore
from terminal import PROGRAM, Terminal, environment

import holdfast


def test_runs_on_a_terminal_are_a_table(sample: SampleStore) -> None:
    lines = sample.screen("runs", columns=160).splitlines()
    assert lines[0].split() == ["run", "status", "workflow", "step", "versions", "age", "size", "tags"]
    words = {line.split()[0]: line.split() for line in lines[1:]}
    assert words["report-1"][1:5] == ["completed", "report", "publish", "6"]
    assert words["report-2"][1] == "failed"
    assert words["asks"][1] == "suspended"
    assert words["died"][1] == "interrupted"
    assert words["hand"][1:3] == ["manual", "—"]
    assert "good" in words["hand"]
    assert "[red]hostile[/red]" in words


def test_runs_in_a_pipe_are_fields(sample: SampleStore) -> None:
    rows = {row[0]: row for row in sample.rows("runs")}
    assert all(len(row) == 8 for row in rows.values())
    assert rows["report-1"][:5] == ["report-1", "completed", "report", "publish", "6"]
    assert datetime.fromisoformat(rows["report-1"][5]).tzinfo is not None
    assert rows["hand"][2] == ""
    assert rows[LONG][3] == "記" * 30


def test_runs_print_json(sample: SampleStore) -> None:
    out = sample.pipe("runs", "--json")
    assert out.count("\n") == 1
    found = {run["id"]: run for run in json.loads(out)}
    assert found["died"]["status"] == "interrupted"
    assert found["forked"]["origin"] == "report-1@3"
    assert found["pruned"]["versions"] == 3
    assert datetime.fromisoformat(found["hand"]["created"]) <= datetime.now(UTC)


def test_runs_are_listed_newest_first(sample: SampleStore) -> None:
    found = [run["id"] for run in sample.json("runs")]
    assert found.index("report-2") < found.index("report-1")


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (["--status", "failed"], {"report-2"}),
        (["--status", "failed", "--status", "completed"], {"report-1", "report-2"}),
        (["--status", "interrupted"], {"died"}),
        (["--workflow", "report", "--status", "suspended"], {"asks"}),
        (["--workflow", "nosuch"], set()),
        (["--tag", "good"], {"hand"}),
        (["--tag", "good", "--tag", "kept"], set()),
        (["--since", "2999-01-01"], set()),
    ],
)
def test_runs_are_filtered(sample: SampleStore, choice: list[str], wanted: set[str]) -> None:
    assert {run["id"] for run in sample.json("runs", *choice)} == wanted


def test_runs_status_running_excludes_interrupted_and_manual(sample: SampleStore) -> None:
    running = {run["id"] for run in sample.json("runs", "--status", "running")}
    kept = {run["id"] for run in sample.json("runs", "--status", "manual")}
    assert not running & {"died", "hand"}
    assert "hand" in kept
    assert "died" not in kept
    assert sample.json("stats")["statuses"]["manual"] == len(kept)


def test_runs_since_a_long_time_lists_all(sample: SampleStore) -> None:
    assert len(sample.json("runs", "--since", "1h")) == len(sample.json("runs"))


def test_runs_limit_counts_matching_runs(sample: SampleStore) -> None:
    """`died` is the third of those that are running in the store."""
    assert [run["id"] for run in sample.json("runs", "--status", "interrupted", "-n", "1")] == ["died"]
    assert len(sample.json("runs", "--limit", "2")) == 2


def test_runs_report_more_on_a_terminal(sample: SampleStore) -> None:
    assert sample.screen("runs", "-n", "2").splitlines()[-1] == "more runs: -n 20"
    assert "more" not in sample.screen("runs", "-n", "20")
    done = sample.call("runs", "-n", "2")
    assert (done.out.count("\n"), done.err) == (2, "")


def test_runs_of_an_empty_store(empty: SampleStore) -> None:
    assert empty.screen("runs") == "no runs"
    assert empty.pipe("runs") == ""
    assert empty.json("runs") == []


def test_runs_on_a_narrow_terminal_drop_columns(sample: SampleStore) -> None:
    lines = sample.screen("runs", "-n", "20", columns=40).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert lines[0].split()[:2] == ["run", "status"]
    found = {line.split()[0]: line for line in lines}
    assert "completed" in found["report-1"]
    assert "interrupted" in found["died"]
    assert len(lines) == len(sample.json("runs")) + 1, "every run has one line"


def test_runs_shorten_a_long_id(sample: SampleStore) -> None:
    line = next(line for line in sample.screen("runs").splitlines() if line.startswith("long-"))
    assert "…" in line
    assert "manual" in line


@pytest.mark.parametrize("when", ["yesterday", "5000y", "999999999y", "0001-01-01", "", "2026-13-01"])
def test_runs_since_refuses_an_invalid_time(sample: SampleStore, when: str) -> None:
    assert "write" in sample.refused("runs", "--since", when, code=2)


@pytest.mark.parametrize(
    "wrong", [["--status", "done"], ["--limit", "0"], ["--limit", "many"], ["--nosuch"], ["a-run"]]
)
def test_runs_usage_errors_are_reported(sample: SampleStore, wrong: list[str]) -> None:
    assert "`holdfast runs --help`" in sample.refused("runs", *wrong, code=2)


def test_runs_without_a_store_are_refused(bare: SampleStore) -> None:
    reported = bare.screen("runs", code=10).replace("\n", "")
    assert "there is no store at holdfast.db" in reported
    assert "holdfast init" in reported
    bare.pipe("runs", code=10)
    assert not (bare.folder / STORE).exists()


def test_runs_watch_on_a_terminal_updates(own: SampleStore) -> None:
    watching = Terminal("runs", "--watch", cwd=own.folder)
    watching.until("report-1")
    with own.open() as hf:
        hf.history("a-new-one").commit({})
    watching.until("a-new-one")
    watching.interrupt()
    assert watching.end() == 130
    assert "interrupted" in watching.text


def test_runs_watch_in_a_pipe_prints_each_change(own: SampleStore) -> None:
    command = [*PROGRAM, "runs", "--watch", "--json", "--workflow", "report"]
    with subprocess.Popen(
        command, cwd=own.folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        first = [json.loads(watching.stdout.readline())["id"] for _ in range(5)]
        assert sorted(first) == ["asks", "died", "forked", "report-1", "report-2"]
        with own.open() as hf:
            hf.cancel("died")
        changed = json.loads(watching.stdout.readline())
        assert (changed["id"], changed["status"]) == ("died", "cancelled")
        watching.terminate()


def test_show_and_runs_have_the_metadata(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / STORE) as hf:
        hf.history("meta", meta={"customer": 7, "env": "a\x1b[31m"}).commit({"n": 1})
        hf.history("meta").commit({"n": 2})
        hf.history("meta").rollback(1)
    sample = SampleStore(tmp_path)
    assert sample.json("runs")[0]["meta"] == {"customer": 7, "env": "a\x1b[31m"}
    shown = sample.json("show", "meta")
    assert (shown["meta"]["customer"], shown["moves"]) == (7, {"resumed_from": None, "rolled_back_from": 2})
    assert (sample.json("show", "meta@2")["meta"], sample.json("show", "meta@2")["moves"]) == (None, None)
    screen = sample.screen("show", "meta")
    assert "customer: 7" in screen
    assert "\x1b[31m" not in screen
    assert "rolled_back_from" in screen
