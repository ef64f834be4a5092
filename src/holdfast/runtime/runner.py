"""Running workflows on an open store: the half of `Holdfast` that knows code.

Invariant: a method that fails has left the run as it found it, or its status says what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import AlreadyExists, AlreadyRunning, InvalidCall, ReplayDiverged
from holdfast.history.advance import Line
from holdfast.history.context import Context
from holdfast.history.version import Version
from holdfast.model.names import check_run_id
from holdfast.model.records import ENDED, LIVE, RunRecord
from holdfast.runtime import checking, code, execute, mail, undo
from holdfast.runtime.checking import Problem
from holdfast.runtime.definition import ACCEPT, CHANGED, Workflow, workflow_of
from holdfast.runtime.drive import Do, Flow, adrive, drive
from holdfast.runtime.limits import Limits, check_limits
from holdfast.runtime.outside import Outside, check_texts
from holdfast.runtime.overrides import Given, Overrides, check_overrides, merged, settled
from holdfast.runtime.record import Record
from holdfast.runtime.rehearsal import Rehearsal
from holdfast.runtime.republish import republish
from holdfast.runtime.rewinding import carried_over
from holdfast.runtime.run import Run
from holdfast.runtime.same_call import check_if_exists, refuse_other_call, refuse_other_workflow
from holdfast.runtime.scope import refuse_in_loop
from holdfast.runtime.services import LEASE, Services, unlimited
from holdfast.runtime.session import Session
from holdfast.runtime.waits import facts_of, ready
from holdfast.runtime.watch import Watch, check_watch
from holdfast.store.base import every_run

#: Arguments that are for `run` and not for the workflow.
_OWN = (
    "run_id", "tags", "state", "note", "actor", "overrides", "watch", "limits", "if_exists", "raises", "workflow",
)  # fmt: skip
#: Statuses in which a second call of `run` leaves a run as it is: it has ended, or a person has to decide.
_LEFT = ("completed", "cancelled", "paused", "frozen")
#: Runs that are read together.
_PAGE = 500
MODES = ("normal", "validate", "republish")
T = TypeVar("T")


class _How(NamedTuple):
    """The arguments of `resume`."""

    from_address: str | None
    mode: str
    answers: Mapping[str, Any] | None
    overrides: Given | None
    changed: str | None
    on_divergence: str
    workflow: Any
    limits: Limits | None


class Runner(Outside):
    """Runs workflows."""

    def __init__(
        self, context: Context, lease: int = LEASE, room: Callable[[str], int | None] = unlimited
    ) -> None:
        self._services = Services(context, lease=lease, room=room)
        context.carry = lambda run, to: mail.carried(context, run, to)
        context.may_roll_back = lambda run, to: undo.refuse_by_hand(self._services, run, to)

    # Running

    def run(
        self,
        workflow: Any,
        *args: Any,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        state: Any = None,
        note: str | None = None,
        actor: str | None = None,
        overrides: Given | None = None,
        watch: Watch | None = None,
        if_exists: str = "error",
        raises: bool = True,
        limits: Limits | None = None,
        **kwargs: Any,
    ) -> Run:
        """Run a workflow until it has ended or waits. It begins with `state`, and is called with all other arguments.
        `watch` is for this run instead of what its workflow says; `limits` says what it may spend, its children
        included: each limit that is given replaces that of its workflow.

        If the workflow fails, its exception is raised, with a note that names the run, the step and how to resume;
        `raises=False` returns the failed run instead. A run that waits, or was paused or cancelled, is returned.

        `if_exists` says what to do if there is a run of this id: "error" raises `AlreadyExists`; "resume" resumes it if
        it is unfinished or failed, and returns it if it has completed, was cancelled, or is paused or frozen; "return"
        returns it as it is and executes nothing. A run of another workflow, and with "resume" one that was started with
        other arguments or another `state`, raises `RunMismatch`; with "resume", one that is being executed raises
        `AlreadyRunning`. Its tags, note, actor and watch are those of the first call; `limits` are as for
        `resume`.
        """
        refuse_in_loop("run")
        found, flow = self._start(
            workflow, args, kwargs, run_id, tags, state, note, actor, overrides, watch, limits, if_exists
        )
        run = _drive(found, flow)
        return run.raise_failure() if raises else run

    async def arun(
        self,
        workflow: Any,
        *args: Any,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        state: Any = None,
        note: str | None = None,
        actor: str | None = None,
        overrides: Given | None = None,
        watch: Watch | None = None,
        limits: Limits | None = None,
        if_exists: str = "error",
        raises: bool = True,
        **kwargs: Any,
    ) -> Run:
        """As `run`, in an event loop. Runs that are awaited together share commits."""
        found, flow = self._start(
            workflow, args, kwargs, run_id, tags, state, note, actor, overrides, watch, limits, if_exists
        )
        run = await _adrive(found, flow)
        return run.raise_failure() if raises else run

    def resume(
        self,
        run_id: str,
        *,
        from_address: str | None = None,
        mode: str = "normal",
        answers: Mapping[str, Any] | None = None,
        overrides: Given | None = None,
        changed: str | None = None,
        on_divergence: str = "raise",
        workflow: Any = None,
        raises: bool = True,
        limits: Limits | None = None,
    ) -> Run:
        """Go on from the head: steps that are recorded are not run again.

        `from_address` runs that step, and all that came after it, anew. `answers` answers prompts, by id or address.
        `mode` is normal, validate (really runs the recorded steps beside the record; `differences` of the run tells
        what was otherwise; nothing is changed) or republish (first writes an event `step.replayed` for each recorded
        step into the journal, nested steps and those of completed runs included).
        `changed` says what to do if the workflow's code has changed: warn, refuse, allow, or accept. Code that does not
        fit what is recorded raises `ReplayDiverged`, and the run stays as it was; with accept, or with
        `on_divergence="rerun"`, the run is rolled back to before the first recorded step that does not fit, and goes on
        from there. `limits` are for the run from now on: those that are given replace those that it has, and
        what it has spent still counts.

        `overrides` maps names of steps to functions that take their place from now on, or to None for the step's own;
        they are recorded with the run, and added to those recorded before; an empty dict clears all. A run with
        recorded overrides whose functions this process was not given raises `OverridesMissing`.

        If the workflow fails, its exception is raised as by `run`, unless `raises` is False."""
        how = _How(from_address, mode, answers, overrides, changed, on_divergence, workflow, limits)
        refuse_in_loop("resume")
        found = self._prepare(run_id, how)
        if found is None:
            return self.get(run_id)
        run = _drive(found, self._resuming(found, run_id, how))
        return run.raise_failure() if raises else run

    async def aresume(
        self,
        run_id: str,
        *,
        from_address: str | None = None,
        mode: str = "normal",
        answers: Mapping[str, Any] | None = None,
        overrides: Given | None = None,
        changed: str | None = None,
        on_divergence: str = "raise",
        workflow: Any = None,
        raises: bool = True,
        limits: Limits | None = None,
    ) -> Run:
        """As `resume`, in an event loop."""
        import asyncio

        how = _How(from_address, mode, answers, overrides, changed, on_divergence, workflow, limits)
        found = await asyncio.to_thread(self._prepare, run_id, how)
        if found is None:
            return self.get(run_id)
        run = await _adrive(found, self._resuming(found, run_id, how))
        return run.raise_failure() if raises else run

    def check(self, run_id: str | None = None) -> list[Problem]:
        """Replay a run, or all that have not ended, against the code of this process, and return those that it cannot
        resume: whose recorded steps do not fit, whose workflow is missing or raises. No step is run, nothing is
        written; the code of workflows between recorded steps is run."""
        runs = self._unfinished() if run_id is None else iter([self._known(run_id)])
        found = (checking.check(self._services, run, _drive) for run in runs if run.workflow is not None)
        return [problem for problem in found if problem is not None]

    def _unfinished(self) -> Iterator[RunRecord]:
        before: int | None = None
        while page := self._store.runs(statuses=checking.UNFINISHED, live=True, before=before, limit=_PAGE):
            yield from page
            before = page[-1].key

    # Going back

    def rollback(
        self,
        run_id: str,
        to: int | str | Version,
        *,
        resume: bool = True,
        reason: str | None = None,
        actor: str | None = None,
        overrides: Given | None = None,
        changed: str | None = None,
        raises: bool = True,
    ) -> Run:
        """Undo what the steps after a version did to the world (those that have a compensation, newest first), make
        it the head on a new timeline, and go on from there. Nothing is deleted. `changed` and `overrides` are as for
        `resume`: where going on is refused, nothing is rolled back. If the workflow fails then, its exception is
        raised as by `run`, unless `raises` is False."""
        if resume and self._known(run_id).workflow is not None:
            refuse_in_loop("rollback", ", or say resume=False")
        if self._go_back(run_id, to, resume, reason, actor, overrides, changed):
            return self.resume(run_id, overrides=overrides, changed=changed, raises=raises)
        return Run(self, run_id)

    async def arollback(
        self,
        run_id: str,
        to: int | str | Version,
        *,
        resume: bool = True,
        reason: str | None = None,
        actor: str | None = None,
        overrides: Given | None = None,
        changed: str | None = None,
        raises: bool = True,
    ) -> Run:
        """As `rollback`, in an event loop. Compensations run in a thread."""
        import asyncio

        if await asyncio.to_thread(self._go_back, run_id, to, resume, reason, actor, overrides, changed):
            return await self.aresume(run_id, overrides=overrides, changed=changed, raises=raises)
        return Run(self, run_id)

    # How it works

    def _begin_work(self) -> None:
        """Called before a run is started or resumed here."""

    def _go_back(
        self,
        run_id: str,
        to: int | str | Version,
        resume: bool,
        reason: str | None,
        actor: str | None,
        overrides: Given | None,
        changed: str | None,
    ) -> bool:
        """Roll a run back; tells whether it is to be resumed."""
        run = self._known(run_id)
        check_texts(reason, actor)
        _check_changed(changed)
        resumes = resume and run.workflow is not None
        if resumes:
            self._check_code(run, changed=changed)
            self._settle_overrides(run, overrides)
        elif overrides is not None:
            raise InvalidCall("overrides are for the execution that follows: give them to resume", run=run_id)
        self._roll_back(run, to, reason, actor)
        return resumes

    def _start(
        self,
        workflow: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run_id: str | None,
        tags: Iterable[str],
        state: Any,
        note: str | None,
        actor: str | None,
        overrides: Given | None,
        watch: Watch | None,
        limits: Limits | None,
        if_exists: str,
    ) -> tuple[Workflow, Flow[Run]]:
        check_if_exists(if_exists)
        found = workflow_of(workflow)
        try:
            found.signature.bind(*args, **kwargs)
        except TypeError as error:
            taken = [name for name in _OWN if name in found.signature.parameters]
            hint = f" ({', '.join(taken)}: hf.run has arguments of that name itself)" if taken else ""
            raise InvalidCall(f"workflow {found.name!r} cannot be called like this: {error}{hint}") from None
        self._begin_work()
        name = execute.new_id(found) if run_id is None else check_run_id(run_id)
        functions, _ = merged({}, check_overrides(overrides), {})
        flow = execute.start(
            self._services, found, name, args, kwargs, state=state, tags=tags, note=note, actor=actor,
            overrides=functions, watch=check_watch(watch), limits=check_limits(limits),
        )  # fmt: skip
        running = self._running(found, name, flow)
        if run_id is not None and if_exists != "error":
            is_same = partial(self._check_same, found, name, args, kwargs, state, if_exists)
            running = self._running_once(running, name, overrides, is_same, if_exists, limits)
        return found, running

    def _running(self, workflow: Workflow, run_id: str, flow: Flow[BaseException | None]) -> Flow[Run]:
        error = yield from flow
        error = yield from self._going_on(workflow, run_id, error, None)
        return Run(self, run_id, error)

    def _running_once(
        self,
        start: Flow[Run],
        run_id: str,
        overrides: Given | None,
        check_same: Callable[[], RunRecord],
        if_exists: str,
        limits: Limits | None,
    ) -> Flow[Run]:
        """Start a run, unless there is one of this id: then resume or return that one."""
        exists = yield Do(partial(self._store.run, run_id))
        if exists is None:
            try:
                return (yield from start)
            except AlreadyExists as error:
                if error.details.get("run") != run_id:
                    raise
                # Another process was quicker.
            except AlreadyRunning as error:
                # Another thread was quicker; perhaps it has not written the run yet.
                if error.details.get("run") != run_id or if_exists != "return":
                    raise
        run = yield Do(check_same)
        if if_exists == "return" or run.status in _LEFT:
            return Run(self, run_id)
        how = _How(None, "normal", None, overrides, None, "raise", None, limits)
        found = yield Do(partial(self._prepare, run_id, how))
        return Run(self, run_id) if found is None else (yield from self._resuming(found, run_id, how))

    def _check_same(
        self,
        workflow: Workflow,
        run_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: Any,
        if_exists: str,
    ) -> RunRecord:
        """Return the run that exists; `RunMismatch` if this call is not the one that started it."""
        run = self._known(run_id)
        if if_exists == "return":
            refuse_other_workflow(run, workflow)
        else:
            refuse_other_call(self._context, run, workflow, args, kwargs, state)
        return run

    def _resuming(self, workflow: Workflow, run_id: str, how: _How) -> Flow[Run]:
        overrides = check_overrides(how.overrides)
        if how.mode == "validate":
            return (yield from self._rehearsing(workflow, run_id, overrides))
        while True:
            flow = execute.resume(
                self._services, workflow, run_id, answers=how.answers, overrides=overrides,
                changed=how.changed,
            )  # fmt: skip
            try:
                error = _unless_diverged(run_id, (yield from flow))
                error = yield from self._going_on(workflow, run_id, error, how.changed)
                return Run(self, run_id, error)
            except ReplayDiverged as diverged:
                if how.on_divergence != "rerun" and how.changed != ACCEPT:
                    raise
                where = diverged.details
            yield Do(partial(self._accept, where.get("of", run_id), where["address"]))

    def _going_on(
        self,
        workflow: Workflow,
        run_id: str,
        error: BaseException | None,
        changed: str | None,
    ) -> Flow[BaseException | None]:
        """Go on for as long as something has come by the time that a run was suspended."""
        while self._more_has_come(run_id):
            error = _unless_diverged(
                run_id,
                (yield from execute.resume(self._services, workflow, run_id, changed=changed)),
            )
        return error

    def _prepare(self, run_id: str, how: _How) -> Workflow | None:
        """The workflow with which to go on; None if there is nothing to do."""
        found = self._prepare_resume(run_id, how)
        if how.mode == "republish":
            republish(self._services, run_id)
        return found

    def _prepare_resume(self, run_id: str, how: _How) -> Workflow | None:
        if how.mode not in MODES:
            raise InvalidCall(f"mode is one of {', '.join(MODES)}, not {how.mode!r:.60}")
        _check_changed(how.changed)
        if how.on_divergence not in ("raise", "rerun"):
            raise InvalidCall(f"on_divergence is 'raise' or 'rerun', not {how.on_divergence!r:.60}")
        if how.answers is not None and not isinstance(how.answers, Mapping):
            raise InvalidCall("answers maps ids of prompts, or addresses, to answers")
        if how.from_address is not None and not isinstance(how.from_address, str):
            raise InvalidCall(f"from_address is the address of a step, not {how.from_address!r:.60}")
        check_overrides(how.overrides)
        check_limits(how.limits)
        run = self._known(run_id)
        if run.workflow is None:
            raise InvalidCall(
                f"run {run_id!r} is a history kept by hand: there is no workflow to resume", run=run_id
            )
        execute.refuse_if_running(self._services, run)
        facts = facts_of(run)
        found = workflow_of(how.workflow or run.workflow)
        self._settle_overrides(run, how.overrides)
        if how.mode == "validate":
            return found
        code.compare(run, found, self._context.reader(run), facts, how.changed or found.changed, warns=False)
        if how.answers:
            mail.check_answers(self._context, run, how.answers)
        if how.limits is not None and run.status not in ENDED:
            run = mail.limit(self._context, run_id, how.limits, found.limits)
        if facts.undoing is not None:
            undo.go_on(self._services, self.history(run_id), run)
            self._end_parts(run, None)
        elif how.from_address is not None:
            self._back_before(run_id, how.from_address)
        elif run.status == "completed":
            return None
        elif run.status == "cancelled":
            raise InvalidCall(
                f"run {run_id!r} was cancelled: roll it back to a version, or fork it, to go on from there",
                run=run_id,
            )
        elif (
            run.status == "suspended"
            and how.changed != ACCEPT
            and not how.answers
            and not ready(self._store, run, self._context.clock())
        ):
            return None
        self._begin_work()
        return found

    def _settle_overrides(self, run: RunRecord, given: Given | None) -> Overrides:
        """Return the functions with which a run would be executed here; `OverridesMissing` if some are missing."""
        known = self._services.overrides.get(run.id, {})
        return settled(run.id, facts_of(run).overrides, check_overrides(given), known)

    def _more_has_come(self, run_id: str) -> bool:
        """Has something come for a run while it was on its way to being suspended?"""
        if run_id not in self._services.suspended:
            return False
        self._services.suspended.discard(run_id)
        run = self._store.run(run_id)
        return (
            run is not None and run.status == "suspended" and ready(self._store, run, self._context.clock())
        )

    def _rehearsing(self, workflow: Workflow, run_id: str, overrides: Given | None) -> Flow[Run]:
        line = Line(self._context, run_id)
        head = yield Do(line.fresh_head)
        functions = self._settle_overrides(head.run, overrides)
        record = Record(self._context.reader(head.run))
        yield Do(partial(record.load, head.run.head, facts_of(head.run).failed))
        session = Session(self._services, workflow, line, head, record, overrides=functions)
        session.rehearsal = rehearsal = Rehearsal()
        args, kwargs = record.given()
        yield from execute.rehearse(session, tuple(args), kwargs)
        return Run(self, run_id, differences=tuple(rehearsal.differences))

    def _back_before(self, run_id: str, address: str, reason: str | None = None) -> None:
        """Roll back to before a step was run; drop what the run waits for at the address."""
        run = self._known(run_id)
        reason = reason or f"again from {address}"
        record = Record(self._context.reader(run)).load(run.head)
        if address in record.steps or not self._drop_wait(run, address, reason):
            self._roll_back(run, record.before(address), reason, None)

    def _accept(self, run_id: str, address: str) -> None:
        """Drop what is recorded from a step on, or a wait, because the code does not fit it any more."""
        reason = f"changed code was accepted: dropped from {address} on"
        if not self._drop_wait(self._known(run_id), address, reason):
            self._back_before(run_id, address, reason)

    def _drop_wait(self, run: RunRecord, address: str, reason: str) -> bool:
        """Drop what a run waits for at an address; False if it waits for nothing there."""
        wait = facts_of(run).wait_at(address)
        if wait is None or not mail.drop_wait(self._context, run, address):
            return False
        if wait.kind == "run":
            # Nothing waits for that child any more; on a new timeline, its call starts another.
            self.cancel(wait.name, reason=reason)
            self._roll_back(self._known(run.id), run.head, reason, None)
        return True

    def _roll_back(
        self, run: RunRecord, to: int | str | Version, reason: str | None, actor: str | None
    ) -> None:
        undo.rollback(self._services, self.history(run.id), to, reason=reason, actor=actor)
        self._end_parts(run, actor)

    def _end_parts(self, run: RunRecord, actor: str | None) -> None:
        """Cancel the children that only an abandoned timeline had under way."""
        kept = set(carried_over(self._services, self._known(run.id)).values())
        for child in list(every_run(self._store, parent=run.key, statuses=LIVE)):
            if child.id in kept:
                continue
            self.cancel(child.id, reason="the run that it is a part of was rolled back", actor=actor)


def _drive(workflow: Workflow, flow: Flow[T]) -> T:
    if not workflow.asynchronous:
        return drive(flow)
    import asyncio

    return asyncio.run(adrive(flow))


async def _adrive(workflow: Workflow, flow: Flow[T]) -> T:
    if workflow.asynchronous:
        return await adrive(flow)
    import asyncio

    return await asyncio.to_thread(drive, flow)


def _unless_diverged(run_id: str, error: BaseException | None) -> BaseException | None:
    """The error that a run ended with. Raises if it has not ended, because the code does not fit its record."""
    if isinstance(error, ReplayDiverged) and error.details.get("run") == run_id:
        raise error
    return error


def _check_changed(changed: str | None) -> None:
    known = (*CHANGED, ACCEPT)
    if changed is not None and changed not in known:
        raise InvalidCall(f"changed is one of {', '.join(known)}, not {changed!r:.60}")
