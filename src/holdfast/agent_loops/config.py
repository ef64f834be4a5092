"""The configuration of a project: how long agents may be silent, what is restored, which snapshots are kept.

Invariant: what is stored has been checked; a value that was not set is None, and its default is decided when it is
used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.agent_loops.replies import Reply
from holdfast.errors import InvalidCall
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import short
from holdfast.model.question import QuestionPolicy, check_question_policy
from holdfast.model.retention import Retention

AUTORESUME = "loop_autoresume"
#: Restores of one project within an hour, by configuration, before a person is asked.
MAX_RESTORES = 3
#: Audit entries that are kept if snapshots are pruned and nothing else is configured.
_AUDIT = Retention(last=1000)
#: Maximum characters of a name, and of a reason.
MAX_NAME = 500
MAX_REASON = 5000
#: The longest timeout or interval: 100 years.
_MAX_SECONDS = 100 * 366 * 86_400.0


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
    #: Whether a restore keeps top-level keys that the snapshot does not have; None: restores by hand do, others do not.
    keep_unknown: bool | None = None
    #: Restores within an hour, by configuration, before a person is asked; None for the default.
    max_restores: int | None = None
    #: Which audit entries to keep.
    audit_retention: Retention | None = None
    #: Who is to answer questions, and by when.
    question: QuestionPolicy | None = None

    def timeout_of(self, agent: str, default: float) -> float:
        """Return the seconds after which an agent counts as stalled; 0 for never."""
        return self.timeouts.get(agent, default if self.timeout is None else self.timeout)

    @property
    def restores(self) -> int:
        """The number of restores within an hour before a person is asked."""
        return MAX_RESTORES if self.max_restores is None else self.max_restores

    @property
    def kept_entries(self) -> Retention | None:
        """Which audit entries to keep; None for all."""
        return self.audit_retention or (None if self.retention is None else _AUDIT)

    def reply(self) -> Reply:
        """Return the configuration in the form of a reply."""
        return {
            AUTORESUME: bool(self.loop_autoresume),
            "timeout": "never" if self.timeout == 0 else self.timeout,
            "timeouts": {agent: seconds or "never" for agent, seconds in self.timeouts.items()},
            "retention": _builtins(self.retention),
            "every": self.every,
            "keep_unknown": self.keep_unknown,
            "max_restores": self.restores,
            "audit_retention": _builtins(self.audit_retention),
            "question": _builtins(self.question),
        }


def _builtins(policy: Retention | QuestionPolicy | None) -> Reply | None:
    fields = {} if policy is None else msgspec.to_builtins(policy)
    return {name: value for name, value in fields.items() if value is not None} or None


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
    if value > _MAX_SECONDS:
        raise InvalidCall(f"{name} is at most 100 years; math.inf means never")
    return float(value)


def check_agent(agent: Any) -> str:
    """Return the name of an agent, or raise `InvalidCall`."""
    if not isinstance(agent, str) or not agent:
        raise InvalidCall(f"an agent is named by a string, not {short(agent)}")
    name: str = str.__str__(agent)
    check_text("agent", name, MAX_NAME)
    return name


def check_flag(name: str, value: Any) -> bool:
    """Return True or False, or raise `InvalidCall`."""
    if type(value) is not bool:
        raise InvalidCall(f"{name} is True or False, not {short(value)}")
    return value


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that a caller gives, as they are stored."""
    return {name: _SETTINGS[name](value) for name, value in given.items()}


def _timeout(value: Any) -> float | None:
    return None if value is None else seconds_of("timeout", value)


def _timeouts(value: Any) -> dict[str, float | None]:
    if not isinstance(value, Mapping):
        raise InvalidCall(f"timeouts is a dict of agents and seconds, not {short(value)}")
    return {check_agent(agent): _timeout(seconds) for agent, seconds in value.items()}


#: The checks of the settings.
_SETTINGS: dict[str, Callable[[Any], Any]] = {
    AUTORESUME: lambda value: check_flag(AUTORESUME, value),
    "timeout": _timeout,
    "timeouts": _timeouts,
    "retention": lambda value: None if value is None else policy_of(value),
    "every": lambda value: None if value is None else seconds_of("every", value) or None,
    "keep_unknown": lambda value: None if value is None else check_flag("keep_unknown", value),
    "max_restores": lambda value: None if value is None else check_integer("max_restores", value, 0),
    "audit_retention": lambda value: None if value is None else policy_of(value),
    "question": check_question_policy,
}
