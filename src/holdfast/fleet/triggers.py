"""Triggers: workflows that events start.

One subscription per such workflow reads the journal and stores its position. An event enqueues a run under an id
derived from the event, so several processes may listen and the run is created once. Any worker of that queue
executes it, or the worker that each listening process has for triggered workflows.

Invariant: every event after the first subscription of a workflow in the store creates one run of it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    AlreadyExists,
    CommitUnknown,
    HoldfastError,
    HoldfastWarning,
    NotFound,
    StaleVersion,
    StoreUnavailable,
    TryAgain,
)
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.options import RunOptions
from holdfast.history.builder import INPUT
from holdfast.log import warn
from holdfast.model.names import suggest
from holdfast.model.public import Event
from holdfast.model.records import RunRecord
from holdfast.store.interrupts import InterruptSafeEvent
from holdfast.tree.codec import decode
from holdfast.workflow.definition import Workflow, triggered, workflow_of, workflows
from holdfast.workflow.subscriptions import Subscription

if TYPE_CHECKING:
    from holdfast.fleet.worker import Worker

#: The actor of runs that events start.
_ACTOR = "holdfast event"
#: Seconds between attempts to write to a store that is busy or cannot be reached.
_PAUSE = 0.5
_AWAY = (TryAgain, StoreUnavailable, CommitUnknown)


class Triggers:
    """Starts workflows on events, for one engine."""

    def __init__(
        self,
        engine: EngineContext,
        enqueue: Callable[[Workflow, tuple[Any, ...], RunOptions], object],
        make_worker: Callable[[Callable[[], Sequence[str]]], Worker],
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._put = enqueue
        self._make_worker = make_worker
        self._closed = InterruptSafeEvent()
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._listening: dict[str, Subscription] = {}
        self._worker: Worker | None = None

    def start(self) -> None:
        """Subscribe for every triggered workflow, those defined later included."""
        if self._process != os.getpid():
            # A forked child: the threads stayed in the parent.
            self._reset()
        with self._lock:
            for workflow in triggered():
                if workflow.name not in self._listening and not self._closed.is_set():
                    self._listening[workflow.name] = self._subscribe(workflow)
                    self._check_source(workflow)
            if self._listening and self._worker is None and not self._closed.is_set():
                self._worker = self._make_worker(lambda: [each.name for each in triggered()]).start()

    def trigger_defined(self) -> None:
        """Subscribe for a workflow that was defined after `start`."""
        if not self._closed.is_set():
            try:
                self.start()
            except HoldfastError:
                warn("cannot subscribe to events yet; the next run or resume tries again", trace=True)

    def close(self) -> None:
        """Start nothing more."""
        self._closed.set()

    def _check_source(self, workflow: Workflow) -> None:
        """Warn of an `of` that may be misspelt. It is not an error: another program may define that workflow."""
        of = workflow.of
        if of is None or of in workflows() or self._store.runs(workflow=of, limit=1):
            return
        warnings.warn(
            f"workflow {workflow.name!r} is started by events of workflow {of!r}, which neither this process nor the "
            f"store knows yet{suggest(of, workflows())}",
            HoldfastWarning,
            stacklevel=2,
        )

    def _subscribe(self, workflow: Workflow) -> Subscription:
        store = self._store
        key = f"trigger:{workflow.name}"
        found = store.value(key)
        if found is None:
            # Another process may be first.
            with suppress(StaleVersion):
                store.set_value(key, str(store.journal_end()).encode(), 0)
            found = store.value(key)
        assert found is not None

        def on_event(event: Event) -> None:
            if event.cursor and self._is_wanted(workflow.name, event):
                self._start(workflow.name, event)
                self._remember(key, event.cursor)

        return self._engine.publisher.subscribe(on_event, kinds=[], run_id=None, after=int(found[0]))

    def _is_wanted(self, name: str, event: Event) -> bool:
        try:
            on = workflow_of(name).on
        except NotFound:
            return False
        return on is not None and fnmatchcase(event.kind, on)

    def _start(self, name: str, event: Event) -> None:
        """Create the run of an event; wait for a store that cannot be reached, so that no event is skipped."""
        while not self._closed.is_set():
            try:
                return self._enqueue(name, event)
            except AlreadyExists:
                return None
            except _AWAY as error:
                warn("workflow %s waits for the store to be started by %s: %s", name, event.kind, error)
                self._closed.wait(_PAUSE)
            except HoldfastError:
                return warn("workflow %s could not be started by %s", name, event.kind, trace=True)
        raise StoreUnavailable(f"workflow {name!r} was not started by {event.kind}: this engine is closed")

    def _enqueue(self, name: str, event: Event) -> None:
        workflow = workflow_of(name)
        source = self._store.run(event.run)
        of = None if source is None else source.workflow
        causes = self._causes(source)
        if name in causes or (workflow.of is not None and of != workflow.of):
            return
        given = {**_facts_of(event, of), "causes": causes}
        self._put(workflow, (given,), RunOptions(run_id=f"{name}-on-{event.cursor}", actor=_ACTOR))

    def _causes(self, run: RunRecord | None) -> list[str]:
        """Return the workflows of a run, of its parents, and of the runs whose events started them: the run
        triggers none of these, or they would start each other for ever."""
        found: list[str] = []
        store = self._store
        while run is not None:
            if run.workflow is not None:
                found.append(run.workflow)
            first = store.versions(run.key, after=0, before=2, limit=1)
            if first and first[0].detail and decode(first[0].detail).get("actor") == _ACTOR:
                given = self._engine.context.reader(run).part(1, INPUT)
                found += given[0][0].get("causes", [])
            run = None if run.parent is None else store.run_by_key(run.parent)
        return found

    def _remember(self, key: str, cursor: int) -> None:
        store = self._store
        found = store.value(key)
        if found is not None and int(found[0]) < cursor:
            # If another process is further, the run's id refuses a second start.
            with suppress(StaleVersion):
                store.set_value(key, str(cursor).encode(), found[1])


def _facts_of(event: Event, workflow: str | None) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "run": event.run,
        "workflow": workflow,
        "version": event.version,
        "step": event.step,
        "at": event.at,
        "data": event.data,
    }
