"""What a run may do before somebody should look at it, and what is done then.

Invariant: a policy never changes; the one that holds for a run stands in the run's record, where rollbacks, restores
and restarts leave it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall
from holdfast.model.names import short
from holdfast.struct_types import resolved

#: Marks, in a run's record, a policy that was given for that run and not with its workflow.
_OWN = "own"


class Watch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the monitor takes a run for stuck, and what it does then. None leaves something unwatched."""

    #: Seconds that a step may take without a word: without `holdfast.progress()`, and without calling a step. A step
    #: may have its own: `@step(silent=…)`.
    silent: float | None = None
    #: Seconds that may pass between two steps.
    between: float | None = None
    #: So many times the same step with the same arguments and the same result, or to and fro between two, is a loop.
    repeats: int | None = None
    #: So many versions without a change of the state are a loop.
    unchanged: int | None = None
    #: Seconds of execution; waiting does not count.
    max_time: float | None = None
    #: Completed steps, those of children included.
    max_steps: int | None = None
    #: What steps, those of children included, have noted with `holdfast.note(tokens=…, cost=…)`. The monitor finds
    #: that a budget was exceeded; `Limits` keep a run from exceeding it.
    max_tokens: int | None = None
    max_cost: float | None = None
    #: Roll a run that is stuck back to its last good version and go on, before a person is asked?
    autoresume: bool = False
    #: How often that is done, at most, until a person has answered.
    max_restores: int = 3

    def __post_init__(self) -> None:
        for name in ("silent", "between", "max_time", "max_cost"):
            _check_number(name, getattr(self, name), int | float)
        for name, least in (("repeats", 2), ("unchanged", 2), ("max_steps", 1), ("max_tokens", 1)):
            _check_number(name, getattr(self, name), int, least)
        if type(self.max_restores) is not int or self.max_restores < 0:
            raise InvalidCall(f"max_restores is a whole number, 0 or more, not {short(self.max_restores)}")
        if type(self.autoresume) is not bool:
            raise InvalidCall(f"autoresume is True or False, not {short(self.autoresume)}")

    @property
    def has_budget(self) -> bool:
        """Is anything that a run spends watched?"""
        budgets = (self.max_time, self.max_steps, self.max_tokens, self.max_cost)
        return any(each is not None for each in budgets)


def check_watch(watch: Any) -> Watch | None:
    """A policy, or `InvalidCall`."""
    if watch is not None and not isinstance(watch, Watch):
        raise InvalidCall(f"watch is Watch(…), such as Watch(silent=60), not {short(watch)}")
    return watch


def kept_watch(run: Watch | None, workflow: Watch | None) -> dict[str, Any]:
    """The policy of a run as its record keeps it: its own, or else that of its workflow."""
    if run is not None:
        return {**msgspec.to_builtins(run), _OWN: True}
    return {} if workflow is None else {**msgspec.to_builtins(workflow), _OWN: False}


def follow_workflow(kept: dict[str, Any], workflow: Watch | None) -> dict[str, Any]:
    """The policy of a run whose workflow may have another one since: the run's own stays."""
    return kept if kept.get(_OWN) else kept_watch(None, workflow)


def watch_of(kept: dict[str, Any]) -> Watch | None:
    """The policy that a record keeps; None if there is none, or none that makes sense here."""
    try:
        return msgspec.convert(kept, resolved(Watch)) if kept else None
    except (msgspec.ValidationError, HoldfastError):
        return None


def _check_number(name: str, value: Any, kind: Any, least: int = 0) -> None:
    if value is None:
        return
    fine = isinstance(value, kind) and not isinstance(value, bool)
    if not fine or not (value >= least if least else value > 0) or value >= 1e12:
        what = f"a whole number from {least}" if least else "a number above 0"
        raise InvalidCall(f"{name} of a Watch is {what}, not {short(value)}")
