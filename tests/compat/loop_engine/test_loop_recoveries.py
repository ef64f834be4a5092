"""`on_recovery`: a program is called for each restore and each answer, once, by whichever process they are made."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from loop_fixtures import Clock, good

import holdfast
from holdfast import Holdfast
from holdfast.loops import LoopEngine
from patience import until

Recovery = dict[str, Any]


class Woken(list[Recovery]):
    """The recoveries of which a program was called."""

    def until(self, count: int) -> Woken:
        until(lambda: len(self) >= count, f"recovery {count}")
        return self

    @property
    def events(self) -> list[tuple[str, str, str | None]]:
        return [(each["project_id"], each["event"], each["actor"]) for each in self]


def ask(engine: LoopEngine, project: str = "p") -> str:
    question = good(engine.auto_restore_if_configured(project, "crash"))["question_id"]
    assert isinstance(question, str)
    return question


def test_each_decision_is_reported_once(hf: Holdfast, engine: LoopEngine, clock: Clock) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    woken = Woken()
    with engine.on_recovery(woken.append):
        for choice in ("resume", "rollback", "reinitialize", "cancel"):
            hf.answer(ask(engine), choice, actor=choice)
        engine.restore_snapshot("p", 1, reason="by hand", actor="Ada")
        engine.configure("p", loop_autoresume=True)
        engine.log_agent_start("p", "writer", timeout=60)
        clock.forward(61)
        good(engine.check_timeouts())
        hf.rollback("loop/p", to=1, reason="past the engine", actor="Bob")
        woken.until(7)
    assert woken.events == [
        ("p", "resumed", "resume"),
        ("p", "restored", "rollback"),
        ("p", "reinitialized", "reinitialize"),
        ("p", "cancelled", "cancel"),
        ("p", "restored", "Ada"),
        ("p", "restored", None),
        ("p", "restored", "Bob"),
    ]
    assert [each["reason"] for each in woken][:5] == [
        "crash",
        "rollback: crash",
        "reinitialize: crash",
        "crash",
        "by hand",
    ]
    assert woken[5]["reason"].startswith("timeout of agent 'writer'")
    assert woken[6]["reason"] == "past the engine"


def test_project_without_a_state_is_reported(hf: Holdfast, engine: LoopEngine) -> None:
    """The loop waits for the answer, whatever the project has."""
    engine.configure("p", loop_autoresume=True)
    woken = Woken()
    with engine.on_recovery(woken.append, "p"):
        hf.answer(ask(engine), "reinitialize", actor="Ada")
        woken.until(1)
    assert woken.events == [("p", "reinitialized", "Ada")]
    assert good(engine.get_project_state("p"))["state"] == {"loop_autoresume": True}


@pytest.mark.parametrize("project", ["p", "a/b", "..", "x" * 5000, "\0", "ä-水", "p/control"])
def test_only_the_wanted_project_is_reported(engine: LoopEngine, project: str) -> None:
    others = [other for other in ("p", "p-2", "a", "b", "control") if other != project]
    for each in (project, *others):
        engine.save_loop_snapshot(each, {"loop_count": 1})
    mine, every = Woken(), Woken()
    with engine.on_recovery(mine.append, project), engine.on_recovery(every.append):
        for each in (*others, project):
            good(engine.restore_last_snapshot(each))
        every.until(len(others) + 1)
        mine.until(1)
    assert [each["project_id"] for each in mine] == [project]
    assert {each["project_id"] for each in every} == {project, *others}


def test_state_is_in_the_store_when_it_is_reported(hf: Holdfast, engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    seen = Woken()

    def wake(recovery: Recovery) -> None:
        mine = LoopEngine(hf, check_every=None)
        state = mine.get_project_state("p")["state"]
        state["woken"] = state.get("woken", 0) + 1
        seen.append({**recovery, "set": mine.set_project_state("p", state)["status"], "state": dict(state)})

    with engine.on_recovery(wake, "p"):
        for turn in range(5):
            engine.update_project_state("p", {"loop_count": 2, "turn": turn})
            good(engine.restore_last_snapshot("p", keep_unknown=False))
            seen.until(turn + 1)
    assert [(each["set"], each["state"]) for each in seen] == [("set", {"loop_count": 1, "woken": 1})] * 5


def test_callback_that_raises_is_called_again_and_hides_nothing(
    engine: LoopEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    calls, woken = Woken(), Woken()

    def fail(recovery: Recovery) -> None:
        calls.append(recovery)
        raise ValueError("out of order")

    with engine.on_recovery(fail), engine.on_recovery(woken.append):
        for _ in range(3):
            good(engine.restore_last_snapshot("p"))
        calls.until(3)
        woken.until(3)
    assert "out of order" in caplog.text


def test_closed_subscription_is_not_called(engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    closed, woken = Woken(), Woken()
    subscription = engine.on_recovery(closed.append)
    with engine.on_recovery(woken.append):
        good(engine.restore_last_snapshot("p"))
        closed.until(1)
        woken.until(1)
        subscription.close()
        good(engine.restore_last_snapshot("p"))
        woken.until(2)
    assert len(closed) == 1


def test_loop_waits_for_the_answer(hf: Holdfast, engine: LoopEngine) -> None:
    """As a loop uses it: it stops, and continues when a person has decided, from the state of then."""
    engine.save_loop_snapshot("p", {"loop_count": 1})
    engine.set_project_state("p", {"loop_count": 2})
    decided = threading.Event()
    states: list[Any] = []

    def loop() -> None:
        assert decided.wait(60)
        states.append(LoopEngine(hf, check_every=None).get_project_state("p")["state"])

    thread = threading.Thread(target=loop)
    with engine.on_recovery(lambda recovery: decided.set(), "p"):
        thread.start()
        hf.answer(ask(engine), "rollback")
        thread.join(60)
    assert states == [{"loop_count": 1}]


def test_invalid_callbacks_and_projects_are_refused(engine: LoopEngine) -> None:
    wrong: list[tuple[Any, Any]] = [
        (None, None),
        (7, "p"),
        ("print", None),
        (print, 7),
        (print, ""),
        (print, b"p"),
    ]
    for callback, project in wrong:
        with pytest.raises(holdfast.InvalidCall):
            engine.on_recovery(callback, project)
