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
from holdfast.errors import CommitUnknown, CorruptStore, HoldfastError, StoreBusy, StoreUnavailable
from patience import until


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


pytest_plugins = ["postgres_fixtures"]

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


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def hf(request: pytest.FixtureRequest, file: Path, clock: Clock) -> Iterator[Holdfast]:
    where: Any = file if request.param == "sqlite" else ":memory:"
    durability = "fast" if request.param == "sqlite" else "memory"
    if request.param == "postgres":
        where, durability = request.getfixturevalue("url"), "durable"
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
    return next((each.status for each in hf.breakers() if each.name == name), "closed")


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
    assert error.details["step"] == error.details["breaker"] == "fused"
    assert error.details["retry_at"].timestamp() == 1_800_000_060


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


def test_breaker_is_closed_by_a_call_that_takes_longer_than_it_stays_open(hf: Holdfast, clock: Clock) -> None:
    @step(name="fused", breaker=Breaker(failures=3, reset=60))
    def slow(name: str) -> str:
        CALLS.append(name)
        inside[name].set()
        assert going[name].wait(120)
        return "up"

    @workflow(name="fuse_slow")
    def whole(name: str) -> str:
        return slow(name)

    BROKEN.add("all")
    for _ in range(3):
        hf.run(fuse_run, raises=False)
    inside, going = ({name: threading.Event() for name in "ab"} for _ in range(2))
    threads = []
    for name in "ab":
        clock.now += 60
        threads.append(threading.Thread(target=hf.run, args=(whole, name)))
        threads[-1].start()
        assert inside[name].wait(30)
    # The second call was let through while the first was under way, which succeeds now.
    going["a"].set()
    threads[0].join()
    assert status(hf) == "closed"
    going["b"].set()
    threads[1].join()
    assert status(hf) == "closed"


@pytest.mark.parametrize("refusal", [StoreBusy, StoreUnavailable, CommitUnknown, CorruptStore])
def test_breaker_that_cannot_be_written_does_not_lose_a_result(
    hf: Holdfast, clock: Clock, refusal: type[HoldfastError], monkeypatch: pytest.MonkeyPatch
) -> None:
    BROKEN.add("all")
    for _ in range(3):
        hf.run(fuse_run, raises=False)
    BROKEN.clear()
    clock.now += 60
    CALLS.clear()
    write, written = hf._store.set_value, []

    def refuse_once(name: str, *given: Any) -> int:
        # The first write admits the call.
        written.append(name)
        if len(written) == 2:
            raise refusal("the disk is busy")
        return write(name, *given)

    monkeypatch.setattr(hf._store, "set_value", refuse_once)
    assert hf.run(fuse_run).result == "up"
    assert CALLS == [""]
    # It is closed by the next call that is let through.
    clock.now += 60
    assert hf.run(fuse_run).result == "up"
    assert status(hf) == "closed"


@pytest.mark.parametrize("refusal", [StoreBusy, StoreUnavailable, CommitUnknown, CorruptStore])
def test_breaker_that_cannot_be_written_does_not_hide_a_failure(
    hf: Holdfast, refusal: type[HoldfastError], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = hf._store.set_value

    def refuse(name: str, *given: Any) -> int:
        if name.startswith("breaker:"):
            raise refusal("the disk is busy")
        return write(name, *given)

    monkeypatch.setattr(hf._store, "set_value", refuse)
    BROKEN.add("all")
    failed = hf.run(fuse_run, raises=False)
    assert (failed.status, type(failed.error)) == ("failed", ConnectionError)


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
    assert run.status == "suspended"
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
        run = hf.run(whole).wait(60)
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


# What counts, names, events


class Refused(Exception):
    """A server's refusal."""

    status_code = 401


ERRORS: dict[str, BaseException] = {"refused": Refused("no such key"), "value": ValueError("bad json")}


@step(breaker=Breaker(failures=2, reset=60))
def picky(name: str) -> str:
    CALLS.append(name)
    if name in ERRORS:
        raise ERRORS[name]
    if "all" in BROKEN:
        raise ConnectionError(f"down {name}")
    return "up"


@workflow
def picky_run(name: str) -> str:
    return picky(name)


def test_breaker_ignores_errors_that_are_not_of_the_service(hf: Holdfast, clock: Clock) -> None:
    for _ in range(3):
        for name in ("refused", "value"):
            hf.run(picky_run, name, raises=False)
    assert hf.breakers() == []
    BROKEN.add("all")
    # Neither do they end a row of failures.
    hf.run(picky_run, "a", raises=False)
    hf.run(picky_run, "refused", raises=False)
    hf.run(picky_run, "b", raises=False)
    assert status(hf, "picky") == "open"
    clock.now += 60
    # A probe that ends so says nothing: the next call is the next probe, at once.
    assert isinstance(hf.run(picky_run, "refused", raises=False).error, Refused)
    assert status(hf, "picky") == "half_open"
    BROKEN.clear()
    assert hf.run(picky_run, "c").result == "up"
    assert status(hf, "picky") == "closed"


def test_breaker_counts_the_errors_that_it_names(hf: Holdfast) -> None:
    @step(name="fuse_named_errors", breaker=Breaker(failures=1, reset=60, on=ValueError))
    def parsed(text: str) -> int:
        if text == "down":
            raise ConnectionError(text)
        return int(text)

    @workflow(name="fuse_named_errors_run")
    def whole(text: str) -> int:
        return parsed(text)

    hf.run(whole, "down", raises=False)
    assert hf.breakers() == []
    hf.run(whole, "x", raises=False)
    assert status(hf, "fuse_named_errors") == "open"


def test_breaker_needs_several_successes(hf: Holdfast, clock: Clock) -> None:
    @step(name="fuse_slow_start", breaker=Breaker(failures=1, reset=60, successes=3))
    def starting() -> str:
        if "all" in BROKEN:
            raise ConnectionError("down")
        return "up"

    @workflow(name="fuse_slow_start_run")
    def whole() -> str:
        return starting()

    BROKEN.add("all")
    hf.run(whole, raises=False)
    clock.now += 60
    BROKEN.clear()
    for expected in ("half_open", "half_open", "closed"):
        assert hf.run(whole).result == "up"
        assert status(hf, "fuse_slow_start") == expected


def test_breaker_is_shared_by_steps_that_name_it(hf: Holdfast) -> None:
    shared = Breaker(failures=2, reset=60, name="provider / \u2192 'x' %_")

    @step(name="fuse_chat", breaker=shared)
    def chat() -> None:
        raise ConnectionError("down")

    @step(name="fuse_embed", breaker=shared)
    def embed() -> None:
        raise ConnectionError("down")

    @workflow(name="fuse_shared")
    def whole(which: str) -> None:
        chat() if which == "chat" else embed()

    hf.run(whole, "chat", raises=False)
    hf.run(whole, "embed", raises=False)
    error = hf.run(whole, "chat", raises=False).error
    assert isinstance(error, BreakerOpen)
    assert 'breaker "provider' in str(error)
    (found,) = hf.breakers()
    assert (found.name, found.failures, found.error) == (shared.name, 2, "ConnectionError: down")
    assert hf.reset_breaker(found.name).status == "closed"
    assert isinstance(hf.run(whole, "chat", raises=False).error, ConnectionError)


def test_breaker_summary_shows_when_it_lets_a_call_through(hf: Holdfast, clock: Clock) -> None:
    BROKEN.add("all")
    hf.run(fuse_run, raises=False)
    (found,) = hf.breakers()
    assert (found.status, found.failures, found.since, found.retry_at) == ("closed", 1, None, None)
    for _ in range(2):
        hf.run(fuse_run, raises=False)
    (found,) = hf.breakers()
    assert found.since is not None
    assert found.retry_at is not None
    assert (found.since.timestamp(), found.retry_at.timestamp()) == (clock.now, clock.now + 60)
    # A clock that jumps by days in either direction does not close it for longer.
    clock.now -= 86_400
    BROKEN.clear()
    assert hf.run(fuse_run).result == "up"


def test_breaker_events_are_in_the_journal_of_the_run_that_changed_it(hf: Holdfast, clock: Clock) -> None:
    def changes(run_id: str) -> list[str]:
        return [event.kind for event in hf.history(run_id).events() if event.kind.startswith("breaker.")]

    BROKEN.add("all")
    for number in range(4):
        hf.run(fuse_run, run_id=f"r{number}", raises=False)
    assert [changes(f"r{number}") for number in range(4)] == [[], [], ["breaker.opened"], []]
    (opened,) = [event for event in hf.history("r2").events() if event.kind == "breaker.opened"]
    assert opened.data == {"breaker": "fused", "failures": 3, "error": "ConnectionError: down"}
    clock.now += 60
    hf.run(fuse_run, run_id="r4", raises=False)
    assert changes("r4") == ["breaker.half_opened", "breaker.opened"]
    clock.now += 60
    BROKEN.clear()
    hf.run(fuse_run, run_id="r5")
    assert changes("r5") == ["breaker.half_opened", "breaker.closed"]


def test_breaker_reset_by_hand(hf: Holdfast) -> None:
    BROKEN.add("all")
    for number in range(3):
        hf.run(fuse_run, run_id=f"r{number}", raises=False)
    found = hf.reset_breaker("fused", actor="ana")
    assert (found.status, found.failures, found.retry_at, found.error) == ("closed", 0, None, None)
    (closed,) = [event for event in hf.history("r2").events() if event.kind == "breaker.closed"]
    assert closed.data == {"breaker": "fused", "actor": "ana", "by_hand": True}
    BROKEN.clear()
    assert hf.run(fuse_run).result == "up"
    # A second time changes nothing, also if the run that had opened it is gone.
    assert hf.reset_breaker("fused") == hf.reset_breaker("fused")


def test_breaker_reset_after_its_run_was_deleted(hf: Holdfast) -> None:
    BROKEN.add("all")
    for number in range(3):
        hf.run(fuse_run, run_id=f"r{number}", raises=False)
    hf.delete("r2")
    assert hf.reset_breaker("fused").status == "closed"


@pytest.mark.parametrize("name", ["fusde", "", "\0", "x" * 501, "\ud800", "../breaker:fused", None, 3])
def test_breaker_reset_refuses_an_unknown_name(hf: Holdfast, name: Any) -> None:
    BROKEN.add("all")
    hf.run(fuse_run, raises=False)
    with pytest.raises(holdfast.InvalidCall) as found:
        hf.reset_breaker(name)
    if name == "fusde":
        assert "did you mean 'fused'?" in str(found.value)


def test_breaker_error_text_that_raises_is_kept_as_its_class(hf: Holdfast) -> None:
    class Mute(ConnectionError):
        def __str__(self) -> str:
            raise RuntimeError

    @step(name="fuse_mute", breaker=Breaker(failures=1))
    def mute() -> None:
        raise Mute

    @step(name="fuse_long", breaker=Breaker(failures=1))
    def long() -> None:
        raise ConnectionError("\ud800\0<script>" * 10_000)

    @workflow(name="fuse_texts")
    def whole(which: str) -> None:
        mute() if which == "mute" else long()

    for which in ("mute", "long"):
        hf.run(whole, which, raises=False)
    first, second = hf.breakers()
    assert second.error == "Mute"
    assert len(first.error or "") == 500


# Runs that wait


@step(name="fuse_waiting", retry=Retry(3, delay=0, jitter=0), breaker=Breaker(failures=3, reset=60))
def waiting_step(name: str) -> str:
    CALLS.append(name)
    if "all" in BROKEN:
        raise ConnectionError("down")
    return f"up {name}"


@step(name="fuse_before")
def before_waiting(name: str) -> None:
    CALLS.append(f"before {name}")


@workflow(name="fuse_waiting_run")
def waiting_run(name: str) -> str:
    before_waiting(name)
    return waiting_step(name)


def open_breaker(hf: Holdfast) -> None:
    BROKEN.add("all")
    failed = hf.run(waiting_run, "first", raises=False)
    # It has used up its attempts itself.
    assert isinstance(failed.error, ConnectionError)
    assert status(hf, "fuse_waiting") == "open"
    CALLS.clear()


def test_run_waits_for_an_open_breaker_and_goes_on(hf: Holdfast, clock: Clock) -> None:
    open_breaker(hf)
    run = hf.run(waiting_run, "a", run_id="a")
    assert run.status == "suspended"
    assert CALLS == ["before a"]
    with pytest.raises(holdfast.Suspended) as found:
        run.result  # noqa: B018
    assert found.value.details["waits"] == ["fuse_waiting"]
    assert found.value.details["until"].timestamp() == clock.now + 60
    # Too early: nothing is executed.
    clock.now += 30
    assert hf.resume("a").status == "suspended"
    clock.now += 30
    BROKEN.clear()
    assert run.wait(60).result == "up a"
    assert CALLS == ["before a", "a"]
    assert status(hf, "fuse_waiting") == "closed"
    assert [event.kind for event in run.events()].count("run.suspended") == 1
    assert not list(hf._store.value_names("breaker_wait:"))


def test_waiting_run_uses_up_the_attempts_of_its_retry(hf: Holdfast, clock: Clock) -> None:
    open_breaker(hf)
    run = hf.run(waiting_run, "a")
    for calls in (1, 2):
        clock.now += 60
        run = hf.resume(run.id)
        assert run.status == "suspended"
        assert CALLS.count("a") == calls
    clock.now += 60
    run = hf.resume(run.id, raises=False)
    assert CALLS.count("a") == 3
    assert isinstance(run.error, ConnectionError)
    # Resumed by a person, it has all its attempts again.
    clock.now += 60
    assert hf.resume(run.id, raises=False).status == "suspended"
    assert CALLS.count("a") == 4


def test_run_whose_retry_does_not_allow_it_fails_on_an_open_breaker(hf: Holdfast) -> None:
    @step(name="fuse_once", breaker=Breaker(failures=1, reset=60))
    def once() -> None:
        raise ConnectionError("down")

    @step(name="fuse_hurried", retry=Retry(9, delay=0, budget=30), breaker=Breaker(failures=1, reset=60))
    def hurried() -> None:
        raise ConnectionError("down")

    @step(
        name="fuse_narrow", retry=Retry(9, delay=0, on=ConnectionError), breaker=Breaker(failures=1, reset=60)
    )
    def narrow() -> None:
        raise ConnectionError("down")

    @workflow(name="fuse_not_allowed")
    def whole(which: str) -> None:
        {"once": once, "hurried": hurried, "narrow": narrow}[which]()

    for which in ("once", "hurried", "narrow"):
        for _ in range(2):
            run = hf.run(whole, which, raises=False)
        assert run.status == "failed"
        assert isinstance(run.error, BreakerOpen)


def test_code_that_handles_an_open_breaker_does_not_wait(hf: Holdfast) -> None:
    @workflow(name="fuse_fallback")
    def whole() -> str:
        try:
            return waiting_step("a")
        except BreakerOpen:
            return fused("other provider")

    open_breaker(hf)
    BROKEN.clear()
    assert hf.run(whole).result == "up"


def test_parent_waits_when_its_child_was_refused(hf: Holdfast, clock: Clock) -> None:
    @workflow(name="fuse_parent")
    def parent() -> str:
        return waiting_run("child")

    open_breaker(hf)
    run = hf.run(parent)
    assert run.status == "suspended"
    assert [hf.get(child).status for child in run.children] == ["failed"]
    clock.now += 60
    BROKEN.clear()
    assert hf.resume(run.id).result == "up child"
    assert CALLS == ["before child", "child"]


def test_tasks_of_a_group_wait_together(hf: Holdfast, clock: Clock) -> None:
    import asyncio

    @step(name="fuse_in_group", retry=Retry(2, delay=0), breaker=Breaker(failures=1, reset=60))
    async def one(name: str) -> str:
        if "all" in BROKEN:
            raise ConnectionError("down")
        return name

    @workflow(name="fuse_group")
    async def whole() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(name)) for name in ("a", "b")]
        return [task.result() for task in tasks]

    @workflow(name="fuse_group_breaks")
    async def breaks() -> None:
        await one("x")

    async def main() -> None:
        BROKEN.add("all")
        await hf.arun(breaks, raises=False)
        run = await hf.arun(whole)
        assert run.status == "suspended"
        BROKEN.clear()
        clock.now += 62
        assert (await hf.aresume(run.id)).result == ["a", "b"]

    asyncio.run(main())


def test_turns_of_waiting_runs_are_apart_and_come_forward_when_the_breaker_closes(
    hf: Holdfast, clock: Clock
) -> None:
    open_breaker(hf)
    runs = [hf.enqueue(waiting_run, f"r{number}", run_id=f"r{number}") for number in range(6)]
    with hf.worker(concurrency=3, poll=0.01, monitor=False):
        until(lambda: all(run.status == "suspended" for run in runs))

    def dues() -> list[float]:
        return sorted((hf._store.run(run.id).due or 0) / 1e6 - clock.now for run in runs)  # type: ignore[union-attr]

    assert dues() == [60, 61, 62, 63, 64, 65]
    CALLS.clear()
    clock.now += 60
    # The probe goes first, and fails: the others wait on.
    with hf.worker(concurrency=3, poll=0.01, monitor=False):
        until(lambda: len(CALLS) == 1)
        until(lambda: min(dues()) > 0)
    assert len(CALLS) == 1
    BROKEN.clear()
    hf.reset_breaker("fuse_waiting")
    assert max(dues()) < 1
    clock.now += 1
    with hf.worker(concurrency=3, poll=0.01, monitor=False):
        until(lambda: all(run.status == "completed" for run in runs))
    # Exactly once each, and nothing is left.
    assert sorted(CALLS[1:]) == [f"r{number}" for number in range(6)]
    assert not list(hf._store.value_names("breaker_wait:"))


def test_waiting_runs_go_on_when_a_probe_closes_the_breaker(hf: Holdfast, clock: Clock) -> None:
    open_breaker(hf)
    runs = [hf.run(waiting_run, f"r{number}", run_id=f"r{number}") for number in range(4)]
    clock.now += 60
    BROKEN.clear()
    assert hf.resume("r0").result == "up r0"
    clock.now += 0.2
    for run in runs[1:]:
        assert hf.resume(run.id).status == "completed"


def test_monitor_resumes_waiting_runs_that_are_in_no_queue(hf: Holdfast, clock: Clock) -> None:
    open_breaker(hf)
    runs = [hf.run(waiting_run, f"r{number}", run_id=f"r{number}") for number in range(3)]
    BROKEN.clear()
    with hf.monitor(interval=0.02):
        until(lambda: hf.get("r0").status == "suspended")
        clock.now += 61.5
        until(lambda: any(run.status == "completed" for run in runs))
        clock.now += 5
        until(lambda: all(run.status == "completed" for run in runs))
    assert sorted(CALLS) == sorted([f"before r{number}" for number in range(3)] + ["r0", "r1", "r2"])


def test_waiting_run_can_be_cancelled_and_the_next_one_is_the_probe(hf: Holdfast, clock: Clock) -> None:
    open_breaker(hf)
    for name in ("a", "b"):
        hf.run(waiting_run, name, run_id=name)
    hf.cancel("a")
    clock.now += 62
    BROKEN.clear()
    assert hf.resume("b").result == "up b"
    hf.delete("a")
    assert status(hf, "fuse_waiting") == "closed"


KILLED = """
import os, sys
import holdfast
from holdfast import Breaker, Retry, step, workflow

@step(name="fuse_waiting", retry=Retry(3, delay=0), breaker=Breaker(failures=3, reset=0.5))
def waiting_step(name):
    raise ConnectionError("down")

@workflow(name="fuse_waiting_run")
def waiting_run(name):
    return waiting_step(name)

with holdfast.open(sys.argv[1], durability="fast") as hf:
    hf.run(waiting_run, "first", raises=False)
    hf.enqueue(waiting_run, "a", run_id="a")
    hf.worker(poll=0.01, monitor=False).start()
    while hf.get("a").status != "suspended":
        pass
    os._exit(3)
"""


@pytest.mark.slow
def test_waiting_run_goes_on_after_its_process_died(file: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    with holdfast.open(file, durability="fast") as hf, hf.worker(poll=0.01):
        until(lambda: hf.get("a").status == "completed")
        assert hf.get("a").result == "up a"
