"""`commit` and the versions that it makes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import History, Holdfast, NotFound, StaleVersion, UnsupportedValue, thaw


@holdfast.register
@dataclasses.dataclass
class Budget:
    spent: int
    notes: list[str] = dataclasses.field(default_factory=list)


# Commit


def test_commit_creates_the_run_and_numbers_its_versions(hf: Holdfast, log: History) -> None:
    with pytest.raises(NotFound, match="run-1"):
        log.head  # noqa: B018 - the reading is what is tested
    versions = [log.commit({"n": number}) for number in range(3)]
    assert [(v.number, v.parent, v.timeline, v.kind) for v in versions] == [
        (1, None, 1, "initial"),
        (2, 1, 1, "manual"),
        (3, 2, 1, "manual"),
    ]
    assert [run.id for run in hf.runs()] == ["run-1"]
    assert log.head.number == 3


def test_version_has_all_fields_of_its_commit(log: History) -> None:
    log.commit({"n": 0})
    error = {"type": "ValueError", "message": "no", "traceback": "…"}
    made = log.commit(
        {"n": 1},
        step="plan/search#2",
        result=("found", 3),
        tags=["good", "best"],
        note="as agreed",
        actor="Ada",
        annotations={"model": "m-1", "cost": 0.25},
        error=error,
        status="failed",
    )
    for version in (made, log.at(2), log.versions(limit=1)[0]):
        assert (version.run, version.number, version.parent) == ("run-1", 2, 1)
        assert (version.kind, version.step, version.steps) == ("step", "plan/search#2", 1)
        assert version.result == ("found", 3)
        assert type(version.result) is tuple
        assert sorted(version.tags) == ["best", "good"]
        assert (version.note, version.actor, version.status) == ("as agreed", "Ada", "failed")
        assert version.annotations == {"model": "m-1", "cost": 0.25}
        assert version.error == error
        assert version.at == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
        assert version.size > 0
        assert not version.pinned
        assert len(bytes.fromhex(version.hash)) == 16
        assert repr(version) == "<Version run-1@2 plan/search#2>"


def test_version_fields_that_were_not_given_are_none(log: History) -> None:
    version = log.commit({})
    facts = (version.step, version.result, version.note, version.actor, version.annotations, version.error)
    assert facts == (None,) * 6
    assert (version.tags, version.status, version.steps) == ((), "running", 0)


def test_falsy_result_is_stored(log: History, subtests: pytest.Subtests) -> None:
    for result in [False, 0, "", [], {}, ()]:
        with subtests.test(result=result):
            log.commit({}, result=result)
            found = log.head.result
            assert found == result
            assert found is not None


def test_exception_is_stored_as_an_error(log: History) -> None:
    log.commit({}, error=ValueError("no such tool"))
    assert repr(log.head.error) == "ValueError('no such tool')"


def test_status_stays_until_a_commit_sets_it(hf: Holdfast, log: History) -> None:
    log.commit({}, status="suspended")
    assert log.commit({"n": 1}).status == "suspended"
    assert hf.runs()[0].status == "suspended"


def test_steps_are_counted_and_named_along_the_ancestors(log: History) -> None:
    log.commit({}, step="plan")
    log.commit({"n": 1})
    log.commit({"n": 2}, step="write")
    assert (log.head.steps, log.head.completed_steps) == (2, ["plan", "write"])
    log.rollback(to=1)
    log.commit({"n": 3}, step="again")
    assert (log.head.steps, log.head.completed_steps) == (2, ["plan", "again"])


def test_committed_state_is_independent_of_the_callers_objects(log: History) -> None:
    state: dict[str, Any] = {"list": [1], "set": {1}, "budget": Budget(1)}
    log.commit(state)
    state["list"].append(2)
    state["set"].add(2)
    state["budget"].spent = 99
    assert thaw(log.head.state) == {"list": [1], "set": {1}, "budget": Budget(1)}


def test_object_read_from_a_version_is_a_private_copy(log: History) -> None:
    version = log.commit({"budget": Budget(1)})
    log.at(1).state["budget"].spent = 99
    assert log.at(1).state["budget"] == Budget(1)
    assert log.commit(version.state).state["budget"] == Budget(1)


def test_state_is_frozen_and_can_be_dumped_as_json(log: History) -> None:
    state = log.commit({"a": [1, {"b": 2}]}).state
    assert json.loads(json.dumps(state)) == {"a": [1, {"b": 2}]}
    changes: list[Callable[[], object]] = [
        lambda: state.update(x=1),
        lambda: state["a"].append(3),
        state["a"][1].clear,
    ]
    for change in changes:
        with pytest.raises(TypeError, match="edit"):
            change()
    assert state == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize("state", [None, 1, "text", [1, 2], (1, {"a": [1]}), {1, 2}, b"bytes", Budget(3)])
def test_any_value_can_be_a_state(log: History, state: Any) -> None:
    log.commit(state)
    found = thaw(log.at(1).state)
    assert (found, type(found)) == (state, type(state))


@pytest.mark.parametrize("values", [(1, True, 1.0), (0.0, -0.0), ((1,), (True,)), ("1", 1, b"1"), ([], ())])
def test_equal_values_of_different_types_are_changes(log: History, values: tuple[Any, ...]) -> None:
    for value in values:
        log.commit({"value": value})
    for number, value in enumerate(values, 1):
        found = thaw(log.at(number).state["value"])
        assert (repr(found), type(found)) == (repr(value), type(value))
    assert all(log.diff(number, number + 1) for number in range(1, len(values)))
    assert log.blame("value").version.number == len(values)


def test_state_with_nan_equals_itself(log: History) -> None:
    log.commit({"value": math.nan})
    log.commit({"value": math.nan})
    assert not log.diff(1, 2)


def test_key_order_is_stored_and_its_change_is_a_change(log: History) -> None:
    log.commit({"a": 1, "b": 2})
    log.commit({"b": 2, "a": 1})
    assert (list(log.at(1).state), list(log.at(2).state)) == (["a", "b"], ["b", "a"])
    assert log.diff(1, 2).changes


def test_dict_that_looks_like_a_marker_is_stored_exactly(log: History) -> None:
    state = {"$holdfast": "tuple", "value": [1], "$ref": 1, "": None}
    log.commit(state)
    assert log.head.state == state


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, {"b": object()}]}, r"a\[1\]\.b"),
        ({"f": lambda: None}, "f"),
        ({"deep": {"file": open}}, r"deep\.file"),
        ([object()], r"\[0\]"),
        (object(), "the root"),
    ],
)
def test_unsupported_value_is_named_and_nothing_is_written(log: History, state: Any, path: str) -> None:
    log.commit({"n": 1})
    with pytest.raises(UnsupportedValue, match=path):
        log.commit(state)
    with pytest.raises(UnsupportedValue):
        log.commit({"n": 2}, result=object())
    assert (log.head.number, log.head.state) == (1, {"n": 1})


def test_states_of_maximum_depth_can_be_committed_repeatedly(log: History) -> None:
    def commit(state: Any, frames: int) -> None:
        """Commit as a server does, with part of the stack in use."""
        if frames:
            commit(state, frames - 1)
        else:
            log.commit({"deep": state})

    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    for state in ([], deep, [deep[0][0]], deep):
        commit(state, 150)
    assert log.verify().ok
    assert log.head.number == 4


def test_cycle_and_tree_beyond_maximum_depth_are_refused(log: History) -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for state in (circle, deep, {"x": circle}):
        with pytest.raises(UnsupportedValue):
            log.commit(state)
    assert log.commit({"n": 1}).number == 1


def test_commit_of_an_unchanged_state_adds_few_bytes(log: History) -> None:
    state = {"documents": {f"doc-{n}": "text " * 40 for n in range(300)}}
    first = log.commit(state)
    second = log.commit(state)
    assert second.size < 100 < first.size
    assert not log.diff(1, 2)


# Expected


def test_commit_is_refused_unless_expected_is_the_head(log: History) -> None:
    first = log.commit({"n": 1}, expected=0)
    second = log.commit({"n": 2}, expected=first)
    log.commit({"n": 3}, expected=second.number)
    for stale in (0, 1, second, 4):
        with pytest.raises(StaleVersion, match="version 3") as caught:
            log.commit({"n": 9}, expected=stale)
        assert caught.value.details["head"] == 3
    assert log.head.state == {"n": 3}
    assert [version.number for version in log.versions()] == [3, 2, 1]


def test_edit_checks_expected_at_its_start_and_its_end(log: History) -> None:
    log.commit({"n": 1})
    with pytest.raises(StaleVersion), log.edit(expected=7):
        pytest.fail("the block must not be entered")
    with pytest.raises(StaleVersion), log.edit(expected=1) as state:  # noqa: PT012 - the end of the block raises
        state["mine"] = 1
        log.commit({"n": 2})
    assert log.head.state == {"n": 2}


def test_stale_expected_is_reported_before_a_merge_conflict(log: History) -> None:
    log.commit({"n": 1})
    log.commit({"n": 2})
    with pytest.raises(StaleVersion):
        log.commit({"n": 3}, expected=1)
