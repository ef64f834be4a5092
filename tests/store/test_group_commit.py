"""Group commit of many threads, and interrupts of the leader."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import StoreBusy
from holdfast.store import group_commit as gather_module
from holdfast.store.group_commit import PENDING, GroupCommit, Job


class Interrupt(BaseException):
    """An exception like KeyboardInterrupt."""


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


def test_waiting_jobs_are_carried_out_together_or_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather_module, "POLL_INTERVAL", 60.0)
    inside, may_go = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def carry_out(jobs: list[Job[int]]) -> None:
        batches.append([job.item for job in jobs])
        for job in jobs:
            job.outcome = job.item * 10
        if len(batches) == 1:
            inside.set()
            assert may_go.wait(60)

    gather: GroupCommit[int] = GroupCommit(carry_out, 3)
    threads = [_in_thread(lambda: gather.submit(0))]
    assert inside.wait(60)
    for number in (1, 2, 3, 4, 5, 6):
        threads.append(_in_thread(lambda number=number: gather.submit(number, alone=number == 5)))
        _until(lambda number=number: gather.waiting == number)
    may_go.set()
    for thread, _ in threads:
        thread.join(60)
    assert batches == [[0], [1, 2, 3], [4, 6], [5]]
    assert [found for _, found in threads] == [[number * 10] for number in range(7)]


class _SlowMutex:
    """A lock that a thread acquires again only after all waiting threads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.slow: threading.Thread | None = None
        self.may_go = threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread() is self.slow:
            assert self.may_go.wait(60)
        self._inner.acquire()

    def __exit__(self, *_: object) -> None:
        self._inner.release()


def test_job_is_not_repeated_when_its_thread_is_about_to_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather_module, "POLL_INTERVAL", 0.001)
    inside, may_go = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def carry_out(jobs: list[Job[int]]) -> None:
        batches.append([job.item for job in jobs])
        if len(batches) == 1:
            inside.set()
            assert may_go.wait(60)
        for job in jobs:
            job.outcome = job.item * 10

    gather: GroupCommit[int] = GroupCommit(carry_out, 3)
    mutex = _SlowMutex(gather._mutex)
    monkeypatch.setattr(gather, "_mutex", mutex)
    first = _in_thread(lambda: gather.submit(0))
    assert inside.wait(60)
    slow = _in_thread(lambda: gather.submit(1))
    _until(lambda: gather.waiting == 1)
    third = _in_thread(lambda: gather.submit(2))
    _until(lambda: gather.waiting == 2)
    # The second looks again, finds no outcome, and loses the processor; the third leads for both.
    mutex.slow = slow[0]
    may_go.set()
    first[0].join(60)
    third[0].join(60)
    mutex.may_go.set()
    slow[0].join(60)
    assert [found for _, found in (first, slow, third)] == [[0], [10], [20]]
    assert batches == [[0], [1, 2]]


def test_next_thread_takes_over_the_jobs_of_an_interrupted_leader() -> None:
    inside, may_go = threading.Event(), threading.Event()
    calls = 0

    def carry_out(jobs: list[Job[int]]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            inside.set()
            assert may_go.wait(60)
        elif calls == 2:
            jobs[1].outcome = "written"
            raise Interrupt
        for job in jobs:
            if job.outcome is PENDING:
                job.outcome = job.item

    gather: GroupCommit[int] = GroupCommit(carry_out, 10)
    first = _in_thread(lambda: gather.submit(0))
    assert inside.wait(60)
    rest = []
    for number in (1, 2, 3):
        rest.append(_in_thread(lambda number=number: gather.submit(number)))
        _until(lambda number=number: gather.waiting == number)
    may_go.set()
    for thread, _ in (first, *rest):
        thread.join(60)
        assert not thread.is_alive()
    outcomes = [found[0] for _, found in rest]
    assert isinstance(outcomes[0], Interrupt)
    assert outcomes[1:] == ["written", 3]
    assert gather.submit(9) == 9, "no thread leads for ever"


@pytest.mark.parametrize("where", ["_await_outcome", "_lead", "release"])
def test_interrupt_at_any_point_blocks_no_thread(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def carry_out(jobs: list[Job[int]]) -> None:
        for job in jobs:
            job.outcome = job.item

    gather: GroupCommit[int] = GroupCommit(carry_out, 10)
    plain = getattr(gather, where)

    def interrupted(*arguments: Any) -> None:
        plain(*arguments)
        raise Interrupt

    monkeypatch.setattr(gather, where, interrupted)
    with pytest.raises(Interrupt):
        gather.submit(1)
    monkeypatch.setattr(gather, where, plain)
    thread, found = _in_thread(lambda: gather.submit(2))
    thread.join(60)
    assert found == [2]


def test_signal_handler_that_interrupts_a_write_cannot_write() -> None:
    def carry_out(jobs: list[Job[int]]) -> None:
        for job in jobs:
            if job.item == 1:
                with pytest.raises(StoreBusy, match="set a flag"):
                    gather.submit(2)
            job.outcome = job.item

    gather: GroupCommit[int] = GroupCommit(carry_out, 10)
    assert gather.submit(1) == 1
    assert gather.submit(3) == 3
