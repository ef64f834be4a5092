"""The way from a call in user code into the machine, and what the call means where there is no run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.runtime import children, machine
from holdfast.runtime.definition import Step, Workflow
from holdfast.runtime.drive import adrive, drive
from holdfast.runtime.scope import current

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
        address = frame.place(definition.name, key)
        flow = machine.step(frame.session, frame, definition, address, args, kwargs)
    else:
        address = frame.place(definition.name)
        flow = children.child(frame.session, frame, definition, address, args, kwargs)
    return adrive(flow) if definition.asynchronous else drive(flow)


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
    if definition.asynchronous:
        return _outside_async(definition.function, args, kwargs)
    if _trial.get() is not None:
        return definition.function(*args, **kwargs)
    with trial():
        return definition.function(*args, **kwargs)


async def _outside_async(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _trial.get() is not None:
        return await function(*args, **kwargs)
    with trial():
        return await function(*args, **kwargs)
