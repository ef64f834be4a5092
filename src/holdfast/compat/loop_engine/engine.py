"""LoopEngine: agents that start, stall and complete, on top of snapshots and questions.

Invariant: no call raises an `Exception`: each returns a dict with a `status`. A stalled agent is detected
once, however many processes check, and the change that records it also decides the reaction.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from holdfast.compat.loop_engine import project as names
from holdfast.compat.loop_engine.agents import (
    Beats,
    Checker,
    checker_of,
    deadline,
    frozen,
    left_alone_until,
    timeout_for,
)
from holdfast.compat.loop_engine.control import (
    ACTOR,
    REASON,
    TIDIED,
    Agent,
    Book,
    Control,
    Ended,
    Entry,
    LoopQuestion,
    Task,
    check_agent,
    projects,
    seconds_of,
)
from holdfast.compat.loop_engine.project import Facts, Project
from holdfast.compat.loop_engine.questions import Prompts, decision
from holdfast.compat.loop_engine.replies import Reply, failure, reported, stamp
from holdfast.engine import Holdfast
from holdfast.errors import AlreadyRunning, InvalidCall, StaleVersion
from holdfast.history.version import Version
from holdfast.log import warn
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import short

#: Default number of seconds after which an agent counts as stalled.
TIMEOUT = 300.0
CHECK_EVERY = 5.0


class NotRunning(InvalidCall):
    """The agent is not running."""

    code = "not_running"


class LoopEngine(Prompts):
    """Engine for agent loops that keep their own state: snapshots, restores, stalled agents, questions, an
    audit.

    No call raises; each returns a dict with a `status`, which is `error` with a `message` and a `code` on
    failure. Any number of threads and processes may use one project at the same time.

    `timeout` is the default number of seconds after which an agent counts as stalled. The first start of an
    agent in a process starts a thread that looks for stalled agents every `check_every` seconds, in all
    projects of the store; with None, only `checker()` starts it.
    """

    def __init__(
        self, hf: Holdfast, *, timeout: float = TIMEOUT, check_every: float | None = CHECK_EVERY
    ) -> None:
        super().__init__(hf)
        self._timeout = seconds_of("timeout", timeout)
        self._check_every = None if check_every is None else seconds_of("check_every", check_every) or None

    @reported
    def log_agent_start(
        self, project_id: str, agent: str, *, timeout: float | None = None, actor: str | None = None
    ) -> Reply:
        """Record the start of an agent. It counts as stalled after `timeout` seconds without a heartbeat.

        A start of an agent that is already running replaces it, because a process that died does not
        complete. `unfinished` reports the replaced start. The `token` identifies this start.
        """
        agent = check_agent(agent)
        check_text("actor", actor, ACTOR)
        given = None if timeout is None else seconds_of("timeout", timeout)
        project, book = self._open(project_id)

        def decide(control: Control) -> tuple[Entry, tuple[Agent, Agent | None]]:
            seconds = timeout_for(control.config, agent, self._timeout) if given is None else given
            before = control.agents.get(agent)
            started = control.agents[agent] = Agent(control.next(), self._now(), seconds, actor)
            control.ended.pop(agent, None)
            facts = {"agent": agent, "token": started.token, "timeout": seconds or "never"}
            return Entry("agent.started", None, actor, facts), (started, before)

        started, before = book.change(decide)
        self._watch()
        end = deadline(started, None)
        return {
            "status": "started",
            "project_id": project.id,
            "agent": agent,
            "token": started.token,
            "timestamp": stamp(started.started),
            "deadline": None if end is None else stamp(end),
            "unfinished": None
            if before is None
            else {"token": before.token, "started": stamp(before.started)},
        }

    @reported
    def agent_progress(self, project_id: str, agent: str, *, token: int | None = None) -> Reply:
        """Record a heartbeat: the timeout of the agent starts again."""
        agent = check_agent(agent)
        project, book = self._open(project_id)
        control = book.read()
        running = _running(control, agent, token)
        beats = Beats(self._hf, project.name)
        noted = beats.note(agent, control.agents, self._now())
        running = _running(book.read(), agent, running.token if token is None else token)
        end = deadline(running, beats.read().get(agent))
        return {
            "status": "ok",
            "project_id": project.id,
            "agent": agent,
            "noted": noted,
            "deadline": None if end is None else stamp(end),
        }

    @reported
    def log_agent_complete(
        self,
        project_id: str,
        agent: str,
        status: str = "completed",
        *,
        state: Any = None,
        token: int | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Record the end of an agent. If `status` is `completed`, save a snapshot of the project's state, or
        of `state`.

        Refuse an agent that was found stalled or was reset: its result is not based on the state that the
        others continued from. Refuse also an agent whose `token` belongs to another start.
        """
        agent = check_agent(agent)
        if not isinstance(status, str) or not status:
            raise InvalidCall(f"status is a string such as 'completed' or 'failed', not {short(status)}")
        check_text("status", status, ACTOR)
        check_text("actor", actor, ACTOR)
        project, book = self._open(project_id)
        saved: Reply | None = None
        if status == "completed":
            # From here on the agent cannot be ended from outside: an ended agent saves nothing, and a saved
            # snapshot is from an agent that was not ended.
            token = self._begin_to_complete(book, agent, token)
            # Save before the agent is removed: a process that dies in between leaves an extra snapshot, not a
            # missing one.
            facts = Facts(True, f"agent {agent} completed", actor or agent)
            try:
                saved = self._save(project_id, state, facts)
            except Exception as error:
                saved = failure(error)

        def decide(control: Control) -> tuple[Entry, None]:
            running = control.agents.get(agent)
            if saved is None:
                _refuse_ended(control, agent, token)
            if running is not None and (saved is None or running.token == token):
                # If the agent was started again meanwhile, that start keeps running.
                del control.agents[agent]
            version = None if saved is None else saved.get("version")
            told = {"agent": agent, "agent_status": status, "version": version}
            return Entry(
                "agent.completed" if status == "completed" else "agent.ended", None, actor, told
            ), None

        book.change(decide)
        return {
            "status": "logged",
            "project_id": project.id,
            "agent": agent,
            "agent_status": status,
            "snapshot": saved,
        }

    def _begin_to_complete(self, book: Book, agent: str, token: int | None) -> int | None:
        """Record that an agent is completing, unless it was ended; return the token of its start, if there
        was one."""

        def decide(control: Control) -> tuple[Entry | None, int | None]:
            _refuse_ended(control, agent, token)
            running = control.agents.get(agent)
            if running is None:
                return None, token
            running.completing = self._now()
            return Entry(TIDIED), running.token

        return book.change(decide)

    @reported
    def reset_agent(
        self, project_id: str, agent: str, *, reason: str | None = None, actor: str | None = None
    ) -> Reply:
        """End a running agent manually. The state does not change."""
        agent = check_agent(agent)
        check_text("reason", reason, REASON)
        check_text("actor", actor, ACTOR)
        project, book = self._open(project_id)

        def decide(control: Control) -> tuple[Entry, None]:
            running = _running(control, agent, None)
            if left_alone_until(running) > self._now():
                raise AlreadyRunning(f"agent {agent!r} completes just now: look again in a moment")
            del control.agents[agent]
            control.ended[agent] = Ended(running.token, "reset", self._now(), actor)
            return Entry("agent.reset", reason, actor, {"agent": agent, "token": running.token}), None

        book.change(decide)
        return {"status": "reset", "project_id": project.id, "agent": agent}

    @reported
    def get_agents(self, project_id: str) -> Reply:
        """Return the running agents of a project, and those that stalled or were reset and have not been
        started since."""
        project, book = self._open(project_id)
        control = book.read()
        beats = Beats(self._hf, project.name).read()
        running = {}
        for name, agent in control.agents.items():
            end = deadline(agent, beats.get(name))
            running[name] = {
                "token": agent.token,
                "started": stamp(agent.started),
                "actor": agent.actor,
                "deadline": None if end is None else stamp(end),
            }
        ended = {
            name: {"how": each.how, "at": stamp(each.at), "actor": each.actor}
            for name, each in control.ended.items()
        }
        return {"status": "ok", "project_id": project.id, "running": running, "ended": ended}

    @reported
    def check_timeouts(self, project_id: str | None = None) -> Reply:
        """Find stalled agents in one project or in all, and restore or ask as configured; finish tasks that
        a dead process left. Report projects that cannot be checked in `errors`, and check the rest."""
        found: list[Reply] = []
        finished: list[Reply] = []
        errors: list[Reply] = []
        checked = 0
        for name in self._busy(project_id):
            checked += 1
            try:
                project, book = self._known(name, project_id)
                found += self._check(project, book)
                finished += self._take_over(project, book)
            except Exception as error:
                errors.append(failure(error) | {"project": name})
        return {"status": "ok", "checked": checked, "frozen": found, "finished": finished, "errors": errors}

    @reported
    def take_scheduled_snapshots(self, project_id: str | None = None) -> Reply:
        """Save a snapshot of each project that is scheduled, due, and has changed since its last one."""
        saved: list[Reply] = []
        errors: list[Reply] = []
        for name in self._busy(project_id):
            try:
                project, book = self._known(name, project_id)
                every = book.read().config.every
                head = None if every is None else self._due(project, every)
                if head is not None:
                    facts = Facts(True, "scheduled", None, (), "timed")
                    # Another process may have saved it first.
                    with suppress(StaleVersion):
                        saved.append(self._save(project.id, None, facts, expected=head.number))
            except Exception as error:
                errors.append(failure(error) | {"project": name})
        return {"status": "ok", "saved": saved, "errors": errors}

    def checker(self, every: float = CHECK_EVERY) -> Checker:
        """Return the thread of this process that looks for stalled agents and takes scheduled snapshots, in
        all projects of the store: `with engine.checker(every=5): …`, or its `start` and `stop`. There is
        one per open store."""
        return checker_of(self._hf, self, every)

    # Internals

    def _busy(self, project_id: str | None) -> list[str]:
        """Return the names of projects that need a check."""
        if project_id is not None:
            return [names.name_of(names.check_project(project_id))]
        return list(projects(self._hf, status="running"))

    def _known(self, name: str, project_id: str | None) -> tuple[Project, Book]:
        return self._open(names.unquoted(self._control(name).project) if project_id is None else project_id)

    def _watch(self) -> None:
        """Start the checker for stalled agents; a failure logs a warning."""
        if self._check_every is not None:
            try:
                checker_of(self._hf, self, self._check_every).start()
            except Exception as error:
                warn("nobody looks for frozen agents in this process: %s", error)

    def _check(self, project: Project, book: Book) -> list[Reply]:
        beats = Beats(self._hf, project.name)
        if not frozen(book.read(), beats.read(), self._now()):
            return []

        def decide(
            control: Control,
        ) -> tuple[Entry | None, tuple[dict[str, Agent], Task | LoopQuestion] | None]:
            now = self._now()
            late = frozen(control, beats.read(), now)
            if not late:
                return None, None
            for name, agent in late.items():
                del control.agents[name]
                control.ended[name] = Ended(agent.token, "frozen", now)
            reason = _reason(late)
            decided = self._decide(control, reason, None)
            facts = decision(project, decided) | {"agents": sorted(late)}
            facts["decided"] = facts.pop("action")
            return Entry("agent.frozen", reason, None, facts), (late, decided)

        done = book.change(decide)
        if done is None:
            return []
        late, decided = done
        try:
            result = self._follow(project, book, decided)
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
            for name, agent in late.items()
        ]

    def _due(self, project: Project, every: float) -> Version | None:
        """Return the head, if a snapshot of it is due."""
        head = project.head()
        last = None if head is None else project.last_good(head, [])
        if head is None or last is None:
            return head
        at = int(last.at.timestamp() * 1_000_000)
        late = last.number != head.number and at + int(every * 1_000_000) <= self._now()
        return head if late else None


def _running(control: Control, agent: str, token: int | None) -> Agent:
    """Return a running agent, or raise `NotRunning`."""
    _refuse_ended(control, agent, token)
    found = control.agents.get(agent)
    if found is None:
        raise NotRunning(f"agent {agent!r} does not run: log its start first")
    return found


def _refuse_ended(control: Control, agent: str, token: int | None) -> None:
    """Raise `NotRunning` for an agent that was ended from outside, or that another start has replaced."""
    if token is not None:
        check_integer("token", token, 1)
    ended = control.ended.get(agent)
    if ended is not None:
        who = f" by {ended.actor}" if ended.actor else ""
        how = "was found frozen" if ended.how == "frozen" else "was reset"
        raise NotRunning(
            f"agent {agent!r} {how}{who} at {stamp(ended.at)}: start it anew from the project's state"
        )
    found = control.agents.get(agent)
    if token is not None and (found is None or found.token != token):
        raise NotRunning(f"agent {agent!r} does not run under token {token}: it ended, or was started anew")


def _reason(late: dict[str, Agent]) -> str:
    told = [f"{name!r} after {agent.timeout:g} s" for name, agent in list(late.items())[:5]]
    more = f" and {len(late) - 5} more" if len(late) > 5 else ""
    text = f"timeout of agent {', '.join(told)}{more}"
    return text if len(text) < REASON else text[: REASON - 1] + "…"
