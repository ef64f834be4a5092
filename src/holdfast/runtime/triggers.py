"""Workflows that events start.

One subscription reads the journal; how far it has come is kept in the store. The id of a run that an event starts
follows from the event, so that however many processes listen, it is started once.

Invariant: every event that came after a workflow was first known in the store starts it, once.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from holdfast.errors import AlreadyExists, HoldfastError, StaleVersion
from holdfast.model.public import Event
from holdfast.model.records import RunRecord
from holdfast.runtime.definition import Workflow, triggered
from holdfast.runtime.log import warn
from holdfast.runtime.publish import Subscription

if TYPE_CHECKING:
    from holdfast.runtime.runner import Runner


class Triggers:
    """Starts workflows by events, for one engine."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._listening: dict[str, Subscription] = {}

    def listen(self) -> None:
        """Listen for every workflow that has come to be known since."""
        for workflow in triggered():
            if workflow.name not in self._listening:
                self._listening[workflow.name] = self._subscribe(workflow)

    def _subscribe(self, workflow: Workflow) -> Subscription:
        store = self._runner._store
        name = f"trigger:{workflow.name}"
        found = store.value(name)
        if found is None:
            try:
                store.set_value(name, str(store.journal_end()).encode(), 0)
            except StaleVersion:
                """Another process was first."""
            found = store.value(name)
        assert found is not None

        def on_event(event: Event) -> None:
            if event.cursor:
                self._start(workflow, event)
                self._remember(name, event.cursor)

        return self._runner._services.publisher.subscribe(
            on_event, kinds=[workflow.on or "*"], run_id=None, after=int(found[0])
        )

    def _start(self, workflow: Workflow, event: Event) -> None:
        source = self._runner._store.run(event.run)
        of = None if source is None else source.workflow
        if self._is_within(source, workflow) or (workflow.of is not None and of != workflow.of):
            return
        assert workflow.on is not None
        if not fnmatchcase(event.kind, workflow.on):
            return
        try:
            self._runner.run(workflow, _told(event, of), run_id=f"{workflow.name}-on-{event.cursor}")
        except AlreadyExists:
            """Started by another process, or before a restart."""
        except HoldfastError:
            warn("workflow %s could not be started by %s", workflow.name, event.kind, trace=True)

    def _is_within(self, run: RunRecord | None, workflow: Workflow) -> bool:
        """Is a run one of this workflow, or a part of one? It would start itself again and again."""
        while run is not None:
            if run.workflow == workflow.name:
                return True
            run = None if run.parent is None else self._runner._store.run_by_key(run.parent)
        return False

    def _remember(self, name: str, cursor: int) -> None:
        store = self._runner._store
        found = store.value(name)
        if found is not None and int(found[0]) < cursor:
            try:
                store.set_value(name, str(cursor).encode(), found[1])
            except StaleVersion:
                """Another process is further; a run that is started twice is refused by its id."""


def _told(event: Event, workflow: str | None) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "run": event.run,
        "workflow": workflow,
        "version": event.version,
        "step": event.step,
        "at": event.at,
        "data": event.data,
    }
