"""Metadata of runs: what may be given, who keeps it, and how runs are found by it."""

from __future__ import annotations

import asyncio
import enum
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, InvalidCall, InvalidSnapshot

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place


@holdfast.step
def meta_step(number: int) -> int:
    return number


@holdfast.workflow(name="meta_flow")
def flow() -> int:
    return meta_step(1) + meta_step(2)


@holdfast.workflow(name="meta_child_flow")
def parent() -> int:
    return flow()


def _found(hf: Holdfast, **meta: Any) -> list[str]:
    listed = [run.id for run in hf.runs(meta=meta)]
    assert listed == [run.id for run in hf.iter_runs(meta=meta)]
    return listed


def test_runs_are_found_by_their_metadata(hf: Holdfast) -> None:
    hf.run(flow, run_id="a", meta={"customer": 7, "env": "test"})
    hf.run(flow, run_id="b", meta={"customer": 7, "env": "live"})
    hf.enqueue(flow, run_id="c", meta={"customer": 8})
    hf.history("d", meta={"customer": 7}).commit({"n": 1})
    hf.run(flow, run_id="e")
    assert _found(hf, customer=7) == ["d", "b", "a"]
    assert _found(hf, customer=7, env="test") == ["a"]
    assert _found(hf, customer=9) == _found(hf, customer=8, env="test") == []
    assert [run.id for run in hf.runs(meta={"customer": 7}, status="completed")] == ["b", "a"]
    assert [run.id for run in hf.runs(meta={"customer": 7}, limit=1, after="d")] == ["b"]
    assert len(hf.runs(meta={})) == 5
    assert hf.get("a").meta == {"customer": 7, "env": "test"}
    assert [run.meta for run in hf.runs(prefix="e")] == [{}]
    assert hf.get("c").summary.meta == {"customer": 8}
    assert hf.verify().ok


def test_an_asynchronous_run_has_metadata(hf: Holdfast) -> None:
    @holdfast.workflow(name="meta_async_flow")
    async def asynchronous() -> int:
        return 1

    asyncio.run(hf.arun(asynchronous, run_id="a", meta={"customer": 7}))
    assert _found(hf, customer=7) == ["a"]


def test_values_of_different_types_are_different(hf: Holdfast) -> None:
    values: list[Any] = [7, 7.0, "7", True, 1, 1.0, None, "None", "true", False, 0, -0.5]
    values += [(1 << 63) - 1, -(1 << 63)]
    for number, value in enumerate(values):
        hf.history(f"run-{number}", meta={"v": value}).commit({})
    for number, value in enumerate(values):
        assert _found(hf, v=value) == [f"run-{number}"]
        kept = hf.get(f"run-{number}").meta["v"]
        assert (type(kept), kept) == (type(value), value)


def test_subclasses_are_kept_as_plain_values(hf: Holdfast) -> None:
    class Level(enum.IntEnum):
        HIGH = 3

    class Env(enum.StrEnum):
        TEST = "test"

    hf.history("a", meta={"level": Level.HIGH, "env": Env.TEST, "zero": -0.0}).commit({})
    meta = hf.get("a").meta
    assert [type(value) for value in meta.values()] == [int, str, float]
    assert _found(hf, level=3, env="test", zero=0.0) == ["a"]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (["customer"], "a dict"),
        ("customer=7", "a dict"),
        ({7: 1}, "cannot be a name"),
        ({"": 1}, "cannot be a name"),
        ({" a": 1}, "cannot be a name"),
        ({"a=b": 1}, "cannot be a name"),
        ({"a\x1b": 1}, "cannot be a name"),
        ({"a\0": 1}, "cannot be a name"),
        ({"\ud800": 1}, "cannot be a name"),
        ({"n" * 65: 1}, "cannot be a name"),
        ({"a": [1]}, "is a str, an int"),
        ({"a": b"1"}, "is a str, an int"),
        ({"a": np.int64(7)}, "convert it"),
        ({"a": float("nan")}, "finite"),
        ({"a": float("inf")}, "finite"),
        ({"a": 1 << 63}, "64 bits"),
        ({"a": -(1 << 63) - 1}, "64 bits"),
        ({"a": "x" * 501}, "501 characters"),
        ({"a": "\ud800"}, "surrogate"),
        ({f"n{number}": 1 for number in range(17)}, "maximum is 16"),
        ({f"n{number}": "x" * 400 for number in range(6)}, "bytes"),
    ],
)
def test_metadata_that_cannot_be_kept_are_refused_before_anything_runs(
    meta: Any, message: str, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        for call in (
            lambda: hf.run(flow, run_id="a", meta=meta),
            lambda: hf.enqueue(flow, run_id="a", meta=meta),
            lambda: hf.history("a", meta=meta),
            lambda: hf.runs(meta=meta),
            lambda: hf.iter_runs(meta=meta),
        ):
            with pytest.raises(InvalidCall, match=message):
                call()
        assert hf.runs() == []


def test_hostile_texts_are_found_exactly(hf: Holdfast) -> None:
    texts = ["'; DROP TABLE run; --", "%", "_", "a\0b", "<script>", '"', "\\", "x" * 500, "ü" * 250, "", " "]
    for number, text in enumerate(texts):
        hf.history(f"run-{number}", meta={"text": text, "'\"%;ü": number}).commit({})
    for number, text in enumerate(texts):
        assert _found(hf, text=text) == [f"run-{number}"]
        assert _found(hf, **{"'\"%;ü": number}) == [f"run-{number}"]


def test_metadata_can_be_changed_at_any_time(hf: Holdfast) -> None:
    hf.run(flow, run_id="a", meta={"customer": 7, "env": "test"})
    run = hf.get("a")
    assert run.set_meta({"customer": 8, "owner": None}, remove=["env"], actor="ana") == {
        "customer": 8,
        "owner": None,
    }
    assert (run.meta, run.status) == ({"customer": 8, "owner": None}, "completed")
    assert _found(hf, customer=7) == _found(hf, env="test") == []
    assert _found(hf, customer=8, owner=None) == ["a"]
    changes = [event for event in run.events() if event.kind == "run.meta_changed"]
    assert [event.data for event in changes] == [
        {"set": {"customer": 8, "owner": None}, "removed": ["env"], "actor": "ana"}
    ]
    run.set_meta({"customer": 8}, remove=["unknown"])
    assert len([event for event in run.events() if event.kind == "run.meta_changed"]) == 1
    assert run.set_meta({"customer": 8.0}) == {"customer": 8.0, "owner": None}
    assert _found(hf, customer=8) == []
    assert run.set_meta(remove=["customer"]) == {"owner": None}
    assert run.set_meta({}, remove=["customer", "owner"]) == {}
    assert _found(hf, owner=None) == []
    assert hf.verify().ok


@pytest.mark.parametrize(
    ("changes", "remove"),
    [({"a": [1]}, []), ({"a": 1}, ["a"]), ({}, "customer"), ({}, [7]), (None, []), ({}, None)],
)
def test_wrong_changes_of_metadata_are_refused(hf: Holdfast, changes: Any, remove: Any) -> None:
    hf.history("a", meta={"customer": 7}).commit({})
    with pytest.raises(InvalidCall):
        hf.get("a").set_meta(changes, remove=remove)
    with pytest.raises(InvalidCall, match="maximum is 16"):
        hf.get("a").set_meta({f"n{number}": 1 for number in range(16)})
    assert hf.get("a").meta == {"customer": 7}


def test_concurrent_changes_of_metadata_are_all_kept(hf: Holdfast) -> None:
    hf.history("a").commit({})
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: hf.get("a").set_meta({f"n{number}": number}), range(12)))
    assert hf.get("a").meta == {f"n{number}": number for number in range(12)}
    assert _found(hf, n3=3, n9=9) == ["a"]
    assert hf.verify().ok


def test_a_run_may_change_its_own_metadata_while_it_executes(hf: Holdfast) -> None:
    @holdfast.workflow(name="meta_own_flow")
    def own() -> int:
        first = meta_step(1)
        hf.get("a").set_meta({"phase": "second"})
        return first + meta_step(2)

    hf.run(own, run_id="a", meta={"customer": 7})
    assert hf.get("a").meta == {"customer": 7, "phase": "second"}
    assert _found(hf, customer=7, phase="second") == ["a"]


def test_rollback_resume_and_manual_commits_keep_metadata(hf: Holdfast) -> None:
    hf.run(flow, run_id="a", meta={"customer": 7})
    hf.rollback("a", 2)
    assert hf.get("a").meta == {"customer": 7}
    log = hf.history("b", meta={"customer": 7})
    log.commit({"n": 1})
    log.commit({"n": 2})
    log.rollback(1)
    log.commit({"n": 3})
    assert hf.get("b").meta == {"customer": 7}
    # A run that exists keeps its own.
    hf.history("b", meta={"customer": 8}).commit({"n": 4})
    hf.run(flow, run_id="a", meta={"customer": 8}, if_exists="return")
    assert _found(hf, customer=7) == ["b", "a"]
    assert _found(hf, customer=8) == []


def test_forks_and_copies_have_the_metadata_and_children_do_not(hf: Holdfast, tmp_path: Path) -> None:
    hf.run(parent, run_id="a", meta={"customer": 7})
    hf.fork("a@1", "fork")
    hf.export_run("a", tmp_path / "a.bundle")
    hf.import_run(tmp_path / "a.bundle", run_id="copy")
    assert _found(hf, customer=7) == ["copy", "fork", "a"]
    assert hf.get("copy").meta == hf.get("fork").meta == {"customer": 7}
    assert hf.get(hf.get("a").children[0]).meta == {}
    hf.delete("fork")
    assert _found(hf, customer=7) == ["copy", "a"]
    assert hf.verify().ok


def test_secrets_in_metadata_are_redacted(place: str, tmp_path: Path) -> None:
    with holdfast.open(place, redact=["*password*"]) as hf:
        hf.history("a", meta={"password": "hunter2", "customer": 7}).commit({})
        hf.run(flow, run_id="b", meta={"db_password": "hunter2"})
        hf.get("a").set_meta({"password2": "hunter3"})
        assert hf.get("a").meta == {"password": "[redacted]", "customer": 7, "password2": "[redacted]"}
        assert hf.get("b").meta == {"db_password": "[redacted]"}
        assert _found(hf, password="hunter2") == []
        assert "hunter" not in str([event.data for event in hf.events()])
    with (
        holdfast.open(tmp_path / "open.db") as plain,
        holdfast.open(":memory:", redact=["*password*"]) as strict,
    ):
        plain.history("a", meta={"password": "hunter2"}).commit({})
        plain.export_run("a", tmp_path / "a.bundle")
        with pytest.raises(InvalidSnapshot, match="password"):
            strict.import_run(tmp_path / "a.bundle")
        assert strict.runs() == []
        assert strict.import_run(tmp_path / "a.bundle", secrets="keep").head_number == 1
