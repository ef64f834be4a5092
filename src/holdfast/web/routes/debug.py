"""Routes of the "loop resume engine", for agent loops that manage their own state, on `LoopEngine`.

A change needs POST. The old GET forms exist only with `--legacy-get`, and even then not for pages of another origin.

Invariant: a response is the reply of `LoopEngine`, with the HTTP status for its `code`.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta

from holdfast.tree.portable import from_json
from holdfast.web.errors import RequestRefused
from holdfast.web.operation import Actor, Body, Limit, Name, Offset, OperationTable, Query, Role, Tags, Text
from holdfast.web.routes.loops import Reply, Seconds, VersionName, error_status, loop_reply
from holdfast.web.service import Service


def _status(reply: Reply) -> int:
    """Return the HTTP status for a reply of the engine."""
    return 200 if reply["status"] != "error" else error_status(reply)


TABLE = OperationTable("debug", "/api/debug/loop", status=_status)
#: The GET forms.
LEGACY = OperationTable("debug", "/api/debug/loop", status=_status)


class SaveBody(Body):
    """State to set with the snapshot; by default, the current state of the project. The state of a project that exists
    needs `base`, the version that it was derived from. Changes since then are merged."""

    state: Any = UNSET
    base: Offset | None = None
    tags: Tags = ()
    note: Text | None = None
    actor: Actor | None = None


class RestoreBody(Body):
    """Version to restore, by default the last good snapshot, and the reason."""

    version: VersionName | None = None
    reason: Text | None = None
    actor: Actor | None = None
    keep_unknown: bool | None = None


class StartBody(Body):
    """Agent that starts, and the seconds of silence after which it counts as stalled."""

    agent: Name
    timeout: Seconds | None = None
    actor: Actor | None = None


class CompleteBody(Body):
    """Agent that ends, and its status. If that is completed, a snapshot is saved: of `state`, which was derived from
    version `base` and needs it, or of the current state."""

    agent: Name
    status: Name = "completed"
    state: Any = UNSET
    base: Offset | None = None
    token: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None
    actor: Actor | None = None


class TimeoutBody(Body):
    """Agent to treat as stalled; by default, all agents whose timeout has expired."""

    agent: Name | None = None
    reason: Text = "timeout"
    actor: Actor | None = None


class HistoryQuery(Query):
    """Number of snapshots."""

    limit: Limit = 100


class StartQuery(Query):
    """Agent that starts, and the seconds of silence after which it counts as stalled."""

    agent: Name
    timeout: Seconds | None = None


class CompleteQuery(Query):
    """Agent that ends, and its status."""

    agent: Name
    status: Name = "completed"


class TimeoutQuery(Query):
    """Agent to treat as stalled, and the reason."""

    agent: Name | None = None
    reason: Text = "timeout"


@TABLE.add("GET", "/snapshot/history/{project_id}", Role.VIEWER)
def snapshot_history(service: Service, project_id: str, query: HistoryQuery) -> Reply:
    """List the snapshots of a project, oldest first."""
    return loop_reply(service.loops.get_snapshot_history(project_id, limit=query.limit))


@TABLE.add("POST", "/snapshot/save/{project_id}", Role.OPERATOR, most=16 << 20)
def save_snapshot(service: Service, project_id: str, body: SaveBody) -> Reply:
    """Save a snapshot of a project's state, or of the given state."""
    state, base = _derived(service, project_id, body)
    return loop_reply(
        service.loops.save_loop_snapshot(
            project_id,
            state,
            base=base,
            tags=body.tags,
            note=body.note,
            actor=body.actor,
        )
    )


@TABLE.add("POST", "/snapshot/restore/{project_id}", Role.OPERATOR)
def restore_snapshot(service: Service, project_id: str, body: RestoreBody) -> Reply:
    """Restore a project to its last good snapshot, or to a version. Nothing is deleted."""
    how: dict[str, Any] = {"reason": body.reason, "actor": body.actor, "keep_unknown": body.keep_unknown}
    if body.version is None:
        return loop_reply(service.loops.restore_last_snapshot(project_id, **how))
    return loop_reply(service.loops.restore_snapshot(project_id, body.version, **how))


@TABLE.add("POST", "/agent/start/{project_id}", Role.OPERATOR)
def start_agent(service: Service, project_id: str, body: StartBody) -> Reply:
    """Record the start of an agent."""
    return loop_reply(
        service.loops.log_agent_start(project_id, body.agent, timeout=body.timeout, actor=body.actor)
    )


@TABLE.add("POST", "/agent/complete/{project_id}", Role.OPERATOR, most=16 << 20)
def complete_agent(service: Service, project_id: str, body: CompleteBody) -> Reply:
    """Record the end of an agent; if it is completed, save a snapshot."""
    state, base = _derived(service, project_id, body)
    return loop_reply(
        service.loops.log_agent_complete(
            project_id,
            body.agent,
            body.status,
            state=state,
            base=base,
            token=body.token,
            actor=body.actor,
        )
    )


@TABLE.add("POST", "/agent/timeout/{project_id}", Role.OPERATOR)
def time_out_agent(service: Service, project_id: str, body: TimeoutBody) -> Reply:
    """Treat an agent as stalled: restore the last snapshot, or ask the operator, as the project is configured.

    Without `agent`, check all agents whose timeout has expired."""
    if body.agent is None:
        return loop_reply(service.loops.check_timeouts(project_id))
    return loop_reply(
        service.loops.auto_restore_if_configured(project_id, body.reason, agent=body.agent, actor=body.actor)
    )


@LEGACY.add("GET", "/snapshot/save/{project_id}", Role.OPERATOR, changes=True)
def save_snapshot_by_get(service: Service, project_id: str) -> Reply:
    """Save a snapshot of a project's state."""
    return loop_reply(service.loops.save_loop_snapshot(project_id))


@LEGACY.add("GET", "/snapshot/restore/{project_id}", Role.OPERATOR, changes=True)
def restore_snapshot_by_get(service: Service, project_id: str) -> Reply:
    """Restore a project to its last good snapshot."""
    return loop_reply(service.loops.restore_last_snapshot(project_id))


@LEGACY.add("GET", "/agent/start/{project_id}", Role.OPERATOR, changes=True)
def start_agent_by_get(service: Service, project_id: str, query: StartQuery) -> Reply:
    """Record the start of an agent."""
    return start_agent(service, project_id, StartBody(agent=query.agent, timeout=query.timeout))


@LEGACY.add("GET", "/agent/complete/{project_id}", Role.OPERATOR, changes=True)
def complete_agent_by_get(service: Service, project_id: str, query: CompleteQuery) -> Reply:
    """Record the end of an agent."""
    return complete_agent(service, project_id, CompleteBody(agent=query.agent, status=query.status))


@LEGACY.add("GET", "/agent/timeout/{project_id}", Role.OPERATOR, changes=True)
def time_out_agent_by_get(service: Service, project_id: str, query: TimeoutQuery) -> Reply:
    """Treat an agent as stalled."""
    return time_out_agent(service, project_id, TimeoutBody(agent=query.agent, reason=query.reason))


def _derived(service: Service, project_id: str, body: SaveBody | CompleteBody) -> tuple[Any, int | None]:
    """Return the state in a body, None if it has none, and the version that it was derived from. The server does not
    know what a client read: without `base`, a state could undo the changes of others."""
    if body.state is UNSET or body.state is None:
        return None, body.base
    if body.base is None and service.loops.get_project(project_id).get("code") != "not_found":
        raise RequestRefused(
            422, "invalid", "base is missing: the version of the project that the state was derived from"
        )
    return from_json(body.state), body.base or 0
