"""The write lock of a run: one holder at a time, passed on among threads and tasks, also if some are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from holdfast.execution.write_lock import WriteLock


def nothing() -> None:
    """No writes to wake."""


def test_write_lock_has_one_holder_among_threads_and_tasks() -> None:
    turn = WriteLock(nothing)
    inside: list[int] = []
    most = [0]
    done = [0]

    def hold() -> None:
        inside.append(1)
        most[0] = max(most[0], len(inside))
        done[0] += 1
        inside.pop()

    def thread() -> None:
        for _ in range(300):
            with turn:
                hold()

    async def task() -> None:
        for _ in range(100):
            if not turn.take_now(object()):
                await turn.ask(object())
            hold()
            # As after a write: the turn is handed on by another thread.
            await asyncio.to_thread(turn.release)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(8)))

    threads = [threading.Thread(target=thread) for _ in range(4)]
    threads += [threading.Thread(target=lambda: asyncio.run(tasks())) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert (most[0], done[0]) == (1, 4 * 300 + 2 * 8 * 100)
    assert turn.take_now(object())


def test_write_lock_goes_to_tasks_in_order() -> None:
    turn = WriteLock(nothing)
    order: list[int] = []

    async def task(number: int) -> None:
        await turn.ask(object())
        order.append(number)
        turn.release()

    async def main() -> None:
        assert turn.take_now(object())
        tasks = [asyncio.ensure_future(task(number)) for number in range(10)]
        await asyncio.sleep(0)
        turn.release()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == list(range(10))


def test_write_lock_skips_a_cancelled_task() -> None:
    async def main() -> None:
        turn = WriteLock(nothing)
        assert turn.take_now(object())
        first, second = turn.ask(object()), turn.ask(object())
        first.cancel()
        turn.release()
        await asyncio.wait_for(second, 10)
        third, fourth = turn.ask(object()), turn.ask(object())
        turn.release()
        # Notified already, and then cancelled.
        third.cancel()
        await asyncio.wait_for(fourth, 10)
        turn.release()
        assert turn.take_now(object())

    asyncio.run(main())


def test_write_lock_goes_to_a_function_in_the_loop_thread_before_its_tasks() -> None:
    """Else it would wait for ever: no task can take anything while the loop is blocked."""
    woken: list[bool] = []

    async def main() -> None:
        turn = WriteLock(lambda: woken.append(True))
        assert turn.take_now(object())
        waiting = turn.ask(object())
        threading.Timer(0.05, turn.release).start()
        turn.take(object())
        assert not waiting.done()
        turn.release()
        await asyncio.wait_for(waiting, 10)
        turn.release()

        assert turn.take_now(object())
        offered = turn.ask(object())
        turn.release()
        # Offered to the task, which has not had the time to take it.
        assert turn.take_now(object())
        turn.release()
        await asyncio.wait_for(offered, 10)

    asyncio.run(main())
    assert woken


def test_write_lock_goes_to_a_function_in_the_loop_thread_before_an_offered_task() -> None:
    """A task that was given the turn runs in the next iteration of the loop: until then, the loop may be blocked."""

    async def main() -> None:
        turn = WriteLock(nothing)
        assert turn.take_now(object())
        given = turn.ask(object())
        turn.release()
        await asyncio.sleep(0)
        assert given.done()
        turn.take(object())
        assert not turn.accept(given)
        again = turn.ask(object(), again=True)
        turn.release()
        await asyncio.wait_for(again, 10)
        assert turn.accept(again)
        assert not turn.take_now(object())
        turn.release()
        assert turn.take_now(object())

    asyncio.run(main())


@pytest.mark.parametrize("wait", ["closed", "open"])
def test_write_lock_is_not_held_by_a_closed_loop(wait: str) -> None:
    turn = WriteLock(nothing)
    assert turn.take_now(object())

    async def leave() -> None:
        turn.ask(object())

    asyncio.run(leave())
    got = threading.Event()
    then: Callable[[], None] = got.set

    async def main() -> None:
        later = turn.ask(object())
        turn.release()
        await asyncio.wait_for(later, 10)
        then()

    if wait == "open":
        asyncio.run(main())
        assert got.is_set()
    else:
        turn.release()
        assert turn.take_now(object())
