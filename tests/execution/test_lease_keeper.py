"""Leases: who has them renewed, and how soon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast, step, workflow
from holdfast.model.records import RunRecord
from holdfast.store.protocol import Append
from patience import until

LEASE = 3600
PATIENCE = 60.0


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", lease=LEASE) as opened:
        yield opened


def owned(hf: Holdfast, seconds: float, run_id: str = "run") -> RunRecord:
    """A run that is the engine's for so long."""
    now = hf._context.clock()
    until = now + int(seconds * 1_000_000)
    run = RunRecord(id=run_id, created=now, updated=now, owner=hf._engine.owner, until=until)
    return hf._store.append(Append(expect=None, run=run))


def seconds_left(hf: Holdfast, run: RunRecord) -> float:
    """Seconds for which a run is its owner's."""
    found = hf._store.run(run.id)
    assert found is not None
    return (found.until - hf._context.clock()) / 1_000_000


def test_released_lease_handle_keeps_the_other_handles(hf: Holdfast) -> None:
    keeper, run = hf._engine.keeper, owned(hf, LEASE)
    one, other = keeper.hold(run), keeper.hold(run)
    keeper.release(one)
    keeper.release(one)
    assert keeper.holds(run)
    hf._store.append(Append(expect=run, run=replace(run, revision=run.revision + 1, until=1)))
    keeper.beat()
    assert seconds_left(hf, run) > LEASE / 2
    keeper.release(other)
    keeper.release(None)
    assert not keeper.holds(run)


def test_lease_near_its_end_is_renewed_at_once(hf: Holdfast) -> None:
    keeper = hf._engine.keeper
    # So that its thread sleeps for the third part of a lease.
    keeper.hold(owned(hf, LEASE, "other"))
    run = owned(hf, 60)
    keeper.hold(run)
    until(lambda: seconds_left(hf, run) > LEASE / 2)


def test_lease_is_renewed_after_a_slow_commit(tmp_path: Path) -> None:
    """Until when the run is its owner's was said when the version was drawn up."""
    seconds = [1_000_000_000.0]
    reached, go_on = threading.Event(), threading.Event()

    @step(name="k_slow")
    def slow() -> None:
        """Nothing but a commit."""

    @workflow(name="k_slowly")
    def slowly() -> None:
        slow()
        reached.set()
        assert go_on.wait(PATIENCE)

    with holdfast.open(tmp_path / "runs.db", lease=LEASE, clock=lambda: seconds[0]) as hf:
        append = hf._store.append

        def late(change: Append) -> RunRecord:
            if change.version is not None and change.version.step == "k_slow":
                seconds[0] += LEASE - 60
            return append(change)

        hf._engine.committer.store.append = late  # type: ignore[method-assign]
        thread = threading.Thread(target=hf.run, args=(slowly,), kwargs={"run_id": "run"})
        thread.start()
        assert reached.wait(PATIENCE)
        run = hf._store.run("run")
        assert run is not None
        try:
            until(lambda: seconds_left(hf, run) > LEASE / 2)
        finally:
            go_on.set()
            thread.join()


def test_lease_keeper_without_a_thread_starts_one_with_the_next_run(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, start = hf._engine.keeper, threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    one = owned(hf, 60, "one")
    keeper.hold(one)
    assert "leases are not renewed" in caplog.text
    monkeypatch.setattr(threading.Thread, "start", start)
    keeper.hold(owned(hf, LEASE, "other"))
    until(lambda: seconds_left(hf, one) > LEASE / 2)


def test_lease_keeper_uses_one_thread_for_concurrent_starts(hf: Holdfast) -> None:
    keeper, gate = hf._engine.keeper, threading.Barrier(8)
    runs = [owned(hf, LEASE, f"run-{number}") for number in range(8)]

    def hold(run: RunRecord) -> Any:
        gate.wait()
        return keeper.hold(run)

    threads = [threading.Thread(target=hold, args=(run,)) for run in runs]
    # Stores of earlier tests may still be ending their threads.
    before = set(threading.enumerate())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started = set(threading.enumerate()) - before
    assert [thread.name for thread in started] == ["holdfast leases"]
