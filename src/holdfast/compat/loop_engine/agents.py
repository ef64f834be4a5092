"""Heartbeats of agents, and the thread that looks for stalled agents and takes scheduled snapshots.

A heartbeat is written to a separate run that keeps only its last few versions: heartbeats may be many, and
are not part of the audit. A heartbeat soon after another is not written.

Invariant: an agent has stalled when it sent no heartbeat for longer than its timeout, by the clocks of the
processes that write and check; neither a restart nor another process changes that. There is at most one
checker thread per open store in a process. A failure logs a warning on the logger `holdfast`, once while it
repeats, and the checks continue. The thread ends when it is stopped, when the store is closed, or when the
engine is no longer referenced.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

import msgspec

from holdfast.compat.loop_engine import project
from holdfast.compat.loop_engine.control import Agent, Config, Control
from holdfast.engine import Holdfast
from holdfast.errors import NotFound, StaleVersion
from holdfast.log import warn
from holdfast.model.checks import check_seconds
from holdfast.model.retention import Retention
from holdfast.store.interrupts import InterruptSafeEvent
from holdfast.struct_types import resolved

if TYPE_CHECKING:
    from holdfast.compat.loop_engine.engine import LoopEngine
    from holdfast.compat.loop_engine.replies import Reply

#: Heartbeats within this fraction of a timeout after another are not written.
_SOON = 0.1
#: After this many heartbeats, all but the last few are removed.
_TIDY = 64
_KEPT = Retention(last=4)
#: Microseconds for which a completing agent is not ended, while its snapshot is saved.
_COMPLETING = 60_000_000


class Beat(msgspec.Struct, array_like=True):
    """The last heartbeat of an agent: the token of its start, and the time."""

    token: int
    at: int


class Beats:
    """Heartbeats of the agents of one project."""

    def __init__(self, hf: Holdfast, name: str) -> None:
        self._log = hf.history(project.beats_run(name))

    def read(self) -> dict[str, Beat]:
        """Return the last heartbeat of each agent."""
        return self._read()[0]

    def note(self, agent: str, agents: Mapping[str, Agent], now: int) -> bool:
        """Record a heartbeat of a running agent, and drop those of agents that do not run. Return whether it
        was written."""
        running = agents[agent]
        while True:
            beats, number = self._read()
            last = beats.get(agent)
            if last is not None and last.token == running.token:
                soon = last.at + int(running.timeout * _SOON * 1_000_000)
            else:
                soon = running.started
            if now <= soon:
                return False
            beats = {name: beat for name, beat in beats.items() if name in agents}
            beats[agent] = Beat(running.token, now)
            try:
                made = self._log.commit(msgspec.json.encode(beats).decode(), expected=number)
            except StaleVersion:
                continue
            if made.number % _TIDY == 0:
                self._log.prune(_KEPT)
            return True

    def _read(self) -> tuple[dict[str, Beat], int]:
        try:
            head = self._log.head
        except NotFound:
            return {}, 0
        return msgspec.json.decode(head.state, type=resolved(dict[str, Beat])), head.number


def timeout_for(config: Config, agent: str, default: float) -> float:
    """Return the seconds after which an agent counts as stalled; 0 for never."""
    if agent in config.timeouts:
        return config.timeouts[agent]
    return default if config.timeout is None else config.timeout


def deadline(agent: Agent, beat: Beat | None) -> int | None:
    """Return when an agent will count as stalled unless it sends a heartbeat; None for never."""
    if not agent.timeout:
        return None
    heard = agent.started
    if beat is not None and beat.token == agent.token:
        heard = max(heard, beat.at)
    end = heard + int(agent.timeout * 1_000_000)
    return max(end, left_alone_until(agent))


def left_alone_until(agent: Agent) -> int:
    """Return the time until which an agent must not be ended because it is completing; 0 if it is not
    completing."""
    return agent.completing + _COMPLETING if agent.completing else 0


def frozen(control: Control, beats: dict[str, Beat], now: int) -> dict[str, Agent]:
    """Return the agents that have stalled."""
    found = {}
    for name, agent in control.agents.items():
        end = deadline(agent, beats.get(name))
        if end is not None and end < now:
            found[name] = agent
    return found


_checkers: WeakKeyDictionary[Holdfast, Checker] = WeakKeyDictionary()
_guard = threading.Lock()


def checker_of(hf: Holdfast, engine: LoopEngine, every: float) -> Checker:
    """Return the checker of an open store in this process."""
    check_seconds("every", every, above_zero=True, most=threading.TIMEOUT_MAX)
    with _guard:
        found = _checkers.get(hf)
        if found is None:
            found = _checkers[hf] = Checker()
    found._set(engine, every)
    return found


def _start_anew() -> None:
    """Reset the module in a forked child: the threads do not exist there, and may have held the locks."""
    global _guard  # noqa: PLW0603 - a lock that another thread holds cannot be freed, only replaced
    _guard = threading.Lock()
    _checkers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


class Checker:
    """Periodic check of all projects of a store. As a context manager it runs at least until the end of the
    block; after `start` it runs until `stop`."""

    def __init__(self) -> None:
        self._engine: ref[LoopEngine] | None = None
        self._every = 1.0
        self._thread: threading.Thread | None = None
        self._ended = InterruptSafeEvent()
        self._lock = threading.RLock()
        self._uses, self._kept = 0, False
        self._told: str | None = None
        #: Number of completed checks.
        self.looks = 0

    @property
    def alive(self) -> bool:
        """Return whether the thread is running."""
        thread = self._thread
        return thread is not None and thread.is_alive() and not self._ended.is_set()

    def start(self) -> Checker:
        """Start checking, until `stop`. Do nothing if it is running."""
        with self._lock:
            self._kept = True
            self._run()
        return self

    def stop(self) -> None:
        """Stop checking, even if blocks still use the checker; wait for a check in progress."""
        with self._lock:
            self._kept = False
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Checker:
        with self._lock:
            self._uses += 1
            self._run()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._uses = max(self._uses - 1, 0)
            wanted = self._uses or self._kept
        if not wanted:
            self.stop()

    def _set(self, engine: LoopEngine, every: float) -> None:
        with self._lock:
            known = None if self._engine is None else self._engine()
            if known is None:
                self._engine = ref(engine)
            self._every = every if not self.alive else min(every, self._every)

    def _run(self) -> None:
        if self.alive:
            return
        self._ended = ended = InterruptSafeEvent()
        self._thread = threading.Thread(
            target=self._work, args=(ended,), name="holdfast-loop-checker", daemon=True
        )
        self._thread.start()

    def _work(self, ended: InterruptSafeEvent) -> None:
        while not ended.wait(self._every):
            engine = None if self._engine is None else self._engine()
            if engine is None:
                return
            try:
                if not self._look(engine):
                    return
            except BaseException as error:
                self._tell(f"{type(error).__name__}: {error}")
            del engine

    def _look(self, engine: LoopEngine) -> bool:
        """Check once; return whether another check is possible."""
        problems: list[Reply] = []
        for reply in (engine.check_timeouts(), engine.take_scheduled_snapshots()):
            problems += [reply] if reply["status"] == "error" else reply["errors"]
            if reply.get("code") == "store_unavailable" and "closed" in reply["message"]:
                return False
        if problems:
            self._tell("; ".join(str(problem["message"]) for problem in problems[:5]))
        else:
            self._told = None
        self.looks += 1
        return True

    def _tell(self, what: str) -> None:
        if what != self._told:
            self._told = what
            with suppress(Exception):
                warn("looking for frozen agents: %s", what)
