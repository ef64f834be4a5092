"""Conversion of Stageflow's records to trees, and back.

A snapshot and an output are stored in the state as dicts of their fields, so that a diff, a blame or a path
can name a part (`snapshot.conversation.messages[3].content`) and equal parts are stored once. Values of the
application in them (metadata, data, payloads, extensions) are stored unchanged; a value in the place of a
record that is not exactly that record is stored whole.

Invariant: `from_tree(to_tree(x))` equals `x` in type and value, for any values of its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from stageflow.context import ContextSnapshot
from stageflow.context.conversation import Conversation
from stageflow.context.enrichments import DocumentEnrichment, Enrichments, MemoryEnrichment, ProfileEnrichment
from stageflow.context.identity import RunIdentity
from stageflow.context.types import Message, RoutingDecision
from stageflow.core import StageArtifact, StageEvent, StageKind, StageOutput, StageStatus
from stageflow.pipeline.results import PipelineResults
from stageflow.pipeline.subpipeline import SubpipelineResult
from stageflow.stages.payloads import StagePayloadResult

from holdfast.errors import HoldfastError, IncompatibleFormat, InvalidCall
from holdfast.history.version import Version
from holdfast.tree.frozen import thaw
from holdfast.tree.values import Opaque, join_dataclass, register

#: Layout number of a state; a state with another number is not read.
FORMAT = 1

#: Types of record fields: a record, a list of them, a status, or (not listed) any value.
SHAPES: dict[type, dict[str, Any]] = {
    ContextSnapshot: {"run_id": RunIdentity, "enrichments": Enrichments, "conversation": Conversation},
    Enrichments: {
        "profile": ProfileEnrichment,
        "memory": MemoryEnrichment,
        "documents": [DocumentEnrichment],
    },
    Conversation: {"messages": [Message], "routing_decision": RoutingDecision},
    StageOutput: {"status": StageStatus, "artifacts": [StageArtifact], "events": [StageEvent]},
}


@dataclass
class AsIs:
    """Wrapper of a value that would otherwise be read as a record, a list of records or a status."""

    value: Any


#: Stageflow's records.
RECORDS: tuple[type[Any], ...] = (
    *SHAPES,
    RunIdentity,
    ProfileEnrichment,
    MemoryEnrichment,
    DocumentEnrichment,
    Message,
    RoutingDecision,
    StageArtifact,
    StageEvent,
    StagePayloadResult,
    SubpipelineResult,
)

# An application may put them into metadata, an output, or an artifact.
_REGISTERED: tuple[type[Any], ...] = (*RECORDS, StageKind, StageStatus)
for _cls in _REGISTERED:
    register(_cls, f"stageflow.{_cls.__name__}")
register(PipelineResults, "stageflow.PipelineResults", split=dict, join=PipelineResults)
register(AsIs, "stageflow.AsIs")


def to_tree(value: Any, shape: Any) -> Any:
    """Return a record, or a list of records, as a tree. It may share parts with the record."""
    if shape is StageStatus and type(value) is StageStatus:
        # A word that can be read without Stageflow.
        return value.value
    if isinstance(shape, list) and getattr(type(value), "__holdfast_plain__", type(value)) is list:
        return [to_tree(item, shape[0]) for item in list.__iter__(value)]
    if isinstance(shape, type) and type(value) is shape:
        inner = SHAPES.get(shape, {})
        return {
            field.name: to_tree(getattr(value, field.name), inner[field.name])
            if field.name in inner
            else getattr(value, field.name)
            for field in fields(shape)
        }
    return AsIs(value) if isinstance(value, dict | list | str) else value


def from_tree(tree: Any, shape: Any) -> Any:
    """Return the record of a tree; the tree must not be used elsewhere."""
    if isinstance(tree, AsIs):
        return tree.value
    if shape is StageStatus:
        return StageStatus(tree) if type(tree) is str else tree
    if isinstance(shape, list):
        return [from_tree(item, shape[0]) for item in tree] if type(tree) is list else tree
    if type(tree) is not dict:
        return tree
    inner = SHAPES.get(shape, {})
    return join_dataclass(
        shape, {name: from_tree(item, inner[name]) if name in inner else item for name, item in tree.items()}
    )


def snapshot_of(version: Version) -> ContextSnapshot[Any]:
    """Return the context's snapshot at a version of a durable pipeline's run."""
    found = read_record(version, ("snapshot",), ContextSnapshot)
    if isinstance(found.extensions, Opaque):
        raise InvalidCall(
            f"the extensions of run {version.run!r} are of a type that is stored under {found.extensions.tag!r}, which "
            "this program has not registered: call holdfast.register(…) for it first",
            run=version.run,
        )
    return found  # type: ignore[no-any-return]


def results_of(version: Version) -> PipelineResults:
    """Return the outputs of all stages that had ended at a version of a durable pipeline's run, including
    failed ones."""
    names = list(check_state(version)["stages"])
    return PipelineResults({name: read_record(version, ("stages", name), StageOutput) for name in names})


def check_state(version: Version) -> dict[str, Any]:
    """Return the state of a version, or raise if it is not of a durable pipeline."""
    state = version.state
    pipeline = state.get("pipeline") if isinstance(state, dict) else None
    if not isinstance(pipeline, dict) or "format" not in pipeline:
        raise InvalidCall(
            f"run {version.run!r} is not a run of a Stageflow pipeline: use another run id", run=version.run
        )
    fits = (
        pipeline["format"] == FORMAT
        and "snapshot" in state
        and isinstance(state.get("stages"), dict)
        and isinstance(pipeline.get("stages"), dict)
        and isinstance(pipeline.get("given"), str)
        and isinstance(pipeline.get("name"), str)
    )
    if not fits:
        raise IncompatibleFormat(
            f"{version!r} was written by a newer Holdfast, or changed by hand: upgrade, or roll back to before it",
            run=version.run,
            version=version.number,
        )
    return state  # type: ignore[no-any-return]


def read_record(version: Version, path: tuple[str, ...], shape: type) -> Any:
    """Return a new record from a part of a state."""
    part: Any = check_state(version)
    for name in path:
        part = part[name]
    try:
        found = from_tree(thaw(part), shape)
        if not isinstance(found, shape):
            raise TypeError(f"it is {type(found).__name__}")
    except HoldfastError:
        raise
    except Exception as error:
        raise IncompatibleFormat(
            f"{'.'.join(path)} of {version!r} is not a {shape.__name__} ({error}): roll back to a version before it",
            run=version.run,
            version=version.number,
        ) from error
    return found
