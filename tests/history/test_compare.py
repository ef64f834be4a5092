"""Diff, compare, blame and bisect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import History, Holdfast, InvalidCall, Retention, Version, thaw

OLD: dict[str, Any] = {
    "plan": {"tasks": [{"id": n, "done": False} for n in range(5)], "title": "Plan"},
    "gone": 1,
    "n": 1,
    "messages": ["a", "b", "c", "d"],
}


@pytest.fixture
def two(log: History) -> History:
    log.commit(OLD, step="plan", result={"ok": 1}, tags=["first"], annotations={"model": "m-1"})
    with log.edit(
        step="work", result={"ok": 2}, tags=["second"], annotations={"model": "m-1", "cost": 3}
    ) as state:
        state["plan"]["tasks"][3]["done"] = True
        del state["gone"]
        state["new"] = {"x": 1}
        state["n"] = 1.0
        state["messages"].insert(0, state["messages"].pop())
    return log


def patched(document: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, as a tool on the other side would apply it."""
    for operation in operations:
        *way, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ] or [""]
        if operation["path"] == "":
            document = operation["value"]
            continue
        target = document
        for part in way:
            target = target[int(part)] if isinstance(target, list) else target[part]
        key: Any = last if isinstance(target, dict) else int(last)
        if operation["op"] == "remove":
            del target[key]
        elif operation["op"] == "add" and isinstance(target, list):
            target.insert(key, operation["value"])
        else:
            target[key] = operation["value"]
    return document


# Diff


def test_diff_has_typed_changes_with_path_and_both_values(two: History) -> None:
    found = {change.where: change for change in two.diff(1, 2).changes}
    kinds = {where: change.kind for where, change in found.items()}
    assert kinds == {
        "plan.tasks[3].done": "changed",
        "gone": "removed",
        "n": "changed",
        "messages[0]": "moved",
        "new": "added",
    }
    done = found["plan.tasks[3].done"]
    assert (done.path, done.old, done.new) == (("plan", "tasks", 3, "done"), False, True)
    assert (repr(found["n"].old), repr(found["n"].new)) == ("1", "1.0")
    assert found["gone"].old == 1
    assert found["new"].new == {"x": 1}
    assert found["messages[0]"].source == ("messages", 3)


def test_diff_summary_has_a_line_for_each_change(two: History) -> None:
    diff = two.diff(1, 2)
    assert len(diff.summary()) == len(diff) == len(list(diff))
    assert all("\n" not in line for line in diff.summary())
    assert "plan.tasks[3].done: False → True" in diff.summary()
    assert str(diff) == "\n".join(diff.summary())
    assert str(two.diff(1, 1)) == "no difference"


def test_diff_covers_all_fields_of_a_version(hf: Holdfast, two: History) -> None:
    facts = {change.where: (change.kind, change.old, change.new) for change in two.diff(1, 2).facts}
    assert facts == {
        "step": ("changed", "plan", "work"),
        "result.ok": ("changed", 1, 2),
        "tags[0]": ("changed", "first", "second"),
        "annotations.cost": ("added", None, 3),
    }
    error = {"type": "ValueError", "message": "no tide"}
    two.commit(thaw(two.head.state), status="failed", tags=["second"], error=error, note="low water")
    later = {change.where: (change.old, change.new) for change in two.diff(2, 3).facts}
    assert later["status"] == ("running", "failed")
    assert later["step"] == ("work", None)
    assert later["error"] == (None, error)
    assert later["note"] == (None, "low water")
    assert hf.diff("run-1@2", "run-1@3").summary() == two.diff(2, 3).summary()
    assert not two.diff(2, 3).changes
    assert two.diff(2, 3), "a difference of facts is one"


def test_json_patch_turns_one_state_into_the_other(two: History) -> None:
    operations = json.loads(json.dumps(two.diff(1, 2).json_patch()))
    assert patched(json.loads(json.dumps(OLD)), operations) == json.loads(json.dumps(two.at(2).state))
    assert two.diff(2, 2).json_patch() == []


def test_diff_fields_map_paths_to_both_values(two: History) -> None:
    fields = two.diff(1, 2).fields()
    assert fields["state.plan.tasks[3].done"] == {"from": False, "to": True}
    assert fields["state.gone"] == {"from": 1, "to": None}
    assert fields["result.ok"] == {"from": 1, "to": 2}
    assert fields["annotations.cost"] == {"from": None, "to": 3}


def test_diff_fields_of_a_state_that_is_a_list(log: History) -> None:
    log.commit([1, 2])
    log.commit([1, 3])
    assert log.diff(1, 2).fields() == {"state[1]": {"from": 2, "to": 3}}


def test_diff_compares_versions_of_two_runs_in_either_direction(hf: Holdfast, two: History) -> None:
    hf.fork("run-1@1", "run-2")
    assert not hf.diff("run-1@1", "run-2").changes
    back = {change.where: change.kind for change in hf.diff("run-1@2", "run-2@1").changes}
    assert (back["gone"], back["new"]) == ("added", "removed")
    forward = hf.diff("run-1@1", "run-1@2")
    assert [change.where for change in forward.changes] == [change.where for change in two.diff(1, 2).changes]


def test_diff_compares_with_the_head_by_default(two: History) -> None:
    assert two.diff(1).summary() == two.diff(1, 2).summary()
    assert not two.diff("head")


# Compare


def test_compare_pairs_the_steps_of_two_forks(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0}, step="load")
    other = hf.fork("run-1", "run-2")
    for run, answer in ((log, "yes"), (other, "no")):
        run.commit({"n": 1}, step="search", result="found")
        run.commit({"n": 2, "answer": answer}, step="write", result=answer)
    other.commit({"n": 2, "answer": "no", "checked": True}, step="check")
    found = hf.compare("run-1", "run-2")
    pairs = [(p.step, p.left and p.left.number, p.right and p.right.number, p.same) for p in found.steps]
    assert pairs == [
        ("search", 2, 2, True),
        ("write", 3, 3, False),
        ("check", None, 4, False),
    ]
    assert {change.where for change in found.diff.changes} == {"answer", "checked"}
    assert "search: @2 = @2" in str(found)
    assert "write: @3 ≠ @3" in str(found)


def test_compare_of_two_timelines_starts_after_their_last_common_version(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0}, step="load")
    log.commit({"n": 1}, step="try", result=1)
    log.rollback(to=1)
    log.commit({"n": 2}, step="try", result=2)
    found = hf.compare("run-1@2", "run-1@3")
    assert [(p.step, p.left and p.left.number, p.right and p.right.number) for p in found.steps] == [
        ("try", 2, 3)
    ]
    assert not found.steps[0].same
    assert hf.compare("run-1", "run-1").steps == ()


# Blame


def test_blame_names_the_version_that_last_changed_a_path(log: History) -> None:
    log.commit({"plan": {"tasks": [{"t": 1}, {"t": 2}]}, "n": 0}, step="plan")
    with log.edit(step="work") as state:
        state["plan"]["tasks"][1]["t"] = 3
    for number in range(5):
        with log.edit(step="count") as state:
            state["n"] = number + 1
    asked = {
        "plan.tasks[0]": 1,
        "plan.tasks[0].t": 1,
        "plan.tasks[1].t": 2,
        "plan.tasks[1]": 2,
        "plan.tasks": 2,
        "plan": 2,
        "n": 7,
        "": 7,
    }
    assert {path: log.blame(path).version.number for path in asked} == asked
    found = log.blame(["plan", "tasks", 1, "t"])
    assert (found.path, found.value, found.step) == ("plan.tasks[1].t", 3, "work")
    assert str(found) == "plan.tasks[1].t: version 2 by work, 2023-11-14 22:13:20"
    assert log.blame("plan.tasks[1].t", at=1).version.number == 1


BIG = {"text": "x" * 400, "more": ["y" * 200]}


def test_blame_names_the_version_that_moved_a_part(log: History) -> None:
    log.commit({"a": BIG, "b": 1, "list": [1, 2]})
    with log.edit() as state:
        state["b"] = state.pop("a")
    with log.edit() as state:
        state["list"].append(3)
    assert log.blame("b").version.number == 2
    assert log.blame("b.more").version.number == 2


def test_blame_names_the_version_that_restored_a_part(log: History) -> None:
    log.commit({"list": [BIG, "second"], "text": "z" * 600})
    first = log.head
    for _ in range(2):
        with log.edit() as state:
            state["list"].reverse()
            state["text"] = "other"
    with log.edit() as state:
        state["text"] = first.state["text"]
    with log.edit() as state:
        state["n"] = 1
    assert log.blame("list[0]").version.number == 3
    assert log.blame("list[0].text").version.number == 3
    assert log.blame("text").version.number == 4


def test_blame_follows_the_place_of_an_item_not_the_item(log: History) -> None:
    log.commit({"list": [{"n": n, "text": "t" * 300} for n in range(100)]})
    with log.edit() as state:
        state["list"].insert(0, "new")
    with log.edit() as state:
        state["list"][50]["n"] = "changed"
    assert log.blame("list[0]").version.number == 2
    assert log.blame("list[70]").version.number == 2, "another item stood here before"
    assert log.blame("list[50].n").version.number == 3
    assert log.blame("list[50].text").version.number == 1, "all these texts are equal"
    assert log.blame("list[51].n").version.number == 2


def test_blame_names_the_version_that_changed_only_the_type(log: History) -> None:
    for value in (1, True, 1.0, 1.0):
        log.commit({"v": value})
    assert log.blame("v").version.number == 3


# Bisect


def test_bisect_finds_the_first_bad_version_with_few_checks(log: History) -> None:
    for number in range(1, 101):
        log.commit({"n": number})
    looked: list[int] = []

    def good(state: Any) -> bool:
        looked.append(state["n"])
        return bool(state["n"] < 73)

    found = log.bisect(good)
    assert found is not None
    assert found.number == 73
    assert len(looked) <= 9
    assert log.bisect(lambda state: True) is None
    first = log.bisect(lambda state: False)
    assert first is not None
    assert first.number == 1


def test_bisect_searches_between_good_and_bad(log: History) -> None:
    for number in range(1, 11):
        log.commit({"n": number})
    found = log.bisect(lambda state: state["n"] not in (2, 8, 9), good=3, bad=9)
    assert found is not None
    assert found.number == 8
    log.rollback(to=4)
    log.commit({"n": 0})
    with pytest.raises(InvalidCall, match="not an ancestor"):
        log.bisect(bool, good=6)
    found = log.bisect(lambda state: state["n"] > 0)
    assert found is not None
    assert found.number == 11


def test_compare_of_a_fork_starts_at_the_fork_point(hf: Holdfast) -> None:
    log = hf.history("one")
    for step in ("plan", "search", "write"):
        with log.edit(step=step) as state:
            state[step] = 1
    fork = hf.fork("one@2", "two")
    with fork.edit(step="write") as state:
        state["write"] = 2
    nested = hf.fork("two", "three")
    with nested.edit(step="check") as state:
        state["check"] = 3

    def number(version: Version | None) -> int | None:
        return None if version is None else version.number

    def steps(a: str, b: str) -> list[tuple[str | None, int | None, int | None]]:
        return [(pair.step, number(pair.left), number(pair.right)) for pair in hf.compare(a, b).steps]

    assert steps("one", "two") == [("write", 3, 2)]
    assert steps("two", "one") == [("write", 2, 3)]
    assert steps("one", "three") == [("write", 3, 2), ("check", None, 2)]
    assert steps("two", "three") == [("check", None, 2)]
    assert fork.origin is not None
    assert (fork.origin.run, fork.origin.number) == ("one", 2)
    assert log.origin is None
    hf.delete("one")
    assert fork.origin is None
    assert [pair.step for pair in hf.compare("two", "three").steps] == ["check"]


def test_lineage_contains_versions_of_the_kind_fork_that_were_committed_by_hand(hf: Holdfast) -> None:
    log = hf.history("by-hand")
    for number, kind in enumerate((None, "fork", None), 1):
        log.commit({"n": number}, kind=kind)
    assert [version.number for version in log.head.lineage()] == [3, 2, 1]
    assert [version.kind for version in hf.fork("by-hand@2", "fork").head.lineage()] == ["fork", "initial"]
    log.prune(Retention(last=2))
    assert [version.number for version in log.head.lineage()] == [3, 2]


def test_blame_of_a_large_number_that_was_copied_names_the_version_that_copied_it(hf: Holdfast) -> None:
    log = hf.history("numbers")
    log.commit({"numbers": [2**5000]})
    log.commit({"numbers": [2**5000], "n": 1})
    with log.edit() as state:
        state["numbers"].append(state["numbers"][0])
    assert log.blame("numbers[1]").version.number == 3
    assert log.blame("numbers[0]").version.number == 1
