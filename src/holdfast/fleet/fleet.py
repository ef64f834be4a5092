"""The fleet of an engine: queues, triggers and monitors, loaded on first use.

Invariant: a program that uses none of them does not import their modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.execution.operators import Operators
from holdfast.execution.runner import Runner
from holdfast.store.protocol import Store
from holdfast.workflow.definition import observe_triggers, triggered

if TYPE_CHECKING:
    from holdfast.fleet.monitor.monitoring import Monitoring
    from holdfast.fleet.queues import Queues


def queue_room(store: Store, queue: str) -> int | None:
    """Return how many runs of a queue may be owned at once; None for any number."""
    from holdfast.fleet.queue_limits import read_limits

    return read_limits(store, queue)[0].concurrency


class Fleet:
    """Queues, triggers and monitoring of one engine."""

    def __init__(self, runner: Runner, operators: Operators) -> None:
        self._runner = runner
        self._operators = operators
        #: The part, once it is made. Threads may make two at once; the first one counts.
        self._monitoring: list[Monitoring] = []
        self._queues: list[Queues] = []
        self._is_working = self._is_closed = False
        observe_triggers(self)

    @property
    def monitoring(self) -> Monitoring:
        """Monitors, watchdogs and answers."""
        if not self._monitoring:
            from holdfast.fleet.monitor.monitoring import Monitoring

            self._monitoring.append(Monitoring(self._runner, self._operators))
        return self._monitoring[0]

    @property
    def queues(self) -> Queues:
        """Queues, workers and triggers."""
        if not self._queues:
            from holdfast.fleet.queues import Queues

            self._queues.append(Queues(self._runner, self.monitoring))
        return self._queues[0]

    def begin_work(self) -> None:
        """Start the triggers of workflows, also of those that are defined later."""
        self._is_working = True
        if triggered() and not self._is_closed:
            self.queues.triggers.start()

    def trigger_defined(self) -> None:
        """Start the trigger of a workflow that was defined while this engine is at work."""
        if self._is_working and not self._is_closed:
            self.queues.triggers.trigger_defined()

    def close(self) -> None:
        """Stop triggers, workers and monitors."""
        self._is_closed = True
        for queues in self._queues[:1]:
            queues.close()
        for monitoring in self._monitoring[:1]:
            monitoring.close()
