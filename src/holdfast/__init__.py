"""Holdfast keeps the state of agent workflows: every step a numbered, verified version."""

from holdfast.engine import Holdfast, open  # noqa: A004 - holdfast.open is the name
from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    BreakerOpen,
    Cancelled,
    CodeChanged,
    CommitUnknown,
    CompensationFailed,
    CorruptStore,
    CorruptVersion,
    FrozenStateChanged,
    HoldfastError,
    HoldfastWarning,
    IncompatibleFormat,
    InvalidAnswer,
    InvalidCall,
    InvalidReference,
    InvalidSnapshot,
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
    RunMismatch,
    StaleVersion,
    StepFailed,
    StepTimeout,
    StoreBusy,
    StoreUnavailable,
    Suspended,
    UnknownTimeZone,
    UnsupportedValue,
)
from holdfast.history.arguments import NotStored
from holdfast.history.history import History
from holdfast.history.snapshot import validate
from holdfast.history.version import Version
from holdfast.model.retention import Retention
from holdfast.runtime.ambient import (
    ask,
    idempotency_key,
    note,
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
from holdfast.runtime.autosave import autosave
from holdfast.runtime.calls import trial
from holdfast.runtime.decorate import step, workflow
from holdfast.runtime.limits import Limits
from holdfast.runtime.policy import Breaker, Retry
from holdfast.runtime.run import Run
from holdfast.runtime.watch import Watch
from holdfast.tree.artifact import Artifact, artifact
from holdfast.tree.edits import MISSING
from holdfast.tree.frozen import FrozenDict, FrozenList, thaw
from holdfast.tree.sanitize import sanitize
from holdfast.tree.values import Opaque, register

__all__ = [
    "MISSING",
    "AlreadyExists",
    "AlreadyRunning",
    "Artifact",
    "Breaker",
    "BreakerOpen",
    "Cancelled",
    "CodeChanged",
    "CommitUnknown",
    "CompensationFailed",
    "CorruptStore",
    "CorruptVersion",
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
    "QuestionTimeout",
    "ReplayDiverged",
    "Retention",
    "Retry",
    "Run",
    "RunMismatch",
    "StaleVersion",
    "StepFailed",
    "StepTimeout",
    "StoreBusy",
    "StoreUnavailable",
    "Suspended",
    "UnknownTimeZone",
    "UnsupportedValue",
    "Version",
    "Watch",
    "artifact",
    "ask",
    "autosave",
    "idempotency_key",
    "note",
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
    "trial",
    "uuid4",
    "validate",
    "wait_for",
    "workflow",
]

#: The release, as `holdfast --version` shows it.
__version__ = "0.1.0"
