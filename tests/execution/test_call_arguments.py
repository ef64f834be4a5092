"""Arguments of runs and steps are stored with the version that records the call."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, NotStored, ReplayDiverged, Retention, UnsupportedValue, step, workflow

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place

_settings: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def settings() -> Iterator[dict[str, Any]]:
    _settings.clear()
    yield _settings
    _settings.clear()


@step
def args_search(query: Any, limit: int = 10, *more: Any, **options: Any) -> Any:
    if isinstance(query, list):
        query.append("changed by the step")
    return _settings.get("result", "found")


@step
def args_read(document: Any) -> int:
    return len(document)


@step
def args_client(client: Any, password: str, question: str = "") -> str:
    return "answer"


@step
def args_failing(url: str) -> None:
    raise ValueError("unreachable")


def _undo(result: Any) -> None: ...


@step(compensate=_undo)
def args_paid(amount: Any, client: Any = None) -> str:
    return "paid"


@step
def args_nested(name: str) -> int:
    tasks = holdfast.state()["tasks"]
    seen = args_read(tasks)
    holdfast.state()["tasks"].append(name)
    return seen


@workflow
def args_part(topic: str) -> str:
    return topic


@workflow
def args_flow(topic: str, *rest: Any, deep: bool = False) -> Any:
    calls = _settings.get("calls", [(args_search, (topic,), {})])
    for function, args, kwargs in calls:
        with suppress(ValueError):
            function(*args, **kwargs)
    if _settings.get("fails"):
        raise RuntimeError("stopped")
    return "done"


def _run(hf: Holdfast, *calls: tuple[Any, tuple[Any, ...], dict[str, Any]], **settings: Any) -> holdfast.Run:
    _settings.update(calls=list(calls), **settings)
    run = hf.run(args_flow, "kelp", run_id="r", raises=False)
    assert run.status == ("failed" if _settings.get("fails") else "completed")
    return run


def _arguments(hf: Holdfast, number: int) -> dict[str, Any] | None:
    found = hf.version(f"r@{number}").arguments
    return None if found is None else dict(found)


def test_arguments_are_shown_by_parameter(hf: Holdfast) -> None:
    hf.run(args_flow, "kelp", 1, 2, deep=True, run_id="r")
    assert _arguments(hf, 1) == {"topic": "kelp", "*rest": [1, 2], "deep": True}
    assert _arguments(hf, 2) == {"query": "kelp"}
    assert _arguments(hf, 3) is None


def test_arguments_of_every_form_are_stored(hf: Holdfast) -> None:
    _run(
        hf,
        (args_search, ("q", 3, "x", 2**80, None), {"site": "b", "a": {"deep": (1, {"k"})}}),
        (args_search, (), {"query": b"\x00", "limit": -1}),
        (args_search, ("\ud800" * 600,), {}),
        (args_read, ({"a": {1, 2}},), {}),
    )
    expected = {"query": "q", "limit": 3, "*more": ["x", 2**80, None], "site": "b", "a": {"deep": (1, {"k"})}}
    assert _arguments(hf, 2) == expected
    assert _arguments(hf, 3) == {"query": b"\x00", "limit": -1}
    assert _arguments(hf, 4) == {"query": "\ud800" * 600}
    assert _arguments(hf, 5) == {"document": {"a": {1, 2}}}
    assert hf.verify().ok


def test_arguments_are_recorded_as_they_were_at_the_call(hf: Holdfast) -> None:
    texts = ["x"]
    _run(hf, (args_search, (texts,), {}))
    assert texts == ["x", "changed by the step"]
    assert _arguments(hf, 2) == {"query": ["x"]}


def test_arguments_that_cannot_be_stored_show_their_type(hf: Holdfast) -> None:
    _run(hf, (args_client, (threading.Lock(), "p"), {"question": "why?"}))
    assert _arguments(hf, 2) == {"client": NotStored("_thread.lock"), "password": "p", "question": "why?"}


def test_arguments_of_a_step_with_a_compensation_must_be_storable(hf: Holdfast) -> None:
    _settings["calls"] = [(args_paid, (3,), {"client": threading.Lock()})]
    run = hf.run(args_flow, "kelp", run_id="r", raises=False)
    assert isinstance(run.error, UnsupportedValue)
    assert run.head.number == 1


def test_arguments_of_a_handled_failure_are_stored(hf: Holdfast) -> None:
    _run(hf, (args_failing, ("https://a",), {}), (args_read, ("abc",), {}))
    failed = hf.version("r@2")
    assert (failed.step, failed.error["type"], dict(failed.arguments or {})) == (
        "args_failing", "ValueError", {"url": "https://a"},
    )  # fmt: skip


def test_arguments_of_a_child_run_are_stored_in_both_runs(hf: Holdfast) -> None:
    _run(hf, (args_part, ("forests",), {}))
    assert _arguments(hf, 2) == {"topic": "forests"}
    child = hf.get("r").children[0]
    assert dict(hf.version(f"{child}@1").arguments or {}) == {"topic": "forests"}


def test_arguments_with_names_of_secrets_are_redacted(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "r.db", redact=["*password*", "limit", "more"]) as engine:
        nested = {"password": "s1", "user": "ann", "text": "y" * 2000}
        _run(
            engine,
            (args_client, ("c", "s2"), {"question": "s"}),
            (args_client, (), {"client": nested, "password": "s3"}),
            (args_search, ("q", "s4", "s5", "s6"), {"password2": "s7"}),
        )
        hidden = "[redacted]"
        assert _arguments(engine, 2) == {"client": "c", "password": hidden, "question": "s"}
        assert _arguments(engine, 3) == {"client": {**nested, "password": hidden}, "password": hidden}
        assert _arguments(engine, 4) == {
            "query": "q", "limit": hidden, "*more": [hidden, hidden], "password2": hidden,
        }  # fmt: skip


def test_draft_passed_as_argument_stays_usable(hf: Holdfast) -> None:
    _settings["calls"] = [(args_nested, ("b",), {})]
    hf.run(args_flow, "kelp", run_id="r", state={"tasks": ["a"]})
    assert _arguments(hf, 2) == {"document": ["a"]}
    assert hf.version("r").state == {"tasks": ["a", "b"]}


@pytest.mark.parametrize("form", ["text", "bytes", "messages", "own result", "copies"])
def test_document_passed_between_steps_is_stored_once(hf: Holdfast, form: str) -> None:
    noise = os.urandom(20_000).hex()
    document: Any = {
        "text": noise,
        "bytes": os.urandom(40_000),
        "own result": {"pages": [noise[start : start + 400] for start in range(0, 40_000, 400)]},
    }.get(form, [{"role": "user", "content": noise[start : start + 400]} for start in range(0, 40_000, 400)])
    calls: list[Any] = [(args_search, ("q",), {})] if form == "own result" else []
    calls += [(args_read, (list(document) if form == "copies" else document,), {}) for _ in range(10)]
    run = _run(hf, *calls, result=document)
    sizes = [version.size for version in reversed(run.history().versions())]
    assert sizes[1] > 18_000
    assert all(size < 500 for size in sizes[2:-1]), sizes
    for number in range(3, 11):
        assert _arguments(hf, number) == {"document": document}
    assert hf.verify().ok


def test_growing_list_argument_stores_only_new_items(hf: Holdfast) -> None:
    messages = [{"role": "user", "content": os.urandom(100).hex()} for _ in range(200)]
    calls: list[Any] = [(args_read, (messages[: 150 + number],), {}) for number in range(20)]
    run = _run(hf, *calls)
    sizes = [version.size for version in reversed(run.history().versions())]
    assert sum(sizes[2:-1]) < sizes[1], sizes
    assert _arguments(hf, 21) == {"document": messages[:169]}


def test_large_argument_is_one_artifact(hf: Holdfast) -> None:
    document = os.urandom(250_000).hex()
    _run(hf, *((args_read, (document,), {}) for _ in range(5)))
    assert len(hf.artifacts()) == 1
    assert _arguments(hf, 6) == {"document": document}


def test_arguments_are_pruned_with_their_version(hf: Holdfast) -> None:
    document = os.urandom(5_000).hex()
    large = os.urandom(100_000)
    run = _run(hf, (args_read, (large,), {}), (args_read, (document,), {}), (args_read, (document,), {}))
    run.history().prune(Retention(last=2))
    hf.gc(grace=0)
    assert hf.artifacts() == []
    # Stored with version 3, which is gone.
    assert _arguments(hf, 4) == {"document": document}
    assert hf.verify().ok


def test_arguments_survive_a_bundle_and_a_fork(hf: Holdfast, tmp_path: Path) -> None:
    document = os.urandom(5_000).hex()
    _run(hf, (args_read, (document,), {}), (args_read, (document,), {}))
    hf.export_run("r", tmp_path / "r.holdfast")
    with holdfast.open(":memory:") as other:
        other.import_run(tmp_path / "r.holdfast")
        assert dict(other.version("r@3").arguments or {}) == {"document": document}
    hf.fork("r@3", "fork")
    _settings["calls"] = [*_settings["calls"], (args_read, (document,), {})]
    assert hf.resume("fork").status == "completed"
    forked = hf.version("fork~1")
    assert dict(forked.arguments or {}) == {"document": document}
    hf.delete("r")
    assert dict(hf.version("fork~1").arguments or {}) == {"document": document}
    assert hf.verify().ok


@pytest.mark.parametrize(
    ("old", "new", "recorded", "now"),
    [
        ((("q",), {}), (("p",), {}), {"query": "'q'"}, {"query": "'p'"}),
        ((("q",), {}), (("q", 3), {}), {"limit": "not given"}, {"limit": "3"}),
        ((("q",), {"a": 1}), (("q",), {}), {"a": "1"}, {"a": "not given"}),
        (
            (({"m": [{"content": "x" * 3000}]},), {}),
            (({"m": [{"content": "x" * 2999 + "y"}]},), {}),
            {"query.m[0].content": "…'xxxxxxxxxxxxxxxxxxxxx'"},
            {"query.m[0].content": "…'xxxxxxxxxxxxxxxxxxxxy'"},
        ),
        ((({1, 2},), {}), (({1, 3},), {}), {"query": "{1, 2}"}, {"query": "{1, 3}"}),
    ],
)
def test_divergence_names_the_argument_that_differs(
    hf: Holdfast, old: Any, new: Any, recorded: Any, now: Any
) -> None:
    _run(hf, (args_search, *old), fails=True)
    _settings["calls"] = [(args_search, *new)]
    with pytest.raises(ReplayDiverged) as caught:
        hf.resume("r")
    error = caught.value
    assert error.details["recorded"] == recorded
    assert error.details["now"] == now
    for where, was in recorded.items():
        assert f"{where} was {was}, is {now[where]}" in str(error)
    assert len(str(error)) < 1000


def test_divergence_in_a_secret_does_not_show_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "r.db", redact=["password"]) as engine:
        _run(engine, (args_client, ("c", "secret-1"), {}), fails=True)
        _settings["calls"] = [(args_client, ("c", "secret-2"), {})]
        with pytest.raises(ReplayDiverged, match="redacted") as caught:
            engine.resume("r")
        assert "secret" not in str(caught.value)
