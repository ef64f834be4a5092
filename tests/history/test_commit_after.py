"""`commit` and `patch` after a version other than the head, `drop`, and private copies of states."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    History,
    Holdfast,
    InvalidCall,
    InvalidReference,
    NotFound,
    Retention,
    StaleVersion,
    Version,
)

pytest_plugins = ["postgres_fixtures"]


@pytest.fixture
def four(log: History) -> History:
    for number in range(1, 5):
        log.commit({"n": number, "plan": {"tasks": ["a"], "seen": {number}}}, step=f"step-{number}")
    return log


def shape(log: History) -> list[tuple[int, int | None, int]]:
    return [(v.number, v.parent, v.timeline) for v in reversed(log.versions())]


def test_commit_after_an_old_version_starts_a_timeline(four: History) -> None:
    made = four.commit({"n": "other"}, after=2, note="tried again", actor="Ada")
    assert (made.number, made.parent, made.timeline) == (5, 2, 2)
    assert four.head.number == 5
    line = four.timelines()[1]
    assert (line.number, line.parent, line.reason, line.actor) == (2, 2, "tried again", "Ada")
    assert [v.number for v in four.ancestors()] == [5, 2, 1]
    assert four.at(4).state["n"] == 4


def test_commits_of_two_writers_after_one_version_form_two_timelines(four: History) -> None:
    one, other = 4, four.commit({"n": "b"}, after=3).number
    for turn in range(3):
        one = four.commit({"n": f"a{turn}"}, after=one).number
        other = four.commit({"n": f"b{turn}"}, after=other).number
    assert [line.number for line in four.timelines()] == [1, 2]
    assert [four.at(v.number).state["n"] for v in four.versions(timeline=1)] == ["a2", "a1", "a0", 4, 3, 2, 1]
    assert [four.at(v.number).state["n"] for v in four.versions(timeline=2)] == ["b2", "b1", "b0", "b"]


def test_commit_after_the_head_continues_its_timeline(four: History) -> None:
    assert four.commit({"n": 5}, after=4).timeline == 1
    assert shape(four)[-1] == (5, 4, 1)
    assert len(four.timelines()) == 1


def test_commit_after_an_old_version_without_move_keeps_the_head(four: History, hf: Holdfast) -> None:
    before = hf.runs()[0]
    made = four.commit({"n": "late"}, after=2, step="late", status="failed", move=False)
    after = hf.runs()[0]
    assert (made.number, made.parent, made.timeline) == (5, 2, 2)
    assert (
        (after.head, after.step, after.status)
        == (before.head, before.step, before.status)
        == (4, "step-4", "running")
    )
    assert (four.head.number, four.head.state["n"]) == (4, 4)
    follower = four.commit({"n": 6})
    assert (follower.number, follower.parent, follower.timeline) == (6, 4, 1), (
        "the head's own timeline continues"
    )


def test_rollback_keeps_its_timeline_despite_other_timelines(four: History) -> None:
    four.rollback(to=2)
    four.commit({"n": "late"}, after=3, move=False)
    made = four.commit({"n": "again"})
    assert (made.parent, made.timeline) == (2, 2)


def test_commit_after_the_head_without_move_starts_a_timeline(four: History, hf: Holdfast) -> None:
    aside = four.commit({"n": "aside"}, after=4, move=False)
    assert (aside.number, aside.parent, aside.timeline) == (5, 4, 2)
    assert (four.head.number, four.head.state["n"]) == (4, 4)
    four.rollback(to=4)
    late = four.commit({"n": "late"}, after=4, move=False)
    assert (late.parent, late.timeline) == (4, 4)
    made = four.commit({"n": "next"})
    assert (made.parent, made.timeline) == (4, 3), "the rollback's timeline has no other version"
    assert hf.verify().ok


def test_commit_after_the_end_of_an_abandoned_timeline_continues_it(four: History) -> None:
    four.rollback(to=2)
    four.commit({"n": "second"})
    assert four.commit({"n": "first again"}, after=4).timeline == 1
    assert four.commit({"n": "and on"}).timeline == 1, "the head is on the first timeline now"
    four.rollback(to=5)
    assert four.commit({"n": "third"}).timeline == 3


def test_commit_after_a_version_compares_expected_with_the_head(four: History) -> None:
    with pytest.raises(StaleVersion):
        four.commit({"n": 5}, after=2, expected=3)
    assert four.commit({"n": 5}, after=2, expected=4).parent == 2


def test_versions_after_old_versions_pass_verify_and_a_bundle(four: History, hf: Holdfast) -> None:
    four.commit({"n": "b"}, after=2)
    four.commit({"n": "a"}, after=4)
    four.commit({"n": "c"}, after=1, move=False)
    assert four.verify().ok
    file = io.BytesIO()
    hf.export_run(four.id, file)
    file.seek(0)
    copy = hf.import_run(file, run_id="copy")
    assert shape(copy) == shape(four)
    assert copy.head.number == four.head.number == 6
    assert copy.commit({"n": "on"}).timeline == 1


def test_commit_after_an_invalid_version_is_refused(four: History, subtests: pytest.Subtests) -> None:
    invalid: list[Any] = [0, 9, -1, "two", True]
    for after in invalid:
        with subtests.test(after=after):
            with pytest.raises((InvalidCall, InvalidReference, NotFound)):
                four.commit({"n": 5}, after=after)
            assert len(four.versions()) == 4


def test_commit_after_a_version_of_a_missing_run_is_refused(hf: Holdfast) -> None:
    with pytest.raises(NotFound):
        hf.history("missing").commit({}, after=1)


def test_concurrent_commits_after_one_version_are_all_stored(four: History) -> None:
    made: list[int] = []

    def write(name: int) -> None:
        made.append(four.commit({"n": f"w{name}"}, after=4).number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(5, 13))
    assert {four.at(number).state["n"] for number in made} == {f"w{n}" for n in range(8)}
    assert {four.at(number).parent for number in made} == {4}
    assert len({four.at(number).timeline for number in made}) == 8
    assert four.verify().ok


# Patches


def test_patch_sets_the_values_at_its_paths(four: History) -> None:
    made = four.patch({"plan.tasks[1]": "b", ("plan", "new"): {"x": 1}, "n": 5}, after=4, step="patch")
    assert made.copy() == {"n": 5, "plan": {"tasks": ["a", "b"], "seen": {4}, "new": {"x": 1}}}
    assert (made.parent, made.timeline, made.step) == (4, 1, "patch")
    assert four.at(4).copy() == {"n": 4, "plan": {"tasks": ["a"], "seen": {4}}}


def test_patch_stores_only_the_changed_parts(log: History) -> None:
    log.commit({"long": [{"text": f"{n} " * 40, "seen": {n}} for n in range(500)], "n": {"x": 0}})
    made = log.patch({("n", "x"): 1}, after=1)
    assert made.size < 300
    assert made.copy()["long"] == log.at(1).copy()["long"]


def test_patch_of_an_old_version_starts_a_timeline(four: History) -> None:
    made = four.patch({"n": "x"}, after=2, move=False)
    assert (made.parent, made.timeline, four.head.number) == (2, 2, 4)
    assert made.copy() == {"n": "x", "plan": {"tasks": ["a"], "seen": {2}}}


def test_patch_of_a_missing_path_is_refused(four: History, subtests: pytest.Subtests) -> None:
    cases: list[Any] = ["nowhere.x", "plan.tasks[2]", "plan.tasks[-1]", "n.x", ("plan", "tasks", "a")]
    for path in cases:
        with subtests.test(path=path):
            with pytest.raises(NotFound):
                four.patch({path: 1}, after=4)
            assert len(four.versions()) == 4


# Two processes


@pytest.fixture(params=["sqlite", "postgres"])
def processes(request: pytest.FixtureRequest, file: Path) -> Iterator[tuple[History, History]]:
    """One run in two open stores, as two processes have it. The first has advanced it since the second has read it."""
    where = file if request.param == "sqlite" else request.getfixturevalue("url")
    with holdfast.open(where) as one, holdfast.open(where) as other:
        first, second = one.history("run-1"), other.history("run-1")
        first.commit({"n": 0, "parts": [{"text": "x" * 100} for _ in range(50)]})
        second.patch({"seen": 1}, after=second.head)
        for number in range(3):
            first.commit({"n": number, "parts": [{"text": f"{number}" * 100, "k": [{}]} for _ in range(70)]})
        yield first, second
        assert one.verify().ok


def test_version_that_another_process_committed_is_followed(processes: tuple[History, History]) -> None:
    _, second = processes
    head = second.head
    made = second.patch({"n": "patched"}, after=head)
    assert (made.number, made.parent, made.state["n"]) == (6, 5, "patched")
    assert made.state["parts"] == head.state["parts"]


def test_commits_follow_a_version_that_another_process_committed(processes: tuple[History, History]) -> None:
    first, second = processes
    aside = second.commit({"n": "aside"}, after=5, move=False)
    assert (aside.number, aside.parent, second.head.number) == (6, 5, 5)
    first.commit({"n": "one"})
    assert second.commit({"n": "two"}, after=7, expected=7).parent == 7
    with pytest.raises(NotFound):
        second.commit({"n": 0}, after=99)


def test_rollback_with_a_state_reaches_a_version_that_was_committed_meanwhile(
    processes: tuple[History, History], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = processes
    at, parts = second.at, [{"text": "y" * 100, "k": [{}]} for _ in range(70)]

    def advanced(ref: Any) -> Version:
        monkeypatch.undo()
        for number in range(4):
            first.commit({"n": number, "parts": [*parts, number]})
        return at(ref)

    monkeypatch.setattr(second, "at", advanced)
    made = second.rollback(to="head", state={"n": 10, "parts": [*parts, 3]})
    assert (made.number, made.parent, made.timeline) == (10, 9, 2)


# Copies


def test_copy_returns_plain_values_that_nothing_shares(four: History) -> None:
    copy = four.head.copy()
    assert type(copy) is dict
    assert type(copy["plan"]["tasks"]) is list
    copy["plan"]["tasks"].append("mine")
    copy["plan"]["seen"].add("mine")
    assert four.head.copy() == {"n": 4, "plan": {"tasks": ["a"], "seen": {4}}}
    assert four.head.copy("plan.seen") == {4}
    with pytest.raises(NotFound):
        four.head.copy("plan.nothing")


# Dropping


def test_drop_removes_versions_by_number(four: History) -> None:
    assert four.drop([2, 3], dry_run=True).versions == (2, 3)
    assert [v.number for v in four.versions()] == [4, 3, 2, 1]
    assert four.drop([2, four.at(3)]).versions == (2, 3)
    assert [v.number for v in four.versions()] == [4, 1]
    assert four.head.copy() == {"n": 4, "plan": {"tasks": ["a"], "seen": {4}}}
    assert four.verify().ok


def test_drop_keeps_head_marked_versions_and_fork_points(four: History, hf: Holdfast) -> None:
    four.tag(1, "good")
    four.pin(2)
    hf.fork(f"{four.id}@3", "fork")
    assert four.drop([1, 2, 3, 4]).versions == ()
    four.prune(Retention(last=0))
    assert [v.number for v in four.versions()] == [4, 3, 2, 1]


def test_drop_refuses_invalid_versions(four: History, subtests: pytest.Subtests) -> None:
    invalid: list[Any] = [7, "head", [9], ["nothing"], None]
    for versions in invalid:
        with subtests.test(versions=versions):
            with pytest.raises((InvalidCall, InvalidReference, NotFound)):
                four.drop(versions)
            assert len(four.versions()) == 4


def test_iter_runs_filters_by_the_prefix_of_ids(hf: Holdfast) -> None:
    for name in ("b|x", "a", "b", "c%b"):
        hf.history(name).commit({})
    for prefix, found in (("", ["a", "b", "b|x", "c%b"]), ("b", ["b", "b|x"]), ("%", [])):
        assert sorted(run.id for run in hf.iter_runs(prefix=prefix)) == found
    with pytest.raises(InvalidCall):
        hf.iter_runs(prefix=7)  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[History, Version, Version], object]] = {
    "commit": lambda log, first, head: log.commit({"x": 5}, expected=head),
    "commit after the head": lambda log, first, head: log.commit({"x": 5}, after=head, expected=head),
    "commit after an old one": lambda log, first, head: log.commit({"x": 5}, after=first, expected=head),
    "commit after it, anywhere": lambda log, first, head: log.commit({"x": 5}, after=first),
    "patch": lambda log, first, head: log.patch({("x",): 5}, after=head),
    "patch, expected": lambda log, first, head: log.patch({("x",): 5}, after=1, expected=head),
    "edit": lambda log, first, head: log.edit(expected=head).__enter__(),
    "rollback": lambda log, first, head: log.rollback(first),
    "rollback, expected": lambda log, first, head: log.rollback(1, expected=head),
    "rollback with a state": lambda log, first, head: log.rollback(first, state={"x": 5}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("knows", [True, False], ids=["known head", "new process"])
def test_version_of_a_run_that_was_created_again_is_refused(tmp_path: Path, change: str, knows: bool) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as mine, holdfast.open(path) as other:
        log = mine.history("run")
        first = log.commit({"who": "mine", "x": 0}, expected=0)
        head = log.commit({"who": "mine", "x": 1})
        other.delete("run")
        theirs = other.history("run")
        theirs.commit({"who": "theirs", "x": 10}, expected=0)
        theirs.commit({"who": "theirs", "x": 11})
        if not knows:
            assert log.head.state["who"] == "theirs"
        with pytest.raises(StaleVersion, match="deleted and created again"):
            CHANGES[change](log, first, head)
        assert (theirs.head.number, theirs.head.copy()) == (2, {"who": "theirs", "x": 11})
        assert len(theirs.timelines()) == 1


def test_edit_and_update_do_not_overwrite_a_run_that_was_created_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as mine, holdfast.open(path) as other:
        log = mine.history("run")
        log.commit({"who": "mine"}, expected=0)

        def create_again() -> None:
            other.delete("run")
            other.history("run").commit({"who": "theirs"}, expected=0)

        edit = log.edit(expected=1)
        edit.__enter__()["x"] = 1
        create_again()
        with pytest.raises(StaleVersion):
            edit.__exit__(None, None, None)
        assert other.history("run").head.copy() == {"who": "theirs"}
        left = [create_again]

        def change(state: Any) -> None:
            state["x"] = 2
            if left:
                left.pop()()

        log.update(change)
        assert other.history("run").head.copy() == {"who": "theirs", "x": 2}
