"""The decorators `step` and `workflow`, and calls of the functions that they decorate.

Invariant: outside a run a decorated function is the function itself; inside one, a call goes to the step machine.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from unicodedata import category

from holdfast.errors import HoldfastWarning, InvalidCall
from holdfast.execution.calls import AwaitableCall, Call, current, executing
from holdfast.model.checks import check_seconds, check_text
from holdfast.model.names import suggest
from holdfast.model.watchdog import Watchdog, check_watchdog
from holdfast.workflow.definition import CHANGED, Step, Workflow, bound, define, workflow_of
from holdfast.workflow.policy import Breaker, Retry

if TYPE_CHECKING:
    from holdfast.execution.children import child
    from holdfast.execution.effects import adrive, drive
    from holdfast.execution.limits import Limits
    from holdfast.execution.step_machine import call_step, call_step_in_task
    from holdfast.history.committer import Resolver
    from holdfast.tree.merge import Declared

P = ParamSpec("P")
R = TypeVar("R")

#: Frames from the making of an awaitable here up to the code that has called the step or workflow.
_CALLER = 2
#: The state that steps see outside a run, in `call_steps_directly`.
_direct: ContextVar[Any] = ContextVar("holdfast.direct_state", default=None)
_NAME = re.compile(r"[^/#\[\]\s](?:[^/#\[\]\n\r\t]*[^/#\[\]\s])?")
_MAX_NAME = 100
#: Kinds of an application's own events, with wildcards.
_PATTERN = re.compile(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)+", re.ASCII)


@overload
def step(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: float | None = None,
    key: Callable[..., Any] | str | None = None,
    compensate: Callable[..., Any] | None = None,
    breaker: Breaker | None = None,
    on_conflict: Resolver | None = None,
    heartbeat_timeout: float | None = None,
    aliases: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: float | None = None,
    key: Callable[..., Any] | str | None = None,
    compensate: Callable[..., Any] | None = None,
    breaker: Breaker | None = None,
    on_conflict: Resolver | None = None,
    heartbeat_timeout: float | None = None,
    aliases: Sequence[str] = (),
) -> Any:
    """Make a function a step: inside a run its result is recorded, with what it changed in the state, and it is not
    run again once it is.

    `retry` says how often and when a failed attempt is repeated; `timeout` how many seconds an attempt may take;
    `key` names a call by its data, as a function of the arguments or the name of one; `compensate` undoes the step when
    the run is rolled back past it (it gets the result, then the arguments, as far as it takes them); `breaker` stops
    calling a step that keeps failing; `on_conflict` decides when a concurrent step changed the same place,
    even to an equal value; `heartbeat_timeout` is how many seconds it may take without `holdfast.progress()` before
    the monitor considers the run stalled; `aliases` are names under which older code recorded the step.
    """

    def decorate(given: Callable[..., Any]) -> Any:
        _check_function("step", given)
        if timeout is not None:
            check_seconds("timeout", timeout, above_zero=True)
        if heartbeat_timeout is not None:
            check_seconds("heartbeat_timeout", heartbeat_timeout, above_zero=True)
        for what, value in (("compensate", compensate), ("on_conflict", on_conflict)):
            if value is not None and not callable(value):
                raise InvalidCall(f"{what} of step {given.__name__!r} is a function, not {value!r:.60}")
        if on_conflict is not None:
            from holdfast.tree.merge import check_plain_function

            check_plain_function(
                f"on_conflict of step {given.__name__!r}", on_conflict, "path", "base", "ours", "theirs"
            )
        if key is not None and not callable(key) and not isinstance(key, str):
            raise InvalidCall(
                f"key of step {given.__name__!r} is a function of its arguments, or the name of one"
            )
        if retry is not None and not isinstance(retry, Retry | int):
            raise InvalidCall(f"retry of step {given.__name__!r} is Retry(…) or a number of attempts")
        if breaker is not None and not isinstance(breaker, Breaker):
            raise InvalidCall(f"breaker of step {given.__name__!r} is Breaker(…), not {breaker!r:.60}")
        definition = Step(
            _named(name, given),
            given,
            inspect.iscoroutinefunction(given),
            Retry(retry) if isinstance(retry, int) else retry,
            timeout,
            _key_of(given, key),
            compensate,
            breaker,
            on_conflict,
            heartbeat_timeout,
            aliases=_aliases_of(aliases, given),
        )
        return _wrapped(definition)

    return decorate if function is None else decorate(function)


@overload
def workflow(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    on: str | None = None,
    of: str | Callable[..., Any] | None = None,
    changed: str = "warn",
    timeout: float | None = None,
    version: str | None = None,
    watchdog: Watchdog | None = None,
    aliases: Sequence[str] = (),
    limits: Limits | None = None,
    merge: Declared | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    on: str | None = None,
    of: str | Callable[..., Any] | None = None,
    changed: str = "warn",
    timeout: float | None = None,
    version: str | None = None,
    watchdog: Watchdog | None = None,
    aliases: Sequence[str] = (),
    limits: Limits | None = None,
    merge: Declared | None = None,
) -> Any:
    """Make a function a workflow, to be run by `hf.run`. Called inside another workflow, it is a run of its own.

    `on` names an event that starts it, such as "run.completed", or a pattern, with the event as its argument; `of`
    only events of that workflow's runs. Such a run is put into the default queue: a worker executes it, or a
    process that has called `hf.start_triggers`. `changed` says what a resume does if the code has changed since the
    run started: warn, refuse or allow; `version` names the code by hand instead. `timeout` is for the whole run, in
    seconds. `watchdog` says when the monitor calls a run stalled, and what it does then. `aliases` are names under
    which older code recorded runs. `limits` is what each run may spend, its children included.

    `merge` declares how steps that run in parallel merge their changes of one place, by path: `"sum"`, `"max"`,
    `"min"`, `"union"`, `"equal"`, `"last"`, or a function of the value before, mine and theirs. A `*` in a path stands
    for every key or index: `merge={"n": "sum", "scores.*": "max", "seen": "union"}`. Without it they conflict.
    """

    def decorate(given: Callable[..., Any]) -> Any:
        _check_function("workflow", given)
        if timeout is not None:
            check_seconds("timeout", timeout, above_zero=True)
        if changed not in CHANGED:
            raise InvalidCall(f"changed is one of {', '.join(CHANGED)}, not {changed!r:.60}")
        for what, text in (("on", on), ("version", version)):
            check_text(what, text, _MAX_NAME)
        source = check_text("of", workflow_of(of).name if callable(of) else of, _MAX_NAME)
        _check_trigger(given, on, source)
        check_watchdog(watchdog)
        reducers = None
        if limits is not None:
            from holdfast.execution.limits import check_limits

            check_limits(limits)
        if merge is not None:
            from holdfast.tree.merge import reducers_of

            reducers = reducers_of(merge)
        definition = Workflow(
            _named(name, given), given, inspect.iscoroutinefunction(given), on, source, changed, timeout, version,
            watchdog, limits=limits, reducers=reducers, aliases=_aliases_of(aliases, given),
        )  # fmt: skip
        return _wrapped(definition)

    return decorate if function is None else decorate(function)


def _check_trigger(function: Callable[..., Any], on: str | None, of: str | None) -> None:
    """Refuse a trigger that no event can set off, and a workflow that does not take the event."""
    name = function.__name__
    if on is None:
        if of is not None:
            raise InvalidCall(f"workflow {name!r} has of=… without on=…: name the event that starts it")
        return
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise InvalidCall(
            f"workflow {name!r} is started by events and cannot be called with one ({error}): give it one parameter "
            f"for the event, as in def {name}(event), and defaults to all others",
            workflow=name,
        ) from None
    from holdfast.history.journal import EVENT_KINDS, RESERVED_PREFIXES

    own = on.split(".", 1)[0] in RESERVED_PREFIXES
    if not any(fnmatchcase(kind, on) for kind in EVENT_KINDS) and (own or not _PATTERN.fullmatch(on)):
        raise InvalidCall(
            f"workflow {name!r} is started by events {on!r}, and no event of that kind is in the journal"
            f"{suggest(on, EVENT_KINDS)}",
            workflow=name,
        )


def load_step_machine() -> None:
    """Import the functions that a call inside a run needs. An engine does that; outside a run they are not needed."""
    global adrive, call_step, call_step_in_task, child, drive  # noqa: PLW0603 - an import in each call would be slow
    from holdfast.execution.children import child
    from holdfast.execution.effects import adrive, drive
    from holdfast.execution.step_machine import call_step, call_step_in_task


def _wrapped(definition: Step | Workflow) -> Any:
    name, asynchronous, aliases = definition.name, definition.asynchronous, definition.aliases
    key_of = definition.key if isinstance(definition, Step) else None

    def call(*args: Any, **kwargs: Any) -> Any:
        frame = current.get()
        if frame is None:
            return _call_outside(definition, args, kwargs)
        if frame.home is not None:
            frame = frame.here()
        address = frame.call(name, key_of(*args, **kwargs) if callable(key_of) else None, aliases)
        if not isinstance(definition, Step):
            flow = child(Call(frame, definition, address, args, kwargs))
        elif frame.home is None:
            flow = call_step(Call(frame, definition, address, args, kwargs, frame.view.now()), frame.view)
        else:
            flow = call_step_in_task(Call(frame, definition, address, args, kwargs, frame.view.now()))
        return AwaitableCall(adrive(flow), name, frame, _CALLER) if asynchronous else drive(flow)

    define(definition)
    update_wrapper(call, definition.function)
    vars(call)["holdfast"] = definition
    if definition.asynchronous and sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(call)
    return call


def _key_of(function: Callable[..., Any], key: Any) -> Any:
    if not isinstance(key, str):
        return key
    if key not in inspect.signature(function).parameters:
        raise InvalidCall(f"key={key!r} of step {function.__name__!r} names none of its arguments")
    return lambda *args, **kwargs: bound(function, args, kwargs)[key]


def _aliases_of(aliases: Any, function: Callable[..., Any]) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Iterable):
        raise InvalidCall(f"aliases of {function.__name__!r} is a list of names, not {aliases!r:.60}")
    return tuple(_named(name, function) for name in aliases)


def _check_function(what: str, given: Any) -> None:
    if inspect.isclass(given) or not callable(given) or not hasattr(given, "__name__"):
        raise InvalidCall(f"@{what} decorates a function, not {given!r:.60}")
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise InvalidCall(
            f"{given.__name__!r} is a generator, which cannot be a {what}: return a list instead"
        )
    if isinstance(getattr(given, "holdfast", None), Step | Workflow):
        raise InvalidCall(f"{given.__name__!r} is a step or workflow already")


def _named(name: str | None, function: Callable[..., Any]) -> str:
    name = function.__name__ if name is None else name
    if not isinstance(name, str) or len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise InvalidCall(f"{name!r:.60} cannot be a name: use up to {_MAX_NAME} characters without / # [ ]")
    check_text("name", name, _MAX_NAME)
    if any(category(sign) in ("Cc", "Cs") for sign in name):
        raise InvalidCall(f"{name!r:.60} cannot be a name: it holds a character that cannot be shown")
    return name


@contextmanager
def call_steps_directly(state: Any = None) -> Iterator[Any]:
    """Call steps as ordinary functions, outside a run, on a state that can be looked at afterwards."""
    given = {} if state is None else state
    token = _direct.set(given)
    try:
        yield given
    finally:
        _direct.reset(token)


def direct_state() -> Any:
    """Return the state of `call_steps_directly`; None outside of it."""
    return _direct.get()


def _call_outside(definition: Step | Workflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if executing and _direct.get() is None:
        _warn(definition)
    if definition.asynchronous:
        coroutine = _call_outside_async(definition.function, args, kwargs)
        return AwaitableCall(coroutine, definition.name, None, _CALLER + 1)
    if _direct.get() is not None:
        return definition.function(*args, **kwargs)
    with call_steps_directly():
        return definition.function(*args, **kwargs)


def _warn(definition: Step | Workflow) -> None:
    """Warn of a call that was perhaps meant to be part of a run: threads do not inherit the context of their caller."""
    runs = sorted(execution.id for execution in list(executing))
    others = "" if len(runs) == 1 else f" and {len(runs) - 1} more"
    what = "step" if isinstance(definition, Step) else "workflow"
    warnings.warn(
        f"{what} {definition.name!r} was called without a run, while run {runs[0]!r}{others} is executed in this "
        "process: it runs as a plain function and nothing is recorded. If it is part of the run, start its thread with "
        "holdfast.parallel, asyncio.to_thread or contextvars.copy_context().run; if not, call it in `with "
        "holdfast.call_steps_directly():`",
        HoldfastWarning,
        stacklevel=_CALLER + 2,
    )


async def _call_outside_async(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if _direct.get() is not None:
        return await function(*args, **kwargs)
    with call_steps_directly():
        return await function(*args, **kwargs)
