"""Queues in a SQLite store: three columns of the table `run`, which the commits of steps do not touch.

`rank` is twice the priority, with one more for a run that was claimed before, and negative: the lowest goes first.
`ready` is when to look at a run again. It follows the run's record when its status, its time or its owner changes; a
lease that was renewed is noticed by the claim that comes too early.

Invariant: a run that can be claimed is found by a claim, and only the record decides whether it can be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.errors import CorruptStore
from holdfast.model.records import STATUSES, EventRecord, RunRecord
from holdfast.store.base import Claim, Place
from holdfast.store.claims import claimed, claimed_again, ready_at
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_link import Link
from holdfast.store.sqlite_rows import (
    INSERT_EVENT,
    RUN,
    STATUS_NUMBER,
    event_row,
    run_record,
    run_row,
    run_sum,
)

#: Made with the first run that is put into a queue: an empty index takes a page, too.
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS run_ready ON run (queue, rank, ready) WHERE ready IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS run_owned ON run (queue) WHERE queue IS NOT NULL AND status = 1",
)
_NEXT_RANK = "SELECT min(rank) FROM run WHERE queue=? AND rank > ? AND ready IS NOT NULL"
_READY = (
    f"SELECT {RUN}, sum FROM run WHERE queue=? AND rank=? AND ready IS NOT NULL AND ready <= ? "  # noqa: S608 - constants only
    "AND workflow IN (SELECT value FROM json_each(?)) ORDER BY ready, key LIMIT ?"
)
_OWNED = (
    "SELECT count(*) FROM run WHERE queue IN (SELECT value FROM json_each(?)) AND status = 1 AND until > ?"
)
_TAKE = (
    "UPDATE run SET status=1, owner=?, until=?, updated=?, due=NULL, revision=?, sum=?, ready=?, "
    "rank = -((-rank) | 1) WHERE key=?"
)
_TAKE_AGAIN = (
    "UPDATE run SET until=?, updated=?, revision=?, sum=?, ready = CASE WHEN queue IS NOT NULL THEN ? END "
    "WHERE key=?"
)
_SELECT = f"SELECT {RUN}, sum"
_LOWEST = -(1 << 62)


def put(connection: Connection, run: RunRecord, place: Place) -> None:
    """Put a run into a queue."""
    for statement in _INDEXES:
        connection.execute(statement)
    rank = -2 * place.priority
    # One less stands for a run that was claimed before.
    connection.execute(
        "UPDATE run SET rank = CASE WHEN queue=? AND rank=? THEN rank ELSE ? END, queue=?, ready=? WHERE key=?",
        (place.queue, rank - 1, rank, place.queue, ready_at(run), run.key),
    )


class Queues:
    """Claims."""

    def __init__(self, link: Link, clock: Callable[[], int]) -> None:
        self._link = link
        self._clock = clock

    def claim(self, wanted: Claim) -> list[RunRecord]:
        # Most claims find nothing: they take no turn to write.
        return (
            self._link.write(lambda connection: self._claim(connection, wanted))
            if self.waiting(wanted)
            else []
        )

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        def write(connection: Connection) -> RunRecord | None:
            now = self._clock()
            row = connection.row(f"{_SELECT}, queue FROM run WHERE key=? AND owner=?", (run, owner))
            if row is None:
                return None
            found, queue = run_record(row[:-1]), row[-1]
            if found.until > now:
                return found
            owned = 0 if queue is None else connection.value(_OWNED, (json.dumps([queue]), now))
            if queue is not None and most is not None and owned >= most:
                return None
            taken = claimed_again(found, now, lease)
            values = (taken.until, taken.updated, taken.revision, run_sum(run_row(taken)))
            connection.execute(_TAKE_AGAIN, (*values, ready_at(taken), run))
            connection.execute(INSERT_EVENT, event_row(run, event))
            return taken

        return self._link.write(write)

    def waiting(self, wanted: Claim) -> bool:
        # A damaged row counts, too: the claim that follows takes it out of the way.
        with self._link.reader() as connection:
            return any(self._rows(connection, wanted, 1))

    def place(self, run: int) -> Place | None:
        with self._link.reader() as connection:
            row = connection.row("SELECT queue, rank FROM run WHERE key = ?", (run,))
        return None if row is None or row[0] is None else Place(row[0], -row[1] >> 1)

    def queues(self) -> dict[str, dict[str, int]]:
        with self._link.reader() as connection:
            rows = connection.rows(
                "SELECT queue, status, count(*) FROM run WHERE queue IS NOT NULL GROUP BY queue, status"
            )
        found: dict[str, dict[str, int]] = {}
        for queue, status, count in rows:
            found.setdefault(queue, {})[STATUSES[status]] = count
        return found

    def _claim(self, connection: Connection, wanted: Claim) -> list[RunRecord]:
        room = wanted.limit
        if wanted.most is not None:
            owned = connection.value(_OWNED, (json.dumps(list(wanted.queues)), wanted.now))
            room = min(room, wanted.most - owned)
        taken: list[RunRecord] = []
        while len(taken) < room:
            found = list(self._candidates(connection, wanted, room - len(taken)))
            if not found:
                break
            fresh = []
            for run in found:
                when = ready_at(run)
                if when is not None and when <= wanted.now:
                    fresh.append(claimed(run, wanted))
                else:
                    # It was renewed, or is not to be claimed: look again when it can be.
                    _set(connection, run)
            connection.executemany(_TAKE, map(_taken, fresh))
            taken += fresh
        if wanted.event is not None:
            connection.executemany(INSERT_EVENT, [event_row(run.key, wanted.event) for run in taken])
        return taken

    def _candidates(self, connection: Connection, wanted: Claim, limit: int) -> Iterator[RunRecord]:
        """Runs to look at, of all the queues, those whose turn is earliest first."""
        left = limit
        for rows in self._rows(connection, wanted, limit):
            sound = [run for row in rows if (run := _sound(connection, row)) is not None]
            records = sorted(sound, key=lambda run: (ready_at(run) or 0, run.key))[:left]
            yield from records
            left -= len(records)
            if left <= 0:
                return

    def _rows(self, connection: Connection, wanted: Claim, limit: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of those runs, by rank."""
        workflows = json.dumps(list(wanted.workflows))
        ranks: list[tuple[int, str]] = []
        for queue in dict.fromkeys(wanted.queues):
            rank = connection.value(_NEXT_RANK, (queue, _LOWEST))
            while rank is not None:
                ranks.append((rank, queue))
                rank = connection.value(_NEXT_RANK, (queue, rank))
        for rank in sorted({rank for rank, _ in ranks}):
            rows = []
            for each, queue in ranks:
                if each == rank:
                    rows += connection.rows(_READY, (queue, rank, wanted.now, workflows, limit))
            yield rows


def _sound(connection: Connection, row: tuple[Any, ...]) -> RunRecord | None:
    """A row as a record; a damaged one leaves its queue, so that it stands in nobody's way."""
    try:
        return run_record(row)
    except CorruptStore:
        if connection.in_transaction:
            connection.execute("UPDATE run SET ready=NULL WHERE key=?", (row[0],))
        return None


def _taken(run: RunRecord) -> tuple[Any, ...]:
    """The values of `_TAKE`."""
    return run.owner, run.until, run.updated, run.revision, run_sum(run_row(run)), ready_at(run), run.key


def _set(connection: Connection, run: RunRecord) -> None:
    connection.execute("UPDATE run SET ready=? WHERE key=? AND queue IS NOT NULL", (ready_at(run), run.key))


assert STATUS_NUMBER["running"] == 1  # as the index says
