"""Signs of life: what each execution of this process is at, and since when, for monitors in any process.

One small value of the store for each engine tells of all its executions, written by the thread that renews leases. So
progress costs a step nothing but a time, and what a monitor judges is what the owner itself said, at the time at which
it said so. Whoever has nothing to tell any more takes its value away; the monitor does so for those that died.

Invariant: a step that reports progress is never shown as silent for longer than since its last report.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import CorruptStore, HoldfastError, StaleVersion
from holdfast.model.records import RunRecord
from holdfast.runtime.log import warn
from holdfast.runtime.waits import facts_of
from holdfast.store.base import Store
from holdfast.struct_types import resolved

if TYPE_CHECKING:
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.services import Services
    from holdfast.runtime.session import Session

#: Seconds between two pulses, at least; a budget is told in so many.
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
#: Microseconds after which nobody speaks under a name any more; how many are looked at together.
_DEAD = 3_600_000_000
_TIDY = 200


class Busy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step that is running."""

    address: str
    attempt: int
    #: When the attempt began, and its last sign of life.
    began: int
    beat: int
    #: Seconds that it may be silent, as the step itself says; and that an attempt may take.
    silent: float | None = None
    timeout: float | None = None
    #: Where its code stands, once it has been silent for too long.
    stack: str = ""


class Sign(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an execution is at."""

    #: When it began, and the last boundary between steps.
    began: int
    beat: int
    #: Of the run, when it began: what tells it from executions before and after (see `Facts.fence`).
    fence: int = 0
    timeline: int = 1
    #: Is a step, or a run that is part of this one, under way?
    busy: bool = False
    #: The innermost steps that are running.
    steps: list[Busy] = []
    #: Where the workflow's own code stands, once that has been too long between two steps.
    stack: str = ""


class Pulse(msgspec.Struct, frozen=True):
    """What an engine said of its executions, by the key of their runs."""

    at: int
    runs: dict[int, Sign] = {}


class _Time(msgspec.Struct):
    """When something was said, whatever it was."""

    at: int


class Pulses:
    """Tells what the executions of one engine are at."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.start_anew()

    def start_anew(self) -> None:
        """At first, and in a child after a fork, which speaks under a name of its own."""
        #: Held while something is told: what is said last is what was seen last.
        self._lock = threading.Lock()
        #: The revision of the value that we wrote, and whether the last attempt to write failed.
        self._revision = 0
        self._away = False
        self._closed = False

    def close(self) -> None:
        """Tell nothing any more."""
        with self._lock:
            self._closed = True
            # A store that was away a moment ago is not waited for; the monitor takes away what is left.
            if self._revision and not self._away:
                with suppress(HoldfastError):
                    self._take_away()

    def beat(self) -> None:
        """Tell of all executions, if there are any, and leave those to others that are theirs by now."""
        services = self._services
        sessions = list(services.sessions.values())
        try:
            for session in sessions:
                quiet = services.context.clock() - session.beat > _QUIET
                if quiet and session.between_writes(partial(is_lost, services, session)):
                    services.abandon(session.id, session)
            with self._lock:
                self._tell()
        except HoldfastError:
            """A store that cannot be written has other ways to say so; the lease runs out."""
        except Exception:
            # Leases must be renewed, whatever could not be told.
            warn("what runs are at could not be told", trace=True)

    def pace(self, most: float) -> float:
        """Seconds until the next pulse: the shortest budget decides."""
        budgets = [most]
        for session in list(self._services.sessions.values()):
            watch = session.watch
            if watch is not None:
                budgets += [each / _PARTS for each in (watch.silent, watch.between) if each is not None]
            budgets += [
                frame.silent / _PARTS for frame in list(session.active.values()) if frame.silent is not None
            ]
        return max(_QUICKEST, min(budgets))

    def _tell(self) -> None:
        if self._closed:
            return
        self._away = True
        if self._services.sessions:
            self._write(msgspec.msgpack.encode(collected(self._services)))
        elif self._revision:
            self._take_away()
        self._away = False

    def _write(self, data: bytes) -> None:
        name, store = pulse_name(self._services.owner), self._services.store
        try:
            self._revision = store.set_value(name, data, self._revision)
        except StaleVersion:
            # It was written although we did not learn so, or somebody took us for dead.
            found = store.value(name)
            self._revision = store.set_value(name, data, 0 if found is None else found[1])

    def _take_away(self) -> None:
        revision, self._revision = self._revision, 0
        with suppress(StaleVersion):
            self._services.store.drop_value(pulse_name(self._services.owner), revision)


def tidy(store: Store, now: int, after: str = "") -> str:
    """Take away what engines said that are long dead, of a page of names; gives the name after which to go on."""
    names = store.value_names(_PREFIX, after=after, limit=_TIDY)
    for name in names:
        # What cannot be read is found by `verify`.
        with suppress(StaleVersion, CorruptStore, msgspec.MsgspecError):
            found = store.value(name)
            if found is not None and now - msgspec.msgpack.decode(found[0], type=resolved(_Time)).at > _DEAD:
                store.drop_value(name, found[1])
    return names[-1] if len(names) == _TIDY else ""


def read_pulse(store: Store, owner: str) -> Pulse | None:
    """What an engine said last."""
    found = store.value(pulse_name(owner))
    return None if found is None else msgspec.msgpack.decode(found[0], type=resolved(Pulse))


def pulse_name(owner: str) -> str:
    """The name of the value: the part of an owner's name that no other has."""
    return f"{_PREFIX}{owner.rpartition('|')[2]}"


def is_lost(services: Services, session: Session) -> bool:
    """Has somebody taken the run of an execution away?"""
    run = session.head.run
    if services.store.revision(run.id) == (run.key, run.revision):
        return False
    now = services.store.run(run.id)
    return now is None or now.owner != services.owner or session.is_fenced(now, facts_of(now))


def collected(services: Services) -> Pulse:
    """What all executions of an engine are at now."""
    now = services.context.clock()
    signs = {session.head.run.key: sign_of(session, now) for session in list(services.sessions.values())}
    return Pulse(now, signs)


def sign_of(session: Session, now: int, *, stacks: bool = False) -> Sign:
    """What an execution is at; with `stacks`, where its code stands in any case."""
    watch = session.watch
    frames = list(session.active.values())
    steps = []
    for frame in _innermost(frames):
        budget = silence(frame.silent, frame.timeout, None if watch is None else watch.silent)
        late = stacks or (budget is not None and now - frame.beat > budget * 1e6)
        stack = _safely(stack_of, frame) if late else ""
        steps.append(
            Busy(frame.address, frame.attempt, frame.began, frame.beat, frame.silent, frame.timeout, stack)
        )
    between = None if watch is None else watch.between
    late = not frames and (stacks or (between is not None and now - session.beat > between * 1e6))
    stack = _safely(stack_of, session.root) if late and session.root is not None else ""
    return Sign(
        began=session.began,
        beat=session.beat,
        fence=session.facts.fence,
        timeline=session.head.run.timeline,
        busy=bool(frames),
        steps=steps,
        stack=stack,
    )


def silence(own: float | None, timeout: float | None, watched: float | None) -> float | None:
    """Seconds that a step may be silent: what it says itself, or what its workflow allows. A step with a timeout may
    take that long in any case."""
    if own is not None:
        return own
    return None if watched is None else max(watched, timeout or 0)


def _innermost(frames: Iterable[Frame]) -> list[Frame]:
    """The attempts under way that wait for no step and no run that they have called."""
    frames = list(frames)
    around: set[int] = set()
    for frame in frames:
        outer = frame.within if frame.attempt else frame.owner
        while outer is not None:
            around.add(id(outer))
            outer = outer.within
    return [frame for frame in frames if frame.attempt and not frame.over and id(frame) not in around]


def stack_of(frame: Frame) -> str:
    """Where the code of a frame stands: its thread, or its task if that is waiting."""
    task = frame.home
    if task is not None:
        coroutine = task.get_coro()
        chain = None if coroutine is None else _waiting_chain(coroutine)
        if chain is not None:
            return _cut(_formatted(chain))
    found = sys._current_frames().get(frame.thread)
    if found is None:
        return ""
    entries = traceback.extract_stack(found)
    # What is the user's begins after what called it.
    own = [at for at, entry in enumerate(entries) if entry.filename == _DRIVER]
    return _cut(traceback.format_list(entries[own[-1] + 1 :] if own else entries))


def _waiting_chain(coroutine: Any) -> list[Any] | None:
    """The coroutines that wait for each other, outermost first; None if they run. Their task may go on meanwhile, and
    is looked at again then."""
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
        # A look at code that goes on running beside must not end the thread that renews leases.
        return ""


def owner_here(services: Services, run: RunRecord) -> Session | None:
    """The execution of a run, if it is one of this engine."""
    return services.sessions.get(run.id) if run.owner == services.owner else None


_DRIVER = __file__.replace("pulse.py", "drive.py")
