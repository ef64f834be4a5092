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
    HoldfastError,
    IncompatibleFormat,
    InvalidAnswer,
    InvalidCall,
    InvalidReference,
    InvalidSnapshot,
    LeaseLost,
    MergeConflict,
    NotFinished,
    NotFound,
    ReplayDiverged,
    StaleVersion,
    StepFailed,
    StepTimeout,
    StoreBusy,
    StoreUnavailable,
    Suspended,
    UnsupportedValue,
)
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
from holdfast.runtime.policy import Breaker, Retry
from holdfast.runtime.run import Run
from holdfast.runtime.watch import Watch
from holdfast.tree.artifact import Artifact, artifact
from holdfast.tree.frozen import FrozenDict, FrozenList, thaw
from holdfast.tree.sanitize import sanitize
from holdfast.tree.values import Opaque, register

__all__ = [
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
    "History",
    "Holdfast",
    "HoldfastError",
    "IncompatibleFormat",
    "InvalidAnswer",
    "InvalidCall",
    "InvalidReference",
    "InvalidSnapshot",
    "LeaseLost",
    "MergeConflict",
    "NotFinished",
    "NotFound",
    "Opaque",
    "ReplayDiverged",
    "Retention",
    "Retry",
    "Run",
    "StaleVersion",
    "StepFailed",
    "StepTimeout",
    "StoreBusy",
    "StoreUnavailable",
    "Suspended",
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
