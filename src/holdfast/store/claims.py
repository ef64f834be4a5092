"""When a run of a queue can be claimed: the rule that all stores share.

Invariant: a run is claimed only if nobody owns it, and only while it wants to be advanced.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import LeaseExpired
from holdfast.model.records import RunRecord
from holdfast.store.base import Claim


def ready_at(run: RunRecord) -> int | None:
    """When a run can be claimed, as far as its record tells; None if not before it changes."""
    if run.status == "queued":
        return run.due or 0
    if run.status == "suspended":
        return run.due
    return run.until if run.status == "running" else None


def changes_when(expect: RunRecord, run: RunRecord) -> bool:
    """Does a change of a run change when it can be claimed? Renewals are noticed by the next claim."""
    return (expect.status, expect.due, expect.owner) != (run.status, run.due, run.owner)


def claimed_again(run: RunRecord, now: int, lease: int) -> RunRecord:
    """Return a run whose lease had run out, as its owner has it again."""
    return msgspec.structs.replace(run, until=now + lease, updated=now, revision=run.revision + 1)


def expired(run: RunRecord) -> LeaseExpired:
    """Return the refusal of a change that the owner of a lease makes after it has run out."""
    return LeaseExpired(
        f"the lease of run {run.id!r} ran out before this was written: claim the run again", run=run.id
    )


def claimed(run: RunRecord, wanted: Claim) -> RunRecord:
    """A run as its new owner has it."""
    return msgspec.structs.replace(
        run,
        status="running",
        owner=wanted.owner,
        until=wanted.until,
        updated=wanted.now,
        due=None,
        revision=run.revision + 1,
    )
