"""Contracts of queues and leases: a run has one owner, who writes only while its lease is valid."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import LeaseExpired, StaleVersion
from holdfast.model.records import EventRecord, RunRecord
from holdfast.store.protocol import Append, Claim, QueuePlace, Store
from holdfast.testing.samples import (
    HOUR,
    advanced,
    begin,
    change_of,
    commit,
    event,
    everything,
    new_run,
    upload,
)

_AGAIN = EventRecord(kind="run.claimed", at=7, data=b"again")


def _again(store: Store, run: RunRecord, most: int | None = None, owner: str = "me") -> RunRecord | None:
    return store.claim_again(run.key, owner, HOUR, most, _AGAIN)


def _now(store: Store, run: RunRecord) -> RunRecord:
    found = store.run_by_key(run.key)
    assert found is not None
    return found


class LeaseContract:
    """`Append.leased`, `renew`, `claim_again`."""

    def test_owner_commits_while_its_lease_is_valid(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() + HOUR)
        for _ in range(3):
            run = store.append(change_of(run, leased=True))
        assert store.run("run") == run

    def test_commit_with_an_expired_lease_is_refused(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() - 1)
        changes = [
            change_of(run, leased=True),
            change_of(run, leased=True, events=[event()], tags=["t"], blocks=[b"block"]),
            Append(expect=run, run=advanced(run, owner=None, until=0), events=[event()], leased=True),
            change_of(run, leased=True, uploads=[upload(b"large")], holds=[upload(b"large").digest]),
        ]
        for each in changes:
            with pytest.raises(LeaseExpired):
                store.append(each)
        assert [type(outcome) for outcome in store.append_many(changes)] == [LeaseExpired] * 4
        assert store.run("run") == run
        assert store.versions(run.key) == []
        assert store.journal(run=run.key, after=0, limit=10) == []
        assert store.artifacts() == []
        # Others, who write by no lease, may.
        store.append(change_of(run))

    def test_append_many_refuses_commits_with_expired_leases(self, store: Store) -> None:
        now = store.now()
        runs = [
            begin(store, f"run-{number}", owner="me", until=now + HOUR if number % 2 else now - HOUR)
            for number in range(12)
        ]
        outcomes = store.append_many([change_of(run, leased=True) for run in runs])
        assert [type(outcome) for outcome in outcomes] == [LeaseExpired, RunRecord] * 6
        assert [run.last for run in store.runs()][::-1] == [0, 1] * 6

    def test_commit_of_an_old_record_is_stale_regardless_of_the_lease(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() - 1)
        store.append(change_of(run))
        with pytest.raises(StaleVersion):
            store.append(change_of(run, leased=True))

    def test_expired_lease_is_not_renewed(self, store: Store) -> None:
        now = store.now()
        late, fine, others = (
            begin(store, "late", owner="me", until=now - 1),
            begin(store, "fine", owner="me", until=now + HOUR),
            begin(store, "others", owner="another", until=now - 1),
        )
        assert store.renew([late.key, fine.key, others.key], "me", now + 2 * HOUR) == [late.key]
        assert store.run("late") == late
        assert store.run("others") == others
        assert store.run("fine") == replace(fine, until=now + 2 * HOUR)

    def test_expired_lease_is_claimed_again(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() - 1, detail=b"facts")
        before = store.now()
        again = _again(store, run)
        assert again is not None
        assert before + HOUR <= again.until <= store.now() + HOUR
        assert again == replace(run, until=again.until, updated=again.updated, revision=run.revision + 1)
        assert store.run("run") == again
        (entry,) = store.journal(run=run.key, after=0, limit=10)
        assert isinstance(entry, EventRecord)
        assert (entry.kind, entry.data) == ("run.claimed", b"again")
        # A change of the previous lease is refused.
        with pytest.raises(StaleVersion):
            store.append(change_of(run, leased=True))
        store.append(change_of(again, leased=True))

    def test_valid_lease_is_not_claimed_again(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() + HOUR)
        assert _again(store, run) == run == store.run("run")
        assert store.journal(run=run.key, after=0, limit=10) == []

    def test_run_of_another_owner_is_not_claimed_again(self, store: Store) -> None:
        run = begin(store, owner="another", until=store.now() - 1)
        assert _again(store, run) is None
        left = store.append(Append(expect=run, run=advanced(run, owner=None, until=0)))
        assert _again(store, left) is None
        assert store.claim_again(left.key + 1, "me", HOUR, None, _AGAIN) is None
        assert store.run("run") == left

    def test_lease_is_claimed_again_only_if_its_queue_has_room(self, store: Store) -> None:
        now = store.now()
        enqueue(store, "late", workflow="long")
        for run_id in ("second", "third"):
            enqueue(store, run_id)
        enqueue(store, "elsewhere", queue="p")
        (late,) = claim(store, 1, workflows=["long"], now=now - HOUR, until=now - 1, most=1)
        assert ids(claim(store, queues=["p"], owner="other", now=now, until=now + HOUR)) == ["elsewhere"]
        # The lease has expired, so another run takes its place.
        assert ids(claim(store, 1, owner="other", now=now, until=now + HOUR, most=1)) == ["second"]
        assert _again(store, late, most=1) is None
        assert store.run("late") == late
        assert _again(store, late, most=2) is not None
        assert claim(store, 1, owner="third", now=now, most=2) == []

    def test_run_that_was_claimed_again_is_not_ready(self, store: Store) -> None:
        now = store.now()
        enqueue(store, "a")
        (late,) = claim(store, 1, now=now - HOUR, until=now - 1)
        assert _again(store, late, most=1) is not None
        assert claim(store, 1, owner="other", now=now) == []
        assert ids(claim(store, 1, owner="other", now=now + 2 * HOUR)) == ["a"]

    def test_renewal_changes_only_the_lease(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon, due=5, detail=b"waits", parent=3)
        before = everything(store)
        assert store.renew([run.key], "me", soon + 40) == []
        renewed = replace(run, until=soon + 40)
        assert store.run("run") == store.run_by_key(run.key) == renewed
        assert store.runs() == store.runs(due=5) == store.runs(parent=3) == [renewed]
        assert store.revision("run") == (run.key, run.revision)
        after = everything(store)
        assert after.pop(f"run {run.key}")[0] == renewed
        del before[f"run {run.key}"]
        assert after == before
        assert store.check() == []

    def test_renewal_does_not_conflict_with_commits(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon)
        for turn in range(1, 6):
            store.renew([run.key], "me", soon + 100 * turn)
            assert _now(store, run) == replace(run, until=soon + 100 * turn)
            # The writer's record is from before the renewal.
            run = commit(store, run)
            assert _now(store, run) == run
        store.renew([run.key], "me", soon + 1_000)
        store.delete_run(run)
        assert store.runs() == []

    def test_renewal_is_limited_to_the_owner(self, store: Store) -> None:
        soon = store.now() + HOUR
        mine, others, free = (
            begin(store, "mine", owner="me", until=soon),
            begin(store, "others", owner="another", until=soon),
            begin(store, "free"),
        )
        blank = begin(store, "blank", owner="", until=soon)
        assert store.renew([others.key, mine.key, free.key, blank.key, 1_000], "me", soon + 50) == []
        assert _now(store, mine).until == soon + 50
        assert [_now(store, run) for run in (others, free, blank)] == [others, free, blank]
        for owner in ("ME", "me ", "m", "m%"):
            store.renew([mine.key], owner, soon + 90)
        assert _now(store, mine).until == soon + 50

    def test_previous_owner_does_not_renew(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon)
        taken = store.append(Append(expect=run, run=advanced(run, owner="another", until=soon + 20)))
        assert store.renew([run.key], "me", soon + 90) == []
        assert _now(store, run) == taken
        left = store.append(Append(expect=taken, run=advanced(taken, owner=None, until=0)))
        assert store.renew([run.key], "another", soon + 90) == []
        assert _now(store, run) == left

    def test_renewal_never_shortens_a_lease(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon)
        for until in (soon - 1, soon, 0, -1):
            store.renew([run.key], "me", until)
            assert _now(store, run) == run

    def test_many_leases_are_renewed_at_once(self, store: Store) -> None:
        soon = store.now() + HOUR
        runs = [begin(store, f"run-{number}", owner="me", until=soon + number) for number in range(300)]
        store.renew([run.key for run in runs[::2]], "me", soon + 10_000)
        assert [run.until - soon for run in store.runs(limit=400)][::-1] == [
            10_000 if number % 2 == 0 else number for number in range(300)
        ]
        assert store.renew([], "me", soon + 20_000) == []
        assert max(run.until for run in store.runs(limit=400)) == soon + 10_000


NOW = 1_000_000
LEASE = 500


def enqueue(store: Store, run_id: str, queue: str = "q", priority: int = 0, **fields: Any) -> RunRecord:
    """Store a run in a queue."""
    run = new_run(run_id, **({"workflow": "flow", "status": "queued"} | fields))
    return store.append(Append(expect=None, run=run, queue=QueuePlace(queue, priority)))


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


def put(store: Store, run: RunRecord, place: QueuePlace, **fields: Any) -> RunRecord:
    """Change a run, and put it into a queue."""
    after = replace(run, revision=run.revision + 1, **fields)
    return store.append(Append(expect=run, run=after, queue=place))


def _in_threads(work: Callable[[str], None]) -> None:
    """Run a function in eight threads, each with a name of its own."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [f"worker-{number}" for number in range(8)]))


class QueueContract:
    """`claim`, `has_claimable`, `queue_place`, `queues`, and the queues of `append`."""

    def test_empty_store_has_nothing_to_claim(self, store: Store) -> None:
        assert claim(store) == []
        assert store.queues() == {}

    def test_claimed_run_belongs_to_the_owner(self, store: Store) -> None:
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

    def test_run_outside_queues_is_never_claimed(self, store: Store) -> None:
        store.append(Append(expect=None, run=new_run("a", workflow="flow", status="queued")))
        assert claim(store) == []

    def test_claim_takes_only_requested_queues_and_workflows(self, store: Store) -> None:
        enqueue(store, "a", "q")
        enqueue(store, "b", "other")
        enqueue(store, "c", "q", workflow="unknown")
        assert ids(claim(store)) == ["a"]
        assert ids(claim(store, queues=["nothing", "other"])) == ["b"]
        assert ids(claim(store, workflows=["flow", "unknown"])) == ["c"]
        assert claim(store, queues=[]) == []

    def test_claim_takes_highest_priority_then_longest_ready(self, store: Store) -> None:
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

    def test_claimed_before_goes_first_among_equal_priorities(self, store: Store) -> None:
        for run_id, priority in (("started", 0), ("later", 0), ("high", 1), ("low", -1)):
            enqueue(store, run_id, priority=priority)
        (high, started) = claim(store, 2)
        assert ids([high, started]) == ["high", "started"]
        for run in (high, started):
            change(store, run, status="queued", owner=None, until=0, due=NOW)
        enqueue(store, "higher", priority=1)
        assert ids(claim(store)) == ["high", "higher", "started", "later", "low"]

    def test_queue_place_is_kept_when_a_run_is_queued_again(self, store: Store) -> None:
        never = store.append(Append(expect=None, run=new_run("never")))
        assert store.queue_place(never.key) is None
        assert store.queue_place(never.key + 99) is None
        for priority in (-3, 0, 7):
            name = f"p{priority}"
            run = enqueue(store, name, "q", priority)
            assert store.queue_place(run.key) == QueuePlace("q", priority)
            (run,) = claim(store)
            assert store.queue_place(run.key) == QueuePlace("q", priority)
            enqueue(store, f"other {name}", "q", priority, due=1)
            run = put(store, run, QueuePlace("q", priority), status="queued", owner=None, until=0, due=2)
            assert store.queue_place(run.key) == QueuePlace("q", priority)
            assert ids(claim(store)) == [name, f"other {name}"]

    def test_run_that_changes_queue_loses_its_turn(self, store: Store) -> None:
        for given in (QueuePlace("other", 0), QueuePlace("q", 1)):
            (run,) = (enqueue(store, f"started {given}"), *claim(store))[1:]
            enqueue(store, f"waits {given}", *given)
            run = put(store, run, given, status="queued", owner=None, until=0, due=NOW)
            assert store.queue_place(run.key) == given
            assert ids(claim(store, queues=[given.queue])) == [f"waits {given}", f"started {given}"]

    def test_priorities_count_across_queues(self, store: Store) -> None:
        enqueue(store, "a", "q", 1)
        enqueue(store, "b", "p", 2)
        enqueue(store, "c", "q", 3)
        assert ids(claim(store, 2, queues=["q", "p"])) == ["c", "b"]

    def test_claims_are_first_come_first_served(self, store: Store) -> None:
        for number in range(20):
            enqueue(store, f"r{number:02}")
        assert ids(claim(store, 7)) == [f"r{number:02}" for number in range(7)]
        assert ids(claim(store, 100)) == [f"r{number:02}" for number in range(7, 20)]

    def test_delayed_run_waits_for_its_time(self, store: Store) -> None:
        enqueue(store, "a", due=NOW + 1)
        assert claim(store) == []
        assert ids(claim(store, now=NOW + 1)) == ["a"]

    def test_owner_keeps_its_run_until_the_lease_expires(self, store: Store) -> None:
        enqueue(store, "a")
        (first,) = claim(store)
        assert claim(store, owner="other", now=NOW + LEASE - 1) == []
        (second,) = claim(store, owner="other", now=NOW + LEASE)
        assert (second.owner, second.revision) == ("other", first.revision + 1)
        with pytest.raises(StaleVersion):
            change(store, first, head=0)

    def test_renewed_run_is_not_claimed(self, store: Store) -> None:
        now = store.now() + HOUR
        enqueue(store, "a")
        (got,) = claim(store, now=now)
        store.renew([got.key], "me", now + 3 * LEASE)
        assert claim(store, owner="other", now=now + 2 * LEASE) == []
        assert ids(claim(store, owner="other", now=now + 3 * LEASE)) == ["a"]

    def test_released_run_can_be_claimed_at_once(self, store: Store) -> None:
        enqueue(store, "a")
        (got,) = claim(store)
        change(store, got, owner=None, until=0)
        assert ids(claim(store, owner="other", now=NOW + 1)) == ["a"]

    def test_suspended_run_is_claimed_when_it_is_due(self, store: Store) -> None:
        enqueue(store, "a")
        (got,) = claim(store)
        waiting = change(store, got, status="suspended", owner=None, until=0, due=NOW + 50)
        assert claim(store, now=NOW + 49) == []
        (again,) = claim(store, now=NOW + 50)
        assert again.revision == waiting.revision + 1

    def test_suspended_run_without_due_time_is_not_claimed(self, store: Store) -> None:
        enqueue(store, "a")
        (got,) = claim(store)
        waiting = change(store, got, status="suspended", owner=None, until=0)
        assert claim(store, now=NOW * 10) == []
        change(store, waiting, due=NOW + 7)
        assert ids(claim(store, now=NOW + 7)) == ["a"]

    def test_stopped_run_is_not_claimed(self, store: Store) -> None:
        for status in ("completed", "failed", "cancelled", "paused", "stalled"):
            enqueue(store, status)
            (got,) = claim(store)
            stopped = change(store, got, status=status, owner=None, until=0)
            assert claim(store, now=NOW * 10) == []
            # Until it is resumed.
            resumed = change(store, stopped, status="running", owner="me", until=NOW + 5)
            (again,) = claim(store, now=NOW + 5)
            assert again.id == resumed.id
            store.delete_run(again)

    def test_claim_respects_the_limit_of_owned_runs(self, store: Store) -> None:
        for number in range(6):
            enqueue(store, f"r{number}")
        first = claim(store, 10, most=2)
        assert ids(first) == ["r0", "r1"]
        assert claim(store, 10, owner="other", most=2) == []
        assert ids(claim(store, 10, owner="other", most=3)) == ["r2"]
        change(store, first[0], status="completed", owner=None, until=0)
        assert ids(claim(store, 10, most=3)) == ["r3"]
        # An expired lease makes room.
        assert ids(claim(store, 10, now=NOW + LEASE, most=2)) == ["r1", "r2"]

    def test_claim_is_recorded_in_the_journal(self, store: Store) -> None:
        runs = [enqueue(store, f"r{number}") for number in range(3)]
        before = store.journal_end()
        claim(store, 2, event=EventRecord(kind="run.claimed", at=NOW, data=b"x"))
        entries = store.journal(run=None, after=before, limit=10)
        claimed = [(entry.run, entry.kind, entry.data) for entry in entries if isinstance(entry, EventRecord)]
        assert sorted(claimed) == [(run.key, "run.claimed", b"x") for run in runs[:2]]
        assert len(entries) == 2

    def test_queues_are_counted(self, store: Store) -> None:
        for number in range(3):
            enqueue(store, f"r{number}")
        enqueue(store, "other", "p")
        (got,) = claim(store, 1)
        assert store.queues() == {"q": {"queued": 2, "running": 1}, "p": {"queued": 1}}
        change(store, got, status="completed", owner=None, until=0)
        assert store.queues()["q"] == {"queued": 2, "completed": 1}

    def test_run_can_be_put_into_a_queue_later_or_into_another(self, store: Store) -> None:
        made = store.append(Append(expect=None, run=new_run("a", workflow="flow", status="paused")))
        after = replace(made, status="queued", revision=made.revision + 1)
        moved = store.append(Append(expect=made, run=after, queue=QueuePlace("q")))
        after = replace(moved, revision=moved.revision + 1)
        store.append(Append(expect=moved, run=after, queue=QueuePlace("p", 3)))
        assert store.queues() == {"p": {"queued": 1}}
        assert claim(store) == []
        assert ids(claim(store, queues=["p"])) == ["a"]

    def test_has_claimable_takes_nothing(self, store: Store) -> None:
        def waits(now: int = NOW, queue: str = "q", workflow: str = "flow") -> bool:
            return store.has_claimable(Claim([queue], [workflow], "me", now, now + LEASE, 1))

        assert not waits()
        enqueue(store, "a", due=NOW + 5)
        assert not waits()
        assert waits(NOW + 5)
        assert not waits(NOW + 5, queue="p")
        assert not waits(NOW + 5, workflow="other")
        assert ids(claim(store, now=NOW + 5)) == ["a"]
        assert not waits(NOW + 6)
        assert waits(NOW + 5 + LEASE)

    def test_deleted_run_leaves_its_queue(self, store: Store) -> None:
        run = enqueue(store, "a")
        store.delete_run(run)
        assert claim(store) == []
        assert store.queues() == {}

    def test_concurrent_claims_take_no_run_twice(self, store: Store) -> None:
        for number in range(200):
            enqueue(store, f"r{number}")
        taken: dict[str, list[str]] = {}

        def work(name: str) -> None:
            mine = taken.setdefault(name, [])
            while got := claim(store, 7, owner=name):
                mine += ids(got)

        _in_threads(work)
        found = [run for mine in taken.values() for run in mine]
        assert sorted(found) == sorted(f"r{number}" for number in range(200))

    def test_concurrent_claims_respect_the_limit_of_owned_runs(self, store: Store) -> None:
        for number in range(50):
            enqueue(store, f"r{number}")
        taken: list[str] = []

        def work(name: str) -> None:
            for _ in range(5):
                taken.extend(ids(claim(store, 3, owner=name, most=10)))

        _in_threads(work)
        assert len(taken) == 10
