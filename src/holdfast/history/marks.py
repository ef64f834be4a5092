"""Giving versions names and pins, and taking them away.

Invariant: a version that has a mark when this returns is not pruned by a pruning that was planned before.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import NotFound, StaleVersion
from holdfast.history.commit import event
from holdfast.history.context import Context
from holdfast.history.version import Version
from holdfast.model.records import PIN, MarkRecord, RunRecord
from holdfast.store.base import Append


def set_mark(context: Context, version: Version, name: str, *, on: bool) -> None:
    """Set or remove a tag, or the pin; `NotFound` if it is to be removed and is not there."""
    now = context.clock()
    kind = "version." + ("" if on else "un") + ("pinned" if name == PIN else "tagged")
    entry = event(kind, now, version=version.number, tag=name or None)
    mark = MarkRecord(number=version.number, name=name, at=now)
    changed = context.store.set_mark(_run(context, version).key, mark, on=on, event=entry)
    if changed and on:
        _protect(context, version)
    if not changed and not on:
        what = "is not pinned" if name == PIN else f"has no tag {name!r}"
        raise NotFound(
            f"version {version.number} of run {version.run!r} {what}", run=version.run, version=version.number
        )


def _protect(context: Context, version: Version) -> None:
    """Have a pruning that did not see a mark refused; `NotFound` if it came first."""
    while True:
        run = _run(context, version)
        context.reader(run).record(version.number)
        after = msgspec.structs.replace(run, revision=run.revision + 1)
        try:
            context.store.append(Append(expect=run, run=after))
        except StaleVersion:
            continue
        return


def _run(context: Context, version: Version) -> RunRecord:
    run = context.store.run(version.run)
    if run is None:
        raise NotFound(f"run {version.run!r} was deleted", run=version.run)
    return run
