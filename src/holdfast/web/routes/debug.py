"""Routes for agent loops that keep their own state, as the "loop resume engine" had them, over `LoopEngine`.

A change needs POST. The old GET forms are there only with `--legacy-get`, and even then not for a page of another
origin.

Invariant: an answer is what `LoopEngine` says, with the HTTP status that goes with its `code`.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta

from holdfast.tree.portable import from_json
from holdfast.web.fields import Actor, Body, Limit, Name, Query, Tags, Text
from holdfast.web.operation import Role, Table
from holdfast.web.problems import status_for
from holdfast.web.service import Service

Reply = dict[str, Any]


def _status(reply: Reply) -> int:
    """The HTTP status that goes with what the engine says."""
    return 200 if reply["status"] != "error" else status_for(str(reply.get("code", "")))


TABLE = Table("debug", "/api/debug/loop", status=_status)
#: The GET forms.
LEGACY = Table("debug", "/api/debug/loop", status=_status)

Seconds = Annotated[float, Meta(gt=0, le=3_000_000_000)]


class SaveBody(Body):
    """A state to be set with the snapshot; without one, it is of the project's state as it is."""

    state: Any = UNSET
    tags: Tags = ()
    note: Text | None = None
    actor: Actor | None = None


class RestoreBody(Body):
    """Which version, else the last good snapshot; and why."""

    version: Annotated[int, Meta(ge=1, le=1 << 53)] | Name | None = None
    reason: Text | None = None
    actor: Actor | None = None
    keep_unknown: bool = True


class StartBody(Body):
    """The agent that begins, and after how many seconds of silence it counts as frozen."""

    agent: Name
    timeout: Seconds | None = None
    actor: Actor | None = None


class CompleteBody(Body):
    """The agent that ends, and how. If it is completed, a snapshot is saved."""

    agent: Name
    status: Name = "completed"
    state: Any = UNSET
    token: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None
    actor: Actor | None = None


class TimeoutBody(Body):
    """The agent that is taken for frozen now; without one, those whose time has run out are looked for."""

    agent: Name | None = None
    reason: Text = "timeout"
    actor: Actor | None = None


class HistoryQuery(Query):
    """How many."""

    limit: Limit = 100


class StartQuery(Query):
    """The agent that begins."""

    agent: Name


class CompleteQuery(Query):
    """The agent that ends, and how."""

    agent: Name
    status: Name = "completed"


class TimeoutQuery(Query):
    """The agent that is taken for frozen."""

    agent: Name | None = None


@TABLE.add("GET", "/snapshot/history/{project_id}", Role.VIEWER)
def snapshot_history(service: Service, project_id: str, query: HistoryQuery) -> Reply:
    """The snapshots of a project, oldest first."""
    return service.loops.get_snapshot_history(project_id, limit=query.limit)


@TABLE.add("POST", "/snapshot/save/{project_id}", Role.OPERATOR, most=16 << 20)
def save_snapshot(service: Service, project_id: str, body: SaveBody) -> Reply:
    """Save a snapshot of a project's state, or of the state that is given."""
    return service.loops.save_loop_snapshot(
        project_id, _state(body.state), tags=body.tags, note=body.note, actor=body.actor
    )


@TABLE.add("POST", "/snapshot/restore/{project_id}", Role.OPERATOR)
def restore_snapshot(service: Service, project_id: str, body: RestoreBody) -> Reply:
    """Put a project back to its last good snapshot, or to a version. Nothing is deleted."""
    how: dict[str, Any] = {"reason": body.reason, "actor": body.actor, "keep_unknown": body.keep_unknown}
    if body.version is None:
        return service.loops.restore_last_snapshot(project_id, **how)
    return service.loops.restore_snapshot(project_id, body.version, **how)


@TABLE.add("POST", "/agent/start/{project_id}", Role.OPERATOR)
def start_agent(service: Service, project_id: str, body: StartBody) -> Reply:
    """An agent begins."""
    return service.loops.log_agent_start(project_id, body.agent, timeout=body.timeout, actor=body.actor)


@TABLE.add("POST", "/agent/complete/{project_id}", Role.OPERATOR, most=16 << 20)
def complete_agent(service: Service, project_id: str, body: CompleteBody) -> Reply:
    """An agent ends; if it is completed, a snapshot is saved."""
    return service.loops.log_agent_complete(
        project_id, body.agent, body.status, state=_state(body.state), token=body.token, actor=body.actor
    )


@TABLE.add("POST", "/agent/timeout/{project_id}", Role.OPERATOR)
def time_out_agent(service: Service, project_id: str, body: TimeoutBody) -> Reply:
    """An agent is frozen: the last snapshot is restored, or the operator asked, as the project is configured.

    Without `agent`, those whose time has run out are looked for."""
    if body.agent is None:
        return service.loops.check_timeouts(project_id)
    ended = service.loops.reset_agent(project_id, body.agent, reason=body.reason, actor=body.actor)
    if ended["status"] == "error":
        return ended
    return service.loops.auto_restore_if_configured(project_id, body.reason, actor=body.actor)


@LEGACY.add("GET", "/snapshot/save/{project_id}", Role.OPERATOR, changes=True)
def save_snapshot_by_get(service: Service, project_id: str) -> Reply:
    """Save a snapshot of a project's state."""
    return service.loops.save_loop_snapshot(project_id)


@LEGACY.add("GET", "/snapshot/restore/{project_id}", Role.OPERATOR, changes=True)
def restore_snapshot_by_get(service: Service, project_id: str) -> Reply:
    """Put a project back to its last good snapshot."""
    return service.loops.restore_last_snapshot(project_id)


@LEGACY.add("GET", "/agent/start/{project_id}", Role.OPERATOR, changes=True)
def start_agent_by_get(service: Service, project_id: str, query: StartQuery) -> Reply:
    """An agent begins."""
    return start_agent(service, project_id, StartBody(agent=query.agent))


@LEGACY.add("GET", "/agent/complete/{project_id}", Role.OPERATOR, changes=True)
def complete_agent_by_get(service: Service, project_id: str, query: CompleteQuery) -> Reply:
    """An agent ends."""
    return complete_agent(service, project_id, CompleteBody(agent=query.agent, status=query.status))


@LEGACY.add("GET", "/agent/timeout/{project_id}", Role.OPERATOR, changes=True)
def time_out_agent_by_get(service: Service, project_id: str, query: TimeoutQuery) -> Reply:
    """An agent is frozen."""
    return time_out_agent(service, project_id, TimeoutBody(agent=query.agent))


def _state(given: Any) -> Any:
    return None if given is UNSET else from_json(given)
