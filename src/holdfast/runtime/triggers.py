"""Workflows that events start.

One subscription reads the journal; how far it has come is kept in the store. The id of a run that an event starts
follows from the event, so that however many processes listen, it is started once.

Invariant: every event that came after a workflow was first known in the store starts it, once.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from holdfast.errors import AlreadyExists, HoldfastError, StaleVersion
from holdfast.history.commit import INPUT
from holdfast.model.public import Event
from holdfast.model.records import RunRecord
from holdfast.runtime.definition import Workflow, triggered
from holdfast.runtime.log import warn
from holdfast.runtime.publish import Subscription
from holdfast.tree.codec import decode

if TYPE_CHECKING:
    from holdfast.runtime.runner import Runner

#: Who starts workflows by events.
_ACTOR = "holdfast event"


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
        causes = self._causes(source)
        if workflow.name in causes or (workflow.of is not None and of != workflow.of):
            return
        assert workflow.on is not None
        if not fnmatchcase(event.kind, workflow.on):
            return
        try:
            told = {**_told(event, of), "causes": causes}
            self._runner.run(workflow, told, run_id=f"{workflow.name}-on-{event.cursor}", actor=_ACTOR)
        except AlreadyExists:
            """Started by another process, or before a restart."""
        except HoldfastError:
            warn("workflow %s could not be started by %s", workflow.name, event.kind, trace=True)

    def _causes(self, run: RunRecord | None) -> list[str]:
        """The workflows of a run, of those that it is a part of, and of those whose events started them: none of these
        is started by it, or they would start each other again and again."""
        found: list[str] = []
        store = self._runner._store
        while run is not None:
            if run.workflow is not None:
                found.append(run.workflow)
            first = store.versions(run.key, after=0, before=2, limit=1)
            if first and first[0].detail and decode(first[0].detail).get("actor") == _ACTOR:
                given = self._runner._context.reader(run).part(1, INPUT)
                found += given[0][0].get("causes", [])
            run = None if run.parent is None else store.run_by_key(run.parent)
        return found

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
