"""Publishing the recorded steps of a run once more, for subscribers that missed them or want them again.

The entries come from the record, not from a replay: a replay passes a completed run altogether, and the steps within a
completed step. They are in the journal, so subscribers in other processes get them, too.

Invariant: the journal gets an entry for every recorded step that the head follows, oldest first, or none at all.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import NotFound, StaleVersion
from holdfast.history.commit import event
from holdfast.runtime.record import Record
from holdfast.runtime.rewinding import undo_address
from holdfast.runtime.services import Services
from holdfast.runtime.waits import facts_of
from holdfast.store.base import Append


def republish(services: Services, run_id: str) -> None:
    """Write an event `step.replayed` for each recorded step of a run."""
    store, clock = services.store, services.context.clock
    while True:
        run = store.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}", run=run_id)
        record = Record(services.context.reader(run)).load(run.head, facts_of(run).failed)
        undone = {undo_address(entry) for entry in record.steps.values()}
        entries = [
            event(
                "step.replayed",
                clock(),
                # A step from before a fork belongs to a version of another run.
                version=entry.number if entry.number > 0 else None,
                step=entry.version.step,
                address=entry.address,
                failed=entry.failed or None,
            )
            for entry in sorted(record.steps.values(), key=lambda entry: entry.number)
            if entry.address not in undone
        ]
        if not entries:
            return
        after = msgspec.structs.replace(run, revision=run.revision + 1)
        try:
            store.append(Append(expect=run, run=after, events=entries))
        except StaleVersion:
            continue
        services.publisher.wake()
        return
