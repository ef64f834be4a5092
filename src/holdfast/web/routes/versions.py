"""Versions: their facts, their state whole or in parts, blame, tags and pins."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from holdfast.errors import InvalidCall
from holdfast.history.version import Version, segments_of
from holdfast.operator_view.lookup import find_artifacts, version_in_run
from holdfast.operator_view.records import (
    BlameView,
    MovesView,
    SpendingView,
    VersionDetailView,
    VersionView,
    attachment_names,
    blame_view,
    implementation_view,
    moves_view,
    reference_to,
    spending_view,
    version_view,
    view_of,
)
from holdfast.operator_view.text import as_json, dumps
from holdfast.operator_view.truncate import TruncationLimits, ValueNode, result_value, value_node
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact
from holdfast.web.operation import Attachment, Limit, Offset, OperationTable, Path, Query, Role
from holdfast.web.service import Service

TABLE = OperationTable("versions")
MARKS = OperationTable("tags and pins")

_AT = "/runs/{run}/versions/{version}"
#: Limit of the entries of a blame.
_BLAMED = 1000


class FullVersionView(VersionView, VersionDetailView):
    """Version with the arguments, result, error and annotations of its step, and the names of its attachments. The head
    also has the `failure` of the run, if it failed, its `spending`, `moves` and `meta`."""

    failure: Any
    spending: SpendingView | None
    moves: MovesView | None
    meta: dict[str, Any] | None


class VersionDetailQuery(Query):
    """Whether results are truncated."""

    cut: Annotated[
        bool,
        Meta(
            description="`arguments`, `result` and `annotations` truncated to nodes, as a state with `depth`."
        ),
    ] = False


class StateQuery(Query):
    """Part of a state, and how much of it."""

    path: Path = ""
    depth: (
        Annotated[int, Meta(ge=0, le=20, description="Levels to open; entries below are counted.")] | None
    ) = None
    limit: Limit = 100
    offset: Annotated[Offset, Meta(description="The first entry, or the first character of a text.")] = 0
    text: Annotated[int, Meta(ge=0, le=100_000, description="Characters of each text.")] = 1000


class StatePart(TypedDict):
    """State or a part of it: complete in `value`, or with `depth`, truncated in `node`."""

    ref: str
    path: str
    value: NotRequired[Any]
    node: NotRequired[ValueNode]


class PathQuery(Query):
    """Part of the state."""

    path: Path = ""


class RawQuery(PathQuery):
    """Part of the state, or the arguments or the result of the step."""

    of: Literal["state", "arguments", "result"] = "state"


class BlameQuery(Query):
    """Part of the state, and the depth below it."""

    path: Path = ""
    depth: Annotated[int, Meta(ge=0, le=20)] = 1
    values: Annotated[bool, Meta(description="Include the values.")] = False


class ArtifactInState(TypedDict):
    """Artifact in a state."""

    digest: str
    size: int
    path: str
    name: str | None


@TABLE.add("GET", _AT, Role.VIEWER)
def get_version(service: Service, run: str, version: str, query: VersionDetailQuery) -> FullVersionView:
    """Return a version without its state. It is referenced by its number, `head`, `~2` or a tag.

    Results may be large: `cut` truncates them, `/raw?of=result` and `/raw?of=arguments` return them as files."""
    found = _version(service, run, version)
    handle = service.hf.get(found.run)
    is_head = handle.head.number == found.number
    return {
        **version_view(found),
        "implementation": implementation_view(found.implementation),
        "arguments": result_value(found.arguments, cut=query.cut),
        "result": result_value(found.result, cut=query.cut),
        "error": as_json(found.error),
        "annotations": result_value(found.annotations, cut=query.cut),
        "attachments": attachment_names(found),
        "failure": as_json(handle.failure) if is_head and handle.status == "failed" else None,
        "spending": spending_view(handle) if is_head else None,
        "moves": moves_view(handle) if is_head else None,
        "meta": handle.meta if is_head else None,
    }


@TABLE.add("GET", _AT + "/state", Role.VIEWER)
def get_state(service: Service, run: str, version: str, query: StateQuery) -> StatePart:
    """Return the state of a version, or the part at a path: complete, or with `depth`, truncated.

    With `depth`, containers are opened for that many levels, `limit` entries each from `offset` on, and counted below;
    texts are cut. Request the `path` of a counted container to open it."""
    found = _version(service, run, version)
    segments = segments_of(query.path)
    shown: StatePart = {"ref": reference_to(found), "path": paths.show(segments)}
    if query.depth is None:
        shown["value"] = as_json(found.get(segments) if segments else found.state)
    else:
        limits = TruncationLimits(query.depth, query.limit, query.text)
        value = service.recent.read(found, segments)
        shown["node"] = value_node(value, limits, segments, start=query.offset)
    return shown


@TABLE.add("GET", _AT + "/raw", Role.VIEWER)
def get_raw(service: Service, run: str, version: str, query: RawQuery) -> Attachment:
    """Return a part of the state, or the arguments or the result of the step, as a file: a text as text, bytes and
    artifacts unchanged, anything else as JSON."""
    found = _version(service, run, version)
    if query.of != "state":
        if query.path:
            raise InvalidCall("a path refers to the state: omit it, or omit `of`")
        value = found.arguments if query.of == "arguments" else found.result
        name = f"{reference_to(found)} {query.of}"
    else:
        value = found.get(query.path) if query.path else found.state
        name = f"{reference_to(found)} {query.path}".strip()
    name = name.replace("/", "_")
    if isinstance(value, Artifact):
        return Attachment(value.name or value.digest, value.pieces(), size=value.size)
    if isinstance(value, bytes):
        return Attachment(f"{name}.bin", iter([value]), size=len(value))
    if isinstance(value, str):
        try:
            text = value.encode()
        except UnicodeEncodeError as error:
            raise InvalidCall(
                f"the text holds a lone surrogate (at {error.start}), which UTF-8 cannot encode"
            ) from None
        return Attachment(f"{name}.txt", iter([text]), "text/plain; charset=utf-8", len(text))
    written = dumps(as_json(value)).encode()
    return Attachment(f"{name}.json", iter([written]), "application/json", len(written))


@TABLE.add("GET", _AT + "/blame", Role.VIEWER)
def get_blame(service: Service, run: str, version: str, query: BlameQuery) -> list[BlameView]:
    """Return which version last changed each part of the state, for the first thousand parts."""
    found = _version(service, run, version)
    parts = service.hf.history(found.run).blame_parts(query.path, at=found, depth=query.depth)
    return [blame_view(part, value=query.values) for part in islice(parts, _BLAMED)]


@TABLE.add("GET", _AT + "/artifacts", Role.VIEWER)
def list_held(service: Service, run: str, version: str) -> list[ArtifactInState]:
    """List the artifacts in the state of a version."""
    return [
        view_of(ArtifactInState, each, path=paths.show(where))
        for where, each in find_artifacts(_version(service, run, version).state)
    ]


@MARKS.add("PUT", _AT + "/tags/{tag}", Role.OPERATOR)
def add_tag(service: Service, run: str, version: str, tag: str) -> VersionView:
    """Tag a version. A tagged version is never pruned."""
    found = _version(service, run, version)
    service.hf.history(found.run).tag(found, tag)
    return _read_again(service, found)


@MARKS.add("DELETE", _AT + "/tags/{tag}", Role.OPERATOR)
def remove_tag(service: Service, run: str, version: str, tag: str) -> VersionView:
    """Remove a tag from a version."""
    found = _version(service, run, version)
    service.hf.history(found.run).untag(found, tag)
    return _read_again(service, found)


@MARKS.add("PUT", _AT + "/pin", Role.OPERATOR)
def add_pin(service: Service, run: str, version: str) -> VersionView:
    """Pin a version, so that it is never pruned."""
    found = _version(service, run, version)
    service.hf.history(found.run).pin(found)
    return _read_again(service, found)


@MARKS.add("DELETE", _AT + "/pin", Role.OPERATOR)
def remove_pin(service: Service, run: str, version: str) -> VersionView:
    """Unpin a version, so that it can be pruned."""
    found = _version(service, run, version)
    service.hf.history(found.run).unpin(found)
    return _read_again(service, found)


def _version(service: Service, run: str, version: str) -> Version:
    return version_in_run(service.hf, service.hf.get(run, prefix=True).id, version)


def _read_again(service: Service, version: Version) -> VersionView:
    return version_view(service.hf.history(version.run).at(version.number))
