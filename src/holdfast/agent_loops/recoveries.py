"""Subscription to recoveries: a program learns that the state of its loop was replaced, or that a person has decided.

Invariant: a recovery is reported once to each subscriber, in whichever process it happened, after it was committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.agent_loops.names import control_run, name_in, name_in_state_run, state_run
from holdfast.agent_loops.project import Project, split_reason
from holdfast.agent_loops.replies import Reply, stamp
from holdfast.errors import InvalidCall
from holdfast.log import warn
from holdfast.model.public import Event
from holdfast.workflow.subscriptions import Subscription

if TYPE_CHECKING:
    from holdfast.agent_loops.loops import AgentLoops

#: The restore of a state is a rollback of its run; the answers that leave the state alone are in the control run.
_KINDS = ("run.rolled_back", "question.answered")
_ANSWERS = {"resume": "resumed", "cancel": "cancelled"}


def subscribe(
    loops: AgentLoops,
    subscribe_to: Callable[..., Subscription],
    callback: Callable[[Reply], Any],
    name: str | None,
) -> Subscription:
    """Call a function for each recovery of one project, or of all."""
    if not callable(callback):
        raise InvalidCall("on_recovery takes a function of a dict")
    wanted = None if name is None else {state_run(name), control_run(name)}

    def receive(event: Event) -> None:
        if wanted is not None and event.run not in wanted:
            return
        recovery = _recovery(loops, event)
        if recovery is not None:
            callback(recovery)

    return subscribe_to(receive, kinds=_KINDS)


def _recovery(loops: AgentLoops, event: Event) -> Reply | None:
    """Return an event as a recovery; None if it is not one."""
    data = event.data
    if event.kind == "run.rolled_back":
        name = name_in_state_run(event.run)
        reason, what = split_reason(data.get("reason"))
        what, version = what or "restored", data.get("to")
    else:
        name, what = name_in(event.run), _ANSWERS.get(str(data.get("choice")))
        reason, version = data.get("question"), None
    if name is None or what is None:
        return None
    try:
        project_id = Project.named(loops.engine, name).id
    except Exception as error:
        warn("a recovery of loop %s cannot be reported: %s", name, error)
        return None
    return {
        "event": what,
        "project_id": project_id,
        "version": version,
        "reason": reason,
        "actor": data.get("actor"),
        "timestamp": stamp(event.at),
    }
