"""Pruning: the versions that are removed, those that are always kept, and that kept versions are unchanged."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_clock import Clock

import holdfast
from holdfast import History, Holdfast, InvalidCall, NotFound, Retention, thaw


def fill(log: History, count: int, *, start: int = 0) -> None:
    """A state that grows and changes: every version shares nodes with those before."""
    for number in range(start, start + count):
        with log.edit(step="work") as state:
            state["n"] = number
            state.setdefault("messages", []).append({"text": f"{number} " * 100})
            state.setdefault("documents", {})[f"d{number % 7}"] = f"text {number} " * 80


def kept(log: History) -> list[int]:
    return [version.number for version in log.versions(limit=1000)][::-1]


def states(log: History) -> dict[int, Any]:
    return {version.number: thaw(version.state) for version in log.versions(limit=1000)}


def test_prune_keeps_the_last_versions_unchanged(hf: Holdfast, log: History) -> None:
    fill(log, 20)
    before = states(log)
    size = hf.stats().pack_bytes
    pruned = log.prune(Retention(last=5))
    assert (pruned.versions, pruned.kept) == (tuple(range(1, 16)), tuple(range(16, 21)))
    assert states(log) == {number: before[number] for number in range(16, 21)}
    assert pruned.bytes > 0
    assert hf.stats().pack_bytes == size - pruned.bytes == hf.runs()[0].size
    assert (hf.stats().versions, hf.runs()[0].versions) == (5, 5)
    assert hf.verify().ok


def test_pruned_version_is_not_found_by_any_method(hf: Holdfast, log: History) -> None:
    fill(log, 6)
    held = log.at(2)
    listed = log.versions()[-2]
    log.prune(Retention(last=2))
    for gone in (
        lambda: log.at(2),
        lambda: hf.version("run-1@2"),
        lambda: log.rollback(to=2),
        lambda: log.rollback(to=held),
        lambda: log.tag(2, "late"),
        lambda: log.diff(2, 6),
        lambda: log.export(2),
        lambda: log.merge(2),
        lambda: hf.fork("run-1@2", "run-2"),
        lambda: hf.fork(held, "run-2"),
        lambda: held.state,
        lambda: listed.result,
    ):
        with pytest.raises(NotFound, match="pruned"):
            gone()
    assert [run.id for run in hf.runs()] == ["run-1"]
    assert log.head.number == 6


def test_dry_run_reports_versions_and_removes_nothing(log: History) -> None:
    fill(log, 6)
    planned = log.prune(Retention(last=2), dry_run=True)
    assert (planned.versions, planned.kept, planned.dry_run) == ((1, 2, 3, 4), (5, 6), True)
    assert kept(log) == [1, 2, 3, 4, 5, 6]
    done = log.prune(Retention(last=2))
    assert (done.versions, done.kept, done.dry_run) == ((1, 2, 3, 4), (5, 6), False)


def test_retention_within_keeps_recent_versions(log: History, clock: Clock) -> None:
    for _ in range(5):
        fill(log, 1)
        clock.forward(hours=1)
    # They are 5, 4, 3, 2, 1 hours old.
    log.prune(Retention(within=dt.timedelta(hours=3)))
    assert kept(log) == [3, 4, 5]
    clock.forward(days=30)
    log.prune(Retention(within=dt.timedelta(hours=3)))
    assert kept(log) == [5], "the head is kept however old it is"


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        # 22:13, 04:13, 10:13, 16:13, 22:13 … six hours apart, from a Tuesday on
        ({"daily": 1}, [12]),
        ({"daily": 3}, [5, 9, 12]),
        ({"daily": 99}, [1, 5, 9, 12]),
        ({"hourly": 3}, [10, 11, 12]),
        ({"weekly": 2}, [12]),
        ({"daily": 2, "last": 2}, [9, 11, 12]),
        ({"daily": 0}, [12]),
    ],
)
def test_retention_keeps_the_newest_of_each_hour_day_and_week(
    log: History, clock: Clock, rule: dict[str, int], numbers: list[int]
) -> None:
    for _ in range(12):
        fill(log, 1)
        clock.forward(hours=6)
    log.prune(Retention(**rule))  # type: ignore[arg-type]
    assert kept(log) == numbers


def test_retention_weeks_start_on_monday(log: History, clock: Clock) -> None:
    for _ in range(14):  # Tuesday to Monday after next
        fill(log, 1)
        clock.forward(days=1)
    log.prune(Retention(weekly=5))
    assert kept(log) == [6, 13, 14], "two Sundays, and the Monday"


def test_prune_keeps_head_tagged_pinned_and_fork_points(hf: Holdfast, log: History) -> None:
    fill(log, 10)
    log.tag(2, "good")
    log.pin(4)
    hf.fork("run-1@6", "run-2")
    log.rollback(to=8)
    before = states(log)
    log.prune(Retention(last=0))
    assert kept(log) == [2, 4, 6, 8]
    assert states(log) == {number: before[number] for number in (2, 4, 6, 8)}
    log.untag(2, "good")
    log.unpin(4)
    hf.delete("run-2")
    log.prune(Retention(last=0))
    assert kept(log) == [8]
    assert states(log) == {8: before[8]}
    assert hf.verify().ok


def test_commits_after_a_prune_continue_numbers_and_share_nodes(hf: Holdfast, log: History) -> None:
    fill(log, 40)
    log.prune(Retention(last=1))
    size = hf.runs()[0].size
    fill(log, 1, start=40)
    assert log.head.number == 41
    assert hf.runs()[0].size - size < size / 4, "one more message, not the whole state again"
    assert log.at(40).state["n"] == 39
    assert not log.diff(40, 40)
    assert {change.where for change in log.diff(40, 41).changes} == {"n", "messages[40]", "documents.d5"}
    assert hf.verify().ok


def test_repeated_prunes_keep_the_store_small(hf: Holdfast, log: History) -> None:
    fill(log, 10)
    sizes = []
    for start in range(10, 110, 20):
        with log.edit() as state:
            state["messages"].clear()
        fill(log, 20, start=start)
        expected = thaw(log.head.state)
        log.prune(Retention(last=3))
        sizes.append(hf.stats().pack_bytes)
        assert thaw(log.head.state) == expected
    assert max(sizes) < 3 * min(sizes)
    assert hf.verify().ok


def test_edit_can_be_committed_after_a_concurrent_prune(hf: Holdfast, log: History) -> None:
    fill(log, 10)
    expected = thaw(log.head.state)
    with log.edit() as state:
        state["messages"][3]["text"] = "changed"
        log.prune(Retention(last=1))
    expected["messages"][3]["text"] = "changed"
    assert thaw(log.head.state) == expected
    assert hf.verify().ok


def test_fork_is_readable_after_its_origin_was_pruned(hf: Holdfast, log: History) -> None:
    fill(log, 6)
    fork = hf.fork("run-1@3", "run-2")
    expected = thaw(fork.head.state)
    fill(log, 6, start=6)
    log.prune(Retention(last=1))
    assert kept(log) == [3, 12]
    fill(fork, 1, start=50)
    assert thaw(fork.at(1).state) == expected
    assert fork.head.state["n"] == 50
    fork.prune(Retention(last=1))
    assert kept(fork) == [2]
    assert hf.verify().ok


def test_journal_records_pruned_versions(log: History) -> None:
    fill(log, 6)
    log.prune(Retention(last=2))
    entries = log.events()
    assert [(entry.kind, entry.version) for entry in entries] == [
        ("version.saved", 5),
        ("version.saved", 6),
        ("versions.pruned", None),
    ]
    assert entries[-1].data == {"versions": [1, 2, 3, 4], "kept": 2}


def test_events_of_a_pruned_run_are_read_page_by_page(log: History, hf: Holdfast) -> None:
    fill(log, 12)
    log.prune(Retention(last=2))
    for read in (log.events, hf.events):
        found: list[int | None] = []
        cursor = 0
        while page := read(after=cursor, limit=1):
            found += [entry.version for entry in page]
            cursor = page[-1].cursor
        assert found == [11, 12, None]


def test_distance_blame_and_bisect_end_at_a_pruned_version(log: History) -> None:
    fill(log, 8)
    log.tag(2, "old")
    log.prune(Retention(last=3))
    assert [version.number for version in log.ancestors()] == [8, 7, 6]
    assert log.at("~2").number == 6
    with pytest.raises(NotFound):
        log.at("~3")
    assert log.blame("messages[0]").version.number == 6
    assert log.blame("n").version.number == 8
    found = log.bisect(lambda state: state["n"] < 6)
    assert found is not None
    assert found.number == 7


def test_pruned_run_is_exported_and_imported(hf: Holdfast, log: History) -> None:
    fill(log, 8)
    log.prune(Retention(last=2))
    file = io.BytesIO()
    hf.export_run("run-1", file)
    file.seek(0)
    copy = hf.import_run(file, run_id="copy")
    assert states(copy) == states(log)
    with pytest.raises(NotFound, match="pruned"):
        copy.at(3)
    fill(copy, 1, start=8)
    assert copy.head.number == 9
    assert hf.verify().ok


def test_prune_of_nothing_changes_nothing(hf: Holdfast, log: History) -> None:
    fill(log, 3)
    events = len(log.events())
    assert log.prune(Retention(last=10)).versions == ()
    assert len(log.events()) == events
    assert kept(log) == [1, 2, 3]


@pytest.mark.parametrize("mark", ["tag", "pin"])
def test_version_marked_during_a_prune_is_kept(
    hf: Holdfast, log: History, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    fill(log, 6)
    carry_out = hf._store.prune

    def mark_first(plan: Any) -> Any:
        monkeypatch.setattr(hf._store, "prune", carry_out)
        if mark == "tag":
            log.tag(2, "late")
        else:
            log.pin(2)
        return carry_out(plan)

    monkeypatch.setattr(hf._store, "prune", mark_first)
    log.prune(Retention(last=1))
    assert kept(log) == [2, 6]
    assert log.at(2).pinned or log.at(2).tags == ("late",)


def test_prune_is_retried_after_a_concurrent_commit(
    hf: Holdfast, log: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 6)
    carry_out = hf._store.prune

    def commit_first(plan: Any) -> Any:
        monkeypatch.setattr(hf._store, "prune", carry_out)
        fill(log, 1, start=6)
        return carry_out(plan)

    monkeypatch.setattr(hf._store, "prune", commit_first)
    assert log.prune(Retention(last=2)).kept == (6, 7)
    assert hf.verify().ok


def test_version_pruned_while_it_is_read_is_not_found(file: Path) -> None:
    with holdfast.open(file) as hf, holdfast.open(file) as other:
        fill(other.history("run-1"), 12)
        held = hf.history("run-1").at(7)
        held.reader.roots(7)  # what a reader has at hand when another prunes
        other.history("run-1").prune(Retention(last=1))
        with pytest.raises(holdfast.NotFound, match="pruned"):
            held.state  # noqa: B018 - reading is the point
        assert hf.verify().ok


def test_retention_rules_can_be_limited_to_one_step(log: History) -> None:
    for number in range(12):
        log.commit({"n": number}, step="save" if number % 3 == 0 else None)
    gone = log.prune(Retention(last=2, step="save"))
    assert gone.kept == (7, 8, 9, 10, 11, 12), "two of the step, and what came since"
    assert log.prune(Retention(within=dt.timedelta(days=1), step="save")).kept == (7, 10, 12), "and the head"
    assert log.prune(Retention(last=0, step="save")).kept == (12,)
    with pytest.raises(InvalidCall, match="name of a step"):
        Retention(last=1, step=3)  # type: ignore[arg-type]


def test_quiet_prune_writes_no_event(hf: Holdfast) -> None:
    log = hf.history("a")
    for number in range(5):
        log.commit({"n": number})
    assert log.prune(Retention(last=2), quiet=True).versions == (1, 2, 3)
    assert [event.kind for event in log.events()] == ["version.saved", "version.saved"]
    assert hf.verify().ok


@pytest.mark.slow
def test_long_state_is_unchanged_by_repeated_prunes(hf: Holdfast) -> None:
    log = hf.history("a")
    state = {"items": [{"text": "x" * 1000, "n": number} for number in range(400)]}
    order = Random(0)
    for number in range(120):
        state["items"][order.randrange(400)] = {"text": "y" * 1000, "n": -number}
        log.commit(state)
        log.prune(Retention(last=3))
    assert thaw(log.head.state) == state
    assert hf.verify().ok


def test_prune_keeps_an_attachment_that_is_stored_meanwhile(
    hf: Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = hf.history("waits")
    for number in range(3):
        log.commit({"n": number})
    log.attach("task-7", {"begin": 1})
    clock.forward(hours=1, seconds=1)
    store = log.context.store
    keys = store.attachment_keys

    def attach_after(*args: Any, **options: Any) -> Any:
        found = keys(*args, **options)
        log.attach("task-7", {"answer": 42})
        return found

    monkeypatch.setattr(store, "attachment_keys", attach_after)
    log.prune(Retention(last=1))
    assert log.attachments("task-7") == {"task-7": {"answer": 42}}


def test_manual_run_is_rolled_back_after_it_was_pruned(hf: Holdfast, log: History) -> None:
    for number in range(8):
        log.commit({"n": number})
    log.tag(3, "good")
    log.prune(Retention(last=2))
    hf.rollback(log.id, to="good", reason="it went wrong after that")
    assert (log.head.number, log.head.state["n"]) == (3, 2)
