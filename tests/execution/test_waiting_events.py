"""Waiting for an event: wait_for frees the process; each event that was sent is taken once, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import waiting_flows
from waiting_flows import CALLS, after, before, prompt_of, wait_aevent, wait_event

import holdfast
from holdfast import Holdfast, InvalidCall, NotFound, workflow
from holdfast.store.protocol import Append

no_calls, clock, hf = waiting_flows.no_calls, waiting_flows.clock, waiting_flows.hf


@pytest.mark.parametrize("which", [wait_event, wait_aevent])
def test_signal_resumes_the_run(hf: Holdfast, which: Any) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    hf.signal(run.id, "other", 1)
    assert run.status == "suspended"
    hf.signal(run.id, "paid", {"amount": 5}, actor="bank")
    assert run.result == [{"amount": 5}]
    assert run.history().at(3).actor == "bank"


def test_signals_sent_before_the_wait_are_kept_in_order(hf: Holdfast) -> None:
    @workflow(name="wait_several")
    def several() -> list[Any]:
        holdfast.ask("Go?")
        return [
            holdfast.wait_for("a"),
            holdfast.wait_for("b"),
            holdfast.wait_for("a"),
            holdfast.wait_for("a"),
        ]

    run = hf.run(several)
    for name, value in [("a", 1), ("a", 2), ("b", 3), ("a", 4)]:
        hf.signal(run.id, name, value)
    hf.answer(prompt_of(run), True)
    assert run.result == [1, 3, 2, 4]
    assert [event.kind for event in run.events()].count("signal.sent") == 4


@pytest.mark.parametrize("event", ["", None, 5])
def test_signal_needs_a_name(hf: Holdfast, event: Any) -> None:
    run = hf.run(wait_event)
    with pytest.raises(InvalidCall):
        hf.signal(run.id, event)
    with pytest.raises(NotFound):
        hf.signal("nobody", "paid")


@pytest.mark.parametrize("ended", ["completed", "cancelled"])
def test_signal_to_an_ended_run_is_refused(hf: Holdfast, ended: str) -> None:
    run = hf.run(wait_event)
    if ended == "completed":
        hf.signal(run.id, "paid")
    else:
        hf.cancel(run.id)
    with pytest.raises(InvalidCall, match=ended):
        hf.signal(run.id, "paid")


@workflow
def wait_line() -> list[Any]:
    """Versions: 1 initial, 2 before, 3 first, 4 after, 5 paid, 6 final."""
    before()
    first = holdfast.wait_for("first")
    after("middle")
    return [first, holdfast.wait_for("paid")]


def test_signals_of_an_abandoned_timeline_do_not_reach_the_new_one(hf: Holdfast) -> None:
    run = hf.run(wait_line)
    hf.signal(run.id, "paid", "early")
    hf.signal(run.id, "first", 1)
    assert run.result == [1, "early"]
    # "paid" was sent when the head was 2: after version 2, before version 3.
    assert hf.rollback(run.id, to=4).result == [1, "early"]
    assert hf.rollback(run.id, to=3).result == [1, "early"]
    assert hf.rollback(run.id, to=2).status == "suspended"
    hf.signal(run.id, "first", 2)
    assert run.status == "suspended"
    assert CALLS == ["before", "middle", "middle", "middle"]
    hf.signal(run.id, "paid", "new")
    assert run.result == [2, "new"]


def test_signal_received_before_the_target_is_not_received_again(hf: Holdfast) -> None:
    @workflow(name="wait_pair")
    def pair() -> list[Any]:
        before()
        holdfast.wait_for("go")
        one = holdfast.wait_for("paid")
        two = holdfast.wait_for("paid")
        return [one, two]

    run = hf.run(pair)
    for name, value in [("paid", 1), ("paid", 2), ("go", None)]:
        hf.signal(run.id, name, value)
    assert run.result == [1, 2]
    # 1 initial, 2 before, 3 go, 4 paid, 5 paid, 6 final
    assert hf.rollback(run.id, to=4).result == [1, 2]
    assert hf.rollback(run.id, to=3).result == [1, 2]
    assert hf.rollback(run.id, to=5).result == [1, 2]


def test_signals_of_a_fork_that_is_rolled_back(hf: Holdfast) -> None:
    origin = hf.run(wait_line, run_id="origin")
    hf.signal("origin", "first", 1)
    hf.fork("origin", "fork", at=2)
    hf.resume("fork")
    hf.signal("fork", "paid", "early")
    hf.signal("fork", "first", "f")
    fork = hf.get("fork")
    assert fork.result == ["f", "early"]
    assert origin.status == "suspended"
    middle = next(v.number for v in fork.history().versions() if v.step == "after")
    assert hf.rollback("fork", to=middle).result == ["f", "early"]


def test_signal_during_another_is_received_once(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow(name="wait_many")
    def many() -> list[Any]:
        holdfast.ask("Go?")
        return [holdfast.wait_for("paid"), holdfast.wait_for("paid")]

    run = hf.run(many)
    hf.signal(run.id, "paid", 1)
    interrupt(hf, monkeypatch, "wait_for", lambda: hf.signal(run.id, "paid", 2, resume=False))
    hf.answer(prompt_of(run), True)
    assert run.result == [1, 2]


def interrupt(hf: Holdfast, patch: pytest.MonkeyPatch, what: str, act: Callable[[], Any]) -> None:
    """Do something right before a version of this step, or a status, is written for the first time."""
    append = hf._store.append
    waiting = [act]

    def interrupted(change: Append) -> Any:
        name = change.version.step if change.version is not None else change.run.status
        if name == what and waiting:
            waiting.pop()()
        return append(change)

    patch.setattr(hf._store, "append", interrupted)


@pytest.mark.parametrize("kind", ["event", "cancel", "pause"])
def test_signal_during_suspension_is_not_lost(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    acts: dict[str, Callable[[], Any]] = {
        "event": lambda: hf.signal("r", "paid", 1),
        "cancel": lambda: hf.cancel("r"),
        "pause": lambda: hf.pause("r"),
    }
    interrupt(hf, monkeypatch, "suspended", acts[kind])
    run = hf.run(wait_event, run_id="r")
    expected = {"event": "completed", "cancel": "cancelled", "pause": "paused"}[kind]
    if kind == "event":
        run = run.wait(timeout=5)
    assert run.status == expected
