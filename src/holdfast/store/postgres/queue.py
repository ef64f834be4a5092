"""Queues in PostgreSQL: the table `queued` next to `run`, which the commit of a step does not write.

`priority` is twice the run's, plus 1 if the run was claimed before. `ready` is when to look at a run again. It follows
the run's status, due time and owner; a claim that comes too early notices a renewed lease.

Invariant: a claim finds every run that can be claimed, and only the run's record decides whether it can be.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import CorruptStore
from holdfast.model.records import EventRecord, RunRecord
from holdfast.store.postgres.connection import SERVER_NOW, PostgresConnection
from holdfast.store.postgres.connection_pool import PostgresPool
from holdfast.store.postgres.journal import PostgresJournal
from holdfast.store.postgres.notify import ChangeNotifier
from holdfast.store.postgres.prepared import PreparedStatement, execute_prepared
from holdfast.store.postgres.schema import lock_number
from holdfast.store.protocol import Claim, QueuePlace, build_claimed_run, build_reclaimed_run, ready_at
from holdfast.store.rows import RUN, STATUS_NUMBER, count_by_queue, run_record, run_row, run_sum

_COLUMNS = ", ".join(f"run.{name}" for name in RUN.split(", "))
_READY = (
    "FROM queued JOIN run ON run.key = queued.run WHERE queued.queue = ANY($1::text[]) AND queued.ready <= $2 "
    "AND run.workflow = ANY($3::text[])"
)
_SELECT_READY = (
    f"SELECT {_COLUMNS}, run.sum {_READY} "
    "ORDER BY queued.priority DESC, queued.ready, queued.run LIMIT $4 FOR UPDATE SKIP LOCKED"
)
_RUNNING = (
    "FROM queued JOIN run ON run.key = queued.run WHERE queued.queue = ANY($1::text[]) "
    "AND queued.ready IS NOT NULL AND run.status = $2"
)
_SELECT_EXPIRED = (
    f"SELECT run.key {_RUNNING} AND run.until <= least($3, coalesce($4::bigint, {SERVER_NOW})) "
    "ORDER BY run.key FOR UPDATE OF run SKIP LOCKED"
)
_COUNT_OWNED = f"SELECT count(*) {_RUNNING} AND run.key <> ALL($3::bigint[])"
_SELECT_OF_OWNER = f"SELECT {RUN}, sum FROM run WHERE key = $1 AND owner = $2 FOR UPDATE"  # noqa: S608 - constants only
_CLAIM_AGAIN = "UPDATE run SET until = $1, updated = $2, revision = $3, sum = $4, attempt = 0 WHERE key = $5"
_CLAIM = (
    "UPDATE run SET status = %s::bigint, owner = %s::text, until = %s::bigint, updated = %s::bigint, due = NULL, "
    "revision = given.revision, sum = given.sum, attempt = 0 "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]) given (key, revision, sum) WHERE run.key = given.key"
)
_SET_READY = (
    "UPDATE queued SET ready = given.ready, priority = queued.priority | given.claimed "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) given (run, ready, claimed) WHERE queued.run = given.run"
)
#: Seconds after which the server ends the claim of a suspended process, and frees the queue.
_IDLE = 15.0
_SELECT_PLACE = "SELECT queue, priority FROM queued WHERE run = $1"
_COUNT_ALL = (
    "SELECT queued.queue, run.status, count(*) FROM queued JOIN run ON run.key = queued.run "
    "GROUP BY 1, 2 ORDER BY 1, 2"
)


class PostgresQueues:
    """The queues of a store."""

    def __init__(self, pool: PostgresPool, journal: PostgresJournal, notifier: ChangeNotifier) -> None:
        self._pool = pool
        self._journal = journal
        self._notifier = notifier

    def claim(self, request: Claim) -> list[RunRecord]:
        """Give runs to an owner. If the answer is lost, the claimed runs are free again when their leases expire."""
        # Most claims find nothing and need no transaction.
        if not self.has_claimable(request):
            return []
        claimed = self._pool.write(lambda connection: self._claim(connection, request), idle=_IDLE)
        if claimed:
            self._notifier.notify()
        return claimed

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        """Renew an expired lease; return None if the run has another owner or its queue is full."""
        clock = self._pool.time

        def write(connection: PostgresConnection) -> RunRecord | None:
            clock.measure(connection)
            place = None if most is None else connection.row(_SELECT_PLACE, (run,))
            # The locks are taken in the same order as by a claim.
            is_full = (
                place is not None
                and most is not None
                and self._count_owned(connection, [place[0]], clock.now(), exclude=run) >= most
            )
            row = connection.row(_SELECT_OF_OWNER, (run, owner))
            found = None if row is None else run_record(row)
            if found is None or found.until > clock.now():
                return found
            if is_full:
                return None
            claimed = build_reclaimed_run(found, clock.now(), lease)
            values = (claimed.until, claimed.updated, claimed.revision, run_sum(run_row(claimed)), run)
            connection.execute(_CLAIM_AGAIN, values)
            self._journal.add(connection, [(run, event)])
            return claimed

        claimed = self._pool.write(write, idle=_IDLE)
        self._notifier.notify()
        return claimed

    def has_claimable(self, request: Claim) -> bool:
        """Return whether a claim may find a run."""
        return bool(self._pool.rows(f"SELECT {_READY} LIMIT 1", _ready_values(request)))

    def queue_place(self, run: int) -> QueuePlace | None:
        """Return the queue of a run."""
        row = self._pool.row(_SELECT_PLACE, (run,))
        return None if row is None else QueuePlace(row[0], row[1] >> 1)

    def queues(self) -> dict[str, dict[str, int]]:
        """Return the number of runs by queue and status."""
        return count_by_queue(self._pool.rows(_COUNT_ALL))

    def _claim(self, connection: PostgresConnection, request: Claim) -> list[RunRecord]:
        queues, now, workflows = _ready_values(request)
        room = request.limit
        if request.most is not None:
            room = min(room, request.most - self._count_owned(connection, queues, now))
        claimed: list[RunRecord] = []
        while len(claimed) < room:
            rows = connection.rows(_SELECT_READY, (queues, now, workflows, room - len(claimed)))
            if not rows:
                break
            claimed += self._claim_ready(connection, _read_or_remove(connection, rows), request)
        return claimed

    def _count_owned(
        self, connection: PostgresConnection, queues: list[str], now: int, exclude: int = 0
    ) -> int:
        """Lock queues, and count their owned runs except one. An expired lease frees a place only if its row can be
        locked: otherwise its owner may have written before it expired, and only commit late."""
        for queue in queues:
            number = lock_number(self._pool.address.schema, f"queue {queue}")
            connection.execute("SELECT pg_advisory_xact_lock($1)", (number,))
        running = (queues, STATUS_NUMBER["running"])
        expired = connection.rows(_SELECT_EXPIRED, (*running, now, self._pool.time.stated()))
        return int(connection.value(_COUNT_OWNED, (*running, [exclude, *(row[0] for row in expired)])))

    def _claim_ready(
        self, connection: PostgresConnection, found: list[RunRecord], request: Claim
    ) -> list[RunRecord]:
        """Claim the runs that can be claimed; look at the others again when they can be."""
        ready = {run.key: ready_at(run) for run in found}
        claimed = [
            build_claimed_run(run, request)
            for run in found
            if (when := ready[run.key]) is not None and when <= request.now
        ]
        ready.update({run.key: ready_at(run) for run in claimed})
        keys = [run.key for run in claimed]
        was_claimed = [int(key in set(keys)) for key in ready]
        statements = [PreparedStatement(_SET_READY, (list(ready), list(ready.values()), was_claimed))]
        if claimed:
            values = (STATUS_NUMBER["running"], request.owner, request.until, request.now)
            revisions = [run.revision for run in claimed]
            sums = [run_sum(run_row(run)) for run in claimed]
            statements.append(PreparedStatement(_CLAIM, (*values, keys, revisions, sums)))
            if request.event is not None:
                statements += self._journal.statements([(key, request.event) for key in keys])
        execute_prepared(connection, statements)
        return claimed


def _ready_values(request: Claim) -> tuple[list[str], int, list[str]]:
    """Return the values of `_READY`."""
    return sorted(set(request.queues)), request.now, list(request.workflows)


def _read_or_remove(connection: PostgresConnection, rows: list[Any]) -> list[RunRecord]:
    """Return rows as records; take damaged ones out of their queue, so that they block no other run."""
    found = []
    for row in rows:
        try:
            found.append(run_record(row))
        except CorruptStore:
            connection.execute("UPDATE queued SET ready = NULL WHERE run = $1", (row[0],))
    return found
