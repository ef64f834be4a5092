"""Whether a suspended run would continue if it were resumed.

Invariant: a wait for a child run is over when that run has ended, or would itself continue.
"""

from __future__ import annotations

from holdfast.execution.lease import is_alive
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import RunDetail, Wait, detail_of
from holdfast.store.protocol import Store


def ready(store: Store, run: RunRecord, now: int) -> bool:
    """Would a suspended run continue if it were resumed?"""
    facts = detail_of(run)
    return not facts.waits or any(
        not wait.idle and has_come(store, run, facts, wait, now) for wait in facts.waits
    )


def has_come(
    store: Store, run: RunRecord, facts: RunDetail, wait: Wait, now: int, around: frozenset[str] = frozenset()
) -> bool:
    """Has what a run waits for come? A child run has if it has ended, or would continue if it were resumed."""
    if wait.kind != "run":
        return facts.is_over(wait, now)
    child = store.run(wait.name)
    if child is None or child.status not in ("suspended", "paused", "running", "stalled"):
        return True
    if child.status == "running":
        return not is_alive(child, now)
    if child.status != "suspended" or child.id in around:
        return False
    its = detail_of(child)
    around = around | {run.id}
    return not its.waits or any(
        not each.idle and has_come(store, child, its, each, now, around) for each in its.waits
    )
