"""Watchdogs: the policy by which the monitor calls a run stalled, and its form in a run's record.

Invariant: a policy never changes. That of a run is in the run's record, where rollbacks, recoveries and restarts leave
it, also if this version of Holdfast does not understand it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall
from holdfast.model.checks import check_integer, check_number
from holdfast.model.names import short
from holdfast.model.question import QuestionPolicy, check_question_policy
from holdfast.struct_types import resolved

#: Marks, in a run's record, a policy that was given for that run and not with its workflow.
_OWN = "own"
#: The words under which stores keep the fields of a `Watchdog` whose names have changed since.
_STORED_AS = {
    "heartbeat_timeout": "silent",
    "idle_timeout": "between",
    "max_repeats": "repeats",
    "max_unchanged": "unchanged",
    "max_seconds": "max_time",
    "max_recoveries": "max_restores",
}


class Watchdog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_STORED_AS):
    """The policy by which the monitor calls a run stalled, and what it does then. None leaves something unwatched."""

    #: Seconds that a step may take without a word: without `holdfast.progress()`, and without calling a step. A step
    #: may have its own: `@step(heartbeat_timeout=…)`.
    heartbeat_timeout: float | None = None
    #: Seconds that may pass between two steps.
    idle_timeout: float | None = None
    #: A loop: so many times the same step with equal arguments and result, or back and forth between two.
    max_repeats: int | None = None
    #: So many versions without a change of the state are a loop.
    max_unchanged: int | None = None
    #: Seconds of execution; waiting does not count.
    max_seconds: float | None = None
    #: Completed steps, those of children included.
    max_steps: int | None = None
    #: What steps, those of children included, have noted with `holdfast.annotate(tokens=…, cost=…)`. The monitor finds
    #: that a budget was exceeded; `Limits` keep a run from exceeding it.
    max_tokens: int | None = None
    max_cost: float | None = None
    #: Roll a stalled run back to its last good version and resume it, before a person is asked?
    autoresume: bool = False
    #: How often that is done, at most, until a person has answered.
    max_recoveries: int = 3
    #: Who is to answer the question about a stalled run, and by when.
    question: QuestionPolicy | None = None

    def __post_init__(self) -> None:
        for name in ("heartbeat_timeout", "idle_timeout", "max_seconds", "max_cost"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above_zero=True)
        for name, least in (("max_repeats", 2), ("max_unchanged", 2), ("max_steps", 1), ("max_tokens", 1)):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least)
        check_integer("max_recoveries", self.max_recoveries, 0)
        if type(self.autoresume) is not bool:
            raise InvalidCall(f"autoresume is True or False, not {short(self.autoresume)}")
        check_question_policy(self.question)

    @property
    def has_budget(self) -> bool:
        """Return whether any spending of a run is watched."""
        budgets = (self.max_seconds, self.max_steps, self.max_tokens, self.max_cost)
        return any(each is not None for each in budgets)


def check_watchdog(watchdog: Any) -> Watchdog | None:
    """Return a policy, or raise `InvalidCall`."""
    if watchdog is not None and not isinstance(watchdog, Watchdog):
        raise InvalidCall(
            f"watchdog is Watchdog(…), such as Watchdog(heartbeat_timeout=60), not {short(watchdog)}"
        )
    return watchdog


class RunWatchdog(msgspec.Struct, frozen=True):
    """The watchdog of a run, as its record holds it."""

    #: None if this version does not understand the stored policy.
    policy: Watchdog | None
    #: Was it given for this run, and not with its workflow?
    own: bool
    #: The policy as it is stored: a later version may have fields that this one does not know.
    stored: Mapping[str, Any]

    @staticmethod
    def of(run: Watchdog | None, workflow: Watchdog | None) -> RunWatchdog | None:
        """Return the watchdog of a run: its own, or else that of its workflow."""
        policy = workflow if run is None else run
        if policy is None:
            return None
        own = run is not None
        # A `float64` of numpy is a float, but not a built-in one.
        return RunWatchdog(policy, own, {**msgspec.to_builtins(policy, enc_hook=float), _OWN: own})

    @staticmethod
    def read(stored: Mapping[str, Any]) -> RunWatchdog:
        """Return the watchdog that a run's record holds."""
        try:
            policy = msgspec.convert(stored, resolved(Watchdog))
        except (msgspec.ValidationError, HoldfastError):
            policy = None
        return RunWatchdog(policy, bool(stored.get(_OWN)), stored)


def follow_workflow(known: RunWatchdog | None, workflow: Watchdog | None) -> RunWatchdog | None:
    """Return the watchdog of a run whose workflow may have changed: the run's own stays."""
    return known if known is not None and known.own else RunWatchdog.of(None, workflow)
