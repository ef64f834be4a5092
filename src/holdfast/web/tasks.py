"""Work that takes longer than a request: checking a store, collecting, going on with a run.

Each task has a thread of its own; there are only so many at a time. What a task failed with is told as any other
problem.

Invariant: a task ends in `done` or `failed`, and the last ones that ended can still be asked for.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypedDict

from holdfast.errors import HoldfastError, NotFound
from holdfast.web.operation import Role
from holdfast.web.problems import Problem, Refused, told
from holdfast.web.shares import limit_reached, shares

#: Tasks that are under way at once, and that are remembered.
MOST = shares(32, viewer=4, operator=24)
_KEPT = 256

Progress = Callable[[int, int], None]
#: Does the work; is given a function to say how far it is.
Work = Callable[[Progress], Any]


class _Ended(HoldfastError):
    """The work ended its thread."""


class TaskShown(TypedDict):
    """Work that is `running`, `done` or `failed`."""

    id: str
    kind: str
    run: str | None
    status: str
    done: int
    total: int
    started: datetime
    ended: datetime | None
    result: Any
    error: Problem | None


class Task:
    """Work that was begun."""

    def __init__(self, kind: str, run: str | None, role: Role, now: Callable[[], datetime]) -> None:
        self.id = secrets.token_hex(6)
        self.kind = kind
        self.run = run
        #: That of the caller who started it.
        self.role = role
        self.ended: datetime | None = None
        self.done = 0
        self.total = 0
        self.future: Future[Any] = Future()
        self._now = now
        self.started = now()

    @property
    def failure(self) -> BaseException | None:
        """What it failed with."""
        return self.future.exception() if self.future.done() else None

    def work(self, work: Work) -> None:
        """Do it."""
        try:
            result = work(self._advance)
        except BaseException as error:
            self.ended = self._now()
            # What would end a program ends its task only.
            self.future.set_exception(
                error if isinstance(error, Exception) else _Ended(f"ended by {type(error).__name__}")
            )
        else:
            self.ended = self._now()
            self.future.set_result(result)

    def when_over(self, tell: Callable[[], Any]) -> None:
        """Have a function called when it has ended; at once, if it has."""

        def over(future: Future[Any]) -> None:
            # Whoever asked may be gone.
            with suppress(RuntimeError):
                tell()

        self.future.add_done_callback(over)

    def record(self) -> TaskShown:
        """How it stands."""
        error = self.failure
        over = self.future.done()
        return {
            "id": self.id,
            "kind": self.kind,
            "run": self.run,
            "status": "running" if not over else "done" if error is None else "failed",
            "done": self.done,
            "total": self.total,
            "started": self.started,
            "ended": self.ended,
            "result": self.future.result() if over and error is None else None,
            "error": None if error is None else told(error)[0],
        }

    def _advance(self, done: int, total: int) -> None:
        self.done, self.total = done, total


class Tasks:
    """The tasks of a server."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._tasks: dict[str, Task] = {}
        self._lock = threading.Lock()

    def begin(
        self, kind: str, work: Work, role: Role, *, run: str | None = None, alone: bool = False
    ) -> Task:
        """Begin a task for a caller; `alone` gives the one of this kind that is under way, if there is one."""
        with self._lock:
            busy = [task for task in self._tasks.values() if not task.future.done()]
            if alone:
                for task in busy:
                    if (task.kind, task.run) == (kind, run):
                        return task
            limit = limit_reached(MOST, Counter(task.role for task in busy), role)
            if limit is not None:
                raise Refused(
                    429,
                    "too_many_tasks",
                    f"{limit} tasks of your role are under way: wait for one to end",
                    retry_after="5",
                )
            task = Task(kind, run, role, self._now)
            if len(self._tasks) >= _KEPT:
                # Of the lowest role, the oldest.
                ended = (each for each in self._tasks.values() if each.future.done())
                del self._tasks[min(ended, key=lambda each: each.role).id]
            self._tasks[task.id] = task
        # A daemon: what a process that ends leaves behind can be gone on with.
        threading.Thread(target=task.work, args=[work], name=f"holdfast {kind}", daemon=True).start()
        return task

    def all(self) -> list[Task]:
        """Those that are known, newest first."""
        with self._lock:
            return list(self._tasks.values())[::-1]

    def runs(self) -> list[str]:
        """The runs that are being worked on, in the order in which that was begun."""
        return list(
            dict.fromkeys(
                task.run for task in self.all()[::-1] if task.run is not None and not task.future.done()
            )
        )

    def get(self, task_id: str) -> Task:
        """A task by its id."""
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(
                f"there is no task {task_id!r:.40}: those that ended are not kept for long", task=task_id
            )
        return task
