"""Cancel and pause: a run stops at the next boundary between steps, with its version written."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import run_fixtures
from run_fixtures import kinds

import holdfast
from holdfast import Cancelled, Holdfast, InvalidCall, NotFinished, NotFound, Retry, Run, step, workflow
from patience import until

hf = run_fixtures.hf

CALLS: list[Any] = []


class Gate:
    """Where a step waits until it is let go on."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.going = threading.Event()

    def pass_through(self) -> None:
        self.inside.set()
        assert self.going.wait(30)


GATE = Gate()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    CALLS.clear()
    GATE.inside.clear()
    GATE.going.clear()
    yield
    GATE.going.set()


@step
def stop_first() -> str:
    CALLS.append("first")
    holdfast.state()["first"] = True
    GATE.pass_through()
    return "first"


@step
async def stop_afirst() -> str:
    CALLS.append("first")
    holdfast.state()["first"] = True
    await asyncio.to_thread(GATE.pass_through)
    return "first"


@step
def stop_second() -> str:
    CALLS.append("second")
    return "second"


@workflow
def stop_sync() -> list[str]:
    return [stop_first(), stop_second()]


@workflow
async def stop_async() -> list[str]:
    return [await stop_afirst(), stop_second()]


@workflow
def stop_asks() -> Any:
    stop_second()
    return holdfast.ask("Well?")


@contextmanager
def running(hf: Holdfast, which: Any) -> Iterator[Run]:
    """A run in another thread that is inside its first step; goes on at the end of the block."""
    thread = threading.Thread(target=hf.run, args=(which,), kwargs={"run_id": "r"})
    thread.start()
    try:
        assert GATE.inside.wait(30)
        yield hf.get("r")
    finally:
        GATE.going.set()
        thread.join()


@pytest.mark.parametrize("which", [stop_sync, stop_async])
@pytest.mark.parametrize("what", ["cancel", "pause"])
def test_stop_of_a_run_in_another_thread_takes_effect_between_steps(
    hf: Holdfast, which: Any, what: str
) -> None:
    with running(hf, which) as run:
        getattr(hf, what)("r", reason="enough", actor="ada")
        assert run.status == "running"
    assert run.status == ("cancelled" if what == "cancel" else "paused")
    assert CALLS == ["first"]
    assert run.state == {"first": True}
    assert run.history().at(2).result == "first"
    requested, ended = f"run.{what}_requested", f"run.{run.status}"
    assert [kind for kind in kinds(run) if kind in (requested, ended)] == [requested, ended]
    if what == "cancel":
        head = run.head
        assert (head.kind, head.status, head.note, head.actor) == ("final", "cancelled", "enough", "ada")
        with pytest.raises(Cancelled, match="was cancelled"):
            _ = run.result
    else:
        last = run.events()[-1]
        assert (last.data["reason"], last.data["actor"]) == ("enough", "ada")
        with pytest.raises(NotFinished, match="paused"):
            _ = run.result
        assert hf.resume("r").result == ["first", "second"]
        assert CALLS == ["first", "second"]
    record = hf._store.run("r")
    assert record is not None
    assert (record.owner, record.until) == (None, 0)


def test_stop_by_another_engine_takes_effect_between_steps(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    with holdfast.open(file, durability="fast") as hf, holdfast.open(file, durability="fast") as other:
        with running(hf, stop_sync) as run:
            other.pause("r")
        assert run.status == "paused"
        assert CALLS == ["first"]
        assert other.resume("r").result == ["first", "second"]


@pytest.mark.parametrize("status", ["suspended", "paused"])
def test_stop_of_an_idle_run_takes_effect_at_once(hf: Holdfast, status: str) -> None:
    run = hf.run(stop_asks)
    if status == "paused":
        assert hf.pause(run.id, reason="later").status == "paused"
        assert hf.pause(run.id).status == "paused"
        assert kinds(run).count("run.paused") == 1
    assert hf.cancel(run.id, reason="no more").status == "cancelled"
    assert (run.head.kind, run.head.note) == ("final", "no more")
    assert hf.inbox() == []
    assert kinds(run)[-1] == "run.cancelled"


def test_paused_suspended_run_waits_again_when_resumed(hf: Holdfast) -> None:
    run = hf.run(stop_asks)
    hf.pause(run.id)
    hf.answer(hf.inbox()[0].id, "yes")
    assert run.status == "paused"
    assert hf.resume(run.id).result == "yes"


@pytest.mark.parametrize("what", ["cancel", "pause"])
@pytest.mark.parametrize("ended", ["completed", "failed", "cancelled"])
def test_stop_of_an_ended_run_changes_nothing(hf: Holdfast, what: str, ended: str) -> None:
    @workflow(name="stop_ends")
    def ends() -> str:
        if ended == "failed":
            raise ValueError("no")
        if ended == "cancelled":
            holdfast.ask("Well?")
        return stop_second()

    run = hf.run(ends, raises=False)
    if ended == "cancelled":
        hf.cancel(run.id)
    was = hf._store.run(run.id)
    assert getattr(hf, what)(run.id).status == ended
    assert hf._store.run(run.id) == was


@pytest.mark.parametrize("what", ["cancel", "pause"])
def test_stop_of_an_unknown_run_is_refused(hf: Holdfast, what: str) -> None:
    with pytest.raises(NotFound, match="nobody"):
        getattr(hf, what)("nobody")


def test_cancelled_run_can_be_rolled_back_but_not_resumed(hf: Holdfast) -> None:
    with running(hf, stop_sync) as run:
        hf.cancel("r")
    was = hf._store.run("r")
    with pytest.raises(InvalidCall, match=r"was cancelled: roll it back to a version, or fork it"):
        hf.resume("r")
    assert hf._store.run("r") == was
    hf.fork("r", "f", at=2)
    assert hf.resume("f").result == ["first", "second"]
    assert hf.rollback("r", to=2).result == ["first", "second"]
    assert run.head.parent == 4
    assert CALLS == ["first", "second", "second"]


@pytest.mark.parametrize("which", ["sync", "async"])
@pytest.mark.parametrize("what", ["cancel", "pause"])
def test_stop_ends_the_pause_between_attempts(hf: Holdfast, which: str, what: str) -> None:
    tries: list[int] = []

    @step(name="stop_flaky", retry=Retry(5, delay=3600, max_delay=3600, jitter=0))
    def flaky() -> str:
        tries.append(len(tries))
        if len(tries) == 1:
            raise ConnectionError("down")
        return "up"

    @step(name="stop_aflaky", retry=Retry(5, delay=3600, max_delay=3600, jitter=0))
    async def aflaky() -> str:
        return flaky.__wrapped__()  # type: ignore[attr-defined,no-any-return]

    @workflow(name="stop_backoff")
    def whole() -> str:
        return flaky()

    @workflow(name="stop_abackoff")
    async def awhole() -> str:
        return await aflaky()

    heard = threading.Event()
    with hf.subscribe(lambda event: heard.set(), kinds=["step.retried"]):
        thread = threading.Thread(
            target=hf.run, args=(whole if which == "sync" else awhole,), kwargs={"run_id": "r"}
        )
        thread.start()
        assert heard.wait(30)
        getattr(hf, what)("r")
        thread.join(30)
        assert not thread.is_alive()
    run = hf.get("r")
    assert run.status == ("cancelled" if what == "cancel" else "paused")
    assert len(tries) == 1
    if what == "pause":
        assert hf.resume("r").result == "up"


def test_stop_by_another_engine_ends_the_pause_between_attempts(tmp_path: Path) -> None:
    @step(name="stop_flaky", retry=Retry(5, delay=3600, max_delay=3600, jitter=0))
    def flaky() -> str:
        raise ConnectionError("down")

    @workflow(name="stop_backoff")
    def whole() -> str:
        return flaky()

    file = tmp_path / "runs.db"
    with holdfast.open(file, durability="fast") as hf, holdfast.open(file, durability="fast") as other:
        heard = threading.Event()
        with hf.subscribe(lambda event: heard.set(), kinds=["step.retried"]):
            thread = threading.Thread(target=hf.run, args=(whole,), kwargs={"run_id": "r"})
            thread.start()
            assert heard.wait(30)
            other.cancel("r")
            thread.join(30)
        assert hf.get("r").status == "cancelled"


def test_stop_ends_parallel_branches(hf: Holdfast) -> None:
    @workflow(name="stop_parallel")
    def whole() -> Any:
        def branch() -> list[str]:
            assert GATE.inside.wait(30)
            until(lambda: "run.pause_requested" in kinds(hf.get("r")))
            return [stop_second()]

        return holdfast.parallel(lambda: [stop_first(), stop_second()], branch)

    with running(hf, whole) as run:
        hf.pause("r")
    assert run.status == "paused"
    assert CALLS == ["first"]
    assert hf.resume("r").result == [["first", "second"], ["second"]]
    assert CALLS == ["first", "second", "second"]


def test_stop_cannot_be_caught_by_user_code(hf: Holdfast) -> None:
    @workflow(name="stop_stubborn")
    def stubborn() -> str:
        try:
            stop_first()
            stop_second()
        except Exception:
            CALLS.append("swallowed")
        return stop_second()

    with running(hf, stubborn) as run:
        hf.cancel("r")
    assert run.status == "cancelled"
    assert CALLS == ["first"]


def test_stop_follows_the_last_request(hf: Holdfast) -> None:
    with running(hf, stop_sync) as run:
        hf.pause("r")
        hf.cancel("r")
    assert run.status == "cancelled"


def test_stop_request_after_the_last_step_changes_nothing(hf: Holdfast) -> None:
    @workflow(name="stop_too_late")
    def whole() -> str:
        return stop_first()

    with running(hf, whole) as run:
        hf.pause("r")
    # There was no further step: nothing was left to stop.
    assert run.result == "first"
    assert hf.resume("r").result == "first"


PROGRAM = """
import json, sys, time
from pathlib import Path
import holdfast
from holdfast import step, workflow

file = sys.argv[1]

@step
def first():
    Path(file + ".inside").touch()
    while not Path(file + ".go").exists():
        time.sleep(0.005)
    holdfast.state()["first"] = 1
    return "first"

@step
def second():
    return "second"

@workflow
def whole():
    return [first(), second()]

with holdfast.open(file, durability="fast") as hf:
    run = hf.run(whole, run_id="r") if sys.argv[2] == "run" else hf.resume("r")
    print(json.dumps([run.status, run.result if run.status == "completed" else None]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cancel", "pause"])
def test_stop_of_a_run_in_another_process_takes_effect_between_steps(tmp_path: Path, what: str) -> None:
    file = tmp_path / "runs.db"
    command = [sys.executable, "-c", PROGRAM, str(file)]
    process = subprocess.Popen([*command, "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: Path(f"{file}.inside").exists() or process.poll() is not None)
        with holdfast.open(file, durability="fast") as hf:
            getattr(hf, what)("r", reason="enough")
            assert hf.get("r").status == "running"
            Path(f"{file}.go").touch()
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            run = hf.get("r")
            status = "cancelled" if what == "cancel" else "paused"
            assert json.loads(out) == [status, None]
            assert run.status == status
            assert run.history().at(2).result == "first"
            assert run.state == {"first": 1}
        if what == "pause":
            done = subprocess.run(
                [*command, "resume"], capture_output=True, text=True, timeout=60, check=False
            )
            assert json.loads(done.stdout) == ["completed", ["first", "second"]], done.stderr
    finally:
        process.kill()
        process.wait()
