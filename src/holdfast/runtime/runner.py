"""Running workflows on an open store: the half of `Holdfast` that knows code.

Invariant: a method that fails has left the run as it found it, or its status says what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import InvalidCall, ReplayDiverged
from holdfast.history.advance import Line
from holdfast.history.context import Context
from holdfast.history.version import Version
from holdfast.model.names import check_run_id
from holdfast.model.records import LIVE, RunRecord
from holdfast.runtime import code, execute, mail, undo
from holdfast.runtime.definition import CHANGED, Workflow, step_named, workflow_of
from holdfast.runtime.drive import Do, Flow, adrive, drive
from holdfast.runtime.outside import Outside, check_texts
from holdfast.runtime.record import Record
from holdfast.runtime.rehearsal import Rehearsal
from holdfast.runtime.run import Run
from holdfast.runtime.scope import in_event_loop
from holdfast.runtime.services import LEASE, Services
from holdfast.runtime.session import Session
from holdfast.runtime.triggers import Triggers
from holdfast.runtime.waits import facts_of, ready
from holdfast.runtime.watch import Watch, check_watch

#: Arguments that are for `run` and not for the workflow.
_OWN = ("run_id", "tags", "state", "note", "actor", "overrides", "watch", "workflow")
MODES = ("normal", "validate", "republish")
Overrides = Mapping[str, Callable[..., Any]]
T = TypeVar("T")


class _How(NamedTuple):
    """The arguments of `resume`."""

    from_address: str | None
    mode: str
    answers: Mapping[str, Any] | None
    overrides: Overrides | None
    changed: str | None
    on_divergence: str
    workflow: Any


class Runner(Outside):
    """Runs workflows."""

    def __init__(self, context: Context, lease: int = LEASE) -> None:
        self._services = Services(context, lease=lease)
        self._triggers = Triggers(self)
        #: Steps that runs of this process run otherwise, by run.
        self._overrides: dict[str, Overrides] = {}
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
        overrides: Overrides | None = None,
        watch: Watch | None = None,
        **kwargs: Any,
    ) -> Run:
        """Run a workflow until it has ended or waits. It begins with `state`, and is called with all other arguments.
        `watch` is for this run instead of what its workflow says.

        A workflow that fails does not raise here: `status` and `error` of the run say so, `result` raises it.
        """
        found, flow, name = self._start(
            workflow, args, kwargs, run_id, tags, state, note, actor, overrides, watch
        )
        return Run(self, name, _drive(found, flow))

    async def arun(
        self,
        workflow: Any,
        *args: Any,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        state: Any = None,
        note: str | None = None,
        actor: str | None = None,
        overrides: Overrides | None = None,
        watch: Watch | None = None,
        **kwargs: Any,
    ) -> Run:
        """As `run`, in an event loop. Runs that are awaited together share commits."""
        found, flow, name = self._start(
            workflow, args, kwargs, run_id, tags, state, note, actor, overrides, watch
        )
        return Run(self, name, await _adrive(found, flow))

    def resume(
        self,
        run_id: str,
        *,
        from_address: str | None = None,
        mode: str = "normal",
        answers: Mapping[str, Any] | None = None,
        overrides: Overrides | None = None,
        changed: str | None = None,
        on_divergence: str = "raise",
        workflow: Any = None,
    ) -> Run:
        """Go on from the head: steps that are recorded are not run again.

        `from_address` runs that step, and all that came after it, anew. `answers` answers prompts, by id or address.
        `mode` is normal, validate (really runs the recorded steps beside the record; `differences` of the run tells
        what was otherwise; nothing is changed) or republish (tells subscribers of the recorded steps again).
        `changed` says what to do if the workflow's code has changed: warn, refuse or allow. `on_divergence="rerun"`
        runs anew from a step that is called with other arguments than it was recorded with."""
        how = _How(from_address, mode, answers, overrides, changed, on_divergence, workflow)
        self._check_loop_of(run_id, workflow)
        found = self._prepare(run_id, how)
        return self.get(run_id) if found is None else _drive(found, self._resuming(found, run_id, how))

    async def aresume(
        self,
        run_id: str,
        *,
        from_address: str | None = None,
        mode: str = "normal",
        answers: Mapping[str, Any] | None = None,
        overrides: Overrides | None = None,
        changed: str | None = None,
        on_divergence: str = "raise",
        workflow: Any = None,
    ) -> Run:
        """As `resume`, in an event loop."""
        import asyncio

        how = _How(from_address, mode, answers, overrides, changed, on_divergence, workflow)
        found = await asyncio.to_thread(self._prepare, run_id, how)
        return self.get(run_id) if found is None else await _adrive(found, self._resuming(found, run_id, how))

    # Going back

    def rollback(
        self,
        run_id: str,
        to: int | str | Version,
        *,
        resume: bool = True,
        reason: str | None = None,
        actor: str | None = None,
        overrides: Overrides | None = None,
        changed: str | None = None,
    ) -> Run:
        """Undo what the steps after a version did to the world (those that have a compensation, newest first), make
        it the head on a new timeline, and go on from there. Nothing is deleted. `changed` is as for `resume`: where
        going on is refused, nothing is rolled back."""
        run = self._known(run_id)
        check_texts(reason, actor)
        _check_changed(changed)
        overrides = override_functions(overrides)
        if resume and run.workflow is not None:
            _check_loop(workflow_of(run.workflow))
            self._check_code(run, changed=changed)
        self._roll_back(run, to, reason, actor)
        if resume and run.workflow is not None:
            return self.resume(run_id, overrides=overrides, changed=changed)
        return Run(self, run_id)

    # How it works

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
        overrides: Overrides | None,
        watch: Watch | None,
    ) -> tuple[Workflow, Flow[BaseException | None], str]:
        found = workflow_of(workflow)
        try:
            found.signature.bind(*args, **kwargs)
        except TypeError as error:
            taken = [name for name in _OWN if name in found.signature.parameters]
            hint = f" ({', '.join(taken)}: hf.run has arguments of that name itself)" if taken else ""
            raise InvalidCall(f"workflow {found.name!r} cannot be called like this: {error}{hint}") from None
        self._triggers.listen()
        name = execute.new_id(found) if run_id is None else check_run_id(run_id)
        functions = override_functions(overrides)
        flow = execute.start(
            self._services, found, name, args, kwargs, state=state, tags=tags, note=note, actor=actor,
            overrides=functions, watch=check_watch(watch),
        )  # fmt: skip
        return found, self._running(found, name, flow, functions), name

    def _running(
        self, workflow: Workflow, run_id: str, flow: Flow[BaseException | None], overrides: Overrides | None
    ) -> Flow[BaseException | None]:
        error = yield from flow
        self._remember(run_id, overrides)
        return (yield from self._going_on(workflow, run_id, error, overrides, None))

    def _resuming(self, workflow: Workflow, run_id: str, how: _How) -> Flow[Run]:
        overrides = override_functions(how.overrides) or self._overrides.get(run_id)
        if how.mode == "validate":
            return (yield from self._rehearsing(workflow, run_id, overrides))
        while True:
            flow = execute.resume(
                self._services, workflow, run_id, answers=how.answers, overrides=overrides,
                republish=how.mode == "republish", changed=how.changed,
            )  # fmt: skip
            error = yield from flow
            error = yield from self._going_on(workflow, run_id, error, overrides, how.changed)
            if how.on_divergence != "rerun" or not isinstance(error, ReplayDiverged):
                return Run(self, run_id, error)
            yield Do(partial(self._back_before, run_id, error.details["address"]))

    def _going_on(
        self,
        workflow: Workflow,
        run_id: str,
        error: BaseException | None,
        overrides: Overrides | None,
        changed: str | None,
    ) -> Flow[BaseException | None]:
        """Go on for as long as something has come by the time that a run was suspended."""
        while self._more_has_come(run_id):
            error = yield from execute.resume(
                self._services, workflow, run_id, overrides=overrides, changed=changed
            )
        return error

    def _prepare(self, run_id: str, how: _How) -> Workflow | None:
        """The workflow with which to go on; None if there is nothing to do."""
        if how.mode not in MODES:
            raise InvalidCall(f"mode is one of {', '.join(MODES)}, not {how.mode!r:.60}")
        _check_changed(how.changed)
        if how.on_divergence not in ("raise", "rerun"):
            raise InvalidCall(f"on_divergence is 'raise' or 'rerun', not {how.on_divergence!r:.60}")
        if how.answers is not None and not isinstance(how.answers, Mapping):
            raise InvalidCall("answers maps ids of prompts, or addresses, to answers")
        if how.from_address is not None and not isinstance(how.from_address, str):
            raise InvalidCall(f"from_address is the address of a step, not {how.from_address!r:.60}")
        override_functions(how.overrides)
        run = self._known(run_id)
        if run.workflow is None:
            raise InvalidCall(
                f"run {run_id!r} is a history kept by hand: there is no workflow to resume", run=run_id
            )
        execute.refuse_if_running(self._services, run)
        facts = facts_of(run)
        found = workflow_of(how.workflow or run.workflow)
        if how.mode == "validate":
            return found
        code.compare(run, found, self._context.reader(run), facts, how.changed or found.changed, warns=False)
        if how.answers:
            mail.check_answers(self._context, run, how.answers)
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
            and not how.answers
            and not ready(self._store, run, self._context.clock())
        ):
            return None
        self._triggers.listen()
        return found

    def _remember(self, run_id: str, overrides: Overrides | None) -> None:
        """Steps that a run of this process has otherwise: it has them when it is resumed here, too."""
        self._overrides.pop(run_id, None)
        functions = override_functions(overrides)
        if functions:
            self._overrides[run_id] = functions

    def _check_loop_of(self, run_id: str, workflow: Any) -> None:
        if in_event_loop():
            name = self._known(run_id).workflow
            if workflow is not None or name is not None:
                _check_loop(workflow_of(workflow or name))

    def _more_has_come(self, run_id: str) -> bool:
        """Has something come for a run while it was on its way to being suspended?"""
        if run_id not in self._services.suspended:
            return False
        self._services.suspended.discard(run_id)
        run = self._store.run(run_id)
        return (
            run is not None and run.status == "suspended" and ready(self._store, run, self._context.clock())
        )

    def _rehearsing(self, workflow: Workflow, run_id: str, overrides: Overrides | None) -> Flow[Run]:
        line = Line(self._context, run_id)
        head = yield Do(line.fresh_head)
        record = Record(self._context.reader(head.run))
        yield Do(partial(record.load, head.run.head, facts_of(head.run).failed))
        session = Session(self._services, workflow, line, head, record, overrides=overrides)
        session.rehearsal = rehearsal = Rehearsal()
        args, kwargs = record.given()
        yield from execute.rehearse(session, tuple(args), kwargs)
        return Run(self, run_id, differences=tuple(rehearsal.differences))

    def _back_before(self, run_id: str, address: str) -> None:
        """Roll back to before a step was run."""
        run = self._known(run_id)
        to = Record(self._context.reader(run)).load(run.head).before(address)
        self._roll_back(run, to, f"again from {address}", None)

    def _roll_back(
        self, run: RunRecord, to: int | str | Version, reason: str | None, actor: str | None
    ) -> None:
        undo.rollback(self._services, self.history(run.id), to, reason=reason, actor=actor)
        self._end_parts(run, actor)

    def _end_parts(self, run: RunRecord, actor: str | None) -> None:
        """Cancel what an abandoned timeline had under way in runs of its own."""
        for child in self._store.runs(parent=run.key, statuses=LIVE, limit=1_000_000):
            self.cancel(child.id, reason="the run that it is a part of was rolled back", actor=actor)


def _drive(workflow: Workflow, flow: Flow[T]) -> T:
    if not workflow.asynchronous:
        return drive(flow)
    _check_loop(workflow)
    import asyncio

    return asyncio.run(adrive(flow))


async def _adrive(workflow: Workflow, flow: Flow[T]) -> T:
    if workflow.asynchronous:
        return await adrive(flow)
    import asyncio

    return await asyncio.to_thread(drive, flow)


def _check_loop(workflow: Workflow) -> None:
    if workflow.asynchronous and in_event_loop():
        raise InvalidCall(
            f"workflow {workflow.name!r} is asynchronous and this is an event loop: await hf.arun(…) or "
            "hf.aresume(…), after hf.rollback(…, resume=False) if it is to be rolled back"
        )


def _check_changed(changed: str | None) -> None:
    if changed is not None and changed not in CHANGED:
        raise InvalidCall(f"changed is one of {', '.join(CHANGED)}, not {changed!r:.60}")


def override_functions(overrides: Overrides | None) -> Overrides | None:
    """Other implementations of steps, by name: functions, or steps themselves."""
    if overrides is None:
        return None
    if not isinstance(overrides, Mapping) or not all(callable(each) for each in overrides.values()):
        raise InvalidCall("overrides maps names of steps to functions")
    for name in overrides:
        if step_named(name) is None:
            raise InvalidCall(f"overrides names {name!r:.60}, which is no step that this process knows")
    return {
        name: getattr(getattr(each, "holdfast", None), "function", each) for name, each in overrides.items()
    }
