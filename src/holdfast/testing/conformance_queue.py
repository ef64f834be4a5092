"""Contracts of queues: who gets which run, and that nobody else does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import StaleVersion
from holdfast.model.records import EventRecord, RunRecord
from holdfast.store.base import Append, Claim, Place, Store
from holdfast.testing.samples import HOUR, new_run

NOW = 1_000_000
LEASE = 500


def enqueue(store: Store, run_id: str, queue: str = "q", priority: int = 0, **fields: Any) -> RunRecord:
    """A run in a queue."""
    run = new_run(run_id, **({"workflow": "flow", "status": "queued"} | fields))
    return store.append(Append(expect=None, run=run, queue=Place(queue, priority)))


def claim(store: Store, limit: int = 10, **wanted: Any) -> list[RunRecord]:
    now = wanted.get("now", NOW)
    made: dict[str, Any] = {
        "queues": ["q"],
        "workflows": ["flow"],
        "owner": "me",
        "now": now,
        "until": now + LEASE,
        "limit": limit,
    }
    return store.claim(Claim(**(made | wanted)))


def ids(runs: list[RunRecord]) -> list[str]:
    return [run.id for run in runs]


def change(store: Store, run: RunRecord, **fields: Any) -> RunRecord:
    return store.append(Append(expect=run, run=replace(run, revision=run.revision + 1, **fields)))


def put(store: Store, run: RunRecord, place: Place, **fields: Any) -> RunRecord:
    """Change a run, and put it into a queue."""
    after = replace(run, revision=run.revision + 1, **fields)
    return store.append(Append(expect=run, run=after, queue=place))


class QueueContract:
    """`claim`, `queues`, and what `append` tells them."""

    def test_an_empty_store_has_nothing_to_claim(self, store: Store) -> None:
        assert claim(store) == []
        assert store.queues() == {}

    def test_what_is_claimed_is_the_owners(self, store: Store) -> None:
        made = enqueue(store, "a")
        (got,) = claim(store)
        assert got == replace(
            made,
            status="running",
            owner="me",
            until=NOW + LEASE,
            updated=NOW,
            due=None,
            revision=made.revision + 1,
        )
        assert store.run("a") == got
        assert claim(store) == []
        with pytest.raises(StaleVersion):
            change(store, made, status="cancelled")

    def test_a_run_outside_queues_is_never_claimed(self, store: Store) -> None:
        store.append(Append(expect=None, run=new_run("a", workflow="flow", status="queued")))
        assert claim(store) == []

    def test_only_of_the_queues_and_workflows_that_are_wanted(self, store: Store) -> None:
        enqueue(store, "a", "q")
        enqueue(store, "b", "other")
        enqueue(store, "c", "q", workflow="unknown")
        assert ids(claim(store)) == ["a"]
        assert ids(claim(store, queues=["nothing", "other"])) == ["b"]
        assert ids(claim(store, workflows=["flow", "unknown"])) == ["c"]
        assert claim(store, queues=[]) == []

    def test_the_highest_priority_first_then_the_longest_ready(self, store: Store) -> None:
        for run_id, priority, due in (
            ("a", 0, 30),
            ("b", 5, 20),
            ("c", 0, 10),
            ("d", -3, None),
            ("e", 5, 25),
        ):
            enqueue(store, run_id, priority=priority, due=due)
        assert ids(claim(store, 2)) == ["b", "e"]
        assert ids(claim(store, 1)) == ["c"]
        assert ids(claim(store)) == ["a", "d"]

    def test_what_was_begun_goes_first_among_its_equals(self, store: Store) -> None:
        for run_id, priority in (("begun", 0), ("later", 0), ("high", 1), ("low", -1)):
            enqueue(store, run_id, priority=priority)
        (high, begun) = claim(store, 2)
        assert ids([high, begun]) == ["high", "begun"]
        for run in (high, begun):
            change(store, run, status="queued", owner=None, until=0, due=NOW)
        enqueue(store, "higher", priority=1)
        assert ids(claim(store)) == ["high", "higher", "begun", "later", "low"]

    def test_a_run_knows_its_place_and_keeps_its_turn_there(self, store: Store) -> None:
        never = store.append(Append(expect=None, run=new_run("never")))
        assert store.place(never.key) is None
        assert store.place(never.key + 99) is None
        for priority in (-3, 0, 7):
            name = f"p{priority}"
            run = enqueue(store, name, "q", priority)
            assert store.place(run.key) == Place("q", priority)
            (run,) = claim(store)
            assert store.place(run.key) == Place("q", priority)
            enqueue(store, f"other {name}", "q", priority, due=1)
            run = put(store, run, Place("q", priority), status="queued", owner=None, until=0, due=2)
            assert store.place(run.key) == Place("q", priority)
            assert ids(claim(store)) == [name, f"other {name}"]

    def test_a_run_that_is_put_elsewhere_has_no_turn_there_yet(self, store: Store) -> None:
        for given in (Place("other", 0), Place("q", 1)):
            (run,) = (enqueue(store, f"begun {given}"), *claim(store))[1:]
            enqueue(store, f"waits {given}", *given)
            run = put(store, run, given, status="queued", owner=None, until=0, due=NOW)
            assert store.place(run.key) == given
            assert ids(claim(store, queues=[given.queue])) == [f"waits {given}", f"begun {given}"]

    def test_priorities_count_across_queues(self, store: Store) -> None:
        enqueue(store, "a", "q", 1)
        enqueue(store, "b", "p", 2)
        enqueue(store, "c", "q", 3)
        assert ids(claim(store, 2, queues=["q", "p"])) == ["c", "b"]

    def test_first_come_first_served(self, store: Store) -> None:
        for number in range(20):
            enqueue(store, f"r{number:02}")
        assert ids(claim(store, 7)) == [f"r{number:02}" for number in range(7)]
        assert ids(claim(store, 100)) == [f"r{number:02}" for number in range(7, 20)]

    def test_a_delayed_run_waits_for_its_time(self, store: Store) -> None:
        enqueue(store, "a", due=NOW + 1)
        assert claim(store) == []
        assert ids(claim(store, now=NOW + 1)) == ["a"]

    def test_an_owner_keeps_its_run_until_its_time_runs_out(self, store: Store) -> None:
        enqueue(store, "a")
        (first,) = claim(store)
        assert claim(store, owner="other", now=NOW + LEASE - 1) == []
        (second,) = claim(store, owner="other", now=NOW + LEASE)
        assert (second.owner, second.revision) == ("other", first.revision + 1)
        with pytest.raises(StaleVersion):
            change(store, first, head=0)

    def test_a_renewed_run_is_not_claimed(self, store: Store) -> None:
        now = store.now() + HOUR
        enqueue(store, "a")
        (got,) = claim(store, now=now)
        store.renew([got.key], "me", now + 3 * LEASE)
        assert claim(store, owner="other", now=now + 2 * LEASE) == []
        assert ids(claim(store, owner="other", now=now + 3 * LEASE)) == ["a"]

    def test_a_run_that_was_let_go_of_can_be_claimed_at_once(self, store: Store) -> None:
        enqueue(store, "a")
        (got,) = claim(store)
        change(store, got, owner=None, until=0)
        assert ids(claim(store, owner="other", now=NOW + 1)) == ["a"]

    def test_a_suspended_run_comes_back_when_its_time_has_come(self, store: Store) -> None:
        enqueue(store, "a")
        (got,) = claim(store)
        waiting = change(store, got, status="suspended", owner=None, until=0, due=NOW + 50)
        assert claim(store, now=NOW + 49) == []
        (again,) = claim(store, now=NOW + 50)
        assert again.revision == waiting.revision + 1

    def test_a_suspended_run_without_a_time_waits_for_word(self, store: Store) -> None:
        enqueue(store, "a")
        (got,) = claim(store)
        waiting = change(store, got, status="suspended", owner=None, until=0)
        assert claim(store, now=NOW * 10) == []
        change(store, waiting, due=NOW + 7)
        assert ids(claim(store, now=NOW + 7)) == ["a"]

    @pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "paused", "frozen"])
    def test_what_has_stopped_is_left_alone(self, store: Store, status: str) -> None:
        enqueue(store, "a")
        (got,) = claim(store)
        stopped = change(store, got, status=status, owner=None, until=0)
        assert claim(store, now=NOW * 10) == []
        # Until somebody lets it go on.
        change(store, stopped, status="running", owner="me", until=NOW + 5)
        assert ids(claim(store, now=NOW + 5)) == ["a"]

    def test_not_more_at_once_than_wanted(self, store: Store) -> None:
        for number in range(6):
            enqueue(store, f"r{number}")
        first = claim(store, 10, most=2)
        assert ids(first) == ["r0", "r1"]
        assert claim(store, 10, owner="other", most=2) == []
        assert ids(claim(store, 10, owner="other", most=3)) == ["r2"]
        change(store, first[0], status="completed", owner=None, until=0)
        assert ids(claim(store, 10, most=3)) == ["r3"]
        # Time that ran out makes room.
        assert ids(claim(store, 10, now=NOW + LEASE, most=2)) == ["r1", "r2"]

    def test_a_claim_is_told_in_the_journal(self, store: Store) -> None:
        runs = [enqueue(store, f"r{number}") for number in range(3)]
        before = store.journal_end()
        claim(store, 2, event=EventRecord(kind="run.claimed", at=NOW, data=b"x"))
        entries = store.journal(run=None, after=before, limit=10)
        told = [(entry.run, entry.kind, entry.data) for entry in entries if isinstance(entry, EventRecord)]
        assert sorted(told) == [(run.key, "run.claimed", b"x") for run in runs[:2]]
        assert len(entries) == 2

    def test_queues_are_counted(self, store: Store) -> None:
        for number in range(3):
            enqueue(store, f"r{number}")
        enqueue(store, "other", "p")
        (got,) = claim(store, 1)
        assert store.queues() == {"q": {"queued": 2, "running": 1}, "p": {"queued": 1}}
        change(store, got, status="completed", owner=None, until=0)
        assert store.queues()["q"] == {"queued": 2, "completed": 1}

    def test_a_run_can_be_put_into_a_queue_later_or_into_another(self, store: Store) -> None:
        made = store.append(Append(expect=None, run=new_run("a", workflow="flow", status="paused")))
        after = replace(made, status="queued", revision=made.revision + 1)
        moved = store.append(Append(expect=made, run=after, queue=Place("q")))
        after = replace(moved, revision=moved.revision + 1)
        store.append(Append(expect=moved, run=after, queue=Place("p", 3)))
        assert store.queues() == {"p": {"queued": 1}}
        assert claim(store) == []
        assert ids(claim(store, queues=["p"])) == ["a"]

    def test_whether_something_waits_is_told_without_taking_it(self, store: Store) -> None:
        def waits(now: int = NOW, queue: str = "q", workflow: str = "flow") -> bool:
            return store.waiting(Claim([queue], [workflow], "me", now, now + LEASE, 1))

        assert not waits()
        enqueue(store, "a", due=NOW + 5)
        assert not waits()
        assert waits(NOW + 5)
        assert not waits(NOW + 5, queue="p")
        assert not waits(NOW + 5, workflow="other")
        assert ids(claim(store, now=NOW + 5)) == ["a"]
        assert not waits(NOW + 6)
        assert waits(NOW + 5 + LEASE)

    def test_a_deleted_run_is_gone_from_its_queue(self, store: Store) -> None:
        run = enqueue(store, "a")
        store.delete_run(run)
        assert claim(store) == []
        assert store.queues() == {}

    def test_many_at_once_share_without_a_run_twice(self, store: Store) -> None:
        for number in range(200):
            enqueue(store, f"r{number}")
        taken: dict[str, list[str]] = {}

        def work(name: str) -> None:
            mine = taken.setdefault(name, [])
            while got := claim(store, 7, owner=name):
                mine += ids(got)

        threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [run for mine in taken.values() for run in mine]
        assert sorted(found) == sorted(f"r{number}" for number in range(200))

    def test_many_at_once_keep_to_what_is_wanted_at_most(self, store: Store) -> None:
        for number in range(50):
            enqueue(store, f"r{number}")
        taken: list[str] = []

        def work(name: str) -> None:
            for _ in range(5):
                taken.extend(ids(claim(store, 3, owner=name, most=10)))

        threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 10
