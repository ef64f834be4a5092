"""Changes of runs in PostgreSQL: each change is one statement, which compares and writes in one round trip.

A single change is a transaction by itself; changes of many runs are sent together in one. Threads that submit a change
while another is written share the next transaction. Changes that bring or refer to artifacts take several statements.
A version for an existing run and nothing else, which is what most steps write, can share a statement with others: one
statement for each would cost the server and the driver several times as much.

When the connection is lost, it is unknown whether the change was carried out, or still will be. Every writer leaves a
number in the run's row; that number, or the version's hash, identifies the writer. If the row is unchanged, the change
is sent again: the revision refuses whichever of the two comes second.

Invariant: a change that was acknowledged was written once; one that was refused was not written, and never will be. The
text of a statement depends on the parts that a change has, never on their values, so it is prepared once.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any

import msgspec

from holdfast.errors import CommitUnknown, HoldfastError
from holdfast.model.meta import facets_of
from holdfast.model.records import MarkRecord, RunRecord
from holdfast.store.attachments import ON_CONFLICT
from holdfast.store.group_commit import GroupCommit, Job
from holdfast.store.postgres.attachments import COLUMNS, GIVEN, attachment_columns
from holdfast.store.postgres.connection import (
    SERVER_NOW,
    ConnectionLost,
    PostgresConnection,
    RetryDeadline,
    TransactionAborted,
    unreachable_error,
)
from holdfast.store.postgres.connection_pool import ANSWER, PostgresPool
from holdfast.store.postgres.journal import VERSION_COLUMNS, PostgresJournal, type_of, version_row
from holdfast.store.postgres.notify import ChangeNotifier
from holdfast.store.postgres.prepared import PreparedStatement, execute_prepared
from holdfast.store.protocol import (
    Append,
    changes_readiness,
    lease_expired,
    ready_at,
    stale_new_run,
    stale_run,
)
from holdfast.store.questions import QUESTION, place_rows, question_row
from holdfast.store.rows import RUN, event_row, mark_row, run_row, run_sum, timeline_row
from holdfast.store.sql import SQLArtifacts

_RUN_COLUMNS = [*RUN.split(", "), "sum", "attempt"]
#: The columns of a run that a change may change.
_CHANGED_COLUMNS = [name for name in _RUN_COLUMNS if name not in ("key", "id", "created")]
#: The columns of a version without the run.
_VERSION_COLUMNS = VERSION_COLUMNS.split(", ")[1:]
_INSERT_RUN = (
    f"INSERT INTO run ({', '.join(_RUN_COLUMNS)}) "
    f"VALUES ({', '.join(f'%s::{type_of(name)}' for name in _RUN_COLUMNS)}) ON CONFLICT (id) DO NOTHING"
)
_UPDATE_RUN = (
    f"UPDATE run SET {', '.join(f'{name} = %s::{type_of(name)}' for name in _CHANGED_COLUMNS)} "
    "WHERE key = %s::bigint AND revision = %s::bigint"
)
_HAS_LEASE = f"until > coalesce(%s::bigint, {SERVER_NOW})"
_UPDATE_LEASED_RUN = f"{_UPDATE_RUN} AND {_HAS_LEASE}"
#: Keys change only together with the revision, so the key that is looked for cannot be added meanwhile. Not EXISTS, for
#: which the server may read the whole journal into a hash table.
_LACKS_KEY = "(SELECT 1 FROM journal WHERE journal.run = run.key AND journal.external = {}) IS NULL"
_HAS_KEY = f"SELECT 1 FROM run WHERE key = $1 AND revision = $2 AND NOT {_LACKS_KEY.format('$3')}"
# The further parts of a statement, which read the key of the run from `changed`
_INSERT_VERSION = (
    f"versioned AS (INSERT INTO journal ({VERSION_COLUMNS}) "
    f"SELECT key, {', '.join(f'%s::{type_of(name)}' for name in _VERSION_COLUMNS)} FROM changed RETURNING run)"
)
_INSERT_EVENTS = (
    "noted AS (INSERT INTO journal (run, at, step, detail, seal) "
    "SELECT changed.key, given.at, given.kind, given.data, given.seal "
    "FROM changed, unnest(%s::bigint[], %s::text[], %s::bytea[], %s::bytea[]) "
    "WITH ORDINALITY given (at, kind, data, seal, n) ORDER BY n)"
)
#: With later positions than the version has.
_INSERT_EVENTS_AFTER_VERSION = (
    "noted AS (INSERT INTO journal (run, at, step, detail, seal) "
    "SELECT versioned.run, given.at, given.kind, given.data, given.seal "
    "FROM versioned, unnest(%s::bigint[], %s::text[], %s::bytea[], %s::bytea[]) "
    "WITH ORDINALITY given (at, kind, data, seal, n) ORDER BY n)"
)
_INSERT_TAGS = (
    "tagged AS (INSERT INTO mark (run, name, number, at, sum) SELECT key, given.* FROM changed, "
    "unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bytea[]) given)"
)
_INSERT_BLOCKS = (
    "stored AS (INSERT INTO block (run, number, n, data) SELECT key, %s::bigint, given.n - 1, given.data "
    "FROM changed, unnest(%s::bytea[]) WITH ORDINALITY given (data, n))"
)
_INSERT_TIMELINE = (
    "lined AS (INSERT INTO timeline "
    "SELECT key, %s::bigint, %s::bigint, %s::bigint, %s::text, %s::text, %s::bytea FROM changed)"
)
_INSERT_ATTACHMENTS = (
    f"attached AS (INSERT INTO attachment (run, {COLUMNS}) "
    f"SELECT changed.key, given.* FROM changed, {GIVEN} given ({COLUMNS}) ORDER BY given.key, given.name "
    f"{ON_CONFLICT[True]})"
)
_PUT_INTO_QUEUE = (
    "queued_up AS (INSERT INTO queued (run, queue, priority, ready) "
    "SELECT key, %s::text, %s::bigint, %s::bigint FROM changed ON CONFLICT (run) DO UPDATE "
    "SET queue = excluded.queue, ready = excluded.ready, priority = CASE WHEN queued.queue = excluded.queue "
    "AND queued.priority = excluded.priority | 1 THEN queued.priority ELSE excluded.priority END)"
)
_SET_READY = "requeued AS (UPDATE queued SET ready = %s::bigint FROM changed WHERE queued.run = changed.key)"

#: A statement sees none of its own changes: rows that stay are updated, and others deleted.
_QUESTION_TYPES = (
    "bigint",
    "text",
    "bigint",
    "text",
    "text",
    "bigint",
    "bigint",
    "bigint",
    "bigint",
    "bytea",
)
_QUESTION_COLUMNS = [*QUESTION.split(", ")[1:], "sum"]
_CLOSE_QUESTIONS = (
    "closed AS (DELETE FROM question USING changed WHERE question.run = changed.key "
    "AND NOT (question.number = ANY(%s::bigint[])))"
)
_PUT_QUESTIONS = (
    f"asked AS (INSERT INTO question (run, {', '.join(_QUESTION_COLUMNS)}) SELECT changed.key, given.* "
    f"FROM changed, unnest({', '.join(f'%s::{kind}[]' for kind in _QUESTION_TYPES)}) given "
    "ON CONFLICT (run, number) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in _QUESTION_COLUMNS[1:])})"
)
_GIVEN_PLACES = "unnest(%s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
_LEAVE_PLACES = (
    "left_places AS (DELETE FROM question_place USING changed WHERE question_place.run = changed.key "
    "AND NOT EXISTS (SELECT FROM unnest(%s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[]) "
    "given (facet, rank, opened, number) WHERE given.facet = question_place.facet "
    "AND given.rank = question_place.rank AND given.opened = question_place.opened "
    "AND given.number = question_place.number))"
)
_TAKE_PLACES = (
    "places AS (INSERT INTO question_place (facet, rank, opened, run, number, expires) "
    "SELECT given.facet, given.rank, given.opened, changed.key, given.number, given.expires "
    f"FROM changed, {_GIVEN_PLACES} given (facet, rank, opened, number, expires) "
    "ON CONFLICT (facet, rank, opened, run, number) DO UPDATE SET expires = excluded.expires)"
)

# Here, too, rows that stay are updated, and others deleted.
_DROP_META = (
    "dropped_meta AS (DELETE FROM meta USING changed WHERE meta.run = changed.key "
    "AND NOT (meta.name = ANY(%s::text[])))"
)
_DROP_META_PLACES = (
    "dropped_places AS (DELETE FROM meta_place USING changed WHERE meta_place.run = changed.key "
    "AND NOT (meta_place.facet = ANY(%s::bytea[])))"
)
_PUT_META = (
    "put_meta AS (INSERT INTO meta (run, name, value) SELECT changed.key, given.name, given.value "
    "FROM changed, unnest(%s::text[], %s::text[]) given (name, value) "
    "ON CONFLICT (run, name) DO UPDATE SET value = excluded.value)"
)
_PUT_META_PLACES = (
    "put_places AS (INSERT INTO meta_place (facet, run) SELECT given.facet, changed.key "
    "FROM changed, unnest(%s::bytea[]) given (facet) ON CONFLICT (facet, run) DO NOTHING)"
)

_SELECT_WRITER = "SELECT key, revision, attempt FROM run WHERE id = $1"
_SELECT_REVISION = "SELECT 1 FROM run WHERE key = $1 AND revision = $2"
_SELECT_SEAL = "SELECT seal FROM journal WHERE run = $1 AND number = $2"
_HAS_EVENT = "SELECT 1 FROM journal WHERE run = $1 AND number IS NULL AND seal = $2"
#: The number of changes from which one statement for all is faster.
_MIN_BATCH = 4
#: The number of changes in one transaction at most.
_MAX_BATCH = 256


class SentChange:
    """A change that is being sent."""

    __slots__ = ("attempt", "change", "outcome", "run", "sending", "tried")

    def __init__(self, change: Append, attempt: int) -> None:
        self.change = change
        #: The run after the change, with its key.
        self.run = change.run
        #: The number by which the writer recognizes its own row.
        self.attempt = attempt
        #: Whether it is being sent; whether it was sent and the answer was lost, with the connection or the thread.
        self.sending = False
        self.tried = False
        self.outcome: RunRecord | HoldfastError | None = None

    def refuse(self) -> None:
        self.outcome = stale_new_run(self.run) if self.change.expect is None else stale_run(self.run)

    def set_unknown(self, cause: BaseException | None) -> None:
        self.outcome = CommitUnknown(
            f"the connection was lost while run {self.run.id!r} was written, and the outcome is unknown: read the run, "
            "then continue from its head",
            run=self.run.id,
            revision=self.run.revision,
        )
        self.outcome.__cause__ = cause


def _change_statement(sent: SentChange, lock_positions: str, now: int | None) -> PreparedStatement:
    """Return the statement that writes all parts of a change, or nothing. It returns the key of the run, or nothing if
    nothing was written. `now` is the time by which a lease expires, None for the server's."""
    change, run = sent.change, sent.run
    expect, key, version = change.expect, run.key, change.version
    row = run_row(run)
    values: list[Any]
    if expect is None:
        first, values = _INSERT_RUN, [*row, run_sum(row), sent.attempt]
    else:
        first = _UPDATE_LEASED_RUN if change.leased else _UPDATE_RUN
        values = [*row[2:4], *row[5:], run_sum(row), sent.attempt, expect.key, expect.revision]
        if change.leased:
            values.append(now)
        if version is not None and version.key is not None:
            first = f"{first} AND {_LACKS_KEY.format('%s::text')}"
            values.append(version.key)
    parts = []
    if version is not None:
        parts.append(_INSERT_VERSION)
        values += version_row(version)
    if change.events:
        parts.append(_INSERT_EVENTS if version is None else _INSERT_EVENTS_AFTER_VERSION)
        values += zip(*(event_row(key, event)[1:] for event in change.events), strict=True)
    if change.tags and version is not None:
        parts.append(_INSERT_TAGS)
        tags = dict.fromkeys(change.tags)
        rows = [mark_row(key, MarkRecord(number=version.number, name=name, at=version.at)) for name in tags]
        values += zip(*(row[1:] for row in rows), strict=True)
    if change.blocks and version is not None:
        parts.append(_INSERT_BLOCKS)
        values += [version.number, change.blocks]
    if change.timeline is not None:
        parts.append(_INSERT_TIMELINE)
        values += timeline_row(key, change.timeline)[1:]
    if change.attachments:
        parts.append(_INSERT_ATTACHMENTS)
        values += attachment_columns(change.attachments)
    if change.queue is not None:
        parts.append(_PUT_INTO_QUEUE)
        values += [change.queue.queue, 2 * change.queue.priority, ready_at(run)]
    elif expect is not None and changes_readiness(expect, run):
        parts.append(_SET_READY)
        values.append(ready_at(run))
    if change.questions is not None:
        parts += [_CLOSE_QUESTIONS, _LEAVE_PLACES]
        places = [place for question in change.questions for place in place_rows(key, question)]
        columns: list[Any] = list(zip(*places, strict=True)) or [()] * 6
        facets, ranks, opened, _, numbers, expires = map(list, columns)
        values += [[question.number for question in change.questions], facets, ranks, opened, numbers]
        if change.questions:
            parts += [_PUT_QUESTIONS, _TAKE_PLACES]
            rows = [question_row(key, question)[1:] for question in change.questions]
            values += [*map(list, zip(*rows, strict=True)), facets, ranks, opened, numbers, expires]
    if change.meta is not None:
        names, facets = [name for name, _ in change.meta], facets_of(change.meta)
        if expect is not None:
            parts += [_DROP_META, _DROP_META_PLACES]
            values += [names, facets]
        if change.meta:
            parts += [_PUT_META, _PUT_META_PLACES]
            values += [names, [value for _, value in change.meta], facets]
    lock = lock_positions if version is not None or change.events else None
    return PreparedStatement(_change_text(first, lock, tuple(parts)), values)


@cache
def _change_text(change: str, lock: str | None, parts: tuple[str, ...]) -> str:
    """Return a statement of a change and its further parts. A part that must come later reads from an earlier one:
    `changed` takes the lock that precedes positions in the journal (see `journal`)."""
    changed = f"changed AS ({change} RETURNING key{'' if lock is None else f', {lock}'})"
    return f"WITH {', '.join([changed, *parts])} SELECT key FROM changed"


def _can_batch(change: Append) -> bool:
    """Return whether a change can share a statement with others."""
    return (
        change.expect is not None
        and change.version is not None
        and not (change.events or change.tags or change.blocks or change.timeline or change.queue)
        and not change.attachments
        and change.questions is None
        and change.meta is None
    )


def _batch_statement(
    batch: list[SentChange], readiness: bool, lock_positions: str, now: int | None
) -> PreparedStatement:
    """Return the statement of changes all or none of which change readiness, and all or none of which are leased. It
    returns the attempts that were written: a run with another revision is left unchanged."""
    leased = batch[0].change.leased
    rows = [_batch_row(sent, readiness) for sent in sorted(batch, key=lambda sent: sent.run.key)]
    values = [*zip(*rows, strict=True), *([now] if leased else [])]
    return PreparedStatement(_batch_text(readiness, leased, lock_positions), values)


def _batch_row(sent: SentChange, readiness: bool) -> tuple[Any, ...]:
    change, row = sent.change, run_row(sent.run)
    assert change.expect is not None
    assert change.version is not None
    values = (
        change.expect.key, change.expect.revision, *row[2:4], *row[5:], run_sum(row), sent.attempt,
        *version_row(change.version),
    )  # fmt: skip
    return (*values, ready_at(sent.run)) if readiness else values


@cache
def _batch_text(readiness: bool, leased: bool, lock_positions: str) -> str:
    columns = {name: type_of(name) for name in ("key", "expect", *_CHANGED_COLUMNS)}
    columns |= {f"v_{name}": type_of(name) for name in _VERSION_COLUMNS}
    if readiness:
        columns["ready"] = "bigint"
    values = ", ".join(f"%s::{kind}[]" for kind in columns.values())
    changes = ", ".join(f"{name} = given.{name}" for name in _CHANGED_COLUMNS)
    written = ", ".join(f"given.v_{name}" for name in _VERSION_COLUMNS)
    parts = [
        f"changed AS (UPDATE run SET {changes} FROM unnest({values}) given ({', '.join(columns)}) "
        f"WHERE run.key = given.key AND run.revision = given.expect {f'AND run.{_HAS_LEASE} ' if leased else ''}"
        f"AND (given.v_external IS NULL OR {_LACKS_KEY.format('given.v_external')}) "
        f"RETURNING run.key, run.attempt, {written}{', given.ready' if readiness else ''})",
        # The lock that precedes positions in the journal (see `journal`).
        f"held AS MATERIALIZED (SELECT {lock_positions} FROM (SELECT count(*) AS n FROM changed) counted WHERE n > 0)",
        f"versioned AS (INSERT INTO journal ({VERSION_COLUMNS}) "
        f"SELECT key, {', '.join(f'v_{name}' for name in _VERSION_COLUMNS)} FROM held, changed)",
    ]
    if readiness:
        parts.append(
            "requeued AS (UPDATE queued SET ready = changed.ready FROM changed WHERE queued.run = changed.key)"
        )
    return f"WITH {', '.join(parts)} SELECT attempt FROM changed"


class Appender:
    """Writes changes of runs."""

    def __init__(
        self, pool: PostgresPool, artifacts: SQLArtifacts, journal: PostgresJournal, notifier: ChangeNotifier
    ) -> None:
        self._pool = pool
        self._artifacts = artifacts
        self._lock_positions = journal.lock_positions
        self._notifier = notifier
        self._writers: GroupCommit[SentChange] = GroupCommit(self._carry_out, _MAX_BATCH)
        self._attempts = _draw_attempts()

    def reset(self) -> None:
        """Start again without writers, in a child after a fork."""
        self._writers.reset()
        self._attempts = _draw_attempts()

    def append(self, change: Append) -> RunRecord:
        """Apply one change."""
        if not change.uploads and not change.holds:
            written: RunRecord = self._writers.submit(SentChange(change, next(self._attempts)))
            return written
        (outcome,) = self._with_artifacts([change])
        if isinstance(outcome, HoldfastError):
            raise outcome
        return outcome

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        """Apply changes of different runs together."""
        if any(change.uploads or change.holds for change in changes):
            return self._with_artifacts(changes)
        found: list[RunRecord | HoldfastError] = []
        for start in range(0, len(changes), _MAX_BATCH):
            # Each part is a transaction of its own: an error of one does not concern the parts before it.
            part = changes[start : start + _MAX_BATCH]
            try:
                found += self._write(self._start(part))
            except HoldfastError as error:
                if start == 0:
                    raise
                found += [error] * len(part)
        return found

    def _carry_out(self, jobs: list[Job[SentChange]]) -> None:
        for job, outcome in zip(jobs, self._write([job.item for job in jobs]), strict=True):
            job.outcome = outcome

    def _start(self, changes: Sequence[Append]) -> list[SentChange]:
        return [SentChange(change, next(self._attempts)) for change in changes]

    def _write(self, batch: list[SentChange]) -> list[RunRecord | HoldfastError]:
        """Write changes, each in one statement. An exception means that nothing was written."""
        deadline = RetryDeadline(self._pool.timeout)
        while waiting := [sent for sent in batch if sent.outcome is None]:
            # Sent by an interrupted leader, or by the previous try.
            _set_tried(waiting)
            try:
                with self._pool.lend(deadline, limit=ANSWER) as connection:
                    self._settle(connection, waiting)
                    waiting = [sent for sent in waiting if sent.outcome is None]
                    self._give_keys(connection, waiting)
                    for sent in waiting:
                        sent.sending = True
                    self._send(connection, waiting)
                    for sent in waiting:
                        sent.sending = False
                    self._settle(connection, waiting)
            except ConnectionLost as lost:
                _set_tried(waiting)
                if not deadline.pause():
                    self._fail(batch, unreachable_error(lost.error, self._pool.shown), lost.error)
            except TransactionAborted as aborted:
                for sent in waiting:
                    sent.sending = False
                if not deadline.pause():
                    self._fail(batch, self._pool.translate(aborted.error), aborted.error)
            except HoldfastError as error:
                for sent in waiting:
                    sent.sending = False
                self._fail(batch, error, error.__cause__)
        self._notifier.notify()
        return [sent.outcome for sent in batch if sent.outcome is not None]

    def _fail(self, batch: list[SentChange], error: HoldfastError, cause: BaseException | None) -> None:
        """Stop trying: a change that was never sent was never written."""
        if not any(sent.tried or sent.outcome for sent in batch):
            raise error from cause
        for sent in batch:
            if sent.outcome is None:
                sent.set_unknown(cause)

    def _give_keys(self, connection: PostgresConnection, batch: list[SentChange]) -> None:
        new = [sent for sent in batch if sent.change.expect is None and not sent.run.key]
        if new:
            rows = connection.rows("SELECT nextval('run_key') FROM generate_series(1, $1)", (len(new),))
            for sent, row in zip(new, rows, strict=True):
                sent.run = msgspec.structs.replace(sent.run, key=row[0])

    def _send(self, connection: PostgresConnection, batch: list[SentChange]) -> None:
        """Write changes in one round trip. Changes that are refused but were sent before have no outcome yet."""
        many, single = _group(batch)
        now = self._pool.time.stated()
        statements = [
            _batch_statement(group, readiness, self._lock_positions, now) for readiness, group in many
        ]
        statements += [self._statement(sent) for sent in single]
        found = execute_prepared(connection, statements) if statements else []
        written = {attempt for attempts in found[: len(many)] for attempt in attempts}
        written |= {sent.attempt for sent, keys in zip(single, found[len(many) :], strict=True) if keys}
        for sent in batch:
            if sent.attempt in written:
                sent.outcome = sent.run
            elif self._has_key(connection, sent):
                sent.refuse()
            elif sent.change.leased and self._is_unchanged(connection, sent):
                # Whether sent before or not: it can no longer be written, because every claim changes the run.
                sent.outcome = lease_expired(sent.run)
            elif not sent.tried:
                sent.refuse()

    def _has_key(self, connection: PostgresConnection, sent: SentChange) -> bool:
        """Return whether a change of an unchanged run was refused because the run has a version with its key."""
        expect, version = sent.change.expect, sent.change.version
        if expect is None or version is None or version.key is None:
            return False
        return connection.row(_HAS_KEY, (expect.key, expect.revision, version.key)) is not None

    def _is_unchanged(self, connection: PostgresConnection, sent: SentChange) -> bool:
        """Return whether a run is as expected: then a change of it was refused because its lease had expired."""
        expect = sent.change.expect
        return (
            expect is not None and connection.row(_SELECT_REVISION, (expect.key, expect.revision)) is not None
        )

    def _settle(self, connection: PostgresConnection, batch: list[SentChange]) -> None:
        """Find out which changes without an answer were carried out, and which never will be."""
        for sent in batch:
            if not sent.tried or sent.outcome is not None:
                continue
            change, run = sent.change, sent.run
            row = connection.row(_SELECT_WRITER, (run.id,))
            if row is not None and row[0] == run.key and self._was_written(connection, sent, *row[1:]):
                sent.outcome = run
            elif change.expect is None:
                # If the run does not exist, the change is sent again; else another writer created it.
                if row is not None and row[0] != run.key:
                    sent.refuse()
                elif row is not None:
                    sent.outcome = run
            elif row is None or row[0] != run.key:
                # Deleted since.
                sent.refuse()
            elif row[1] != change.expect.revision:
                if row[1] > run.revision and change.version is None and not change.events:
                    sent.set_unknown(None)
                else:
                    sent.refuse()

    def _was_written(
        self, connection: PostgresConnection, sent: SentChange, revision: int, attempt: int
    ) -> bool:
        """Return whether a change was written, according to the row of its run or to its version or event."""
        change, run = sent.change, sent.run
        if revision <= run.revision:
            return attempt == sent.attempt
        if change.version is not None:
            row = connection.row(_SELECT_SEAL, (run.key, change.version.number))
            seal = change.version.prev + change.version.pack_hash + change.version.hash
            return row is not None and row[0] == seal
        if change.events:
            seal = event_row(run.key, change.events[0])[-1]
            return connection.row(_HAS_EVENT, (run.key, seal)) is not None
        return False

    def _with_artifacts(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        """Write changes some of which take several statements."""
        for change in changes:
            for _ in self._artifacts.place(change.uploads):
                pass

        def write(connection: PostgresConnection) -> list[RunRecord | HoldfastError]:
            batch = self._start(changes)
            self._artifacts.lock(connection)
            self._give_keys(connection, batch)
            return [self._write_with_artifacts(connection, sent) for sent in batch]

        found = self._pool.write(write)
        self._notifier.notify()
        return found

    def _write_with_artifacts(
        self, connection: PostgresConnection, sent: SentChange
    ) -> RunRecord | HoldfastError:
        change = sent.change
        connection.execute("SAVEPOINT change")
        try:
            self._artifacts.require(connection, change.holds, change.uploads)
            if change.expect is not None:
                # Contents are written before the run is locked, but not in vain.
                row = connection.row(_SELECT_REVISION, (change.expect.key, change.expect.revision))
                if row is None:
                    raise stale_run(change.expect)
            uploads = sorted(change.uploads, key=lambda upload: upload.digest)
            self._artifacts.keep(connection, uploads, change.run.updated)
            (keys,) = execute_prepared(connection, [self._statement(sent)])
            if not keys and self._has_key(connection, sent):
                raise stale_run(sent.run)
            if not keys and change.leased and self._is_unchanged(connection, sent):
                raise lease_expired(sent.run)
            if not keys:
                raise stale_new_run(sent.run) if change.expect is None else stale_run(sent.run)
            if change.version is not None:
                self._artifacts.hold(connection, sent.run.key, change.version.number, change.holds)
        except HoldfastError as error:
            connection.roll_back(to="change")
            return error
        finally:
            if connection.info.transaction_status.name == "INTRANS":
                connection.execute("RELEASE SAVEPOINT change")
        return sent.run

    def _statement(self, sent: SentChange) -> PreparedStatement:
        return _change_statement(sent, self._lock_positions, self._pool.time.stated())


def _draw_attempts() -> Iterator[int]:
    """Return numbers that no other process draws: consecutive ones from a random start."""
    return count(secrets.randbits(62))


def _set_tried(batch: Sequence[SentChange]) -> None:
    """Note that changes that were being sent may have been carried out."""
    for sent in batch:
        if sent.sending:
            sent.tried = True
            sent.sending = False


def _group(batch: list[SentChange]) -> tuple[list[tuple[bool, list[SentChange]]], list[SentChange]]:
    """Split a batch into groups of changes that one statement writes together, and changes that need a statement
    each. The flag of a group says whether it changes when its runs can be claimed. Only the first change of a run
    can be in a group: later ones depend on it."""
    if len(batch) < _MIN_BATCH:
        return [], batch
    groups: dict[tuple[bool, bool], list[SentChange]] = {}
    single, seen = [], set()
    for sent in batch:
        change = sent.change
        if sent.run.key in seen or not _can_batch(change) or change.expect is None:
            single.append(sent)
        else:
            seen.add(sent.run.key)
            kind = (changes_readiness(change.expect, change.run), change.leased)
            groups.setdefault(kind, []).append(sent)
    many = []
    for (readiness, _), group in groups.items():
        if len(group) < _MIN_BATCH:
            single += group
        else:
            many.append((readiness, group))
    return many, single
