"""Queues in a SQLite store: three columns of the table `run` that the commit of a step does not write.

`rank` is -2 * priority, less 1 for a run that was claimed before: the lowest is claimed first. `ready` is when to look
at a run again. It follows the run's status, due time and owner; a claim that comes too early notices a renewed lease.

Invariant: a claim finds every run that can be claimed, and only the run's record decides whether it can be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.errors import CorruptStore
from holdfast.model.records import EventRecord, RunRecord
from holdfast.store.protocol import Claim, QueuePlace, build_claimed_run, build_reclaimed_run, ready_at
from holdfast.store.rows import RUN, STATUS_NUMBER, count_by_queue, event_row, run_record, run_row, run_sum
from holdfast.store.sqlite.connection import SQLiteConnection
from holdfast.store.sqlite.database import SQLiteDatabase
from holdfast.store.sqlite.rows import INSERT_EVENT

assert STATUS_NUMBER["running"] == 1, "see the statements"
#: Created with the first run that is put into a queue: an empty index takes a page, too.
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS run_ready ON run (queue, rank, ready) WHERE ready IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS run_owned ON run (queue) WHERE queue IS NOT NULL AND status = 1",
)
_PUT = "UPDATE run SET rank = CASE WHEN queue=? AND rank=? THEN rank ELSE ? END, queue=?, ready=? WHERE key=?"
_NEXT_RANK = "SELECT min(rank) FROM run WHERE queue=? AND rank > ? AND ready IS NOT NULL"
_SELECT_READY = (
    f"SELECT {RUN}, sum FROM run WHERE queue=? AND rank=? AND ready IS NOT NULL AND ready <= ? "  # noqa: S608 - constants only
    "AND workflow IN (SELECT value FROM json_each(?)) ORDER BY ready, key LIMIT ?"
)
_SELECT_OF_OWNER = f"SELECT {RUN}, sum, queue FROM run WHERE key=? AND owner=?"  # noqa: S608 - constants only
_COUNT_OWNED = (
    "SELECT count(*) FROM run WHERE queue IN (SELECT value FROM json_each(?)) AND status = 1 AND until > ?"
)
_COUNT_ALL = "SELECT queue, status, count(*) FROM run WHERE queue IS NOT NULL GROUP BY queue, status"
_CLAIM = (
    "UPDATE run SET status=1, owner=?, until=?, updated=?, due=NULL, revision=?, sum=?, ready=?, "
    "rank = -((-rank) | 1) WHERE key=?"
)
_CLAIM_AGAIN = (
    "UPDATE run SET until=?, updated=?, revision=?, sum=?, ready = CASE WHEN queue IS NOT NULL THEN ? END "
    "WHERE key=?"
)
_SET_READY = "UPDATE run SET ready=? WHERE key=? AND queue IS NOT NULL"
_BELOW_ALL_RANKS = -(1 << 62)


def put(connection: SQLiteConnection, run: RunRecord, place: QueuePlace) -> None:
    """Put a run into a queue."""
    for statement in _INDEXES:
        connection.execute(statement)
    rank = -2 * place.priority
    # A run that was claimed before has one less.
    connection.execute(_PUT, (place.queue, rank - 1, rank, place.queue, ready_at(run), run.key))


class SQLiteQueues:
    """The queues of a store."""

    def __init__(self, database: SQLiteDatabase, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock

    def claim(self, request: Claim) -> list[RunRecord]:
        """Give runs to an owner."""
        # Most claims find nothing and need no transaction.
        if not self.has_claimable(request):
            return []
        return self._database.write(lambda connection: self._claim(connection, request))

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        """Renew an expired lease; return None if the run has another owner or its queue is full."""

        def write(connection: SQLiteConnection) -> RunRecord | None:
            now = self._clock()
            row = connection.row(_SELECT_OF_OWNER, (run, owner))
            if row is None:
                return None
            found, queue = run_record(row[:-1]), row[-1]
            if found.until > now:
                return found
            is_limited = queue is not None and most is not None
            if is_limited and connection.value(_COUNT_OWNED, (json.dumps([queue]), now)) >= most:
                return None
            claimed = build_reclaimed_run(found, now, lease)
            values = (claimed.until, claimed.updated, claimed.revision, run_sum(run_row(claimed)))
            connection.execute(_CLAIM_AGAIN, (*values, ready_at(claimed), run))
            connection.execute(INSERT_EVENT, event_row(run, event))
            return claimed

        return self._database.write(write)

    def has_claimable(self, request: Claim) -> bool:
        """Return whether a claim may find a run. A damaged row counts: the claim takes it out of its queue."""
        with self._database.reader() as connection:
            return any(self._rows(connection, request, 1))

    def queue_place(self, run: int) -> QueuePlace | None:
        """Return the queue of a run."""
        with self._database.reader() as connection:
            row = connection.row("SELECT queue, rank FROM run WHERE key = ?", (run,))
        return None if row is None or row[0] is None else QueuePlace(row[0], -row[1] >> 1)

    def queues(self) -> dict[str, dict[str, int]]:
        """Return the number of runs by queue and status."""
        with self._database.reader() as connection:
            return count_by_queue(connection.execute(_COUNT_ALL))

    def _claim(self, connection: SQLiteConnection, request: Claim) -> list[RunRecord]:
        room = request.limit
        if request.most is not None:
            owned = connection.value(_COUNT_OWNED, (json.dumps(list(request.queues)), request.now))
            room = min(room, request.most - owned)
        claimed: list[RunRecord] = []
        while len(claimed) < room:
            found = list(self._candidates(connection, request, room - len(claimed)))
            if not found:
                break
            new = []
            for run in found:
                when = ready_at(run)
                if when is not None and when <= request.now:
                    new.append(build_claimed_run(run, request))
                else:
                    # Its lease was renewed, or it cannot be claimed: look again when it can be.
                    connection.execute(_SET_READY, (when, run.key))
            connection.executemany(_CLAIM, map(_claim_values, new))
            claimed += new
        if request.event is not None:
            connection.executemany(INSERT_EVENT, [event_row(run.key, request.event) for run in claimed])
        return claimed

    def _candidates(self, connection: SQLiteConnection, request: Claim, limit: int) -> Iterator[RunRecord]:
        """Yield runs of all the queues in the order of their turn."""
        left = limit
        for rows in self._rows(connection, request, limit):
            intact = [run for row in rows if (run := _read_or_remove(connection, row)) is not None]
            records = sorted(intact, key=lambda run: (ready_at(run) or 0, run.key))[:left]
            yield from records
            left -= len(records)
            if left <= 0:
                return

    def _rows(
        self, connection: SQLiteConnection, request: Claim, limit: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of those runs, by rank."""
        workflows = json.dumps(list(request.workflows))
        ranks: dict[int, list[str]] = {}
        for queue in dict.fromkeys(request.queues):
            rank = connection.value(_NEXT_RANK, (queue, _BELOW_ALL_RANKS))
            while rank is not None:
                ranks.setdefault(rank, []).append(queue)
                rank = connection.value(_NEXT_RANK, (queue, rank))
        for rank, queues in sorted(ranks.items()):
            rows = []
            for queue in queues:
                rows += connection.rows(_SELECT_READY, (queue, rank, request.now, workflows, limit))
            yield rows


def _read_or_remove(connection: SQLiteConnection, row: tuple[Any, ...]) -> RunRecord | None:
    """Return a row as a record; take a damaged one out of its queue, so that it blocks no other run."""
    try:
        return run_record(row)
    except CorruptStore:
        if connection.in_transaction:
            connection.execute("UPDATE run SET ready=NULL WHERE key=?", (row[0],))
        return None


def _claim_values(run: RunRecord) -> tuple[Any, ...]:
    """Return the values of `_CLAIM`."""
    return run.owner, run.until, run.updated, run.revision, run_sum(run_row(run)), ready_at(run), run.key
