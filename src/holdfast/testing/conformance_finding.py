"""Contracts of the ways of finding runs: by the beginning of an id, in lists, by what they wait for or come from."""

from __future__ import annotations

from typing import Any

from holdfast.model.records import LIVE, STATUSES
from holdfast.store.base import Append, Store
from holdfast.testing.samples import (
    advanced,
    begin,
    commit,
    history,
    mark,
    new_run,
)


class FindContract:
    """`run_ids`, `runs`, `forks_of`."""

    def test_ids_are_found_by_their_beginning(self, store: Store) -> None:
        ids = ["a", "a%", "a%b", "a_", "a_b", "ab", "abc", "B", "é", "é1", "\U0001f40b", "\U0001f40b2", "~"]
        for run_id in reversed(ids):
            begin(store, run_id)
        for prefix in [
            "",
            "a",
            "a%",
            "a_",
            "ab",
            "b",
            "B",
            "é",
            "\U0001f40b",
            "\U0001f40b2",
            "zz",
            "~",
            "a%bc",
        ]:
            expected = sorted(run_id for run_id in ids if run_id.startswith(prefix))
            assert store.run_ids(prefix, 100) == expected
            assert store.run_ids(prefix, 2) == expected[:2]
            assert sorted(run.id for run in store.runs(prefix=prefix)) == expected

    def test_runs_are_listed_newest_first_and_paged(self, store: Store) -> None:
        made = [begin(store, f"run-{number}") for number in range(7)][::-1]
        assert store.runs() == made
        assert store.runs(limit=3) == made[:3]
        assert store.runs(limit=3, before=made[2].key) == made[3:6]
        assert store.runs(before=made[-1].key) == []

    def test_runs_are_filtered(self, store: Store) -> None:
        made = {}
        for number, status in enumerate(["running", "completed", "failed", "completed"]):
            workflow = "plan" if number % 2 else None
            run = new_run(f"run-{number}", status=status, workflow=workflow)
            run = commit(store, run, at=number * 10, change={"tags": ["all", f"tag-{number}"]})
            made[number] = commit(store, run, at=number * 10, change={"tags": ["late"] if number > 1 else []})

        def found(**filters: Any) -> list[int]:
            return [int(run.id[-1]) for run in store.runs(**filters)]

        assert found(statuses=["completed"]) == [3, 1]
        assert found(statuses=["failed", "running"]) == [2, 0]
        assert found(statuses=[]) == found(statuses=["frozen"]) == []
        assert found(workflow="plan") == [3, 1]
        assert found(workflow="none") == []
        assert found(tags=["all"]) == [3, 2, 1, 0]
        assert found(tags=["late", "tag-2"]) == [2]
        assert found(prefix="run-", statuses=["completed"], before=made[3].key) == [1]
        assert found(prefix="run-2") == [2]
        assert found(tags=["tag-1", "tag-2"]) == []
        assert found(tags=["late", "all", "late", "tag-2", "all"]) == [2]
        assert found(since=10) == [3, 2, 1]
        assert found(since=31) == []
        assert found(statuses=["completed"], workflow="plan", tags=["all"], since=10, limit=1) == [3]
        assert found(statuses=["completed"], before=made[3].key) == [1]
        mark(store, made[2], 2, "late", on=False)
        assert found(tags=["late"]) == [3]

    def test_runs_are_filtered_by_many_tags(self, store: Store) -> None:
        names = [f"tag-{number} 流'\"" for number in range(2000)]
        run = commit(store, new_run("all"), change={"tags": names[:1000]})
        run = commit(store, run, change={"tags": names[500:]})
        other = commit(store, new_run("few"), change={"tags": names[1:]})
        assert store.runs(tags=names) == [run]
        assert store.runs(tags=names * 2, limit=1) == [run]
        assert store.runs(tags=names[1:]) == [other, run]
        assert store.runs(tags=[*names, "missing"]) == []

    def test_runs_of_workflows_that_have_not_ended_are_found(self, store: Store) -> None:
        made = {
            status: begin(store, status, status=status, workflow="plan", due=number)
            for number, status in enumerate(STATUSES)
        }
        by_hand = begin(store, "by hand", status="running")

        def found(**filters: Any) -> list[str]:
            return [run.id for run in store.runs(live=True, **filters)]

        live = [status for status in reversed(STATUSES) if status in LIVE]
        assert found() == live
        assert found(statuses=["running"]) == ["running"]
        assert found(statuses=["running", "queued"]) == ["running", "queued"]
        assert found(statuses=["completed"]) == found(statuses=[]) == []
        assert found(due=1) == ["running", "queued"]
        assert found(statuses=["queued"], due=0) == ["queued"]
        assert found(before=made["frozen"].key, limit=2) == live[1:3]
        # It follows every kind of change.
        run = store.append(Append(made["running"], advanced(made["running"], status="completed")))
        assert "running" not in found()
        run = store.append(Append(run, advanced(run, status="queued", due=1)))
        assert found(statuses=["queued"], due=1) == ["running", "queued"]
        run = store.append(Append(run, advanced(run, head=1, last=1, step="plan")))
        assert store.runs(live=True, statuses=["queued"], due=1, limit=1) == [run]
        run = store.append(Append(run, advanced(run, due=None)))
        assert found(statuses=["queued"], due=1) == ["queued"]
        store.append(Append(by_hand, advanced(by_hand, workflow="plan")))
        assert found(statuses=["running"]) == ["by hand"]
        store.delete_run(run)
        assert found(statuses=["queued"]) == ["queued"]
        assert store.check() == []

    def test_runs_that_are_due_are_found(self, store: Store) -> None:
        made = [begin(store, f"run-{due}", due=due, status="suspended") for due in (None, 30, 10, 20, 0)]

        def found(**filters: Any) -> list[int | None]:
            return [run.due for run in store.runs(**filters)]

        assert found(due=100) == [0, 20, 10, 30]
        assert found(due=20) == [0, 20, 10]
        assert found(due=0) == [0]
        assert found(due=-1) == []
        assert found(due=100, limit=2) == [0, 20]
        assert found(due=100, limit=2, before=made[3].key) == [10, 30]
        assert found(due=100, statuses=["running"]) == []
        assert found() == [0, 20, 10, 30, None]
        store.append(Append(expect=made[3], run=advanced(made[3], due=None)))
        store.append(Append(expect=made[0], run=advanced(made[0], due=15)))
        store.delete_run(made[4])
        assert found(due=20) == [10, 15]

    def test_the_parts_of_a_run_are_found(self, store: Store) -> None:
        parent, other = begin(store, "parent"), begin(store, "other")
        parts = [begin(store, f"part-{n}", parent=parent.key, due=n, status=STATUSES[n]) for n in range(4)]
        of_part = begin(store, "part of part", parent=parts[0].key)
        assert store.runs(parent=parent.key) == parts[::-1]
        assert store.runs(parent=parts[0].key) == [of_part]
        assert store.runs(parent=other.key) == store.runs(parent=0) == []
        assert store.runs(parent=parent.key, statuses=[STATUSES[1], STATUSES[3]], due=2) == [parts[1]]
        assert store.runs(parent=parent.key, limit=1, before=parts[2].key) == [parts[1]]
        store.append(Append(expect=parts[1], run=advanced(parts[1], parent=other.key)))
        assert [run.id for run in store.runs(parent=other.key)] == ["part-1"]
        store.delete_run(parent)
        assert [run.id for run in store.runs(parent=parent.key)] == ["part-3", "part-2", "part-0"]

    def test_forks_are_found_by_their_origin(self, store: Store) -> None:
        origin = history(store, 2, "origin")
        forks = [begin(store, f"fork-{number}", origin=(origin.key, number)) for number in (1, 2)]
        begin(store, "other", origin=(origin.key + 1_000, 1))
        assert sorted(store.forks_of(origin.key), key=lambda run: run.key) == forks
        store.append(Append(expect=forks[0], run=advanced(forks[0], origin=None)))
        assert store.forks_of(origin.key) == forks[1:]
