"""Calls that code makes in a run: where that code is, what it calls, and the coroutines that it must await.

Steps, children, `ask`, `sleep`, `wait_for` and `parallel` return coroutines in asynchronous code. An ordinary coroutine
that is not awaited is true: `if ask("Delete?"):` deletes. These are not: every use other than awaiting one, or handing
it to asyncio, raises `NotAwaited`, and one that was never awaited fails its step or run.

This module imports nothing of the step machine, so that a program which only defines steps does not load it.

Invariant: a call that is made in a run is awaited, closed, or reported when its step or the workflow returns; no step
starts after an `ask`, `sleep` or `wait_for` that is not awaited.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import ContextVar
from sys import _getframe
from types import CodeType, CoroutineType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import msgspec

from holdfast.errors import NotAwaited

if TYPE_CHECKING:
    from holdfast.execution.execution import Execution
    from holdfast.execution.frame import Frame
    from holdfast.execution.state_view import ViewedState
    from holdfast.history.reader import Head

#: The definition that is called: a step or a workflow.
D = TypeVar("D")

#: The executions of all engines in this process.
executing: set[Execution] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=executing.clear)
#: The frame of the code that is running; None outside a run.
current: ContextVar[Frame | None] = ContextVar("holdfast.frame", default=None)


class Call(msgspec.Struct, Generic[D], eq=False):
    """A call of a step, or of a workflow as a child, in a run."""

    frame: Frame
    definition: D
    address: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Of a step: the state that its caller saw when it called.
    start: ViewedState | Head | None = None
    #: The digest of the arguments, once they are known.
    digest: bytes = b""


class AwaitableCall(Coroutine[Any, Any, Any]):
    """A coroutine that cannot be taken for its result."""

    __slots__ = ("__weakref__", "_code", "_coroutine", "_line", "_name", "_waits", "frame", "in_task")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        name: str,
        frame: Frame | None,
        depth: int,
        *,
        waits: bool = False,
    ) -> None:
        """Wrap the coroutine of a call by this name, which code so many frames above this one has made. `waits` is true
        of `ask`, `sleep` and `wait_for`."""
        caller = _getframe(depth)
        self._coroutine = coroutine
        self._name = name
        self._code: CodeType = caller.f_code
        self._line = caller.f_lineno
        #: Was it handed to a task, which will await it?
        self.in_task = False
        #: Where in a run it was called; None once it is awaited, and outside a run.
        self.frame = frame
        self._waits = waits
        if frame is not None:
            frame.execution.unawaited[self] = None
            if waits:
                frame.execution.unawaited_waits[self] = None

    # As a coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.frame is not None:
            self._settle()
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """Continue to the next future that it waits for."""
        if self.frame is not None:
            self._settle()
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits."""
        if self.frame is not None:
            self._settle()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Close the coroutine without running it."""
        if self.frame is not None:
            self._settle()
        self._coroutine.close()

    def _settle(self) -> None:
        frame, self.frame = self.frame, None
        if frame is not None:
            frame.execution.unawaited.pop(self, None)
            if self._waits:
                frame.execution.unawaited_waits.pop(self, None)

    def hand_to_task(self) -> None:
        """Note that a task will await it, concurrently with its caller."""
        self.in_task = True
        if self._waits and self.frame is not None:
            self.frame.execution.unawaited_waits.pop(self, None)

    @property  # type: ignore[misc]  # nothing assigns the class of a call
    def __class__(self) -> type:
        """`CoroutineType`, for `inspect.iscoroutine`: frameworks decide by it whether to await a result."""
        return CoroutineType

    @property
    def where(self) -> str:
        """The file and the line of the call."""
        return f"{self._code.co_filename}:{self._line}"

    def never_awaited(self, before: str = "") -> NotAwaited:
        """Return the error of a call that nothing has awaited when its step or workflow returned, or `before`
        something."""
        if self.in_task:
            why = (
                "its task had not started when the code around it returned, so it did not run: await the task"
            )
        else:
            why = "it was never awaited, so it did not run: write `await` before the call, in an `async def`"
        return NotAwaited(
            f"{before}{self._name}() was called at {self.where}, but {why}",
            call=self._name,
            file=self._code.co_filename,
            line=self._line,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cr_") or name in ("__name__", "__qualname__"):
            # What debuggers, asyncio and anyio ask of coroutines.
            return getattr(self._coroutine, name)
        if name.startswith(("_", "gi_", "ag_")):
            # What tools look for in objects that they do not know.
            raise AttributeError(name)
        raise self.refused(f"attribute {name!r}")

    def __repr__(self) -> str:
        return f"<{self._name}(), called at {self.where}, to be awaited>"

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        # A task that shows itself asks whether it has a coroutine.
        if _getframe(1).f_globals.get("__name__") == "asyncio.base_tasks":
            return True
        raise self.refused("bool()")

    def __reduce__(self) -> NoReturn:
        raise self.refused("a copy")

    def refused(self, use: str) -> NotAwaited:
        """Return the error of a use that needs the awaited result."""
        return NotAwaited(
            f"{use} of {self._name}(), called at {self.where}, which was not awaited: write `await` before the call, "
            "in an `async def`",
            call=self._name,
            file=self._code.co_filename,
            line=self._line,
        )


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: AwaitableCall, *_: Any) -> NoReturn:
        raise self.refused(name)

    return refuse


_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod", "matmul",
    "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
#: What a result may be used for, and a call that was not awaited may not.
_USES = {
    "comparison": ("eq", "ne", "lt", "le", "gt", "ge"),
    "iteration": ("iter", "reversed"),
    "len()": ("len",),
    "in": ("contains",),
    "indexing": ("getitem", "setitem", "delitem"),
    "str()": ("str", "format"),
    "a number": ("int", "float", "complex", "index", "round"),
    "arithmetic": ("neg", "pos", "abs", "invert", *_OPERATORS, *(f"r{name}" for name in _OPERATORS)),
}
for _use, _names in _USES.items():
    for _name in _names:
        setattr(AwaitableCall, f"__{_name}__", _refusal(_use))


def first_unawaited(calls: Iterable[AwaitableCall], owner: Frame | None) -> AwaitableCall | None:
    """Return the first of these calls that was made in an attempt, or in the workflow's own code if there is none."""
    return next((call for call in list(calls) if call.frame is not None and call.frame.owner is owner), None)


def refuse_behind_wait(calls: Iterable[AwaitableCall], frame: Frame, name: str) -> None:
    """Raise `NotAwaited` if code that is about to start a step, in this frame or one around it, has called `ask`,
    `sleep` or `wait_for` without awaiting it: the step may depend on it."""
    for call in list(calls):
        around = call.frame
        if around is None or around.owner is not frame.owner:
            continue
        if around is frame or f"{frame.address}/".startswith(f"{around.address}/" if around.address else ""):
            raise call.never_awaited(f"{name!r} was not started: ")


def refuse_as_argument(value: Any) -> None:
    """Raise `NotAwaited` if a value is, or holds, a call that was not awaited."""
    left, seen = [value], set()
    while left:
        value = left.pop()
        if type(value) is AwaitableCall:
            raise value.refused("an argument made")
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            left += value
