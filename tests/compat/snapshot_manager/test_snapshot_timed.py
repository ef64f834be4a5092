"""Timed snapshots of objects: when they are taken, when they end, and that the class behaves as before."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pydantic
import pytest
import snapshot_fixtures
from snapshot_fixtures import NEVER, SOON, Plan, Run, Struct, numbers, taken

import autosave_timers
import holdfast
from autosave_timers import timers, warnings
from holdfast import InvalidCall
from holdfast.snapshots import SnapshotManager, with_snapshots
from patience import until

file, manager, no_timer_is_left = (
    snapshot_fixtures.file,
    snapshot_fixtures.manager,
    autosave_timers.no_timer_is_left,
)


def last(manager: SnapshotManager, run_id: str = "run-1") -> Any:
    found = manager.get_latest_snapshot(run_id)
    return None if found is None else dict(found.state)


def until_status(manager: SnapshotManager, status: Any) -> None:
    until(lambda: (last(manager) or {}).get("status") == status)


def test_timer_saves_changes_periodically(manager: SnapshotManager) -> None:
    run = with_snapshots(Run, manager, SOON)("run-1")
    for status in ("running", "suspended", "completed"):
        run.store.status = status
        until_status(manager, status)
    found = manager.get_all_snapshots("run-1")
    assert [one.status for one in found if one.status != "pending"] == ["running", "suspended", "completed"]
    assert all(one.timed for one in found)
    assert {one.workflow_id for one in found} == {"research"}
    run.destroy()


def test_timed_snapshots_are_limited_to_the_latest(manager: SnapshotManager) -> None:
    run = with_snapshots(Run, manager, 0.001)("run-1")
    for index in range(12):
        run.store.status = index
        until_status(manager, index)
    run.destroy()
    found = numbers(manager)
    assert len(found) == 5
    assert found[0] > 5


def test_destroyed_object_is_not_saved_again(manager: SnapshotManager) -> None:
    run = with_snapshots(Run, manager, 0.0005)("run-1")
    until(lambda: last(manager))
    [timer] = timers()
    run.destroy()
    written = numbers(manager)
    run.store.status = "late"
    run.destroy()
    assert not timer.is_alive()
    assert numbers(manager) == written
    # An explicit snapshot is still possible.
    assert taken(manager, run.store).status == "late"


def test_collected_object_ends_its_timer(manager: SnapshotManager) -> None:
    run = with_snapshots(Run, manager, NEVER)("run-1")
    weak = weakref.ref(run)
    [timer] = timers()
    del run
    gc.collect()
    assert weak() is None
    assert not timer.is_alive()


def test_object_in_a_cycle_is_collected_during_a_save(manager: SnapshotManager) -> None:
    made = with_snapshots(Run, manager, 0.0005)
    gc.freeze()  # or each collection would look at all that was ever imported
    try:
        for index in range(20):
            run = made(f"run-{index}")
            run.me = run
            weak = weakref.ref(run)
            del run
            while weak() is not None:
                gc.collect()
    finally:
        gc.unfreeze()
    until(lambda: not timers())


def test_wrapped_class_behaves_like_its_base(manager: SnapshotManager) -> None:
    class Base:
        """What it is for."""

        closed = False

        def __init__(self, run_id: str, *, more: int) -> None:
            self.run_id, self.more = run_id, more

        def destroy(self) -> None:
            self.closed = True

    made = with_snapshots(Base, manager, NEVER)
    assert (made.__name__, made.__doc__, made.__module__) == (
        "BaseWithSnapshots",
        "What it is for.",
        __name__,
    )
    run = made("run-1", more=3)
    assert isinstance(run, Base)
    assert run.more == 3
    run.destroy()
    assert run.closed
    with pytest.raises(TypeError):
        made("run-1")

    class Special(made):  # type: ignore[valid-type,misc]
        def __init__(self) -> None:
            super().__init__("run-2", more=4)
            self.late = True

    special = Special()
    until(lambda: len(timers()) == 1)
    special.destroy()


def test_block_exit_saves_and_ends_the_timer(manager: SnapshotManager) -> None:
    made = with_snapshots(Run, manager, NEVER)
    with made("run-1") as run:
        run.store.status = "quick"
    assert last(manager)["status"] == "quick"
    until(lambda: not timers())
    run = made("run-2")
    with pytest.raises(ZeroDivisionError), run:
        run.store.status = 1 / 0
    found = manager.get_latest_snapshot("run-2")
    assert found is not None
    assert (found.status, found.note) == ("pending", "the block raised ZeroDivisionError")
    until(lambda: not timers())
    with run:  # once more, after its end
        run.store.status = "later"
    assert last(manager, "run-2")["status"] == "pending"


def test_wrapped_context_managers_keep_working(manager: SnapshotManager) -> None:
    class Both:
        def __init__(self) -> None:
            self.id, self.calls = "run-1", ["made"]

        def __enter__(self) -> str:
            self.calls.append("entered")
            return "entered"

        def __exit__(self, kind: Any, *_: object) -> bool:
            self.calls.append("left")
            return kind is KeyError

        async def __aenter__(self) -> str:
            return self.__enter__()

        async def __aexit__(self, kind: Any, *rest: object) -> bool:
            return self.__exit__(kind, *rest)

    made = with_snapshots(Both, manager, NEVER)
    run = made()
    with run as entered:
        assert entered == "entered"
        raise KeyError
    assert run.calls == ["made", "entered", "left"]
    assert last(manager)["calls"] == ["made", "entered"]

    async def block() -> Any:
        other = made()
        async with other as entered:
            assert entered == "entered"
            raise KeyError
        return other

    assert asyncio.run(block()).calls[-1] == "left"
    until(lambda: not timers())


@pytest.mark.parametrize("by", ["name", "function"])
def test_parts_of_the_object_can_be_configured(manager: SnapshotManager, by: str) -> None:
    class Odd:
        def __init__(self) -> None:
            self.key, self.kind, self.data, self.guard = "odd-1", "odd", {"n": 1}, threading.RLock()

    parts: dict[str, Any] = {"run_id": "key", "workflow_id": "kind", "store": "data", "lock": "guard"}
    if by == "function":
        parts = {name: (lambda run, each=each: getattr(run, each)) for name, each in parts.items()}
    with with_snapshots(Odd, manager, NEVER, **parts)():
        pass
    found = manager.get_latest_snapshot("odd-1")
    assert found is not None
    assert (dict(found.state), found.workflow_id) == ({"n": 1}, "odd")


def test_lock_is_held_while_the_object_is_read(manager: SnapshotManager) -> None:
    class Pair:
        def __init__(self) -> None:
            self.run_id, self.one, self.two, self._lock = "run-1", 0, 0, threading.Lock()

    run = with_snapshots(Pair, manager, 0.0005, lock="_lock")()
    for index in range(200):
        with run._lock:
            run.one = index
            until(lambda: True)
            run.two = index
    until(lambda: (last(manager) or {}).get("two") == 199)
    run.destroy()
    assert all(one.one == one.two for one in manager.get_all_snapshots("run-1"))


def test_objects_of_many_kinds_are_saved(manager: SnapshotManager) -> None:
    @dataclasses.dataclass
    class Data:
        run_id: str = "data"
        n: int = 1

    @dataclasses.dataclass(frozen=True, slots=True)
    class Frozen:
        run_id: str = "frozen"
        n: int = 1

    class Model(pydantic.BaseModel):
        run_id: str = "model"
        n: int = 1

    for kind in (Data, Frozen, Model):
        made = with_snapshots(kind, manager, NEVER)
        run = made()
        assert run == made()
        with run:
            pass
        assert last(manager, kind().run_id) == {"run_id": kind().run_id, "n": 1}
        if kind is Model:
            assert run.model_dump() == {"run_id": "model", "n": 1}
    gc.collect()


def test_failed_timed_snapshot_warns_once_and_the_run_continues(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reads = []

    class Failing:
        def __init__(self) -> None:
            self.run_id, self.fails = "run-1", True

        def get_state(self) -> dict[str, Any]:
            reads.append(1)
            if self.fails:
                raise RuntimeError("no state yet")
            return {"n": 1}

    with SnapshotManager(history=file) as manager:
        run = with_snapshots(Failing, manager, SOON)()
        until(lambda: len(reads) > 20)
        assert [text for text in warnings(caplog) if "no state yet" in text] == warnings(caplog)
        assert len(warnings(caplog)) == 1
        run.fails = False
        until(lambda: last(manager) == {"n": 1})
        run.destroy()


def test_closing_the_manager_ends_all_timers(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = SnapshotManager(history=file)
    made = with_snapshots(Run, manager, SOON)
    runs = [made(f"run-{index}") for index in range(3)]
    until(lambda: len(manager.get_run_ids()) == 3)
    manager.close()
    assert not timers()
    for run in runs:
        run.destroy()
    assert warnings(caplog) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_can_destroy_an_inherited_object(manager: SnapshotManager) -> None:
    run = with_snapshots(Run, manager, NEVER)("run-1")
    child = os.fork()
    if child == 0:
        run.destroy()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    run.destroy()


def test_with_snapshots_refuses_invalid_arguments(manager: SnapshotManager) -> None:
    for wrong in (3, None, "Run", Run("a")):
        with pytest.raises(InvalidCall):
            with_snapshots(wrong, manager)  # type: ignore[arg-type]
    for interval in (-1, 5000, 1000.0, "5", None, float("nan"), float("inf"), True):
        with pytest.raises(InvalidCall, match="interval"):
            with_snapshots(Run, manager, interval)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall):
        with_snapshots(Run, holdfast.open(":memory:"))  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="run_id"):
        with_snapshots(Run, manager, run_id=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="Struct"):
        with_snapshots(Struct, manager)
    with pytest.raises(InvalidCall, match="bool"):
        with_snapshots(bool, manager)
    with pytest.raises(InvalidCall, match="run_id"):
        with_snapshots(Plan, manager)()
    with pytest.raises(InvalidCall, match="cannot be a run id"):
        with_snapshots(Run, manager)("../x")
    with pytest.raises(InvalidCall, match="lock"):
        with_snapshots(Run, manager, lock="run_id")("run-1")
    until(lambda: not timers())
