"""The parts that handlers use: the engine, background tasks, the stream of events, recently read states, settings.

A task is work that takes longer than a request: verifying a store, collecting garbage, resuming a run. Each has its own
thread, and their number is limited.

Invariant: a task ends in `done` or `failed`, and the most recent ones can still be queried. The cache of states is
bounded and keyed by the hash of a version.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec

from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError, NotFound
from holdfast.execution.run import Run
from holdfast.history.version import Version
from holdfast.loops import LoopEngine
from holdfast.operator_view.actions import run_outcome
from holdfast.tree import path as paths
from holdfast.web.auth import Caller, Credentials, limit_reached, role_limits
from holdfast.web.errors import ProblemDocument, RequestRefused, problem_for
from holdfast.web.live import EventBroadcaster
from holdfast.web.operation import Role

#: Concurrent tasks, and tasks that are remembered.
MAX_TASKS = role_limits(32, viewer=4, operator=24)
_REMEMBERED = 256

Progress = Callable[[int, int], None]
#: The work of a task; gets a function that reports progress.
Work = Callable[[Progress], Any]


class _TaskAborted(HoldfastError):
    """The work raised an exception that ends a thread."""


class TaskView(TypedDict):
    """Task that is `running`, `done` or `failed`."""

    id: str
    kind: str
    run: str | None
    status: str
    done: int
    total: int
    started: datetime
    ended: datetime | None
    result: Any
    error: ProblemDocument | None


class BackgroundTask:
    """Work in a thread of its own."""

    def __init__(self, kind: str, run: str | None, role: Role, now: Callable[[], datetime]) -> None:
        self.id = secrets.token_hex(6)
        self.kind = kind
        self.run = run
        #: The role of the caller that started it.
        self.role = role
        self.ended: datetime | None = None
        self.done = 0
        self.total = 0
        self.future: Future[Any] = Future()
        self._now = now
        self.started = now()

    @property
    def failure(self) -> BaseException | None:
        """Return the exception that it failed with, or None."""
        return self.future.exception() if self.future.done() else None

    def work(self, work: Work) -> None:
        """Run the work and set the result."""
        try:
            result = work(self._advance)
        except BaseException as error:
            self.ended = self._now()
            # SystemExit and KeyboardInterrupt end the task only.
            self.future.set_exception(
                error if isinstance(error, Exception) else _TaskAborted(f"ended by {type(error).__name__}")
            )
        else:
            self.ended = self._now()
            self.future.set_result(result)

    def call_when_done(self, notify: Callable[[], Any]) -> None:
        """Call a function when the task has ended; at once if it has."""

        def on_done(future: Future[Any]) -> None:
            # The event loop of the caller may be closed.
            with suppress(RuntimeError):
                notify()

        self.future.add_done_callback(on_done)

    def record(self) -> TaskView:
        """Return the state of the task."""
        error = self.failure
        is_done = self.future.done()
        return {
            "id": self.id,
            "kind": self.kind,
            "run": self.run,
            "status": "running" if not is_done else "done" if error is None else "failed",
            "done": self.done,
            "total": self.total,
            "started": self.started,
            "ended": self.ended,
            "result": self.future.result() if is_done and error is None else None,
            "error": None if error is None else problem_for(error)[0],
        }

    def _advance(self, done: int, total: int) -> None:
        self.done, self.total = done, total


class BackgroundTasks:
    """Tasks of a server."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._tasks: dict[str, BackgroundTask] = {}
        self._lock = threading.Lock()

    def start(
        self, kind: str, work: Work, role: Role, *, run: str | None = None, alone: bool = False
    ) -> BackgroundTask:
        """Start a task for a caller; with `alone`, return the running task of this kind and run, if there is one."""
        with self._lock:
            busy = [task for task in self._tasks.values() if not task.future.done()]
            if alone:
                for task in busy:
                    if (task.kind, task.run) == (kind, run):
                        return task
            limit = limit_reached(MAX_TASKS, Counter(task.role for task in busy), role)
            if limit is not None:
                raise RequestRefused(
                    429,
                    "too_many_tasks",
                    f"{limit} tasks of your role are running: wait for one to end",
                    retry_after="5",
                )
            task = BackgroundTask(kind, run, role, self._now)
            if len(self._tasks) >= _REMEMBERED:
                # The oldest of the lowest role.
                ended = (each for each in self._tasks.values() if each.future.done())
                del self._tasks[min(ended, key=lambda each: each.role).id]
            self._tasks[task.id] = task
        # A daemon thread: an interrupted run can be resumed.
        threading.Thread(target=task.work, args=[work], name=f"holdfast {kind}", daemon=True).start()
        return task

    def all(self) -> list[BackgroundTask]:
        """Return the known tasks, newest first."""
        with self._lock:
            return list(self._tasks.values())[::-1]

    def runs(self) -> list[str]:
        """Return the runs of running tasks, in the order in which they were started."""
        return list(
            dict.fromkeys(
                task.run for task in self.all()[::-1] if task.run is not None and not task.future.done()
            )
        )

    def get(self, task_id: str) -> BackgroundTask:
        """Return a task by its id."""
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(
                f"there is no task {task_id!r:.40}: ended tasks are removed after a while", task=task_id
            )
        return task


#: States in the cache.
_CACHED = 4


class StateCache:
    """Cache of recently read parts of states, so that paging through one reads it once.

    A version never changes, so entries never become stale. While a state is cached, reading its neighbours in the
    history is faster: they share nodes."""

    def __init__(self, size: int = _CACHED) -> None:
        self._size = size
        self._parts: OrderedDict[tuple[str, str, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, version: Version, segments: Sequence[Any]) -> Any:
        """Return the part of a version's state at a path."""
        key = (version.run, version.hash, paths.show(segments))
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return self._parts[key]
        value = version.get(segments) if segments else version.state
        if isinstance(value, dict | list | str):
            with self._lock:
                self._parts[key] = value
                while len(self._parts) > self._size:
                    self._parts.popitem(last=False)
        return value


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the server."""

    #: The store without secrets, for display, and its address.
    store: str
    where: str
    #: Accepted Host headers.
    hosts: Sequence[str]
    #: Origin of launch URLs.
    origin: str
    cookie: str = "holdfast"
    https: bool = False
    legacy_get: bool = False
    #: Seconds between keep-alive comments on a stream.
    heartbeat: float = 15.0
    #: Concurrent streams, and other requests.
    streams: int = 400
    requests: int = 600


class Service:
    """Parts that handlers use."""

    def __init__(
        self, hf: Holdfast, credentials: Credentials, settings: ServerSettings, broadcaster: EventBroadcaster
    ) -> None:
        self.hf = hf
        self.credentials = credentials
        self.settings = settings
        self.broadcaster = broadcaster
        self.tasks = BackgroundTasks()
        self.loops = LoopEngine(hf)
        self.recent = StateCache()

    def advance(self, kind: str, run: str, caller: Caller, action: Callable[[], Run]) -> BackgroundTask:
        """Start a task for an action that may run workflow code. Its result is the outcome of the run that the action
        returns."""
        return self.tasks.start(kind, lambda _: run_outcome(self.hf, action()), caller.role, run=run)
