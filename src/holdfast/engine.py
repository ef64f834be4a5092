"""Holdfast: the facade over an open store. It owns the parts and joins them.

Invariant: every public method checks its arguments before it writes anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, ParamSpec

from holdfast.errors import AlreadyExists, InvalidCall, InvalidReference, NotFound
from holdfast.execution import breakers, compensation, inbox, stopping
from holdfast.execution.engine_context import EngineContext, GivenOverrides
from holdfast.execution.limits import Limits
from holdfast.execution.open_questions import UNCHANGED
from holdfast.execution.operators import Operators
from holdfast.execution.options import ResumeOptions, RollbackOptions, RunOptions
from holdfast.execution.run import Run, RunQuery, find_run, get_run
from holdfast.execution.runner import Runner
from holdfast.fleet.fleet import Fleet, queue_room
from holdfast.history import branching
from holdfast.history.context import StoreContext
from holdfast.history.history import History
from holdfast.history.journal import read_events
from holdfast.history.prune import long_leaves
from holdfast.history.redaction import Redaction, RedactionPatterns, redact_json
from holdfast.history.version import Version
from holdfast.items import Items
from holdfast.model.checks import check_integer, check_seconds
from holdfast.model.meta import MetaValue
from holdfast.model.names import check_run_id, short, split_reference
from holdfast.model.public import (
    BreakerSummary,
    Collected,
    Event,
    Question,
    QueueSummary,
    Report,
    RunSummary,
    StoredArtifact,
    when,
)
from holdfast.model.records import StoreStats
from holdfast.model.watchdog import Watchdog
from holdfast.store.process_fork import StoredContent
from holdfast.store.protocol import Store
from holdfast.store_url import file_of, open_store
from holdfast.tree.artifact import Artifact
from holdfast.tree.merge import Declared
from holdfast.workflow.decorators import load_step_machine
from holdfast.workflow.subscriptions import Subscription

if TYPE_CHECKING:
    from holdfast.agent_loops.loops import AgentLoops
    from holdfast.execution.preview import Preview
    from holdfast.execution.replay_validation import CodeProblem
    from holdfast.fleet.monitor.monitor import Monitor
    from holdfast.fleet.worker import Worker
    from holdfast.history.compare import Comparison, Diff
    from holdfast.history.verify import Progress

load_step_machine()

P = ParamSpec("P")
#: Seconds. With a shorter lease, a busy machine would lose its runs.
_SHORTEST_LEASE = 0.1
#: Artifacts younger than this are not collected: the commit that refers to them may not be written yet.
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
    """Open a store: a path, `sqlite:///path`, `postgresql://user@host/database`, or `:memory:`. Create it if it does
    not exist, unless `create` is False.

    `durability` is `durable` (a commit survives a power failure), `fast` (it survives a crash of the process)
    or `memory` (nothing is promised). `artifacts` names a folder for large values, of this store alone; without it,
    they are stored in the database. `redact` lists patterns of keys whose values are replaced before anything is
    stored. A run that this process executes is its own for `lease` seconds after its last heartbeat; then others may
    take it over. `clock` returns the seconds since 1970; the default is this machine's clock, or the PostgreSQL
    server's.
    """
    if clock is not None and not callable(clock):
        raise InvalidCall(f"clock is a function that returns the seconds since 1970, not {short(clock)}")
    now = None if clock is None else lambda: int(clock() * 1_000_000)
    store = open_store(
        where, durability=durability, artifacts=artifacts, timeout=timeout, create=create, clock=now
    )
    try:
        return Holdfast(store, redact=redact, lease=lease, where=file_of(where))
    except BaseException:
        store.close()
        raise


def _like(
    method: Callable[P, Run],
) -> Callable[[Callable[..., Coroutine[Any, Any, Run]]], Callable[P, Coroutine[Any, Any, Run]]]:
    """Give an async method the signature of the blocking one."""

    def decorate(twin: Any) -> Any:
        # `inspect.signature` follows this.
        twin.__wrapped__ = method
        return twin

    return decorate


class Holdfast:
    """An open store and all operations on it. Safe to use from many threads."""

    def __init__(
        self, store: Store, *, redact: Iterable[str | re.Pattern[str]] = (), lease: float = 15.0,
        where: str | None = None,
    ) -> None:  # fmt: skip
        check_seconds("lease", lease, least=_SHORTEST_LEASE, most=86_400)
        #: The file of the store, as `open` was given it; None if it has none.
        self.where = where
        self._store = store
        redaction = RedactionPatterns(store, redact)
        rollbacks = compensation.WorkflowRollbacks(lambda: self._engine)
        self._context = StoreContext(store, store.now, redaction, rollbacks)
        #: Values under namespaces and keys that belong to no run, for `HoldfastStore` of the LangGraph integration.
        self.items = Items(store, redaction)
        self._engine = EngineContext(
            self._context, lease=int(lease * 1_000_000), room=partial(queue_room, store)
        )
        self._runner = Runner(self._engine, self.start_triggers)
        self._operators = Operators(self._runner, lambda: self.loops)
        self._fleet = Fleet(self._runner, self._operators)

    @cached_property
    def loops(self) -> AgentLoops:
        """The agent loops of the store, for `LoopEngine`, the inbox and monitors."""
        from holdfast.agent_loops.loops import AgentLoops

        return AgentLoops(self._engine)

    # Runs of workflows

    def run(
        self, workflow: Any, *args: Any, run_id: str | None = None, tags: Iterable[str] = (), state: Any = None,
        note: str | None = None, actor: str | None = None, overrides: GivenOverrides | None = None,
        watchdog: Watchdog | None = None, if_exists: str = "error", raises: bool = True, limits: Limits | None = None,
        meta: Mapping[str, MetaValue] | None = None, **kwargs: Any,
    ) -> Run:  # fmt: skip
        """Run a workflow until it ends or waits. It starts with `state`, and is called with all other arguments.
        `meta` are names and values by which the run is found (`runs(meta=…)`): texts, numbers, bools and None.
        `watchdog` replaces its workflow's; `limits` are for the run and its children: each limit that is given replaces
        that of the workflow.

        If the workflow fails, its exception is raised, with a note that names the run, the step and how to resume;
        `raises=False` returns the failed run instead. A run that waits, or was paused or cancelled, is returned.

        `if_exists` says what to do if a run of this id exists: "error" raises `AlreadyExists`; "resume" resumes it if
        it is unfinished or failed, and returns it if it has completed, was cancelled, or is paused or stalled; "return"
        returns it as it is and executes nothing. A run of another workflow, and with "resume" one that was started with
        other arguments or another `state`, raises `RunMismatch`; with "resume", one that is being executed raises
        `AlreadyRunning`. Its tags, note, actor, meta and watchdog are those of the first call; `limits` are as for
        `resume`.
        """
        options = RunOptions(
            run_id=run_id, tags=tags, state=state, note=note, actor=actor, overrides=overrides, watchdog=watchdog,
            limits=limits, if_exists=if_exists, meta=meta,
        )  # fmt: skip
        run = self._runner.run(workflow, args, kwargs, options)
        return run.raise_failure() if raises else run

    @_like(run)
    async def arun(self, workflow: Any, *args: Any, raises: bool = True, **kwargs: Any) -> Run:
        """As `run`, in an event loop. Runs that are awaited together share commits."""
        own = {name: kwargs.pop(name) for name in RunOptions.__struct_fields__ if name in kwargs}
        run = await self._runner.arun(workflow, args, kwargs, RunOptions(**own))
        return run.raise_failure() if raises else run

    def resume(
        self, run_id: str, *, from_address: str | None = None, mode: str = "normal",
        answers: Mapping[str, Any] | None = None, overrides: GivenOverrides | None = None, changed: str | None = None,
        on_divergence: str = "raise", workflow: Any = None, raises: bool = True, limits: Limits | None = None,
    ) -> Run:  # fmt: skip
        """Execute a run from its head. Recorded steps are replayed, not run again.

        `from_address` runs that step, and all that came after it, again. `answers` answers questions, by id or address.
        `mode` is normal, validate (runs the recorded steps again and compares: the run's `differences` lists what
        differs; nothing is changed) or republish (first writes an event `step.replayed` for each recorded step into the
        journal, nested steps and those of completed runs included).
        `changed` says what to do if the workflow's code has changed: warn, refuse, allow, or accept. Code that does not
        match the recorded steps raises `ReplayDiverged`, and the run stays as it was; with accept, or with
        `on_divergence="rerun"`, the run is rolled back to before the first recorded step that does not match, and
        resumes there. `limits` replace those that the run has; what it has spent still counts.

        `overrides` maps names of steps to functions that replace them from now on, or to None for the step's own
        function; they are recorded with the run, and added to those recorded before; an empty dict clears all. A run
        with recorded overrides whose functions this process was not given raises `OverridesMissing`.

        If the workflow fails, its exception is raised as by `run`, unless `raises` is False."""
        options = ResumeOptions(
            from_address=from_address, mode=mode, answers=answers, overrides=overrides, changed=changed,
            on_divergence=on_divergence, workflow=workflow, limits=limits,
        )  # fmt: skip
        run = self._runner.resume(run_id, options)
        return run.raise_failure() if raises else run

    @_like(resume)
    async def aresume(self, run_id: str, *, raises: bool = True, **options: Any) -> Run:
        """As `resume`, in an event loop."""
        run = await self._runner.aresume(run_id, ResumeOptions(**options))
        return run.raise_failure() if raises else run

    def check(self, run_id: str | None = None) -> list[CodeProblem]:
        """Replay a run, or all that have not ended, against the code of this process, and return those that it cannot
        resume: whose recorded steps do not match, whose workflow is missing or raises. No step is run, nothing is
        written; the code of workflows between recorded steps is run."""
        return self._runner.check(run_id)

    def preview(
        self, run_id: str, to: int | str | Version | None = None, *, from_address: str | None = None
    ) -> Preview:
        """Return what a rollback to a version would do, or, without one, a resume: which steps would be replayed, run
        again, compensated. Changes nothing."""
        from holdfast.execution.preview import preview

        return preview(self._engine, self.history(run_id), self._engine.record(run_id), to, from_address)

    def rollback(
        self, run_id: str, to: int | str | Version, *, resume: bool = True, reason: str | None = None,
        actor: str | None = None, overrides: GivenOverrides | None = None, changed: str | None = None,
        raises: bool = True,
    ) -> Run:  # fmt: skip
        """Compensate the steps after a version (those that have a compensation, newest first), make the version the
        head on a new timeline, and resume there. Nothing is deleted. `changed` and `overrides` are as for `resume`:
        where resuming is refused, nothing is rolled back. If the workflow fails then, its exception is raised as by
        `run`, unless `raises` is False."""
        options = RollbackOptions(
            resume=resume, reason=reason, actor=actor, overrides=overrides, changed=changed
        )
        run = self._runner.rollback(run_id, to, options)
        return run.raise_failure() if raises else run

    @_like(rollback)
    async def arollback(
        self, run_id: str, to: int | str | Version, *, raises: bool = True, **options: Any
    ) -> Run:
        """As `rollback`, in an event loop. Compensations run in a thread."""
        run = await self._runner.arollback(run_id, to, RollbackOptions(**options))
        return run.raise_failure() if raises else run

    # Operators

    def cancel(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Run:
        """Stop a run for good, and its children, at the next boundary between steps."""
        return self._operators.cancel(run_id, reason, actor)

    def pause(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Run:
        """Stop a run at the next boundary between steps, until it is resumed."""
        return self._operators.pause(run_id, reason, actor)

    def signal(
        self, run_id: str, name: str, data: Any = None, *, actor: str | None = None, resume: bool = True,
        raises: bool = True,
    ) -> Run:  # fmt: skip
        """Send a signal to a run, which receives it with `wait_for`, now or later. Resumes the run as `answer` does."""
        return self._operators.signal(run_id, name, data, actor=actor, resume=resume, raises=raises)

    @_like(signal)
    async def asignal(self, run_id: str, name: str, data: Any = None, **options: Any) -> Run:
        """As `signal`, in an event loop."""
        return await self._operators.asignal(run_id, name, data, **options)

    def answer(
        self, question_id: str, value: Any, *, version: int | Version | None = None, keep: Iterable[str] = (),
        actor: str | None = None, resume: bool = True, raises: bool = True,
    ) -> Run:  # fmt: skip
        """Answer a question. If this process knows the workflow, it resumes the run at once, unless `resume` is False
        or the run is in a queue, where workers resume it. If it fails then, its error is raised, unless `raises` is
        False; the answer stays. In an event loop, await `aanswer`.

        The question of a stalled run is answered with a choice: `resume`; `rollback`, to `version` or else to the last
        good one; `reinitialize`: start again from version 1, and `keep` parts of the state, given by their paths;
        `cancel`."""
        return self._fleet.monitoring.answer(
            question_id, value, version=version, keep=keep, actor=actor, resume=resume, raises=raises
        )

    @_like(answer)
    async def aanswer(self, question_id: str, value: Any, **options: Any) -> Run:
        """As `answer`, in an event loop."""
        return await self._fleet.monitoring.aanswer(question_id, value, **options)

    def question(self, question_id: str) -> Question:
        """Return an open question by its id; raise `InvalidAnswer` if it was answered, or is no longer open."""
        return self._operators.inbox.question(question_id)

    def inbox(
        self, *, open: bool = True, run_id: str | None = None, workflow: str | None = None,  # noqa: A002
        assignee: str | None = None, waiting_longer_than: float | timedelta | None = None, kind: str | None = None,
        limit: int = 100, after: str | None = None,
    ) -> list[Question]:  # fmt: skip
        """Return the questions that can be answered, of runs and loops: by priority, then oldest first, at most
        `limit`. For the next page, pass the last one's id as `after`. A page costs the same however many questions are
        open.

        The filters are combined: the run (of a loop, that with its state), the workflow, the assignee, the kind
        (`question`, `stalled` or `loop`), and seconds that the question has been open.

        With `open=False`, return those that were answered, with who did and when, newest first, of one run or all."""
        return self._operators.list_questions(
            open=open, run_id=run_id, workflow=workflow, assignee=assignee, waiting_longer_than=waiting_longer_than,
            kind=kind, limit=limit, after=after,
        )  # fmt: skip

    def assign(
        self, question_id: str, *, assignee: str | None = UNCHANGED,
        due: float | timedelta | datetime | None = UNCHANGED, priority: int = UNCHANGED,
        remind_every: float | timedelta | None = UNCHANGED, escalate_after: float | timedelta | None = UNCHANGED,
        escalate_to: str | None = UNCHANGED, actor: str | None = None,
    ) -> Question:  # fmt: skip
        """Change who is to answer an open question, and by when; return it. What is not given stays; None removes it.
        Times are seconds from now; `due` may be a point in time. `question.assigned` is written into the journal of its
        run."""
        return self._operators.inbox.assign(
            question_id, assignee=assignee, due=due, priority=priority, remind_every=remind_every,
            escalate_after=escalate_after, escalate_to=escalate_to, actor=actor,
        )  # fmt: skip

    def subscribe(
        self, callback: Callable[[Event], Any] | None = None, *, kinds: Sequence[str] = (), run_id: str | None = None,
        after: int | None = None,
    ) -> Subscription:  # fmt: skip
        """Subscribe to events of this process and others: `callback` is called in a thread of its own; without one,
        iterate over the subscription. `kinds` are patterns such as "run.*"; `after` is the cursor to start from; the
        default is now."""
        return self._engine.publisher.subscribe(callback, kinds=kinds, run_id=run_id, after=after)

    # Queues and monitors

    def enqueue(
        self, workflow: Any, *args: Any, queue: str = "default", priority: int = 0, delay: float = 0,
        dedupe: str | None = None, run_id: str | None = None, tags: Iterable[str] = (), state: Any = None,
        note: str | None = None, actor: str | None = None, watchdog: Watchdog | None = None, if_exists: str = "error",
        limits: Limits | None = None, meta: Mapping[str, MetaValue] | None = None, **kwargs: Any,
    ) -> Run:  # fmt: skip
        """Put a run of a workflow into a queue: it is in the store when this returns. A name is enough for a workflow
        that only the workers know.

        Runs of a higher `priority` come first, then those that have waited longest; none before `delay` seconds. With
        `dedupe`, a run of this workflow that was enqueued with the same text is returned instead of another, whatever
        its arguments and its status. `watchdog` replaces its workflow's; `limits` and `meta` are as for `run`.

        `if_exists` says what to do if a run of this id exists: "error" raises `AlreadyExists`; "return" returns it as
        it is; "resume" puts it into the queue again if it failed or was interrupted, else returns it. `RunMismatch` is
        raised as by `run`.
        """
        options = RunOptions(
            run_id=run_id, tags=tags, state=state, note=note, actor=actor, watchdog=watchdog, limits=limits,
            if_exists=if_exists, meta=meta,
        )  # fmt: skip
        return self._fleet.queues.enqueue(
            workflow, args, kwargs, options, queue=queue, priority=priority, delay=delay, dedupe=dedupe
        )

    @_like(enqueue)
    async def aenqueue(self, workflow: Any, *args: Any, **options: Any) -> Run:
        """As `enqueue`, in an event loop."""
        import asyncio

        return await asyncio.to_thread(self.enqueue, workflow, *args, **options)

    def requeue(
        self, run_id: str, *, queue: str | None = None, priority: int | None = None, delay: float = 0,
        reason: str | None = None, actor: str | None = None, limits: Limits | None = None,
    ) -> Run:  # fmt: skip
        """Have a worker resume a run that has stopped: paused, failed, stalled, interrupted, or rolled back with
        `resume=False`. Its queue and priority are those that it was enqueued with, unless others are given; a run that
        was never in a queue needs `queue`. `limits` are as for `resume`."""
        return self._fleet.queues.requeue(
            run_id, queue=queue, priority=priority, delay=delay, reason=reason, actor=actor, limits=limits
        )

    def limit_queue(
        self, queue: str, *, concurrency: int | None = None, rate: int | None = None, per: float = 1.0
    ) -> None:
        """Limit the runs of a queue that workers execute at once, and those that they start in `per` seconds to `rate`.
        None lifts a limit. Limits apply to all workers of the store, at once."""
        self._fleet.queues.limit(queue, concurrency=concurrency, rate=rate, per=per)

    def queues(self) -> list[QueueSummary]:
        """Return the queues that have runs, the number of runs by status, and their limits."""
        return self._fleet.queues.summaries()

    def queue(self, name: str) -> QueueSummary:
        """Return one queue, even if it has no runs."""
        return self._fleet.queues.summary(name)

    def breakers(self) -> list[BreakerSummary]:
        """Return the circuit breakers of steps that have failed, by name: status, failures in a row, when it lets a
        call through again, the last error."""
        return breakers.summaries(self._engine)

    def reset_breaker(self, name: str, *, actor: str | None = None) -> BreakerSummary:
        """Close a circuit breaker, and let the runs that wait for it try again. The event `breaker.closed` goes into
        the journal of the run whose call opened it, or was let through last, if that run still exists."""
        return breakers.reset(self._engine, name, actor)

    def worker(
        self, *, queues: Iterable[str] = ("default",), concurrency: int = 10, poll: float = 0.5, monitor: bool = True,
    ) -> Worker:  # fmt: skip
        """Return a worker, which claims runs of some queues and executes those whose workflows this process knows.
        Unless `monitor` is False, it monitors the runs of the store, too, in turns with others (see `monitor`)."""
        worker = self._fleet.queues.worker(queues=queues, concurrency=concurrency, poll=poll, monitor=monitor)
        self._fleet.begin_work()
        return worker

    def start_triggers(self) -> None:
        """Start workflows by events (`@workflow(on=…)`) from now on, in this process. Workers, monitors, `run` and
        `resume` do so on their own."""
        self._fleet.begin_work()

    def monitor(self, *, interval: float = 2.0, watchdog: Watchdog | None = None) -> Monitor:
        """Return a monitor, which examines all runs every `interval` seconds; of many on one store, one acts at a time.
        `watchdog` is for runs that have none, of their own or of their workflow."""
        monitor = self._fleet.monitoring.monitor(interval, watchdog)
        self._fleet.begin_work()
        return monitor

    def set_watchdog(self, run_id: str, watchdog: Watchdog | None, *, actor: str | None = None) -> Run:
        """Replace the watchdog of a run; None for its workflow's."""
        return self._fleet.monitoring.set_watchdog(run_id, watchdog, actor)

    # Runs and versions

    def history(
        self, run_id: str, *, merge: Declared | None = None, meta: Mapping[str, MetaValue] | None = None,
        schema: Any = None,
    ) -> History:  # fmt: skip
        """Return the history of a run, which its first commit creates. `merge` declares reducers for paths, such as
        `{"n": "sum"}`: how a change that is committed here is merged with concurrent changes. `meta` are the metadata
        of a run that the first commit here creates; a run that exists keeps its own. `schema` is a dataclass, a
        pydantic model, a msgspec struct, a TypedDict or a JSON Schema: a state that does not fit is not committed here,
        and `InvalidState` names the path."""
        if schema is None:
            return self._engine.history(run_id, merge, meta)
        from holdfast.workflow.state_schema import StateSchema

        return self._engine.history(run_id, merge, meta, StateSchema(schema).check)

    def get(self, run_id: str, *, prefix: bool = False) -> Run:
        """Return a run by its id, or, with `prefix=True`, by a unique prefix of it."""
        return Run(self._runner, get_run(self._engine, run_id) if prefix else self._engine.record(run_id).id)

    def version(self, ref: str) -> Version:
        """Return the version that a reference names: `RUN`, `RUN@12`, `RUN@head`, `RUN~2`, `RUN:tag`. A run id may be
        shortened to a unique prefix."""
        readings = split_reference(ref)
        for run_id, local in readings:
            run = find_run(self._engine, run_id)
            if run is not None:
                return self.history(run).at(local)
        raise self._engine.no_run(readings[-1][0])

    def fork(
        self, ref: str | Version, run_id: str | None = None, *, at: int | str | None = None,
        edit: Callable[[Any], Any] | Mapping[str, Any] | None = None, state: Any = None,
        overrides: GivenOverrides | None = None, note: str | None = None, actor: str | None = None,
    ) -> History:  # fmt: skip
        """Start another run from a version. Both share its past and develop independently. With `state`, it starts from
        that state instead; with `edit`, from a draft that a function has changed, or with the values that a dict gives
        for paths. The fork of a workflow's run is executed when it is resumed, with the overrides of its origin and
        `overrides`, as for `resume`. It has the metadata of its origin."""
        source = ref if isinstance(ref, Version) else self.version(ref if at is None else f"{ref}@{at}")
        functions, recorded = self._engine.overrides_of_fork(source.run, overrides)
        made = branching.fork(
            self._context, source, run_id, edit=edit, state=state, note=note, actor=actor,
            detail=self._engine.detail_of_fork(source.run, recorded),
        )  # fmt: skip
        self._engine.remember_overrides(made.id, functions)
        return self.history(made.id)

    def diff(self, a: str | Version, b: str | Version) -> Diff:
        """Return the changes from one version to another, of one run or of two."""
        from holdfast.history import compare

        return compare.diff(self._version(a), self._version(b))

    def compare(self, a: str | Version, b: str | Version) -> Comparison:
        """Compare two runs or timelines, step by step and state by state."""
        from holdfast.history import compare

        return compare.compare(self._version(a), self._version(b))

    def runs(
        self, *, status: str | Sequence[str] | None = None, tags: Sequence[str] = (), workflow: str | None = None,
        since: datetime | None = None, prefix: str = "", meta: Mapping[str, MetaValue] | None = None,
        limit: int = 100, after: str | None = None,
    ) -> list[RunSummary]:  # fmt: skip
        """Return one page of runs, newest first: at most `limit`. `status` is one or several statuses of runs;
        `interrupted` (running, but no process advances it) and `manual` (running, and written by hand) are accepted,
        too. With `prefix`, only ids that start with it; with `meta`, only runs that have all these names and values:
        7, 7.0, "7" and True are four values. For the next page, pass the last one's id as `after`; for all runs, use
        `iter_runs`."""
        query = RunQuery(status, tags, workflow, since, prefix, meta)
        before = None if after is None else self._engine.record(after).key
        return query.page(self._engine, before, check_integer("limit", limit, 1))

    def iter_runs(
        self, *, status: str | Sequence[str] | None = None, tags: Sequence[str] = (), workflow: str | None = None,
        since: datetime | None = None, prefix: str = "", meta: Mapping[str, MetaValue] | None = None,
    ) -> Iterator[RunSummary]:  # fmt: skip
        """Iterate over all runs, newest first, with the filters of `runs`. They are read page by page, so runs may be
        resumed, changed and deleted in the loop."""
        return RunQuery(status, tags, workflow, since, prefix, meta).iterate(self._engine)

    def delete(self, run_id: str, *, release: bool = False) -> None:
        """Delete a run, its children, and their history for ever. Forks of it stay: they copy what they need. Raises
        `AlreadyRunning`, and deletes nothing, if a process advances one of them: cancel it first. With `release`, texts
        and other single values of the run above 64 KiB are deleted at once, and not only by `gc`."""
        run = self._store.run(run_id) if release else None
        leaves = set() if run is None else long_leaves(self._store, run)
        stopping.delete(self._engine, run_id)
        self._store.release(sorted(leaves))

    # The store

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events of the whole store after a cursor, oldest first."""
        check_integer("after", after, 0)
        check_integer("limit", limit, 1)
        return read_events(self._store, after=after, limit=limit)[0]

    def stats(self) -> StoreStats:
        """Return the counts and sizes of the store's contents."""
        return self._store.stats()

    def verify(self, progress: Progress | None = None) -> Report:
        """Check every version of every run, every artifact, and the database itself."""
        from holdfast.history.verify import verify_store

        return verify_store(self._store, progress)

    @property
    def redaction(self) -> Redaction:
        """The patterns of keys in the store: every process that uses it replaces the values of such keys."""
        return self._context.redaction.stored

    def change_redaction(
        self, *, add: Iterable[str] = (), remove: Iterable[str] = (), defaults: bool | None = None
    ) -> Redaction:
        """Add and remove patterns in the store. They apply to all later commits, in other processes after a second;
        stored values stay as they are. `defaults` switches the usual names (`*password*`, `*api_key*`, `*secret*`,
        `*token`) on or off for `LoopEngine` and HTTP."""
        return self._context.redaction.change(add, remove, defaults)

    def redact(self, value: Any) -> Any:
        """Return external JSON with redacted values, the usual names included."""
        return redact_json(value, self._context.redaction.with_defaults)

    def gc(self, *, grace: float = _GRACE, compact: bool = False) -> Collected:
        """Remove artifacts that no version refers to; with `compact`, return the space to the system."""
        check_seconds("grace", grace)
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

    def artifact(self, digest: str) -> Artifact:
        """Return an artifact by its digest."""
        try:
            name = bytes.fromhex(digest)
        except (ValueError, TypeError):
            raise InvalidReference(f"{short(digest)} is not a digest: give its hexadecimal digits") from None
        record = self._store.artifact(name)
        if record is None:
            raise NotFound(f"there is no artifact {digest[:12]} in the store", artifact=digest)
        return Artifact(digest, record.size, None, StoredContent(self._store, name))

    def artifacts(self, *, after: str | None = None, limit: int = 100) -> list[StoredArtifact]:
        """Return one page of artifacts, in order of their digests. For the next page, pass the last one's digest as
        `after`."""
        start = b"" if after is None else bytes.fromhex(self.artifact(after).digest)
        return [
            StoredArtifact(record.digest.hex(), record.size, when(record.at))
            for record in self._store.artifacts(after=start, limit=check_integer("limit", limit, 1))
        ]

    def import_snapshot(self, document: Any, *, run_id: str | None = None, schema: Any = None) -> Version:
        """Create a run from a snapshot (`History.export`), a document or JSON text. Never overwrites a run. With
        `schema`, as for `history`, the state must fit."""
        from holdfast.history import snapshot

        facts = snapshot.read(document)
        run_id = check_run_id(run_id if run_id is not None else facts["run"])
        if self._store.run(run_id) is not None:
            raise AlreadyExists(f"run {run_id!r} exists: import with another run_id=…", run=run_id)
        return self.history(run_id, schema=schema).commit(
            facts["state"], step=facts["step"], result=facts["result"], tags=facts["tags"], note=facts["note"],
            actor=facts["actor"], annotations=facts["meta"], error=facts["error"], status=facts["status"],
            kind="import", expected=0,
        )  # fmt: skip

    def export_run(self, run_id: str, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write a whole run, with its artifacts, to one file."""
        from holdfast.history.bundle import transfer

        transfer.export_run(self._store, self._engine.record(run_id), file)

    def import_run(
        self, file: str | os.PathLike[str] | BinaryIO, *, run_id: str | None = None,
        secrets: Literal["refuse", "keep"] = "refuse",
    ) -> History:  # fmt: skip
        """Read a run that `export_run` wrote. Checks every hash; never overwrites a run. A run with a value under a key
        that this store redacts raises `InvalidSnapshot`, since a bundle cannot be changed; with `secrets="keep"` it is
        imported as it is."""
        from holdfast.history.bundle import transfer

        if secrets not in ("refuse", "keep"):
            raise InvalidCall(f"secrets is 'refuse' or 'keep', not {short(secrets)}")
        redact = None if secrets == "keep" else self._context.redact
        run = transfer.import_run(self._store, file, run_id=run_id, now=self._context.clock(), redact=redact)
        inbox.adopt(self._context, run)
        self.loops.adopt(run.id)
        return self.history(run.id)

    def close(self) -> None:
        """Stop this process's workers, monitors and threads, and close the store."""
        self._fleet.close()
        if "loops" in self.__dict__:
            self.loops.close()
        self._engine.close()
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
