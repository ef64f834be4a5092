"""Waiting without a process: `sleep`, `ask`, `wait_for` as flows.

A wait that cannot end now is written into the run's record, and the execution ends; whoever resumes the run comes
to the same address again, and finds what has come meanwhile.

Invariant: what ended a wait is recorded before the workflow goes on, or with the first step after it.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn

import msgspec

from holdfast.errors import InvalidCall, QuestionTimeout, StepTimeout
from holdfast.event_loop import running_task
from holdfast.history.commit import Facts as VersionFacts
from holdfast.runtime import machine
from holdfast.runtime.answered import asked
from holdfast.runtime.boundary import Halt, briefly
from holdfast.runtime.drive import Do, Flow
from holdfast.runtime.failures import Failure
from holdfast.runtime.limits import innermost
from holdfast.runtime.mail import kept, value_of
from holdfast.runtime.record import Entry
from holdfast.runtime.result_order import BeforeLive
from holdfast.runtime.schema import check_answer, to_type
from holdfast.runtime.scope import Frame
from holdfast.runtime.session import Session
from holdfast.runtime.waits import Wait
from holdfast.tree.codec import encode

#: Stands for a default that was not given: any value may be one.
NO_DEFAULT: Any = object()
#: What marks a wait among recorded steps: it has no arguments.
_NO_ARGS = b""


def sleep(session: Session, frame: Frame, address: str, seconds: float) -> Flow[None]:
    """Until so many seconds have passed since the workflow first came here."""
    late = _is_late(session, frame)
    if session.has_value(address):
        session.replay.paths.pop(address, None)
        return
    yield from session.go_live(address)
    now = session.services.context.clock()
    wait = session.facts.wait_at(address)
    if wait is None:
        wait = Wait(address=address, kind="time", due=now + int(seconds * 1e6), opened=now)
    assert wait.due is not None
    if late or wait.due > now:
        yield from _suspend(session, frame, wait)
    path = session.replay.paths.pop(address, None)
    session.value(address, lambda: wait.due if path is None else [wait.due, path[-1]])
    _drop(session, address)


class Question(NamedTuple):
    """What a person is asked."""

    text: str
    #: The JSON Schema that an answer must fit, and the type or schema from which it was made.
    schema: Any
    wanted: Any
    timeout: float | None = None
    #: The value if the question is not answered in time; `NO_DEFAULT` raises `QuestionTimeout`.
    default: Any = NO_DEFAULT

    def digest(self) -> bytes:
        """The same for the same question: what an answer is given to."""
        return _digest(self.text, self.schema)


def _digest(text: str, schema: Any) -> bytes:
    return sha256(encode([text, schema or None])).digest()[:8]


def ask(session: Session, frame: Frame, address: str, question: Question) -> Flow[Any]:
    """Until a person has answered."""
    late = _is_late(session, frame)
    entry = session.record.steps.get(address)
    if entry is not None and not _is_outdated(session, entry, question):
        value = yield from machine.replay(session, frame, entry, None, _NO_ARGS, (), {})
        return value if entry.detail.get("timed_out") else to_type(value, question.wanted)
    if entry is not None:
        session.record.forget(address, entry.number)
        if session.order is not None:
            session.order.drop(address)
    yield from session.go_live(address)
    now = session.services.context.clock()
    wait = session.facts.wait_at(address)
    given = session.answers
    is_other = wait is not None and _digest(wait.question, wait.schema) != question.digest()
    if is_other or (wait is None and entry is not None):
        # An answer that was given to another question, or is given now by the address of one, does not count.
        given = {name: value for name, value in given.items() if name != address}
        _close_outdated(session, address, wait, entry)
        wait = None
    if wait is None:
        with briefly:
            session.facts.asked = number = session.facts.asked + 1
        due = None if question.timeout is None else now + int(question.timeout * 1e6)
        wait = Wait(
            address=address, kind="prompt", name=f"{session.id}#{number}", opened=now, question=question.text,
            schema=question.schema, due=due,
        )  # fmt: skip
        session.note("prompt.opened", prompt=wait.name, question=question.text, address=address)
    if late:
        yield from _suspend(session, frame, wait)
    for name in (wait.name, address):
        if name in given and not wait.filled:
            check_answer(given[name], question.schema)
            value = kept(session.services.context, given[name])
            wait = msgspec.structs.replace(wait, filled=True, value=value)
            session.note("prompt.answered", prompt=wait.name, **asked(wait))
    return (yield from _arrive(session, frame, wait, "ask", question))


def _is_outdated(session: Session, entry: Entry, question: Question) -> bool:
    """Was a recorded answer given to another question than the one that is asked now?"""
    recorded = entry.detail.get("asked")
    if recorded is None or recorded == question.digest():
        return False
    if session.rehearsal is not None:
        session.rehearsal.differs(entry.address, "question", recorded.hex(), question.digest().hex())
        return False
    return True


def _close_outdated(session: Session, address: str, wait: Wait | None, entry: Entry | None) -> None:
    """Close a question that is asked otherwise now; its answer, if there is one, stays in the history."""
    with briefly:
        session.facts.drop(address)
    session.note(
        "prompt.outdated", prompt=None if wait is None else wait.name,
        question=None if wait is None else wait.question, address=address,
        answered=entry is not None or (wait is not None and wait.filled),
    )  # fmt: skip


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


def _arrive(
    session: Session, frame: Frame, wait: Wait, name: str, question: Question | None = None
) -> Flow[Any]:
    """Record what has come, or go on waiting."""
    now = session.services.context.clock()
    more: dict[str, Any] = {} if question is None else {"asked": question.digest()}
    if not wait.filled:
        if wait.due is None or wait.due > now:
            yield from _suspend(session, frame, wait)
        if question is None or question.default is NO_DEFAULT:
            _drop(session, wait.address)
            error = _late(session, wait)
            session.failures.add(Failure(name, wait.address, _NO_ARGS, error, 1))
            raise error
        session.note("prompt.timed_out", prompt=wait.name, question=question.text, address=wait.address)
        value = kept(session.services.context, question.default)
        wait = msgspec.structs.replace(wait, filled=True, value=value)
        more["timed_out"] = True
    facts = VersionFacts(name, wait.value, kind="step", actor=wait.actor)
    facts.more = {"args": _NO_ARGS, **session.replay.described(wait.address), **more}
    if wait.address != name:
        facts.more["address"] = wait.address
    if wait.number:
        facts.more["mail"] = wait.number
    # Under way until it is written: the execution does not end before.
    session.begin(wait.address, frame)
    try:
        _drop(session, wait.address)
        view = frame.driver().view
        head, turn = yield from machine.commit(session, facts, view=view)
        session.recorded(frame, view, head, facts)
        ledger = innermost(session)
        if ledger is not None:
            ledger.count_step()
    finally:
        session.end(wait.address)
    yield from machine.in_order(turn)
    value = machine.plain(wait.value)
    return value if question is None or "timed_out" in more else to_type(value, question.wanted)


def _late(session: Session, wait: Wait) -> StepTimeout:
    if wait.kind == "prompt":
        return QuestionTimeout(
            f"question {wait.name!r} of run {session.id!r} was not answered in time: {wait.question!r:.200}",
            address=wait.address,
            prompt=wait.name,
        )
    return StepTimeout(
        f"nothing came for {wait.address!r} of run {session.id!r} in time", address=wait.address
    )


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
        session.facts.put(session.replay.placed(wait))
    session.keep()
    if any(
        address != wait.address for address in session.active if not wait.address.startswith(f"{address}/")
    ):
        # Others still run, perhaps for long: whoever can answer should see the question now.
        yield from session.save(due=session.facts.due())
    if session.order is not None and session.order.is_replaying:
        yield BeforeLive(session.order)
    session.halt("suspended", frame)


def check_seconds(what: str, seconds: Any) -> float:
    """A number of seconds, or `InvalidCall`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e10:
        raise InvalidCall(f"{what} is a number of seconds, 0 or more, not {seconds!r:.60}")
    return float(seconds)
