"""Waiting without a process: `sleep`, `ask`, `wait_for` as flows.

A wait that cannot end now is written into the run's record, and the execution ends; whoever resumes the run comes
to the same address again, and finds what has come meanwhile.

Invariant: what ended a wait is recorded before the workflow goes on, or with the first step after it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import msgspec

from holdfast.errors import InvalidCall, StepTimeout
from holdfast.history.commit import Facts as VersionFacts
from holdfast.runtime import machine
from holdfast.runtime.answered import asked
from holdfast.runtime.boundary import Halt, briefly
from holdfast.runtime.drive import Do, Flow
from holdfast.runtime.failures import Failure
from holdfast.runtime.mail import kept, value_of
from holdfast.runtime.schema import check_answer
from holdfast.runtime.scope import Frame, running_task
from holdfast.runtime.session import Session
from holdfast.runtime.waits import Wait

#: What marks a wait among recorded steps: it has no arguments.
_NO_ARGS = b""


def sleep(session: Session, frame: Frame, address: str, seconds: float) -> Flow[None]:
    """Until so many seconds have passed since the workflow first came here."""
    late = _is_late(session, frame)
    if session.has_value(address):
        return
    yield from session.go_live(address)
    now = session.services.context.clock()
    wait = session.facts.wait_at(address)
    if wait is None:
        wait = Wait(address=address, kind="time", due=now + int(seconds * 1e6), opened=now)
    assert wait.due is not None
    if late or wait.due > now:
        yield from _suspend(session, frame, wait)
    session.value(address, lambda: wait.due)
    _drop(session, address)


def ask(
    session: Session, frame: Frame, address: str, question: str, schema: Any, timeout: float | None
) -> Flow[Any]:
    """Until a person has answered."""
    late = _is_late(session, frame)
    entry = session.record.steps.get(address)
    if entry is not None:
        return (yield from machine.replay(session, frame, entry, None, _NO_ARGS, (), {}))
    yield from session.go_live(address)
    now = session.services.context.clock()
    wait = session.facts.wait_at(address)
    if wait is None:
        with briefly:
            session.facts.asked = number = session.facts.asked + 1
        wait = Wait(
            address=address, kind="prompt", name=f"{session.id}#{number}", opened=now, question=question,
            schema=schema, due=None if timeout is None else now + int(timeout * 1e6),
        )  # fmt: skip
        session.note("prompt.opened", prompt=wait.name, question=question, address=address)
    if late:
        yield from _suspend(session, frame, wait)
    for name in (wait.name, address):
        if name in session.answers and not wait.filled:
            check_answer(session.answers[name], schema)
            value = kept(session.services.context, session.answers[name])
            wait = msgspec.structs.replace(wait, filled=True, value=value)
            session.note("prompt.answered", prompt=wait.name, **asked(wait))
    return (yield from _arrive(session, frame, wait, "ask"))


def wait_for(session: Session, frame: Frame, address: str, event: str, timeout: float | None) -> Flow[Any]:
    """Until an event of this name was sent to the run."""
    late = _is_late(session, frame)
    entry = session.record.steps.get(address)
    if entry is not None:
        return (yield from machine.replay(session, frame, entry, None, _NO_ARGS, (), {}))
    yield from session.go_live(address)
    now = session.services.context.clock()
    facts = session.facts
    wait = facts.wait_at(address)
    if wait is None:
        due = None if timeout is None else now + int(timeout * 1e6)
        wait = Wait(address=address, kind="event", name=event, opened=now, due=due)
    if late:
        yield from _suspend(session, frame, wait)
    with briefly:
        letter = facts.letter_for(wait)
        if letter is not None:
            facts.mail = [mail for mail in facts.mail if mail is not letter]
            session.taken.add(letter.number)
    if letter is not None:
        value = yield Do(partial(value_of, session.services.store, session.head.run, letter))
        wait = msgspec.structs.replace(
            wait, filled=True, value=value, actor=letter.actor, number=letter.number
        )
    return (yield from _arrive(session, frame, wait, "wait_for"))


def _arrive(session: Session, frame: Frame, wait: Wait, name: str) -> Flow[Any]:
    """Record what has come, or go on waiting."""
    now = session.services.context.clock()
    if not wait.filled:
        if wait.due is None or wait.due > now:
            yield from _suspend(session, frame, wait)
        _drop(session, wait.address)
        error = StepTimeout(
            f"nothing came for {wait.address!r} of run {session.id!r} in time", address=wait.address
        )
        session.failures.add(Failure(name, wait.address, _NO_ARGS, error, 1))
        raise error
    facts = VersionFacts(name, wait.value, kind="step", actor=wait.actor)
    facts.more = {"args": _NO_ARGS}
    if wait.address != name:
        facts.more["address"] = wait.address
    if wait.number:
        facts.more["mail"] = wait.number
    # Under way until it is written: the execution does not end before.
    session.begin(wait.address, frame)
    try:
        _drop(session, wait.address)
        head = yield from session.commit(facts)
        session.recorded(frame, head, facts)
    finally:
        session.end(wait.address)
    return machine.plain(wait.value)


def _is_late(session: Session, frame: Frame) -> bool:
    """Has another wait ended the execution already? Those that were called in one frame but are awaited in tasks of
    their own, as in `gather(ask(…), sleep(…))`, are entered all the same, and wait beside it."""
    try:
        session.check(frame)
    except Halt as halt:
        if halt.status != "suspended" or frame.home is None or frame.home is running_task():
            raise
        return True
    return False


def _drop(session: Session, address: str) -> None:
    with briefly:
        session.facts.drop(address)
    session.keep()


def _suspend(session: Session, frame: Frame, wait: Wait) -> Flow[NoReturn]:
    with briefly:
        session.facts.put(wait)
    session.keep()
    if any(
        address != wait.address for address in session.active if not wait.address.startswith(f"{address}/")
    ):
        # Others still run, perhaps for long: whoever can answer should see the question now.
        yield from session.save(due=session.facts.due())
    session.halt("suspended", frame)


def check_seconds(what: str, seconds: Any) -> float:
    """A number of seconds, or `InvalidCall`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e10:
        raise InvalidCall(f"{what} is a number of seconds, 0 or more, not {seconds!r:.60}")
    return float(seconds)
