"""Changes of many runs as one statement: each brings a version to a run that exists, and nothing else.

That is what steps and ends of workflows are. A statement a change costs the server, and the driver, several times as
much.

Invariant: a run whose revision is another is left as it is, with no version, and is not among what is given back.
"""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from holdfast.model.records import RunRecord
from holdfast.store.base import Append
from holdfast.store.claims import changes_when, ready_at
from holdfast.store.postgres_rows import VERSION_COLUMNS, sent_as, version_row
from holdfast.store.postgres_time import SERVER_NOW
from holdfast.store.postgres_wire import Statement
from holdfast.store.sqlite_rows import RUN, run_row, run_sum

#: Fewer than these are as quick one by one.
LEAST = 4
#: The columns of a run that a change may change, in the order of `run_row` without key, id and time of making.
_RUN = [*(name for name in RUN.split(", ") if name not in ("key", "id", "created")), "sum", "attempt"]
_VERSION = VERSION_COLUMNS.split(", ")[1:]


class Part(NamedTuple):
    """A change, the run as it will be, and the number by which its writer knows its own row."""

    change: Append
    run: RunRecord
    attempt: int


def fits(change: Append) -> bool:
    """Can a change be one of many?"""
    return (
        change.expect is not None
        and change.version is not None
        and not (change.events or change.tags or change.blocks or change.timeline or change.queue)
    )


def moves(change: Append) -> bool:
    """Does it change when the run can be claimed? Those that do are another statement."""
    assert change.expect is not None
    return changes_when(change.expect, change.run)


def statement(parts: Sequence[Part], places: str, now: int | None) -> Statement:
    """The statement for changes that fit, and its values; all or none of them move, and all or none are leased. It
    gives the attempts that were carried out. `now` is the time by which leases are judged, None for the server's."""
    moved, leased = moves(parts[0].change), parts[0].change.leased
    rows = [_row(part, moved) for part in sorted(parts, key=lambda part: part.run.key)]
    values = [*zip(*rows, strict=True), *([now] if leased else [])]
    return Statement(_text(moved, leased, places), values)


def _row(part: Part, moved: bool) -> tuple[Any, ...]:
    change, row = part.change, run_row(part.run)
    assert change.expect is not None
    assert change.version is not None
    values = (
        change.expect.key, change.expect.revision, *row[2:4], *row[5:], run_sum(row), part.attempt,
        *version_row(change.version),
    )  # fmt: skip
    return (*values, ready_at(part.run)) if moved else values


@cache
def _text(moved: bool, leased: bool, places: str) -> str:
    columns = {name: sent_as(name) for name in ("key", "expect", *_RUN)}
    columns |= {f"v_{name}": sent_as(name) for name in _VERSION}
    if moved:
        columns["ready"] = sent_as("ready")
    names = ", ".join(columns)
    values = ", ".join(f"%s::{kind}[]" for kind in columns.values())
    changes = ", ".join(f"{name} = given.{name}" for name in _RUN)
    written = ", ".join(f"given.v_{name}" for name in _VERSION)
    ready = ", given.ready" if moved else ""
    running = f"AND run.until > coalesce(%s::bigint, {SERVER_NOW}) " if leased else ""
    parts = [
        f"changed AS (UPDATE run SET {changes} FROM unnest({values}) given ({names}) WHERE run.key = given.key "
        f"AND run.revision = given.expect {running}RETURNING run.key, run.attempt, {written}{ready})",
        # The lock that goes before positions in the journal (see `postgres_journal`).
        f"held AS MATERIALIZED (SELECT {places} FROM (SELECT count(*) AS n FROM changed) counted WHERE n > 0)",
        f"versioned AS (INSERT INTO journal ({VERSION_COLUMNS}) SELECT key, "
        + ", ".join(f"v_{name}" for name in _VERSION)
        + " FROM held, changed)",
    ]
    if moved:
        parts.append(
            "requeued AS (UPDATE queued SET ready = changed.ready FROM changed WHERE queued.run = changed.key)"
        )
    return f"WITH {', '.join(parts)} SELECT attempt FROM changed"
