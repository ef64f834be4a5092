"""Records as SQLite rows and back.

Rows that can change carry a `sum` over their values; a row that no longer fits its sum is refused. Versions
carry their own hash in `seal`, which `history` checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.errors import CorruptStore, StaleVersion
from holdfast.model.records import (
    KINDS,
    LIVE,
    STATUSES,
    EventRecord,
    MarkRecord,
    RunRecord,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.claims import changes_when, expired, ready_at
from holdfast.store.sqlite_connection import Connection

RUN = (
    "key, id, workflow, status, created, updated, head, last, timeline, revision, epoch, "
    "origin_run, origin_version, step, size, kept, parent, due, owner, detail, until"
)
#: Runs of workflows that have not ended, in the very words of the index, by which SQLite knows that it will do.
LIVE_RUN = "workflow IS NOT NULL AND status NOT IN (4, 5, 6)"
#: Made with the first run of a workflow: an empty index takes a page, too.
_INDEX_LIVE = f"CREATE INDEX IF NOT EXISTS run_live ON run (status, due) WHERE {LIVE_RUN}"
SELECT_NEXT_KEY = (
    "SELECT max(coalesce((SELECT max(key) FROM run), 0), "
    "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'run'), 0)) + 1"
)
INSERT_RUN = f"INSERT INTO run ({RUN}, sum) VALUES ({', '.join('?' * 22)})"  # noqa: S608 - constants only
UPDATE_RUN = (
    "UPDATE run SET workflow=?, status=?, updated=?, head=?, last=?, timeline=?, revision=?, epoch=?, "
    "origin_run=?, origin_version=?, step=?, size=?, kept=?, parent=?, due=?, owner=?, detail=?, until=?, sum=? "
    "WHERE key=? AND revision=? AND until > ?"
)
#: The same for a run of which none of the columns changes that an index holds: no page of one is written.
_UPDATE_STEP = UPDATE_RUN.replace("workflow=?, status=?, ", "").replace("due=?, ", "")
#: The same for a run whose turn in its queue, if it is in one, changes with its record (see `sqlite_queue`).
_UPDATE_TURN = UPDATE_RUN.replace("sum=? ", "sum=?, ready = CASE WHEN queue IS NOT NULL THEN ? END ")
VERSION = (
    "seq, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, length(pack)"
)
INSERT_VERSION = (
    "INSERT INTO journal "
    "(run, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, pack) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
#: The pack of a row, wherever it stands.
PACK = (
    "CASE WHEN length(pack) > 0 THEN pack ELSE coalesce((SELECT data FROM block WHERE block.run = journal.run "
    "AND block.number = journal.number AND block.n = -1), x'') END"
)
_LONG_PACK = 1500
#: Before every time: a change that needs no lease.
_ANY_TIME = -(1 << 63)
#: With the position first, which a stub takes over.
INSERT_STUB = INSERT_VERSION.replace("(run,", "(seq, run,").replace("(?,", "(?, ?,")
INSERT_EVENT = "INSERT INTO journal (run, at, step, detail, seal) VALUES (?, ?, ?, ?, ?)"
INSERT_TIMELINE = "INSERT INTO timeline VALUES (?, ?, ?, ?, ?, ?, ?)"
INSERT_MARK = "INSERT OR IGNORE INTO mark VALUES (?, ?, ?, ?, ?)"

_encode = msgspec.msgpack.Encoder().encode
KIND_NUMBER = {name: number for number, name in enumerate(KINDS)}
STATUS_NUMBER = {name: number for number, name in enumerate(STATUSES)}
assert [number for name, number in STATUS_NUMBER.items() if name not in LIVE] == [
    4,
    5,
    6,
]  # as `LIVE_RUN` says


def row_sum(*values: Any) -> bytes:
    """What guards a row."""
    return sha256(_encode(values)).digest()[:8]


def in_order(start: int | None, numbers: list[int], *, ascending: bool = True) -> None:
    """Refuse rows that come twice, out of order, or before the start that was asked for: what gave them is
    damaged, and who reads page by page might never come to an end."""
    line = numbers if start is None else [start, *numbers]
    steps = pairwise(line if ascending else line[::-1])
    if not all(type(number) is int for number in numbers) or any(one >= other for one, other in steps):
        raise CorruptStore("an index is damaged and lists rows out of order: verify the store")


def run_row(run: RunRecord) -> tuple[Any, ...]:
    """The values of `RUN`."""
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
    """What guards the values of `RUN`: all but `until`, which is renewed by itself. Those that came with format 2
    count where there are any, so that older rows keep their sums."""
    return sha256(_encode(row[:16] if row[16:20] == _NONE else row[:20])).digest()[:8]


_NONE = (None, None, None, None)


def run_record(row: tuple[Any, ...]) -> RunRecord:
    """From the values of `RUN` and the sum."""
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


def is_long(version: VersionRecord) -> bool:
    """Does its pack stand among the blocks, as number -1? In the journal, a row that fills most of a page would
    leave the page before it half empty."""
    return version.pack is not None and len(version.pack) > _LONG_PACK


def version_row(key: int, version: VersionRecord) -> tuple[Any, ...]:
    """The values of `INSERT_VERSION`."""
    return key, *version_values(version, b"" if is_long(version) else version.pack or b"")


def version_values(version: VersionRecord, pack: bytes) -> tuple[Any, ...]:
    """A version's row but for the run, with its pack or without one that stands elsewhere."""
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
        pack,
    )


def version_record(row: tuple[Any, ...]) -> VersionRecord:
    """From the values of `VERSION`, and perhaps the pack after them. Values of a wrong type give a record
    that fails its hash."""
    try:
        seal = row[12]
        if row[7] not in (0, 1) or type(seal) is not bytes or (len(row) > 14 and type(row[14]) is not bytes):
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
            size=row[13] + row[8],
            at=row[9],
            step=row[10],
            detail=row[11] or b"",
            prev=seal[:8],
            pack_hash=seal[8:24],
            hash=seal[24:],
            pack=row[14] if len(row) > 14 else None,
        )
    except (TypeError, IndexError) as error:
        raise CorruptStore(
            f"version {row[1]!r} at position {row[0]} of the journal is damaged: run verify"
        ) from error


def sound_packs(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[int, int], VersionRecord]:
    """From rows of the values of `VERSION`, the pack and the run; those that are damaged are left out."""
    found = {}
    for row in rows:
        with suppress(CorruptStore):
            found[row[15], row[1]] = version_record(row[:15])
    return found


def event_row(key: int, event: EventRecord) -> tuple[Any, ...]:
    """The values of `INSERT_EVENT`."""
    return key, event.at, event.kind, event.data, row_sum(key, event.at, event.kind, event.data)


def event_record(seq: int, row: tuple[Any, ...]) -> EventRecord:
    """From a position and the values of `INSERT_EVENT`."""
    if row_sum(*row[:-1]) != row[-1]:
        raise CorruptStore(f"the event at position {seq} of the journal is damaged: verify the store")
    return EventRecord(seq=seq, run=row[0], at=row[1], kind=row[2], data=row[3])


def entry_record(row: tuple[Any, ...]) -> EventRecord | tuple[int, VersionRecord]:
    """From the values of `VERSION`, which those of an event share, and the run."""
    if row[1] is None:
        return event_record(row[0], (row[14], row[9], row[10], row[11], row[12]))
    return row[14], version_record(row[:14])


def timeline_row(key: int, timeline: TimelineRecord) -> tuple[Any, ...]:
    """The values of a timeline's row."""
    values = (key, timeline.number, timeline.parent, timeline.at, timeline.reason, timeline.actor)
    return *values, row_sum(*values)


def timeline_record(row: tuple[Any, ...]) -> TimelineRecord:
    """From the values of a timeline's row."""
    if row_sum(*row[:-1]) != row[-1]:
        raise CorruptStore(f"the record of timeline {row[1]} is damaged: verify the store")
    return TimelineRecord(number=row[1], parent=row[2], at=row[3], reason=row[4], actor=row[5])


def mark_row(key: int, mark: MarkRecord) -> tuple[Any, ...]:
    """The values of a mark's row."""
    values = (key, mark.name, mark.number, mark.at)
    return *values, row_sum(*values)


def mark_record(row: tuple[Any, ...]) -> MarkRecord:
    """From the values of a mark's row."""
    if row_sum(*row[:-1]) != row[-1]:
        raise CorruptStore(f"a tag of version {row[2]} is damaged: verify the store")
    return MarkRecord(number=row[2], name=row[1], at=row[3])


def update_run(
    connection: Connection, run: RunRecord, expect: RunRecord, *, leased_at: int | None = None
) -> None:
    """Replace the record of a run that has not changed since it was read; else `StaleVersion`. `leased_at` is the time
    at which its lease must not have run out; else `LeaseExpired`."""
    row = run_row(run)
    values = (*row[2:4], *row[5:], run_sum(row))
    which = (expect.key, expect.revision, _ANY_TIME if leased_at is None else leased_at)
    if changes_when(expect, run):
        connection.execute(_UPDATE_TURN, (*values, ready_at(run), *which))
    elif run.workflow == expect.workflow:
        connection.execute(_UPDATE_STEP, (*row[5:17], *row[18:], run_sum(row), *which))
    else:
        connection.execute(UPDATE_RUN, (*values, *which))
    if connection.changes() != 1:
        there = leased_at is not None and has(connection, "run WHERE key=? AND revision=?", *which[:2])
        raise expired(run) if there else stale(run)


def stale(run: RunRecord) -> StaleVersion:
    """The refusal of a writer who knows an older record of a run."""
    return StaleVersion(f"run {run.id!r} has moved on since it was read: read its head, then try again")


def beyond(prefix: str) -> bytes:
    """What comes after all that starts with a prefix: no byte of UTF-8 is as great as 0xff."""
    return prefix.encode() + b"\xff"


def where_all(clauses: Sequence[tuple[str, Any]]) -> tuple[str, list[Any]]:
    """The clauses that have a value, and the values."""
    given = [(clause, value) for clause, value in clauses if value is not None]
    return " AND ".join([clause for clause, _ in given] or ["1 = 1"]), [value for _, value in given]


def has(connection: Connection, what: str, *values: Any) -> bool:
    """Is there such a row?"""
    return connection.row(f"SELECT 1 FROM {what}", values) is not None  # noqa: S608 - constants only


def insert_run(connection: Connection, run: RunRecord) -> RunRecord:
    """Make the row of a run, which gets its key."""
    run = msgspec.structs.replace(run, key=connection.value(SELECT_NEXT_KEY))
    row = run_row(run)
    if run.workflow is not None:
        connection.execute(_INDEX_LIVE)
    connection.execute(INSERT_RUN, (*row, run_sum(row)))
    return run


def insert_blocks(connection: Connection, key: int, version: VersionRecord, blocks: Sequence[bytes]) -> None:
    """Further blocks of a version, and a pack that is long."""
    rows = [(key, version.number, index, block) for index, block in enumerate(blocks)]
    if is_long(version):
        rows.append((key, version.number, -1, version.pack or b""))
    connection.executemany("INSERT INTO block (run, number, n, data) VALUES (?, ?, ?, ?)", rows)
