"""The journal: what is told of a run, in which order, and never without its cause."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import event_flows
import pytest
import run_fixtures
from event_flows import BROKEN, end, event_arun, event_run, event_short, event_step
from run_fixtures import kinds

import holdfast
from holdfast import Holdfast, workflow
from holdfast.model.records import EventRecord
from holdfast.store.protocol import Append
from holdfast.tree.codec import decode

mended, file = event_flows.mended, event_flows.file

hf = run_fixtures.hf


@pytest.mark.parametrize("which", [event_run, event_arun])
def test_journal_records_the_whole_life_of_a_run(hf: Holdfast, which: Any) -> None:
    BROKEN[:] = ["a"]
    run = hf.run(which, run_id="r")
    assert kinds(run) == ["run.started", "step.retried", "step.completed", "question.opened", "run.suspended"]
    retried = run.events()[1]
    assert retried.step == ("event_step" if which is event_run else "event_astep")
    assert retried.data["attempt"] == 1
    assert retried.data["error"] == "ConnectionError: a is down"
    assert run.events()[2].data["attempt"] == 2
    assert run.events()[2].version == 2
    opened = run.events()[3]
    assert opened.data == {"question_id": "r#1", "question": "Well?", "address": "ask"}
    # Older programs read the id under the stored word.
    stored = [
        entry for entry in hf._store.journal(run=1, after=0, limit=100) if isinstance(entry, EventRecord)
    ]
    assert decode(stored[1].data) == {"prompt": "r#1", "question": "Well?", "address": "ask"}

    mark = end(hf)
    BROKEN[:] = ["b", "b"]
    hf.answer("r#1", "yes", raises=False)
    # Every step as it happened, then how it ended.
    assert kinds(run, mark) == [
        "question.answered", "run.resumed", "step.completed", "step.retried", "step.failed", "run.failed",
    ]  # fmt: skip
    failed = run.events(after=mark)[-2]
    assert (failed.data["attempt"], failed.data["error"]) == (2, "ConnectionError: b is down")

    mark = end(hf)
    hf.resume("r")
    assert kinds(run, mark) == ["run.resumed", "step.completed", "run.completed"]

    mark = end(hf)
    hf.rollback("r", to=2, reason="wrong")
    assert kinds(run, mark) == ["run.rolled_back", "run.resumed", "question.opened", "run.suspended"]
    rolled = run.events(after=mark)[0]
    assert rolled.data == {"since": 5, "to": 2, "timeline": 2, "reason": "wrong"}

    mark = end(hf)
    hf.pause("r")
    hf.resume("r")
    hf.cancel("r")
    assert kinds(run, mark) == ["run.paused", "run.resumed", "run.suspended", "run.cancelled"]

    mark = end(hf)
    hf.fork("r", "f", at=2)
    assert kinds(run, mark) == ["run.forked"]
    assert run.events(after=mark)[0].data["fork"] == "f"
    assert [event.cursor for event in hf.events()] == sorted({event.cursor for event in hf.events()})


def test_journal_events_are_in_the_commit_of_their_cause(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write is the last one, no entry is without what it tells of."""
    append = hf._store.append
    left = [0]

    def dies(change: Append) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return append(change)

    full = hf.run(event_short, run_id="full")
    assert kinds(full) == ["run.started", "step.completed", "run.completed"]
    for writes in range(1, 5):
        BROKEN[:] = ["x"]
        left[0] = writes
        name = f"r-{writes}"
        with monkeypatch.context() as patch:
            patch.setattr(hf._store, "append", dies)
            with suppress(KeyboardInterrupt):
                hf.run(event_short, run_id=name)
        run = hf.get(name)
        found = kinds(run)
        assert found == ["run.started", "step.retried", "step.completed", "run.completed"][: len(found)]
        # The attempt that failed is told together with the step that it was an attempt of.
        assert "step.completed" not in found or "step.retried" in found
        assert ("run.completed" in found) == (run.status == "completed")
        assert run.head.number == 1 + ("step.completed" in found) + ("run.completed" in found)


PROGRAM = """
import os, signal, sys
import holdfast
from holdfast import step, workflow

@step
def work(n):
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n

@workflow
def event_killed():
    return [work(n) for n in range(5)]

with holdfast.open(sys.argv[1], durability="fast") as hf:
    hf.run(event_killed, run_id="r")
"""


def test_killed_process_leaves_no_event_without_its_cause(file: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    with holdfast.open(file, durability="fast") as hf:
        run = hf.get("r")
        assert kinds(run) == ["run.started", *["step.completed"] * 3]
        assert [event.version for event in run.events()] == [1, 2, 3, 4]


def test_journal_records_a_handled_failure_once(hf: Holdfast) -> None:
    @workflow(name="event_handles")
    def handles() -> str:
        try:
            event_step("a")
        except ConnectionError:
            return event_step("b")
        return "never"

    BROKEN[:] = ["a", "a"]
    run = hf.run(handles)
    assert kinds(run) == ["run.started", "step.retried", "step.failed", "step.completed", "run.completed"]


def test_journal_is_read_for_the_store_and_for_a_run(hf: Holdfast) -> None:
    for number in range(3):
        hf.run(event_short, run_id=f"r-{number}")
    everything = hf.events()
    assert [event.run for event in everything] == [f"r-{n}" for n in range(3) for _ in range(3)]
    assert [event.run for event in hf.events(after=everything[5].cursor)] == ["r-2"] * 3
    assert len(hf.events(limit=2)) == 2
    assert len(hf.get("r-1").events(limit=2)) == 2
    assert kinds(hf.get("r-1"), everything[3].cursor) == ["step.completed", "run.completed"]
