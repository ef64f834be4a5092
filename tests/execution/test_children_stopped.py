"""Child workflows that are cancelled, paused or suspended together with their parent."""

from __future__ import annotations

import threading
from typing import Any

import child_flows
import pytest
import run_fixtures
from child_flows import CALLS, child_work
from run_fixtures import kinds

import holdfast
from holdfast import Cancelled, Holdfast, step, workflow

hf, no_calls = run_fixtures.hf, child_flows.no_calls


def test_cancel_reaches_a_running_child(hf: Holdfast) -> None:
    inside, going = threading.Event(), threading.Event()

    @step(name="child_blocks")
    def blocks() -> str:
        inside.set()
        assert going.wait(30)
        CALLS.append("blocked")
        return "done"

    @workflow(name="child_running")
    def running() -> Any:
        blocks()
        return child_work("too far")

    @workflow(name="child_running_parent")
    def parent() -> Any:
        running()
        return child_work("much too far")

    thread = threading.Thread(target=hf.run, args=(parent,), kwargs={"run_id": "r"})
    thread.start()
    try:
        assert inside.wait(30)
        hf.cancel("r", reason="enough")
    finally:
        going.set()
        thread.join()
    run = hf.get("r")
    child = hf.get(run.children[0])
    assert (run.status, child.status) == ("cancelled", "cancelled")
    assert CALLS == ["blocked"]
    # The step's version is there.
    assert [version.step for version in child.history().versions(kind="step")] == ["child_blocks"]
    with pytest.raises(Cancelled):
        _ = run.result


def test_cancelled_child_fails_its_parent(hf: Holdfast) -> None:
    @workflow(name="child_asks")
    def asks() -> Any:
        return holdfast.ask("Well?")

    @workflow(name="child_asks_parent")
    def parent() -> Any:
        return asks()

    run = hf.run(parent)
    hf.cancel(run.children[0])
    assert hf.resume(run.id, raises=False).status == "failed"
    assert isinstance(run.error, Cancelled)


def test_paused_child_pauses_and_resumes_with_its_parent(hf: Holdfast) -> None:
    inside, going = threading.Event(), threading.Event()

    @step(name="child_blocks")
    def blocks() -> str:
        inside.set()
        assert going.wait(30)
        return "done"

    @workflow(name="child_running")
    def running() -> Any:
        return [blocks(), child_work("on")]

    @workflow(name="child_running_parent")
    def parent() -> Any:
        return running()

    thread = threading.Thread(target=hf.run, args=(parent,), kwargs={"run_id": "r"})
    thread.start()
    try:
        assert inside.wait(30)
        (name,) = hf.get("r").children
        hf.pause(name)
    finally:
        going.set()
        thread.join()
    assert (hf.get("r").status, hf.get(name).status) == ("paused", "paused")
    assert hf.resume("r").result == ["done", "on"]


def test_children_that_wait_in_parallel_suspend_their_parent(hf: Holdfast) -> None:
    @workflow(name="child_asks")
    def asks(what: str) -> Any:
        return holdfast.ask(what)

    @workflow(name="child_asks_parent")
    def parent() -> Any:
        return holdfast.parallel((asks, "a"), (asks, "b"))

    run = hf.run(parent)
    questions = {question.text: question for question in hf.inbox()}
    assert set(questions) == {"a", "b"}
    hf.answer(questions["b"].id, "B")
    assert run.status == "suspended"
    waiting = hf.get(questions["a"].run)
    assert kinds(waiting).count("run.resumed") == 0
    hf.answer(questions["a"].id, "A")
    assert run.result == ["A", "B"]
