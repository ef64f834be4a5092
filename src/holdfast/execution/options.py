"""Options of the calls that start or resume a run.

Invariant: an options record that exists is valid; its checks run once, in the constructor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidCall
from holdfast.execution.call_arguments import check_if_exists
from holdfast.execution.engine_context import GivenOverrides, check_overrides
from holdfast.execution.limits import Limits, check_limits
from holdfast.execution.stopping import check_reason
from holdfast.model.meta import MetaValue, check_meta
from holdfast.model.watchdog import Watchdog, check_watchdog
from holdfast.workflow.definition import ACCEPT, CHANGED, Workflow

MODES = ("normal", "validate", "republish")
_ON_CHANGE = (*CHANGED, ACCEPT)


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `run`, `arun` and `enqueue`."""

    run_id: str | None = None
    tags: Iterable[str] = ()
    state: Any = None
    note: str | None = None
    actor: str | None = None
    #: Functions that replace steps, by the step's name; None stands for the step's own function.
    overrides: GivenOverrides | None = None
    watchdog: Watchdog | None = None
    limits: Limits | None = None
    if_exists: str = "error"
    #: Names and values by which the run is found.
    meta: Mapping[str, MetaValue] | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "meta", {} if self.meta is None else check_meta(self.meta))
        check_if_exists(self.if_exists)
        msgspec.structs.force_setattr(self, "overrides", check_overrides(self.overrides))
        check_watchdog(self.watchdog)
        check_limits(self.limits)


class ResumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `resume` and `aresume`."""

    from_address: str | None = None
    mode: str = "normal"
    answers: Mapping[str, Any] | None = None
    overrides: GivenOverrides | None = None
    #: The policy for changed code; None for the workflow's own.
    changed: str | None = None
    on_divergence: str = "raise"
    workflow: Any = None
    limits: Limits | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidCall(f"mode is one of {', '.join(MODES)}, not {self.mode!r:.60}")
        if self.changed is not None and self.changed not in _ON_CHANGE:
            raise InvalidCall(f"changed is one of {', '.join(_ON_CHANGE)}, not {self.changed!r:.60}")
        if self.on_divergence not in ("raise", "rerun"):
            raise InvalidCall(f"on_divergence is 'raise' or 'rerun', not {self.on_divergence!r:.60}")
        if self.answers is not None and not isinstance(self.answers, Mapping):
            raise InvalidCall("answers maps ids of questions, or addresses, to answers")
        if self.from_address is not None and not isinstance(self.from_address, str):
            raise InvalidCall(f"from_address is the address of a step, not {self.from_address!r:.60}")
        msgspec.structs.force_setattr(self, "overrides", check_overrides(self.overrides))
        check_limits(self.limits)

    @property
    def accepts_divergence(self) -> bool:
        """Is a run rolled back to before the first recorded step that does not match the code?"""
        return self.on_divergence == "rerun" or self.changed == ACCEPT


class RollbackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `rollback` and `arollback`."""

    #: Is the run resumed afterwards, if it is a workflow's?
    resume: bool = True
    reason: str | None = None
    actor: str | None = None
    overrides: GivenOverrides | None = None
    changed: str | None = None

    def __post_init__(self) -> None:
        check_reason(self.reason, self.actor)
        # Checks these options, too.
        msgspec.structs.force_setattr(self, "overrides", self.resume_options.overrides)

    @property
    def resume_options(self) -> ResumeOptions:
        """The options of the resume that follows."""
        return ResumeOptions(overrides=self.overrides, changed=self.changed)


class WorkflowCall(NamedTuple):
    """A call of a workflow, which becomes a run."""

    workflow: Workflow
    run_id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: RunOptions


#: Resume a run as it is.
DEFAULTS = ResumeOptions()
