"""The way from a call in user code into the machine, and what the call means where there is no run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.errors import HoldfastWarning
from holdfast.runtime import children, machine
from holdfast.runtime.awaitable import AwaitableCall
from holdfast.runtime.definition import Step, Workflow
from holdfast.runtime.drive import adrive, drive
from holdfast.runtime.scope import current, executing

#: Frames from the making of an awaitable here up to the code that has called the step or workflow.
_CALLER = 3
#: The state that steps see outside a run.
_trial: ContextVar[Any] = ContextVar("holdfast.trial", default=None)


def enter(definition: Step | Workflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a step or workflow."""
    frame = current.get()
    if frame is None:
        return _outside(definition, args, kwargs)
    frame = frame.here()
    if isinstance(definition, Step):
        key = definition.key(*args, **kwargs) if callable(definition.key) else None
        address = frame.call(definition.name, key, definition.aliases)
        flow = machine.step(frame.session, frame, definition, address, args, kwargs, frame.view.now())
    else:
        address = frame.call(definition.name, None, definition.aliases)
        flow = children.child(frame.session, frame, definition, address, args, kwargs)
    if not definition.asynchronous:
        return drive(flow)
    return AwaitableCall(adrive(flow), definition.name, frame, _CALLER)


@contextmanager
def trial(state: Any = None) -> Iterator[Any]:
    """Call steps as ordinary functions, outside a run, on a state that can be looked at afterwards."""
    given = {} if state is None else state
    token = _trial.set(given)
    try:
        yield given
    finally:
        _trial.reset(token)


def trial_state() -> Any:
    """The state of the trial, if there is one."""
    return _trial.get()


def _outside(definition: Step | Workflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if executing and _trial.get() is None:
        _warn(definition)
    if definition.asynchronous:
        coroutine = _outside_async(definition.function, args, kwargs)
        return AwaitableCall(coroutine, definition.name, None, _CALLER + 1)
    if _trial.get() is not None:
        return definition.function(*args, **kwargs)
    with trial():
        return definition.function(*args, **kwargs)


def _warn(definition: Step | Workflow) -> None:
    """Warn of a call that was perhaps meant to be part of a run: threads do not inherit the context of their caller."""
    runs = sorted(session.id for session in list(executing))
    others = "" if len(runs) == 1 else f" and {len(runs) - 1} more"
    what = "step" if isinstance(definition, Step) else "workflow"
    warnings.warn(
        f"{what} {definition.name!r} was called without a run, while run {runs[0]!r}{others} is executed in this "
        "process: it runs as a plain function and nothing is recorded. If it is part of the run, start its thread with "
        "holdfast.parallel, asyncio.to_thread or contextvars.copy_context().run; if not, call it in `with "
        "holdfast.trial():`",
        HoldfastWarning,
        stacklevel=_CALLER + 2,
    )


async def _outside_async(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _trial.get() is not None:
        return await function(*args, **kwargs)
    with trial():
        return await function(*args, **kwargs)
