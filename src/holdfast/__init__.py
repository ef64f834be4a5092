"""Holdfast keeps the state of agent workflows: every step a numbered, verified version.

Names that a program may not need are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    BadData,
    BreakerOpen,
    Cancelled,
    CodeChanged,
    CommitUnknown,
    CompensationFailed,
    CorruptStore,
    CorruptVersion,
    DecisionNeeded,
    FrozenStateChanged,
    HoldfastError,
    HoldfastWarning,
    IncompatibleFormat,
    InvalidAnswer,
    InvalidCall,
    InvalidReference,
    InvalidSnapshot,
    InvalidState,
    LeaseExpired,
    LeaseLost,
    LimitExceeded,
    MergeConflict,
    NotAwaited,
    NotFinished,
    NotFound,
    OverridesMissing,
    QuestionTimeout,
    ReplayDiverged,
    RunEnded,
    RunMismatch,
    StaleVersion,
    StepFailed,
    StepTimeout,
    StoreBusy,
    StoreUnavailable,
    Suspended,
    TryAgain,
    UnknownTimeZone,
    UnsupportedValue,
)
from holdfast.model.question import QuestionPolicy
from holdfast.model.watchdog import Watchdog
from holdfast.workflow.decorators import call_steps_directly, step, workflow
from holdfast.workflow.policy import Breaker, Retry

if TYPE_CHECKING:
    from holdfast.compat.autosave import autosave
    from holdfast.engine import Holdfast, open  # noqa: A004 - holdfast.open is the name
    from holdfast.execution.limits import Limits, Spent
    from holdfast.execution.preview import Preview
    from holdfast.execution.replay_validation import Difference
    from holdfast.execution.run import Run
    from holdfast.history.blame import Blame
    from holdfast.history.compare import Comparison, Diff
    from holdfast.history.history import History
    from holdfast.history.snapshot import validate
    from holdfast.history.summary import VersionSummary
    from holdfast.history.version import NotStored, Version
    from holdfast.model.public import (
        BreakerSummary,
        Collected,
        Event,
        Problem,
        Pruned,
        Question,
        QueueSummary,
        Report,
        RunSummary,
        StoredArtifact,
        Timeline,
    )
    from holdfast.model.records import StoreStats
    from holdfast.model.retention import Retention
    from holdfast.tree.artifact import Artifact, artifact
    from holdfast.tree.diff import Change
    from holdfast.tree.frozen import FrozenDict, FrozenList, thaw
    from holdfast.tree.list_alignment import MISSING
    from holdfast.tree.sanitize import sanitize
    from holdfast.tree.values import Opaque, register
    from holdfast.workflow.inside_run import (
        annotate,
        ask,
        idempotency_key,
        now,
        parallel,
        patched,
        progress,
        random,
        sleep,
        state,
        uuid4,
        wait_for,
    )
    from holdfast.workflow.subscriptions import Subscription

__all__ = [
    "MISSING",
    "AlreadyExists",
    "AlreadyRunning",
    "Artifact",
    "BadData",
    "Blame",
    "Breaker",
    "BreakerOpen",
    "BreakerSummary",
    "Cancelled",
    "Change",
    "CodeChanged",
    "Collected",
    "CommitUnknown",
    "Comparison",
    "CompensationFailed",
    "CorruptStore",
    "CorruptVersion",
    "DecisionNeeded",
    "Diff",
    "Difference",
    "Event",
    "FrozenDict",
    "FrozenList",
    "FrozenStateChanged",
    "History",
    "Holdfast",
    "HoldfastError",
    "HoldfastWarning",
    "IncompatibleFormat",
    "InvalidAnswer",
    "InvalidCall",
    "InvalidReference",
    "InvalidSnapshot",
    "InvalidState",
    "LeaseExpired",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "MergeConflict",
    "NotAwaited",
    "NotFinished",
    "NotFound",
    "NotStored",
    "Opaque",
    "OverridesMissing",
    "Preview",
    "Problem",
    "Pruned",
    "Question",
    "QuestionPolicy",
    "QuestionTimeout",
    "QueueSummary",
    "ReplayDiverged",
    "Report",
    "Retention",
    "Retry",
    "Run",
    "RunEnded",
    "RunMismatch",
    "RunSummary",
    "Spent",
    "StaleVersion",
    "StepFailed",
    "StepTimeout",
    "StoreBusy",
    "StoreStats",
    "StoreUnavailable",
    "StoredArtifact",
    "Subscription",
    "Suspended",
    "Timeline",
    "TryAgain",
    "UnknownTimeZone",
    "UnsupportedValue",
    "Version",
    "VersionSummary",
    "Watchdog",
    "annotate",
    "artifact",
    "ask",
    "autosave",
    "call_steps_directly",
    "idempotency_key",
    "now",
    "open",
    "parallel",
    "patched",
    "progress",
    "random",
    "register",
    "sanitize",
    "sleep",
    "state",
    "step",
    "thaw",
    "uuid4",
    "validate",
    "wait_for",
    "workflow",
]

#: The release, as `holdfast --version` shows it.
__version__ = "0.1.0"

#: The modules of the names that are loaded on first use.
_MODULES = {
    "autosave": "compat.autosave",
    "Holdfast": "engine",
    "open": "engine",
    "Limits": "execution.limits",
    "Spent": "execution.limits",
    "Preview": "execution.preview",
    "Difference": "execution.replay_validation",
    "Run": "execution.run",
    "Blame": "history.blame",
    "Comparison": "history.compare",
    "Diff": "history.compare",
    "History": "history.history",
    "validate": "history.snapshot",
    "NotStored": "history.version",
    "Version": "history.version",
    "VersionSummary": "history.summary",
    "BreakerSummary": "model.public",
    "Collected": "model.public",
    "Event": "model.public",
    "Problem": "model.public",
    "Pruned": "model.public",
    "Question": "model.public",
    "QueueSummary": "model.public",
    "Report": "model.public",
    "RunSummary": "model.public",
    "StoredArtifact": "model.public",
    "Timeline": "model.public",
    "StoreStats": "model.records",
    "Retention": "model.retention",
    "Artifact": "tree.artifact",
    "artifact": "tree.artifact",
    "Change": "tree.diff",
    "FrozenDict": "tree.frozen",
    "FrozenList": "tree.frozen",
    "thaw": "tree.frozen",
    "MISSING": "tree.list_alignment",
    "sanitize": "tree.sanitize",
    "Opaque": "tree.values",
    "register": "tree.values",
    "annotate": "workflow.inside_run",
    "ask": "workflow.inside_run",
    "idempotency_key": "workflow.inside_run",
    "now": "workflow.inside_run",
    "parallel": "workflow.inside_run",
    "patched": "workflow.inside_run",
    "progress": "workflow.inside_run",
    "random": "workflow.inside_run",
    "sleep": "workflow.inside_run",
    "state": "workflow.inside_run",
    "uuid4": "workflow.inside_run",
    "wait_for": "workflow.inside_run",
    "Subscription": "workflow.subscriptions",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(f"holdfast.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
