"""The step machine: what happens when code in a run calls a step, from replay to commit.

It does no I/O: it yields requests that a driver carries out (see `drive`).

Invariant: a step that is recorded is not run; a step that returned is recorded, with all that it changed in the
state, in one commit; an attempt that failed has changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from inspect import iscoroutine, iscoroutinefunction, signature
from typing import Any

from holdfast.errors import (
    CommitUnknown,
    HoldfastError,
    InvalidCall,
    LeaseLost,
    ReplayDiverged,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.history.commit import Facts as VersionFacts
from holdfast.runtime import breaker
from holdfast.runtime.boundary import Halt
from holdfast.runtime.definition import Step, without_secrets
from holdfast.runtime.drive import Call, Do, Flow, Rest
from holdfast.runtime.failures import Failure
from holdfast.runtime.policy import Retry, asked_delay
from holdfast.runtime.record import Entry
from holdfast.runtime.scope import Frame
from holdfast.runtime.session import Session
from holdfast.tree.codec import encode, to_bytes
from holdfast.tree.draft import DraftDict, DraftList
from holdfast.tree.fold import Folder, Redactor
from holdfast.tree.frozen import DICTS, LISTS, thaw
from holdfast.tree.values import NATIVE

#: Containers that are frozen, or drafts.
_OURS = frozenset((DraftDict, DraftList, *DICTS, *LISTS))


def step(
    session: Session,
    frame: Frame,
    definition: Step,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flow[Any]:
    """A call of a step."""
    session.check(frame)
    digest = digest_of(args, kwargs, session.services.context.redact)
    entry = session.record.steps.get(address)
    if entry is not None:
        return (yield from replay(session, frame, entry, definition, digest, args, kwargs))
    session.begin(address, frame)
    try:
        if session.failures or session.rehearsal is not None:
            yield from session.go_live(address)
        attempt, value = yield from _attempts(session, frame, definition, address, args, kwargs, digest)
        if iscoroutine(value):
            value.close()
            raise InvalidCall(
                f"step {definition.name!r} gave a coroutine: something asynchronous in it was called without await"
            )
        facts = VersionFacts(definition.name, value, kind="step", meta=attempt.notes)
        facts.more = _more(definition, attempt, digest, session.services.context.clock())
        given = None
        if definition.compensate is not None:
            given = without_secrets(
                signature(definition.function), args, kwargs, session.services.context.redact
            )
        try:
            attempt.refuse_if_over()
            head = yield from session.commit(facts, frame=attempt, input=given)
        except CommitUnknown:
            # Perhaps it is recorded: this execution, which does not know, must not say otherwise.
            session.over = True
            raise
        except (LeaseLost, StoreBusy, StoreUnavailable):
            raise
        except Exception as error:
            session.failures.add(Failure(definition.name, address, digest, error, attempt.attempt))
            raise
        finally:
            attempt.over = True
    finally:
        session.end(address)
    session.recorded(frame, head, facts)
    return plain(value)


def replay(
    session: Session,
    frame: Frame,
    entry: Entry,
    definition: Step | None,
    digest: bytes,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flow[Any]:
    """Pass a recorded step without running it: what it gave, or how it failed."""
    if session.rehearsal is not None:
        yield from session.rehearsal.beside(session, entry, definition, digest, args, kwargs)
    else:
        compare(entry, digest)
    session.replayed(frame, entry)
    if session.republish:
        session.services.publisher.tell(
            session.id, "step.replayed", entry.version.step, address=entry.address, version=entry.number
        )
    if not session.record.at_hand(entry):
        yield Do(partial(session.record.fetch, entry))
    if entry.failed:
        error = session.record.error(entry)
        failure = Failure(entry.version.step or "", entry.address, entry.args, error, 1, entry.number)
        session.failures.recorded(failure)
        raise error
    return session.record.result(entry)


def _attempts(
    session: Session,
    frame: Frame,
    definition: Step,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    digest: bytes,
) -> Flow[tuple[Frame, Any]]:
    """Try until it works or there is no more trying; gives the attempt that worked and what it returned."""
    services = session.services
    clock = services.context.clock
    function = _implementation(session, definition)
    began = clock()
    number = 0
    while True:
        number += 1
        attempt = Frame(session, address, asynchronous=definition.asynchronous, attempt=number)
        attempt.within = frame.owner
        attempt.base = session.start_of(address)
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
        except Halt:
            attempt.over = True
            raise
        except Exception as error:
            attempt.over = True
            if isinstance(error, LeaseLost):
                raise
            if definition.breaker is not None:
                yield from breaker.note(services, definition, error)
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
                session.failures.add(Failure(definition.name, address, digest, error, number))
                raise
            session.let_go(error)
            session.note(
                "step.retried", step=definition.name, address=address, attempt=number,
                error=f"{type(error).__name__}: {error}"[:1000], delay=delay,
            )  # fmt: skip
            # Written at once: the wait may be long, and whoever watches should know of it.
            yield from session.save()
            yield Rest(delay, session.stop, session.look)
            session.check(attempt)
        except BaseException:
            attempt.over = True
            raise
        else:
            if definition.breaker is not None:
                yield from breaker.note(services, definition, None)
            return attempt, value


def wait_before_next(
    retry: Retry | None, error: BaseException, attempt: int, spent: float, chance: Callable[[], float]
) -> float | None:
    """Seconds until the next attempt; None if there is to be none."""
    if retry is None or attempt >= retry.attempts or not retry.wants(error):
        return None
    delay = retry.delay_before(attempt + 1, chance(), asked_delay(error))
    return delay if retry.allows(spent, delay) else None


def compare(entry: Entry, digest: bytes) -> None:
    """Refuse to pass a recorded step that is called with other arguments now."""
    if entry.args and digest and entry.args != digest:
        raise ReplayDiverged(
            f"step {entry.address!r} was recorded (version {entry.number}) with other arguments: digest "
            f"{entry.args.hex()} then, {digest.hex()} now; the workflow's code or what it depends on has changed: "
            f"resume with from_address={entry.address!r} to run it and all after it anew",
            address=entry.address,
            version=entry.number,
            recorded=entry.args.hex(),
            now=digest.hex(),
        )


def digest_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], redact: Redactor | None = None) -> bytes:
    """The same for the same arguments, as they would be stored. Those that cannot be count by their type."""
    if redact is None and not kwargs and NATIVE.issuperset(map(type, args)):
        return sha256(to_bytes([list(args), []])).digest()[:8]
    given = [list(args), sorted(kwargs.items())]
    try:
        data = encode(given if redact is None else Folder(None, redact).fold([list(args), dict(given[1])]))
    except HoldfastError:
        data = encode(
            [
                [_storable(value) for value in args],
                [[name, _storable(kwargs[name])] for name in sorted(kwargs)],
            ]
        )
    return sha256(data).digest()[:8]


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
    return kind in _OURS


def _storable(value: Any) -> Any:
    try:
        encode(value)
    except HoldfastError:
        return f"{type(value).__module__}.{type(value).__qualname__}"
    return value


def _more(definition: Step, attempt: Frame, digest: bytes, now: int) -> dict[str, Any]:
    more: dict[str, Any] = {"args": digest, "took": now - attempt.began}
    if attempt.address != definition.name:
        more["address"] = attempt.address
    if attempt.attempt > 1:
        more["attempt"] = attempt.attempt
    if definition.compensate is not None:
        more["undo"] = True
    return more
