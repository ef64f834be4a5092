"""Change the metadata of a run.

Invariant: a change is one compare-and-set of the run's record, together with the index by which the run is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from holdfast.errors import StaleVersion
from holdfast.history.builder import build_event
from holdfast.history.context import StoreContext
from holdfast.model.meta import MetaValue, check_meta, meta_rows
from holdfast.model.run_detail import detail_of, encode_detail
from holdfast.store.protocol import Append


def change_meta(
    context: StoreContext,
    run_id: str,
    changes: Mapping[str, MetaValue],
    remove: Sequence[str],
    actor: str | None,
) -> dict[str, MetaValue]:
    """Change the metadata of a run, retrying on concurrent writes; return all."""
    while True:
        run = context.run(run_id)
        facts = detail_of(run)
        kept = {name: value for name, value in facts.meta.items() if name not in remove}
        after = check_meta({**kept, **changes})
        if meta_rows(after) == meta_rows(facts.meta):
            return after
        facts.meta = after
        now = context.clock()
        written = msgspec.structs.replace(
            run, updated=now, revision=run.revision + 1, detail=encode_detail(facts)
        )
        event = build_event("run.meta_changed", now, set=dict(changes), removed=list(remove), actor=actor)
        with suppress(StaleVersion):
            context.store.append(Append(expect=run, run=written, events=[event], meta=meta_rows(after)))
            return after
