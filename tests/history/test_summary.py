"""Summaries of versions: what they show, what they cost, and what they show of old, pruned and damaged versions."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_clock import Clock

import holdfast
from holdfast import History, Holdfast, InvalidCall, NotFound, Retention
from patience import until

_STEPS = [f"step-{number}" for number in range(300)]


def _commit_steps(log: History, steps: list[str]) -> None:
    log.commit({"topic": "AI"})
    for step in steps:
        with log.edit(step=step) as state:
            state["last"] = step


def test_summary_lists_step_completed_steps_and_keys(log: History, clock: Clock) -> None:
    log.commit({"topic": "AI"}, status="running")
    log.commit({"topic": "AI", "insights": ["a"]}, step="analyst")
    log.commit({"topic": "AI", "insights": ["a"], "copy": "b"}, step="marketer")
    final, middle, first = log.summary()
    assert (final.version, final.parent, final.timeline, final.step, final.kind) == (
        3,
        2,
        1,
        "marketer",
        "step",
    )
    assert list(final.completed_steps) == ["analyst", "marketer"]
    assert final.keys == ("topic", "insights", "copy")
    assert (middle.keys, list(middle.completed_steps)) == (("topic", "insights"), ["analyst"])
    assert (first.parent, first.step, first.keys, list(first.completed_steps)) == (None, None, ("topic",), [])
    assert first.created == log.at(1).at


def test_completed_steps_behave_as_a_list(log: History) -> None:
    _commit_steps(log, _STEPS[:5])
    steps = log.summary(limit=1)[0].completed_steps
    assert len(steps) == 5
    assert steps == _STEPS[:5]
    assert steps != _STEPS[:4]
    assert (steps[0], steps[-1], steps[-2:], steps[1:3]) == (_STEPS[0], _STEPS[4], _STEPS[3:5], _STEPS[1:3])
    assert list(reversed(steps)) == _STEPS[4::-1]
    assert _STEPS[2] in steps
    assert " → ".join(steps[-9:]) == " → ".join(_STEPS[:5])
    with pytest.raises(IndexError):
        steps[-6]


def test_completed_steps_of_pruned_versions_are_counted(log: History) -> None:
    _commit_steps(log, _STEPS[:40])
    log.prune(Retention(last=10))
    newest = log.summary()[0].completed_steps
    (middle,) = [each.completed_steps for each in log.summary() if each.step == _STEPS[31]]
    assert len(newest) == len(list(newest)) == 40
    assert newest == ["(pruned)"] * 30 + _STEPS[30:40]
    assert list(reversed(newest)) == list(newest)[::-1]
    for at in range(-40, 40):
        assert newest[at] == list(newest)[at]
    assert (newest[-3:], newest[-99:], newest[28:32]) == (_STEPS[37:40], list(newest), list(newest)[28:32])
    assert middle == ["(pruned)"] * 30 + _STEPS[30:32]
    for at in (40, -41):
        with pytest.raises(IndexError):
            newest[at]
    assert log.head.completed_steps == _STEPS[30:40]


def test_failed_steps_are_not_completed_steps(hf: Holdfast) -> None:
    @holdfast.step
    def broken() -> None:
        raise OSError("no")

    @holdfast.step
    def fine() -> int:
        return 1

    @holdfast.workflow
    def flow() -> int:
        try:
            broken()
        except OSError:
            return fine()
        return 0

    run = hf.run(flow, run_id="half")
    newest = run.history().summary(limit=1)[0]
    assert list(newest.completed_steps) == ["fine"]
    assert len(newest.completed_steps) == 1
    assert run.head.completed_steps == ["fine"]


def test_keys_after_a_rollback_are_those_of_the_timeline(log: History) -> None:
    log.commit({"a": 1})
    log.commit({"a": 1, "b": 2}, step="two")
    log.commit({"a": 1, "b": 2, "c": 3}, step="three")
    log.rollback(1)
    log.commit({"a": 2}, step="again")
    with log.edit(step="more") as state:
        state["a"] = 3
    assert [(each.version, each.keys) for each in log.summary()] == [
        (5, ("a",)),
        (4, ("a",)),
        (3, ("a", "b", "c")),
        (2, ("a", "b")),
        (1, ("a",)),
    ]
    assert [list(each.completed_steps) for each in log.summary(limit=2)] == [["again", "more"], ["again"]]


def test_keys_of_states_that_are_not_plain_dicts(log: History) -> None:
    states: list[tuple[Any, tuple[str, ...], int]] = [
        ([1, 2], (), 0),
        ("text", (), 0),
        ({}, (), 0),
        ({1: "a", "1": "b", None: "c", (2, 3): "d"}, ("1", "1", "None", "(2, 3)"), 4),
        ({"\ud800x": 1, "ü": 2}, ("\\ud800x", "ü"), 2),
        ({"k" * 60_000: 1}, ("k" * 99 + "…",), 1),
        ({f"key-{n}": n for n in range(10_000)}, tuple(f"key-{n}" for n in range(32)), 10_000),
        ({f"{n:0>90}": n for n in range(20)}, tuple(f"{n:0>90}" for n in range(11)), 20),
    ]
    for state, keys, count in states:
        log.commit(state)
        newest = log.summary(limit=1)[0]
        assert (newest.keys, newest.key_count) == (keys, count)


def test_keys_of_a_state_that_grows_are_recorded_once(log: History) -> None:
    state = {f"key-{number:05}": 0 for number in range(40)}
    first = tuple(state)[:32]
    log.commit(state)
    for number in range(40, 100):
        state[f"key-{number:05}"] = number
        log.commit(state)
    log.rollback(10)
    log.commit({**holdfast.thaw(log.head.state), "more": 1})
    found = log.summary(limit=100)
    counts = [50, *range(100, 39, -1)]
    assert [(each.keys, each.key_count) for each in found] == [(first, count) for count in counts]
    # Also if the page does not begin with a version that records them.
    assert [each.key_count for each in log.summary(before=30, limit=3)] == [68, 67, 66]
    sizes = [len(msgspec.msgpack.encode(version.detail)) for version in log.iter_versions()]
    assert sum(sizes) < 4_000


def test_keys_that_are_replaced_are_recorded_again(log: History) -> None:
    for number in range(100):
        log.commit({f"key-{each:05}": 0 for each in range(number, number + 50)})
    for each in log.summary(limit=100):
        assert each.keys == tuple(f"key-{number:05}" for number in range(each.version - 1, each.version + 31))
        assert each.key_count == 50


def test_pages_are_complete_and_in_order(log: History) -> None:
    _commit_steps(log, _STEPS)
    pages: list[int] = []
    before = None
    while page := log.summary(limit=7, before=before):
        assert all(each.keys == (("topic", "last") if each.version > 1 else ("topic",)) for each in page)
        pages += [each.version for each in page]
        before = page[-1].version
    assert pages == list(range(301, 0, -1)) == [each.version for each in log.iter_summary()]


def test_a_page_is_one_query_and_reads_no_state(
    log: History, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit_steps(log, _STEPS)
    store, asked = hf._store, []

    def count(name: str) -> None:
        real = getattr(store, name)

        def counted(*args: Any, **options: Any) -> Any:
            asked.append((name, options.get("limit")))
            return real(*args, **options)

        monkeypatch.setattr(store, name, counted)

    for name in ("versions", "packs", "pack_bytes", "block", "marks", "timelines"):
        count(name)
    page = log.summary(limit=20, before=250)
    assert [len(each.completed_steps) for each in page[:2]] == [248, 247]
    assert asked == [("versions", 51)]
    assert page[0].completed_steps[-2:] == _STEPS[246:248]
    # A version and a page of its ancestors.
    assert asked[1:] == [("versions", 1), ("versions", 256)]


def test_versions_of_earlier_releases_have_no_recorded_keys(tmp_path: Path) -> None:
    copy = tmp_path / "old.sqlite"
    copy.write_bytes((Path(__file__).parents[1] / "compat" / "format-4.sqlite").read_bytes())
    with holdfast.open(copy) as hf:
        for run in hf.iter_runs():
            for each in hf.history(run.id).summary():
                assert (each.keys, each.key_count) == (None, None)
                names = [name for name in each.completed_steps if name != "(pruned)"]
                assert names == hf.history(run.id).at(each.version).completed_steps


def test_keys_of_versions_whose_predecessors_were_pruned_are_unknown_or_right(log: History) -> None:
    _commit_steps(log, _STEPS[:70])
    log.prune(Retention(last=30))
    for each in log.summary(limit=100):
        assert each.keys in (None, tuple(log.at(each.version).state))
    assert log.summary(limit=1)[0].keys == ("topic", "last")


def test_a_damaged_row_is_listed_and_others_stay_right(file: Path, clock: Clock) -> None:
    with holdfast.open(file, durability="fast", clock=clock) as hf:
        _commit_steps(hf.history("run-1"), _STEPS[:6])
    with sqlite3.connect(file) as raw:
        raw.execute("UPDATE journal SET step = 'lie' WHERE number = 4")
    raw.close()
    with holdfast.open(file, durability="fast", clock=clock) as hf:
        found = {each.version: each for each in hf.history("run-1").summary()}
        assert found[4].is_damaged
        assert found[4].keys is None
        assert found[3].keys == ("topic", "last")
        # What the damaged version recorded is not known, so nothing is claimed of those after it.
        assert found[5].keys is None


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": True}, {"limit": "3"}, {"before": 0}, {"before": "x"}]
)
def test_wrong_arguments_are_refused(log: History, wrong: dict[str, Any]) -> None:
    log.commit({})
    with pytest.raises(InvalidCall):
        log.summary(**wrong)


def test_summary_of_a_run_that_does_not_exist(log: History) -> None:
    with pytest.raises(NotFound):
        log.summary()


def test_a_fork_shows_its_own_versions_with_keys(hf: Holdfast, log: History) -> None:
    _commit_steps(log, _STEPS[:4])
    fork = hf.fork(log.at(3), "other")
    with fork.edit(step="else") as state:
        state["extra"] = 1
    newest, first = fork.summary()
    assert (newest.keys, first.keys) == (("topic", "last", "extra"), ("topic", "last"))


def test_keys_survive_export_and_import(hf: Holdfast, log: History, tmp_path: Path) -> None:
    _commit_steps(log, _STEPS[:4])
    # Of the last ones, only the number of keys is recorded.
    for count in (40, 41, 42):
        log.commit({f"key-{number}": 0 for number in range(count)})
    hf.export_run("run-1", tmp_path / "run.bundle")
    copied = hf.import_run(tmp_path / "run.bundle", run_id="copy")
    assert [each.key_count for each in copied.summary(limit=3)] == [42, 41, 40]
    assert [each.keys for each in copied.summary()] == [each.keys for each in log.summary()]


def test_resumed_from_and_rolled_back_from(hf: Holdfast) -> None:
    broken = True

    @holdfast.step
    def analyst() -> str:
        return "insights"

    @holdfast.step
    def marketer() -> str:
        if broken:
            raise RuntimeError("down")
        return "copy"

    @holdfast.workflow
    def content() -> str:
        return analyst() + marketer()

    run = hf.run(content, run_id="content-1", raises=False)
    assert (run.resumed_from, run.rolled_back_from) == (None, None)
    head = run.head.number
    broken = False
    run = hf.resume("content-1")
    assert (run.resumed_from, run.rolled_back_from) == (head, None)
    end = run.head.number
    run = hf.rollback("content-1", 2)
    assert (run.resumed_from, run.rolled_back_from) == (2, end)
    run = hf.rollback("content-1", 1, resume=False)
    assert (run.resumed_from, run.rolled_back_from) == (2, run.history().summary(limit=1)[0].version)


def test_a_run_from_a_queue_is_started_not_resumed(hf: Holdfast) -> None:
    @holdfast.workflow
    def queued() -> int:
        return 1

    run = hf.enqueue(queued, run_id="queued-1")
    with hf.worker(monitor=False):
        run.wait(timeout=60)
    assert run.resumed_from is None


def test_a_worker_that_continues_a_run_resumes_it(hf: Holdfast) -> None:
    broken = [True]

    @holdfast.step
    def first() -> None: ...

    @holdfast.step
    def fragile() -> int:
        if broken:
            raise OSError("down")
        return 1

    @holdfast.workflow
    def queued_twice() -> int:
        first()
        return fragile()

    run = hf.enqueue(queued_twice, run_id="queued-2")
    with hf.worker(monitor=False):
        until(lambda: run.status == "failed")
        assert run.resumed_from is None
        broken.clear()
        hf.requeue("queued-2")
        until(lambda: run.status == "completed")
    assert run.resumed_from == 2


def test_manual_rollbacks_are_recorded(hf: Holdfast, log: History) -> None:
    _commit_steps(log, _STEPS[:3])
    log.rollback(2)
    assert (hf.get("run-1").rolled_back_from, hf.get("run-1").resumed_from) == (4, None)
    log.commit({"x": 1})
    assert hf.get("run-1").rolled_back_from == 4
