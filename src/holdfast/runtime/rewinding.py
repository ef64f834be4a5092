"""Children of a run that is rolled back: which of their steps came after the version that becomes the head again.

The journal of the store orders the versions of all runs, so the moment of a version in a parent is a moment in each of
its children. A child that was under way then is rewound to the version that it had; one that was called later belongs
to the abandoned timeline.

Invariant: nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.model.records import ENDED, LIVE, RunRecord, VersionRecord
from holdfast.runtime.record import Entry, Record, lineage
from holdfast.runtime.services import Services
from holdfast.runtime.waits import facts_of
from holdfast.tree.codec import decode

_PAGE = 500


class Part(NamedTuple):
    """A child, or a child of one, that did something after a moment."""

    run: RunRecord
    #: The child of the run that is rolled back that it is, or is a part of.
    top: str
    #: The version that it had at that moment; 0 if it had not started.
    target: int
    #: Its steps that are to be compensated.
    entries: Sequence[Entry]


def undo_address(entry: Entry) -> str:
    """Where the compensation of a step is recorded. No step has such a name."""
    return f"[undo]/{entry.address}"


def affected(services: Services, run: RunRecord, moment: int, top: str = "") -> Iterator[Part]:
    """The children on the line of a run, and theirs, that did something after a moment: each before its children."""
    line = [version for _, version in lineage(services.context.reader(run), run.head)]
    for child in _children(services, run):
        newest = services.store.versions(child.key, before=child.head + 1, limit=1)
        if child.status in ENDED and newest and newest[0].seq <= moment:
            continue
        reader = services.context.reader(child)
        its = [version for _, version in lineage(reader, child.head)]
        if not its or not is_on_line(run, line, child, its[0]):
            continue
        name = top or child.id
        if its[-1].seq > moment or facts_of(child).undoing is not None:
            record = Record(reader).load(child.head)
            entries = [
                entry
                for entry in record.steps.values()
                if "undo" in entry.detail
                and entry.version.seq > moment
                and undo_address(entry) not in record.steps
            ]
            target = max((version.number for version in its if version.seq <= moment), default=0)
            yield Part(child, name, target, entries)
        yield from affected(services, child, moment, name)


def carried_over(services: Services, run: RunRecord) -> dict[str, str]:
    """By their addresses, the children that a run called before it was rolled back, and that it continues with."""
    if run.timeline == 1:
        return {}
    line = [version for _, version in lineage(services.context.reader(run), run.head)]
    found: dict[str, str] = {}
    for child in _children(services, run):
        first = services.store.versions(child.key, after=0, before=2, limit=1)
        if child.status != "cancelled" and first and is_on_line(run, line, child, first[0]):
            address, _ = called_at(first[0])
            found.setdefault(address, child.id)
    return found


def is_on_line(run: RunRecord, line: Sequence[VersionRecord], child: RunRecord, first: VersionRecord) -> bool:
    """Was a child called on the line of versions that its parent's head follows?"""
    _, timeline = called_at(first)
    if not timeline:
        # An older Holdfast did not tell; what it had under way is of the newest timeline.
        return child.status in LIVE or run.timeline == 1
    if timeline == run.timeline:
        return True
    return any(version.timeline <= timeline and version.seq > first.seq for version in line)


def called_at(first: VersionRecord) -> tuple[str, int]:
    """Where, and on which timeline, the parent called the child whose first version this is."""
    address, timeline = (decode(first.detail) if first.detail else {}).get("part") or ("", 0)
    return address, timeline


def _children(services: Services, run: RunRecord) -> Iterator[RunRecord]:
    before: int | None = None
    while page := services.store.runs(parent=run.key, before=before, limit=_PAGE):
        yield from page
        before = page[-1].key
