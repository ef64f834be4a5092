"""`edit`: drafts, their visibility, and merges with concurrent commits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import History, Holdfast, InvalidCall, MergeConflict, UnsupportedValue, thaw


@holdfast.register
@dataclasses.dataclass
class Purse:
    spent: int
    notes: list[str] = dataclasses.field(default_factory=list)


def test_edit_commits_at_the_end_of_the_block(log: History) -> None:
    with log.edit(step="plan", tags=["t"], note="n", actor="Ada", annotations={"m": 1}, result=5) as state:
        state["messages"] = []
        state["messages"].append({"role": "user"})
        state.setdefault("plan", {})["tasks"] = [1, 2]
    head = log.head
    assert head.state == {"messages": [{"role": "user"}], "plan": {"tasks": [1, 2]}}
    assert (head.step, head.tags, head.note, head.actor, head.result) == ("plan", ("t",), "n", "Ada", 5)
    assert head.annotations == {"m": 1}


def test_draft_is_not_visible_before_the_end_of_the_block(log: History) -> None:
    log.commit({"list": [{"n": 1}], "purse": Purse(1)})
    before = log.head
    with log.edit() as state, log.edit() as other:
        state["list"][0]["n"] = 2
        state["list"].append({"n": 3})
        state["purse"].spent = 5
        state["new"] = 1
        for seen in (before.state, log.head.state, log.at(1).state, other):
            assert thaw(seen) == {"list": [{"n": 1}], "purse": Purse(1)}
        assert log.versions()[0].number == 1
    assert thaw(log.at(2).state) == {"list": [{"n": 1}], "purse": Purse(1)}, "the inner block changed nothing"
    assert thaw(log.head.state) == {"list": [{"n": 2}, {"n": 3}], "purse": Purse(5), "new": 1}
    assert thaw(before.state) == {"list": [{"n": 1}], "purse": Purse(1)}


def test_edit_that_raises_commits_nothing(log: History) -> None:
    log.commit({"list": [1], "purse": Purse(1)})
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), log.edit() as state:  # noqa: PT012 - the change must come before the error
            state["list"].append(2)
            state["purse"].notes.append("x")
            raise error
    assert log.head.number == 1
    assert thaw(log.head.state) == {"list": [1], "purse": Purse(1)}
    with log.edit() as state:
        assert state == {"list": [1], "purse": Purse(1)}, "the next attempt starts from the same"


def test_edit_that_raises_does_not_create_the_run(hf: Holdfast, log: History) -> None:
    with pytest.raises(ValueError, match="no"), log.edit() as state:  # noqa: PT012 - a change, then an error
        state["n"] = 1
        raise ValueError("no")
    assert hf.runs() == []
    with log.edit():
        pass
    assert (log.head.number, log.head.state) == (1, {})


def test_draft_refuses_changes_after_its_block(log: History) -> None:
    log.commit({"inner": {"list": [1]}})
    with log.edit() as state:
        inner, items = state["inner"], state["inner"]["list"]
    late_ones: list[Callable[[], object]] = [
        lambda: state.update(x=1),
        lambda: inner.pop("list"),
        lambda: items.append(2),
    ]
    for late in late_ones:
        with pytest.raises(TypeError, match="draft has ended"):
            late()
    assert log.head.state == {"inner": {"list": [1]}}


def test_edit_refuses_unsupported_values_at_the_end_of_the_block(log: History) -> None:
    log.commit({"n": 1})
    with pytest.raises(UnsupportedValue, match=r"tool\.call"), log.edit() as state:
        state["tool"] = {"call": print}
    assert log.head.number == 1


def test_edit_of_a_state_that_is_not_a_container_is_refused(log: History) -> None:
    log.commit(5)
    with pytest.raises(InvalidCall, match="commit"), log.edit():
        pytest.fail("there is nothing to edit")


def test_edit_and_commit_of_the_same_tree_store_the_same_state(log: History) -> None:
    start = {
        "messages": [{"n": n} for n in range(40)],
        "docs": {f"d{n}": "x" * n for n in range(50)},
        "gone": 1,
    }
    log.commit(start)
    with log.edit() as state:
        state["messages"].append({"n": 40})
        state["messages"][3]["n"] = 99
        del state["gone"]
        state["docs"]["d7"] = ("tuple", 1.0)
    edited = log.head
    log.rollback(to=1)
    plain = json.loads(json.dumps(start))
    plain["messages"].append({"n": 40})
    plain["messages"][3]["n"] = 99
    del plain["gone"]
    plain["docs"]["d7"] = ("tuple", 1.0)
    committed = log.commit(plain)
    assert thaw(edited.state) == thaw(committed.state)
    assert not log.diff(edited, committed)
    assert log.diff(edited, committed).json_patch() == []


# Rebasing


def test_plain_state_is_merged_into_a_newer_head(hf: Holdfast, log: History) -> None:
    log.commit({"list": [1], "kept": 0})
    mine = thaw(log.head.state)
    with hf.history("run-1").edit() as state:
        state["list"].append(2)
        state["theirs"] = True
    mine["list"].append(3)
    mine["mine"] = True
    version = log.commit(mine)
    assert (version.number, version.parent) == (3, 2)
    assert version.state == {"list": [1, 2, 3], "kept": 0, "theirs": True, "mine": True}


def test_two_changes_of_one_place_conflict_unless_resolved(hf: Holdfast, log: History) -> None:
    log.commit({"a": {"x": 1}, "b": 1})
    mine = thaw(log.head.state)
    hf.history("run-1").commit({"a": {"x": 2}, "b": 1})
    mine["a"]["x"] = 3
    with pytest.raises(MergeConflict, match=r"a\.x") as caught:
        log.commit(mine)
    assert caught.value.details["path"] == "a.x"
    assert (caught.value.details["ours"], caught.value.details["theirs"]) == (3, 2)
    assert log.versions()[0].number == 2, "nothing was written"


def test_resolver_decides_conflicts(hf: Holdfast, log: History) -> None:
    log.commit({"n": 1})
    with log.edit(resolve=lambda path, base, ours, theirs: [path, base, ours, theirs]) as state:
        state["n"] = 3
        hf.history("run-1").commit({"n": 2})
    assert log.head.state == {"n": [("n",), 1, 3, 2]}


def test_draft_refuses_invalid_indexes_like_a_list(log: History, subtests: pytest.Subtests) -> None:
    cases: list[Callable[[Any], Any]] = [
        lambda items: items.__imul__("x"),
        lambda items: items.insert("x", 1),
        lambda items: items.pop("x"),
        lambda items: items.__setitem__("x", 1),
        lambda items: items.__delitem__("x"),
        lambda items: items["x"],
    ]
    log.commit({"items": [{"n": 1}, 2]})
    for number, wrong in enumerate(cases):
        with subtests.test(number=number):
            with log.edit() as state:
                for items in (state["items"], [{"n": 1}, 2]):
                    with pytest.raises(TypeError):
                        wrong(items)
            assert log.head.state["items"] == [{"n": 1}, 2]


def test_resolver_that_no_merge_can_call_is_refused(hf: Holdfast) -> None:
    async def later(path: Any, base: Any, ours: Any, theirs: Any) -> Any:
        return ours

    log = hf.history("run")
    log.commit({"n": 0})
    for resolve in (later, lambda ours, theirs: ours):
        for call in (lambda r: log.commit({"n": 1}, resolve=r), lambda r: log.edit(resolve=r)):
            with pytest.raises(InvalidCall, match="resolve"):
                call(resolve)
    assert log.head.number == 1


def test_items_that_were_appended_to_a_draft_can_be_read(log: History) -> None:
    log.commit({"log": ["start"], "todo": [{1, 2}], "steps": [{"text": "x", "notes": [1]}]})
    with log.edit() as state:
        state["log"].extend([("tool", ["a", "b"]), {"k": [1]}])
        assert state["log"][-1] == {"k": [1]}
        state["log"][2]["k"].append(2)
        state["log"] += log.head.state["steps"]
        state["log"][3]["notes"].append(5)
        state["todo"].append({3})
        assert state["todo"][-1] == {3}
    assert log.head.copy() == {
        "log": ["start", ("tool", ["a", "b"]), {"k": [1, 2]}, {"text": "x", "notes": [1, 5]}],
        "todo": [{1, 2}, {3}],
        "steps": [{"text": "x", "notes": [1]}],
    }
