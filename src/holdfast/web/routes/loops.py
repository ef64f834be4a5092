"""Agent loops that keep their own state: projects, state, configuration, agents, questions, snapshots, audit.

The debug routes (`debug`) have the addresses and replies of the original loop engine; these are for everything else.

Invariant: a response is the reply of `LoopEngine`; an error of it is a problem document.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.agent_loops.config import AUTORESUME
from holdfast.agent_loops.replies import ERROR_DETAILS, UNEXPECTED
from holdfast.model.question import QuestionPolicy
from holdfast.model.retention import Retention
from holdfast.operator_view.text import as_json, parse_duration
from holdfast.tree.portable import from_json
from holdfast.web.errors import RequestRefused, status_for
from holdfast.web.operation import (
    Actor,
    Body,
    Limit,
    Name,
    Number,
    Offset,
    OperationTable,
    Path,
    Query,
    Role,
    Tags,
    Text,
)
from holdfast.web.service import Service

Reply = dict[str, Any]

TABLE = OperationTable("loops")

_PROJECT = "/loops/{project_id}"
#: The most bytes of a state.
_MOST = 16 << 20

Seconds = Annotated[float, Meta(gt=0, le=3_000_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
#: A version: a number, a tag, `head` or `~2`.
VersionName = Number | Name


class LoopsQuery(Query):
    """Which projects."""

    limit: Limit = 50
    after: (
        Annotated[
            str, Meta(max_length=10_000, description="The id of the last project of the previous page.")
        ]
        | None
    ) = None


class NewestQuery(Query):
    """Number of entries, the newest."""

    limit: Limit = 100


class DeleteLoopQuery(Query):
    """Whether to delete a project with running agents."""

    force: bool = False


class StateBody(Body):
    """New state of a project. `base` is the version that it was derived from: `version` of the state that was read,
    or 0 for a new project. Changes since then are merged."""

    state: dict[str, Any]
    base: Offset
    note: Text | None = None
    actor: Actor | None = None


class StateChangesBody(Body):
    """Keys of the state to set, and keys to remove."""

    changes: dict[str, Any] = msgspec.field(default_factory=dict)
    remove: Annotated[tuple[Path, ...], Meta(max_length=1000)] = ()
    note: Text | None = None
    actor: Actor | None = None


class SnapshotBody(Body):
    """Tags and a note of the snapshot."""

    tags: Tags = ()
    note: Text | None = None
    actor: Actor | None = None


class LoopRestoreBody(Body):
    """Version to restore, by default the last good snapshot. `keep_unknown`: keep the top-level keys that it does not
    have; by default as the project is configured."""

    version: VersionName | None = None
    reason: Text | None = None
    keep_unknown: bool | None = None
    actor: Actor | None = None


class RetentionRules(Body):
    """Which snapshots, or audit entries, to keep: those that any rule keeps. `within` is a duration such as `7d`."""

    last: Count | None = None
    within: Text | None = None
    hourly: Count | None = None
    daily: Count | None = None
    weekly: Count | None = None


class QuestionRules(Body):
    """Who is to answer questions, and by when. Times are seconds from the question."""

    assignee: Name | None = None
    priority: int = 0
    due: float | None = None
    remind_every: float | None = None
    escalate_after: float | None = None
    escalate_to: Name | None = None


class ConfigBody(Body):
    """Settings to change. What is not given stays; null stands for the default."""

    loop_autoresume: bool | UnsetType = UNSET
    timeout: Seconds | UnsetType | None = UNSET
    timeouts: dict[Name, Seconds | None] | UnsetType = UNSET
    retention: RetentionRules | Number | UnsetType | None = UNSET
    every: Seconds | UnsetType | None = UNSET
    keep_unknown: bool | UnsetType | None = UNSET
    max_restores: Offset | UnsetType | None = UNSET
    audit_retention: RetentionRules | Number | UnsetType | None = UNSET
    question: QuestionRules | UnsetType | None = UNSET
    actor: Actor | None = None


class HeartbeatBody(Body):
    """Start of the agent that sends the heartbeat; by default, the current one."""

    token: Number | None = None


class ResetAgentBody(Body):
    """Reason to end an agent."""

    reason: Text | None = None
    actor: Actor | None = None


@TABLE.add("GET", "/loops", Role.VIEWER)
def list_loops(service: Service, query: LoopsQuery) -> Reply:
    """List projects, newest first, with their agents and deadlines. `next` is the `after` of the next page."""
    return _checked(service.loops.get_overview(limit=query.limit, after=query.after))


@TABLE.add("GET", _PROJECT, Role.VIEWER)
def get_loop(service: Service, project_id: str) -> Reply:
    """Return a project: loop, version, configuration, agents, the open question."""
    return _checked(service.loops.get_project(project_id))


@TABLE.add("DELETE", _PROJECT, Role.ADMIN)
def delete_loop(service: Service, project_id: str, query: DeleteLoopQuery) -> Reply:
    """Delete a project with its state, history, configuration and audit, for ever."""
    return _checked(service.loops.delete_project(project_id, force=query.force))


@TABLE.add("GET", _PROJECT + "/state", Role.VIEWER)
def get_loop_state(service: Service, project_id: str) -> Reply:
    """Return the whole current state of a project. `run` of the project is the run that has it: the routes of versions
    return parts of it, and `/diff` its differences. `loop_autoresume` is in the configuration only."""
    reply = service.loops.get_project_state(project_id)
    state = reply.pop("state", None)
    if isinstance(state, dict):
        # A client that sets this state later would set the value of now again.
        state = {key: value for key, value in state.items() if key != AUTORESUME}
    return {**_checked(reply), "state": as_json(state)}


@TABLE.add("PUT", _PROJECT + "/state", Role.OPERATOR, most=_MOST)
def set_loop_state(service: Service, project_id: str, body: StateBody) -> Reply:
    """Set the state of a project; create the project with `base` 0. A state from before a restore is refused."""
    return _checked(
        service.loops.set_project_state(
            project_id, from_json(body.state), base=body.base, note=body.note, actor=body.actor
        )
    )


@TABLE.add("PATCH", _PROJECT + "/state", Role.OPERATOR, most=_MOST)
def change_loop_state(service: Service, project_id: str, body: StateChangesBody) -> Reply:
    """Set some keys of a state, remove others, and leave the rest."""
    return _checked(
        service.loops.update_project_state(
            project_id, from_json(body.changes), remove=body.remove, note=body.note, actor=body.actor
        )
    )


@TABLE.add("GET", _PROJECT + "/snapshots", Role.VIEWER)
def list_loop_snapshots(service: Service, project_id: str, query: NewestQuery) -> Reply:
    """List the newest snapshots of a project, oldest first."""
    return _checked(service.loops.get_snapshot_history(project_id, limit=query.limit))


@TABLE.add("POST", _PROJECT + "/snapshots", Role.OPERATOR)
def save_loop_snapshot(service: Service, project_id: str, body: SnapshotBody) -> Reply:
    """Save a snapshot of the current state."""
    return _checked(
        service.loops.save_loop_snapshot(project_id, tags=body.tags, note=body.note, actor=body.actor)
    )


@TABLE.add("POST", _PROJECT + "/restore", Role.OPERATOR)
def restore_loop(service: Service, project_id: str, body: LoopRestoreBody) -> Reply:
    """Restore a snapshot, on a new timeline. Nothing is deleted. The open question of the project is closed."""
    how: dict[str, Any] = {"reason": body.reason, "actor": body.actor, "keep_unknown": body.keep_unknown}
    engine = service.loops
    if body.version is None:
        return _checked(engine.restore_last_snapshot(project_id, **how))
    return _checked(engine.restore_snapshot(project_id, body.version, **how))


@TABLE.add("GET", _PROJECT + "/config", Role.VIEWER)
def get_loop_config(service: Service, project_id: str) -> Reply:
    """Return the configuration of a project."""
    return _checked(service.loops.get_config(project_id))


@TABLE.add("POST", _PROJECT + "/config", Role.OPERATOR)
def configure_loop(service: Service, project_id: str, body: ConfigBody) -> Reply:
    """Change settings of a project, and leave the others."""
    given = msgspec.structs.asdict(body)
    for name in ("retention", "audit_retention"):
        if isinstance(given[name], RetentionRules):
            given[name] = _retention(given[name])
    if isinstance(body.question, QuestionRules):
        given["question"] = QuestionPolicy(**msgspec.structs.asdict(body.question))
    return _checked(service.loops.configure(project_id, **given))


@TABLE.add("GET", _PROJECT + "/agents", Role.VIEWER)
def list_loop_agents(service: Service, project_id: str) -> Reply:
    """List the running agents of a project with their deadlines, and those that stalled or were reset."""
    return _checked(service.loops.get_agents(project_id))


@TABLE.add("POST", _PROJECT + "/agents/{agent}/heartbeat", Role.OPERATOR)
def send_loop_heartbeat(service: Service, project_id: str, agent: str, body: HeartbeatBody) -> Reply:
    """Record a heartbeat of an agent: its timeout starts again."""
    return _checked(service.loops.agent_progress(project_id, agent, token=body.token))


@TABLE.add("POST", _PROJECT + "/agents/{agent}/reset", Role.OPERATOR)
def reset_loop_agent(service: Service, project_id: str, agent: str, body: ResetAgentBody) -> Reply:
    """End a running agent. The state does not change."""
    return _checked(service.loops.reset_agent(project_id, agent, reason=body.reason, actor=body.actor))


@TABLE.add("GET", _PROJECT + "/questions", Role.VIEWER)
def list_loop_questions(service: Service, project_id: str) -> Reply:
    """Return the open question of a project. It is answered in the inbox."""
    return _checked(service.loops.get_questions(project_id))


@TABLE.add("GET", _PROJECT + "/audit", Role.VIEWER)
def list_loop_audit(service: Service, project_id: str, query: NewestQuery) -> Reply:
    """List who did what, when and why, oldest first: the newest entries."""
    return _checked(service.loops.get_audit(project_id, limit=query.limit))


def _retention(rules: RetentionRules) -> Retention:
    given = msgspec.structs.asdict(rules)
    if rules.within is not None:
        given["within"] = parse_duration(rules.within)
    return Retention(**given)


def loop_reply(reply: Reply) -> Reply:
    """Return a reply of the engine as JSON: values of states in their portable form."""
    found: Reply = _plain(reply)
    return found


def error_status(reply: Reply) -> int:
    """Return the HTTP status for an error of the engine."""
    return 500 if reply["code"] == UNEXPECTED else status_for(str(reply["code"]))


def _plain(part: Any) -> Any:
    # The containers of a reply are plain ones; those of a state are frozen.
    if type(part) is dict:
        return {name: _plain(value) for name, value in part.items()}
    return [_plain(each) for each in part] if type(part) is list else as_json(part)


def _checked(reply: Reply) -> Reply:
    """Return a reply as JSON; raise an error that it reports."""
    if reply["status"] == "error":
        facts = {name: reply[name] for name in ERROR_DETAILS if name in reply}
        raise RequestRefused(error_status(reply), str(reply["code"]), str(reply["message"]), facts)
    return loop_reply(reply)
