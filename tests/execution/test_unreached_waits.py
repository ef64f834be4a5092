"""Something came for a wait that the run's code does not reach any more, or not yet: no execution after the other."""

from __future__ import annotations

from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, ReplayDiverged, workflow

pytest_plugins = ["postgres_fixtures"]

hf, place = store_fixtures.hf, store_fixtures.place


def deploy(question: str, timeout: float | None = None) -> Any:
    @workflow(name="uw_flow")
    def flow() -> Any:
        answer = holdfast.ask(question, schema=bool)
        holdfast.wait_for("go", timeout=timeout)
        return answer

    return flow


def executions(hf: Holdfast) -> int:
    return sum(event.kind == "run.suspended" for event in hf.history("run").events())


def test_signal_after_a_question_asked_again_waits_for_the_answer(hf: Holdfast) -> None:
    run = hf.run(deploy("Delete staging?"), run_id="run")
    hf.answer(run.questions()[0].id, True)
    deploy("Delete prod?")
    before = executions(hf)
    sent = hf.signal("run", "go")
    assert (sent.status, executions(hf) - before) == ("suspended", 1)
    (prompt,) = sent.questions()
    assert prompt.text == "Delete prod?"
    # No process is to execute it until the question is answered.
    assert hf.resume("run").status == "suspended"
    assert executions(hf) - before == 1
    assert hf.answer(prompt.id, False).result is False


def test_sleep_after_a_question_asked_again_does_not_resume_the_run(place: str) -> None:
    seconds = [1_000_000_000.0]
    with holdfast.open(place, clock=lambda: seconds[0]) as hf:
        run = hf.run(deploy("Delete staging?", 60), run_id="run")
        hf.answer(run.questions()[0].id, True)
        deploy("Delete prod?", 60)
        seconds[0] += 100
        before = executions(hf)
        for _ in range(3):
            assert hf.resume("run").status == "suspended"
        assert executions(hf) - before == 1
        record = hf._store.run("run")
        assert record is not None
        assert record.due is None


def test_child_after_a_question_asked_again_does_not_resume_the_run(hf: Holdfast) -> None:
    @workflow(name="uw_child")
    def child() -> Any:
        return holdfast.wait_for("go")

    def parent(question: str) -> Any:
        @workflow(name="uw_parent")
        def flow() -> Any:
            return [holdfast.ask(question), child()]

        return flow

    run = hf.run(parent("One?"), run_id="run")
    hf.answer(run.questions()[0].id, 1)
    parent("Two?")
    before = executions(hf)
    hf.signal("run.uw_child", "go", 2)
    assert (hf.get("run").status, executions(hf) - before) == ("suspended", 1)
    (prompt,) = hf.get("run").questions()
    assert hf.answer(prompt.id, 3).result == [3, 2]


OLD_NEW = {
    "renamed": (["approved"], ["approval"]),
    "deleted": (["one", "two"], ["two"]),
    "inserted": (["one"], ["zero", "one"]),
}


@pytest.mark.parametrize("change", OLD_NEW)
def test_signal_that_is_not_waited_for_does_not_resume_the_run(hf: Holdfast, change: str) -> None:
    def define(events: list[str]) -> Any:
        @workflow(name="uw_events")
        def flow() -> list[Any]:
            return [holdfast.wait_for(event) for event in events]

        return flow

    old, new = OLD_NEW[change]
    hf.run(define(old), run_id="run")
    define(new)
    (problem,) = hf.check()
    assert f"wait_for[{old[0]}]" in problem.message
    with pytest.raises(ReplayDiverged):
        hf.signal("run", old[0])
    define(old)
    for event in old[1:]:
        hf.signal("run", event)
    assert hf.resume("run").status == "completed"
