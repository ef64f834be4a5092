"""Workflows that events start.

For each such workflow, one subscription reads the journal; the position up to which it has come is kept in the store.
An event puts a run into a queue, under an id that follows from the event: several processes may listen, and the run is
made once. It is executed by any worker of that queue, or by the worker that each listening process has for the
workflows that events start. If a process dies, others take its runs over when its lease has expired.

Invariant: every event that came after a workflow was first listened for in the store makes one run of it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
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
from holdfast.history.commit import INPUT
from holdfast.model.names import meant
from holdfast.model.public import Event
from holdfast.model.records import RunRecord
from holdfast.runtime.definition import Workflow, observe_triggers, triggered, workflow_of, workflows
from holdfast.runtime.log import warn
from holdfast.runtime.publish import Subscription
from holdfast.store.interrupts import Flag
from holdfast.tree.codec import decode

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet
    from holdfast.fleet.worker import Worker

#: The actor of runs that events start.
_ACTOR = "holdfast event"
#: Seconds between two attempts to write to a store that is busy or away.
_PAUSE = 0.5
_AWAY = (TryAgain, StoreUnavailable, CommitUnknown)


class Triggers:
    """Starts workflows by events, for one engine."""

    def __init__(self, fleet: Fleet, make_worker: Callable[[Callable[[], Sequence[str]]], Worker]) -> None:
        self._fleet = fleet
        self._make_worker = make_worker
        self._working = False
        self._closed = Flag()
        self._begin()
        observe_triggers(self)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._listening: dict[str, Subscription] = {}
        self._worker: Worker | None = None

    def listen(self) -> None:
        """Listen for every workflow that is started by events, also for those that are defined later."""
        if self._process != os.getpid():
            # A child after a fork: the threads are in the parent.
            self._begin()
        with self._lock:
            self._working = True
            for workflow in triggered():
                if workflow.name not in self._listening and not self._closed.is_set():
                    self._listening[workflow.name] = self._subscribe(workflow)
                    self._check_source(workflow)
            if self._listening and self._worker is None and not self._closed.is_set():
                self._worker = self._make_worker(lambda: [each.name for each in triggered()]).start()

    def trigger_defined(self) -> None:
        """Listen for a workflow that was defined while this engine is at work."""
        if self._working and not self._closed.is_set():
            try:
                self.listen()
            except HoldfastError:
                warn("events cannot be listened for yet; the next run or resume tries again", trace=True)

    def close(self) -> None:
        """Start nothing more."""
        self._closed.set()

    def _check_source(self, workflow: Workflow) -> None:
        """Warn of an `of` that may be misspelt. It is not refused: another program may define that workflow."""
        of = workflow.of
        if of is None or of in workflows() or self._fleet._store.runs(workflow=of, limit=1):
            return
        warnings.warn(
            f"workflow {workflow.name!r} is started by events of workflow {of!r}, which neither this process nor the "
            f"store knows yet{meant(of, workflows())}",
            HoldfastWarning,
            stacklevel=2,
        )

    def _subscribe(self, workflow: Workflow) -> Subscription:
        store = self._fleet._store
        key = f"trigger:{workflow.name}"
        found = store.value(key)
        if found is None:
            try:
                store.set_value(key, str(store.journal_end()).encode(), 0)
            except StaleVersion:
                """Another process was first."""
            found = store.value(key)
        assert found is not None

        def on_event(event: Event) -> None:
            if event.cursor and self._is_wanted(workflow.name, event):
                self._start(workflow.name, event)
                self._remember(key, event.cursor)

        return self._fleet._services.publisher.subscribe(on_event, kinds=[], run_id=None, after=int(found[0]))

    def _is_wanted(self, name: str, event: Event) -> bool:
        try:
            on = workflow_of(name).on
        except NotFound:
            return False
        return on is not None and fnmatchcase(event.kind, on)

    def _start(self, name: str, event: Event) -> None:
        """Make the run of an event. A store that is away is waited for: the event must not be passed over."""
        while not self._closed.is_set():
            try:
                return self._enqueue(name, event)
            except AlreadyExists:
                return None
            except _AWAY as error:
                warn("workflow %s waits to be started by %s: %s", name, event.kind, error)
                self._closed.wait(_PAUSE)
            except HoldfastError:
                return warn("workflow %s could not be started by %s", name, event.kind, trace=True)
        raise StoreUnavailable(f"workflow {name!r} was not started by {event.kind}: this engine is closed")

    def _enqueue(self, name: str, event: Event) -> None:
        workflow = workflow_of(name)
        source = self._fleet._store.run(event.run)
        of = None if source is None else source.workflow
        causes = self._causes(source)
        if name in causes or (workflow.of is not None and of != workflow.of):
            return
        given = {**_facts_of(event, of), "causes": causes}
        self._fleet.enqueue(workflow, given, run_id=f"{name}-on-{event.cursor}", actor=_ACTOR)

    def _causes(self, run: RunRecord | None) -> list[str]:
        """The workflows of a run, of those that it is a part of, and of those whose events started them: none of these
        is started by it, or they would start each other again and again."""
        found: list[str] = []
        store = self._fleet._store
        while run is not None:
            if run.workflow is not None:
                found.append(run.workflow)
            first = store.versions(run.key, after=0, before=2, limit=1)
            if first and first[0].detail and decode(first[0].detail).get("actor") == _ACTOR:
                given = self._fleet._context.reader(run).part(1, INPUT)
                found += given[0][0].get("causes", [])
            run = None if run.parent is None else store.run_by_key(run.parent)
        return found

    def _remember(self, key: str, cursor: int) -> None:
        store = self._fleet._store
        found = store.value(key)
        if found is not None and int(found[0]) < cursor:
            try:
                store.set_value(key, str(cursor).encode(), found[1])
            except StaleVersion:
                """Another process is further; a run that is started twice is refused by its id."""


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
