"""The step machine: what happens when code in a run calls a step, from replay to commit.

It does no I/O: it yields requests that a driver carries out (see `drive`).

Invariant: a step that is recorded is not run; a step that returned is recorded, with all that it changed in the
state, in one commit; an attempt that failed has changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import Any

from holdfast.errors import (
    CommitUnknown,
    HoldfastError,
    InvalidCall,
    LeaseLost,
    LimitExceeded,
    ReplayDiverged,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.history.arguments import described, differences, is_incomplete
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.reader import Head
from holdfast.runtime import breaker
from holdfast.runtime.arguments import Captured, describe_opaque
from holdfast.runtime.awaitable import refuse_as_argument, refuse_behind_wait
from holdfast.runtime.boundary import Halt
from holdfast.runtime.definition import Step, Workflow
from holdfast.runtime.drive import (
    Call,
    Do,
    Flow,
    Rest,
    carry,
    error_of,
    is_cancellation,
    is_interrupt,
    raise_unchanged,
)
from holdfast.runtime.expected import stored_path
from holdfast.runtime.failures import Failure
from holdfast.runtime.limits import Ledger, amounts, binds, count_replayed, innermost
from holdfast.runtime.policy import Retry, asked_delay
from holdfast.runtime.record import Entry
from holdfast.runtime.result_order import BeforeLive, InOrder
from holdfast.runtime.scope import Frame
from holdfast.runtime.session import Session
from holdfast.runtime.view import Seen, View, is_same
from holdfast.tree.codec import encode, to_bytes
from holdfast.tree.draft import DraftDict, DraftList
from holdfast.tree.fold import Folder, Redactor
from holdfast.tree.frozen import FrozenDict, FrozenList, thaw
from holdfast.tree.values import NATIVE

#: Seconds that code has to cancel a call that it abandoned before, beyond twice the time that it took then.
_CANCELLING = 10.0
#: Containers that are frozen, or drafts.
_OURS = (DraftDict, DraftList, FrozenDict, FrozenList)


def step(
    session: Session,
    frame: Frame,
    definition: Step,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: Seen | Head,
) -> Flow[Any]:
    """A call of a step, which starts from the state that its caller saw when it called."""
    if frame.home is None:
        return _step(session, frame, definition, address, args, kwargs, start, frame.view)
    return _step_of_task(session, frame, definition, address, args, kwargs, start)


def _step_of_task(
    session: Session,
    frame: Frame,
    definition: Step,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: Seen | Head,
) -> Flow[Any]:
    driver = frame.driver()
    view = driver.view
    if is_same(start, view.now()):
        return (yield from _step(session, frame, definition, address, args, kwargs, start, view))
    # Its caller, or the task that waits for it, has done other things since.
    view = view.branch(start)
    try:
        return (yield from _step(session, frame, definition, address, args, kwargs, start, view))
    finally:
        newer = view.join()
        if newer is not None and driver.owner is not None:
            driver.owner.newer = newer


def _step(
    session: Session,
    frame: Frame,
    definition: Step,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: Seen | Head,
    view: View,
) -> Flow[Any]:
    session.check(frame)
    digest, size = measure(args, kwargs, session.services.context.redact)
    entry = session.record.steps.get(address)
    if entry is not None:
        return (yield from replay(session, frame, entry, definition, digest, args, kwargs, view=view))
    if session.unawaited_waits:
        refuse_behind_wait(session.unawaited_waits, frame, definition.name)
    if session.replay.frames or session.order is not None:
        # Nothing is recorded otherwise: there is nothing to wait for, or to contradict.
        yield from before_live(session, frame, address)
    ledger = innermost(session)
    if ledger is not None and session.rehearsal is None:
        admit(session, ledger, definition.name, address, digest)
    session.begin(address, frame)
    head = None
    try:
        if session.failures or session.cancelled or session.rehearsal is not None:
            yield from session.go_live(address)
        # Before it runs: a step may change its arguments. A compensation needs all of them.
        given = session.capture(definition, args, kwargs, size, strict=definition.compensate is not None)
        attempt, value = yield from _attempts(
            session, frame, definition, address, args, kwargs, digest, given, start, view
        )
        if isinstance(value, CoroutineType):
            value.close()
            raise InvalidCall(
                f"step {definition.name!r} gave a coroutine: something asynchronous in it was called without await"
            )
        facts = VersionFacts(definition.name, value, kind="step", meta=attempt.notes)
        facts.more = _more(definition, attempt, digest, session.services.context.clock())
        ran = session.unnamed(definition)
        if ran is not None:
            facts.more["ran"] = ran
        if address in session.facts.retried:
            session.facts.retried = {
                name: number for name, number in session.facts.retried.items() if name != address
            }
            session.keep()
        try:
            attempt.refuse_if_over()
            if attempt.newer is not None and attempt.held is not None and not view.follows:
                attempt.rebase()
            if session.order is None:
                turn, head = None, (yield from session.commit(facts, frame=attempt, view=view, input=given))
            else:
                head, turn = yield from commit(session, facts, frame=attempt, view=view, input=given)
        except CommitUnknown:
            # Perhaps it is recorded: this execution, which does not know, must not say otherwise.
            session.over = True
            raise
        except (LeaseLost, StoreBusy, StoreUnavailable):
            raise
        except Exception as error:
            session.lose_attempt(attempt)
            failure = Failure(
                definition.name,
                address,
                digest,
                error,
                attempt.attempt,
                given=given,
                ran=ran,
                spent=attempt.spent,
            )
            session.failures.add(failure)
            raise
        finally:
            attempt.over = True
        if ledger is not None:
            ledger.spend(*amounts(attempt.notes))
    finally:
        session.end(address)
        if ledger is not None and head is None:
            ledger.give_back()
    session.recorded(frame, view, head, facts)
    if turn is not None:
        yield from in_order(turn)
    return plain(value)


def before_live(session: Session, frame: Frame, address: str) -> Flow[None]:
    """A call of a step or child that is not recorded is about to start: wait for those that are, and refuse it if the
    code was beyond it. A call that the code had abandoned is not started again: the code cancels it again."""
    seconds = session.abandoned_after(address)
    after = None if seconds is None else session.replay.recorded_after(frame)
    if seconds is not None and after is not None:
        if frame.home is not None:
            yield Rest(2 * seconds + _CANCELLING, session.stop, session.look)
            session.check(frame)
        session.replay.refuse_abandoned(frame, address, seconds, after)
    if session.order is not None and session.order.is_replaying:
        yield BeforeLive(session.order)
        session.check(frame)
    session.replay.refuse_beyond(frame, address)


def replay(
    session: Session,
    frame: Frame,
    entry: Entry,
    definition: Step | Workflow | None,
    digest: bytes,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    view: View | None = None,
) -> Flow[Any]:
    """Pass a recorded step without running it: what it gave, or how it failed."""
    view = frame.driver().view if view is None else view
    if session.rehearsal is not None and not session.rehearsal.strict:
        yield from session.rehearsal.beside(session, entry, definition, digest, args, kwargs, view)
    elif definition is not None and is_other(session, entry, digest, args, kwargs):
        refused: ReplayDiverged | None = yield Do(partial(diverged, session, entry, definition, args, kwargs))
        if refused is not None:
            if frame.owner is not None and frame.owner.attempt > 1:
                # Another attempt recorded it: this one fails.
                raise refused
            session.replay.refuse(refused, frame)
    turn = None
    if session.order is None:
        session.returned.append(entry.address)
    else:
        turn = session.order.turn_at(entry)
    try:
        if turn is not None:
            yield turn
            if session.facts.wish or session.halted:
                session.check(frame)
        if not session.record.at_hand(entry):
            yield Do(partial(session.record.fetch, entry))
        resolve = definition.on_conflict if isinstance(definition, Step) else None
        session.replayed(frame, view, entry, resolve)
        count_replayed(session, entry)
        if entry.failed:
            error = session.record.error(entry)
            failure = Failure(entry.version.step or "", entry.address, entry.args, error, 1, entry.number)
            session.failures.recorded(failure)
            raise_unchanged(carry(error))
        value, frozen = session.record.result(entry)
        session.stored.note_result(value, frozen)
        return value
    finally:
        if turn is not None:
            turn.end()


def commit(session: Session, facts: VersionFacts, **how: Any) -> Flow[tuple[Head, InOrder | None]]:
    """Record a result; gives its version, and the turn to return it to code (see `result_order`), if it needs one."""
    order = session.order
    turn = None if order is None else order.reserve()
    if turn is not None:
        facts.more["after"] = list(turn.place)
    try:
        head = yield from session.commit(facts, **how)
    except BaseException:
        if turn is not None:
            turn.cancel()
        raise
    if turn is None and order is not None:
        turn = order.turn_after(head.version.number)
    return head, turn


def in_order(turn: InOrder | None) -> Flow[tuple[int, int] | None]:
    """Wait for the turn to return a result to code, or to raise a failure; gives its place in the order."""
    if turn is None:
        return None
    try:
        yield turn
    except BaseException:
        turn.cancel()
        raise
    turn.end()
    return turn.place


def _attempts(
    session: Session,
    frame: Frame,
    definition: Step,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    digest: bytes,
    given: Captured,
    start: Seen | Head,
    view: View,
) -> Flow[tuple[Frame, Any]]:
    """Try until it works or there is no more trying; gives the attempt that worked and what it returned."""
    services = session.services
    clock = services.context.clock
    function = _implementation(session, definition)
    began = clock()
    number = 0
    #: What failed attempts have noted. Steps that they called are replayed, and count again then.
    lost: dict[str, Any] = {}
    while True:
        number += 1
        attempt = Frame(session, address, asynchronous=definition.asynchronous, attempt=number, view=view)
        attempt.spent = lost or None
        attempt.within = frame.owner
        attempt.path = session.replay.paths.get(address)
        if number > 1 and view.follows and session.has_only_been_edited(address, start):
            # Another may have put the state right meanwhile.
            start = view.now()
        attempt.base = session.start_of(address, view, start)
        attempt.resolve = definition.on_conflict
        attempt.began = session.beat = began if number == 1 else clock()
        attempt.silent, attempt.timeout = definition.silent, definition.timeout
        attempt.sign(attempt.began)
        session.active[address] = attempt
        services.publisher.tell(session.id, "step.started", definition.name, address=address, attempt=number)
        timeout = session.time_for(definition.timeout)
        try:
            if definition.breaker is not None:
                yield from breaker.admit(services, definition)
            value = yield Call(function, args, kwargs, attempt, timeout)
            session.check_caught(attempt)
            if session.unawaited:
                session.refuse_unawaited(attempt)
            attempt.finish()
            session.check_limits_within(attempt)
        except (Halt, GeneratorExit):
            # A GeneratorExit of user code is carried: this one closes the flow.
            session.lose_attempt(attempt)
            raise
        except BaseException as raised:
            lost = _sums(lost, session.lose_attempt(attempt))
            error = error_of(raised)
            if isinstance(error, LeaseLost) or is_interrupt(error):
                if is_cancellation(error):
                    session.cancelled[address] = clock() - began
                raise
            if definition.breaker is not None:
                yield from breaker.note(services, definition, error)
            session.attempt_failed(address)
            session.check(attempt)
            delay = wait_before_next(
                definition.retry, error, number, (clock() - began) / 1e6, services.chance
            )
            if (
                delay is not None
                and session.deadline is not None
                and clock() + delay * 1e6 > session.deadline
            ):
                delay = None
            if delay is None:
                after = None
                if session.order is not None:
                    after = yield from in_order(session.order.turn_of_failure())
                failure = Failure(definition.name, address, digest, error, number, given=given, after=after)
                session.failures.add(failure._replace(spent=attempt.spent, ran=session.unnamed(definition)))
                raise
            ledger = innermost(session)
            if ledger is not None:
                admit(session, ledger, definition.name, address, digest, number, error)
            session.let_go(error)
            session.note(
                "step.retried", step=definition.name, address=address, attempt=number,
                error=f"{type(error).__name__}: {error}"[:1000], delay=delay,
            )  # fmt: skip
            # Written at once: the wait may be long, and whoever watches should know of it.
            yield from session.save()
            yield Rest(delay, session.stop, session.look)
            session.check(attempt)
        else:
            if definition.breaker is not None:
                yield from breaker.note(services, definition, None)
            return attempt, value


def admit(
    session: Session,
    ledger: Ledger,
    name: str,
    address: str,
    digest: bytes,
    attempts: int = 0,
    cause: BaseException | None = None,
) -> None:
    """Let a step, or a child, start, or, after a failed attempt, be tried again; `LimitExceeded` if a limit is used up.
    Of a block, that is a failure like any other, and is recorded if the code around the block handles it."""
    try:
        ledger.admit(session, address, 0 if attempts else 1)
    except LimitExceeded as error:
        if not binds(session, error):
            session.failures.add(Failure(name, address, digest, error, attempts))
        raise error from cause


def wait_before_next(
    retry: Retry | None, error: BaseException, attempt: int, spent: float, chance: Callable[[], float]
) -> float | None:
    """Seconds until the next attempt; None if there is to be none."""
    if retry is None or attempt >= retry.attempts or not retry.wants(error):
        return None
    delay = retry.delay_before(attempt + 1, chance(), asked_delay(error))
    return delay if retry.allows(spent, delay) else None


def is_other(
    session: Session, entry: Entry, digest: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Is a recorded step called with other arguments now? If they were recorded while other patterns were redacted, or
    by a version of Holdfast that knew less of them, the digest is compared with those, too."""
    if not entry.args or not digest or entry.args == digest:
        return False
    secrets = session.services.context.secrets
    return not any(
        entry.args in (digest_of(args, kwargs, redact), _former_digest(args, kwargs, redact))
        for redact in (secrets.redactor, *secrets.former)
    )


def diverged(
    session: Session,
    entry: Entry,
    definition: Step | Workflow,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ReplayDiverged | None:
    """Return the refusal to replay a step that is called with other arguments now, which names those that differ; None
    if each parameter has the same value: some are passed by name now that were passed by position, or vice versa."""
    recorded = session.record.call(entry)
    if recorded is None:
        found, difference = [], "they were not stored with that version"
    else:
        now = session.capture(definition, args, kwargs).call
        found = differences(recorded, now)
        if not found and not is_incomplete(recorded):
            return None
        difference = described(found) or "the difference is in a value that is not stored, or redacted"
    return ReplayDiverged(
        f"step {entry.address!r} was recorded (version {entry.number}) with other arguments ({difference}): the "
        f"workflow's code or what it depends on has changed; resume with from_address={entry.address!r} to run it "
        "and all after it anew",
        address=entry.address,
        version=entry.number,
        recorded={where: was for where, was, _ in found},
        now={where: now for where, _, now in found},
    )


def digest_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], redact: Redactor | None = None) -> bytes:
    """The same for the same arguments, as they would be stored. Those that cannot be stored count by their type, and by
    their parts if they are enums, records or subclasses of built-in types."""
    return measure(args, kwargs, redact)[0]


def _former_digest(args: tuple[Any, ...], kwargs: Mapping[str, Any], redact: Redactor | None) -> bytes:
    """The digest that earlier versions of Holdfast recorded: arguments that cannot be stored count by their type."""
    return measure(args, kwargs, redact, _type_name)[0]


def measure(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    redact: Redactor | None = None,
    describe: Callable[[Any, Redactor | None], Any] = describe_opaque,
) -> tuple[bytes, int]:
    """The digest of arguments, and about how many bytes they take."""
    if redact is None and not kwargs and NATIVE.issuperset(map(type, args)):
        data = to_bytes([list(args), []])
        return sha256(data).digest()[:8], len(data)
    given = [list(args), sorted(kwargs.items())]
    try:
        data = encode(given if redact is None else Folder(None, redact).fold([list(args), dict(given[1])]))
    except HoldfastError:
        refuse_as_argument(given)
        data = encode(
            [
                [_storable(value, describe, redact) for value in args],
                [[name, _storable(kwargs[name], describe, redact)] for name in sorted(kwargs)],
            ]
        )
    return sha256(data).digest()[:8], len(data)


def plain(value: Any) -> Any:
    """What a caller gets of a step's result: nothing that is frozen, or a draft that is over."""
    return thaw(value) if _holds_ours(value) else value


def _implementation(session: Session, definition: Step) -> Callable[..., Any]:
    """The step's function, or the one that takes its place in this run."""
    function = session.overrides.get(definition.name)
    if function is None:
        return definition.function
    if iscoroutinefunction(function) and not definition.asynchronous:
        raise InvalidCall(
            f"the override of step {definition.name!r} is asynchronous and the step is not: make it a plain def"
        )
    return function


def _holds_ours(value: Any) -> bool:
    kind = type(value)
    if kind is dict or kind is list or kind is tuple:
        items = value.values() if kind is dict else value
        return not NATIVE.issuperset(map(type, items)) and any(map(_holds_ours, items))
    return isinstance(value, _OURS)


def _storable(value: Any, describe: Callable[[Any, Redactor | None], Any], redact: Redactor | None) -> Any:
    try:
        encode(value)
    except HoldfastError:
        return describe(value, redact)
    return value


def _type_name(value: Any, _redact: Redactor | None) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _more(definition: Step, attempt: Frame, digest: bytes, now: int) -> dict[str, Any]:
    more: dict[str, Any] = {"args": digest, "took": now - attempt.began}
    if attempt.path is not None:
        more["call"] = stored_path(attempt.path)
    if attempt.address != definition.name:
        more["address"] = attempt.address
    if attempt.attempt > 1:
        more["attempt"] = attempt.attempt
    if definition.compensate is not None:
        more["undo"] = True
    if attempt.notes or attempt.spent:
        cost, tokens = amounts(attempt.notes)
        attempt.count({"cost": cost, "tokens": tokens})
        more |= spent_in(attempt.spent)
    return more


def _sums(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def spent_in(spent: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a step has spent, as its version tells it; nothing if it was nothing."""
    found = {name: value for name, value in (spent or {}).items() if value}
    return {"spent": found} if found else {}
