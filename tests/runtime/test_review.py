"""What a second pair of eyes found: each was wrong once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, InvalidCall, NotFound, Retention, step, workflow

RAN: list[Any] = []
GATE = threading.Event()
FAIL: list[Any] = []


@step(name="review_work")
def work(n: int) -> int:
    RAN.append(n)
    if n in FAIL:
        raise ConnectionError(f"{n} is down")
    holdfast.state().setdefault("done", []).append(n)
    holdfast.note(tokens=1)
    return n * 10


@workflow(name="review_three")
def three() -> list[int]:
    return [work(n) for n in range(1, 4)]


@pytest.fixture
def hf(tmp_path: Path) -> Any:
    RAN.clear()
    FAIL.clear()
    GATE.clear()
    with holdfast.open(tmp_path / "runs.db", durability="fast") as opened:
        yield opened


def test_children_of_a_fork_of_the_process_are_other_owners(hf: Holdfast, tmp_path: Path) -> None:
    FAIL[:] = [1]
    hf.run(three, run_id="r")
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
    assert sorted(str(address) for address in addresses) == ["review_work", "review_work#2", "review_work#3"]


def test_a_failed_run_keeps_what_it_replays(hf: Holdfast) -> None:
    FAIL[:] = [3]
    run = hf.run(three)
    hf.history(run.id).prune(Retention(last=1))
    FAIL.clear()
    RAN.clear()
    assert hf.resume(run.id).result == [10, 20, 30]
    assert RAN == [3]


def test_what_a_live_fork_replays_is_kept(hf: Holdfast) -> None:
    run = hf.run(three)
    fork = hf.fork(f"{run.id}@3")
    hf.history(run.id).prune(Retention(last=1))
    with pytest.raises(InvalidCall, match="forked"):
        hf.delete(run.id)
    RAN.clear()
    assert hf.resume(fork.id).result == [10, 20, 30]
    assert RAN == [3]
    hf.delete(run.id)


def test_a_replay_never_jumps_over_a_hole(hf: Holdfast, tmp_path: Path) -> None:
    run = hf.run(three)
    fork = hf.fork(f"{run.id}@3")
    hf.export_run(fork.id, tmp_path / "fork.bundle")
    RAN.clear()
    hf.import_run(tmp_path / "fork.bundle", run_id="imported")
    with pytest.raises(NotFound, match=r"not resumed|first version"):
        hf.resume("imported")
    assert RAN == []
    assert hf.get("imported").status == "paused"


def test_what_was_undone_stays_known_through_a_pruning(hf: Holdfast) -> None:
    undone: list[int] = []

    @step(name="review_undo", compensate=undone.append)
    def order(n: int) -> int:
        return n

    @workflow(name="review_orders")
    def orders() -> int:
        return order(1) + order(2)

    run = hf.run(orders)
    log = run.history()
    log.pin(1)
    log.prune(Retention(last=1))
    hf.rollback(run.id, to=1, resume=False)
    assert undone == [2, 1]


def test_a_bundle_takes_along_what_a_run_waits_for(hf: Holdfast, tmp_path: Path) -> None:
    @workflow(name="review_asks")
    def asks() -> Any:
        return holdfast.ask("Well?", schema=int)

    run = hf.run(asks, run_id="asks")
    hf.export_run(run.id, tmp_path / "run.bundle")
    hf.import_run(tmp_path / "run.bundle", run_id="other")
    assert sorted(prompt.id for prompt in hf.prompts()) == ["asks#1", "other#1"]
    assert hf.answer("other#1", 5).result == 5
    assert hf.get("asks").status == "suspended"

    FAIL[:] = [2]
    failed = hf.run(three, run_id="three")
    hf.export_run(failed.id, tmp_path / "failed.bundle")
    hf.import_run(tmp_path / "failed.bundle", run_id="again")
    assert isinstance(hf.get("again").error, ConnectionError)


def test_overrides_of_a_start_that_was_refused_are_not_kept(hf: Holdfast) -> None:
    FAIL[:] = [1]
    hf.run(three, run_id="x")
    with pytest.raises(holdfast.AlreadyExists):
        hf.run(three, run_id="x", overrides={"review_work": lambda n: -n})
    FAIL.clear()
    assert hf.resume("x").result == [10, 20, 30]


def test_a_step_left_running_by_an_execution_is_not_part_of_the_next(hf: Holdfast) -> None:
    @step(name="review_slow")
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

    @workflow(name="review_left")
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

    @step(name="review_threaded")
    def threaded(n: int) -> int:
        time.sleep(0.01 * (order.index(n) if n in order else 0))
        if n in FAIL:
            raise ConnectionError("down")
        return n

    @workflow(name="review_threads")
    async def threads() -> list[int]:
        async def one(n: int) -> int:
            await asyncio.sleep(0.01 * (order.index(n) if n in order else n))
            return await asyncio.to_thread(threaded, n)

        return list(await asyncio.gather(*(one(n) for n in range(4)), return_exceptions=False))

    FAIL[:] = [3]
    run = hf.run(threads)
    FAIL.clear()
    order[:] = [3, 2, 1, 0]
    assert hf.resume(run.id).result == [0, 1, 2, 3]


class Leaky(Exception):
    def __init__(self) -> None:
        super().__init__("no")
        self.password = "s3cret-in-error"


def test_secrets_in_errors_and_arguments_stay_out(tmp_path: Path) -> None:
    @workflow(name="review_secret")
    def secret(password: str) -> None:
        raise Leaky

    path = tmp_path / "secret.db"
    with holdfast.open(path, redact=["password"]) as hf:
        run = hf.run(secret, "s3cret-argument", run_id="secret")
        assert run.status == "failed"
        assert run.failure is not None
        assert "s3cret-in-error" not in repr(run.failure)
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"s3cret" not in data


def test_many_short_waits(hf: Holdfast) -> None:
    @workflow(name="review_waits")
    def waits(count: int) -> int:
        for _ in range(count):
            holdfast.sleep(0.0)
        return count

    assert hf.run(waits, 300).wait(60).result == 300


def _all_heard(hf: Holdfast, *names: str) -> bool:
    """Have those who listen for completed runs come to the last of them?"""
    last = max((event.cursor for event in hf.events() if event.kind == "run.completed"), default=0)
    heard = [hf._store.value(f"trigger:{name}") for name in names]
    return len(hf.runs()) >= 3 and all(each is not None and int(each[0]) >= last for each in heard)


def test_workflows_that_events_start_do_not_start_each_other(hf: Holdfast) -> None:
    @workflow(name="review_audit", on="run.completed")
    def audit(event: Any) -> str:
        return str(event["run"])

    @workflow(name="review_report", on="run.completed")
    def report(event: Any) -> str:
        return str(event["run"])

    try:
        hf.run(three, run_id="cause")
        until = time.monotonic() + 30
        while time.monotonic() < until and not _all_heard(hf, "review_audit", "review_report"):
            time.sleep(0.02)
        assert len(hf.runs()) == 5  # the cause, each for it, and each for the other's
    finally:
        from holdfast.runtime import definition

        for name in ("review_audit", "review_report"):
            definition._workflows.pop(name, None)


def test_a_damaged_version_does_not_stop_those_who_listen(hf: Holdfast, tmp_path: Path) -> None:
    import sqlite3

    hf.run(three, run_id="a")
    hf.run(three, run_id="b")
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute(
            "UPDATE journal SET steps = 77 WHERE number = 2 AND run = (SELECT key FROM run WHERE id = 'a')"
        )
    kinds = [(event.run, event.kind) for event in hf.events()]
    assert ("a", "version.damaged") in kinds
    assert ("b", "run.completed") in kinds


def test_totals_of_threads_are_exact(hf: Holdfast) -> None:
    @workflow(name="review_totals")
    def totals() -> None:
        holdfast.parallel(*[(work, n) for n in range(32)], limit=8)

    assert hf.run(totals).totals == {"tokens": 32}


@workflow(name="review_child")
def child(n: int) -> int:
    return work(n)


@step(name="review_keyed", key="key")
def keyed(key: str, n: int) -> int:
    return child(n)


def test_children_of_like_keys_are_different_runs(hf: Holdfast) -> None:
    keys = ["a~b", "a-b", "a@b", "C:\\file", "tab\tkey", "\u2028"]

    @workflow(name="review_keys")
    def parent() -> list[int]:
        return [keyed(key, n) for n, key in enumerate(keys)]

    run = hf.run(parent)
    assert run.result == [n * 10 for n in range(len(keys))]
    assert len(set(run.children)) == len(keys)
    for name in run.children:
        assert hf.get(name).status == "completed"
    hf.delete(run.id)
    assert hf.runs() == []


def test_a_deleted_run_takes_its_parts_along(hf: Holdfast) -> None:
    @workflow(name="review_asking")
    def asking() -> Any:
        return holdfast.ask("Well?")

    @workflow(name="review_parent")
    def parent() -> Any:
        return asking()

    hf.run(parent, run_id="p")
    hf.delete("p")
    assert hf.prompts() == []
    assert hf.run(parent, run_id="p").status == "suspended"


def test_an_edit_of_a_completed_run_keeps_its_result(hf: Holdfast) -> None:
    run = hf.run(three)
    with run.history().edit(step="by hand") as state:
        state["more"] = 1
    assert run.result == [10, 20, 30]
    assert hf.resume(run.id).result == [10, 20, 30]


def test_effects_are_undone_once(hf: Holdfast) -> None:
    undone: list[int] = []

    @step(name="review_place", compensate=undone.append)
    def place(n: int) -> int:
        return n

    @workflow(name="review_places")
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


def test_changed_code_is_refused_before_anything_is_rolled_back(hf: Holdfast) -> None:
    @workflow(name="review_code", version="1")
    def code() -> int:
        return work(1)

    run = hf.run(code)

    @workflow(name="review_code", version="2")
    def other() -> int:
        return work(1)

    with pytest.raises(holdfast.CodeChanged):
        hf.resume(run.id, from_address="review_work", changed="refuse")
    assert (run.status, run.head.number) == ("completed", 3)


def test_what_is_not_awaited_is_named(hf: Holdfast) -> None:
    @step(name="review_async")
    async def later() -> int:
        return 1

    @workflow(name="review_not_awaited")
    def forgets() -> Any:
        return later()

    error = hf.run(forgets).error
    assert isinstance(error, InvalidCall)
    assert "await" in str(error)


def test_large_events_do_not_weigh_on_every_commit(hf: Holdfast) -> None:
    large = {"text": "word " * 20_000, "list": list(range(100))}

    @workflow(name="review_mail")
    def reads() -> Any:
        first = holdfast.wait_for("start")
        done = [work(n) for n in range(3)]
        return [first, done, holdfast.wait_for("document"), holdfast.wait_for("document")]

    run = hf.run(reads)
    hf.send(run.id, "document", large)
    hf.send(run.id, "document", {"small": 1})
    record = hf._store.run(run.id)
    assert record is not None
    assert len(record.detail) < 2_000
    hf.send(run.id, "start", large)
    assert run.result == [large, [0, 10, 20], large, {"small": 1}]


def test_a_run_that_cannot_be_read_is_not_taken_over(hf: Holdfast, tmp_path: Path) -> None:
    import sqlite3

    FAIL[:] = [3]
    run = hf.run(three, run_id="r")
    FAIL.clear()
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE journal SET pack = x'00' || pack WHERE number = 2")
    with holdfast.open(tmp_path / "runs.db") as other:
        with pytest.raises(holdfast.CorruptVersion):
            other.resume("r")
        record = other._store.run("r")
        assert record is not None
        assert (record.status, record.owner) == ("failed", None)
    assert run.status == "failed"
