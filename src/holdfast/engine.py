"""Holdfast itself: opens a store and joins the parts. The only place that knows all of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO
from uuid import uuid4

import msgspec

from holdfast.errors import (
    AlreadyExists,
    CorruptVersion,
    InvalidCall,
    InvalidReference,
    NotFound,
    StaleVersion,
)
from holdfast.history import compare, retention, snapshot
from holdfast.history.commit import Facts, Parts, draw_up, event
from holdfast.history.context import Context
from holdfast.history.events import read_events
from holdfast.history.history import History
from holdfast.history.reader import Reader
from holdfast.history.verify import Progress, verify_store
from holdfast.history.version import Version, edited
from holdfast.model.names import (
    MAX_STEP,
    check_number,
    check_run_id,
    check_tags,
    check_text,
    short,
    split_reference,
)
from holdfast.model.public import Collected, Event, Report, RunSummary
from holdfast.model.records import ENDED, PIN, STATUSES, RunRecord, StoreStats
from holdfast.runtime import mail
from holdfast.runtime.runner import Runner, override_functions
from holdfast.store.base import Append, Store
from holdfast.tree.artifact import Artifact
from holdfast.tree.fold import Folder, Redactor

_PAGE = 256
#: Artifacts younger than this are not collected: the commit that will hold them may be on its way.
_GRACE = 3600.0


def open(  # noqa: A001 - holdfast.open is the name
    where: str | os.PathLike[str] = "holdfast.db",
    *,
    durability: str = "durable",
    artifacts: str | os.PathLike[str] | None = None,
    redact: Iterable[str | re.Pattern[str]] = (),
    timeout: float = 30.0,
    clock: Callable[[], float] = time.time,
) -> Holdfast:
    """Open a store: a path, `sqlite:///path`, or `:memory:`. A file that is not there is made.

    `durability` is `durable` (a commit survives a power failure), `fast` (it survives a crash of the process)
    or `memory` (nothing is promised). `artifacts` names a folder for large values, which otherwise live in
    the database. `redact` lists patterns of keys whose values are replaced before anything is stored.
    """
    return Holdfast(_store(where, durability, artifacts, timeout), redact=redact, clock=clock)


class Holdfast(Runner):
    """An open store and everything that can be done with it. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        *,
        redact: Iterable[str | re.Pattern[str]] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        patterns = _patterns(redact)
        self._store = store
        self._context = Context(
            store, lambda: int(clock() * 1_000_000), Redactor(patterns) if patterns else None
        )
        super().__init__(self._context)

    def version(self, ref: str) -> Version:
        """The version that a reference names: `RUN`, `RUN@12`, `RUN@head`, `RUN~2`, `RUN:tag`. A run id may
        be shortened to a unique beginning."""
        readings = split_reference(ref)
        for run_id, local in readings:
            run = self._find(run_id)
            if run is not None:
                history = self.history(run)
                record = self._store.run(run)
                assert record is not None
                return history.at(history._resolve(record, local))
        raise NotFound(f"there is no run {readings[-1][0]!r}{self._near(readings[-1][0])}", ref=ref)

    def fork(
        self,
        ref: str | Version,
        run_id: str | None = None,
        *,
        at: int | str | None = None,
        edit: Callable[[Any], Any] | Mapping[str, Any] | None = None,
        state: Any = None,
        overrides: Mapping[str, Callable[..., Any]] | None = None,
        note: str | None = None,
        actor: str | None = None,
    ) -> History:
        """Start another run from a version. It shares what it came from; both go their own way. With `state`,
        it starts from that state instead; with `edit`, from what a function makes of a draft, or with the values
        that a dict gives for paths. The run of a workflow goes on when it is resumed, in this process with
        `overrides` for steps of those names."""
        source = ref if isinstance(ref, Version) else self.version(ref if at is None else f"{ref}@{at}")
        if run_id is None:
            run_id = f"{source.run[:180]}-fork-{uuid4().hex[:6]}"
        check_run_id(run_id)
        functions = override_functions(overrides)
        if self._store.run(run_id) is not None:
            raise AlreadyExists(f"run {run_id!r} exists: fork into another id", run=run_id)
        origin = self._run(source.run)
        now = self._context.clock()
        run = RunRecord(
            id=run_id,
            workflow=origin.workflow,
            status=source.status if origin.workflow is None else "paused",
            created=now,
            updated=now,
            origin=(origin.key, source.number),
        )
        reader = Reader(self._store, run)
        try:
            root = reader.state(0)
        except CorruptVersion:
            # Perhaps it was pruned between two reads.
            self.history(source.run).at(source.number)
            raise
        folder = Folder(reader.space, self._context.redact)
        if state is not None:
            root = folder.fold(state, root)
        if edit is not None:
            root = folder.fold(edited(root, edit), root)
        more = {"origin": f"{source.run}@{source.number}"}
        facts = Facts(kind="fork", note=note, actor=actor, status=run.status, more=more)
        facts.check()
        change, _ = draw_up(run_id, reader.space, run, Parts(root, arrivals=folder.arrivals), facts, now=now)
        try:
            made = self._store.append(change)
        except StaleVersion:
            raise AlreadyExists(f"run {run_id!r} exists: fork into another id", run=run_id) from None
        self._announce_fork(source, made, now)
        self._remember(run_id, functions)
        return self.history(run_id)

    def diff(self, a: str | Version, b: str | Version) -> compare.Diff:
        """What changed from one version to another, of one run or of two."""
        return compare.diff(self._version(a), self._version(b))

    def compare(self, a: str | Version, b: str | Version) -> compare.Comparison:
        """Two runs or timelines, step by step and state by state."""
        return compare.compare(self._version(a), self._version(b))

    def runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        tags: Sequence[str] = (),
        workflow: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[RunSummary]:
        """Runs, newest first. For the next page pass the last one's id as `after`."""
        statuses = [status] if isinstance(status, str) else status
        if not isinstance(statuses, Sequence | None) or not all(name in STATUSES for name in statuses or ()):
            raise InvalidCall(f"status is one of {', '.join(STATUSES)}, not {short(status)}")
        if since is not None and not isinstance(since, datetime):
            raise InvalidCall(f"since is a datetime, not {short(since)}")
        records = self._store.runs(
            statuses=statuses,
            workflow=check_text("workflow", workflow, MAX_STEP),
            tags=check_tags(tags),
            since=None if since is None else int(since.timestamp() * 1_000_000),
            before=None if after is None else self._run(after).key,
            limit=check_number("limit", limit, 1),
        )
        return [self._shown(record) for record in records]

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened in the whole store after a cursor, oldest first."""
        check_number("after", after, 0)
        check_number("limit", limit, 1)
        return read_events(self._store, after=after, limit=limit)[0]

    def stats(self) -> StoreStats:
        """What the store holds."""
        return self._store.stats()

    def verify(self, progress: Progress | None = None) -> Report:
        """Check every version of every run, every artifact, and the database itself."""
        return verify_store(self._store, progress)

    def gc(self, *, grace: float = _GRACE, compact: bool = False) -> Collected:
        """Remove large values that no version holds; with `compact`, give the space back to the system."""
        if not isinstance(grace, int | float) or not 0 <= grace < 1e9:
            raise InvalidCall(f"grace is a number of seconds, 0 or more, not {short(grace)}")
        count, size = self._store.collect(before=self._context.clock() - int(grace * 1_000_000) + 1)
        if compact:
            self._store.compact()
        return Collected(count, size)

    def delete(self, run_id: str) -> None:
        """Remove a run, the runs that are parts of it, and their history for ever. Forks of it stay: they take along
        what they need."""
        while True:
            run = self._run(run_id)
            forks = self._store.forks_of(run.key)
            for fork in forks:
                if fork.workflow is not None and fork.status not in ENDED:
                    raise InvalidCall(
                        f"run {fork.id!r} was forked from {run_id!r} and will replay its steps: let it end, or delete "
                        "it first",
                        run=run_id,
                        fork=fork.id,
                    )
            for part in self._store.runs(parent=run.key, limit=1_000_000):
                self.delete(part.id)
            try:
                for fork in forks:
                    retention.detach(self._store, fork, now=self._context.clock())
                    self._context.forget(fork.id)
                self._store.delete_run(run)
            except StaleVersion:
                continue
            self._context.forget(run_id)
            self._overrides.pop(run_id, None)
            return

    def artifact(self, digest: str) -> Artifact:
        """A handle on a large value in the store, by its digest."""
        try:
            name = bytes.fromhex(digest)
        except (ValueError, TypeError):
            raise InvalidReference(f"{digest!r} is no digest: give its hexadecimal digits") from None
        record = self._store.artifact(name)
        if record is None:
            raise NotFound(f"there is no artifact {digest[:12]} in the store", artifact=digest)
        return Artifact(digest, record.size, None, lambda: self._store.artifact_pieces(name))

    def import_snapshot(self, document: Any, *, run_id: str | None = None) -> Version:
        """Make a run from a snapshot (`History.export`), as a document or JSON text. Never overwrites."""
        facts = snapshot.read(document)
        run_id = check_run_id(run_id if run_id is not None else facts["run"])
        if self._store.run(run_id) is not None:
            raise AlreadyExists(f"run {run_id!r} exists: import with another run_id=…", run=run_id)
        return self.history(run_id).commit(
            facts["state"],
            step=facts["step"],
            result=facts["result"],
            tags=facts["tags"],
            note=facts["note"],
            actor=facts["actor"],
            meta=facts["meta"],
            error=facts["error"],
            status=facts["status"],
            kind="import",
            expected=0,
        )

    def export_run(self, run_id: str, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write a whole run, with its artifacts, to one file."""
        from holdfast.history import bundle

        bundle.export_run(self._store, self._run(run_id), file)

    def import_run(self, file: str | os.PathLike[str] | BinaryIO, *, run_id: str | None = None) -> History:
        """Read a run that `export_run` wrote. Checks every hash; never overwrites."""
        from holdfast.history import bundle

        run = bundle.import_run(self._store, file, run_id=run_id, now=self._context.clock())
        mail.adopt(self._context, run)
        return self.history(run.id)

    def close(self) -> None:
        """Let go of files, connections and threads."""
        self._services.close()
        self._store.close()

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _version(self, ref: str | Version) -> Version:
        return ref if isinstance(ref, Version) else self.version(ref)

    def _run(self, run_id: str) -> RunRecord:
        run = self._store.run(check_run_id(run_id))
        if run is None:
            raise NotFound(f"there is no run {run_id!r}{self._near(run_id)}", run=run_id)
        return run

    def _find(self, text: str) -> str | None:
        """The run that an id or a unique beginning of one names."""
        if not text:
            return None
        if self._store.run(text) is not None:
            return text
        found = self._store.run_ids(text, 6)
        if len(found) > 1:
            raise InvalidReference(
                f"{text!r} could be any of {', '.join(found[:5])}: write more of it", runs=found
            )
        return found[0] if found else None

    def _near(self, text: str) -> str:
        from difflib import get_close_matches

        near = get_close_matches(text, [run.id for run in self._store.runs(limit=_PAGE)], 1)
        return f": did you mean {near[0]!r}?" if near else ""

    def _shown(self, record: RunRecord) -> RunSummary:
        tags = sorted({mark.name for mark in self._store.marks(record.key) if mark.name != PIN})
        origin = None
        if record.origin is not None:
            source = self._store.run_by_key(record.origin[0])
            origin = None if source is None else f"{source.id}@{record.origin[1]}"
        return RunSummary.of(record, tuple(tags), origin)

    def _announce_fork(self, source: Version, fork: RunRecord, now: int) -> None:
        """Tell the origin, so that a pruning that did not see the fork is refused; undo the fork if it came
        too late."""
        while True:
            origin = self._store.run(source.run)
            try:
                if origin is None:
                    raise NotFound(f"run {source.run!r} was deleted meanwhile", run=source.run)
                self._context.reader(origin).record(source.number)
            except NotFound:
                self._store.delete_run(fork)
                raise
            after = msgspec.structs.replace(origin, revision=origin.revision + 1)
            entry = event("run.forked", now, version=source.number, fork=fork.id)
            try:
                self._store.append(Append(expect=origin, run=after, events=[entry]))
            except StaleVersion:
                continue
            return


def _patterns(redact: Any) -> list[str | re.Pattern[str]]:
    if isinstance(redact, str) or not isinstance(redact, Iterable):
        raise InvalidCall('redact takes a list of patterns, such as ["*password*", "api_key"]')
    patterns = list(redact)
    for pattern in patterns:
        if not isinstance(pattern, str | re.Pattern):
            raise InvalidCall(f"redact takes strings and compiled expressions, not {short(pattern)}")
    return patterns


def _store(
    where: str | os.PathLike[str], durability: str, artifacts: str | os.PathLike[str] | None, timeout: float
) -> Store:
    text = os.fspath(where) if isinstance(where, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InvalidCall("open takes a path, 'sqlite:///path' or ':memory:'")
    if durability not in ("durable", "fast", "memory"):
        raise InvalidCall(f"durability is 'durable', 'fast' or 'memory', not {short(durability)}")
    if text == ":memory:":
        from holdfast.store.memory import MemoryStore

        return MemoryStore()
    scheme, found, rest = text.partition("://")
    if found and scheme == "sqlite":
        text = rest[1:] if rest.startswith("/") else rest
        if not text:
            raise InvalidCall(
                "'sqlite:///path' names no file: write sqlite:///runs.db, or sqlite:////absolute/runs.db"
            )
    elif found:
        raise InvalidCall(f"no store for {scheme}://…: open a path, 'sqlite:///path' or ':memory:'")
    if "\0" in text:
        raise InvalidCall("a path cannot hold a NUL character")
    from holdfast.store.sqlite import SQLiteStore

    return SQLiteStore(text, durability=durability, artifacts=artifacts, timeout=timeout)
