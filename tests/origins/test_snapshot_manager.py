"""The Workflow Snapshot System of KaibanJS, claim by claim, with `holdfast.snapshots`."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import gc
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

import holdfast
from holdfast import InvalidCall, InvalidSnapshot, InvalidState
from holdfast.snapshots import (
    RUN_SCHEMA,
    Snapshot,
    SnapshotManager,
    SnapshotUtils,
    compare_snapshots,
    validate_snapshot,
    with_snapshots,
)
from patience import until

pytest_plugins = ["postgres_fixtures"]


class RunStatus(enum.StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class RunStore:
    """The store of a run, with the fields of the original and a setter."""

    status: RunStatus

    def __init__(self, run_id: str = "run-123", workflow_id: str = "my-workflow") -> None:
        self.run_id, self.workflow_id = run_id, workflow_id
        self.status = RunStatus.PENDING
        self.step_results: dict[str, Any] = {}
        self.execution_path: list[int] = []
        self.suspended_paths: dict[str, list[int]] = {}
        self.events: list[Any] = []
        self.execution_graph: list[Any] = []
        self.result: Any = None
        self.error: Any = None
        self.logs: list[Any] = []
        self.execution_context: dict[str, Any] = {}

    def set_status(self, status: RunStatus) -> None:
        self.status = status


class Holder:
    """The `run.store` of the original: `get_state()` returns the live state."""

    def __init__(self, state: RunStore) -> None:
        self._state = state

    def get_state(self) -> RunStore:
        return self._state


class Run:
    def __init__(self, run_id: str = "run-123", workflow_id: str = "my-workflow") -> None:
        self.run_id, self.workflow_id = run_id, workflow_id
        self.store = Holder(RunStore(run_id, workflow_id))

    def start(self, output: Any) -> None:
        state = self.store.get_state()
        state.set_status(RunStatus.RUNNING)
        state.step_results["step1"] = {"status": "completed", "output": output}
        state.execution_path.append(0)
        state.result = "final result"
        state.set_status(RunStatus.COMPLETED)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "snapshots.db"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def manager(request: pytest.FixtureRequest, file: Path) -> Iterator[SnapshotManager]:
    where = None if request.param == "memory" else file
    if request.param == "postgres":
        where = request.getfixturevalue("url")
    with SnapshotManager(10, where, strict=True) as made:
        yield made


def take(manager: SnapshotManager, run: Run) -> Snapshot:
    made = manager.create_snapshot(run.run_id, run.store.get_state())
    assert made is not None
    return made


def kaiban_document(**changes: Any) -> dict[str, Any]:
    """Return what `exportSnapshot` of KaibanJS writes."""
    return {
        "version": "1.0.0",
        "timestamp": 1_700_000_000_123,
        "runId": "run-123",
        "workflowId": "my-workflow",
        "status": "RUNNING",
        "stepResults": {"step1": {"status": "failed", "error": {}, "suspendedPath": [0, 1]}},
        "executionPath": [0],
        "suspendedPaths": {"step2": [1, 0]},
        "events": [
            {
                "type": "WORKFLOW_STATUS_UPDATE",
                "timestamp": 1_700_000_000_000,
                "runId": "run-123",
                "workflowId": "my-workflow",
                "description": "started",
                "payload": {},
            }
        ],
        "executionGraph": [{}],
        "logs": [{"timestamp": 1_700_000_000_000, "type": "status", "description": "started"}],
        "executionContext": {"user": "ada"},
        **changes,
    }


class TestFeatures:
    """Features"""

    def test_existing_classes_need_no_change(self, manager: SnapshotManager) -> None:
        """A run and its store are saved and restored without a base class, a decorator or a method of their own."""
        run = Run()
        before = copy.deepcopy(vars(run.store.get_state()))
        snapshot = take(manager, run)
        assert vars(run.store.get_state()) == before
        run.start(1)
        manager.restore_from_snapshot(run.run_id, run.store.get_state(), snapshot)
        assert vars(run.store.get_state()) == before

    def test_old_snapshots_are_removed(self, manager: SnapshotManager) -> None:
        """A manager keeps the last snapshots of each run and removes older ones by itself."""
        run = Run()
        for number in range(40):
            run.store.get_state().result = number
            take(manager, run)
        assert [each.result for each in manager.get_all_snapshots(run.run_id)] == list(range(30, 40))
        assert manager.history(run.run_id).run_record().kept <= 15

    def test_snapshots_are_validated(self) -> None:
        """With a schema, a snapshot that does not fit is refused, with the path, when it is taken or imported."""
        with SnapshotManager(schema=RUN_SCHEMA, strict=True) as manager:
            run = Run()
            text = manager.export_snapshot(take(manager, run))
            assert manager.import_snapshot(text).status == "PENDING"
            run.store.get_state().step_results["a"] = {"status": "unknown"}
            with pytest.raises(InvalidState) as caught:
                take(manager, run)
            assert caught.value.details["path"] == "step_results.a.status"

    def test_snapshots_are_json(self, manager: SnapshotManager) -> None:
        """A snapshot is exported as JSON text, and the import equals it."""
        snapshot = take(manager, Run())
        assert manager.import_snapshot(json.dumps(json.loads(manager.export_snapshot(snapshot)))) == snapshot

    def test_json_keeps_types(self, manager: SnapshotManager) -> None:
        """Unlike the original, export and import keep dates, sets, maps with keys of any type, bytes and enums."""
        values = {
            "at": datetime.now(UTC),
            "set": {1, 2},
            "map": {1: "a", (1, 2): "b"},
            "bytes": b"x",
            "nan": 1e400,
        }
        run = Run()
        run.store.get_state().execution_context = values
        text = manager.export_snapshot(take(manager, run))
        fresh = Run()
        done = manager.restore_from_snapshot(
            fresh.run_id, fresh.store.get_state(), manager.import_snapshot(text), strict=True
        )
        assert done.not_restored == ()
        assert fresh.store.get_state().execution_context == values
        assert fresh.store.get_state().status is RunStatus.PENDING

    def test_snapshots_are_compared(self, manager: SnapshotManager) -> None:
        """Two snapshots are compared field by field."""
        run = Run()
        one = take(manager, run)
        run.start("x")
        assert set(compare_snapshots(one, take(manager, run))) == {
            "status",
            "step_results",
            "execution_path",
            "result",
        }

    def test_snapshots_are_taken_automatically(self, manager: SnapshotManager) -> None:
        """A class gets timed snapshots by one call of `with_snapshots`."""
        run = with_snapshots(Run, manager, 0.005)()
        run.store.get_state().result = "changed"
        until(lambda: (found := manager.get_latest_snapshot("run-123")) and found.result == "changed")
        run.destroy()


class TestQuickStart:
    """Quick Start"""

    def test_program_of_the_quick_start(self) -> None:
        """Create, export, import and restore work as in the original's first program."""
        manager = SnapshotManager(10)
        run = Run()
        text = manager.export_snapshot(take(manager, run))
        run.start("lost")
        done = manager.restore_from_snapshot(run.run_id, run.store.get_state(), manager.import_snapshot(text))
        assert done.not_restored == ()
        assert run.store.get_state().status is RunStatus.PENDING
        assert run.store.get_state().step_results == {}
        manager.close()

    def test_copy_of_the_state_is_refused(self, manager: SnapshotManager) -> None:
        """Unlike the original, a restore into the copy that `get_state()` returns raises an error."""

        class Copying(Holder):
            def get_state(self) -> Any:
                return dict(vars(self._state))

        store = Copying(RunStore())
        snapshot = manager.create_snapshot("run-123", store.get_state())
        assert snapshot is not None
        store._state.result = "changed"
        with pytest.raises(InvalidCall, match="is a copy"):
            manager.restore_from_snapshot("run-123", store.get_state(), snapshot)
        with pytest.raises(InvalidCall, match="is a copy"):
            SnapshotUtils.restore_from_snapshot("run-123", store.get_state(), snapshot, manager)
        with pytest.raises(InvalidCall, match="another object each time"):
            manager.restore_from_snapshot("run-123", store, snapshot)
        assert store._state.result == "changed"


class TestSnapshotManager:
    """SnapshotManager"""

    def test_default_is_ten_snapshots(self) -> None:
        """A manager without arguments keeps ten snapshots of a run, in memory."""
        with SnapshotManager() as manager:
            assert manager.max_snapshots == 10
            for number in range(13):
                manager.create_snapshot("r", {"n": number})
            assert len(manager.get_all_snapshots("r")) == 10

    def test_latest_and_all(self, manager: SnapshotManager) -> None:
        """The latest snapshot and all of them, oldest first, are returned; none for an unknown run."""
        run = Run()
        made = [take(manager, run), take(manager, run)]
        assert manager.get_all_snapshots(run.run_id) == made
        assert manager.get_latest_snapshot(run.run_id) == made[-1]
        assert manager.get_latest_snapshot("unknown") is None
        assert manager.get_all_snapshots("unknown") == []

    def test_clear(self, manager: SnapshotManager) -> None:
        """The snapshots of one run or of all runs are deleted."""
        for run_id in ("a", "b", "c"):
            manager.create_snapshot(run_id, {"n": 1})
        manager.clear_snapshots("a")
        assert manager.get_run_ids() == ["b", "c"]
        manager.clear_all_snapshots()
        assert manager.get_run_ids() == []

    def test_invalid_calls(self, manager: SnapshotManager) -> None:
        """A snapshot of a class, of nothing, of a version or run of Holdfast, or of an object without public fields is
        an error."""

        class Private:
            def __init__(self) -> None:
                self._hidden = 1

        with holdfast.open(":memory:") as hf:
            hf.history("w").commit({"n": 1})
            wrong: list[Any] = [None, 3, RunStore, Private(), object(), hf.history("w").head, hf.get("w"), hf]
            with SnapshotManager() as default:
                for store in wrong:
                    for each in (manager, default):
                        with pytest.raises(InvalidCall):
                            each.create_snapshot("run-123", store)
                assert manager.get_run_ids() == default.get_run_ids() == []

    def test_damaged_snapshot_is_left_out(self, file: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A damaged snapshot is left out and reported, and new ones are taken."""
        from database import Database

        with SnapshotManager(10, file) as manager:
            for number in range(4):
                manager.create_snapshot("r", {"n": number})
        with Database(file) as connection:
            connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number IN (2, 4)")
        connection.close()
        with SnapshotManager(10, file, strict=True) as manager:
            latest = manager.get_latest_snapshot("r")
            assert latest is not None
            assert latest.n == 2
            assert manager.create_snapshot("r", {"n": 9}) is not None
            assert [each.n for each in manager.get_all_snapshots("r")] == [0, 2, 9]
            assert list(manager.get_damaged_snapshots("r")) == [2, 4]
        assert "snapshot 4 of run 'r' is damaged" in caplog.text

    def test_damage_is_reported_by_a_manager_that_only_creates(
        self, file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A damaged snapshot is reported when the next one is taken, also if none was read."""
        from database import Database

        with SnapshotManager(10, file) as manager:
            for number in range(2):
                manager.create_snapshot("r", {"n": number})
        with Database(file) as connection:
            connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 2")
        with SnapshotManager(10, file) as manager:
            assert manager.create_snapshot("r", {"n": 9}) is not None
            assert "snapshot 2 of run 'r' is damaged" in caplog.text
            assert [each.n for each in manager.get_all_snapshots("r")] == [0, 9]


class TestSnapshotSchema:
    """Snapshot Schema"""

    def test_every_field_is_in_a_snapshot(self, manager: SnapshotManager) -> None:
        """A snapshot has every field of the original's schema, under Python's and the original's name."""
        run = Run()
        run.start({"deep": [1, {"a": 2}]})
        snapshot = take(manager, run)
        state = run.store.get_state()
        for camel, snake in (
            ("runId", "run_id"),
            ("workflowId", "workflow_id"),
            ("stepResults", "step_results"),
            ("executionPath", "execution_path"),
            ("suspendedPaths", "suspended_paths"),
            ("executionGraph", "execution_graph"),
            ("executionContext", "execution_context"),
            ("status", "status"),
            ("events", "events"),
            ("logs", "logs"),
            ("result", "result"),
            ("error", "error"),
        ):
            assert getattr(snapshot, camel) == getattr(snapshot, snake) == getattr(state, snake)
        assert snapshot.version == "1"
        assert snapshot.timestamp.tzinfo is UTC

    def test_own_field_called_version(self, manager: SnapshotManager) -> None:
        """A run's own field `version` is not hidden by the version of the format."""
        made = manager.create_snapshot("r", {"version": "2.3"})
        assert made is not None
        assert made.version == "2.3"

    def test_errors_survive(self, manager: SnapshotManager) -> None:
        """Unlike the original, an error in a step result survives export and import, with class, message and cause."""
        run = Run()
        try:
            raise ValueError("no answer") from TimeoutError("late")
        except ValueError as error:
            run.store.get_state().step_results["a"] = {"status": "failed", "error": error}
        text = manager.export_snapshot(take(manager, run))
        assert validate_snapshot(text)
        fresh = RunStore()
        manager.restore_from_snapshot("run-123", fresh, manager.import_snapshot(text))
        back = fresh.step_results["a"]["error"]
        assert (type(back), str(back)) == (ValueError, "no answer")
        assert (type(back.__cause__), str(back.__cause__)) == (TimeoutError, "late")

    def test_statuses_in_any_case(self) -> None:
        """The schema of the original's fields accepts its statuses in upper and lower case, and as enums."""
        with SnapshotManager(schema=RUN_SCHEMA, strict=True) as manager:
            store = RunStore()
            statuses: list[Any] = ["INITIAL", "running", "Resumed", "RUNNING", "Completed", RunStatus.FAILED]
            for status in statuses:
                store.status = status
                store.step_results = {"a": {"status": "RUNNING"}}
                made = manager.create_snapshot("run-123", store)
                assert made is not None
                assert made.status == str(status)
            store.status = "done"  # type: ignore[assignment]
            with pytest.raises(InvalidState, match="at status"):
                manager.create_snapshot("run-123", store)

    @pytest.mark.parametrize("kind", ["dataclass", "pydantic", "msgspec", "typed dict", "json"])
    def test_schema_may_be_a_type(self, kind: str) -> None:
        """A schema is a dataclass, a pydantic model, a msgspec struct, a TypedDict or a JSON Schema, for a manager and
        for a plain history."""

        @dataclasses.dataclass
        class Data:
            status: str
            counts: dict[str, int]

        class Model(pydantic.BaseModel):
            status: str
            counts: dict[str, int]

        class Struct(msgspec.Struct):
            status: str
            counts: dict[str, int]

        typed = TypedDict("typed", {"status": str, "counts": dict[str, int]})  # noqa: UP013 - in a function
        counts = {"type": "object", "additionalProperties": {"type": "integer"}}
        document = {"type": "object", "properties": {"status": {"type": "string"}, "counts": counts}}
        schema: Any = {
            "dataclass": Data,
            "pydantic": Model,
            "msgspec": Struct,
            "typed dict": typed,
            "json": document,
        }[kind]
        good, bad = {"status": "a", "counts": {"x": 1}}, {"status": "a", "counts": {"x": "one"}}
        with SnapshotManager(schema=schema, strict=True) as manager:
            snapshot = manager.create_snapshot("r", good)
            assert snapshot is not None
            with pytest.raises(InvalidState, match="counts"):
                manager.create_snapshot("r", bad)
            with SnapshotManager() as other:
                made = other.create_snapshot("r", bad)
                assert made is not None
                text = other.export_snapshot(made)
            with pytest.raises(InvalidState, match="counts"):
                manager.import_snapshot(text)
            into = {"status": "b"}
            with pytest.raises(InvalidState, match="counts"):
                manager.restore_from_snapshot("r", into, made)
            assert into == {"status": "b"}
        with holdfast.open(":memory:") as hf:
            history = hf.history("plain", schema=schema)
            history.commit(good)
            with pytest.raises(InvalidState, match="counts") as caught:
                history.commit(bad)
            assert str(caught.value.details["path"]).startswith("counts")
            with pytest.raises(InvalidState), history.edit() as state:
                state["counts"]["x"] = "two"
            assert history.head.state == good
            with pytest.raises(InvalidState):
                hf.import_snapshot(text, run_id="imported", schema=schema)
            for wrong in (3, "text", object()):
                with pytest.raises(InvalidCall):
                    hf.history("plain", schema=wrong)

    def test_invalid_state_does_not_break_the_run(self, caplog: pytest.LogCaptureFixture) -> None:
        """Unlike the original, a state that does not fit the schema is a warning, and the run continues."""
        with SnapshotManager(schema=RUN_SCHEMA) as manager:
            assert manager.create_snapshot("r", {"status": "running"}) is None
        assert "does not fit its schema" in caplog.text


class TestManualSnapshotCreation:
    """1. Manual Snapshot Creation"""

    def test_two_points_are_compared(self, manager: SnapshotManager) -> None:
        """Snapshots before and after some work show what changed."""
        run = Run()
        one = take(manager, run)
        run.start("output")
        found = SnapshotUtils.compare_snapshots(one, take(manager, run))
        assert found["status"] == {"from": "PENDING", "to": "COMPLETED"}

    def test_snapshot_does_not_change_with_the_run(self, manager: SnapshotManager) -> None:
        """A snapshot shares nothing with the run and cannot be changed."""
        run = Run()
        one = take(manager, run)
        run.start("output")
        assert one.step_results == {}
        with pytest.raises(TypeError):
            one.state["status"] = "x"


class TestAutomaticSnapshotCreation:
    """2. Automatic Snapshot Creation"""

    def test_interval_is_in_seconds(self, manager: SnapshotManager) -> None:
        """An interval that looks like the original's milliseconds is refused, with the number of seconds to give."""
        for interval in (5000, 1000, 30_000.0):
            with pytest.raises(InvalidCall, match="milliseconds"):
                with_snapshots(Run, manager, interval)
        for wrong in (float("inf"), 10**400, -1):
            with pytest.raises(InvalidCall, match="number of seconds"):
                with_snapshots(Run, manager, wrong)
        run = with_snapshots(Run, manager, timedelta(hours=1))()
        run.destroy()
        with pytest.raises(InvalidCall, match="milliseconds"):
            manager.get_all_snapshots("r", since=1_700_000_000_000)  # type: ignore[arg-type]

    def test_interval_zero_is_off(self, manager: SnapshotManager) -> None:
        """With the interval 0 there is no timer; the end of a block still takes a snapshot."""
        before = threading.active_count()
        with with_snapshots(Run, manager, 0)() as run:
            assert threading.active_count() == before
            run.store.get_state().result = 1
        assert manager.get_latest_snapshot("run-123") is not None

    def test_destroy_ends_the_timer(self, manager: SnapshotManager) -> None:
        """After `destroy` no timed snapshot is taken."""
        run = with_snapshots(Run, manager, 0.001)()
        until(lambda: manager.get_latest_snapshot("run-123"))
        run.destroy()
        count = len(manager.get_all_snapshots("run-123"))
        run.store.get_state().result = "late"
        other = with_snapshots(Run, manager, 0.001)("other")
        until(lambda: manager.get_latest_snapshot("other"))
        other.destroy()
        assert len(manager.get_all_snapshots("run-123")) == count

    def test_forgotten_run_is_collected(self, manager: SnapshotManager) -> None:
        """Unlike the original, a run that is never destroyed is collected, and its timer ends."""
        run = with_snapshots(Run, manager, 0.001)()
        until(lambda: manager.get_latest_snapshot("run-123"))
        gone = weakref.ref(run)
        del run

        def is_gone() -> bool:
            gc.collect()
            return gone() is None

        until(is_gone)
        until(lambda: not [each for each in threading.enumerate() if "autosave" in each.name])

    def test_many_runs_share_a_thread(self) -> None:
        """Unlike the original, the timers of 300 runs take one thread, and at most four more while they save."""
        with SnapshotManager() as manager:
            before = threading.active_count()
            kind = with_snapshots(Run, manager, 900)
            runs = [kind(f"run-{number}") for number in range(300)]
            assert threading.active_count() == before + 1
            quick = with_snapshots(Run, manager, 0.005)
            more = [quick(f"quick-{number}") for number in range(60)]
            until(lambda: len(manager.get_run_ids()) == 60)
            assert threading.active_count() <= before + 5
            for run in (*runs, *more):
                run.destroy()

    def test_slow_run_does_not_stop_the_others(self, manager: SnapshotManager) -> None:
        """A state that is slow to read does not stop the snapshots of other runs."""
        gate, reading = threading.Event(), threading.Event()

        class Slow:
            def __init__(self) -> None:
                self.run_id = "slow"

            def get_state(self) -> dict[str, int]:
                reading.set()
                assert gate.wait(60)
                return {"n": 1}

        slow = with_snapshots(Slow, manager, 0.001)()
        assert reading.wait(60)
        run = with_snapshots(Run, manager, 0.001)()
        until(lambda: manager.get_latest_snapshot("run-123"))
        assert manager.get_latest_snapshot("slow") is None
        gate.set()
        run.destroy()
        slow.destroy()

    def test_failing_timer_does_not_break_the_run(self, caplog: pytest.LogCaptureFixture) -> None:
        """Unlike the original, a state that cannot be read is logged once, and later snapshots are taken."""

        class Moody(Run):
            fails = True

            def get_state(self) -> dict[str, Any]:
                if self.fails:
                    raise RuntimeError("not yet")
                return {"n": 1}

            store = None  # type: ignore[assignment]

            def __init__(self) -> None:
                self.run_id = "moody"

        with SnapshotManager() as manager:
            run = with_snapshots(Moody, manager, 0.002)()
            until(lambda: "not yet" in caplog.text)
            run.fails = False
            until(lambda: manager.get_latest_snapshot("moody"))
            run.destroy()
        assert caplog.text.count("not yet") == 1


class TestErrorRecovery:
    """3. Error Recovery"""

    def test_last_good_state_is_restored(self, manager: SnapshotManager) -> None:
        """After an error the run gets its state of before the risky operation."""
        run = Run()
        take(manager, run)
        try:
            run.start("half")
            raise RuntimeError("risky")
        except RuntimeError:
            last = manager.get_latest_snapshot(run.run_id)
            assert last is not None
            manager.restore_from_snapshot(run.run_id, run.store.get_state(), last)
        assert run.store.get_state().step_results == {}

    def test_restore_is_all_or_nothing(self, manager: SnapshotManager) -> None:
        """Unlike the original, a restore that fails half-way leaves the run as it was."""

        class Choosy(RunStore):
            def __setattr__(self, name: str, value: Any) -> None:
                if name == "result" and value == "bad":
                    raise ValueError("no")
                object.__setattr__(self, name, value)

        run = Run()
        run.start("x")
        run.store.get_state().result = "bad"
        snapshot = take(manager, run)
        store = Choosy()
        was = dict(vars(store))
        with pytest.raises(InvalidSnapshot, match="is unchanged"):
            manager.restore_from_snapshot("run-123", store, snapshot)
        assert vars(store) == was

    def test_restore_by_a_setter_is_all_or_nothing(self, manager: SnapshotManager) -> None:
        """A store whose `set_state` fails half-way gets its state of before again."""

        class Setting(Holder):
            def set_state(self, fields: dict[str, Any]) -> None:
                for name, value in fields.items():
                    if value == "bad":
                        raise ValueError("no")
                    setattr(self._state, name, value)

        run = Run()
        run.start("x")
        run.store.get_state().result = "bad"
        snapshot = take(manager, run)
        store = Setting(RunStore())
        was = dict(vars(store.get_state()))
        with pytest.raises(InvalidSnapshot, match="is unchanged"):
            manager.restore_from_snapshot("run-123", store, snapshot)
        assert vars(store.get_state()) == was

    def test_what_cannot_be_restored_is_listed(self, manager: SnapshotManager) -> None:
        """Unlike the original, values that cannot be brought back are listed, and `strict` refuses them first."""

        class Unknown:
            def __init__(self) -> None:
                self.n = 1

        snapshot = manager.create_snapshot("r", {"a": 1, "b": [Unknown()], "call": print})
        assert snapshot is not None
        into: dict[str, Any] = {"a": 2}
        with pytest.raises(InvalidSnapshot, match="nothing was changed"):
            manager.restore_from_snapshot("r", into, snapshot, strict=True)
        assert into == {"a": 2}
        done = manager.restore_from_snapshot("r", into, snapshot)
        assert done.not_restored == ("b[0]", "call")


class TestPersistenceAndRecovery:
    """4. Persistence and Recovery"""

    def test_new_run_gets_the_stored_snapshot(self, manager: SnapshotManager) -> None:
        """The JSON of a snapshot, kept anywhere, restores a new run in another process."""
        run = Run()
        run.start("output")
        kept = json.dumps(
            {
                "runId": run.run_id,
                "snapshot": manager.export_snapshot(take(manager, run)),
                "createdAt": time.time(),
            }
        )
        fresh = Run()
        snapshot = SnapshotManager().import_snapshot(json.loads(kept)["snapshot"])
        assert manager.restore_from_snapshot("run-123", fresh.store.get_state(), snapshot, strict=True)
        assert vars(fresh.store.get_state()) == vars(run.store.get_state())

    def test_snapshots_survive_the_process(self, file: Path) -> None:
        """Unlike the original, a manager on a file has its snapshots after a restart without any export."""
        with SnapshotManager(10, file) as manager:
            take(manager, Run())
        with SnapshotManager(10, file) as manager:
            assert manager.get_latest_snapshot("run-123") is not None

    def test_json_of_the_original_can_be_imported(self, manager: SnapshotManager) -> None:
        """A snapshot that KaibanJS exported is validated, imported and restored."""
        text = json.dumps(kaiban_document())
        assert validate_snapshot(text)
        snapshot = manager.import_snapshot(text)
        assert (snapshot.run_id, snapshot.status) == ("run-123", "RUNNING")
        assert snapshot.timestamp == datetime.fromtimestamp(1_700_000_000.123, UTC)
        store = RunStore()
        manager.restore_from_snapshot("run-123", store, snapshot)
        assert store.suspended_paths == {"step2": [1, 0]}
        assert store.execution_context == {"user": "ada"}
        assert manager.import_snapshot(text, run_id="run-9").runId == "run-9"
        again = manager.import_snapshot(manager.export_snapshot(snapshot))
        assert again.step_results == snapshot.step_results

    def test_hostile_json_of_the_original_is_refused(self, manager: SnapshotManager) -> None:
        """A damaged document of KaibanJS is refused with all its problems."""
        for changes, problem in (
            ({"timestamp": 1_700_000_000}, "milliseconds"),
            ({"timestamp": "now"}, "timestamp is a str"),
            ({"timestamp": 1e300}, "milliseconds"),
            ({"runId": 3}, "runId is a int"),
            ({"stepResults": {"a": {"status": "done"}}}, "stepResults.a.status"),
            ({"stepResults": []}, "stepResults is a list"),
        ):
            document = kaiban_document(**changes)
            found = validate_snapshot(document)
            assert not found
            assert problem in found.problems[0]
            with pytest.raises(InvalidSnapshot):
                manager.import_snapshot(document)


class TestBatchOperations:
    """5. Batch Operations"""

    def test_many_runs(self, manager: SnapshotManager) -> None:
        """Snapshots of many runs are taken, exported, cleared and restored, each into its own run only."""
        runs = [Run(f"run-{number}") for number in range(5)]
        exported = {run.run_id: manager.export_snapshot(take(manager, run)) for run in runs}
        manager.clear_all_snapshots()
        for run in runs:
            run.start("lost")
            snapshot = manager.import_snapshot(exported[run.run_id])
            manager.restore_from_snapshot(run.run_id, run.store.get_state(), snapshot)
            assert run.store.get_state().result is None
        with pytest.raises(InvalidSnapshot, match="run_id"):
            manager.restore_from_snapshot("run-1", runs[1].store.get_state(), snapshot)


class TestSnapshotUtils:
    """SnapshotUtils"""

    def test_functions_have_both_names(self) -> None:
        """The four functions exist under the original's names and Python's."""
        manager = SnapshotManager()
        run = Run()
        snapshot = SnapshotUtils.createSnapshot(run.run_id, run.store.get_state(), manager)
        assert snapshot is not None
        run.start("x")
        after = SnapshotUtils.create_snapshot(run.run_id, run.store.get_state(), manager)
        assert after is not None
        SnapshotUtils.restoreFromSnapshot(run.run_id, run.store.get_state(), snapshot, manager)
        assert run.store.get_state().result is None
        assert SnapshotUtils.compareSnapshots(snapshot, after)["result"] == {
            "from": None,
            "to": "final result",
        }
        assert SnapshotUtils.validateSnapshot(snapshot)
        assert not SnapshotUtils.validate_snapshot({"runId": 1})
        manager.close()


class TestSnapshotComparison:
    """Snapshot Comparison"""

    def test_steps_are_compared_one_by_one(self, manager: SnapshotManager) -> None:
        """The comparison lists the steps that changed, each with its old and new result."""
        run = Run()
        run.store.get_state().step_results = {
            "step1": {"status": "running"},
            "step0": {"status": "completed"},
        }
        one = take(manager, run)
        run.start("result")
        found = compare_snapshots(one, take(manager, run), nested=True)
        assert found["status"] == {"from": "PENDING", "to": "COMPLETED"}
        assert found["step_results"] == {
            "step1": {"from": {"status": "running"}, "to": {"status": "completed", "output": "result"}}
        }

    def test_both_sides_are_always_there(self, manager: SnapshotManager) -> None:
        """Unlike the original, a missing side is written as None, so that it survives JSON."""
        run = Run()
        one = take(manager, run)
        run.start("x")
        found = SnapshotUtils.compare_snapshots(one, take(manager, run))
        assert json.loads(json.dumps(found["result"])) == {"from": None, "to": "final result"}
        assert found["step_results"]["step1"]["from"] is None


class TestSnapshotFrequency:
    """1. Snapshot Frequency"""

    def test_unchanged_run_takes_no_space(self, manager: SnapshotManager) -> None:
        """A timer takes no snapshot while nothing changes."""
        run = with_snapshots(Run, manager, 0.001)()
        other = with_snapshots(Run, manager, 0.001)("busy")
        until(lambda: manager.get_latest_snapshot("run-123"))
        for number in range(5):
            other.store.get_state().result = number
            until(
                lambda number=number: (  # type: ignore[misc]
                    (found := manager.get_latest_snapshot("busy")) and found.result == number
                )
            )
        run.destroy()
        other.destroy()
        assert len(manager.get_all_snapshots("run-123")) == 1


class TestStorageStrategy:
    """2. Storage Strategy"""

    def test_only_the_latest(self, manager: SnapshotManager, file: Path) -> None:
        """A manager that keeps one snapshot, in memory or in a file, has one."""
        with SnapshotManager(1, None) as one:
            for number in range(5):
                one.create_snapshot("r", {"n": number})
            assert [each.n for each in one.get_all_snapshots("r")] == [4]

    @pytest.mark.parametrize("opened_by", ["manager", "caller", "caller with a folder"])
    def test_disk_is_bounded(self, tmp_path: Path, opened_by: str) -> None:
        """Unlike the original, the size of all snapshots is bounded for large values: 140 of 1 MB, two of them kept,
        take less than 5 MB: file, write-ahead log and artifact folder."""
        path = tmp_path / "large.db"
        folder = tmp_path / "artifacts" if "folder" in opened_by else None
        hf = holdfast.open(path, durability="fast", artifacts=folder)
        manager = SnapshotManager(2, path if opened_by == "manager" else hf, strict=True)
        for number in range(140):
            manager.create_snapshot("r", {"n": number, "page": f"{number:06}" * 175_000})
        assert sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file()) < 5_000_000
        assert [each.n for each in manager.get_all_snapshots("r")] == [138, 139]
        assert hf.verify().ok
        manager.clear_all_snapshots()
        assert hf.stats().artifacts == 0
        manager.close()
        hf.close()

    def test_large_value_of_others_stays(self, file: Path) -> None:
        """A large value that another run holds, too, is not deleted with the snapshots."""
        page = "x" * 200_000
        with holdfast.open(file) as hf, SnapshotManager(1, hf) as manager:
            manager.create_snapshot("r", {"page": page})
            hf.history("mine").commit({"page": page})
            manager.create_snapshot("r", {"page": "small"})
            manager.clear_all_snapshots()
            assert hf.history("mine").head.state == {"page": page}
            assert hf.verify().ok


class TestErrorHandling:
    """3. Error Handling"""

    def test_failed_snapshot_is_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        """Unlike the original, a snapshot that fails needs no try: it returns None, logs a warning, and the run goes
        its way."""

        def state() -> dict[str, Any]:
            raise OSError("no space left")

        with SnapshotManager() as manager:
            assert manager.create_snapshot("r", state) is None
        assert "no space left" in caplog.text
        with SnapshotManager(strict=True) as manager, pytest.raises(OSError, match="no space"):
            manager.create_snapshot("r", state)


class TestPerformanceConsiderations:
    """4. Performance Considerations"""

    def test_creating_costs_no_more_than_two_copies(self, manager: SnapshotManager) -> None:
        """With 1,000 steps, a snapshot after each step takes less processor time than two deep copies of the state."""
        run = Run()
        state = run.store.get_state()
        for number in range(1000):
            output = {"text": f"result {number}", "score": number / 2, "tags": ["a", "b"]}
            state.step_results[f"step-{number}"] = {"status": "completed", "output": output}
            state.events.append({"type": "StepStatusUpdate", "payload": {"number": number}})
            state.logs.append({"type": "step", "description": f"step {number}"})
        take(manager, run)

        def cost(work: Callable[[], object]) -> float:
            before = time.thread_time()
            work()
            return time.thread_time() - before

        copies, snapshots = [], []
        for number in range(15):
            state.step_results[f"step-{number}"]["output"] = number
            copies.append(cost(lambda: copy.deepcopy(vars(state))))
            snapshots.append(cost(lambda: take(manager, run)))
        assert min(snapshots) < 2 * min(copies)

    def test_snapshots_share_what_did_not_change(self, file: Path) -> None:
        """A snapshot after a small change writes the change, not the state."""
        with SnapshotManager(10, file) as manager:
            run = Run()
            state = run.store.get_state()
            state.step_results = {
                f"step-{n}": {"status": "completed", "output": "x" * 50} for n in range(1000)
            }
            take(manager, run)
            first = manager.history(run.run_id).run_record().size
            state.step_results["step-7"]["status"] = "failed"
            take(manager, run)
            assert manager.history(run.run_id).run_record().size - first < first / 10

    def test_snapshots_are_compressed(self, file: Path) -> None:
        """Snapshots of large workflows are compressed without being asked to."""
        with SnapshotManager(10, file) as manager:
            run = Run()
            run.store.get_state().result = [f"a sentence that resembles number {n}" for n in range(5_000)]
            take(manager, run)
            text = json.dumps(run.store.get_state().result)
            assert manager.history(run.run_id).run_record().size < len(text) / 4

    def test_snapshots_from_asyncio(self, manager: SnapshotManager) -> None:
        """A snapshot can be taken in a thread, so that an event loop does not wait for the disk."""
        run = Run()
        made = asyncio.run(asyncio.to_thread(manager.create_snapshot, run.run_id, run.store.get_state()))
        assert made is not None


class TestValidation:
    """5. Validation"""

    def test_validate_before_use(self, manager: SnapshotManager) -> None:
        """A check of a snapshot, its JSON or anything else never raises, and names the problems."""
        snapshot = take(manager, Run())
        assert validate_snapshot(snapshot)
        wrong: list[Any] = [None, 3, "{", {}, [], {"runId": 1, "workflowId": 2, "timestamp": 3}, object()]
        for each in wrong:
            found = validate_snapshot(each)
            assert not found
            assert found.problems


class TestIntegrationWithExistingCode:
    """Integration with Existing Code"""

    def test_run_continues_after_a_snapshot(self, manager: SnapshotManager) -> None:
        """The run is used as before after a snapshot."""
        run = Run()
        take(manager, run)
        run.start("x")
        assert run.store.get_state().status is RunStatus.COMPLETED


class TestFromManualStateManagement:
    """From Manual State Management"""

    def test_snapshot_is_the_state(self, manager: SnapshotManager) -> None:
        """A snapshot can be read like the state that it was taken of."""
        run = Run()
        run.start("x")
        state = take(manager, run)
        assert (state.status, state.step_results["step1"]["output"]) == ("COMPLETED", "x")


class TestFromCustomRecoverySystems:
    """From Custom Recovery Systems"""

    def test_restore_replaces_setters(self, manager: SnapshotManager) -> None:
        """One restore sets every field that a recovery by hand would set one by one."""
        run = Run()
        run.start("x")
        text = manager.export_snapshot(take(manager, run))
        fresh = Run()
        done = manager.restore_from_snapshot(
            "run-123", fresh.store.get_state(), manager.import_snapshot(text)
        )
        assert set(done.fields) == set(vars(RunStore()))


class TestCommonIssues:
    """Common Issues"""

    def test_failed_validation_says_where(self, manager: SnapshotManager) -> None:
        """Unlike the original, which says only that a snapshot is invalid, the problem has its place."""
        document = json.loads(manager.export_snapshot(take(manager, Run())))
        for name, place in (("at", "at"), ("run", "run"), ("state", "checksum")):
            found = validate_snapshot({**document, name: 3})
            assert not found
            assert place in found.problems[0], found.problems
        found = validate_snapshot(kaiban_document(logs=[{"type": "status", "status": "done"}]))
        assert "logs[0].status" in found.problems[0]

    def test_ids_must_match(self, manager: SnapshotManager) -> None:
        """Unlike the original, a snapshot of another run or workflow is refused, and nothing is changed."""
        snapshot = take(manager, Run())
        for other in (Run("run-2"), Run("run-123", "other")):
            with pytest.raises(InvalidSnapshot):
                manager.restore_from_snapshot(other.run_id, other.store.get_state(), snapshot)
            assert other.store.get_state().workflow_id == other.workflow_id


class TestDebugMode:
    """Debug Mode"""

    def test_debug_logs_snapshots(self, manager: SnapshotManager, caplog: pytest.LogCaptureFixture) -> None:
        """With `debug`, each snapshot and each restore is logged."""
        caplog.set_level(logging.DEBUG, "holdfast")
        run = Run()
        take(manager, run)
        assert caplog.text == ""
        manager.debug = True
        snapshot = take(manager, run)
        manager.restore_from_snapshot(run.run_id, run.store.get_state(), snapshot)
        assert "snapshot 2 of run 'run-123': 12 fields" in caplog.text
        assert "restored from snapshot 2" in caplog.text
        assert list(snapshot.step_results) == []
        assert len(manager.export_snapshot(snapshot)) > 100
