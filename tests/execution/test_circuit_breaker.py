"""Circuit breakers: per step name, in the store, for all runs, engines and processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Breaker, BreakerOpen, Holdfast, Retry, step, workflow
from holdfast.execution import step_machine
from patience import until


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


CALLS: list[Any] = []
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def _clean() -> None:
    CALLS.clear()
    BROKEN.clear()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, file: Path, clock: Clock) -> Iterator[Holdfast]:
    where: Any = file if request.param == "sqlite" else ":memory:"
    durability = "fast" if request.param == "sqlite" else "memory"
    with holdfast.open(where, durability=durability, clock=clock) as opened:
        yield opened


@step(breaker=Breaker(failures=3, reset=60))
def fused(name: str = "") -> str:
    CALLS.append(name)
    if "all" in BROKEN or name in BROKEN:
        raise ConnectionError("down")
    return "up"


@step(breaker=Breaker(failures=3, reset=60))
async def afused(name: str = "") -> str:
    CALLS.append(name)
    if "all" in BROKEN:
        raise ConnectionError("down")
    return "up"


@workflow
def fuse_run(name: str = "") -> str:
    return fused(name)


@workflow
async def fuse_arun(name: str = "") -> str:
    return await afused(name)


def status(hf: Holdfast, name: str = "fused") -> str:
    return step_machine.read_breaker(hf._engine, name)[0].status


@pytest.mark.parametrize(("which", "name"), [(fuse_run, "fused"), (fuse_arun, "afused")])
def test_breaker_goes_from_closed_to_open_to_half_open_to_closed(
    hf: Holdfast, clock: Clock, which: Any, name: str
) -> None:
    BROKEN.add("all")
    runs = [hf.run(which, raises=False) for _ in range(3)]
    assert all(isinstance(run.error, ConnectionError) for run in runs)
    assert status(hf, name) == "open"
    refused = hf.run(which, raises=False)
    assert isinstance(refused.error, BreakerOpen)
    assert len(CALLS) == 3
    clock.now += 59
    with pytest.raises(BreakerOpen):
        hf.run(which)
    clock.now += 1
    # One may try, and fails: open again, for as long again.
    with pytest.raises(ConnectionError):
        hf.run(which)
    assert status(hf, name) == "open"
    with pytest.raises(BreakerOpen):
        hf.run(which)
    assert len(CALLS) == 4
    clock.now += 60
    BROKEN.clear()
    assert hf.resume(refused.id).result == "up"
    assert status(hf, name) == "closed"
    assert [hf.resume(run.id).result for run in runs] == ["up"] * 3
    # Counted from nothing again.
    BROKEN.add("all")
    for _ in range(2):
        hf.run(which, raises=False)
    assert status(hf, name) == "closed"


def test_breaker_open_error_names_step_and_remedy(hf: Holdfast) -> None:
    BROKEN.add("all")
    for _ in range(3):
        hf.run(fuse_run, raises=False)
    error = hf.run(fuse_run, raises=False).error
    assert isinstance(error, BreakerOpen)
    assert str(error) == (
        "step 'fused' failed 3 times in a row and is left alone for 60 s: find out why it fails, then resume the run"
    )
    assert error.details["step"] == "fused"


def test_breaker_is_closed_by_a_success_in_between(hf: Holdfast) -> None:
    BROKEN.add("bad")
    for name in ("bad", "bad", "good", "bad", "bad"):
        hf.run(fuse_run, name, raises=False)
    assert status(hf) == "closed"
    hf.run(fuse_run, "bad", raises=False)
    assert status(hf) == "open"


def test_breaker_is_shared_by_engines(file: Path, clock: Clock) -> None:
    BROKEN.add("all")
    one = holdfast.open(file, durability="fast", clock=clock)
    two = holdfast.open(file, durability="fast", clock=clock)
    with one, two:
        one.run(fuse_run, raises=False)
        two.run(fuse_run, raises=False)
        one.run(fuse_run, raises=False)
        with pytest.raises(BreakerOpen):
            two.run(fuse_run)
        assert len(CALLS) == 3
        clock.now += 60
        BROKEN.clear()
        assert two.run(fuse_run).result == "up"
        assert one.run(fuse_run).result == "up"


PROGRAM = """
import json, sys
import holdfast
from holdfast import Breaker, step, workflow

@step(name="fused", breaker=Breaker(failures=3, reset=3600))
def fused():
    raise ConnectionError("down")

@workflow
def whole():
    fused()

with holdfast.open(sys.argv[1], durability="fast") as hf:
    print(json.dumps([type(hf.run(whole, raises=False).error).__name__ for _ in range(2)]))
"""


@pytest.mark.slow
def test_breaker_is_shared_by_processes(file: Path) -> None:
    def process() -> Any:
        command = [sys.executable, "-c", PROGRAM, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert process() == ["ConnectionError", "ConnectionError"]
    assert process() == ["ConnectionError", "BreakerOpen"]
    with holdfast.open(file, durability="fast") as hf, pytest.raises(BreakerOpen):
        hf.run(fuse_run)
    assert CALLS == []


def test_breaker_admits_one_probe_of_many_callers(hf: Holdfast, clock: Clock) -> None:
    BROKEN.add("all")
    for _ in range(3):
        hf.run(fuse_run, raises=False)
    clock.now += 60
    CALLS.clear()
    BROKEN.clear()
    inside, going = threading.Event(), threading.Event()

    @step(name="fused", breaker=Breaker(failures=3, reset=60))
    def slow() -> str:
        CALLS.append("probe")
        inside.set()
        assert going.wait(120)
        return "up"

    @workflow(name="fuse_probe")
    def probe() -> str:
        return slow()

    threads = [
        threading.Thread(target=hf.run, args=(probe,), kwargs={"run_id": f"probe-{number}", "raises": False})
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    assert inside.wait(30)
    # All others are refused while it is under way.
    until(lambda: sum(thread.is_alive() for thread in threads) == 1)
    going.set()
    for thread in threads:
        thread.join()
    assert CALLS == ["probe"]
    outcomes = [hf.get(f"probe-{number}") for number in range(8)]
    assert sorted(run.status for run in outcomes) == ["completed"] + ["failed"] * 7
    assert all(isinstance(run.error, BreakerOpen) for run in outcomes if run.status == "failed")
    assert status(hf) == "closed"


def test_breaker_replaces_a_probe_that_never_returned(hf: Holdfast, clock: Clock) -> None:
    BROKEN.add("all")
    for _ in range(3):
        hf.run(fuse_run, raises=False)
    clock.now += 60
    CALLS.clear()

    @step(name="fused", breaker=Breaker(failures=3, reset=60))
    def dies() -> None:
        raise KeyboardInterrupt

    @workflow(name="fuse_dies")
    def whole() -> None:
        dies()

    with pytest.raises(KeyboardInterrupt):
        hf.run(whole)
    assert status(hf) == "half_open"
    BROKEN.clear()
    with pytest.raises(BreakerOpen):
        hf.run(fuse_run)
    clock.now += 60
    assert hf.run(fuse_run).result == "up"
    assert status(hf) == "closed"


def test_breaker_counts_each_attempt_of_a_retry(hf: Holdfast) -> None:
    tries: list[int] = []

    @step(
        name="fuse_retried", retry=Retry(10, delay=0.001, jitter=0), breaker=Breaker(failures=4, reset=3600)
    )
    def retried() -> None:
        tries.append(len(tries))
        raise ConnectionError("down")

    @workflow(name="fuse_retry")
    def whole() -> None:
        retried()

    run = hf.run(whole, raises=False)
    # Each attempt counts; those that are refused are attempts of the step, not calls of its code.
    assert len(tries) == 4
    assert isinstance(run.error, BreakerOpen)
    assert [event.kind for event in run.events()].count("step.retried") == 9


class Ticking(Clock):
    """A clock that advances by a second at each reading."""

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_breaker_lets_a_longer_retry_succeed() -> None:
    tries: list[int] = []

    @step(name="fuse_patient", retry=Retry(50, delay=0.001, jitter=0), breaker=Breaker(failures=1, reset=20))
    def patient() -> str:
        tries.append(len(tries))
        if len(tries) < 2:
            raise ConnectionError("down")
        return "up"

    @workflow(name="fuse_patience")
    def whole() -> str:
        return patient()

    with holdfast.open(":memory:", clock=Ticking()) as hf:
        run = hf.run(whole)
        assert run.result == "up"
        assert len(tries) == 2
        # In between it was refused.
        retried = [event for event in run.events() if event.kind == "step.retried"]
        assert "ConnectionError" in retried[0].data["error"]
        assert len(retried) > 1
        assert all("BreakerOpen" in event.data["error"] for event in retried[1:])


def test_breaker_of_one_step_does_not_stop_another(hf: Holdfast) -> None:
    BROKEN.add("all")
    for _ in range(3):
        hf.run(fuse_run, raises=False)
    BROKEN.clear()
    assert hf.run(fuse_arun).result == "up"
    assert (status(hf), status(hf, "afused")) == ("open", "closed")


def test_breaker_does_not_stop_a_replayed_step(hf: Holdfast) -> None:
    fail = [True]

    @workflow(name="fuse_recorded")
    def whole() -> Any:
        found = fused("good")
        if fail:
            raise ValueError("later")
        return found

    run = hf.run(whole, raises=False)
    BROKEN.add("bad")
    for _ in range(3):
        hf.run(fuse_run, "bad", raises=False)
    assert status(hf) == "open"
    fail.clear()
    assert hf.resume(run.id).result == "up"
