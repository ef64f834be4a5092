"""Many commits in few statements.

A commit that only adds a version to a run, as almost all do, needs two statements: one for the run's record, one for
the version. When a transaction carries the commits of many threads, they go in as rows of a few common statements.
Each statement lets go of the interpreter once; statement by statement, the thread that leads the transaction would
have to queue up for it again after every one of them.

Invariant: the outcome is that of the same commits one after the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from holdfast.errors import StaleVersion
from holdfast.model.records import RunRecord
from holdfast.store.base import Append
from holdfast.store.sqlite_rows import (
    INSERT_VERSION,
    row_sum,
    run_row,
    version_row,
)

#: Rows of one statement. A few sizes, so that the connection keeps all statements prepared.
_SIZES = (64, 16, 4, 1)
_CHANGED = (
    "workflow, status, updated, head, last, timeline, revision, epoch, "
    "origin_run, origin_version, step, size, kept, sum"
)


def is_plain(change: Append) -> bool:
    """Does a change only add a version to a run that is there?"""
    return (
        change.expect is not None
        and change.version is not None
        and not (
            change.blocks or change.tags or change.timeline or change.events or change.uploads or change.holds
        )
    )


def append_many(connection: sqlite3.Connection, changes: Sequence[Append]) -> list[RunRecord | StaleVersion]:
    """Carry out plain changes; gives the run as it is now, or why it was refused, for each."""
    first: dict[int, Append] = {}
    for change in changes:
        first.setdefault(change.run.key, change)
    done: set[int] = set()
    for some in _portions(list(first.values())):
        values: list[Any] = []
        for change in some:
            row = run_row(change.run)
            assert change.expect is not None
            values += (row[0], change.expect.revision, *row[2:4], *row[5:], row_sum(*row))
        done.update(key for (key,) in connection.execute(_update(len(some)), values))
    won = [change for key, change in first.items() if key in done]
    for some in _portions(won):
        values = []
        for change in some:
            assert change.version is not None
            values += version_row(change.run.key, change.version)
        connection.execute(_insert(len(some)), values)
    winners = {id(change) for change in won}
    return [change.run if id(change) in winners else stale(change.run) for change in changes]


def stale(run: RunRecord) -> StaleVersion:
    """The refusal of a change that comes too late."""
    return StaleVersion(f"run {run.id!r} has moved on since it was read: read its head, then try again")


def _portions(changes: list[Append]) -> Iterator[list[Append]]:
    start = 0
    for size in _SIZES:
        while len(changes) - start >= size:
            yield changes[start : start + size]
            start += size


@cache
def _update(rows: int) -> str:
    columns = _CHANGED.split(", ")
    row = f"({', '.join('?' * (len(columns) + 2))})"
    sets = ", ".join(f"{name} = new.{name}" for name in columns)
    return (
        f"WITH new (key, expected, {_CHANGED}) AS (VALUES {', '.join([row] * rows)}) "  # noqa: S608 - constants only
        f"UPDATE run SET {sets} FROM new WHERE run.key = new.key AND run.revision = new.expected RETURNING run.key"
    )


@cache
def _insert(rows: int) -> str:
    head, _, row = INSERT_VERSION.partition(" VALUES ")
    return f"{head} VALUES {', '.join([row] * rows)}"
