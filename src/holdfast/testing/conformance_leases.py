"""Contracts of leases: an owner writes by its lease only while that runs, and claims the run again otherwise."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import LeaseExpired, StaleVersion
from holdfast.model.records import EventRecord, RunRecord
from holdfast.store.base import Append, Store
from holdfast.testing.conformance_queue import claim, enqueue, ids
from holdfast.testing.samples import HOUR, advanced, begin, change_of, event, upload

_AGAIN = EventRecord(kind="run.claimed", at=7, data=b"again")


def _again(store: Store, run: RunRecord, most: int | None = None, owner: str = "me") -> RunRecord | None:
    return store.claim_again(run.key, owner, HOUR, most, _AGAIN)


class LeaseContract:
    """`Append.leased`, `renew`, `claim_again`."""

    def test_an_owner_commits_while_its_lease_runs(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() + HOUR)
        for _ in range(3):
            run = store.append(change_of(run, leased=True))
        assert store.run("run") == run

    def test_a_commit_by_an_expired_lease_is_refused(self, store: Store) -> None:
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

    def test_of_many_commits_those_by_expired_leases_are_refused(self, store: Store) -> None:
        now = store.now()
        runs = [
            begin(store, f"run-{number}", owner="me", until=now + HOUR if number % 2 else now - HOUR)
            for number in range(12)
        ]
        outcomes = store.append_many([change_of(run, leased=True) for run in runs])
        assert [type(outcome) for outcome in outcomes] == [LeaseExpired, RunRecord] * 6
        assert [run.last for run in store.runs()][::-1] == [0, 1] * 6

    def test_a_commit_of_an_old_record_is_stale_whatever_the_lease(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() - 1)
        store.append(change_of(run))
        with pytest.raises(StaleVersion):
            store.append(change_of(run, leased=True))

    def test_an_expired_lease_is_not_renewed(self, store: Store) -> None:
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

    def test_an_expired_lease_is_claimed_again(self, store: Store) -> None:
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
        # What was on its way before is refused.
        with pytest.raises(StaleVersion):
            store.append(change_of(run, leased=True))
        store.append(change_of(again, leased=True))

    def test_a_lease_that_runs_is_not_claimed_again(self, store: Store) -> None:
        run = begin(store, owner="me", until=store.now() + HOUR)
        assert _again(store, run) == run == store.run("run")
        assert store.journal(run=run.key, after=0, limit=10) == []

    def test_another_s_run_is_not_claimed_again(self, store: Store) -> None:
        run = begin(store, owner="another", until=store.now() - 1)
        assert _again(store, run) is None
        left = store.append(Append(expect=run, run=advanced(run, owner=None, until=0)))
        assert _again(store, left) is None
        assert store.claim_again(left.key + 1, "me", HOUR, None, _AGAIN) is None
        assert store.run("run") == left

    def test_a_lease_is_claimed_again_only_if_its_queue_has_room(self, store: Store) -> None:
        now = store.now()
        enqueue(store, "late", workflow="long")
        for run_id in ("second", "third"):
            enqueue(store, run_id)
        enqueue(store, "elsewhere", queue="p")
        (late,) = claim(store, 1, workflows=["long"], now=now - HOUR, until=now - 1, most=1)
        assert ids(claim(store, queues=["p"], owner="other", now=now, until=now + HOUR)) == ["elsewhere"]
        # The lease has run out, so another run takes its place.
        assert ids(claim(store, 1, owner="other", now=now, until=now + HOUR, most=1)) == ["second"]
        assert _again(store, late, most=1) is None
        assert store.run("late") == late
        assert _again(store, late, most=2) is not None
        assert claim(store, 1, owner="third", now=now, most=2) == []

    def test_a_run_that_was_claimed_again_is_not_ready(self, store: Store) -> None:
        now = store.now()
        enqueue(store, "a")
        (late,) = claim(store, 1, now=now - HOUR, until=now - 1)
        assert _again(store, late, most=1) is not None
        assert claim(store, 1, owner="other", now=now) == []
        assert ids(claim(store, 1, owner="other", now=now + 2 * HOUR)) == ["a"]
