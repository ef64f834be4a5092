"""Heartbeats: the activity of each execution of this process, for monitors in any process.

One small value of the store per engine describes all its executions, written by the thread that renews leases. So
progress costs a step one clock reading, and a monitor judges what the owner itself reported, at the time of the report.
An engine without executions removes its value; the monitor removes those of dead engines.

Invariant: a step that reports progress is never shown as silent for longer than since its last report.
"""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import iscoroutine
from sys import _current_frames
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import CorruptStore, HoldfastError, StaleVersion
from holdfast.log import warn
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import detail_of
from holdfast.store.protocol import Store
from holdfast.struct_types import resolved

if TYPE_CHECKING:
    from holdfast.execution.engine_context import EngineContext
    from holdfast.execution.execution import Execution
    from holdfast.execution.frame import Frame

#: Seconds between two heartbeats, at least; heartbeats per timeout.
_QUICKEST = 0.25
_PARTS = 4
#: Microseconds without a boundary after which it is asked whether the run is still ours.
_QUIET = 1_000_000
#: Characters of a stack that are kept.
_STACK = 6000
#: Coroutines that are looked at, how often, and the seconds between two looks.
_DEEPEST, _LOOKS, _MOMENT = 100, 10, 0.001
#: How the names of these values begin.
_PREFIX = "pulse/"
#: Microseconds after which an engine is dead; names that are checked together.
_DEAD = 3_600_000_000
_TIDY = 200


class ActiveStep(msgspec.Struct, frozen=True, omit_defaults=True, rename={"heartbeat_timeout": "silent"}):
    """A step that is running."""

    address: str
    attempt: int
    #: When the attempt began, and its last sign of life.
    began: int
    beat: int
    #: Seconds that it may be silent, as the step itself says; and that an attempt may take.
    heartbeat_timeout: float | None = None
    timeout: float | None = None
    #: The stack of its code, once it has been silent for too long.
    stack: str = ""


class ActiveExecution(msgspec.Struct, frozen=True, omit_defaults=True):
    """The activity of an execution."""

    #: The start, and the last boundary between steps.
    began: int
    beat: int
    #: Of the run at the start: distinguishes executions (see `RunDetail.fence`).
    fence: int = 0
    timeline: int = 1
    #: Is a step, or a run that is part of this one, under way?
    busy: bool = False
    #: The innermost steps that are running.
    steps: list[ActiveStep] = []
    #: The stack of the workflow's own code, once it has been too long between two steps.
    stack: str = ""


class Heartbeat(msgspec.Struct, frozen=True):
    """The executions of an engine, by the key of their runs."""

    at: int
    runs: dict[int, ActiveExecution] = {}


class _Time(msgspec.Struct):
    """The time of a heartbeat, whatever else it holds."""

    at: int


class Heartbeats:
    """Writes the heartbeats of one engine."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset: at first, and in a child after a fork, which has a name of its own."""
        #: Held while a heartbeat is collected and written: the last one written is the newest.
        self._lock = threading.Lock()
        #: The revision of the value that we wrote, and whether the last attempt to write failed.
        self._revision = 0
        self._away = False
        self._closed = False

    def close(self) -> None:
        """Stop writing."""
        with self._lock:
            self._closed = True
            # Do not wait for a store that was unavailable a moment ago; the monitor removes the value.
            if self._revision and not self._away:
                with suppress(HoldfastError):
                    self._take_away()

    def beat(self) -> None:
        """Write the heartbeat, if there are executions, and abandon those whose runs have other owners now."""
        engine = self._engine
        executions = list(engine.executions.values())
        try:
            for execution in executions:
                quiet = engine.context.clock() - execution.beat > _QUIET
                if quiet and execution.writer.between_writes(partial(lost_run, engine, execution)):
                    engine.abandon(execution.id, execution)
            with self._lock:
                self._update()
        except HoldfastError:
            pass  # The store cannot be written: the leases expire.
        except Exception:
            # Leases must be renewed all the same.
            warn("the heartbeat could not be written", trace=True)

    def pace(self, most: float) -> float:
        """Return the seconds until the next heartbeat: the shortest timeout decides."""
        budgets = [most]
        for execution in list(self._engine.executions.values()):
            watchdog = execution.watchdog
            if watchdog is not None:
                budgets += [
                    each / _PARTS
                    for each in (watchdog.heartbeat_timeout, watchdog.idle_timeout)
                    if each is not None
                ]
            budgets += [
                frame.heartbeat_timeout / _PARTS
                for frame in list(execution.active.values())
                if frame.heartbeat_timeout is not None
            ]
        return max(_QUICKEST, min(budgets))

    def _update(self) -> None:
        if self._closed:
            return
        self._away = True
        if self._engine.executions:
            self._write(msgspec.msgpack.encode(collected(self._engine)))
        elif self._revision:
            self._take_away()
        self._away = False

    def _write(self, data: bytes) -> None:
        name, store = heartbeat_name(self._engine.owner), self._engine.store
        try:
            self._revision = store.set_value(name, data, self._revision)
        except StaleVersion:
            # The last write was carried out although it seemed to fail, or a monitor removed the value.
            found = store.value(name)
            self._revision = store.set_value(name, data, 0 if found is None else found[1])

    def _take_away(self) -> None:
        revision, self._revision = self._revision, 0
        with suppress(StaleVersion):
            self._engine.store.drop_value(heartbeat_name(self._engine.owner), revision)


def drop_dead_heartbeats(store: Store, now: int, after: str = "") -> str:
    """Remove the heartbeats of engines that are long dead from one page of names; return the name after which to
    continue."""
    names = store.value_names(_PREFIX, after=after, limit=_TIDY)
    for name in names:
        # What cannot be read is found by `verify`.
        with suppress(StaleVersion, CorruptStore, msgspec.MsgspecError):
            found = store.value(name)
            if found is not None and now - msgspec.msgpack.decode(found[0], type=resolved(_Time)).at > _DEAD:
                store.drop_value(name, found[1])
    return names[-1] if len(names) == _TIDY else ""


def read_heartbeat(store: Store, owner: str) -> Heartbeat | None:
    """Return the last heartbeat of an engine."""
    found = store.value(heartbeat_name(owner))
    return None if found is None else msgspec.msgpack.decode(found[0], type=resolved(Heartbeat))


def heartbeat_name(owner: str) -> str:
    """Return the name of the value: the unique part of the owner's name."""
    return f"{_PREFIX}{owner.rpartition('|')[2]}"


def lost_run(engine: EngineContext, execution: Execution) -> bool:
    """Return whether another process has taken over the run of an execution."""
    run = execution.head.run
    if engine.store.revision(run.id) == (run.key, run.revision):
        return False
    now = engine.store.run(run.id)
    return now is None or now.owner != engine.owner or execution.is_fenced(now, detail_of(now))


def collected(engine: EngineContext) -> Heartbeat:
    """Return the heartbeat of an engine."""
    now = engine.context.clock()
    signs = {
        execution.head.run.key: activity_of(execution, now) for execution in list(engine.executions.values())
    }
    return Heartbeat(now, signs)


def activity_of(execution: Execution, now: int, *, stacks: bool = False) -> ActiveExecution:
    """Return the activity of an execution; with `stacks`, with the stacks of its code in any case."""
    watchdog = execution.watchdog
    frames = list(execution.active.values())
    steps = []
    for frame in _innermost(frames):
        budget = allowed_silence(
            frame.heartbeat_timeout, frame.timeout, None if watchdog is None else watchdog.heartbeat_timeout
        )
        late = stacks or (budget is not None and now - frame.beat > budget * 1e6)
        stack = _safely(stack_of, frame) if late else ""
        steps.append(
            ActiveStep(
                frame.address,
                frame.attempt,
                frame.began,
                frame.beat,
                frame.heartbeat_timeout,
                frame.timeout,
                stack,
            )
        )
    between = None if watchdog is None else watchdog.idle_timeout
    late = not frames and (stacks or (between is not None and now - execution.beat > between * 1e6))
    stack = _safely(stack_of, execution.root) if late and execution.root is not None else ""
    return ActiveExecution(
        began=execution.began,
        beat=execution.beat,
        fence=execution.detail.fence,
        timeline=execution.head.run.timeline,
        busy=bool(frames),
        steps=steps,
        stack=stack,
    )


def allowed_silence(own: float | None, timeout: float | None, watched: float | None) -> float | None:
    """Return the seconds that a step may be silent: its own setting, or that of its workflow. A step with a timeout may
    take that long in any case."""
    if own is not None:
        return own
    return None if watched is None else max(watched, timeout or 0)


def _innermost(frames: Iterable[Frame]) -> list[Frame]:
    """Return the running attempts that wait for no step and no run that they have called."""
    frames = list(frames)
    around: set[int] = set()
    for frame in frames:
        outer = frame.caller if frame.attempt else frame.owner
        while outer is not None:
            around.add(id(outer))
            outer = outer.caller
    return [frame for frame in frames if frame.attempt and not frame.over and id(frame) not in around]


def stack_of(frame: Frame) -> str:
    """Return the stack of the code of a frame: of its thread, or of its task if that is waiting."""
    task = frame.home
    if task is not None:
        coroutine = task.get_coro()
        chain = None if coroutine is None else _waiting_chain(coroutine)
        if chain is not None:
            return _cut(_formatted(chain))
    found = _current_frames().get(frame.thread)
    if found is None:
        return ""
    entries = traceback.extract_stack(found)
    # The user's code starts after the driver that called it.
    own = [at for at, entry in enumerate(entries) if entry.filename == _DRIVER]
    return _cut(traceback.format_list(entries[own[-1] + 1 :] if own else entries))


def _waiting_chain(coroutine: Any) -> list[Any] | None:
    """Return the chain of coroutines in which each awaits the next, outermost first. If one of them is running, try
    again; return None if that stays so."""
    for _ in range(_LOOKS):
        chain: list[Any] = []
        inner = coroutine
        while inner is not None and len(chain) < _DEEPEST:
            chain.append(inner)
            inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
            if type(inner).__name__ == "coroutine_wrapper":
                # The iterator of an awaitable call; Python does not say otherwise which coroutine it is of.
                inner = next(filter(iscoroutine, gc.get_referents(inner)), None)
        if not any(map(_is_running, chain)):
            return chain
        time.sleep(_MOMENT)
    return None


def _formatted(chain: list[Any]) -> list[str]:
    frames = [getattr(each, "cr_frame", None) or getattr(each, "gi_frame", None) for each in chain]
    return [
        line
        for frame in frames
        if frame is not None and frame.f_code.co_filename != _DRIVER
        for line in traceback.format_list(traceback.extract_stack(frame, limit=1))
    ]


def _is_running(coroutine: Any) -> bool:
    return bool(getattr(coroutine, "cr_running", False) or getattr(coroutine, "gi_running", False))


def _cut(lines: list[str]) -> str:
    text = "".join(lines)
    return text if len(text) <= _STACK else f"…{text[-_STACK:]}"


def _safely(work: Callable[[Frame], str], frame: Frame) -> str:
    try:
        return work(frame)
    except Exception:
        # Inspecting running code must not end the thread that renews leases.
        return ""


def local_execution(engine: EngineContext, run: RunRecord) -> Execution | None:
    """Return the execution of a run, if it is one of this engine."""
    return engine.executions.get(run.id) if run.owner == engine.owner else None


_DRIVER = __file__.replace("heartbeat.py", "effects.py")
