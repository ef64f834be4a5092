"""Invalid arguments: a typed error that names the problem, nothing written, the store stays usable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import holdfast
from holdfast import (
    FrozenDict,
    History,
    Holdfast,
    HoldfastError,
    InvalidCall,
    InvalidReference,
    NotFound,
    Retention,
    UnsupportedValue,
    Version,
)

BAD_FACTS: list[dict[str, Any]] = [
    {"step": 5},
    {"step": "x" * 501},
    {"note": b"bytes"},
    {"note": "\ud800"},
    {"actor": ["Ada"]},
    {"tags": "good"},
    {"tags": 5},
    {"tags": [5]},
    {"tags": ["head"]},
    {"tags": ["12"]},
    {"tags": ["a:b"]},
    {"tags": ["x" * 101]},
    {"status": "sleeping"},
    {"status": 3},
    {"kind": "miracle"},
    {"expected": "2"},
    {"expected": -1},
    {"expected": 1.0},
    {"expected": True},
    {"annotations": object()},
    {"resolve": "ours"},
]


def test_commit_refuses_invalid_metadata_and_writes_nothing(log: History) -> None:
    log.commit({"n": 1})
    for facts in BAD_FACTS:
        with pytest.raises(InvalidCall) as caught:
            log.commit({"n": 2}, **facts)
        assert len(str(caught.value)) > 10
        assert log.head.number == 1


HOSTILE_IDS: list[Any] = [
    "",
    "../x",
    "a/../b",
    ".",
    "x\0y",
    "x" * 10_000,
    "\ud800",
    "a@b",
    "a~b",
    " a",
    "a\n",
    "a\\b",
    None,
    5,
    b"x",
    FrozenDict(),
]


def refuse_run_id(hf: Holdfast, run_id: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: hf.history(run_id),
        lambda: hf.delete(run_id),
        lambda: hf.export_run(run_id, "nowhere"),
    ]
    if run_id is not None:
        calls.append(lambda: hf.fork("run-1", run_id))
        calls.append(lambda: hf.import_snapshot(hf.history("run-1").export(), run_id=run_id))
    for call in calls:
        with pytest.raises(InvalidReference) as caught:
            call()
        assert len(str(caught.value)) < 300
    with pytest.raises(HoldfastError):
        hf.version(run_id)
    assert [run.id for run in hf.runs()] == ["run-1"]


def test_invalid_run_ids_are_refused_by_every_method(hf: Holdfast) -> None:
    hf.history("run-1").commit({})
    for run_id in HOSTILE_IDS:
        refuse_run_id(hf, run_id)


ORDINARY_IDS: list[Any] = ["a", "team/bot:7", "день-1", "a b", "run.1", "-", "x" * 200, "head", "12"]


def test_valid_run_ids_are_accepted(hf: Holdfast) -> None:
    for run_id in ORDINARY_IDS:
        hf.history(run_id).commit({"n": 1})
        assert hf.version(run_id).run == run_id
        assert hf.version(f"{run_id}@1").state == {"n": 1}


BAD_REFS: list[Any] = [
    0,
    -1,
    99,
    10**30,
    1.0,
    True,
    None,
    b"1",
    [],
    "nope",
    "@",
    "@x",
    "~",
    "~x",
    "~99",
    ":",
    "a@1",
    "99",
    "x\0",
    "\ud800",
    "x" * 10_000,
]


def refuse_local_reference(log: History, ref: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: log.at(ref),
        lambda: log.rollback(to=ref),
        lambda: log.diff(ref, "head"),
        lambda: log.diff(1, ref),
        lambda: log.blame("n", at=ref),
        lambda: log.bisect(bool, bad=ref),
        lambda: log.export(ref),
        lambda: log.tag(ref, "t"),
        lambda: log.untag(ref, "t"),
        lambda: log.pin(ref),
        lambda: log.unpin(ref),
        lambda: log.merge(ref),
        lambda: list(log.ancestors(ref)),
    ]
    for call in calls:
        with pytest.raises(InvalidCall) as caught:
            call()
        assert 10 < len(str(caught.value)) < 400
    assert (log.head.number, len(log.timelines()), log.head.tags) == (2, 1, ())


def test_invalid_references_within_a_run_are_refused(log: History) -> None:
    log.commit({"n": 1})
    log.commit({"n": 2})
    for ref in BAD_REFS:
        refuse_local_reference(log, ref)


def test_version_of_another_run_is_not_a_reference(hf: Holdfast, log: History) -> None:
    log.commit({"n": 1})
    log.commit({"n": 2})
    stranger = hf.history("other").commit({"x": 1})
    calls: list[Callable[[], object]] = [
        lambda: log.at(stranger),
        lambda: log.rollback(to=stranger),
        lambda: log.diff(stranger),
        lambda: log.tag(stranger, "t"),
        lambda: log.merge(stranger),
        lambda: log.commit({"n": 3}, expected=stranger),
        lambda: log.edit(expected=stranger).__enter__(),
    ]
    for call in calls:
        with pytest.raises(InvalidReference, match="other"):
            call()
    assert (log.head.number, len(log.timelines())) == (2, 1)


BAD_STORE_REFS: list[Any] = [
    "",
    "@1",
    "~1",
    ":t",
    "run-1@",
    "run-1@x",
    "run-1@0",
    "run-1~99",
    "run-1:nope",
    "nope",
    "nope@1",
    "run-1@1@2",
    "run-1\0",
    "\ud800@1",
    "x" * 10_000,
    None,
    1,
    b"run-1",
    ["run-1"],
]


def refuse_reference(hf: Holdfast, ref: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: hf.version(ref),
        lambda: hf.fork(ref, "fork"),
        lambda: hf.diff(ref, "run-1"),
        lambda: hf.diff("run-1", ref),
        lambda: hf.compare(ref, "run-1"),
    ]
    for call in calls:
        with pytest.raises((NotFound, InvalidReference)) as caught:
            call()
        assert 10 < len(str(caught.value)) < 400
    assert [run.id for run in hf.runs()] == ["run-1"]


def test_invalid_references_to_a_store_are_refused(hf: Holdfast) -> None:
    hf.history("run-1").commit({"n": 1})
    for ref in BAD_STORE_REFS:
        refuse_reference(hf, ref)


UNKNOWN_PATHS: list[Any] = [
    "nope",
    "a.nope",
    "a[0]",
    "list[9]",
    "list[-9]",
    "list.x",
    "n.x",
    [1],
    ["a", "b", "c"],
    ["list", True],
]


def find_nothing(log: History, version: Version, path: Any) -> None:
    messages = set()
    for call in (lambda: log.blame(path), lambda: version.get(path), lambda: version.copy(path)):
        with pytest.raises(NotFound, match="nothing at") as caught:
            call()
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_get_of_an_unknown_path_names_the_missing_part(log: History) -> None:
    version = log.commit({"n": 1, "a": {"b": 1}, "list": [1, 2]})
    for path in UNKNOWN_PATHS:
        find_nothing(log, version, path)


BAD_PATHS: list[Any] = ["a..b", "[", "[x", "a]", "a[b]", ".", "1a", "a b", 5, None, b"a", [[]], [{}]]


def refuse_path(log: History, version: Version, path: Any) -> None:
    for call in (lambda: log.blame(path), lambda: version.get(path)):
        with pytest.raises((InvalidReference, NotFound)):
            call()


def test_invalid_paths_are_refused(log: History) -> None:
    version = log.commit({"a": {"b": 1}})
    for path in BAD_PATHS:
        refuse_path(log, version, path)


BAD_LISTS: list[dict[str, Any]] = [
    {"limit": 0},
    {"limit": -1},
    {"limit": "many"},
    {"limit": 1.5},
    {"limit": True},
    {"limit": None},
    {"before": "x"},
    {"before": 1.5},
    {"timeline": "1"},
    {"step": 5},
    {"kind": "miracle"},
    {"kind": 5},
    {"tag": 5},
    {"tag": "a:b"},
]


def test_versions_refuses_invalid_filters(log: History) -> None:
    log.commit({})
    for wanted in BAD_LISTS:
        with pytest.raises(InvalidCall) as caught:
            log.versions(**wanted)
        assert next(iter(wanted)) in str(caught.value)


BAD_RUNS: list[dict[str, Any]] = [
    {"limit": 0},
    {"limit": "x"},
    {"status": "sleeping"},
    {"status": ["running", "sleeping"]},
    {"status": 5},
    {"tags": "good"},
    {"tags": [5]},
    {"tags": 5},
    {"workflow": 5},
    {"since": "yesterday"},
    {"since": 5},
    {"since": datetime.min},  # noqa: DTZ901 - none is meant
    {"after": "nope"},
    {"after": 5},
]


def test_runs_refuses_invalid_filters(hf: Holdfast) -> None:
    hf.history("run-1").commit({})
    for wanted in BAD_RUNS:
        with pytest.raises(InvalidCall):
            hf.runs(**wanted)


BAD_CURSORS: list[Any] = [{"after": "x"}, {"after": -1}, {"after": 1.5}, {"limit": 0}, {"limit": "x"}]


def test_events_refuses_invalid_cursors(hf: Holdfast, log: History) -> None:
    log.commit({})
    for wanted in BAD_CURSORS:
        for read in (log.events, hf.events):
            with pytest.raises(InvalidCall, match=next(iter(wanted))):
                read(**wanted)


BAD_TAGS: list[Any] = ["", "head", "12", "a:b", "a@1", "~1", " x", "x\0", "\ud800", "x" * 101, None, 5, ["t"]]


def refuse_tag(log: History, name: Any) -> None:
    for call in (lambda: log.tag(1, name), lambda: log.untag(1, name), lambda: log.commit({}, tags=[name])):
        with pytest.raises(InvalidReference):
            call()
    assert log.head.tags == ()


def test_tag_refuses_invalid_names(log: History) -> None:
    log.commit({})
    for name in BAD_TAGS:
        refuse_tag(log, name)


def test_methods_refuse_arguments_of_the_wrong_type(hf: Holdfast, log: History) -> None:
    log.commit({"n": 1})
    calls: list[Callable[[], object]] = [
        lambda: log.patch(None, after=1),  # type: ignore[arg-type]
        lambda: log.patch([("n", 2)], after=1),  # type: ignore[arg-type]
        lambda: hf.verify("loudly"),  # type: ignore[arg-type]
        lambda: hf.export_run("run-1", "\ud800"),
        lambda: log.prune("all"),  # type: ignore[arg-type]
        lambda: log.prune(None),  # type: ignore[arg-type]
        lambda: log.bisect("check"),  # type: ignore[arg-type]
        lambda: log.rollback(to=1, reason=5),  # type: ignore[arg-type]
        lambda: log.rollback(to=1, actor=5),  # type: ignore[arg-type]
        lambda: log.merge(1, note=5),  # type: ignore[arg-type]
        lambda: hf.fork("run-1", "fork", note=5),  # type: ignore[arg-type]
        lambda: hf.artifact("xyz"),
        lambda: hf.artifact(5),  # type: ignore[arg-type]
        lambda: hf.artifact("00" * 32),
        lambda: hf.gc(grace="x"),  # type: ignore[arg-type]
        lambda: hf.gc(grace=-1),
        lambda: hf.import_snapshot(None),
        lambda: hf.import_run("/nowhere/at/all"),
        lambda: hf.export_run("run-1", "/nowhere/at/all"),
        lambda: hf.export_run("nope", "file"),
        lambda: hf.delete("nope"),
        lambda: holdfast.register(5),  # type: ignore[arg-type]
        lambda: holdfast.artifact(object()),
        lambda: holdfast.artifact("/nowhere/at/all"),
        lambda: holdfast.open(""),
        lambda: holdfast.open("postgres://x"),
        lambda: holdfast.open("sqlite:///"),
        lambda: holdfast.open("a\0b"),
        lambda: holdfast.open(5),  # type: ignore[arg-type]
        lambda: holdfast.open(":memory:", durability="eternal"),
        lambda: holdfast.open(":memory:", redact="password"),
        lambda: holdfast.open(":memory:", redact=[5]),  # type: ignore[list-item]
        lambda: holdfast.open(":memory:", redact=5),  # type: ignore[arg-type]
    ]
    for number, call in enumerate(calls):
        with pytest.raises(HoldfastError) as caught:
            call()
        assert len(str(caught.value)) > 10, number
    assert (log.head.number, len(log.timelines())) == (1, 1)
    assert hf.verify().ok


def test_unsupported_result_is_named_in_the_error(log: History, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"result": [object()]}, r"at \[0\] of the result: "),
        ({"result": object()}, "at the root of the result: "),
        ({"annotations": {"model": object()}}, "at model of the annotations: "),
        ({"error": {"type": object()}}, "at type of the error: "),
        ({"events": [("agent.woke", {"by": object()})]}, "at by of the event: "),
    ]
    for facts, where in cases:
        message = f"^{where}builtins.object cannot be stored"
        with subtests.test(where=where), pytest.raises(UnsupportedValue, match=message):
            log.commit({"by": 1, "model": 2, "type": 3}, **facts)


def test_error_messages_shorten_long_values(log: History) -> None:
    calls: list[Callable[[], object]] = [
        lambda: log.commit({}, kind="x" * 10_000),
        lambda: log.commit({}, status="x" * 10_000),
        lambda: log.patch("x" * 10_000, after=1),  # type: ignore[arg-type]
        lambda: holdfast.register("x" * 10_000),  # type: ignore[arg-type]
        lambda: Retention(last="x" * 10_000),  # type: ignore[arg-type]
        lambda: Retention(within="x" * 10_000),  # type: ignore[arg-type]
        lambda: Retention(step=["x" * 10_000], last=1),  # type: ignore[arg-type]
    ]
    for number, call in enumerate(calls):
        with pytest.raises(InvalidCall) as caught:
            call()
        assert len(str(caught.value)) < 200, number


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"last": -1},
        {"last": "5"},
        {"last": True},
        {"last": 1.5},
        {"within": 60},
        {"daily": -1},
        {"weekly": "x"},
    ],
    ids=str,
)
def test_retention_refuses_invalid_rules(rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall, match="Retention"):
        Retention(**rules)
