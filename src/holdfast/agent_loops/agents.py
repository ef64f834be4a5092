"""Agents that start, send heartbeats, stall and complete.

A heartbeat is written to a separate run that keeps only its last few versions: heartbeats may be many, and are not part
of the audit. A heartbeat soon after another is not written.

Invariant: an agent has stalled when it sent no heartbeat for longer than its timeout, by the clocks of the processes
that write and check; neither a restart nor another process changes that. A stalled agent is detected once, however many
processes check, and the change that records it also decides the reaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.agent_loops.config import MAX_NAME, MAX_REASON, check_agent
from holdfast.agent_loops.control import (
    BOOKKEEPING,
    Agent,
    Control,
    EndedAgent,
    Entry,
    LoopQuestion,
    RecoveryTask,
)
from holdfast.agent_loops.names import heartbeat_run
from holdfast.agent_loops.project import Project, StateMetadata
from holdfast.agent_loops.questions import Questions
from holdfast.agent_loops.replies import Reply, failure, stamp
from holdfast.errors import AlreadyRunning, InvalidCall, NotFound, StaleVersion
from holdfast.execution import stopping
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.lease import is_owner_alive
from holdfast.execution.loops import StalledLoop
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import short
from holdfast.model.retention import Retention
from holdfast.struct_types import resolved

#: Heartbeats within this fraction of a timeout after another are not written.
_SOON = 0.1
#: After this many heartbeats, all but the last few are removed.
_PRUNE_EVERY = 64
_KEPT = Retention(last=4)
#: Microseconds for which a completing agent is not ended, while its snapshot is saved.
_COMPLETING = 60_000_000
#: How agents were ended from outside, in words.
_ENDED = {"stalled": "was found stalled", "reset": "was reset", "cancelled": "was cancelled"}


class NotRunning(InvalidCall):
    """The agent is not running."""

    code = "not_running"


class Beat(msgspec.Struct, array_like=True):
    """The last heartbeat of an agent: the token of its start, and the time."""

    token: int
    at: int


class AgentHeartbeats:
    """Heartbeats of the agents of one project."""

    def __init__(self, engine: EngineContext, name: str) -> None:
        self._engine = engine
        self._log = engine.history(heartbeat_run(name))

    def read(self) -> dict[str, Beat]:
        """Return the last heartbeat of each agent."""
        return self._read()[0]

    def record(self, agent: str, agents: Mapping[str, Agent], now: int) -> bool:
        """Record a heartbeat of a running agent, and drop those of agents that are not running. Return whether
        it was written."""
        running = agents[agent]
        while True:
            beats, number = self._read()
            last = beats.get(agent)
            if last is not None and last.token == running.token:
                soon = last.at + int(running.timeout * _SOON * 1_000_000)
            else:
                soon = running.started
            is_future = last is not None and last.at > now  # the clock has gone back
            if now <= soon and not is_future:
                return False
            beats = {name: beat for name, beat in beats.items() if name in agents}
            beats[agent] = Beat(running.token, now)
            try:
                made = self._log.commit(msgspec.json.encode(beats).decode(), expected=number)
            except StaleVersion:
                continue
            if made.number % _PRUNE_EVERY == 0:
                # The project may be deleted meanwhile; while others write all the time, a later heartbeat prunes.
                with suppress(NotFound, StaleVersion):
                    self._log.prune(_KEPT)
            return True

    def delete(self) -> None:
        """Delete the heartbeats."""
        with suppress(NotFound):
            stopping.delete(self._engine, self._log.id)

    def _read(self) -> tuple[dict[str, Beat], int]:
        try:
            head = self._log.head
        except NotFound:
            return {}, 0
        return msgspec.json.decode(head.state, type=resolved(dict[str, Beat])), head.number


class Agents:
    """Starts, heartbeats, completions and stalls of the agents of all projects."""

    def __init__(self, engine: EngineContext, questions: Questions) -> None:
        self._engine, self._questions = engine, questions

    def start(
        self, project: Project, agent: Any, timeout: float | None, actor: str | None, *, default: float
    ) -> Reply:
        """Record the start of an agent. Without a timeout, it has that of the configuration, or else the default; 0 is
        for never."""
        agent = check_agent(agent)
        check_text("actor", actor, MAX_NAME)

        def change(control: Control) -> tuple[Entry, tuple[Agent, Agent | None]]:
            seconds = control.config.timeout_of(agent, default) if timeout is None else timeout
            before = control.agents.get(agent)
            started = control.agents[agent] = Agent(control.next_number(), project.now(), seconds, actor)
            control.ended.pop(agent, None)
            facts = {"agent": agent, "token": started.token, "timeout": seconds or "never"}
            return Entry("agent.started", None, actor, facts), (started, before)

        started, before = project.control.change(change)
        unfinished = None if before is None else {"token": before.token, "started": stamp(before.started)}
        return {
            "status": "started",
            "project_id": project.id,
            "agent": agent,
            "token": started.token,
            "timestamp": stamp(started.started),
            "deadline": _deadline_stamp(started, None),
            "unfinished": unfinished,
        }

    def progress(self, project: Project, agent: Any, token: int | None) -> Reply:
        """Record a heartbeat."""
        agent = check_agent(agent)
        heartbeats = AgentHeartbeats(self._engine, project.name)
        try:
            control = project.control.read()
            running = _running(control, agent, token)
            recorded = heartbeats.record(agent, control.agents, project.now())
            running = _running(project.control.read(), agent, running.token if token is None else token)
            beat = heartbeats.read().get(agent)
        except (NotRunning, NotFound):
            if self._engine.store.run(project.control.id) is None:
                # The project was deleted, perhaps before the heartbeat was written.
                heartbeats.delete()
            project.check_exists()
            raise
        return {
            "status": "ok",
            "project_id": project.id,
            "agent": agent,
            "noted": recorded,
            "deadline": _deadline_stamp(running, beat),
        }

    def complete(
        self,
        project: Project,
        agent: Any,
        status: str,
        token: int | None,
        actor: str | None,
        *,
        save: Callable[[StateMetadata], Reply],
    ) -> Reply:
        """Record the end of an agent; if it completed, save a snapshot first."""
        agent = check_agent(agent)
        if not isinstance(status, str) or not status:
            raise InvalidCall(f"status is a string such as 'completed' or 'failed', not {short(status)}")
        check_text("status", status, MAX_NAME)
        check_text("actor", actor, MAX_NAME)
        saved: Reply | None = None
        if status == "completed":
            # From here on the agent cannot be ended from outside: an ended agent saves nothing, and a saved
            # snapshot is from an agent that was not ended.
            token = self._mark_completing(project, agent, token)
            # Save before the agent is removed: a process that dies in between leaves an extra snapshot, not a
            # missing one.
            metadata = StateMetadata(True, f"agent {agent} completed", actor or agent)
            try:
                saved = save(metadata)
            except Exception as error:
                saved = failure(error)

        def change(control: Control) -> tuple[Entry, None]:
            running = control.agents.get(agent)
            if saved is None:
                _refuse_ended(control, agent, token)
            if running is not None and (saved is None or running.token == token):
                # If the agent was started again meanwhile, that start keeps running.
                del control.agents[agent]
            version = None if saved is None else saved.get("version")
            facts = {"agent": agent, "agent_status": status, "version": version}
            action = "agent.completed" if status == "completed" else "agent.ended"
            return Entry(action, None, actor, facts), None

        project.control.change(change)
        return {
            "status": "logged",
            "project_id": project.id,
            "agent": agent,
            "agent_status": status,
            "snapshot": saved,
        }

    def reset(self, project: Project, agent: Any, reason: str | None, actor: str | None) -> Reply:
        """End a running agent manually."""
        agent = check_agent(agent)
        check_text("reason", reason, MAX_REASON)
        check_text("actor", actor, MAX_NAME)
        project.check_exists()

        def change(control: Control) -> tuple[Entry, None]:
            running = _endable(control, agent, project.now())
            del control.agents[agent]
            control.ended[agent] = EndedAgent(running.token, "reset", project.now(), actor)
            return Entry("agent.reset", reason, actor, {"agent": agent, "token": running.token}), None

        project.control.change(change)
        return {"status": "reset", "project_id": project.id, "agent": agent}

    def describe(self, project: Project) -> Reply:
        """Return the running and the ended agents of a project."""
        control = project.control.read()
        ended = {
            name: {"how": each.how, "at": stamp(each.at), "actor": each.actor}
            for name, each in control.ended.items()
        }
        return {"running": self.running(project, control), "ended": ended}

    def running(self, project: Project, control: Control) -> Reply:
        """Return the running agents of a record, with their deadlines."""
        beats = AgentHeartbeats(self._engine, project.name).read() if control.agents else {}
        return {
            name: {
                "token": agent.token,
                "started": stamp(agent.started),
                "actor": agent.actor,
                "deadline": _deadline_stamp(agent, beats.get(name)),
            }
            for name, agent in control.agents.items()
        }

    def end_stalled(self, project: Project, control: Control | None = None) -> list[Reply]:
        """End the stalled agents of a project, and restore or ask as configured; return one entry per agent. `control`
        is the record of the project, if it was just read."""
        heartbeats = AgentHeartbeats(self._engine, project.name)
        if not self._stalled_now(project, control or project.control.read()):
            return []

        def change(
            control: Control,
        ) -> tuple[Entry | None, tuple[dict[str, Agent], RecoveryTask | LoopQuestion] | None]:
            stalled = _stalled(control, heartbeats.read(), project.now())
            if not stalled:
                return None, None
            entry, decided = self._end(project, control, stalled, _timeout_reason(stalled), None)
            return entry, (stalled, decided)

        done = project.control.change(change)
        if done is None:
            return []
        stalled, decided = done
        try:
            result = self._questions.follow(project, decided)
        except Exception as error:
            result = failure(error)
        return [
            {
                "project_id": project.id,
                "agent": name,
                "token": agent.token,
                "started": stamp(agent.started),
                "timeout": agent.timeout,
                "result": result,
            }
            for name, agent in stalled.items()
        ]

    def time_out(self, project: Project, agent: Any, reason: str, actor: str | None) -> Reply:
        """End a running agent that a caller found stalled, and restore or ask as configured."""
        agent = check_agent(agent)
        check_text("reason", reason, MAX_REASON)
        check_text("actor", actor, MAX_NAME)
        project.check_exists()

        def change(control: Control) -> tuple[Entry, RecoveryTask | LoopQuestion]:
            stalled = {agent: _endable(control, agent, project.now())}
            return self._end(project, control, stalled, reason or "timeout", actor)

        return self._questions.follow(project, project.control.change(change))

    def _end(
        self, project: Project, control: Control, stalled: Mapping[str, Agent], reason: str, actor: str | None
    ) -> tuple[Entry, RecoveryTask | LoopQuestion]:
        """End stalled agents in the record, and decide how to react, in one change; return the audit entry with the
        decision."""
        for name, agent in stalled.items():
            del control.agents[name]
            control.ended[name] = EndedAgent(agent.token, "stalled", project.now(), actor)
        entry, decided = self._questions.decide(project, control, reason, actor, sorted(stalled))
        facts = {**entry.facts, "agents": sorted(stalled), "decided": entry.action}
        return Entry("agent.stalled", reason, actor, facts, entry.events), decided

    def overdue(self, project: Project) -> StalledLoop | None:
        """Return what `end_stalled` would find now, and do; nothing is changed."""
        control = project.control.read()
        stalled = self._stalled_now(project, control)
        if not stalled:
            return None
        _, decided = self._questions.decide(project, control, _timeout_reason(stalled), None, sorted(stalled))
        action = "recover" if isinstance(decided, RecoveryTask) else "stall"
        return StalledLoop(project.log.id, _timeout_reason(stalled), action)

    def _stalled_now(self, project: Project, control: Control) -> dict[str, Agent]:
        """Return the agents that have stalled, by a record that was read."""
        # A heartbeat makes a deadline later: most often none has to be read.
        if not _stalled(control, {}, project.now()):
            return {}
        return _stalled(control, AgentHeartbeats(self._engine, project.name).read(), project.now())

    def _mark_completing(self, project: Project, agent: str, token: int | None) -> int | None:
        """Record that an agent is completing, unless it was ended; return the token of its start, if there
        was one."""

        def change(control: Control) -> tuple[Entry | None, int | None]:
            _refuse_ended(control, agent, token)
            running = control.agents.get(agent)
            if running is None:
                return None, token
            running.completing, running.completer = project.now(), self._engine.owner
            return Entry(BOOKKEEPING), running.token

        return project.control.change(change)


def deadline(agent: Agent, beat: Beat | None) -> int | None:
    """Return when an agent will count as stalled unless it sends a heartbeat; None for never."""
    if not agent.timeout:
        return None
    heard = agent.started
    if beat is not None and beat.token == agent.token:
        heard = max(heard, beat.at)
    return max(heard + int(agent.timeout * 1_000_000), _completing_until(agent))


def _deadline_stamp(agent: Agent, beat: Beat | None) -> str | None:
    end = deadline(agent, beat)
    return None if end is None else stamp(end)


def _completing_until(agent: Agent) -> int:
    """Return the time until which an agent must not be ended because it is completing; 0 if it is not completing, or
    if the process that completes it has died."""
    until = agent.completing + _COMPLETING
    return until if agent.completing and is_owner_alive(agent.completer, until, 0) else 0


def _stalled(control: Control, beats: Mapping[str, Beat], now: int) -> dict[str, Agent]:
    """Return the agents that have stalled."""
    found = {}
    for name, agent in control.agents.items():
        end = deadline(agent, beats.get(name))
        if end is not None and end < now:
            found[name] = agent
    return found


def _running(control: Control, agent: str, token: int | None) -> Agent:
    """Return a running agent, or raise `NotRunning`."""
    _refuse_ended(control, agent, token)
    found = control.agents.get(agent)
    if found is None:
        raise NotRunning(f"agent {agent!r} is not running: log its start first")
    return found


def _endable(control: Control, agent: str, now: int) -> Agent:
    """Return a running agent that can be ended from outside, or raise an error."""
    running = _running(control, agent, None)
    if _completing_until(running) > now:
        raise AlreadyRunning(f"agent {agent!r} is completing; try again in a moment")
    return running


def _refuse_ended(control: Control, agent: str, token: int | None) -> None:
    """Raise `NotRunning` for an agent that was ended from outside, or that another start has replaced."""
    if token is not None:
        check_integer("token", token, 1)
    ended = control.ended.get(agent)
    if ended is not None:
        by = f" by {ended.actor}" if ended.actor else ""
        raise NotRunning(
            f"agent {agent!r} {_ENDED[ended.how]}{by} at {stamp(ended.at)}: start it again from the project's state"
        )
    found = control.agents.get(agent)
    if token is not None and (found is None or found.token != token):
        raise NotRunning(
            f"agent {agent!r} is not running under token {token}: it ended, or was started again"
        )


def _timeout_reason(stalled: Mapping[str, Agent]) -> str:
    shown = [f"{name!r} after {agent.timeout:g} s" for name, agent in list(stalled.items())[:5]]
    more = f" and {len(stalled) - 5} more" if len(stalled) > 5 else ""
    text = f"timeout of agent {', '.join(shown)}{more}"
    return text if len(text) < MAX_REASON else text[: MAX_REASON - 1] + "…"
