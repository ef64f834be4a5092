"""Project data that a restore does not touch: configuration, running agents, questions, and the audit.

All of it is one small record in a separate run. Each change is a version that records actor, action, time and
reason: the versions are the audit. The record is stored as text, so that redaction patterns for states do not
match its names.

Invariant: a change applies to the newest record or not at all (`expected=`), so that of two concurrent
decisions about the same thing one is made and the other sees it. Configuration is kept in the control run,
which no restore touches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.compat.loop_engine import project as names
from holdfast.compat.loop_engine.project import RESTORED, Project, split_reason
from holdfast.compat.loop_engine.replies import Reply, packed, reported, stamp, unpacked
from holdfast.engine import Holdfast
from holdfast.errors import BadData, CorruptStore, IncompatibleFormat, InvalidCall, NotFound, StaleVersion
from holdfast.history.version import Version
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import short
from holdfast.model.public import Timeline
from holdfast.model.retention import Retention
from holdfast.struct_types import resolved

AUTORESUME = "loop_autoresume"

#: The longest timeout or interval: 100 years.
_LONGEST = 100 * 366 * 86_400.0
#: Maximum characters of a name, and of a reason.
ACTOR = 500
REASON = 5000


class Settings:
    """Calls that configure projects and report their configuration and audit."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf

    @reported
    def configure(
        self,
        project_id: str,
        *,
        loop_autoresume: bool | UnsetType = UNSET,
        timeout: float | UnsetType | None = UNSET,
        timeouts: Mapping[str, float | None] | UnsetType = UNSET,
        retention: Retention | int | UnsetType | None = UNSET,
        every: float | UnsetType | None = UNSET,
        actor: str | None = None,
    ) -> Reply:
        """Change the given settings, and leave the others.

        `loop_autoresume`: restore the last snapshot when an agent stalls, instead of asking. `timeout`:
        seconds until an agent counts as stalled (None: the engine's default, infinity: never); `timeouts`:
        the same by agent, merged into the existing ones (None: remove the agent's). `retention`: which
        snapshots to keep, as for `prune`; applied after each snapshot. `every`: seconds between scheduled
        snapshots, None for no schedule.
        """
        wanted = {
            AUTORESUME: loop_autoresume,
            "timeout": timeout,
            "timeouts": timeouts,
            "retention": retention,
            "every": every,
        }
        given = {name: value for name, value in wanted.items() if value is not UNSET}
        config = self._configure(names.check_project(project_id), given, actor)
        return {"status": "configured", "project_id": project_id, "config": _shown(config)}

    @reported
    def schedule(self, project_id: str, every: float | None, *, actor: str | None = None) -> Reply:
        """Have the checker save a snapshot every `every` seconds if the state has changed; None ends the
        schedule."""
        config = self._configure(names.check_project(project_id), {"every": every}, actor)
        return {"status": "scheduled", "project_id": project_id, "every": config.every}

    @reported
    def get_config(self, project_id: str) -> Reply:
        """Return the configuration of a project."""
        project_id = names.check_project(project_id)
        return {
            "status": "ok",
            "project_id": project_id,
            "config": _shown(self._book(project_id).read().config),
        }

    @reported
    def get_projects(self) -> Reply:
        """Return the ids of all projects that were ever configured or had an agent or a question, newest
        first."""
        found = [names.unquoted(self._control(name).project) for name in projects(self._hf)]
        return {"status": "ok", "projects": found}

    @reported
    def get_audit(self, project_id: str, *, limit: int = 1000) -> Reply:
        """Return the audit (actor, action, time, reason), oldest first: agents started, completed, stalled
        and reset; questions and their answers; restores; configuration. Return only the newest `limit`
        entries if there are more."""
        check_integer("limit", limit, 1)
        project = Project(self._hf, project_id)
        entries = self._book(project.id).entries(limit)[::-1]
        entries += [_restore(line) for line in project.lines()]
        entries.sort(key=lambda entry: str(entry["at"]))
        return {"status": "ok", "project_id": project.id, "count": len(entries), "audit": entries[-limit:]}

    def _book(self, project_id: str) -> Book:
        return Book(self._hf, names.name_of(project_id), project_id)

    def _control(self, name: str) -> Control:
        return Book(self._hf, name, name).read()

    def _configure(self, project_id: str, given: Mapping[str, Any], actor: Any) -> Config:
        check_text("actor", actor, ACTOR)
        values = {name: _CHECKS[name](value) for name, value in given.items()}

        def decide(control: Control) -> tuple[Entry | None, Config]:
            timeouts = dict(control.config.timeouts)
            for agent, seconds in values.get("timeouts", {}).items():
                timeouts.pop(agent, None)
                if seconds is not None:
                    timeouts[agent] = seconds
            after = msgspec.structs.replace(control.config, **{**values, "timeouts": timeouts})
            if after == control.config:
                return None, after
            changed = {name: value for name, value in _shown(after).items() if name in values}
            control.config = after
            return Entry("configured", None, actor, {"config": changed}), after

        return self._book(project_id).change(decide)


def policy_of(policy: Any) -> Retention:
    """Return the retention policy that a caller's argument describes."""
    if isinstance(policy, Retention):
        return policy
    if type(policy) is int:
        return Retention(last=policy)
    raise InvalidCall(
        f"a policy is a number of snapshots to keep, or a holdfast.Retention, not {short(policy)}"
    )


def seconds_of(name: str, value: Any) -> float:
    """Return a caller's number of seconds; 0 for infinity, which means never."""
    if type(value) not in (int, float) or not value > 0:
        raise InvalidCall(f"{name} is a number of seconds above 0, not {short(value)}")
    if value == math.inf:
        return 0.0
    if value > _LONGEST:
        raise InvalidCall(f"{name} is at most 100 years; math.inf stands for ever")
    return float(value)


def check_agent(agent: Any) -> str:
    """Return the name of an agent, or raise `InvalidCall`."""
    if not isinstance(agent, str) or not agent:
        raise InvalidCall(f"an agent is named by a string, not {short(agent)}")
    name: str = str.__str__(agent)
    check_text("agent", name, ACTOR)
    return name


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidCall(f"{AUTORESUME} is True or False, not {short(value)}")
    return value


def _interval(value: Any) -> float | None:
    seconds = None if value is None else seconds_of("every", value)
    return seconds or None


def _timeouts(value: Any) -> dict[str, float | None]:
    if not isinstance(value, Mapping):
        raise InvalidCall(f"timeouts is a dict of agents and seconds, not {short(value)}")
    return {
        check_agent(agent): None if seconds is None else seconds_of("timeout", seconds)
        for agent, seconds in value.items()
    }


_CHECKS: dict[str, Any] = {
    AUTORESUME: _flag,
    "timeout": lambda value: None if value is None else seconds_of("timeout", value),
    "timeouts": _timeouts,
    "retention": lambda value: None if value is None else policy_of(value),
    "every": _interval,
}


def _shown(config: Config) -> Reply:
    """Return a configuration in the form of a reply."""
    keep = config.retention
    return {
        AUTORESUME: bool(config.loop_autoresume),
        "timeout": _for_ever(config.timeout),
        "timeouts": {agent: _for_ever(seconds) for agent, seconds in config.timeouts.items()},
        "retention": None
        if keep is None
        else {name: value for name, value in msgspec.to_builtins(keep).items() if value is not None},
        "every": config.every,
    }


def _for_ever(seconds: float | None) -> float | str | None:
    return "never" if seconds == 0 else seconds


def _restore(line: Timeline) -> Reply:
    reason, what = split_reason(line.reason)
    return {
        "at": stamp(line.at),
        "action": what or RESTORED,
        "actor": line.actor,
        "reason": reason,
        "timeline": line.number,
        "version": line.parent,
    }


#: Format number of the record.
FORMAT = 1
#: Tag that marks control runs.
TAG = "loop-control"
#: Step of internal bookkeeping changes, which are not part of the audit.
TIDIED = "tidied"

#: Maximum number of answered questions, and of ended agents, in the record.
_ANSWERED = 50
_ENDED = 100
_PAGE = 500

T = TypeVar("T")


class Config(msgspec.Struct, omit_defaults=True):
    """Configuration of a project."""

    #: None if it was never configured.
    loop_autoresume: bool | None = None
    #: Seconds until an agent counts as stalled; None for the engine's default, 0 for never.
    timeout: float | None = None
    #: The same, by agent.
    timeouts: dict[str, float] = {}
    retention: Retention | None = None
    #: Seconds between scheduled snapshots.
    every: float | None = None


class Agent(msgspec.Struct, omit_defaults=True):
    """A running agent."""

    #: Identifies this start of the agent.
    token: int
    started: int
    #: Seconds; 0 for never.
    timeout: float
    actor: str | None = None
    #: Time at which the save of its last snapshot started; 0 if it is not completing.
    completing: int = 0


class Ended(msgspec.Struct, omit_defaults=True):
    """An agent that was ended from outside: stalled or reset."""

    token: int
    how: str
    at: int
    actor: str | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """The answer to a question: choice, time and actor."""

    choice: str
    at: int
    actor: str | None = None


class LoopQuestion(msgspec.Struct, omit_defaults=True):
    """A question to the operator."""

    number: int
    reasons: list[str]
    opened: int
    answer: Answer | None = None


class Task(msgspec.Struct, omit_defaults=True):
    """A decision that is being executed; if its process dies, another process that finds it executes it."""

    number: int
    #: restore or reinitialize
    what: str
    reason: str
    #: Time at which a process took over the task.
    at: int
    actor: str | None = None
    keys: list[str] = []


class Control(msgspec.Struct):
    """The control record of a project."""

    #: The project id, quoted.
    project: str
    format: int = FORMAT
    #: The last number assigned to a start, a question or a task.
    serial: int = 0
    config: Config = msgspec.field(default_factory=Config)
    agents: dict[str, Agent] = {}
    ended: dict[str, Ended] = {}
    prompts: list[LoopQuestion] = []
    tasks: list[Task] = []

    def next(self) -> int:
        self.serial += 1
        return self.serial

    @property
    def open_prompt(self) -> LoopQuestion | None:
        return next((prompt for prompt in self.prompts if prompt.answer is None), None)

    @property
    def status(self) -> str:
        """Return the status of the run: running while a checker has something to check."""
        if self.agents or self.tasks or self.config.every is not None:
            return "running"
        return "suspended" if self.open_prompt is not None else "paused"


class Entry(NamedTuple):
    """Audit entry of a change. A decision without a change has no entry."""

    action: str
    reason: str | None = None
    actor: str | None = None
    facts: Mapping[str, Any] = MappingProxyType({})


class Book:
    """Access to the control record of one project."""

    def __init__(self, hf: Holdfast, name: str, project_id: str) -> None:
        self._log = hf.history(names.control_run(name))
        self._project = project_id

    def read(self) -> Control:
        """Return the current record; an empty one if the project has none."""
        return self._read()[0]

    def change(self, decide: Callable[[Control], tuple[Entry | None, T]]) -> T:
        """Change the record. `decide` modifies it and returns the audit entry and the result. It may be
        called several times, each time with the newest record; if it raises, nothing changes."""
        while True:
            control, number = self._read()
            entry, outcome = decide(control)
            if entry is None:
                return outcome
            answered = [prompt for prompt in control.prompts if prompt.answer is not None][:-_ANSWERED]
            control.prompts = [prompt for prompt in control.prompts if prompt not in answered]
            control.ended = dict(sorted(control.ended.items(), key=_when)[-_ENDED:])
            try:
                self._log.commit(
                    msgspec.json.encode(control).decode(),
                    step=entry.action,
                    note=entry.reason,
                    actor=entry.actor,
                    annotations=packed(dict(entry.facts)) if entry.facts else None,
                    status=control.status,
                    tags=[TAG] if number == 0 else (),
                    expected=number,
                )
            except StaleVersion:
                continue
            return outcome

    def entries(self, limit: int) -> list[Reply]:
        """Return the newest changes, newest first."""
        found: list[Reply] = []
        before: int | None = None
        while len(found) < limit:
            try:
                page = self._log.versions(limit=min(_PAGE, limit), before=before)
            except NotFound:
                break
            if not page:
                break
            found += [_entry(version) for version in page if version.step != TIDIED]
            before = page[-1].number
        return found[:limit]

    def prune(self, policy: Retention) -> int:
        """Remove old audit entries; return how many."""
        try:
            return len(self._log.prune(policy).versions)
        except NotFound:
            return 0

    def _read(self) -> tuple[Control, int]:
        try:
            head = self._log.head
        except NotFound:
            return Control(names.quoted(self._project)), 0
        return decoded(head), head.number


def decoded(version: Version) -> Control:
    """Return the record in a version."""
    try:
        control = msgspec.json.decode(version.state, type=resolved(Control))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise CorruptStore(
            f"{version.run}@{version.number} is not what a loop engine writes: roll it back to a version that is",
            run=version.run,
            version=version.number,
        ) from error
    if control.format > FORMAT:
        raise IncompatibleFormat(
            f"{version.run} is of format {control.format}, newer than this Holdfast knows ({FORMAT}): upgrade Holdfast",
            run=version.run,
        )
    return control


def projects(hf: Holdfast, *, status: str | None = None) -> Iterator[str]:
    """Yield the names of all projects that have a control run, newest first."""
    for run in hf.iter_runs(tags=[TAG], status=status):
        name = names.name_in(run.id)
        if name is not None:
            yield name


def _when(ended: tuple[str, Ended]) -> tuple[int, int]:
    return ended[1].at, ended[1].token


def _entry(version: Version) -> Reply:
    try:
        facts = unpacked(version.annotations)
    except BadData as error:
        facts = {"damaged": str(error)}
    return {
        "at": stamp(version.at),
        "action": version.step,
        "actor": version.actor,
        "reason": version.note,
        **facts,
    }
