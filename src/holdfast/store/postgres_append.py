"""Changing runs in PostgreSQL: each change is one statement, which compares and writes in one round trip.

A change alone is a transaction by itself; those of many runs go together in one, sent at once. Threads that come while
one is being written share the next. Changes that bring or refer to artifacts take several statements.

When the connection is lost, nobody knows whether the change was carried out, or still will be. Every writer leaves a
number in the run's row; that, or the version's own hash, tells whose the row is. If it is as it was before, the
change is sent again: whichever of the two comes second is refused by the revision.

Invariant: a change that was acknowledged was written once; one that was refused was not, and never will be.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from holdfast.errors import CommitUnknown, HoldfastError, StaleVersion
from holdfast.model.records import RunRecord
from holdfast.store import postgres_change, postgres_many
from holdfast.store.base import Append
from holdfast.store.claims import expired
from holdfast.store.gather import Gather, Job
from holdfast.store.postgres_artifacts import Artifacts
from holdfast.store.postgres_errors import LinkLost, Repeat, translated, unreachable
from holdfast.store.postgres_journal import taking_places
from holdfast.store.postgres_link import ANSWER, Connection, Link, Patience
from holdfast.store.postgres_news import Teller
from holdfast.store.postgres_wire import Statement, carry_out
from holdfast.store.sqlite_rows import event_row

#: Changes written in one transaction at most.
_BATCH = 256

_SETTLE = "SELECT key, revision, attempt FROM run WHERE id = %s"
_LEASE = "SELECT FROM run WHERE key = %s AND revision = %s"
_VERSION = "SELECT seal FROM journal WHERE run = %s AND number = %s"
_EVENT = "SELECT FROM journal WHERE run = %s AND number IS NULL AND seal = %s"


class _Sent:
    """A change on its way."""

    __slots__ = ("attempt", "change", "outcome", "run", "sending", "tried")

    def __init__(self, change: Append, attempt: int) -> None:
        self.change = change
        #: As it will be, with its key.
        self.run = change.run
        self.attempt = attempt
        #: Is it being sent? Was it, and the answer lost, with the connection or with the thread that sent it?
        self.sending = False
        self.tried = False
        self.outcome: RunRecord | HoldfastError | None = None

    def refuse(self) -> None:
        run_id = self.run.id
        self.outcome = (
            StaleVersion(f"run {run_id!r} was made by another writer: read it, then try again")
            if self.change.expect is None
            else stale(self.run)
        )

    def refuse_expired(self) -> None:
        self.outcome = expired(self.run)

    def unknown(self, cause: BaseException | None) -> None:
        self.outcome = CommitUnknown(
            f"the connection was lost while run {self.run.id!r} was written, and whether it was cannot be learned: "
            "read the run, then go on from where it stands",
            run=self.run.id,
            revision=self.run.revision,
        )
        self.outcome.__cause__ = cause


class Appender:
    """Writes changes of runs."""

    def __init__(self, link: Link, artifacts: Artifacts, teller: Teller) -> None:
        self._link = link
        self._artifacts = artifacts
        self._teller = teller
        self._places = taking_places(link.address.schema)
        self._gather: Gather[_Sent] = Gather(self._carry_out, _BATCH)
        self._attempts = _drawn()

    def start_anew(self) -> None:
        """In a child after a fork."""
        self._gather.start_anew()
        self._attempts = _drawn()

    def append(self, change: Append) -> RunRecord:
        if not change.uploads and not change.holds:
            written: RunRecord = self._gather.hand_in(_Sent(change, next(self._attempts)))
            return written
        (outcome,) = self._with_artifacts([change])
        if isinstance(outcome, HoldfastError):
            raise outcome
        return outcome

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        if any(change.uploads or change.holds for change in changes):
            return self._with_artifacts(changes)
        found: list[RunRecord | HoldfastError] = []
        for start in range(0, len(changes), _BATCH):
            # Each part is a transaction of its own: what befalls one says nothing of those before it.
            part = changes[start : start + _BATCH]
            try:
                found += self._write(self._begun(part))
            except HoldfastError as error:
                if start == 0:
                    raise
                found += [error] * len(part)
        return found

    def _carry_out(self, jobs: list[Job[_Sent]]) -> None:
        for job, outcome in zip(jobs, self._write([job.item for job in jobs]), strict=True):
            job.outcome = outcome

    def _begun(self, changes: Sequence[Append]) -> list[_Sent]:
        return [_Sent(change, next(self._attempts)) for change in changes]

    def _write(self, batch: list[_Sent]) -> list[RunRecord | HoldfastError]:
        """Write changes, each one statement. What is raised stands for all of them; nothing was written then."""
        patience = Patience(self._link.timeout)
        while waiting := [sent for sent in batch if sent.outcome is None]:
            # Sent by a leader that was interrupted, or by the try before this one.
            _note_lost(waiting)
            try:
                with self._link.lend(patience, limit=ANSWER) as connection:
                    self._settle(connection, waiting)
                    waiting = [sent for sent in waiting if sent.outcome is None]
                    self._give_keys(connection, waiting)
                    for sent in waiting:
                        sent.sending = True
                    self._send(connection, waiting)
                    for sent in waiting:
                        sent.sending = False
                    self._settle(connection, waiting)
            except LinkLost as lost:
                _note_lost(waiting)
                if not patience.again():
                    self._give_up(batch, unreachable(lost.error, self._link.shown), lost.error)
            except Repeat as undone:
                for sent in waiting:
                    sent.sending = False
                if not patience.again():
                    busy = translated(undone.error, self._link.shown, self._link.timeout)
                    self._give_up(batch, busy, undone.error)
            except HoldfastError as error:
                for sent in waiting:
                    sent.sending = False
                self._give_up(batch, error, error.__cause__)
        self._teller.tell()
        return [sent.outcome for sent in batch if sent.outcome is not None]

    def _give_up(self, batch: list[_Sent], error: HoldfastError, cause: BaseException | None) -> None:
        """There is no more trying: what was never sent was never written."""
        if not any(sent.tried or sent.outcome for sent in batch):
            raise error from cause
        for sent in batch:
            if sent.outcome is None:
                sent.unknown(cause)

    def _give_keys(self, connection: Connection, batch: list[_Sent]) -> None:
        new = [sent for sent in batch if sent.change.expect is None and not sent.run.key]
        if new:
            rows = connection.execute(
                "SELECT nextval('run_key') FROM generate_series(1, %s)", (len(new),)
            ).fetchall()
            for sent, row in zip(new, rows, strict=True):
                sent.run = msgspec.structs.replace(sent.run, key=row[0])

    def _send(self, connection: Connection, batch: list[_Sent]) -> None:
        """Write in one round trip. Those that are refused although they were sent before stay to be looked for."""
        many, single = _grouped(batch)
        now = self._link.time.stated()
        statements = [postgres_many.statement(group, self._places, now) for group in many]
        statements += [self._statement(sent) for sent in single]
        found = carry_out(connection, statements) if statements else []
        written = {attempt for attempts in found[: len(many)] for attempt in attempts}
        written |= {sent.attempt for sent, keys in zip(single, found[len(many) :], strict=True) if keys}
        for sent in batch:
            if sent.attempt in written:
                sent.outcome = sent.run
            elif sent.change.leased and self._is_unchanged(connection, sent):
                # Sent before or not: it cannot be written any more, because every claim changes the run.
                sent.refuse_expired()
            elif not sent.tried:
                sent.refuse()

    def _is_unchanged(self, connection: Connection, sent: _Sent) -> bool:
        """Is the run as it was expected? Then a change of it was refused because its lease had run out."""
        expect = sent.change.expect
        if expect is None:
            return False
        return connection.execute(_LEASE, (expect.key, expect.revision)).fetchone() is not None

    def _settle(self, connection: Connection, batch: list[_Sent]) -> None:
        """Of changes whose answer was lost: look which were carried out, and which never will be."""
        for sent in batch:
            if not sent.tried or sent.outcome is not None:
                continue
            change, run = sent.change, sent.run
            row = connection.execute(_SETTLE, (run.id,)).fetchone()
            if row is not None and row[0] == run.key and self._is_ours(connection, sent, *row[1:]):
                sent.outcome = run
            elif change.expect is None:
                # Not there: to be sent again. There: made by another.
                if row is not None and row[0] != run.key:
                    sent.refuse()
                elif row is not None:
                    sent.outcome = run
            elif row is None or row[0] != run.key:
                # Deleted since, whoever changed it last.
                sent.refuse()
            elif row[1] != change.expect.revision:
                if row[1] > run.revision and change.version is None and not change.events:
                    sent.unknown(None)
                else:
                    sent.refuse()

    def _is_ours(self, connection: Connection, sent: _Sent, revision: int, attempt: int) -> bool:
        """Is the row of a run ours, or has it been?"""
        change, run = sent.change, sent.run
        if revision <= run.revision:
            return attempt == sent.attempt
        if change.version is not None:
            row = connection.execute(_VERSION, (run.key, change.version.number)).fetchone()
            ours = change.version.prev + change.version.pack_hash + change.version.hash
            return row is not None and row[0] == ours
        if change.events:
            seal = event_row(run.key, change.events[0])[-1]
            return connection.execute(_EVENT, (run.key, seal)).fetchone() is not None
        return False

    def _with_artifacts(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        """Write changes some of which need several statements."""
        for change in changes:
            for _ in self._artifacts.place(change.uploads):
                pass

        def write(connection: Connection) -> list[RunRecord | HoldfastError]:
            batch = self._begun(changes)
            self._artifacts.share(connection)
            self._give_keys(connection, batch)
            return [self._whole(connection, sent) for sent in batch]

        found = self._link.transact(write)
        self._teller.tell()
        return found

    def _whole(self, connection: Connection, sent: _Sent) -> RunRecord | HoldfastError:
        change = sent.change
        connection.execute("SAVEPOINT change")
        try:
            self._artifacts.require(connection, change.holds, [upload.digest for upload in change.uploads])
            if change.expect is not None:
                # The content is brought before the run is locked, but not for nothing.
                _expect(connection, change.expect)
            uploads = sorted(change.uploads, key=lambda upload: upload.digest)
            self._artifacts.keep(connection, uploads, change.run.updated)
            (keys,) = carry_out(connection, [self._statement(sent)])
            if not keys and change.leased and self._is_unchanged(connection, sent):
                sent.refuse_expired()
            elif not keys:
                sent.refuse()
            if not keys:
                assert isinstance(sent.outcome, HoldfastError)
                raise sent.outcome
            if change.version is not None:
                self._artifacts.hold(connection, sent.run.key, change.version.number, change.holds)
        except HoldfastError as error:
            connection.roll_back(to="change")
            return error
        finally:
            if connection.info.transaction_status.name == "INTRANS":
                connection.execute("RELEASE SAVEPOINT change")
        return sent.run

    def _statement(self, sent: _Sent) -> Statement:
        now = self._link.time.stated()
        return postgres_change.statement(sent.change, sent.run, sent.attempt, self._places, now)


def _drawn() -> Iterator[int]:
    """Numbers that no other process draws: from a place of its own on, one after the other."""
    return count(secrets.randbits(62))


def _note_lost(batch: Sequence[_Sent]) -> None:
    """Note that whatever was being sent may have been carried out."""
    for sent in batch:
        if sent.sending:
            sent.tried = True
            sent.sending = False


def _grouped(batch: list[_Sent]) -> tuple[list[list[postgres_many.Part]], list[_Sent]]:
    """Changes that are one statement together, and those that are one each: of one run, the first alone can be among
    many."""
    if len(batch) < postgres_many.LEAST:
        return [], batch
    groups: dict[tuple[bool, bool], list[_Sent]] = {}
    single, seen = [], set()
    for sent in batch:
        if sent.run.key in seen or not postgres_many.fits(sent.change):
            single.append(sent)
        else:
            seen.add(sent.run.key)
            kind = (postgres_many.moves(sent.change), sent.change.leased)
            groups.setdefault(kind, []).append(sent)
    many = []
    for group in groups.values():
        if len(group) < postgres_many.LEAST:
            single += group
        else:
            many.append([postgres_many.Part(sent.change, sent.run, sent.attempt) for sent in group])
    return many, single


def stale(run: RunRecord) -> StaleVersion:
    """The refusal of a change that was made from an older record."""
    return StaleVersion(f"run {run.id!r} has moved on since it was read: read its head, then try again")


def _expect(connection: Connection, expect: RunRecord) -> None:
    row = connection.execute("SELECT revision FROM run WHERE key = %s", (expect.key,)).fetchone()
    if row is None or row[0] != expect.revision:
        raise stale(expect)
