"""`holdfast events`"""

from __future__ import annotations

import json
import subprocess

from filled_store import SampleStore, report
from terminal import PROGRAM, Terminal, environment


def test_events_on_a_terminal_are_lines(sample: SampleStore) -> None:
    lines = sample.screen("events", "report-2", columns=200).splitlines()
    assert [line.split()[1:4] for line in lines][:4] == [
        ["run.started", "report-2@1"],
        ["step.completed", "report-2@2", "plan"],
        ["step.completed", "report-2@3", "search"],
        ["step.completed", "report-2@4", "search#2"],
    ]
    assert "step.failed" in lines[4]
    assert "[bold]press[/bold]" in lines[4]


def test_event_of_a_question_shows_its_id(sample: SampleStore) -> None:
    lines = sample.screen("events", "asks", columns=200).splitlines()
    (opened,) = [line for line in lines if "question.opened" in line]
    assert 'question_id: "asks#1"' in opened


def test_events_in_a_pipe_are_fields(sample: SampleStore) -> None:
    rows = sample.rows("events", "report-2")
    assert all(len(row) == 7 for row in rows)
    assert [row[3] for row in rows][-1] == "run.failed"
    assert json.loads(rows[3][6])["address"] == "search#2"


def test_events_as_json_are_lines(sample: SampleStore) -> None:
    lines = sample.pipe("events", "report-2", "--json").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["kind"] for event in events][-1] == "run.failed"
    assert sorted(event["cursor"] for event in events) == [event["cursor"] for event in events]


def test_events_of_the_store_filtered_by_kind(sample: SampleStore) -> None:
    every = _kinds(sample, "events")
    assert {run for run, _ in every} > {"report-1", "report-2", "asks"}
    assert set(_kinds(sample, "events", "--kind", "run.failed")) == {("report-2", "run.failed")}
    several = _kinds(sample, "events", "report-2", "--kind", "run.*", "--kind", "nosuch")
    assert several == [("report-2", "run.started"), ("report-2", "run.failed")]


def test_events_continue_after_a_cursor(sample: SampleStore) -> None:
    lines = sample.call("--json", "events", "report-1").out.splitlines()
    cursor = json.loads(lines[2])["cursor"]
    assert sample.call("--json", "events", "report-1", "--after", str(cursor)).out.splitlines() == lines[3:]


def test_events_follow_in_a_pipe(own: SampleStore) -> None:
    command = [*PROGRAM, "events", "report-1", "--follow", "--json", "--kind", "run.*"]
    with subprocess.Popen(
        command, cwd=own.folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        kinds = [json.loads(following.stdout.readline())["kind"] for _ in range(3)]
        assert kinds == ["run.started", "run.completed", "run.forked"]
        with own.open() as hf:
            hf.fork("report-1", "a-later-one")
        assert json.loads(following.stdout.readline())["data"]["fork"] == "a-later-one"
        following.terminate()


def test_events_follow_on_a_terminal(own: SampleStore) -> None:
    following = Terminal("events", "-f", "--kind", "run.completed", cwd=own.folder)
    following.until("report-1")
    with own.open() as hf:
        hf.run(report, run_id="a-later-one")
    following.until("a-later-one")
    assert "run.started" not in following.text
    following.interrupt()
    assert following.end() == 130


def test_events_of_a_missing_run_are_refused(sample: SampleStore, empty: SampleStore) -> None:
    assert "no run" in sample.refused("events", "nosuch", code=3)
    assert "--after" in sample.refused("events", "--after", "x", code=2)
    assert empty.pipe("events") == ""
    assert empty.pipe("events", "--json") == ""


def _kinds(sample: SampleStore, *arguments: str) -> list[tuple[str, str]]:
    events = map(json.loads, sample.call("--json", *arguments).out.splitlines())
    return [(event["run"], event["kind"]) for event in events]
