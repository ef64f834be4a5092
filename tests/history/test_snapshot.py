"""Snapshots: a version as a JSON document, exported, validated and imported."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AlreadyExists, History, Holdfast, InvalidSnapshot, NotFound, thaw

STATE = {
    "messages": [{"role": "user", "content": "héllo \ud800"}],
    "tuple": (1, True, 1.0, -0.0),
    "big": 1 << 90,
    "bytes": b"\0\xff",
    "set": {1, "a"},
    "when": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),
    "price": Decimal("1.10"),
    "$holdfast": "tuple",
    1: "an int key",
    (1, 2): None,
    "inf": [math.inf, -math.inf],
}


@pytest.fixture
def document(log: History) -> dict[str, Any]:
    log.commit({"n": 1})
    log.commit(
        STATE,
        step="plan",
        result={"ok": (1, 2)},
        tags=["good"],
        note="as agreed",
        actor="Ada",
        annotations={"cost": Decimal("0.5")},
        error=ValueError("x"),
        status="failed",
    )
    exported: dict[str, Any] = json.loads(json.dumps(log.export()))
    return exported


def resealed(hf: Holdfast, document: dict[str, Any]) -> dict[str, Any]:
    """The document with a sum that fits, as one who tampers would write it."""
    from holdfast.history.snapshot import _sum

    return {**document, "sum": _sum(document)}


def test_snapshot_has_the_fields_of_the_version(document: dict[str, Any]) -> None:
    facts = {name: document[name] for name in ("format", "number", "run", "version", "parent", "timeline")}
    assert facts == {
        "format": "holdfast.snapshot",
        "number": 1,
        "run": "run-1",
        "version": 2,
        "parent": 1,
        "timeline": 1,
    }
    assert (document["kind"], document["status"], document["step"]) == ("step", "failed", "plan")
    assert (document["tags"], document["note"], document["actor"]) == (["good"], "as agreed", "Ada")
    assert dt.datetime.fromisoformat(document["at"]) == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)


def test_snapshot_shows_json_values_unchanged(hf: Holdfast) -> None:
    log = hf.history("simple")
    log.commit({"messages": [{"role": "user", "content": "hello"}], "n": 1, "ok": None})
    assert log.export()["state"] == {"messages": [{"role": "user", "content": "hello"}], "n": 1, "ok": None}


@pytest.mark.parametrize("form", [lambda doc: doc, json.dumps, lambda doc: json.dumps(doc).encode()])
def test_snapshot_is_imported_exactly(
    hf: Holdfast, log: History, document: dict[str, Any], form: Callable[[Any], Any]
) -> None:
    made = hf.import_snapshot(form(document), run_id="copy")
    assert (made.run, made.number, made.parent, made.kind) == ("copy", 1, None, "import")
    assert (made.step, made.status, made.note, made.actor) == ("plan", "failed", "as agreed", "Ada")
    assert made.tags == ("good",)
    assert not hf.diff(log.head, made), "state, result, status, tags and meta are the same"
    assert repr(thaw(made.state)["tuple"]) == "(1, True, 1.0, -0.0)"
    assert repr(made.error) == "ValueError('x')"


def test_snapshot_can_be_imported_into_another_store(file: Path, document: dict[str, Any]) -> None:
    with holdfast.open(file.with_name("other.db")) as other:
        assert other.import_snapshot(document).run == "run-1"
        assert thaw(other.history("run-1").head.state) == STATE
        assert other.verify().ok


def test_import_of_a_snapshot_never_overwrites(hf: Holdfast, log: History, document: dict[str, Any]) -> None:
    before = log.head.number
    with pytest.raises(AlreadyExists, match="run_id"):
        hf.import_snapshot(document)
    assert log.head.number == before


def test_snapshot_without_its_origin_can_be_imported(hf: Holdfast, document: dict[str, Any]) -> None:
    hf.delete("run-1")
    assert hf.import_snapshot(document).number == 1


def test_snapshot_with_an_unregistered_type_is_imported_as_opaque(
    hf: Holdfast, document: dict[str, Any]
) -> None:
    stranger = {"$holdfast": "registered", "tag": "elsewhere.Thing", "value": {"x": [1]}}
    document["state"] = {"thing": stranger}
    made = hf.import_snapshot(resealed(hf, document), run_id="copy")
    thing = made.state["thing"]
    assert type(thing) is holdfast.Opaque
    assert thing.tag == "elsewhere.Thing"
    log = hf.history("copy")
    with log.edit() as state:
        state["n"] = 1
        state["again"] = state["thing"]
    exported = json.loads(json.dumps(log.export()))["state"]
    assert exported == {"thing": stranger, "n": 1, "again": stranger}


def test_snapshot_names_artifacts_without_content(hf: Holdfast, file: Path) -> None:
    log = hf.history("files")
    log.commit({"file": holdfast.artifact(b"content")})
    document = json.loads(json.dumps(log.export()))
    assert hf.import_snapshot(document, run_id="copy").state["file"].read() == b"content"
    with holdfast.open(file.with_name("other.db")) as other:
        with pytest.raises(NotFound, match="artifact"):
            other.import_snapshot(document)
        assert other.runs() == []


# What is refused


def changed(**facts: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda document: {**document, **facts}


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda document: {key: value for key, value in document.items() if key != name}


def deep(levels: int) -> Any:
    nested: Any = []
    for _ in range(levels):
        nested = [nested]
    return nested


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no object": (lambda document: [document], "object"),
    "nothing": (lambda document: None, "object"),
    "empty": (lambda document: {}, "format"),
    "another format": (changed(format="langgraph"), "format"),
    "a newer format": (changed(number=2), "newer"),
    "format 0": (changed(number=0), "number"),
    "format as text": (changed(number="1"), "number"),
    "no run": (without("run"), "run is missing"),
    "no state": (without("state"), "state is missing"),
    "no sum": (without("sum"), "sum is missing"),
    "an unknown field": (changed(admin=True), "admin"),
    "a hostile id": (changed(run="../../etc/passwd"), "run id"),
    "an id with NUL": (changed(run="a\0b"), "run id"),
    "a long id": (changed(run="x" * 10_000), "10000 characters"),
    "an id that is none": (changed(run=5), "run is"),
    "version 0": (changed(version=0), "version"),
    "version as text": (changed(version="2"), "version"),
    "version true": (changed(version=True), "version"),
    "a parent after it": (changed(parent=9), "parent"),
    "an unknown kind": (changed(kind="miracle"), "kind"),
    "an unknown status": (changed(status="sleeping"), "status"),
    "no time": (changed(at="yesterday"), "time"),
    "tags as text": (changed(tags="good"), "tags"),
    "a tag that is none": (changed(tags=["head"]), "tag"),
    "a tag of another type": (changed(tags=[5]), "tag"),
    "a long step": (changed(step="x" * 501), "step"),
    "a step with a surrogate": (changed(step="\ud800"), "step"),
    "a long note": (changed(note="x" * 100_001), "note"),
    "an actor that cannot be shown": (changed(actor="\ud800"), "actor"),
    "an unknown mark": (changed(state={"$holdfast": "pickle", "value": "x"}), "state"),
    "a mark without parts": (changed(state={"$holdfast": "tuple"}), "state"),
    "parts of another type": (changed(result={"$holdfast": "decimal", "value": 5}), "result"),
    "a number that is none": (changed(meta={"$holdfast": "decimal", "value": "one"}), "meta"),
    "too deep": (changed(error=deep(900)), "error"),
}


def test_invalid_document_is_refused_with_its_problems(hf: Holdfast, document: dict[str, Any]) -> None:
    for name, (change, reason) in WRONG.items():
        wrong = change(copy.deepcopy(document))
        if isinstance(wrong, dict) and name != "no sum":
            wrong = resealed(hf, wrong)
        found = holdfast.validate(wrong)
        assert not found
        assert any(reason in problem for problem in found.problems), found.problems
        assert all(len(problem) < 400 for problem in found.problems)
        with pytest.raises(InvalidSnapshot, match="cannot be imported"):
            hf.import_snapshot(wrong, run_id="copy")
        assert [run.id for run in hf.runs()] == ["run-1"]


def test_validate_names_all_problems(hf: Holdfast, document: dict[str, Any]) -> None:
    found = holdfast.validate({**document, "kind": "x", "status": "y", "version": 0})
    assert len(found.problems) >= 3


@pytest.mark.parametrize("name", ["state", "result", "step", "version", "note", "sum"])
def test_validate_detects_a_changed_document_by_its_checksum(
    hf: Holdfast, document: dict[str, Any], name: str
) -> None:
    document[name] = {"state": {}, "result": 1, "step": "other", "version": 3, "note": "", "sum": "00"}[name]
    found = holdfast.validate(document)
    assert found.problems == ("the checksum does not match: the document was changed or truncated",)


class Hostile(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise RuntimeError("no")


@dataclasses.dataclass
class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


INVALID: list[Any] = [
    "",
    "{",
    "[" * 100_000,
    "{" * 100_000,
    '{"format":' * 100_000,
    "1" * 10_000,
    b"\xff\xfe",
    b"",
    5,
    object(),
    Hostile(),
    Unreadable(),
    {1: 2},
    {"format": Unreadable()},
    {"format": "holdfast.snapshot", "number": Unreadable()},
    {"format": "holdfast.snapshot", "number": 10**5000},
    {"format": "holdfast.snapshot", "number": 1, Unreadable: 1},
    deep(100_000),
    {"format": deep(100_000)},
    math.nan,
]


def test_validate_never_raises(hf: Holdfast) -> None:
    for thing in INVALID:
        found = holdfast.validate(thing)
        assert not found
        assert found.problems
        with pytest.raises(InvalidSnapshot):
            hf.import_snapshot(thing)


PARTS: list[Any] = ["state", "result", "meta", "error", "tags", "format", "sum"]


@pytest.mark.slow
def test_validate_never_raises_however_deep_a_part_is(document: dict[str, Any]) -> None:
    for name in PARTS:
        assert not holdfast.validate({**document, name: deep(100_000)})


def test_snapshot_truncated_anywhere_is_refused(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    for end in range(0, len(text) - 1, 7):
        assert not holdfast.validate(text[:end])
    assert holdfast.validate(text)


def test_snapshot_has_the_word_for_a_status_that_earlier_releases_read(hf: Holdfast, log: History) -> None:
    document = log.commit({"n": 1}, status="stalled").history.export()
    assert document["status"] == "frozen"
    assert hf.import_snapshot(document, run_id="copy").status == "stalled"
