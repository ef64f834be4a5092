"""The step machine: what happens when code in a run calls a step, from replay to commit.

It does no I/O: it yields requests that a driver carries out (see `drive`).

Invariant: a step that is recorded is not run; a step that returned is recorded, with all that it changed in the
state, in one commit; an attempt that failed has changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from holdfast.errors import HoldfastError, LeaseLost, ReplayDiverged
from holdfast.history.commit import Facts as VersionFacts
from holdfast.runtime import breaker
from holdfast.runtime.definition import Step
from holdfast.runtime.drive import Call, Do, Flow, Rest
from holdfast.runtime.policy import Retry, asked_delay
from holdfast.runtime.record import Entry
from holdfast.runtime.scope import Frame
from holdfast.runtime.session import Failure, Halt, Session
from holdfast.tree.codec import encode
from holdfast.tree.draft import DraftDict, DraftList
from holdfast.tree.frozen import DICTS, LISTS, thaw

_DRAFTS = (DraftDict, DraftList)


def step(
    session: Session,
    frame: Frame,
    definition: Step,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flow[Any]:
    """A call of a step."""
    session.check()
    digest = digest_of(args, kwargs)
    entry = session.record.steps.get(address)
    if entry is not None:
        return (yield from replay(session, entry, definition, digest, args, kwargs))
    yield from session.go_live()
    function = session.overrides.get(definition.name, definition.function)
    session.begin(address, frame)
    try:
        attempt, value = yield from _attempts(session, definition, function, address, args, kwargs, digest)
        facts = VersionFacts(definition.name, value, kind="step", meta=attempt.notes)
        facts.more = _more(definition, attempt, digest, session.services.context.clock())
        if attempt.notes:
            session.add_up(attempt.notes)
        given = [list(args), kwargs] if definition.compensate is not None else None
        try:
            yield from session.commit(facts, frame=attempt, input=given)
        except LeaseLost:
            raise
        except HoldfastError as error:
            session.failed(Failure(definition.name, address, digest, error, attempt.attempt))
            raise
        finally:
            attempt.over = True
    finally:
        session.end(address)
    if frame.owner is not None:
        frame.owner.stale = True
    return plain(value)


def replay(
    session: Session,
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
    session.passed(entry)
    if session.republish:
        session.services.publisher.tell(
            session.id, "step.replayed", entry.version.step, address=entry.address, version=entry.number
        )
    if not session.record.at_hand(entry):
        yield Do(partial(session.record.fetch, entry))
    if entry.failed:
        raise session.record.error(entry)
    return session.record.result(entry)


def _attempts(
    session: Session,
    definition: Step,
    function: Callable[..., Any],
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    digest: bytes,
) -> Flow[tuple[Frame, Any]]:
    """Try until it works or there is no more trying; gives the attempt that worked and what it returned."""
    services = session.services
    clock = services.context.clock
    began = clock()
    number = 0
    while True:
        number += 1
        attempt = Frame(session, address, asynchronous=definition.asynchronous)
        attempt.owner = attempt
        attempt.attempt = number
        attempt.base = session.head
        attempt.resolve = definition.on_conflict
        attempt.began = clock()
        services.publisher.tell(session.id, "step.started", definition.name, address=address, attempt=number)
        try:
            if definition.breaker is not None:
                yield from breaker.admit(services, definition)
            value = yield Call(function, args, kwargs, attempt, session.time_for(definition.timeout))
        except Halt:
            attempt.over = True
            raise
        except Exception as error:
            attempt.over = True
            if isinstance(error, LeaseLost):
                raise
            if definition.breaker is not None:
                yield from breaker.note(services, definition, error)
            session.check()
            delay = wait_before_next(
                definition.retry, error, number, (clock() - began) / 1e6, services.chance
            )
            if delay is None:
                session.failed(Failure(definition.name, address, digest, error, number))
                raise
            session.note(
                "step.retried", step=definition.name, address=address, attempt=number,
                error=f"{type(error).__name__}: {error}"[:1000], delay=delay,
            )  # fmt: skip
            services.publisher.tell(
                session.id, "step.retried", definition.name, address=address, attempt=number, delay=delay
            )
            yield Rest(delay, session.stop, session.look)
            session.check()
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


def digest_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The same for the same arguments. Those that cannot be stored count by their type."""
    given = [list(args), sorted(kwargs.items())]
    try:
        data = encode(given)
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
    kind = type(value)
    return thaw(value) if kind in _DRAFTS or kind in DICTS or kind in LISTS else value


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
