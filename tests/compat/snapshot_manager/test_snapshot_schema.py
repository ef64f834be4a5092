"""Schemas of snapshots and histories: registered classes, values that JSON has no type for, rollbacks, KaibanJS."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import enum
import uuid
from collections import Counter, deque
from decimal import Decimal
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast
from holdfast import InvalidSnapshot, InvalidState
from holdfast.snapshots import RUN_SCHEMA, SnapshotManager, validate_snapshot


@holdfast.register
class State(enum.Enum):
    RUNNING = "running"


@holdfast.register
@dataclasses.dataclass
class DataStep:
    status: State = State.RUNNING
    at: dt.datetime | None = None


@holdfast.register
class ModelStep(pydantic.BaseModel):
    status: str = "running"


@holdfast.register
class StructStep(msgspec.Struct):
    status: str = "running"


class PlainModel(pydantic.BaseModel):
    status: str = "running"


@dataclasses.dataclass
class Shape:
    steps: dict[str, PlainModel]
    counts: Counter[str]
    space: SimpleNamespace


RUN = {"run_id": "r", "workflow_id": "w", "status": "running", "step_results": {}}


def test_registered_classes_fit_a_json_schema() -> None:
    with SnapshotManager(schema=RUN_SCHEMA, strict=True) as manager:
        for step in (DataStep(), ModelStep(), StructStep()):
            made = manager.create_snapshot("r", {**RUN, "step_results": {"a": step}})
            assert made is not None
            assert made.step_results["a"] == step
        assert manager.create_snapshot("r", {**RUN, "status": State.RUNNING}) is not None
        with pytest.raises(InvalidState, match=r"step_results\.a\.status"):
            manager.create_snapshot("r", {**RUN, "step_results": {"a": ModelStep(status="lost")}})


def test_json_schema_sees_values_as_json_shows_them() -> None:
    text = {"type": "string"}
    array = {"type": "array"}
    schema = {
        "type": "object",
        "properties": {
            "at": text,
            "day": text,
            "id": text,
            "path": text,
            "tags": array,
            "last": array,
            "pair": array,
            "cost": {"type": "number"},
        },
    }
    values = {
        "at": dt.datetime.now(dt.UTC),
        "day": dt.date(2026, 1, 1),
        "id": uuid.uuid4(),
        "path": PurePosixPath("a/b"),
        "tags": {1},
        "last": deque([1]),
        "pair": (1, 2),
        "cost": Decimal("1.5"),
    }
    with holdfast.open(":memory:") as hf:
        history = hf.history("h", schema=schema)
        assert history.commit(values).state == values
        for name in values:
            with pytest.raises(InvalidState, match=f"at {name}"):
                history.commit({**values, name: None})


def test_types_may_contain_models_and_subclasses_of_containers() -> None:
    with SnapshotManager(schema=Shape, strict=True) as manager:
        fields: dict[str, Any] = {
            "steps": {"a": PlainModel()},
            "counts": Counter("aab"),
            "space": SimpleNamespace(n=1),
        }
        made = manager.create_snapshot("r", fields)
        assert made is not None
        assert manager.import_snapshot(manager.export_snapshot(made)) == made
        for name, wrong in (("steps", {"a": 1}), ("counts", [1]), ("space", {"n": 1})):
            with pytest.raises(InvalidState, match=f"at {name}"):
                manager.create_snapshot("r", {**fields, name: wrong})


def test_rollback_to_a_state_that_does_not_fit_is_refused() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    with holdfast.open(":memory:") as hf:
        plain = hf.history("h")
        plain.commit({"n": "one"})
        plain.commit({"n": 2})
        history = hf.history("h", schema=schema)
        with pytest.raises(InvalidState, match="at n"):
            history.rollback(to=1)
        assert history.head.number == 2
        plain.rollback(to=1)
        history.rollback(to=2)
        assert history.head.state == {"n": 2}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"status": "running\n"}, "status"),
        ({"events": [1]}, r"events\[0\]"),
        ({"execution_graph": ["a"]}, r"execution_graph\[0\]"),
        ({"logs": [{"type": "other"}]}, r"logs\[0\]\.type"),
        ({"logs": [{"type": "step", "stepStatus": "lost"}]}, r"logs\[0\]\.stepStatus"),
        ({"step_results": {"a": {"status": "failed", "suspendedPath": ["x"]}}}, "step_results"),
    ],
)
def test_run_schema_checks_nested_fields(changes: dict[str, Any], place: str) -> None:
    with (
        SnapshotManager(schema=RUN_SCHEMA, strict=True) as manager,
        pytest.raises(InvalidState, match=f"at {place}"),
    ):
        manager.create_snapshot("r", {**RUN, **changes})


def kaiban_document() -> dict[str, Any]:
    return {
        "version": "1.0.0",
        "timestamp": 1_700_000_000_123,
        "runId": "run-1",
        "workflowId": "w",
        "status": "INITIAL",
        "stepResults": {"a": {"status": "failed"}},
        "executionPath": [],
        "suspendedPaths": {},
        "events": [],
        "executionGraph": [],
        "logs": [],
        "executionContext": {},
    }


def test_each_status_of_kaiban_fits() -> None:
    with SnapshotManager(schema=RUN_SCHEMA, strict=True) as manager:
        for status in ("INITIAL", "RUNNING", "PAUSED", "RESUMED", "COMPLETED", "FAILED", "SUSPENDED"):
            document = {**kaiban_document(), "status": status}
            assert validate_snapshot(document)
            assert manager.import_snapshot(document).status == status


def test_validation_and_import_of_kaiban_documents_agree() -> None:
    with SnapshotManager() as manager:
        for name, value, problem in (
            ("runId", "../x", "looks like a path"),
            ("runId", "", "empty"),
            ("status", "lost", "status is 'lost'"),
            ("stepResults", {"a": 1}, "stepResults.a is a int"),
            ("executionPath", ["x"], "executionPath[0] is a str"),
            ("suspendedPaths", {"a": 3}, "suspendedPaths.a is a int"),
            ("events", [1], "events[0] is a int"),
            ("executionGraph", [None], "executionGraph[0] is a NoneType"),
            ("logs", [{"type": "other"}], "logs[0].type is 'other'"),
            ("logs", [{"type": "step", "stepStatus": "lost"}], "logs[0].stepStatus is 'lost'"),
            ("run_id", "other", None),
        ):
            document = {**copy.deepcopy(kaiban_document()), name: value}
            found = validate_snapshot(document)
            if problem is None:
                assert found
                assert manager.import_snapshot(document).state["run_id"] == "run-1"
                continue
            assert not found
            assert problem in found.problems[0]
            with pytest.raises(holdfast.HoldfastError):
                manager.import_snapshot(document)


def test_document_with_the_fields_of_another_run_is_refused() -> None:
    with SnapshotManager(strict=True) as manager:
        for one, other in ((uuid.uuid4(), uuid.uuid4()), (3, 4), ("a", "b")):
            made = manager.create_snapshot(str(one), {"run_id": one})
            assert made is not None
            text = manager.export_snapshot(made)
            moved = manager.import_snapshot(text, run_id=str(other))
            assert moved.state["run_id"] == other
        document = {**kaiban_document(), "run_id": "x"}
        del document["runId"]
        with pytest.raises(InvalidSnapshot):
            manager.import_snapshot(document)


@pytest.mark.parametrize("name", ["runId", "timestamp", "stepResults", "logs"])
def test_missing_field_of_a_kaiban_document_is_named(name: str) -> None:
    document = kaiban_document()
    del document[name]
    assert validate_snapshot(document).problems == (f"{name} is missing",)
    with SnapshotManager() as manager, pytest.raises(InvalidSnapshot, match=f"{name} is missing"):
        manager.import_snapshot(document)


class Aliased(pydantic.BaseModel):
    run_id: str = pydantic.Field(alias="runId")
    steps: list[AliasedStep] = pydantic.Field(alias="stepList")


class AliasedStep(pydantic.BaseModel):
    step_id: int = pydantic.Field(alias="stepId")


def test_model_with_aliases_checks_fields_by_their_names() -> None:
    run = Aliased.model_validate({"runId": "r", "stepList": [{"stepId": 3}]})
    with SnapshotManager(schema=Aliased, strict=True) as manager:
        assert manager.create_snapshot("r", run) is not None
        assert manager.create_snapshot("r", {"runId": "r", "stepList": [{"stepId": 3}]}) is not None
        run.steps[0].step_id = "x"  # type: ignore[assignment]
        with pytest.raises(InvalidState, match="valid integer"):
            manager.create_snapshot("r", run)
    with holdfast.open(":memory:") as hf, pytest.raises(InvalidState):
        hf.history("r", schema=Aliased).commit({"run_id": 3, "steps": []})
