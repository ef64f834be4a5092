"""How projects want to be treated, and who did what to them.

Invariant: what is configured is kept in the control run, which no restore touches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall
from holdfast.loops import names
from holdfast.loops.control import Book, Config, Control, Entry, projects
from holdfast.loops.project import RESTORED, Project, split_reason
from holdfast.loops.replies import Reply, reported, stamp
from holdfast.model.names import check_number, check_text, short
from holdfast.model.public import Timeline
from holdfast.model.retention import Retention

AUTORESUME = "loop_autoresume"

#: The longest time that a timeout or an interval may be: 100 years.
_LONGEST = 100 * 366 * 86_400.0
#: Characters of a name, and of a reason.
ACTOR = 500
REASON = 5000


class Settings:
    """Configures projects and tells of them."""

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
        """Set what is given, and leave the rest.

        `loop_autoresume`: restore the last snapshot when an agent freezes, instead of asking. `timeout`: seconds
        until an agent counts as frozen (None: as the engine says, infinity: never); `timeouts`: the same by agent,
        added to those that are known (None: take it away). `retention`: which snapshots to keep, as `prune` takes it;
        followed after each snapshot. `every`: seconds between scheduled snapshots, None for none.
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
        """Have the checker save a snapshot every so many seconds, if the state has changed; None: no more."""
        config = self._configure(names.check_project(project_id), {"every": every}, actor)
        return {"status": "scheduled", "project_id": project_id, "every": config.every}

    @reported
    def get_config(self, project_id: str) -> Reply:
        """How a project is configured."""
        project_id = names.check_project(project_id)
        return {
            "status": "ok",
            "project_id": project_id,
            "config": _shown(self._book(project_id).read().config),
        }

    @reported
    def get_projects(self) -> Reply:
        """The ids of all projects that were ever configured, had an agent or a prompt, newest first."""
        found = [names.unquoted(self._control(name).project) for name in projects(self._hf)]
        return {"status": "ok", "projects": found}

    @reported
    def get_audit(self, project_id: str, *, limit: int = 1000) -> Reply:
        """Who did what, when and why, oldest first: agents started, completed, frozen and reset; prompts and their
        answers; restores; configuration. The newest of them if there are more than `limit`."""
        check_number("limit", limit, 1)
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
    """What a caller says is to be kept."""
    if isinstance(policy, Retention):
        return policy
    if type(policy) is int:
        return Retention(last=policy)
    raise InvalidCall(
        f"a policy is a number of snapshots to keep, or a holdfast.Retention, not {short(policy)}"
    )


def seconds_of(name: str, value: Any) -> float:
    """A time that a caller gives; 0 for infinity, which stands for never."""
    if type(value) not in (int, float) or not value > 0:
        raise InvalidCall(f"{name} is a number of seconds above 0, not {short(value)}")
    if value == math.inf:
        return 0.0
    if value > _LONGEST:
        raise InvalidCall(f"{name} is at most 100 years; math.inf stands for ever")
    return float(value)


def check_agent(agent: Any) -> str:
    """The name of an agent, or `InvalidCall`."""
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
    """A configuration as a reply shows it."""
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
