"""Rolling back a run whose steps changed the world: what can be undone is undone first, newest first.

Each compensation is a step of its own, recorded like any other; which rollback is under way stands in the run's
record. So a rollback that was killed half-way goes on where it stopped.

Invariant: the head moves back only when every step after the target that has a compensation was undone, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from holdfast.errors import (
    Cancelled,
    CommitUnknown,
    CompensationFailed,
    InvalidCall,
    LeaseLost,
    NotFound,
    StaleVersion,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.event_loop import in_event_loop
from holdfast.history.advance import Line
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.commit import event
from holdfast.history.history import History
from holdfast.history.reader import Head
from holdfast.history.rollback import begin_anew, move_head
from holdfast.history.version import Version
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.runtime import machine
from holdfast.runtime.boundary import Halt
from holdfast.runtime.definition import Step, Workflow, step_named, unknown_here
from holdfast.runtime.drive import drive
from holdfast.runtime.execute import own, refuse_if_elsewhere, refuse_if_running
from holdfast.runtime.failure import pack
from holdfast.runtime.lease import is_alive
from holdfast.runtime.record import Entry, Record, lineage
from holdfast.runtime.restoring import FIRST, begun_afresh, settled
from holdfast.runtime.rewinding import Part, affected, undo_address
from holdfast.runtime.scope import Frame
from holdfast.runtime.services import Services
from holdfast.runtime.session import Session
from holdfast.runtime.turn import current_holder
from holdfast.runtime.waits import facts_of


def rollback(
    services: Services,
    history: History,
    to: Any,
    *,
    reason: str | None,
    actor: str | None,
    further: Mapping[str, Any] | None = None,
) -> Version:
    """Undo what the steps after a version did, then make it the head.

    `further` are facts that a rollback keeps in the run's record until it is finished: `then` and `due`, the run's
    status afterwards and when it wants to be looked at; `keep` and `of`, parts of the state of another version to begin
    with; `symptom` and `restores`, why and how often the monitor has done so."""
    claim = services.claim(history.id)
    try:
        return _rollback(services, history, to, reason, actor, dict(further or {}))
    finally:
        services.release(history.id, claim)


def _rollback(
    services: Services,
    history: History,
    to: Any,
    reason: str | None,
    actor: str | None,
    further: dict[str, Any],
    begun: RunRecord | None = None,
) -> Version:
    """`begun` is the run in which this rollback was under way: if another has finished it since, nothing is done."""
    while True:
        run = _record(services, history.id)
        target = history.at(to)
        if begun is not None and not _same(run, begun):
            return target
        refuse_if_elsewhere(services, run)
        _refuse_undone(services, run, target.number)
        parts = list(affected(services, run, target._record.seq))
        if not further:
            # A monitor takes a stuck run away; its children, which are stuck with it, are cancelled.
            for part in parts:
                refuse_if_running(services, part.run)
        parts = [part for part in parts if not is_alive(part.run, services.context.clock())]
        entries = to_undo(services, run, target.number, parts)
        try:
            if entries or any(part.target for part in parts):
                undoing = {"to": target.number, "reason": reason, "actor": actor, **further}
                _undo(services, run, entries, parts, undoing)
                run = _record(services, history.id)
            _move(services, run, target._record, reason, actor, further)
        except StaleVersion:
            continue
        services.publisher.wake()
        return target


def _move(
    services: Services,
    run: RunRecord,
    target: VersionRecord,
    reason: str | None,
    actor: str | None,
    further: dict[str, Any],
) -> None:
    context = services.context
    now = context.clock()
    events = settled(
        context.store, run, facts_of(run), now, choice="rollback", actor=actor, version=target.number
    )
    if "symptom" in further:
        told = {name: further.get(name) for name in ("symptom", "restores")}
        events.append(event("run.restored", now, to=target.number, timeline=run.timeline + 1, **told))
    then, due = further.get("then"), further.get("due")
    if "keep" not in further:
        move_head(context, run, target, reason=reason, actor=actor, status=then, due=due, events=events)
        return
    state = begun_afresh(context, run, further["of"], further["keep"])
    at = Head(run, target, context.reader(run).state(target.number))
    facts = VersionFacts(kind="manual", status=then or "paused", note=reason, actor=actor)
    begin_anew(context, Line(context, run.id), at, state, facts, due=due, events=events)


def go_on(services: Services, history: History, run: RunRecord, then: str | None = None) -> None:
    """Finish the rollback that is under way in a run, which has the status `then` afterwards, if nothing else was said
    when it began."""
    undoing = {**({} if then is None else {"then": then}), **(facts_of(run).undoing or {})}
    to, reason, actor = undoing.pop("to", run.head), undoing.pop("reason", None), undoing.pop("actor", None)
    claim = services.claim(history.id)
    try:
        _rollback(services, history, to, reason, actor, undoing, begun=run)
    finally:
        services.release(history.id, claim)


def _same(run: RunRecord, begun: RunRecord) -> bool:
    """Is the rollback that was under way in a run still the one that is? Whoever finishes it begins a timeline."""
    to = [(facts_of(each).undoing or {}).get("to") for each in (run, begun)]
    return run.timeline == begun.timeline and to[0] == to[1]


class Undo(NamedTuple):
    """A step that is to be compensated."""

    run: str
    entry: Entry
    definition: Step


def to_undo(services: Services, run: RunRecord, target: int, parts: Sequence[Part]) -> list[Undo]:
    """The steps of a run and of its children that a rollback must compensate, newest first, with their definitions."""
    found = []
    for run_id, entry in in_order(run, undoable(services, run, target), parts):
        definition = step_named(entry.version.step or "")
        if definition is None or definition.compensate is None:
            raise unknown_here(
                f"step {entry.address!r} of run {run_id!r} has to be undone, but its compensation is not known in this "
                "process: import the module that defines the step",
                run=run_id,
                address=entry.address,
            )
        found.append(Undo(run_id, entry, definition))
    return found


def in_order(run: RunRecord, entries: Sequence[Entry], parts: Sequence[Part]) -> list[tuple[str, Entry]]:
    """Steps of a run and of its children in the order in which they are compensated: newest first."""
    found = [(run.id, entry) for entry in entries]
    found += [(part.run.id, entry) for part in parts for entry in part.entries]
    return sorted(found, key=lambda each: -each[1].version.seq)


def undoable(services: Services, run: RunRecord, target: int) -> list[Entry]:
    """The steps after a version that have a compensation and were not undone yet, newest first."""
    reader = services.context.reader(run)
    kept = {entry.number for entry in Record(reader).load(target).steps.values()}
    record = Record(reader).load(run.head)
    found = []
    for entry in sorted(record.steps.values(), key=lambda entry: -entry.number):
        if "undo" not in entry.detail:
            continue
        if undo_address(entry) in record.steps:
            if entry.number in kept and target < record.steps[undo_address(entry)].number:
                raise InvalidCall(
                    f"step {entry.address!r} of run {run.id!r} was undone by a rollback that is under way: version "
                    f"{target} cannot be the head again; roll back to a version before {entry.number}",
                    run=run.id,
                    address=entry.address,
                )
            continue
        if entry.number not in kept:
            found.append(entry)
    return found


def refuse(services: Services, run: RunRecord, target: int) -> None:
    """Refuse a version that a run cannot be rolled back to, because of what was undone since."""
    _refuse_undone(services, run, target)
    undoable(services, run, target)


def _refuse_undone(services: Services, run: RunRecord, target: int) -> None:
    """Refuse to go back to a version that knows of effects which were undone since."""
    undone = set(facts_of(run).undone)
    if undone:
        held = sorted(undone & {number for number, _ in lineage(services.context.reader(run), target)})
        if held and facts_of(run).undoing is None:
            raise InvalidCall(
                f"version {target} of run {run.id!r} follows version {held[0]}, whose step was undone since: go back "
                f"to a version before {held[0]}",
                run=run.id,
                undone=held,
            )


def refuse_by_hand(services: Services, run: RunRecord, target: int) -> None:
    """Refuse a rollback that `History` is asked for, where more has to be done than to move the head."""
    if run.workflow is None:
        return
    refuse_if_running(services, run)
    moment = services.context.reader(run).record(target).seq
    if undoable(services, run, target) or any(
        part.entries or part.target for part in affected(services, run, moment)
    ):
        raise InvalidCall(
            f"run {run.id!r} has steps or children that a rollback must undo: use hf.rollback, which runs their "
            "compensations",
            run=run.id,
        )


def _undo(
    services: Services,
    run: RunRecord,
    entries: list[Undo],
    parts: Sequence[Part],
    undoing: dict[str, Any],
) -> None:
    line = Line(services.context, run.id)
    head = line.fresh_head()
    if head is None or head.run.revision != run.revision:
        raise StaleVersion(f"run {run.id!r} has changed meanwhile: look at it again")
    record = Record(services.context.reader(run)).load(run.head)
    facts = facts_of(run)
    facts.undoing, facts.error, facts.failed_step, facts.wish = undoing, b"", "", ""
    entry = event("run.rolling_back", services.context.clock(), **undoing)
    head = own(services, line, head, facts, entry)
    run = head.run
    nobody = Workflow(run.workflow or "", _undo, False)
    session = Session(services, nobody, line, head, record)
    services.sessions[run.id] = session
    session.hold = services.keeper.hold(run, holder=current_holder())
    try:
        with ExitStack() as stack:
            sessions = {run.id: session}
            for each in entries:
                if each.run not in sessions:
                    part = next(part for part in parts if part.run.id == each.run)
                    sessions[each.run] = stack.enter_context(_compensating(services, part, undoing))
                _undo_one(sessions[each.run], each.entry, each.definition)
        for part in reversed(parts):
            _rewind(services, part, undoing)
        tops = {part.top for part in parts if part.entries or facts_of(part.run).undone}
        done = {
            entry.number
            for entry in record.steps.values()
            if undo_address(entry) in record.steps or entry.detail.get("child") in tops
        }
        mine = {each.entry.number for each in entries if each.run == run.id}
        session.facts.undone = sorted({*facts.undone, *done, *mine})
        session.keep()
        session.note("run.compensated", steps=len(entries))
        if "then" in undoing:
            # Somebody is to go on with it, so it stays ours until the head has moved: whoever dies here is found dead.
            drive(session.save())
        else:
            drive(session.save(owner=None, until=0, status="paused"))
    except Halt as halt:
        session.facts.wish = ""
        session.keep()
        session.note(f"run.{halt.status}", reason=session.facts.reason, actor=session.facts.actor)
        drive(session.save(owner=None, until=0, status=halt.status))
        raise Cancelled(
            f"the rollback of run {run.id!r} was stopped half-way (the run is {halt.status}): resume the run, which "
            "finishes the rollback and runs the workflow again from there, or roll it back again with resume=False, "
            "which only finishes the rollback",
            run=run.id,
        ) from None
    except (StoreBusy, StoreUnavailable, CommitUnknown):
        # That says nothing about the rollback: it goes on when the store is back.
        raise
    except Exception as error:
        session.facts.error = pack(error, services.context.redact)
        session.keep()
        session.note("run.failed", error=f"{type(error).__name__}: {error}"[:1000])
        drive(session.save(owner=None, until=0, status="failed"))
        raise
    except BaseException:
        drive(session.save(owner=None, until=0))
        raise
    finally:
        services.keeper.let_go(session.hold)
        if services.sessions.get(run.id) is session:
            del services.sessions[run.id]


@contextmanager
def _compensating(services: Services, part: Part, undoing: dict[str, Any]) -> Iterator[Session]:
    """An execution of a child in which its steps are compensated. Its record says to which version it is rewound."""
    claim = services.claim(part.run.id)
    session: Session | None = None
    try:
        line = Line(services.context, part.run.id)
        head = line.fresh_head()
        if head is None or head.run.revision != part.run.revision:
            raise StaleVersion(f"run {part.run.id!r} has changed meanwhile: look at it again")
        facts = facts_of(head.run)
        own_target = {"to": part.target or FIRST, "reason": undoing["reason"], "actor": undoing["actor"]}
        facts.undoing, facts.error, facts.failed_step, facts.wish = own_target, b"", "", ""
        entry = event("run.rolling_back", services.context.clock(), **own_target)
        head = own(services, line, head, facts, entry)
        record = Record(services.context.reader(head.run)).load(head.run.head)
        session = Session(services, Workflow(head.run.workflow or "", _undo, False), line, head, record)
        services.sessions[head.run.id] = session
        session.hold = services.keeper.hold(head.run, holder=current_holder())
        try:
            yield session
        finally:
            fresh = Record(services.context.reader(session.head.run)).load(session.head.run.head)
            done = {entry.number for entry in fresh.steps.values() if undo_address(entry) in fresh.steps}
            session.facts.undone = sorted({*facts.undone, *done})
            session.keep()
            session.note("run.compensated", steps=len(part.entries))
            drive(session.save(owner=None, until=0, status="paused"))
    finally:
        if session is not None:
            services.keeper.let_go(session.hold)
            if services.sessions.get(part.run.id) is session:
                del services.sessions[part.run.id]
        services.release(part.run.id, claim)


def _rewind(services: Services, part: Part, undoing: dict[str, Any]) -> None:
    """Move the head of a child back to the version that it had, or, if its steps were compensated, to its first."""
    while True:
        run = _record(services, part.run.id)
        if not part.target and facts_of(run).undoing is None:
            return
        if run.head == part.target and facts_of(run).undoing is None:
            return
        target = services.context.reader(run).record(part.target or FIRST)
        try:
            _move(services, run, target, undoing["reason"], undoing["actor"], {})
        except StaleVersion:
            continue
        return


def _undo_one(session: Session, entry: Entry, definition: Step) -> None:
    function = definition.compensate
    assert function is not None
    result, _ = session.record.result(entry)
    args, kwargs = session.record.input(entry.number)
    given = _fitting(definition, result, args, kwargs)
    undo = Step(
        f"undo {definition.name}"[:100], _blocking(function), False, definition.retry, definition.timeout
    )
    address = undo_address(entry)
    try:
        drive(machine.step(session, Frame(session), undo, address, given[0], given[1], session.head))
    except (LeaseLost, StoreBusy, StoreUnavailable, CommitUnknown):
        raise
    except Exception as error:
        raise CompensationFailed(
            f"undoing step {entry.address!r} of run {session.id!r} failed with {type(error).__name__}: {error}; the "
            "rollback waits: mend the cause, then resume the run, which finishes the rollback and runs the workflow "
            "again from there, or roll it back again with resume=False, which only finishes the rollback",
            run=session.id,
            address=entry.address,
        ) from error


def _fitting(
    definition: Step, result: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The result, then the step's arguments, those by default too, as far as the compensation takes them."""
    with suppress(TypeError, ValueError):
        bound = inspect.signature(definition.function).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = list(bound.args), bound.kwargs
    try:
        parameters = list(inspect.signature(definition.compensate or (lambda: None)).parameters.values())
    except (TypeError, ValueError):
        return (result,), {}
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    most = None if any(each.kind is each.VAR_POSITIONAL for each in parameters) else len(places)
    given = (result, *args)[:most]
    names = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    names |= {each.name for each in places[len(given) :] if each.kind is each.POSITIONAL_OR_KEYWORD}
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return given, {name: value for name, value in kwargs.items() if anything or name in names}


def _blocking(function: Any) -> Any:
    function = getattr(getattr(function, "holdfast", None), "function", function)
    if not inspect.iscoroutinefunction(function):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        if in_event_loop():
            raise InvalidCall(
                "this compensation is asynchronous: call rollback outside the event loop, in a thread"
            )
        import asyncio

        return asyncio.run(function(*args, **kwargs))

    return call


def _record(services: Services, run_id: str) -> RunRecord:
    run = services.store.run(run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id!r}", run=run_id)
    return run
