"""Threads that hand in together, and what an interrupt of the one that leads means for the others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import CommitUnknown
from holdfast.store.gather import Gather, Job


class Interrupt(BaseException):
    """As Ctrl-C is."""


def _in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def _until(condition: Any) -> None:
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not come")


def test_what_comes_meanwhile_is_carried_out_together_and_alone_where_it_must() -> None:
    inside, may_go = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def carry_out(jobs: list[Job[int]]) -> None:
        batches.append([job.item for job in jobs])
        for job in jobs:
            job.outcome = job.item * 10
        if len(batches) == 1:
            inside.set()
            assert may_go.wait(20)

    gather: Gather[int] = Gather(carry_out, 3)
    threads = [_in_thread(lambda: gather.hand_in(0))]
    assert inside.wait(20)
    for number in (1, 2, 3, 4, 5, 6):
        threads.append(_in_thread(lambda number=number: gather.hand_in(number, alone=number == 5)))
        _until(lambda number=number: gather.waiting == number)
    may_go.set()
    for thread, _ in threads:
        thread.join(20)
    assert batches == [[0], [1, 2, 3], [4], [5], [6]]
    assert [found for _, found in threads] == [[number * 10] for number in range(7)]


def test_others_learn_that_nobody_knows_if_the_leader_is_interrupted() -> None:
    inside, may_go = threading.Event(), threading.Event()
    calls = 0

    def carry_out(jobs: list[Job[int]]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            inside.set()
            assert may_go.wait(20)
        elif calls == 2:
            jobs[1].outcome = "written"
            raise Interrupt
        for job in jobs:
            job.outcome = job.item

    gather: Gather[int] = Gather(carry_out, 10)
    first = _in_thread(lambda: gather.hand_in(0))
    assert inside.wait(20)
    rest = []
    for number in (1, 2, 3):
        rest.append(_in_thread(lambda number=number: gather.hand_in(number)))
        _until(lambda number=number: gather.waiting == number)
    may_go.set()
    for thread, _ in (first, *rest):
        thread.join(20)
        assert not thread.is_alive()
    kinds = [type(found[0]) for _, found in rest]
    assert kinds == [Interrupt, str, CommitUnknown]
    assert gather.hand_in(9) == 9, "nobody leads for ever"


@pytest.mark.parametrize("where", ["_enter", "_take"])
def test_an_interrupt_anywhere_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def carry_out(jobs: list[Job[int]]) -> None:
        for job in jobs:
            job.outcome = job.item

    gather: Gather[int] = Gather(carry_out, 10)
    plain = getattr(gather, where)

    def interrupted(job: Job[int]) -> None:
        plain(job)
        raise Interrupt

    monkeypatch.setattr(gather, where, interrupted)
    with pytest.raises(Interrupt):
        gather.hand_in(1)
    monkeypatch.setattr(gather, where, plain)
    thread, found = _in_thread(lambda: gather.hand_in(2))
    thread.join(20)
    assert found == [2]
