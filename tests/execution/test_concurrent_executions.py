"""Executions that run at the same time or were left behind: processes, threads, tasks, children, triggers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
import three_step_flow
from three_step_flow import FAIL, GATE, RAN, three, work

import holdfast
from holdfast import Holdfast, InvalidCall, step, workflow
from holdfast.testing import isolated_definitions
from holdfast.workflow import definition

hf = three_step_flow.hf


def test_forked_process_is_another_owner(hf: Holdfast, tmp_path: Path) -> None:
    FAIL[:] = [1]
    hf.run(three, run_id="r", raises=False)
    FAIL.clear()
    effects = tmp_path / "effects"
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    hf.resume("r")
                    code = 0
                except holdfast.HoldfastError:
                    code = 3
                with effects.open("a") as file:
                    file.write("".join(f"{n} " for n in RAN if n != 1 or len(RAN) > 1))
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert 0 in codes
    assert set(codes) <= {0, 3}
    assert hf.get("r").result == [10, 20, 30]
    addresses = [version.address for version in hf.history("r").versions() if version.kind == "step"]
    assert sorted(str(address) for address in addresses) == ["three_work", "three_work#2", "three_work#3"]


def test_overrides_of_a_refused_start_are_discarded(hf: Holdfast) -> None:
    FAIL[:] = [1]
    hf.run(three, run_id="x", raises=False)
    with pytest.raises(holdfast.AlreadyExists):
        hf.run(three, run_id="x", overrides={"three_work": lambda n: -n})
    FAIL.clear()
    assert hf.resume("x").result == [10, 20, 30]


def test_step_left_running_is_not_part_of_the_next_execution(hf: Holdfast) -> None:
    @step(name="exec_slow")
    def slow() -> str:
        RAN.append("slow")
        if len(RAN) == 1:
            GATE.wait(20)
        holdfast.state().setdefault("slow", []).append(len(RAN))
        return "done"

    ended: list[str] = []

    def tracked() -> str:
        try:
            return slow()
        finally:
            ended.append("thread")

    @workflow(name="exec_left")
    async def left() -> str:
        return await asyncio.to_thread(tracked)

    async def both() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hf.arun(left, run_id="left"), 0.3)
        run = await hf.aresume("left")
        assert run.result == "done"
        GATE.set()
        while len(ended) < 2:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(both(), 30))
    steps = [version for version in hf.history("left").versions() if version.kind == "step"]
    assert len(steps) == 1
    assert len(hf.get("left").state["slow"]) == 1


def test_steps_in_threads_of_tasks_have_stable_addresses(hf: Holdfast) -> None:
    order: list[int] = []

    @step(name="exec_threaded")
    def threaded(n: int) -> int:
        time.sleep(0.01 * (order.index(n) if n in order else 0))
        if n in FAIL:
            raise ConnectionError("down")
        return n

    @workflow(name="exec_threads")
    async def threads() -> list[int]:
        async def one(n: int) -> int:
            await asyncio.sleep(0.01 * (order.index(n) if n in order else n))
            return await asyncio.to_thread(threaded, n)

        return list(await asyncio.gather(*(one(n) for n in range(4)), return_exceptions=False))

    FAIL[:] = [3]
    run = hf.run(threads, raises=False)
    FAIL.clear()
    order[:] = [3, 2, 1, 0]
    assert hf.resume(run.id).result == [0, 1, 2, 3]


class Leaky(Exception):
    def __init__(self) -> None:
        super().__init__("no")
        self.password = "s3cret-in-error"


def test_secrets_in_errors_and_arguments_are_not_stored(tmp_path: Path) -> None:
    @workflow(name="exec_secret")
    def secret(password: str) -> None:
        raise Leaky

    path = tmp_path / "secret.db"
    with holdfast.open(path, redact=["password"]) as hf:
        run = hf.run(secret, "s3cret-argument", run_id="secret", raises=False)
        assert run.status == "failed"
        assert run.failure is not None
        assert "s3cret-in-error" not in repr(run.failure)
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"s3cret" not in data


def test_run_with_many_short_waits_completes(hf: Holdfast) -> None:
    @workflow(name="exec_waits")
    def waits(count: int) -> int:
        for _ in range(count):
            holdfast.sleep(0.0)
        return count

    assert hf.run(waits, 300).wait(60).result == 300


def _all_heard(hf: Holdfast, *names: str) -> bool:
    """Have all runs completed, and have those who listen for completed runs come to the last of them?"""
    if any(run.status != "completed" for run in hf.runs()):
        return False
    last = max((event.cursor for event in hf.events() if event.kind == "run.completed"), default=0)
    heard = [hf._store.value(f"trigger:{name}") for name in names]
    return len(hf.runs()) >= 3 and all(each is not None and int(each[0]) >= last for each in heard)


def test_workflows_started_by_events_do_not_start_each_other(hf: Holdfast) -> None:
    @workflow(name="exec_audit", on="run.completed")
    def audit(event: Any) -> str:
        return str(event["run"])

    @workflow(name="exec_report", on="run.completed")
    def report(event: Any) -> str:
        return str(event["run"])

    try:
        hf.run(three, run_id="cause")
        until = time.monotonic() + 30
        while time.monotonic() < until and not _all_heard(hf, "exec_audit", "exec_report"):
            time.sleep(0.02)
        assert len(hf.runs()) == 5  # the cause, each for it, and each for the other's
    finally:
        for name in ("exec_audit", "exec_report"):
            definition._workflows.pop(name, None)


def test_totals_of_threads_are_exact(hf: Holdfast) -> None:
    @workflow(name="exec_totals")
    def totals() -> None:
        holdfast.parallel(*[(work, n) for n in range(32)], limit=8)

    assert hf.run(totals).totals == {"tokens": 32}


@workflow(name="exec_child")
def child(n: int) -> int:
    return work(n)


@step(name="exec_keyed", key="key")
def keyed(key: str, n: int) -> int:
    return child(n)


def test_children_with_similar_keys_are_different_runs(hf: Holdfast) -> None:
    keys = ["a~b", "a-b", "a@b", "C:\\file", "tab\tkey", "\u2028"]

    @workflow(name="exec_keys")
    def parent() -> list[int]:
        return [keyed(key, n) for n, key in enumerate(keys)]

    run = hf.run(parent)
    assert run.result == [n * 10 for n in range(len(keys))]
    assert len(set(run.children)) == len(keys)
    for name in run.children:
        assert hf.get(name).status == "completed"
    hf.delete(run.id)
    assert hf.runs() == []


def test_compensations_run_once(hf: Holdfast) -> None:
    undone: list[int] = []

    @step(name="exec_place", compensate=undone.append)
    def place(n: int) -> int:
        return n

    @workflow(name="exec_places")
    def places() -> int:
        return place(1) + place(2)

    run = hf.run(places)
    with pytest.raises(InvalidCall, match="compensations"):
        run.history().rollback(to=1)
    assert undone == []
    hf.rollback(run.id, to=1)
    assert undone == [2, 1]
    with pytest.raises(InvalidCall, match="undone"):
        hf.rollback(run.id, to=3)
    assert undone == [2, 1]


def test_changed_code_is_refused_before_a_rollback(hf: Holdfast) -> None:
    @workflow(name="exec_code", version="1")
    def code() -> int:
        return work(1)

    run = hf.run(code)

    with isolated_definitions():

        @workflow(name="exec_code", version="2")
        def other() -> int:
            return work(1)

        with pytest.raises(holdfast.CodeChanged):
            hf.resume(run.id, from_address="three_work", changed="refuse")
    assert (run.status, run.head.number) == ("completed", 3)


def test_call_that_is_not_awaited_is_named(hf: Holdfast) -> None:
    @step(name="exec_async")
    async def later() -> int:
        return 1

    @workflow(name="exec_not_awaited")
    def forgets() -> Any:
        return later()

    error = hf.run(forgets, raises=False).error
    assert isinstance(error, InvalidCall)
    assert "await" in str(error)
