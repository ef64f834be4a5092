"""Waiting without a process: `sleep`, `ask`, `wait_for` as flows.

A wait that cannot end now is written into the run's record, and the execution ends. A resume reaches the same address
again, and finds what has come meanwhile.

Invariant: the end of a wait is recorded before the workflow continues, or with the first step after it.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn

import msgspec

from holdfast.errors import QuestionTimeout, StepTimeout
from holdfast.event_loop import running_task
from holdfast.execution import step_machine
from holdfast.execution.effects import Flow, RunBlocking
from holdfast.execution.execution import Execution
from holdfast.execution.failures import Failure
from holdfast.execution.frame import Frame
from holdfast.execution.inbox import kept, value_of
from holdfast.execution.limits import innermost_budget
from holdfast.execution.questions import asked
from holdfast.execution.replay_log import RecordedStep
from holdfast.execution.replay_order import AwaitReplay
from holdfast.execution.stop_control import StopExecution, brief_lock
from holdfast.history.builder import VersionMetadata, build_event
from holdfast.model.question import Handling, QuestionPolicy
from holdfast.model.run_detail import QUESTION, Wait
from holdfast.tree.codec import encode
from holdfast.workflow.schema import check_answer, to_type

#: Stands for a default that was not given: any value may be one.
NO_DEFAULT: Any = object()
#: What marks a wait among recorded steps: it has no arguments.
_NO_ARGS = b""


def sleep(execution: Execution, frame: Frame, address: str, seconds: float) -> Flow[None]:
    """Wait until some seconds have passed since the workflow first reached this address."""
    late = _is_late(execution, frame)
    if execution.has_value(address):
        execution.replay.paths.pop(address, None)
        return
    yield from step_machine.go_live(execution, address)
    now = execution.engine.context.clock()
    wait = execution.detail.wait_at(address)
    if wait is None:
        wait = Wait(address=address, kind="time", due=now + int(seconds * 1e6), opened=now)
    assert wait.due is not None
    if late or wait.due > now:
        yield from _suspend(execution, frame, wait)
    path = execution.replay.paths.pop(address, None)
    execution.value(address, lambda: wait.due if path is None else [wait.due, path[-1]])
    _drop(execution, address)


class AskedQuestion(NamedTuple):
    """A question to a person."""

    text: str
    #: The JSON Schema that an answer must fit, and the type or schema from which it was made.
    schema: Any
    wanted: Any
    timeout: float | None = None
    #: The value if the question is not answered in time; `NO_DEFAULT` raises `QuestionTimeout`.
    default: Any = NO_DEFAULT
    #: Who is to answer, and by when.
    policy: QuestionPolicy = QuestionPolicy()

    def digest(self) -> bytes:
        """Return the same bytes for the same question: an answer belongs to them."""
        return _digest(self.text, self.schema)


def _digest(text: str, schema: Any) -> bytes:
    return sha256(encode([text, schema or None])).digest()[:8]


def ask(execution: Execution, frame: Frame, address: str, question: AskedQuestion) -> Flow[Any]:
    """Wait until a person has answered."""
    late = _is_late(execution, frame)
    entry = execution.replay_log.steps.get(address)
    if entry is not None and not _is_outdated(execution, entry, question):
        value = yield from step_machine.replay(frame, entry)
        return value if entry.detail.get("timed_out") else to_type(value, question.wanted)
    if entry is not None:
        execution.replay_log.drop(address, entry.number)
        if execution.order is not None:
            execution.order.drop(address)
    yield from step_machine.go_live(execution, address)
    now = execution.engine.context.clock()
    wait = execution.detail.wait_at(address)
    given = execution.answers
    is_other = wait is not None and _digest(wait.question, wait.schema) != question.digest()
    if is_other or (wait is None and entry is not None):
        # An answer that was given to another question, or is given now by the address of one, does not count.
        given = {name: value for name, value in given.items() if name != address}
        _close_outdated(execution, address, wait, entry)
        wait = None
    if wait is None:
        with brief_lock:
            execution.detail.asked = number = execution.detail.asked + 1
        due = None if question.timeout is None else now + int(question.timeout * 1e6)
        wait = Wait(
            address=address, kind=QUESTION, name=f"{execution.id}#{number}", opened=now, question=question.text,
            schema=question.schema, due=due,
            handling=None if question.policy == QuestionPolicy() else Handling.of(question.policy, now, due),
        )  # fmt: skip
        execution.writer.append_event(
            build_event(
                "question.opened", now, question_id=wait.name, question=question.text, address=address,
                assignee=question.policy.assignee, priority=question.policy.priority or None,
            )
        )  # fmt: skip
    if late:
        yield from _suspend(execution, frame, wait)
    for name in (wait.name, address):
        if name in given and not wait.filled:
            check_answer(given[name], question.schema)
            value = kept(execution.engine.context, given[name])
            wait = msgspec.structs.replace(wait, filled=True, value=value)
            execution.writer.add_event("question.answered", question_id=wait.name, **asked(wait))
    return (yield from _arrive(execution, frame, wait, "ask", question))


def _is_outdated(execution: Execution, entry: RecordedStep, question: AskedQuestion) -> bool:
    """Return whether a recorded answer was given to another question than the one that is asked now."""
    recorded = entry.detail.get("asked")
    if recorded is None or recorded == question.digest():
        return False
    if execution.replay_check is not None:
        execution.replay_check.note(entry.address, "question", recorded.hex(), question.digest().hex())
        return False
    return True


def _close_outdated(
    execution: Execution, address: str, wait: Wait | None, entry: RecordedStep | None
) -> None:
    """Close a question whose text or schema has changed; its answer, if there is one, stays in the history."""
    with brief_lock:
        execution.detail.drop(address)
    execution.writer.add_event(
        "question.outdated", question_id=None if wait is None else wait.name,
        question=None if wait is None else wait.question, address=address,
        answered=entry is not None or (wait is not None and wait.filled),
    )  # fmt: skip


def wait_for(
    execution: Execution, frame: Frame, address: str, event: str, timeout: float | None
) -> Flow[Any]:
    """Wait until a signal of this name was sent to the run."""
    late = _is_late(execution, frame)
    entry = execution.replay_log.steps.get(address)
    if entry is not None:
        return (yield from step_machine.replay(frame, entry))
    yield from step_machine.go_live(execution, address)
    now = execution.engine.context.clock()
    facts = execution.detail
    wait = facts.wait_at(address)
    if wait is None:
        due = None if timeout is None else now + int(timeout * 1e6)
        wait = Wait(address=address, kind="event", name=event, opened=now, due=due)
    if late:
        yield from _suspend(execution, frame, wait)
    with brief_lock:
        signal = facts.signal_for(wait)
        if signal is not None:
            facts.signals = [each for each in facts.signals if each is not signal]
            execution.taken.add(signal.number)
    if signal is not None:
        value = yield RunBlocking(partial(value_of, execution.engine.store, execution.head.run, signal))
        wait = msgspec.structs.replace(
            wait, filled=True, value=value, actor=signal.actor, number=signal.number
        )
    return (yield from _arrive(execution, frame, wait, "wait_for"))


def _arrive(
    execution: Execution, frame: Frame, wait: Wait, name: str, question: AskedQuestion | None = None
) -> Flow[Any]:
    """Record what has come, or continue to wait."""
    now = execution.engine.context.clock()
    more: dict[str, Any] = {} if question is None else {"asked": question.digest()}
    if not wait.filled:
        if wait.due is None or wait.due > now:
            yield from _suspend(execution, frame, wait)
        if question is None or question.default is NO_DEFAULT:
            _drop(execution, wait.address)
            error = _late(execution, wait)
            execution.failures.add(Failure(name, wait.address, _NO_ARGS, error, 1))
            raise error
        execution.writer.add_event(
            "question.timed_out", question_id=wait.name, question=question.text, address=wait.address
        )
        value = kept(execution.engine.context, question.default)
        wait = msgspec.structs.replace(wait, filled=True, value=value)
        more["timed_out"] = True
    facts = VersionMetadata(name, wait.value, kind="step", actor=wait.actor)
    facts.more = {"args": _NO_ARGS, **execution.replay.described(wait.address), **more}
    if wait.address != name:
        facts.more["address"] = wait.address
    if wait.number:
        facts.more["mail"] = wait.number
    # Under way until it is written: the execution does not end before.
    execution.start_step(wait.address, frame)
    try:
        _drop(execution, wait.address)
        view = frame.driver().view
        head, turn = yield from step_machine.commit(execution, facts, view=view)
        execution.note_recorded(frame, view, head, facts.more)
        budget = innermost_budget(execution)
        if budget is not None:
            budget.count_step()
    finally:
        execution.end_step(wait.address)
    yield from step_machine.in_order(turn)
    value = step_machine.plain(wait.value)
    return value if question is None or "timed_out" in more else to_type(value, question.wanted)


def _late(execution: Execution, wait: Wait) -> StepTimeout:
    if wait.is_question:
        return QuestionTimeout(
            f"question {wait.name!r} of run {execution.id!r} was not answered in time: {wait.question!r:.200}",
            address=wait.address,
            question_id=wait.name,
        )
    return StepTimeout(
        f"nothing came for {wait.address!r} of run {execution.id!r} in time", address=wait.address
    )


def _is_late(execution: Execution, frame: Frame) -> bool:
    """Return whether another wait has ended the execution already. Waits that were called in one frame but are awaited
    in tasks of their own, as in `gather(ask(…), sleep(…))`, are entered all the same, along with it."""
    try:
        execution.stop.check(frame)
    except StopExecution as halt:
        if halt.status != "suspended" or frame.home is None or frame.home is running_task():
            raise
        return True
    return False


def _drop(execution: Execution, address: str) -> None:
    with brief_lock:
        execution.detail.drop(address)
    execution.writer.mark_changed()


def _suspend(execution: Execution, frame: Frame, wait: Wait) -> Flow[NoReturn]:
    with brief_lock:
        execution.detail.put(execution.replay.placed(wait))
    execution.writer.mark_changed()
    if any(
        address != wait.address for address in execution.active if not wait.address.startswith(f"{address}/")
    ):
        # Others still run, perhaps for long: people should see the question now.
        yield from execution.writer.save(due=execution.detail.due())
    if execution.order is not None and execution.order.is_replaying:
        yield AwaitReplay(execution.order)
    execution.stop.stop("suspended", frame)
