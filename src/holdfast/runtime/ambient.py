"""What code inside a run may call: its state, its time, its luck, and ways to wait.

Each function finds the run that it is called in by itself. Outside a run they do what an ordinary program would
expect, or say that they need a run."""

from __future__ import annotations

import random as chance
import time
import uuid
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime
from hashlib import sha256
from inspect import isawaitable, iscoroutine
from typing import Any

from holdfast.errors import InvalidCall
from holdfast.model.public import when
from holdfast.runtime import waiting
from holdfast.runtime.boundary import Halt
from holdfast.runtime.calls import trial_state
from holdfast.runtime.drive import Flow, adrive, drive
from holdfast.runtime.schema import to_schema, to_type
from holdfast.runtime.scope import Frame, current, in_event_loop
from holdfast.tree.fold import Folder

_NAMESPACE = uuid.UUID("6f1d4c1e-52ab-4c0b-9a3a-9a7f0f0a8b52")


def state() -> Any:
    """The run's state. In a step a draft, to be changed like any dict; in the workflow's own code frozen, as it is
    after the last step. Outside a run the state of the trial, if there is one (see `trial`)."""
    frame = current.get()
    if frame is not None:
        return frame.state()
    given = trial_state()
    if given is None:
        raise InvalidCall(
            "there is no run here: call state() inside a step or workflow, or `with holdfast.trial():`"
        )
    return given


def now() -> datetime:
    """The time in UTC; the same when this code is replayed."""
    frame = current.get()
    if frame is None:
        return datetime.now(UTC)
    clock = frame.session.services.context.clock
    return when(_recorded(frame, "now", clock))


def uuid4() -> uuid.UUID:
    """A new UUID; the same when this code is replayed."""
    frame = current.get()
    return uuid.uuid4() if frame is None else uuid.UUID(_drawn(frame, "uuid4").hex(), version=4)


def random() -> float:
    """A random number from 0 to 1; the same when this code is replayed."""
    frame = current.get()
    return chance.random() if frame is None else int.from_bytes(_drawn(frame, "random")[:7]) / (1 << 56)


def idempotency_key() -> str:
    """The same for every attempt of this step, in whatever process, for the receiver to tell repetitions by;
    another one after a rollback."""
    frame = current.get()
    if frame is None:
        return uuid.uuid4().hex
    owner = frame.owner
    if owner is None:
        raise InvalidCall("an idempotency key belongs to a step: call idempotency_key() inside one")
    run = frame.session.head.run
    return uuid.uuid5(_NAMESPACE, f"{run.id}\0{run.created}\0{run.timeline}\0{owner.address}").hex


def note(**facts: Any) -> None:
    """Keep what shaped the behaviour of this step (model, prompt, tokens, cost, …) with its version. Tokens and costs
    are added up, in the step and for the run."""
    frame = current.get()
    if frame is not None:
        Folder(None).fold(facts)
        frame.note(facts)


def progress(done: float | None = None, message: str | None = None) -> None:
    """Tell those who watch how far this step is: the share that is done, and a word about it. Kept nowhere, but for
    the time: a step that says something now and then, be it nothing more than `progress()`, is not taken for stuck."""
    frame = current.get()
    if frame is not None:
        address = frame.address or None
        frame.session.beat = at = frame.session.services.context.clock()
        frame.sign(at)
        frame.session.services.publisher.tell(
            frame.session.id, "step.progress", address, done=done, message=message
        )


def sleep(seconds: float) -> Any:
    """Wait; the process need not live that long. In asynchronous code to be awaited."""
    seconds = waiting.check_seconds("sleep", seconds)
    frame = current.get()
    if frame is None:
        return _sleep(seconds) if in_event_loop() else time.sleep(seconds)
    frame = frame.here()
    return _run(frame, waiting.sleep(frame.session, frame, frame.place("sleep"), seconds))


def ask(question: str, *, schema: Any = None, timeout: float | None = None, key: str | None = None) -> Any:
    """Ask a person, and wait for the answer. `schema` is a JSON Schema or a type that it must fit. After `timeout`
    seconds `StepTimeout` is raised; `key` names the question by its data. In asynchronous code to be awaited."""
    if not isinstance(question, str) or not question.strip():
        raise InvalidCall("ask takes a question")
    if timeout is not None:
        waiting.check_seconds("timeout", timeout)
    shape = to_schema(schema)
    frame = _frame("ask").here()
    flow = waiting.ask(frame.session, frame, frame.place("ask", key), question, shape, timeout)
    return _run(frame, _typed(flow, schema))


def wait_for(event: str, *, timeout: float | None = None) -> Any:
    """Wait until `hf.send` sends an event of this name to the run; gives what was sent with it. After `timeout`
    seconds `StepTimeout` is raised. In asynchronous code to be awaited."""
    if not isinstance(event, str) or not event:
        raise InvalidCall("wait_for takes the name of an event")
    if timeout is not None:
        waiting.check_seconds("timeout", timeout)
    frame = _frame("wait_for").here()
    return _run(frame, waiting.wait_for(frame.session, frame, frame.place("wait_for", event), event, timeout))


def parallel(*calls: Any, limit: int | None = None) -> Any:
    """Run functions beside each other and give their results in order. Each is a function without arguments, or a
    tuple of a function and its arguments. What steps in them change in the state is merged; if some fail, the
    others are finished first. In asynchronous code to be awaited."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidCall(f"limit is a number of threads, 1 or more, not {limit!r:.60}")
    works = [_work(call) for call in calls]
    frame = current.get()
    if frame is None:
        branches: list[Frame | None] = [None] * len(works)
    else:
        frame = frame.here()
        name = frame.place("parallel").rpartition("/")[2]
        frame.session.failures.moved_on(frame.address)
        branches = [frame.branch(f"{name}/[{number}]") for number in range(1, len(works) + 1)]
    if (frame is not None and frame.asynchronous) or (frame is None and in_event_loop()):
        return _gather(works, branches, limit)
    return _threads(works, branches, limit)


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def _threads(works: list[Callable[[], Any]], branches: list[Frame | None], limit: int | None) -> list[Any]:
    if not works:
        return []
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(limit or len(works), thread_name_prefix="holdfast parallel") as pool:
        futures = [
            pool.submit(copy_context().run, _in_branch, work, branch)
            for work, branch in zip(works, branches, strict=True)
        ]
        errors = [error for future in futures if (error := future.exception()) is not None]
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
            found = work()
            return await found if isawaitable(found) else found

    tasks = [asyncio.ensure_future(one(*pair)) for pair in zip(works, branches, strict=True)]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    _raise_one([outcome for outcome in outcomes if isinstance(outcome, BaseException)])
    return list(outcomes)


def _raise_one(errors: list[BaseException]) -> None:
    """Interrupts first, then the end of the execution, then failures; of each the first."""
    for error in sorted(errors, key=lambda error: (isinstance(error, Exception), isinstance(error, Halt))):
        raise error


def _in_branch(work: Callable[[], Any], branch: Frame | None) -> Any:
    if branch is not None:
        current.set(branch)
    found = work()
    if iscoroutine(found):
        found.close()
        raise InvalidCall(
            "parallel in a plain def takes plain functions: make the function around it async def"
        )
    return found


def _work(call: Any) -> Callable[[], Any]:
    if isinstance(call, tuple) and call and callable(call[0]):
        function, *args = call
        return lambda: function(*args)
    if callable(call):
        work: Callable[[], Any] = call
        return work
    if isawaitable(call):
        return lambda: call
    raise InvalidCall("parallel takes functions without arguments, or tuples of a function and its arguments")


def _typed(flow: Flow[Any], wanted: Any) -> Flow[Any]:
    value = yield from flow
    return to_type(value, wanted)


def _run(frame: Frame, flow: Flow[Any]) -> Any:
    return adrive(flow) if frame.asynchronous else drive(flow)


def _recorded(frame: Frame, name: str, make: Callable[[], Any]) -> Any:
    frame = frame.here()
    return frame.session.value(frame.place(name), make)


def _drawn(frame: Frame, name: str) -> bytes:
    """Sixteen bytes by chance. They follow from the run, its timeline and the address, so that they are the same even
    if the process dies before they are recorded."""
    frame = frame.here()
    address = frame.place(name)
    run = frame.session.head.run
    seed = f"{run.id}\0{run.created}\0{run.timeline}\0{address}"
    value: bytes = frame.session.value(address, lambda: sha256(seed.encode()).digest()[:16])
    return value


def _frame(what: str) -> Frame:
    frame = current.get()
    if frame is None:
        raise InvalidCall(f"{what} needs a run: call it inside a workflow that hf.run executes")
    return frame
