"""Circuit breakers of a store: admit calls, count their outcomes, and let the runs that they stopped try again.

A breaker is a small value of the store, shared by all runs and processes, and changed by compare-and-set. A run that
failed because its breaker was open waits: it is suspended until its turn. The turns of the waiting runs follow each
other at a distance, so that they do not arrive together; a breaker that closes brings them forward. An index of the
waiting runs, one more small value for each, finds them.

Invariant: of many callers that want to try a step whose breaker is half open, one is admitted at a time.
Invariant: a waiting run has a due time of its own: it tries again even if the process dies that closes the breaker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.errors import BreakerOpen, CorruptStore, NotFound, StaleVersion
from holdfast.execution.failures import error_text
from holdfast.history.builder import build_event
from holdfast.model.checks import check_text
from holdfast.model.names import MAX_NOTE, short, suggest
from holdfast.model.public import BreakerSummary, when
from holdfast.model.records import ENDED, EventRecord, RunRecord
from holdfast.model.run_detail import BREAKER, Wait, detail_of, encode_detail
from holdfast.store.protocol import Append, Store
from holdfast.struct_types import resolved
from holdfast.workflow.definition import Step
from holdfast.workflow.policy import (
    Breaker,
    BreakerState,
    Retry,
    after_failure,
    after_neither,
    after_success,
    breaker_admits,
    breaker_retry_at,
    check_breaker_name,
)

if TYPE_CHECKING:
    from holdfast.execution.engine_context import EngineContext
    from holdfast.execution.execution import Execution

_PREFIX = "breaker:"
#: The index of waiting runs: those that workers execute, and those that monitors resume.
_WAITING, _WAITING_UNOWNED = "breaker_wait:q:", "breaker_wait:u:"
#: Digits of the hash of a breaker's name in the index: a name may have any length.
_DIGITS = 32
_PAGE = 100
#: Microseconds between the turns of two waiting runs: a share of the time that the breaker stays open, within bounds.
_SHARE = 20
_SHORTEST, _LONGEST = 50_000, 1_000_000
#: Between the turns of runs that wait for a breaker when it closes.
_CLOSED_GAP = 20_000
#: How far turns may lie ahead: a clock that was wrong must not close the breaker for good.
_AHEAD = 3_600_000_000
#: Characters of an error that a breaker keeps.
_SHORT_ERROR = 500


class Admission(NamedTuple):
    """A call that a breaker has let through."""

    #: The probe as which it was let through; 0 if the breaker was closed.
    probe: int
    #: The event of the change of the breaker that this made.
    event: EventRecord | None


def name_of(definition: Step) -> str:
    """Return the name of a step's breaker."""
    policy = definition.breaker
    return definition.name if policy is None or policy.name is None else policy.name


def read_breaker(engine: EngineContext, name: str) -> tuple[BreakerState, int]:
    """Return a breaker, and its revision."""
    try:
        found = engine.store.value(_PREFIX + name)
    except CorruptStore as damage:
        raise CorruptStore(
            f"the breaker {short(name)} is damaged: close it by hand, as with `holdfast breakers reset`",
            breaker=name,
            revision=damage.details.get("revision"),
        ) from damage
    if found is None:
        return BreakerState(), 0
    return msgspec.msgpack.decode(found[0], type=resolved(BreakerState)), found[1]


def admit(engine: EngineContext, definition: Step, run_id: str, *, waits: bool) -> Admission | None:
    """Admit a call of a step of a run, or raise `BreakerOpen`. With `waits`, return None while another call of this run
    is let through: its outcome decides."""
    policy, name = _policy(definition), name_of(definition)
    while True:
        state, revision = read_breaker(engine, name)
        now = engine.context.clock()
        may, after = breaker_admits(policy, state, now)
        if not may and waits and state.status == "half_open" and state.run == run_id:
            return None
        if not may:
            raise _refusal(definition, policy, state, now)
        if after is state:
            return Admission(0, None)
        after = msgspec.structs.replace(after, run=run_id)
        if _store(engine, name, after, revision):
            event = None
            if state.status == "open":
                event = build_event("breaker.half_opened", now, breaker=name, failures=state.failures)
            return Admission(after.probe, event)


def note_outcome(
    engine: EngineContext, definition: Step, admission: Admission, error: BaseException | None, run_id: str
) -> EventRecord | None:
    """Note how a call ended that was admitted; return the event of a change of the breaker."""
    policy, name = _policy(definition), name_of(definition)
    failed = error is not None and policy.counts(error)
    # A lone surrogate cannot be stored.
    text = "" if error is None else error_text(error)[:_SHORT_ERROR].encode("utf-8", "replace").decode()
    while True:
        state, revision = read_breaker(engine, name)
        now = engine.context.clock()
        if error is None:
            after = after_success(policy, state, now, admission.probe)
        elif failed:
            after = after_failure(policy, state, now, admission.probe, error=text, run=run_id)
        else:
            after = after_neither(state, admission.probe)
        if after is state:
            return None
        if _store(engine, name, after, revision):
            break
    if state.status == "half_open" and after.status != "open":
        # The next call may be let through.
        wake(engine, name, most=None if after.status == "closed" else 1)
    if after.status == state.status:
        return None
    if after.status == "open":
        return build_event("breaker.opened", now, breaker=name, failures=after.failures, error=text)
    return build_event("breaker.closed", now, breaker=name)


def summaries(engine: EngineContext) -> list[BreakerSummary]:
    """Return all breakers, by name."""
    found = []
    for entry in _names(engine.store, _PREFIX):
        name = entry[len(_PREFIX) :]
        state, revision = read_breaker(engine, name)
        if revision:
            found.append(_summary(engine, name, state))
    return found


def reset(engine: EngineContext, name: str, actor: str | None) -> BreakerSummary:
    """Close a breaker by hand, and let the runs that wait for it try again. The journal of the run whose call opened
    it, or was let through last, gets the event, if that run still exists."""
    check_breaker_name(name)
    check_text("actor", actor, MAX_NOTE)
    while True:
        try:
            state, revision = read_breaker(engine, name)
        except CorruptStore as damage:
            # It is replaced. Which run opened it is not known.
            state, revision = BreakerState("open"), damage.details["revision"]
        if not revision:
            known = [entry[len(_PREFIX) :] for entry in _names(engine.store, _PREFIX)]
            hint = suggest(name, known) or ": a breaker exists once a call of its step has failed"
            raise NotFound(f"there is no breaker {short(name)}{hint}", breaker=name)
        now = engine.context.clock()
        after = BreakerState(since=state.since if state.status == "closed" else now)
        if after == state or _store(engine, name, after, revision):
            break
    if state.status != "closed" and state.run:
        event = build_event("breaker.closed", now, breaker=name, actor=actor, by_hand=True)
        with suppress(NotFound):
            engine.context.touch(lambda: engine.context.run(state.run), [event])
    wake(engine, name)
    engine.publisher.wake()
    return _summary(engine, name, after)


# Runs that wait


def note_wait(definition: Step, error: BreakerOpen, calls: int, began: int, address: str) -> None:
    """Note on a refusal, after which a step makes no further attempt, that its run may wait: if the retry policy
    repeats such errors, and has calls and time left."""
    retry: Retry | None = definition.retry
    retry_at = error.retry_at
    if (
        retry is not None
        and retry_at is not None
        and calls < retry.attempts
        and retry.wants(error)
        and retry.allows(0, max(0, retry_at - began) / 1e6)
    ):
        error.waits = Wait(
            address=address, kind=BREAKER, name=error.details["breaker"], opened=began, number=calls
        )


def wait_of(execution: Execution, error: BaseException) -> Wait | None:
    """Return the wait with which a run is suspended instead of failing with an error; None if it fails. The caller of a
    child run waits, not the child."""
    while isinstance(error, BaseExceptionGroup):
        # Tasks of a group are cancelled together.
        others = [each for each in error.exceptions if not isinstance(each, BreakerOpen | BaseExceptionGroup)]
        if others:
            return None
        error = error.exceptions[0]
    if not isinstance(error, BreakerOpen) or error.waits is None or execution.head.run.parent is not None:
        return None
    wait: Wait = error.waits
    return msgspec.structs.replace(wait, address=execution.failures.step_of(error) or wait.address)


def join(engine: EngineContext, run: RunRecord, wait: Wait, *, owned: bool) -> Wait:
    """Add a run to those that wait for a breaker; return its wait, with its turn."""
    _enter(engine.store, _entry(wait.name, run.id, owned=owned))
    return msgspec.structs.replace(wait, due=_take_turn(engine, wait.name))


def leave(engine: EngineContext, run_id: str, wait: Wait) -> None:
    """Remove a run from those that wait for a breaker."""
    for owned in (True, False):
        _drop(engine.store, _entry(wait.name, run_id, owned=owned))


def wake_if_closed(engine: EngineContext, name: str) -> None:
    """Bring the turns forward if a breaker has closed while a run was joining those that wait."""
    if read_breaker(engine, name)[0].status == "closed":
        wake(engine, name)


def wake(engine: EngineContext, name: str, most: int | None = None) -> None:
    """Bring the turns of at most so many waiting runs forward, a short distance apart."""
    store, now, count = engine.store, engine.context.clock(), 0
    for owned in (True, False):
        prefix = _entry(name, "", owned=owned)
        changes: list[Append] = []
        for entry in _names(store, prefix):
            run = store.run(entry[len(prefix) :])
            if run is None or run.status in ENDED:
                _drop(store, entry)
                continue
            change = _brought_forward(run, name, now + count * _CLOSED_GAP)
            if change is None:
                continue
            changes.append(change)
            count += 1
            if len(changes) == _PAGE:
                store.append_many(changes)
                changes = []
            if most is not None and count >= most:
                break
        if changes:
            # One that has changed meanwhile is not waiting any more, or has its own turn.
            store.append_many(changes)
        if most is not None and count >= most:
            break
    if count:
        engine.publisher.wake()


def due_unowned(engine: EngineContext, after: str, limit: int) -> tuple[list[RunRecord], str]:
    """Return runs in no queue whose turn has come, of one page of those that wait, and where the next page starts:
    monitors resume them."""
    now, found = engine.context.clock(), []
    page = engine.store.value_names(_WAITING_UNOWNED, after=after, limit=limit)
    for entry in page:
        run = engine.store.run(entry[len(_WAITING_UNOWNED) + _DIGITS + 1 :])
        if run is None or run.status in ENDED:
            _drop(engine.store, entry)
        elif run.status == "suspended" and run.due is not None and run.due <= now:
            found.append(run)
    return found, page[-1] if len(page) == limit else ""


def _brought_forward(run: RunRecord, name: str, due: int) -> Append | None:
    """Return the change that lets a waiting run try again at a time; None if it does not wait, or comes earlier."""
    if run.status != "suspended":
        return None
    facts = detail_of(run)
    waits = [wait for wait in facts.waits if wait.kind == BREAKER and wait.name == name]
    if not waits or (waits[0].due is not None and waits[0].due <= due):
        return None
    facts.put(msgspec.structs.replace(waits[0], due=due))
    after = msgspec.structs.replace(
        run, due=facts.due(), revision=run.revision + 1, detail=encode_detail(facts)
    )
    return Append(expect=run, run=after)


def _take_turn(engine: EngineContext, name: str) -> int:
    """Return when the next waiting run is to try again."""
    while True:
        state, revision = read_breaker(engine, name)
        now = engine.context.clock()
        at = breaker_retry_at(None, state, now)
        if at is None:
            return now
        gap = min(max(state.reset // _SHARE, _SHORTEST), _LONGEST)
        turn = min(max(at, state.turn + gap if state.turn else at), at + _AHEAD)
        if _store(engine, name, msgspec.structs.replace(state, turn=turn), revision):
            return turn


def _entry(name: str, run_id: str, *, owned: bool) -> str:
    prefix = _WAITING if owned else _WAITING_UNOWNED
    return f"{prefix}{sha256(name.encode()).hexdigest()[:_DIGITS]}:{run_id}"


def _enter(store: Store, entry: str) -> None:
    with suppress(StaleVersion):
        found = store.value(entry)
        store.set_value(entry, b"1", 0 if found is None else found[1])


def _drop(store: Store, entry: str) -> None:
    found = store.value(entry)
    if found is not None:
        with suppress(StaleVersion):
            store.drop_value(entry, found[1])


def _names(store: Store, prefix: str) -> Iterator[str]:
    after = ""
    while page := store.value_names(prefix, after=after, limit=_PAGE):
        yield from page
        after = page[-1]


def _policy(definition: Step) -> Breaker:
    assert definition.breaker is not None
    return definition.breaker


def _store(engine: EngineContext, name: str, state: BreakerState, revision: int) -> bool:
    try:
        engine.store.set_value(_PREFIX + name, msgspec.msgpack.encode(state), revision)
    except StaleVersion:
        return False
    return True


def _refusal(definition: Step, policy: Breaker, state: BreakerState, now: int) -> BreakerOpen:
    name = name_of(definition)
    shared = "" if name == definition.name else f" (breaker {name!r})"
    retry_at = breaker_retry_at(policy, state, now)
    error = BreakerOpen(
        f"step {definition.name!r}{shared} failed {state.failures} times in a row and is left alone for "
        f"{(state.reset or policy.reset * 1e6) / 1e6:g} s: find out why it fails, then resume the run",
        step=definition.name,
        breaker=name,
        retry_at=None if retry_at is None else when(retry_at),
    )
    error.retry_at = retry_at
    return error


def _summary(engine: EngineContext, name: str, state: BreakerState) -> BreakerSummary:
    now = engine.context.clock()
    retry_at = breaker_retry_at(None, state, now)
    return BreakerSummary(
        name=name,
        status=state.status,
        failures=state.failures,
        since=when(state.since) if state.since else None,
        retry_at=None if retry_at is None else when(retry_at),
        error=state.error or None,
    )
