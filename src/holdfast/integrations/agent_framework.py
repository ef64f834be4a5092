"""Checkpoint storage for Microsoft's agent-framework: a workflow execution is a run, a checkpoint a tagged
version.

Registers the framework's messages, contents, responses and events as storable values. Their
`raw_representation`, an object of the model's client library, is left out, as in the framework's own
checkpoints.

Invariant: a checkpoint follows the one that it names as its previous; if that already has a successor, the
checkpoint starts a new timeline. Nothing is pickled or imported by name: the framework's own classes are
registered here, an application allows its own, and any other is refused before anything is written.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from holdfast import Holdfast, InvalidCall, InvalidReference, NotFound, UnsupportedValue, Version, register
from holdfast.integrations import missing_extra
from holdfast.integrations.histories import EntryLog, KnownVersions, build_run_id, plain_state
from holdfast.model.names import check_tag
from holdfast.off_loop import off_loop
from holdfast.tree.class_names import type_name

try:
    import agent_framework as af
    from agent_framework.exceptions import WorkflowCheckpointException
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "agent-framework", error.name) from error


class TypeName(NamedTuple):
    """A type that an event or a response holds: its name, the names of a generic type and its arguments, or
    the values of a literal."""

    parts: Any


def allow_types(types: Iterable[Any]) -> None:
    """Allow events and responses to name these types."""
    _types.update({_name(kind): kind for kind in types})


def _name(kind: Any) -> str:
    if isinstance(kind, type):
        return type_name(kind)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def _parts_of_type(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return {"literal": list(get_args(kind))}
    if origin is not None:
        kinds = (Union if origin is UnionType else origin, *get_args(kind))
        return [_parts_of_type(each) for each in kinds]
    if _types.get(_name(kind)) is not kind:
        raise UnsupportedValue(f"the type {_name(kind)} is not known: pass it in allow=[…]", type=_name(kind))
    return _name(kind)


def _type_of_parts(parts: Any) -> Any:
    if isinstance(parts, str):
        if parts not in _types:
            raise InvalidCall(f"the type {parts} is not known here: pass it in allow=[…]", type=parts)
        return _types[parts]
    if isinstance(parts, dict):
        return Literal[tuple(parts["literal"])]
    origin, *arguments = map(_type_of_parts, parts)
    return origin[tuple(arguments)]


def _split(value: Any) -> dict[str, Any]:
    return {
        name: TypeName(_parts_of_type(part)) if isinstance(part, type) or get_origin(part) else part
        for name, part in value.__getstate__().items()
    }


def _join(cls: Any, parts: dict[str, Any]) -> Any:
    made = cls.__new__(cls)
    state = {
        name: _type_of_parts(part.parts) if type(part) is TypeName else part for name, part in parts.items()
    }
    if hasattr(cls, "__setstate__"):
        made.__setstate__(state)
    else:
        vars(made).update(state)
    return made


#: Types by name: those that may answer a request.
_types: dict[str, Any] = {}

_RECORDS: tuple[Any, ...] = (
    TypeName,
    af.AgentExecutorRequest,
    af.AgentExecutorResponse,
    af.SubWorkflowRequestMessage,
    af.SubWorkflowResponseMessage,
    af.WorkflowCheckpoint,
    af.WorkflowErrorDetails,
    af.WorkflowEventSource,
    af.WorkflowMessage,
    af.WorkflowRunState,
    type(af.WorkflowMessage.type),
)
_OBJECTS: tuple[Any, ...] = (
    af.AgentResponse,
    af.AgentResponseUpdate,
    af.AgentSession,
    af.ChatResponse,
    af.ChatResponseUpdate,
    af.Content,
    af.Message,
    af.WorkflowEvent,
)
_SIMPLE = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, object, NoneType, ...)

# The names leave out the framework's module of a class, because it may change.
for _cls in _RECORDS:
    register(_cls, f"agent_framework.{_cls.__name__}")
for _cls in _OBJECTS:
    register(_cls, f"agent_framework.{_cls.__name__}", split=_split, join=partial(_join, _cls))
allow_types(
    (*_SIMPLE, Any, Union, dt.datetime, dt.date, dt.timedelta, Decimal, uuid.UUID, *_RECORDS, *_OBJECTS)
)


_ROOT = "agent-framework"


class HoldfastCheckpointStorage:
    """Storage for `WorkflowBuilder(checkpoint_storage=…)`.

    An execution is the run `agent-framework/WORKFLOW_NAME/FIRST_CHECKPOINT_ID`. `allow` lists your own
    classes that messages and states may hold, or that may answer a request.
    """

    def __init__(self, hf: Holdfast, *, allow: Iterable[type] = ()) -> None:
        self._log = EntryLog(hf, allow)
        self._known: KnownVersions[str] = KnownVersions(hf)
        allow_types(self._log.allowed)

    @off_loop
    def save(self, checkpoint: af.WorkflowCheckpoint) -> str:
        """Save a checkpoint as the version after that of its previous checkpoint."""
        if not isinstance(checkpoint, af.WorkflowCheckpoint):
            raise InvalidCall(f"save takes a WorkflowCheckpoint, not {type(checkpoint).__name__}")
        name = check_tag(checkpoint.checkpoint_id)
        previous = checkpoint.previous_checkpoint_id
        before = None if previous is None else self._find(previous)
        if before is None:
            run_id = build_run_id(_ROOT, checkpoint.workflow_name, name)
            with suppress(NotFound):
                before = self._log.hf.history(run_id).head
        else:
            run_id = before.run
        step = f"superstep {checkpoint.iteration_count}"
        made = self._log.append(run_id, checkpoint.to_dict(), after=before, step=step, tags=[name])
        self._known.remember(name, made)
        return name

    @off_loop
    def load(self, checkpoint_id: str) -> af.WorkflowCheckpoint:
        """Return the checkpoint with an id, or raise `WorkflowCheckpointException`."""
        version = self._find(checkpoint_id)
        if version is None:
            # The words of the framework's own storages; only a very long id is cut.
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id!s:.1000}")
        return self._read(version)

    @off_loop
    def list_checkpoints(self, *, workflow_name: str) -> list[af.WorkflowCheckpoint]:
        """Return the checkpoints of a workflow on all timelines, oldest first."""
        return [self._read(version) for version in self._checkpoints(workflow_name)]

    @off_loop
    def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow on all timelines, oldest first."""
        return [_checkpoint_id(version) for version in self._checkpoints(workflow_name)]

    @off_loop
    def get_latest(self, *, workflow_name: str) -> af.WorkflowCheckpoint | None:
        """Return the head of the execution that was last continued or rolled back."""
        for run in self._log.recent_runs(f"{build_run_id(_ROOT, workflow_name)}/"):
            for version in self._log.hf.history(run.id).ancestors():
                if _checkpoint_id(version):
                    return self._read(version)
        return None

    @off_loop
    def delete(self, checkpoint_id: str) -> bool:
        """Remove the id of a checkpoint; the version stays in the history until it is pruned."""
        deleted = False
        while version := self._find(checkpoint_id):
            with suppress(NotFound):
                self._log.hf.history(version.run).untag(version.number, checkpoint_id)
                deleted = True
        return deleted

    def _find(self, checkpoint_id: str) -> Version | None:
        known = self._known.find(checkpoint_id) if isinstance(checkpoint_id, str) else None
        if known is not None and _checkpoint_id(known) == checkpoint_id:
            return known
        try:
            runs = self._log.hf.runs(tags=[checkpoint_id], prefix=f"{_ROOT}/", limit=1)
            found = self._log.hf.history(runs[0].id).at(f":{checkpoint_id}") if runs else None
        except (InvalidReference, NotFound):
            return None
        return found if found is not None and _checkpoint_id(found) == checkpoint_id else None

    def _checkpoints(self, workflow_name: str) -> list[Version]:
        found: dict[str, Version] = {}
        for run in self._log.hf.iter_runs(prefix=f"{build_run_id(_ROOT, workflow_name)}/"):
            for version in self._log.hf.history(run.id).iter_versions():
                found.setdefault(_checkpoint_id(version), version)
        found.pop("", None)
        return sorted(found.values(), key=lambda version: (version.at, version.number))

    def _read(self, version: Version) -> af.WorkflowCheckpoint:
        self._known.remember(_checkpoint_id(version), version)
        return af.WorkflowCheckpoint.from_dict(plain_state(version))


def _checkpoint_id(version: Version) -> str:
    """Return the id of the checkpoint in a version; empty if it is not a checkpoint, or was deleted."""
    try:
        name = version.get("checkpoint_id")
    except NotFound:
        return ""
    return name if name in version.tags else ""
