"""Functions for code inside a run: state, clock, randomness, annotations, waiting, parallel branches.

Each function finds its run by itself. Outside a run it does what an ordinary program would expect, or raises
`InvalidCall`.
"""

from __future__ import annotations

import random as chance
import time
import uuid
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime
from hashlib import sha256
from inspect import isawaitable, iscoroutine
from threading import get_ident
from typing import Any

from holdfast.errors import InvalidCall
from holdfast.event_loop import in_event_loop
from holdfast.execution import suspend
from holdfast.execution.calls import AwaitableCall, current
from holdfast.execution.effects import Flow, adrive, drive
from holdfast.execution.frame import Frame, error_of_task
from holdfast.execution.replay_cursor import PARALLEL, SLEEP
from holdfast.execution.stop_control import StopExecution
from holdfast.model.checks import check_integer, check_seconds, check_text
from holdfast.model.names import MAX_STEP
from holdfast.model.public import when
from holdfast.model.question import QuestionPolicy
from holdfast.tree.fold import Folder
from holdfast.workflow.decorators import direct_state
from holdfast.workflow.schema import to_schema

#: Frames from the making of an awaitable in `_run` up to the code that has called the function of this module.
_CALLER = 3
_NAMESPACE = uuid.UUID("6f1d4c1e-52ab-4c0b-9a3a-9a7f0f0a8b52")


def state() -> Any:
    """Return the run's state. In a step it is a draft, to be changed like any dict. In the workflow's own code it is
    frozen: the state after the last step, which later steps do not change; call `state()` again to read their changes.
    Outside a run it is the state of `call_steps_directly`, if that is active."""
    frame = current.get()
    if frame is not None:
        return frame.state()
    given = direct_state()
    if given is None:
        raise InvalidCall(
            "there is no run here: call state() inside a step or workflow, or `with holdfast.call_steps_directly():`"
        )
    return given


def now() -> datetime:
    """Return the time in UTC; the same when this code is replayed."""
    frame = current.get()
    if frame is None:
        return datetime.now(UTC)
    clock = frame.execution.engine.context.clock
    return when(_recorded(frame, "now", clock))


def uuid4() -> uuid.UUID:
    """Return a new UUID; the same when this code is replayed."""
    frame = current.get()
    return uuid.uuid4() if frame is None else uuid.UUID(_random_bytes(frame, "uuid4").hex(), version=4)


def random() -> float:
    """Return a random number from 0 to 1; the same when this code is replayed."""
    frame = current.get()
    return (
        chance.random() if frame is None else int.from_bytes(_random_bytes(frame, "random")[:7]) / (1 << 56)
    )


def patched(id: str) -> bool:  # noqa: A002 - as it is called
    """Return whether to run code that was inserted under this id: True where a run comes here for the first time, False
    where it was beyond this point before the code was inserted. The answer is recorded: a replay gets the same.

        if holdfast.patched("check the address"):
            check(order)
    """
    check_text("id", id, MAX_STEP)
    if not isinstance(id, str) or not id:
        raise InvalidCall("patched takes an id: a short text that names the change")
    frame = current.get()
    if frame is None:
        return True
    frame = frame.here()
    replay = frame.execution.replay
    return bool(frame.execution.value(frame.place("patched", id), lambda: replay.is_live(frame)))


def idempotency_key() -> str:
    """Return a key that is the same for every attempt of this step, in every process, so that the receiver can
    recognise repetitions; another one after a rollback."""
    frame = current.get()
    if frame is None:
        return uuid.uuid4().hex
    owner = frame.owner
    if owner is None:
        raise InvalidCall("an idempotency key belongs to a step: call idempotency_key() inside one")
    run = frame.execution.head.run
    return uuid.uuid5(_NAMESPACE, f"{run.id}\0{run.created}\0{run.timeline}\0{owner.address}").hex


def annotate(**facts: Any) -> None:
    """Record what shaped the behaviour of this step (model, prompt, tokens, cost, …) with its version. Tokens and costs
    are added up, in the step and for the run."""
    frame = current.get()
    if frame is not None:
        Folder(None).fold(facts)
        frame.annotate(facts)


def progress(done: float | None = None, message: str | None = None) -> None:
    """Report the progress of this step to subscribers: the share that is done, and a message. Only the time is stored:
    a step that calls `progress()` now and then is not considered stalled."""
    frame = current.get()
    if frame is not None:
        address = frame.address or None
        frame.execution.beat = at = frame.execution.engine.context.clock()
        frame.report_alive(at)
        frame.execution.engine.publisher.publish(
            frame.execution.id, "step.progress", address, done=done, message=message
        )


def sleep(seconds: float) -> Any:
    """Wait; the process need not live that long. Await it in asynchronous code."""
    seconds = check_seconds("sleep", seconds)
    frame = current.get()
    if frame is None:
        if not in_event_loop():
            return time.sleep(seconds)
        return AwaitableCall(_sleep(seconds), "holdfast.sleep", None, _CALLER - 1)
    frame = frame.here()
    flow = suspend.sleep(frame.execution, frame, frame.call(SLEEP), seconds)
    return _run(frame, flow, "holdfast.sleep")


def ask(
    question: str,
    *,
    schema: Any = None,
    timeout: float | None = None,
    key: str | None = None,
    default: Any = suspend.NO_DEFAULT,
    assignee: str | None = None,
    priority: int = 0,
    due: float | None = None,
    remind_every: float | None = None,
    escalate_after: float | None = None,
    escalate_to: str | None = None,
) -> Any:
    """Ask a person, and wait for the answer. `schema` is a JSON Schema or a type that it must fit. After `timeout`
    seconds `QuestionTimeout` is raised, or `default` returned if one is given; without it, the question never expires.
    `key` names the question by its data. An answer counts only for the question and the schema that it was given to: if
    they have changed, the question is asked again. Await it in asynchronous code.

    `assignee`, `priority`, `due` (in seconds, when an answer is wanted), `remind_every`, `escalate_after` and
    `escalate_to` are those of `QuestionPolicy`. They count when the question is opened; `hf.assign` changes them."""
    if not isinstance(question, str) or not question.strip():
        raise InvalidCall("ask takes a question")
    if timeout is not None:
        check_seconds("timeout", timeout)
    elif default is not suspend.NO_DEFAULT:
        raise InvalidCall("default of ask is for a question with timeout=…: without one it is never used")
    policy = QuestionPolicy(
        assignee=assignee, priority=priority, due=due, remind_every=remind_every, escalate_after=escalate_after,
        escalate_to=escalate_to,
    )  # fmt: skip
    wanted = suspend.AskedQuestion(question, to_schema(schema), schema, timeout, default, policy)
    frame = _frame("ask").here()
    flow = suspend.ask(frame.execution, frame, frame.call("ask", key), wanted)
    return _run(frame, flow, "holdfast.ask")


def wait_for(event: str, *, timeout: float | None = None) -> Any:
    """Wait until `hf.signal` sends an event of this name to the run; return the data that was sent with it. After
    `timeout` seconds `StepTimeout` is raised. Await it in asynchronous code."""
    if not isinstance(event, str) or not event:
        raise InvalidCall("wait_for takes the name of an event")
    if timeout is not None:
        check_seconds("timeout", timeout)
    frame = _frame("wait_for").here()
    flow = suspend.wait_for(frame.execution, frame, frame.call("wait_for", event), event, timeout)
    return _run(frame, flow, "holdfast.wait_for")


def parallel(*calls: Any, limit: int | None = None) -> Any:
    """Run functions in parallel and return their results in order. Each is a function without arguments, or a tuple of
    a function and its arguments. The changes of their steps are merged into the state; if some fail, the others are
    finished first. Await it in asynchronous code."""
    if limit is not None:
        check_integer("limit", limit, 1)
    works = [_work(call) for call in calls]
    frame = current.get()
    if frame is None:
        branches: list[Frame | None] = [None] * len(works)
    else:
        frame = frame.here()
        address = frame.call(PARALLEL)
        replay = frame.execution.replay
        replay.refuse_fewer(frame, address, len(works))
        path, name = replay.paths.pop(address, None), address.rpartition("/")[2]
        frame.execution.failures.note_progress(frame.address)
        branches = [frame.branch(f"{name}/[{number}]", path) for number in range(1, len(works) + 1)]
    if (frame is not None and frame.asynchronous) or (frame is None and in_event_loop()):
        return AwaitableCall(_gather(works, branches, limit), "holdfast.parallel", frame, _CALLER - 1)
    return _threads(works, branches, limit)


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def _threads(works: list[Callable[[], Any]], branches: list[Frame | None], limit: int | None) -> list[Any]:
    if not works:
        return []
    from concurrent.futures import ThreadPoolExecutor

    order = None if branches[0] is None else branches[0].execution.in_parallel()
    if order is not None:
        order.start_threads()
    try:
        with ThreadPoolExecutor(limit or len(works), thread_name_prefix="holdfast parallel") as pool:
            futures = [
                pool.submit(copy_context().run, _in_branch, work, branch)
                for work, branch in zip(works, branches, strict=True)
            ]
            errors = [error for future in futures if (error := future.exception()) is not None]
    finally:
        if order is not None:
            order.end_threads()
    _join(branches)
    _raise_one(errors)
    return [future.result() for future in futures]


async def _gather(
    works: list[Callable[[], Any]], branches: list[Frame | None], limit: int | None
) -> list[Any]:
    import asyncio

    gate = asyncio.Semaphore(limit or max(1, len(works)))

    async def one(work: Callable[[], Any], branch: Frame | None) -> Any:
        async with gate:
            if branch is not None:
                branch.home = asyncio.current_task()
                current.set(branch)
            try:
                found = work()
                value = await found if isawaitable(found) else found
                if branch is not None:
                    branch.finish()
                return value
            finally:
                if branch is not None:
                    branch.leave()

    tasks = [asyncio.ensure_future(one(*pair)) for pair in zip(works, branches, strict=True)]
    try:
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        _join(branches)
    _raise_one([error for task in tasks if (error := error_of_task(task)) is not None])
    return list(outcomes)


def _join(branches: list[Frame | None]) -> None:
    """Let the code around the branches see their changes."""
    for branch in branches:
        if branch is not None:
            branch.join()


def _raise_one(errors: list[BaseException]) -> None:
    """Raise the first error: of interrupts, else of the ends of the execution, else of failures."""
    for error in sorted(
        errors, key=lambda error: (isinstance(error, Exception), isinstance(error, StopExecution))
    ):
        raise error


def _in_branch(work: Callable[[], Any], branch: Frame | None) -> Any:
    if branch is not None:
        branch.thread = get_ident()
        current.set(branch)
    try:
        found = work()
        if iscoroutine(found) or isinstance(found, AwaitableCall):
            found.close()
            raise InvalidCall(
                "parallel in a plain def takes plain functions: make the function around it async def"
            )
        if branch is not None:
            branch.finish()
        return found
    finally:
        if branch is not None:
            branch.leave()


def _work(call: Any) -> Callable[[], Any]:
    if isinstance(call, tuple) and call and callable(call[0]):
        function, *args = call
        return lambda: function(*args)
    if callable(call):
        work: Callable[[], Any] = call
        return work
    if isawaitable(call):
        return lambda: call
    unpack = "; unpack a list of them: holdfast.parallel(*calls)" if isinstance(call, list) else ""
    raise InvalidCall(
        "parallel takes functions without arguments, or tuples of a function and its arguments, "
        f"not {type(call).__name__}{unpack}"
    )


def _run(frame: Frame, flow: Flow[Any], name: str) -> Any:
    if not frame.asynchronous:
        return drive(flow)
    return AwaitableCall(adrive(flow), name, frame, _CALLER, waits=True)


def _recorded(frame: Frame, name: str, make: Callable[[], Any]) -> Any:
    frame = frame.here()
    return frame.execution.value(frame.place(name), make)


def _random_bytes(frame: Frame, name: str) -> bytes:
    """Return sixteen random bytes. They follow from the run, its timeline and the address, so that they are the same
    even if the process dies before they are recorded."""
    frame = frame.here()
    address = frame.place(name)
    run = frame.execution.head.run
    seed = f"{run.id}\0{run.created}\0{run.timeline}\0{address}"
    value: bytes = frame.execution.value(address, lambda: sha256(seed.encode()).digest()[:16])
    return value


def _frame(what: str) -> Frame:
    frame = current.get()
    if frame is None:
        raise InvalidCall(f"{what} needs a run: call it inside a workflow that hf.run executes")
    return frame
