"""A change of a run as one statement, which compares and writes all its parts, or nothing.

Invariant: a statement depends on which parts a change has, never on their values; it is prepared once.
"""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from holdfast.model.records import MarkRecord, RunRecord
from holdfast.store.base import Append
from holdfast.store.claims import changes_when, ready_at
from holdfast.store.postgres_rows import VERSION_COLUMNS, sent_as, version_row
from holdfast.store.postgres_time import SERVER_NOW
from holdfast.store.postgres_wire import Statement
from holdfast.store.sqlite_rows import RUN, event_row, mark_row, run_row, run_sum, timeline_row

_RUN = [*RUN.split(", "), "sum", "attempt"]
_INSERT_RUN = (
    f"INSERT INTO run ({', '.join(_RUN)}) VALUES ({', '.join(f'%s::{sent_as(name)}' for name in _RUN)}) "
    "ON CONFLICT (id) DO NOTHING"
)
_UPDATE_RUN = (
    "UPDATE run SET "
    + ", ".join(f"{name} = %s::{sent_as(name)}" for name in _RUN if name not in ("key", "id", "created"))
    + " WHERE key = %s::bigint AND revision = %s::bigint"
)
_VERSION = ", ".join(f"%s::{sent_as(name)}" for name in VERSION_COLUMNS.split(", ")[1:])
_EVENTS = (
    "INSERT INTO journal (run, at, step, detail, seal) SELECT {source}, given.at, given.kind, given.data, given.seal "
    "FROM {table}, unnest(%s::bigint[], %s::text[], %s::bytea[], %s::bytea[]) "
    "WITH ORDINALITY given (at, kind, data, seal, n) ORDER BY n"
)


class _Shape(NamedTuple):
    """Which parts a change has: what its statement depends on."""

    new: bool
    version: bool
    events: bool
    tags: bool
    blocks: bool
    timeline: bool
    queue: bool
    moved: bool
    leased: bool


def statement(change: Append, run: RunRecord, attempt: int, places: str, now: int | None) -> Statement:
    """The statement of a change. It gives the key of the run, or nothing if nothing was written. `now` is the time by
    which a lease is judged, None for the server's."""
    expect, key = change.expect, run.key
    moved = expect is not None and changes_when(expect, run)
    row = run_row(run)
    values: list[Any]
    if expect is None:
        values = [*row, run_sum(row), attempt]
    else:
        values = [*row[2:4], *row[5:], run_sum(row), attempt, expect.key, expect.revision]
        if change.leased:
            values.append(now)
    version = change.version
    if version is not None:
        values += version_row(version)
    if change.events:
        values += zip(*(event_row(key, event)[1:] for event in change.events), strict=True)
    if change.tags and version is not None:
        tags = dict.fromkeys(change.tags)
        rows = [mark_row(key, MarkRecord(number=version.number, name=name, at=version.at)) for name in tags]
        values += zip(*(row[1:] for row in rows), strict=True)
    if change.blocks and version is not None:
        values += [version.number, change.blocks]
    if change.timeline is not None:
        values += timeline_row(key, change.timeline)[1:]
    if change.queue is not None:
        values += [change.queue.queue, 2 * change.queue.priority, ready_at(run)]
    elif moved:
        values.append(ready_at(run))
    shape = _Shape(
        new=expect is None,
        version=version is not None,
        events=bool(change.events),
        tags=bool(change.tags) and version is not None,
        blocks=bool(change.blocks) and version is not None,
        timeline=change.timeline is not None,
        queue=change.queue is not None,
        moved=moved and change.queue is None,
        leased=change.leased and expect is not None,
    )
    return Statement(_text(shape, places), values)


@cache
def _text(shape: _Shape, places: str) -> str:
    """One statement that writes all parts of a change, or nothing. What must not happen before something else reads
    from it: whoever has changed the run holds the lock that goes before positions in the journal (see
    `postgres_journal`)."""
    journal = shape.version or shape.events
    change = _INSERT_RUN if shape.new else _UPDATE_RUN
    if shape.leased:
        change += f" AND until > coalesce(%s::bigint, {SERVER_NOW})"
    parts = [f"changed AS ({change} RETURNING key{f', {places}' if journal else ''})"]
    if shape.version:
        parts.append(
            f"versioned AS (INSERT INTO journal ({VERSION_COLUMNS}) SELECT key, {_VERSION} FROM changed "
            "RETURNING run)"
        )
    if shape.events:
        source, table = ("versioned.run", "versioned") if shape.version else ("changed.key", "changed")
        parts.append(f"noted AS ({_EVENTS.format(source=source, table=table)})")
    if shape.tags:
        parts.append(
            "tagged AS (INSERT INTO mark (run, name, number, at, sum) SELECT key, given.* FROM changed, "
            "unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bytea[]) given)"
        )
    if shape.blocks:
        parts.append(
            "stored AS (INSERT INTO block (run, number, n, data) SELECT key, %s::bigint, given.n - 1, given.data "
            "FROM changed, unnest(%s::bytea[]) WITH ORDINALITY given (data, n))"
        )
    if shape.timeline:
        parts.append(
            "lined AS (INSERT INTO timeline SELECT key, %s::bigint, %s::bigint, %s::bigint, %s::text, %s::text, "
            "%s::bytea FROM changed)"
        )
    if shape.queue:
        parts.append(
            "queued_up AS (INSERT INTO queued (run, queue, priority, ready) "
            "SELECT key, %s::text, %s::bigint, %s::bigint FROM changed ON CONFLICT (run) DO UPDATE "
            "SET queue = excluded.queue, ready = excluded.ready, priority = CASE WHEN queued.queue = excluded.queue "
            "AND queued.priority = excluded.priority | 1 THEN queued.priority ELSE excluded.priority END)"
        )
    if shape.moved:
        parts.append(
            "requeued AS (UPDATE queued SET ready = %s::bigint FROM changed WHERE queued.run = changed.key)"
        )
    return f"WITH {', '.join(parts)} SELECT key FROM changed"
