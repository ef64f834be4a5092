"""Runs that wait for a worker, in PostgreSQL: the table `queued` beside `run`, which the commits of steps do not touch.

`priority` is twice the run's, with one more if it was claimed before. `ready` says when to look at a run again. It
follows the run's record when its status, its time or its owner changes; a lease that was renewed is noticed by the
claim that comes too early.

Invariant: a run that can be claimed is found by a claim, and only the record decides whether it can be.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import CorruptStore
from holdfast.model.records import STATUSES, EventRecord, RunRecord
from holdfast.store.base import Claim, Place
from holdfast.store.claims import claimed, claimed_again, ready_at
from holdfast.store.postgres_journal import noting
from holdfast.store.postgres_link import Connection, Link
from holdfast.store.postgres_locks import lock_number
from holdfast.store.postgres_rows import SELECT_RUN
from holdfast.store.postgres_time import SERVER_NOW
from holdfast.store.postgres_wire import Statement, carry_out
from holdfast.store.sqlite_rows import RUN, STATUS_NUMBER, run_record, run_row, run_sum

_COLUMNS = ", ".join(f"run.{name}" for name in RUN.split(", "))
_READY = (
    "FROM queued JOIN run ON run.key = queued.run WHERE queued.queue = ANY(%b::text[]) AND queued.ready <= %s "
    "AND run.workflow = ANY(%b::text[])"
)
_LOOK = (
    f"SELECT {_COLUMNS}, run.sum {_READY} "
    "ORDER BY queued.priority DESC, queued.ready, queued.run LIMIT %s FOR UPDATE SKIP LOCKED"
)
_RUNNING = (
    "FROM queued JOIN run ON run.key = queued.run WHERE queued.queue = ANY(%b::text[]) "
    "AND queued.ready IS NOT NULL AND run.status = %s"
)
_EXPIRED = (
    f"SELECT run.key {_RUNNING} AND run.until <= least(%s, coalesce(%s::bigint, {SERVER_NOW})) "
    "ORDER BY run.key FOR UPDATE OF run SKIP LOCKED"
)
_OWNED = f"SELECT count(*) {_RUNNING} AND run.key <> ALL(%b::bigint[])"
_FIND = f"{SELECT_RUN} key = %s AND owner = %s FOR UPDATE"
_TAKE_AGAIN = "UPDATE run SET until = %s, updated = %s, revision = %s, sum = %s, attempt = 0 WHERE key = %s"
_TAKE = (
    "UPDATE run SET status = %s::bigint, owner = %s::text, until = %s::bigint, updated = %s::bigint, due = NULL, "
    "revision = given.revision, sum = given.sum, attempt = 0 "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]) given (key, revision, sum) WHERE run.key = given.key"
)
_SET = (
    "UPDATE queued SET ready = given.ready, priority = queued.priority | given.begun "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) given (run, ready, begun) WHERE queued.run = given.run"
)
#: Seconds after which the server ends the claim of a process that was stopped in it, and frees the queue.
_IDLE = 15.0
_PLACE = "SELECT queue, priority FROM queued WHERE run = %s"
_COUNT = (
    "SELECT queued.queue, run.status, count(*) FROM queued JOIN run ON run.key = queued.run "
    "GROUP BY 1, 2 ORDER BY 1, 2"
)


def claim(link: Link, wanted: Claim) -> list[RunRecord]:
    """Give runs to an owner. If the answer is lost, what was taken comes back when its time runs out."""
    queues = sorted(set(wanted.queues))
    place = (queues, wanted.now, list(wanted.workflows))

    def take(connection: Connection) -> list[RunRecord]:
        room = wanted.limit
        if wanted.most is not None:
            room = min(room, wanted.most - _owned(link, connection, queues, wanted.now))
        taken: list[RunRecord] = []
        while len(taken) < room:
            rows = connection.execute(_LOOK, (*place, room - len(taken)), binary=True).fetchall()
            if not rows:
                break
            taken += _sort(connection, link.address.schema, _sound(connection, rows), wanted)
        return taken

    # Most claims find nothing: they begin no transaction.
    return link.transact(take, idle=_IDLE) if waiting(link, wanted) else []


def claim_again(
    link: Link, run: int, owner: str, lease: int, most: int | None, event: EventRecord
) -> RunRecord | None:
    """Give a run back to an owner whose lease has run out; None if that cannot be."""

    def take(connection: Connection) -> RunRecord | None:
        link.time.measure(connection)
        at = None if most is None else connection.execute(_PLACE, (run,)).fetchone()
        # The locks are taken in the order in which a claim takes them.
        full = (
            at is not None
            and most is not None
            and _owned(link, connection, [at[0]], link.time.now(), but=run) >= most
        )
        row = connection.execute(_FIND, (run, owner), binary=True).fetchone()
        found = None if row is None else run_record(row)
        if found is None or found.until > link.time.now():
            return found
        if full:
            return None
        taken = claimed_again(found, link.time.now(), lease)
        values = (taken.until, taken.updated, taken.revision, run_sum(run_row(taken)), run)
        connection.execute(_TAKE_AGAIN, values)
        carry_out(connection, noting(link.address.schema, [(run, event)]))
        return taken

    return link.transact(take, idle=_IDLE)


def _owned(link: Link, connection: Connection, queues: list[str], now: int, but: int = 0) -> int:
    """Lock queues, and count their runs that are owned, but for one. A lease that has run out frees a place only if its
    row can be locked: where it cannot, the owner may have written before it ran out, and only commit late."""
    for queue in queues:
        number = lock_number(link.address.schema, f"queue {queue}")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
    running = (queues, STATUS_NUMBER["running"])
    times = (now, link.time.stated())
    expired = [row[0] for row in connection.execute(_EXPIRED, (*running, *times)).fetchall()]
    row = connection.execute(_OWNED, (*running, [but, *expired])).fetchone()
    return 0 if row is None else int(row[0])


def waiting(link: Link, wanted: Claim) -> bool:
    """Is there a run to be looked at?"""
    place = (sorted(set(wanted.queues)), wanted.now, list(wanted.workflows))
    return bool(link.rows(f"SELECT {_READY} LIMIT 1", place))


def place(link: Link, run: int) -> Place | None:
    """Where a run waits."""
    rows = link.rows(_PLACE, (run,))
    return Place(rows[0][0], rows[0][1] >> 1) if rows else None


def queues(link: Link) -> dict[str, dict[str, int]]:
    """By queue, how many runs it has of each status."""
    found: dict[str, dict[str, int]] = {}
    for queue, status, count in link.rows(_COUNT):
        found.setdefault(queue, {})[STATUSES[status]] = count
    return found


def _sound(connection: Connection, rows: list[Any]) -> list[RunRecord]:
    """Rows as records; a damaged one leaves its queue, so that it stands in nobody's way."""
    found = []
    for row in rows:
        try:
            found.append(run_record(row))
        except CorruptStore:
            connection.execute("UPDATE queued SET ready = NULL WHERE run = %s", (row[0],))
    return found


def _sort(connection: Connection, schema: str, found: list[RunRecord], wanted: Claim) -> list[RunRecord]:
    """Take those that can be claimed; look again at the others when they can be."""
    times = [ready_at(run) for run in found]
    taken = [
        claimed(run, wanted)
        for run, when in zip(found, times, strict=True)
        if when is not None and when <= wanted.now
    ]
    now: dict[int, Any] = {run.key: when for run, when in zip(found, times, strict=True)}
    now.update({run.key: ready_at(run) for run in taken})
    keys = [run.key for run in taken]
    begun = set(keys)
    statements = [
        Statement(_SET, (list(now), list(now.values()), [int(key in begun) for key in now])),
    ]
    if taken:
        values = (STATUS_NUMBER["running"], wanted.owner, wanted.until, wanted.now)
        revisions = [run.revision for run in taken]
        sums = [run_sum(run_row(run)) for run in taken]
        statements.append(Statement(_TAKE, (*values, keys, revisions, sums)))
        if wanted.event is not None:
            statements += noting(schema, [(key, wanted.event) for key in keys])
    carry_out(connection, statements)
    return taken
