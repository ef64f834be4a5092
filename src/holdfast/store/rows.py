"""Convert records to the rows of a database and back: the part that SQLite and PostgreSQL share.

Rows that can change carry a checksum, `sum`; versions carry their hash in `seal`, which `history` checks.

Invariant: a row whose values do not match its checksum is refused with `CorruptStore`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.errors import CorruptStore
from holdfast.model.records import (
    KINDS,
    LIVE,
    STATUSES,
    AttachmentRecord,
    EventRecord,
    MarkRecord,
    RunRecord,
    TimelineRecord,
    VersionRecord,
    current_kind,
)
from holdfast.store.protocol import JournalEntry

#: The columns of a run but for its checksum.
RUN = (
    "key, id, workflow, status, created, updated, head, last, timeline, revision, epoch, "
    "origin_run, origin_version, step, size, kept, parent, due, owner, detail, until"
)
#: Live runs of workflows, exactly as in the condition of the index, so that SQLite uses it.
LIVE_RUN = "workflow IS NOT NULL AND status NOT IN (4, 5, 6)"

_encode = msgspec.msgpack.Encoder().encode
KIND_NUMBER = {name: number for number, name in enumerate(KINDS)}
STATUS_NUMBER = {name: number for number, name in enumerate(STATUSES)}
assert [STATUS_NUMBER[name] for name in STATUSES if name not in LIVE] == [4, 5, 6], "see LIVE_RUN"


def row_sum(*values: Any) -> bytes:
    """Return the checksum of a row."""
    return sha256(_encode(values)).digest()[:8]


def check_order(start: int | None, numbers: list[int], *, ascending: bool = True) -> None:
    """Refuse rows that are repeated, out of order or before the requested start: the index is damaged, and reading
    page by page might never end."""
    line = numbers if start is None else [start, *numbers]
    steps = pairwise(line if ascending else line[::-1])
    if not all(type(number) is int for number in numbers) or any(one >= other for one, other in steps):
        raise CorruptStore("an index is damaged and lists rows out of order: verify the store")


def run_row(run: RunRecord) -> tuple[Any, ...]:
    """Return the values of `RUN`."""
    origin_run, origin_version = run.origin or (None, None)
    return (
        run.key,
        run.id,
        run.workflow,
        STATUS_NUMBER[run.status],
        run.created,
        run.updated,
        run.head,
        run.last,
        run.timeline,
        run.revision,
        run.epoch,
        origin_run,
        origin_version,
        run.step,
        run.size,
        run.kept,
        run.parent,
        run.due,
        run.owner,
        run.detail or None,
        run.until,
    )


def run_sum(row: tuple[Any, ...]) -> bytes:
    """Return the checksum of the values of `RUN` but for `until`, which is renewed without it. The columns of format 2
    count only where one is set, so that older rows keep their checksums."""
    return sha256(_encode(row[:16] if row[16:20] == _NONE else row[:20])).digest()[:8]


_NONE = (None, None, None, None)


def run_record(row: tuple[Any, ...]) -> RunRecord:
    """Build a run from the values of `RUN` and the checksum."""
    if run_sum(row) != row[-1] or type(row[20]) is not int:
        raise CorruptStore(
            f"the record of run {row[1]!r} is damaged: verify the store, restore the run from a bundle"
        )
    return RunRecord(
        key=row[0],
        id=row[1],
        workflow=row[2],
        status=STATUSES[row[3]],
        created=row[4],
        updated=row[5],
        head=row[6],
        last=row[7],
        timeline=row[8],
        revision=row[9],
        epoch=row[10],
        origin=None if row[11] is None else (row[11], row[12]),
        step=row[13],
        size=row[14],
        kept=row[15],
        parent=row[16],
        due=row[17],
        owner=row[18],
        detail=row[19] or b"",
        until=row[20],
    )


def version_values(version: VersionRecord, pack: bytes) -> tuple[Any, ...]:
    """Return a version's row without the run's key; `pack` is empty if the pack is stored in another table."""
    return (
        version.number,
        version.number - version.parent,
        version.timeline,
        KIND_NUMBER[version.kind],
        STATUS_NUMBER[version.status],
        version.steps,
        int(version.pruned),
        version.size - len(pack),
        version.at,
        version.step,
        version.detail or None,
        version.prev + version.pack_hash + version.hash,
        version.key,
        pack,
    )


def version_record(row: tuple[Any, ...]) -> VersionRecord:
    """Build a version from its columns, followed by the pack if it was selected. Wrong values that are not noticed
    here fail the version's hash."""
    try:
        seal = row[12]
        if row[7] not in (0, 1) or type(seal) is not bytes or (len(row) > 15 and type(row[15]) is not bytes):
            raise TypeError
        return VersionRecord(
            seq=row[0],
            number=row[1],
            parent=row[1] - row[2],
            timeline=row[3],
            kind=KINDS[row[4]],
            status=STATUSES[row[5]],
            steps=row[6],
            pruned=bool(row[7]),
            size=row[14] + row[8],
            at=row[9],
            step=row[10],
            detail=row[11] or b"",
            prev=seal[:8],
            pack_hash=seal[8:24],
            hash=seal[24:],
            key=row[13],
            pack=row[15] if len(row) > 15 else None,
        )
    except (TypeError, IndexError) as error:
        raise CorruptStore(
            f"version {row[1]!r} at position {row[0]} of the journal is damaged: run verify"
        ) from error


def intact_packs(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[int, int], VersionRecord]:
    """Build versions from rows of their columns, the pack and the run's key; omit damaged ones."""
    found = {}
    for row in rows:
        with suppress(CorruptStore):
            found[row[16], row[1]] = version_record(row[:16])
    return found


def event_row(key: int, event: EventRecord) -> tuple[Any, ...]:
    """Return the values of an event's row."""
    return key, event.at, event.kind, event.data, row_sum(key, event.at, event.kind, event.data)


def event_record(seq: int, row: tuple[Any, ...]) -> EventRecord:
    """Build an event from its position and its row."""
    if row_sum(*row[:-1]) != row[-1]:
        raise CorruptStore(f"the event at position {seq} of the journal is damaged: verify the store")
    return EventRecord(seq=seq, run=row[0], at=row[1], kind=current_kind(row[2]), data=row[3])


def entry_record(row: tuple[Any, ...]) -> JournalEntry:
    """Build an entry of the journal from the columns of a version, which events share, and the run's key."""
    if row[1] is None:
        return event_record(row[0], (row[15], row[9], row[10], row[11], row[12]))
    return row[15], version_record(row[:15])


def timeline_row(key: int, timeline: TimelineRecord) -> tuple[Any, ...]:
    """Return the values of a timeline's row."""
    values = (key, timeline.number, timeline.parent, timeline.at, timeline.reason, timeline.actor)
    return *values, row_sum(*values)


def timeline_record(row: tuple[Any, ...]) -> TimelineRecord:
    """Build a timeline from its row."""
    if row_sum(*row[:-1]) != row[-1]:
        raise CorruptStore(f"the record of timeline {row[1]} is damaged: verify the store")
    return TimelineRecord(number=row[1], parent=row[2], at=row[3], reason=row[4], actor=row[5])


def mark_row(key: int, mark: MarkRecord) -> tuple[Any, ...]:
    """Return the values of a mark's row."""
    values = (key, mark.name, mark.number, mark.at)
    return *values, row_sum(*values)


def mark_record(row: tuple[Any, ...]) -> MarkRecord:
    """Build a mark from its row."""
    if row_sum(*row[:-1]) != row[-1]:
        raise CorruptStore(f"a tag of version {row[2]} is damaged: verify the store")
    return MarkRecord(number=row[2], name=row[1], at=row[3])


def attachment_row(key: int, attachment: AttachmentRecord) -> tuple[Any, ...]:
    """Return the values of an attachment's row. `history` checks its hash."""
    return key, attachment.key, attachment.name, attachment.at, attachment.data, attachment.hash


def attachment_record(row: tuple[Any, ...]) -> AttachmentRecord:
    """Build an attachment from its row."""
    try:
        _, key, name, at, data, hashed = row
        if type(data) is not bytes or type(hashed) is not bytes:
            raise TypeError
        return AttachmentRecord(key=key, name=name, at=at, data=data, hash=hashed)
    except (TypeError, ValueError) as error:
        raise CorruptStore("the row of an attachment is damaged: verify the store") from error


def count_by_queue(rows: Iterable[tuple[str, int, int]]) -> dict[str, dict[str, int]]:
    """Return the number of runs by queue and status from rows of queue, status and number."""
    found: dict[str, dict[str, int]] = {}
    for queue, status, count in rows:
        found.setdefault(queue, {})[STATUSES[status]] = count
    return found
