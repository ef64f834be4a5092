"""In an event loop: runs are awaited, and no call that executes a workflow blocks the loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import Cancelled, Holdfast, InvalidAnswer, InvalidCall, StepTimeout, step, workflow
from patience import PATIENCE, until

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place

BROKEN: set[str] = set()
UNDONE: list[str] = []
GATE = threading.Event()


async def _undo(order: str) -> None:
    UNDONE.append(order)


@step(name="loops_order", compensate=_undo)
def order(item: str) -> str:
    return f"order of {item}"


@step(name="loops_pay")
def pay(answer: Any) -> str:
    if "pay" in BROKEN:
        raise ConnectionError("the bank is closed")
    return f"paid: {answer}"


@workflow(name="loops_asking")
def asking() -> str:
    order("kelp")
    return pay(holdfast.ask("Pay?"))


@workflow(name="loops_aasking")
async def aasking() -> str:
    order("kelp")
    return pay(await holdfast.ask("Pay?"))


@workflow(name="loops_waiting")
def waiting() -> str:
    return pay(holdfast.wait_for("money"))


@workflow(name="loops_sleeping")
def sleeping(seconds: float) -> str:
    holdfast.sleep(seconds)
    return "awake"


@workflow(name="loops_quick")
def quick(number: int = 0) -> int:
    if "quick" in BROKEN:
        raise LookupError("nothing there")
    return number


@step(name="loops_hold")
def hold() -> None:
    assert GATE.wait(PATIENCE)


@workflow(name="loops_held")
def held() -> str:
    hold()
    return "held"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    BROKEN.clear()
    UNDONE.clear()
    GATE.clear()
    yield
    GATE.set()


BOTH = pytest.mark.parametrize("which", [asking, aasking], ids=["def", "async"])


@BOTH
def test_answer_in_an_event_loop_resumes_the_run(hf: Holdfast, which: Any) -> None:
    async def main() -> None:
        run = await hf.arun(which, run_id="r")
        assert run.status == "suspended"
        (prompt,) = hf.inbox()
        answered = await hf.aanswer(prompt.id, "yes", actor="ada")
        assert (answered.id, answered.status) == ("r", "completed")
        assert await run == "paid: yes"
        with pytest.raises(InvalidAnswer):
            await hf.aanswer(prompt.id, "no")

    asyncio.run(main())


def test_answer_raises_the_error_of_the_resumed_run(hf: Holdfast) -> None:
    async def main() -> None:
        BROKEN.add("pay")
        await hf.arun(asking, run_id="r")
        with pytest.raises(ConnectionError) as caught:
            await hf.aanswer("r#1", "yes")
        assert "Run 'r' failed in step 'loops_pay'" in caught.value.__notes__[0]
        await hf.arun(asking, run_id="other")
        assert (await hf.aanswer("other#1", "yes", raises=False)).status == "failed"

    asyncio.run(main())


def test_signal_in_an_event_loop_resumes_the_run(hf: Holdfast) -> None:
    async def main() -> None:
        run = await hf.arun(waiting, run_id="r")
        assert (await hf.asignal("r", "money", 7)).result == "paid: 7"
        assert await run == "paid: 7"

    asyncio.run(main())


def test_rollback_in_an_event_loop_compensates_and_resumes(hf: Holdfast) -> None:
    async def main() -> None:
        await hf.arun(aasking, run_id="r")
        assert (await hf.arollback("r", to=1)).status == "suspended"
        assert UNDONE == ["order of kelp"]
        assert (await hf.arollback("r", to=1, resume=False)).status == "paused"
        (prompt,) = (await hf.aresume("r")).questions()
        assert (await hf.aanswer(prompt.id, "yes")).result == "paid: yes"

    asyncio.run(main())


CALLS: dict[str, Callable[[Holdfast], Any]] = {
    "hf.arun": lambda hf: hf.run(quick),
    "hf.aresume": lambda hf: hf.resume("r"),
    "hf.arollback": lambda hf: hf.rollback("r", to=1),
    "hf.aanswer": lambda hf: hf.answer("r#1", "yes"),
    "hf.asignal": lambda hf: hf.signal("r", "money"),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_that_would_block_the_event_loop_names_the_asynchronous_one(name: str) -> None:
    with holdfast.open(":memory:") as hf:
        before = hf.run(asking, run_id="r").head.number

        async def main() -> None:
            with pytest.raises(InvalidCall, match=f"await {name}"):
                CALLS[name](hf)

        asyncio.run(main())
        assert (hf.get("r").status, hf.get("r").head.number, len(hf.runs())) == ("suspended", before, 1)


def test_answer_without_resume_is_accepted_in_an_event_loop(hf: Holdfast) -> None:
    async def main() -> None:
        run = await hf.arun(asking, run_id="r")
        assert hf.answer("r#1", "yes", resume=False).status == "suspended"
        # The caller that waits resumes it.
        assert await run == "paid: yes"

    asyncio.run(main())


def test_awaiting_a_run_gives_its_result_or_raises(hf: Holdfast) -> None:
    async def main() -> None:
        assert await hf.get((await hf.arun(quick, 7)).id) == 7
        BROKEN.add("quick")
        failed = await hf.arun(quick, run_id="failed", raises=False)
        for run in (failed, hf.get("failed")):
            with pytest.raises(LookupError, match="nothing") as caught:
                await run
            assert len(caught.value.__notes__) == 1
            assert (await run.wait()) is run
        cancelled = await hf.arun(asking, run_id="c")
        hf.cancel("c")
        with pytest.raises(Cancelled):
            await cancelled
        assert (await cancelled.wait()).status == "cancelled"

    asyncio.run(main())


def test_awaiting_a_run_that_raises_stop_iteration_does_not_hang(hf: Holdfast) -> None:
    @workflow(name="loops_stop")
    def stop() -> None:
        raise StopIteration("over")

    hf.run(stop, run_id="r", raises=False)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await hf.get("r")

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_waiting_for_a_run_resumes_it_when_its_sleep_is_over(hf: Holdfast) -> None:
    async def main() -> None:
        run = await hf.arun(sleeping, 0.05)
        assert (await run.wait(timeout=PATIENCE)).result == "awake"
        assert await (await hf.arun(sleeping, 0.05)) == "awake"

    asyncio.run(main())


def test_waiting_for_a_run_ends_with_timeout_and_cancellation(hf: Holdfast) -> None:
    async def main() -> None:
        run = await hf.arun(asking)
        with pytest.raises(StepTimeout, match="still suspended"):
            await run.wait(timeout=0.01)
        with pytest.raises(InvalidCall, match="timeout"):
            await run.wait(timeout=-1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, 0.01)
        assert hf._engine.endings._waiting == {}

    asyncio.run(main())


def test_awaiting_a_run_works_if_a_worker_executes_it(hf: Holdfast) -> None:
    worker = hf.worker(queues=["slow"], poll=0.02, monitor=False)

    async def main() -> None:
        run = await hf.aenqueue(held, run_id="r", queue="slow", priority=3)
        assert run.status == "queued"
        worker.start()
        ended = asyncio.ensure_future(run)
        await asyncio.to_thread(until, lambda: hf.get("r").status == "running")
        assert not ended.done()
        GATE.set()
        assert await asyncio.wait_for(ended, PATIENCE) == "held"

    try:
        asyncio.run(main())
    finally:
        worker.stop()
        worker.join()


def test_awaiting_a_run_works_if_another_engine_executes_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as other:
        thread = threading.Thread(target=lambda: other.run(held, run_id="r"))
        thread.start()

        async def main() -> None:
            await asyncio.to_thread(until, lambda: any(run.id == "r" for run in hf.runs()))
            ended = asyncio.ensure_future(hf.get("r"))
            await asyncio.sleep(0)
            GATE.set()
            assert await asyncio.wait_for(ended, PATIENCE) == "held"

        asyncio.run(main())
        thread.join()


@pytest.mark.slow
def test_awaiting_many_runs_takes_one_thread_and_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = threading.active_count()
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        read = hf._store.run
        reads: list[str] = []

        def counted(run_id: str) -> Any:
            reads.append(run_id)
            return read(run_id)

        async def main() -> None:
            runs = [await hf.arun(asking, run_id=f"run-{number}") for number in range(100)]
            monkeypatch.setattr(hf._store, "run", counted)
            several = [asyncio.ensure_future(run) for run in runs]
            await asyncio.to_thread(until, lambda: len(hf._engine.endings._waiting) == 100)
            # Each looks once by itself; afterwards one thread looks for all of them.
            await asyncio.to_thread(until, lambda: len(reads) >= 300)
            began, before = time.monotonic(), len(reads)
            await asyncio.to_thread(until, lambda: len(reads) >= before + 300)
            assert time.monotonic() - began >= 0.5
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("holdfast endings") == 1
            # The pool of the loop has a few threads, whatever waits.
            assert len(names) < others + 50
            for number in range(100):
                await hf.aanswer(f"run-{number}#1", "yes")
            assert await asyncio.gather(*several) == ["paid: yes"] * 100

        asyncio.run(main())
        until(lambda: not hf._engine.endings._watching, "the thread ends")


def test_asynchronous_calls_do_not_block_the_event_loop(hf: Holdfast) -> None:
    """While each call waits for a workflow that is held up, the loop does other things."""

    async def main() -> None:
        await hf.arun(asking, run_id="asks")
        calls: list[Coroutine[Any, Any, Any]] = [hf.arun(held, run_id="held"), hf.get("asks").wait()]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.to_thread(until, lambda: any(run.id == "held" for run in hf.runs()))
        tasks.append(asyncio.ensure_future(hf.get("held")))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in tasks)
        GATE.set()
        await hf.aanswer("asks#1", "yes")
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)

    asyncio.run(main())


def test_waiting_for_a_run_blocks_outside_an_event_loop(hf: Holdfast) -> None:
    assert hf.run(sleeping, 0.05).wait(timeout=PATIENCE).result == "awake"
