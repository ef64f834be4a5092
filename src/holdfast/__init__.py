"""Holdfast keeps the state of agent workflows: every step a numbered, verified version."""

from holdfast.engine import Holdfast, open  # noqa: A004 - holdfast.open is the name
from holdfast.errors import (
    AlreadyExists,
    CorruptStore,
    CorruptVersion,
    HoldfastError,
    IncompatibleFormat,
    InvalidCall,
    InvalidReference,
    InvalidSnapshot,
    MergeConflict,
    NotFound,
    StaleVersion,
    StoreBusy,
    StoreUnavailable,
    UnsupportedValue,
)
from holdfast.history.history import History
from holdfast.history.snapshot import validate
from holdfast.history.version import Version
from holdfast.model.retention import Retention
from holdfast.tree.artifact import Artifact, artifact
from holdfast.tree.frozen import FrozenDict, FrozenList, thaw
from holdfast.tree.sanitize import sanitize
from holdfast.tree.values import Opaque, register

__all__ = [
    "AlreadyExists",
    "Artifact",
    "CorruptStore",
    "CorruptVersion",
    "FrozenDict",
    "FrozenList",
    "History",
    "Holdfast",
    "HoldfastError",
    "IncompatibleFormat",
    "InvalidCall",
    "InvalidReference",
    "InvalidSnapshot",
    "MergeConflict",
    "NotFound",
    "Opaque",
    "Retention",
    "StaleVersion",
    "StoreBusy",
    "StoreUnavailable",
    "UnsupportedValue",
    "Version",
    "artifact",
    "open",
    "register",
    "sanitize",
    "thaw",
    "validate",
]
