"""`holdfast watch`"""

from __future__ import annotations

import json
import threading

import pytest
from filled_store import SampleStore
from terminal import Terminal

import holdfast
from holdfast import step, workflow

GOES: dict[str, threading.Event] = {"on": threading.Event()}


@step(name="wait")
def wait() -> None:
    assert GOES["on"].wait(60)


@workflow(name="waiting")
def waiting() -> str:
    wait()
    return "over"


@pytest.mark.parametrize(
    ("run", "code", "reported"),
    [
        ("report-1", 0, 'completed  report-1@6: "done"'),
        ("report-2", 1, "failed  report-2: ValueError"),
        ("asks", 5, "suspended  asks: open questions:"),
        ("died", 1, "interrupted  died: no process executes it; use `holdfast resume died`"),
    ],
)
def test_watch_of_an_ended_run(sample: SampleStore, run: str, code: int, reported: str) -> None:
    text = sample.screen("watch", run, code=code)
    assert "← head" in text
    assert reported in text


def test_watch_in_a_pipe_prints_events_and_the_outcome(sample: SampleStore) -> None:
    lines = sample.pipe("watch", "report-1").splitlines()
    assert "run.completed" in [line.split("\t")[2] for line in lines[:-1]]
    assert lines[-1] == 'completed  report-1@6: "done"'


def test_watch_prints_events_as_json(sample: SampleStore) -> None:
    done = sample.call("--json", "watch", "report-2")
    assert done.code == 1
    assert [json.loads(line)["kind"] for line in done.out.splitlines()][-1] == "run.failed"
    assert sample.call("--json", "watch", "died").code == 1
    assert sample.call("--json", "watch", "asks").code == 5


def test_watch_of_a_running_run(own: SampleStore) -> None:
    GOES["on"] = threading.Event()
    with own.open() as hf:
        working = threading.Thread(target=hf.run, args=(waiting,), kwargs={"run_id": "at-work"})
        working.start()
        try:
            while not hf.runs(workflow="waiting"):
                pass
            watching = Terminal("watch", "at-work", cwd=own.folder)
            watching.until("running  at-work@1")
        finally:
            GOES["on"].set()
            working.join()
        assert watching.end() == 0
    assert 'completed  at-work@3: "over"' in watching.text
    assert "running" not in watching.text, "what was shown meanwhile is gone"


@workflow(name="watched_part")
def part() -> str:
    return str(holdfast.ask("Is it well?"))


@workflow(name="watched_whole")
def whole() -> str:
    return part()


def test_watch_ends_when_a_child_asks(own: SampleStore) -> None:
    with own.open() as hf:
        hf.run(whole, run_id="whole")
    assert "open questions: whole.watched_part#1" in own.pipe("watch", "whole", code=5)
    own.pipe("watch", "whole", "--json", code=5)


def test_watch_can_be_interrupted(own: SampleStore) -> None:
    """A manual run has no end."""
    watching = Terminal("watch", "hand", cwd=own.folder)
    watching.until("running  hand@9")
    with own.open() as hf:
        hf.history("hand").commit({"n": 10}, step="another")
    watching.until("another")
    watching.interrupt()
    assert watching.end() == 130


def test_watch_of_an_unknown_run_is_refused(sample: SampleStore) -> None:
    assert "did you mean 'hand'?" in sample.refused("watch", "hnad", code=3)
