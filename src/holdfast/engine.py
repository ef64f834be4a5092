"""Holdfast itself: joins the parts around an open store. The only place that knows all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO, Literal, NoReturn

from holdfast.errors import (
    AlreadyExists,
    InvalidCall,
    InvalidReference,
    NotFound,
    StaleVersion,
)
from holdfast.fleet.fleet import Fleet
from holdfast.history import compare, retention, snapshot
from holdfast.history import fork as forking
from holdfast.history.context import Context
from holdfast.history.events import read_events
from holdfast.history.history import History
from holdfast.history.redaction import Redaction, Secrets, redacted
from holdfast.history.verify import Progress, verify_store
from holdfast.history.version import Version
from holdfast.model.names import (
    MAX_ID,
    MAX_STEP,
    check_number,
    check_run_id,
    check_tags,
    check_text,
    meant,
    short,
    split_reference,
)
from holdfast.model.public import Collected, Event, Report, RunSummary, StoredArtifact, when
from holdfast.model.records import ENDED, PIN, STATUSES, RunRecord, StoreStats
from holdfast.opening import file_of, open_store
from holdfast.runtime import mail
from holdfast.runtime.execute import refuse_if_running, remember
from holdfast.runtime.lease import is_alive
from holdfast.runtime.overrides import check_overrides, described, merged
from holdfast.runtime.waits import Facts as RunFacts
from holdfast.runtime.waits import encoded, facts_of
from holdfast.store.base import RunFilters, Store, every_run
from holdfast.store.unpicklable import StoredContent
from holdfast.tree.artifact import Artifact

_PAGE = 256
#: Tags by which runs are listed, at most.
_TAGS = 50
#: Artifacts younger than this are not collected: the commit that will hold them may be on its way.
_GRACE = 3600.0


def open(  # noqa: A001 - holdfast.open is the name
    where: str | os.PathLike[str] = "holdfast.db",
    *,
    durability: str = "durable",
    artifacts: str | os.PathLike[str] | None = None,
    redact: Iterable[str | re.Pattern[str]] = (),
    timeout: float = 30.0,
    create: bool = True,
    lease: float = 15.0,
    clock: Callable[[], float] | None = None,
) -> Holdfast:
    """Open a store: a path, `sqlite:///path`, `postgresql://user@host/database`, or `:memory:`. What is not there is
    made, unless `create` is False.

    `durability` is `durable` (a commit survives a power failure), `fast` (it survives a crash of the process)
    or `memory` (nothing is promised). `artifacts` names a folder for large values, of this store alone, which otherwise
    live in the database. `redact` lists patterns of keys whose values are replaced before anything is stored.
    A run that this process executes is its own for `lease` seconds without word from it; then others may take it over.
    `clock` gives the seconds since 1970; if there is none, it is this machine's, or that of the PostgreSQL server.
    """
    if clock is not None and not callable(clock):
        raise InvalidCall(f"clock is a function that gives the seconds since 1970, not {short(clock)}")
    now = None if clock is None else lambda: int(clock() * 1_000_000)
    store = open_store(
        where, durability=durability, artifacts=artifacts, timeout=timeout, create=create, clock=now
    )
    try:
        opened = Holdfast(store, redact=redact, lease=lease)
    except BaseException:
        store.close()
        raise
    opened.where = file_of(where)
    return opened


class Holdfast(Fleet):
    """An open store and everything that can be done with it. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        *,
        redact: Iterable[str | re.Pattern[str]] = (),
        lease: float = 15.0,
    ) -> None:
        patterns = _patterns(redact)
        #: Where its store is, as `open` was told.
        self.where: str | None = None
        self._store = store
        self._context = Context(store, store.now, Secrets(store, patterns))
        super().__init__(self._context, lease)

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
        raise self._no_run(readings[-1][0])

    def find(self, run_id: str) -> str:
        """The id of the run that an id, or a unique beginning of one, names."""
        found = self._find(run_id) if isinstance(run_id, str) else check_run_id(run_id)
        if found is None:
            raise self._no_run(run_id)
        return found

    def fork(
        self,
        ref: str | Version,
        run_id: str | None = None,
        *,
        at: int | str | None = None,
        edit: Callable[[Any], Any] | Mapping[str, Any] | None = None,
        state: Any = None,
        overrides: Mapping[str, Callable[..., Any] | None] | None = None,
        note: str | None = None,
        actor: str | None = None,
    ) -> History:
        """Start another run from a version. It shares what it came from; both go their own way. With `state`,
        it starts from that state instead; with `edit`, from what a function makes of a draft, or with the values
        that a dict gives for paths. The run of a workflow goes on when it is resumed, with the overrides of the run
        that it came from and `overrides`, as `resume` takes them."""
        source = ref if isinstance(ref, Version) else self.version(ref if at is None else f"{ref}@{at}")
        given = check_overrides(overrides)
        recorded = facts_of(self._run(source.run)).overrides
        functions, missing = merged(recorded, given, self._services.overrides.get(source.run, {}))
        kept = {**{name: recorded[name] for name in missing}, **described(functions)}
        made = forking.fork(
            self._context, source, run_id, edit=edit, state=state, note=note, actor=actor,
            detail=encoded(RunFacts(overrides=kept)),
        )  # fmt: skip
        remember(self._services, made.id, functions)
        return self.history(made.id)

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
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> list[RunSummary]:
        """Return one page of runs, newest first: at most `limit`. With `prefix`, those whose ids start with it. For the
        next page pass the last one's id as `after`; for all runs, use `iter_runs`."""
        records = self._store.runs(
            **_filters(status, tags, workflow, since, prefix),
            before=None if after is None else self._run(after).key,
            limit=check_number("limit", limit, 1),
        )
        return [self._shown(record) for record in records]

    def iter_runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        tags: Sequence[str] = (),
        workflow: str | None = None,
        since: datetime | None = None,
        prefix: str = "",
    ) -> Iterator[RunSummary]:
        """Iterate over all runs, newest first, with the filters of `runs`. They are read page by page, so runs may be
        resumed, changed and deleted in the loop."""
        records = every_run(self._store, **_filters(status, tags, workflow, since, prefix))
        return map(self._shown, records)

    def ids(self, prefix: str = "", *, limit: int = 1_000_000) -> list[str]:
        """The ids of runs, or of those whose ids begin so, in order."""
        if not isinstance(prefix, str):
            raise InvalidCall(f"prefix is the beginning of an id, not {short(prefix)}")
        return self._store.run_ids(prefix, check_number("limit", limit, 1))

    def summary(self, run_id: str) -> RunSummary:
        """One run, as `runs` lists it."""
        return self._shown(self._run(run_id))

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

    @property
    def redaction(self) -> Redaction:
        """The patterns of keys that the store keeps: all who use it replace the values of such keys."""
        return self._context.secrets.kept

    def change_redaction(
        self, *, add: Iterable[str] = (), remove: Iterable[str] = (), defaults: bool | None = None
    ) -> Redaction:
        """Add and remove patterns that the store keeps, for all who use it. They hold for what is committed from now
        on, by other processes a second later; what is stored stays as it is. `defaults` switches the usual names
        (`*password*`, `*api_key*`, `*secret*`, `*token`) on or off for `LoopEngine` and HTTP."""
        return self._context.secrets.change(add, remove, defaults)

    def redacted_by_default(self, value: Any) -> Any:
        """Return JSON that comes from outside without what is to be redacted, the usual names included."""
        return redacted(value, self._context.secrets.usual)

    def gc(self, *, grace: float = _GRACE, compact: bool = False) -> Collected:
        """Remove large values that no version holds; with `compact`, give the space back to the system."""
        if not isinstance(grace, int | float) or not 0 <= grace < 1e9:
            raise InvalidCall(f"grace is a number of seconds, 0 or more, not {short(grace)}")
        count, size = self._store.collect(before=self._context.clock() - int(grace * 1_000_000) + 1)
        if compact:
            self._store.compact()
        return Collected(count, size)

    def backup(
        self, path: str | os.PathLike[str], *, artifacts: str | os.PathLike[str] | None = None
    ) -> None:
        """Copy the store, while it is in use, to a new file that needs no other. A store with an artifact folder needs
        `artifacts`, a folder for the copies of its contents."""
        self._store.backup(path, artifacts)

    def delete(self, run_id: str) -> None:
        """Remove a run, the runs that are parts of it, and their history for ever. Forks of it stay: they take along
        what they need. `AlreadyRunning`, and nothing is removed, if somebody advances one of them: cancel it first."""
        self._refuse_live(self._run(run_id))
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
            for part in every_run(self._store, parent=run.key):
                self.delete(part.id)
            try:
                for fork in forks:
                    retention.detach(self._store, fork, now=self._context.clock())
                    self._context.forget(fork.id)
                self._store.delete_run(run)
            except StaleVersion:
                self._refuse_live(self._run(run_id))
                continue
            self._context.forget(run_id)
            self._services.overrides.pop(run_id, None)
            return

    def _refuse_live(self, run: RunRecord) -> None:
        """`AlreadyRunning` if somebody advances a run or a part of it, and nobody has told them to end it."""
        if run.status not in ENDED and facts_of(run).wish != "cancel":
            refuse_if_running(self._services, run)
        for part in every_run(self._store, parent=run.key):
            self._refuse_live(part)

    def artifact(self, digest: str) -> Artifact:
        """A handle on a large value in the store, by its digest."""
        try:
            name = bytes.fromhex(digest)
        except (ValueError, TypeError):
            raise InvalidReference(f"{digest!r} is no digest: give its hexadecimal digits") from None
        record = self._store.artifact(name)
        if record is None:
            raise NotFound(f"there is no artifact {digest[:12]} in the store", artifact=digest)
        return Artifact(digest, record.size, None, StoredContent(self._store, name))

    def artifacts(self, *, after: str | None = None, limit: int = 100) -> list[StoredArtifact]:
        """The large values in the store, in order of their digests. For the next page pass the last one's digest as
        `after`."""
        start = b"" if after is None else bytes.fromhex(self.artifact(after).digest)
        return [
            StoredArtifact(record.digest.hex(), record.size, when(record.at))
            for record in self._store.artifacts(after=start, limit=check_number("limit", limit, 1))
        ]

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

    def import_run(
        self,
        file: str | os.PathLike[str] | BinaryIO,
        *,
        run_id: str | None = None,
        secrets: Literal["refuse", "keep"] = "refuse",
    ) -> History:
        """Read a run that `export_run` wrote. Checks every hash; never overwrites. A run that holds a value under a key
        that this store redacts is refused with `InvalidSnapshot`, since a bundle cannot be changed; with
        `secrets="keep"` it is imported as it is."""
        from holdfast.history import bundle

        if secrets not in ("refuse", "keep"):
            raise InvalidCall(f"secrets is 'refuse' or 'keep', not {short(secrets)}")
        redact = None if secrets == "keep" else self._context.redact
        run = bundle.import_run(self._store, file, run_id=run_id, now=self._context.clock(), redact=redact)
        mail.adopt(self._context, run)
        return self.history(run.id)

    def close(self) -> None:
        """Let go of files, connections and threads."""
        self._stop_workers()
        self._services.close()
        self._store.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidCall(
            "an open store cannot be pickled or copied: call holdfast.open in the other process"
        )

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _version(self, ref: str | Version) -> Version:
        return ref if isinstance(ref, Version) else self.version(ref)

    def _run(self, run_id: str) -> RunRecord:
        run = self._store.run(check_run_id(run_id))
        if run is None:
            raise self._no_run(run_id)
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

    def _no_run(self, text: str) -> NotFound:
        hint = meant(text, (run.id for run in self._store.runs(limit=_PAGE)))
        return NotFound(f"there is no run {short(text)}{hint}", run=text)

    def _shown(self, record: RunRecord) -> RunSummary:
        tags = sorted({mark.name for mark in self._store.marks(record.key) if mark.name != PIN})
        origin = None
        if record.origin is not None:
            source = self._store.run_by_key(record.origin[0])
            origin = None if source is None else f"{source.id}@{record.origin[1]}"
        alive = is_alive(record, self._context.clock())
        return RunSummary.of(record, tuple(tags), origin, alive)


def _filters(
    status: str | Sequence[str] | None,
    tags: Sequence[str],
    workflow: str | None,
    since: datetime | None,
    prefix: str,
) -> RunFilters:
    """Return a caller's filters as the store takes them; raise `InvalidCall`."""
    statuses = [status] if isinstance(status, str) else status
    if not isinstance(statuses, Sequence | None) or not all(name in STATUSES for name in statuses or ()):
        raise InvalidCall(f"status is one of {', '.join(STATUSES)}, not {short(status)}")
    names = list(dict.fromkeys(check_tags(tags)))
    if len(names) > _TAGS:
        raise InvalidCall(f"runs are listed by at most {_TAGS} tags, not {len(names)}: name fewer")
    return RunFilters(
        statuses=None if statuses is None else list(dict.fromkeys(statuses)),
        workflow=check_text("workflow", workflow, MAX_STEP),
        tags=names,
        since=None if since is None else _microseconds("since", since),
        prefix=check_text("prefix", prefix, MAX_ID) or "",
    )


def _microseconds(name: str, at: Any) -> int:
    """A time as stores know it, or `InvalidCall`."""
    if not isinstance(at, datetime):
        raise InvalidCall(f"{name} is a datetime, not {short(at)}")
    try:
        return int(at.timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError):
        raise InvalidCall(f"{name} is a time that no clock can show: {short(at)}") from None


def _patterns(redact: Any) -> list[str | re.Pattern[str]]:
    if isinstance(redact, str) or not isinstance(redact, Iterable):
        raise InvalidCall('redact takes a list of patterns, such as ["*password*", "api_key"]')
    patterns = list(redact)
    for pattern in patterns:
        if not isinstance(pattern, str | re.Pattern):
            raise InvalidCall(f"redact takes strings and compiled expressions, not {short(pattern)}")
    return patterns
