"""Timelines and forks: rollback, fork, merge."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    AlreadyExists,
    History,
    Holdfast,
    InvalidCall,
    MergeConflict,
    NotFound,
    StaleVersion,
    thaw,
)


@pytest.fixture
def four(log: History) -> History:
    for number in range(1, 5):
        log.commit({"n": number, "messages": [f"m{i}" for i in range(number)]}, step=f"step-{number}")
    return log


# Rollback


def test_rollback_to_2_of_4_starts_timeline_2_with_version_5(four: History) -> None:
    target = four.rollback(to=2, reason="went wrong", actor="Ada")
    assert (target.number, four.head.number) == (2, 2)
    fifth = four.commit({"n": 5})
    with four.edit() as state:
        state["n"] = 6
    sixth = four.head
    assert [(v.number, v.parent, v.timeline) for v in (fifth, sixth)] == [(5, 2, 2), (6, 5, 2)]
    assert [v.number for v in four.ancestors()] == [6, 5, 2, 1]
    for number in (3, 4):
        assert four.at(number).state["n"] == number, "what was left behind stays readable"
        assert four.at(number).timeline == 1
    assert [v.number for v in four.versions(timeline=1)] == [4, 3, 2, 1]
    assert [v.number for v in four.versions(timeline=2)] == [6, 5]


def test_timelines_have_their_parent_and_reason(four: History, hf: Holdfast) -> None:
    at = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    four.rollback(to=2, reason="went wrong", actor="Ada")
    four.rollback(to=4)
    lines = four.timelines()
    assert [(line.number, line.parent, line.reason, line.actor) for line in lines] == [
        (1, None, None, None),
        (2, 2, "went wrong", "Ada"),
        (3, 4, None, None),
    ]
    assert all(line.at == at for line in lines)
    assert hf.runs()[0].timeline == 3


def test_rollback_with_a_state_is_one_commit(hf: Holdfast, four: History) -> None:
    fifth = four.rollback(to=2, state={"n": 2, "kept": [4]}, step="mend", reason="went wrong", actor="Ada")
    assert (fifth.number, fifth.parent, fifth.timeline, fifth.step) == (5, 2, 2, "mend")
    assert (fifth.note, fifth.actor) == ("went wrong", "Ada")
    assert four.head.state == {"n": 2, "kept": [4]}
    line = four.timelines()[1]
    assert (line.number, line.parent, line.reason, line.actor) == (2, 2, "went wrong", "Ada")
    sixth = four.commit({"n": 6, "kept": [4]})
    assert [v.number for v in four.ancestors()] == [6, 5, 2, 1]
    assert (sixth.timeline, four.at(4).state["n"]) == (2, 4)
    assert [event.kind for event in four.events()].count("run.rolled_back") == 1
    assert hf.verify()


def test_rollback_with_expected_refuses_a_moved_head(four: History) -> None:
    for state in (None, {"n": 0}):
        with pytest.raises(StaleVersion, match="at version 4, not 3"):
            four.rollback(to=1, expected=3, state=state)
    assert (four.head.number, len(four.timelines())) == (4, 1)
    four.rollback(to=1, expected=4)
    with pytest.raises(StaleVersion):
        four.rollback(to=1, expected=four.at(4))
    assert len(four.timelines()) == 2


def test_rollback_of_a_workflow_with_a_state_is_refused(hf: Holdfast) -> None:
    @holdfast.workflow
    def nothing() -> None:
        """Does nothing."""

    hf.run(nothing, run_id="flow")
    with pytest.raises(InvalidCall, match="belongs to a workflow"):
        hf.history("flow").rollback(to=1, state={})


def test_rollback_is_recorded_in_the_journal(four: History) -> None:
    four.rollback(to=2, reason="went wrong", actor="Ada")
    entry = four.events()[-1]
    assert entry.kind == "run.rolled_back"
    assert entry.data == {"since": 4, "to": 2, "timeline": 2, "reason": "went wrong", "actor": "Ada"}


def test_versions_after_a_rollback_see_nothing_of_the_abandoned_timeline(four: History) -> None:
    four.rollback(to=2)
    with four.edit(step="again") as state:
        assert state == {"n": 2, "messages": ["m0", "m1"]}
        state["messages"].append("other")
    assert four.head.state == {"n": 2, "messages": ["m0", "m1", "other"]}
    assert four.head.completed_steps == ["step-1", "step-2", "again"]
    assert four.blame("messages").version.number == 5
    assert four.blame("n").version.number == 2


def test_plain_commit_after_a_rollback_is_made_from_its_target(four: History) -> None:
    four.rollback(to=1)
    assert four.commit({"n": 9, "messages": ["only"]}).state == {"n": 9, "messages": ["only"]}


def test_rollback_in_one_open_store_is_seen_in_another(file: Path) -> None:
    with holdfast.open(file) as one, holdfast.open(file) as other:
        log, other_log = one.history("r"), other.history("r")
        for number in range(1, 4):
            log.commit({"n": number})
        assert other_log.head.number == 3
        log.rollback(to=1)
        assert other_log.head.number == 1
        assert other_log.commit({"n": 9}).parent == 1
        assert log.head.state == {"n": 9}


def test_rollback_restores_the_status_of_its_target(hf: Holdfast, log: History) -> None:
    log.commit({}, status="running")
    log.commit({}, status="failed")
    log.rollback(to=1)
    assert hf.runs()[0].status == "running"


def test_rollback_accepts_a_later_version_and_the_head(four: History) -> None:
    four.rollback(to=1)
    four.rollback(to="head")
    four.rollback(to=four.at(4))
    assert four.commit({}).parent == 4
    assert [v.number for v in four.ancestors()] == [5, 4, 3, 2, 1]


# Fork


def test_rollback_of_a_fork_starts_its_timeline_whatever_the_timelines_of_its_deleted_origin(
    hf: Holdfast, four: History
) -> None:
    four.rollback(2)
    with four.edit() as draft:
        draft["only"] = {"words": ["on timeline 2"] * 5}
    fork = hf.fork(f"{four.id}@head", "fork")
    hf.delete(four.id)
    fork.rollback(1)
    with fork.edit() as draft:
        draft["more"] = 1
    assert (fork.head.number, fork.head.parent, fork.head.timeline) == (2, 1, 2)
    assert fork.head.state["only"] == {"words": ["on timeline 2"] * 5}


def test_fork_is_an_independent_run(hf: Holdfast, four: History) -> None:
    fork = hf.fork("run-1@2", "run-2", note="another model", actor="Ada")
    first = fork.head
    assert (first.number, first.parent, first.kind, first.timeline) == (1, None, "fork", 1)
    assert (first.note, first.actor) == ("another model", "Ada")
    assert first.state == four.at(2).state
    assert {run.id: run.origin for run in hf.runs()} == {"run-1": None, "run-2": "run-1@2"}


def test_origin_and_fork_do_not_see_each_other(hf: Holdfast, four: History) -> None:
    fork = hf.fork(four.at(2), "run-2")
    with fork.edit() as state:
        state["messages"].append("fork")
    with four.edit() as state:
        state["messages"].clear()
    assert fork.head.state == {"n": 2, "messages": ["m0", "m1", "fork"]}
    assert four.at(2).state == {"n": 2, "messages": ["m0", "m1"]}
    assert four.head.state == {"n": 4, "messages": []}
    four.rollback(to=1)
    assert fork.head.number == 2
    assert fork.blame("messages").version.number == 2
    assert fork.blame("n").version.number == 1


def test_fork_shares_the_nodes_of_its_origin(hf: Holdfast, log: History) -> None:
    log.commit({"documents": {f"d{n}": f"text {n} " * 100 for n in range(200)}})
    fork = hf.fork("run-1", "run-2")
    with fork.edit() as state:
        state["documents"]["d7"] = "new"
    run = {run.id: run for run in hf.runs()}
    assert run["run-2"].size < run["run-1"].size / 10


def test_fork_can_start_with_another_state(hf: Holdfast, four: History) -> None:
    state = thaw(four.at(2).state)
    state["model"] = "other"
    assert hf.fork("run-1@2", "run-2", state=state).head.state == state
    assert "model" not in four.at(2).state


def test_fork_accepts_a_fork_and_an_abandoned_timeline(hf: Holdfast, four: History) -> None:
    four.rollback(to=1)
    hf.fork("run-1@4", "run-2")
    hf.history("run-2").commit({"n": "fork"})
    third = hf.fork("run-2@1", "run-3")
    assert third.head.state["n"] == 4
    with third.edit() as state:
        state["messages"].append("third")
    assert third.head.state["messages"] == ["m0", "m1", "m2", "m3", "third"]
    assert hf.verify().ok


def test_fork_refuses_an_id_that_exists(hf: Holdfast, four: History) -> None:
    hf.history("run-2").commit({"mine": 1})
    with pytest.raises(AlreadyExists, match="another id"):
        hf.fork("run-1", "run-2")
    with pytest.raises(AlreadyExists):
        hf.fork("run-1", "run-1")
    assert hf.history("run-2").head.state == {"mine": 1}


def test_fork_is_recorded_in_the_journal_of_its_origin(hf: Holdfast, four: History) -> None:
    hf.fork("run-1@2", "run-2")
    assert [(e.kind, e.version, e.data) for e in four.events()][-1] == ("run.forked", 2, {"fork": "run-2"})


# Merge


def test_merge_joins_two_timelines(four: History) -> None:
    with four.edit() as state:
        state["left"] = 1
        state["messages"].append("left")
    four.rollback(to=4)
    with four.edit() as state:
        state["right"] = 1
        state["messages"].append("right")
    merged = four.merge(5, note="both", actor="Ada")
    assert (merged.number, merged.parent, merged.kind, merged.timeline) == (7, 6, "merge", 2)
    assert (merged.note, merged.actor) == ("both", "Ada")
    assert merged.state["messages"] == ["m0", "m1", "m2", "m3", "right", "left"]
    assert (merged.state["left"], merged.state["right"]) == (1, 1)
    assert four.blame("left").version.number == 5, "blame looks into what was merged"
    assert four.blame("right").version.number == 6
    assert four.blame("messages").version.number == 7


def test_merge_accepts_a_timeline(four: History) -> None:
    ways: list[dict[str, Any]] = [{"other": four.timelines()[0]}, {"timeline": 1}]
    for way in ways:
        four.rollback(to=2)
        with four.edit() as state:
            state["side"] = True
        merged = four.merge(**way)
        assert merged.state == {"n": 4, "messages": ["m0", "m1", "m2", "m3"], "side": True}


def test_merge_of_a_timeline_without_versions_is_refused(four: History) -> None:
    four.rollback(to=2)
    with pytest.raises(NotFound, match="timeline 2"):
        four.merge(timeline=2)


def test_merge_with_a_conflict_changes_nothing_unless_resolved(four: History) -> None:
    four.rollback(to=3)
    with four.edit() as state:
        state["n"] = "mine"
    with pytest.raises(MergeConflict) as caught:
        four.merge(4)
    assert caught.value.details["path"] == "n"
    assert (caught.value.details["base"], caught.value.details["theirs"]) == (3, "mine")
    assert four.head.number == 5
    merged = four.merge(4, resolve=lambda path, base, ours, theirs: f"{path[0]}: {base} {ours} {theirs}")
    assert merged.state["n"] == "n: 3 4 mine"


def test_merge_of_an_ancestor_changes_nothing(four: History) -> None:
    assert four.merge(2).state == four.at(4).state
    assert not four.diff(4, 5).changes


def test_new_history_commits_the_given_state(hf: Holdfast) -> None:
    """Whatever others in this process know of the run."""
    hf.history("run-1").commit({"a": 1})
    hf.history("run-1").commit({"a": 2})
    hf.history("run-1").rollback(to=1)
    made = hf.history("run-1").commit({"a": 2, "b": 1})
    assert (made.parent, made.state) == (1, {"a": 2, "b": 1})


def test_new_history_continues_from_the_head_in_the_store(file: Path) -> None:
    with holdfast.open(file) as hf, holdfast.open(file) as other:
        hf.history("run-1").commit({"a": 1})
        hf.history("run-1").commit({"a": 2})
        other.history("run-1").commit({"a": 3})
        assert hf.history("run-1").commit({"a": 2, "b": 1}).state == {"a": 2, "b": 1}
        other.history("run-1").rollback(to=1)
        made = hf.history("run-1").commit({"a": 2, "b": 2})
        assert (made.parent, made.state) == (1, {"a": 2, "b": 2})


@pytest.mark.parametrize("by_the_reader", [True, False])
def test_fork_of_a_fork_is_readable_while_its_first_origin_is_deleted(
    tmp_path: Path, *, by_the_reader: bool
) -> None:
    with holdfast.open(tmp_path / "a.db") as writer, holdfast.open(tmp_path / "a.db") as reader:
        log = writer.history("a")
        for n in range(10):
            with log.edit() as state:
                state[f"k{n}"] = {"text": "x" * 600, "n": n}
        writer.fork("a@10", "b")
        writer.fork("b@1", "c")
        assert reader.history("c").head.get("k0.n") == 0
        (reader if by_the_reader else writer).delete("a")
        assert [reader.history("c").head.get(f"k{n}.n") for n in range(10)] == list(range(10))
        assert reader.verify().ok
