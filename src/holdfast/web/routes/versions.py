"""One version: what it says, its state whole or by parts, who changed what."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from holdfast.desk.lookup import artifacts_in, within
from holdfast.desk.records import (
    blame_record,
    implementation_record,
    name_of,
    spending_record,
    version_record,
)
from holdfast.desk.shapes import BlameShown, FactsShown, SpendingShown, VersionShown
from holdfast.desk.words import as_json, dumps
from holdfast.errors import InvalidCall
from holdfast.history.version import Version, segments_of
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact
from holdfast.web.cutting import Cut, Node, node_of, sent
from holdfast.web.fields import Limit, Offset, Path, Query
from holdfast.web.operation import Attachment, Role, Table
from holdfast.web.service import Service

TABLE = Table("versions")

_AT = "/runs/{run}/versions/{version}"
#: Entries that blame tells of at once.
_BLAMED = 1000


class VersionWhole(VersionShown, FactsShown):
    """A version with the arguments, result, error and metadata of its step. Of the head also the `failure` of the
    run, if it failed, and its `spending`."""

    failure: Any
    spending: SpendingShown | None


class VersionQuery(Query):
    """How much of what a step gave."""

    cut: Annotated[
        bool, Meta(description="`arguments`, `result` and `meta` cut into nodes, as a state with `depth`.")
    ] = False


class StateQuery(Query):
    """Which part of a state, and how much of it."""

    path: Path = ""
    depth: (
        Annotated[int, Meta(ge=0, le=20, description="Open so many levels, and count what is below.")] | None
    ) = None
    limit: Limit = 100
    offset: Annotated[Offset, Meta(description="Begin with this entry, or character of a text.")] = 0
    text: Annotated[int, Meta(ge=0, le=100_000, description="Characters of each text.")] = 1000


class State(TypedDict):
    """A state or a part of it: whole in `value`, or, if `depth` was given, cut in `node`."""

    ref: str
    path: str
    value: NotRequired[Any]
    node: NotRequired[Node]


class PathQuery(Query):
    """A part of the state."""

    path: Path = ""


class RawQuery(PathQuery):
    """A part of the state, or what the step was called with or gave."""

    of: Literal["state", "arguments", "result"] = "state"


class BlameQuery(Query):
    """A part of the state, and how deep to look."""

    path: Path = ""
    depth: Annotated[int, Meta(ge=0, le=20)] = 1
    values: Annotated[bool, Meta(description="With the values.")] = False


class ArtifactHeld(TypedDict):
    """A large value in a state."""

    digest: str
    size: int
    path: str
    name: str | None


@TABLE.add("GET", _AT, Role.VIEWER)
def get_version(service: Service, run: str, version: str, query: VersionQuery) -> VersionWhole:
    """A version without its state. It is named by its number, `head`, `~2` or a tag.

    What its step gave may be large: `cut` shortens it, and `/raw?of=result` is the whole of it as a file. So are its
    arguments, with `/raw?of=arguments`."""
    found = _version(service, run, version)
    handle = service.hf.get(found.run)
    is_head = handle.head.number == found.number
    return {
        **version_record(found),
        "implementation": implementation_record(found.implementation),
        "arguments": sent(found.arguments, cut=query.cut),
        "result": sent(found.result, cut=query.cut),
        "error": as_json(found.error),
        "meta": sent(found.meta, cut=query.cut),
        "failure": as_json(handle.failure) if is_head and handle.status == "failed" else None,
        "spending": spending_record(handle) if is_head else None,
    }


@TABLE.add("GET", _AT + "/state", Role.VIEWER)
def get_state(service: Service, run: str, version: str, query: StateQuery) -> State:
    """The state of a version, or the part at a path: whole, or with `depth` by parts.

    With `depth`, containers are opened so many levels deep, `limit` entries of each from `offset` on, and counted
    below; texts are cut. Open what is counted with its own `path`."""
    found = _version(service, run, version)
    segments = segments_of(query.path)
    shown: State = {"ref": name_of(found), "path": paths.show(segments)}
    if query.depth is None:
        shown["value"] = as_json(found.get(segments) if segments else found.state)
    else:
        cut = Cut(query.depth, query.limit, query.offset, query.text)
        shown["node"] = node_of(service.recent.read(found, segments), cut, segments)
    return shown


@TABLE.add("GET", _AT + "/raw", Role.VIEWER)
def get_raw(service: Service, run: str, version: str, query: RawQuery) -> Attachment:
    """A part of the state, or what the step was called with or gave, as a file: a text as text, bytes and large
    values as they are, all else as JSON."""
    found = _version(service, run, version)
    if query.of != "state":
        if query.path:
            raise InvalidCall("a path is one of the state: leave it out, or `of`")
        value = found.arguments if query.of == "arguments" else found.result
        name = f"{name_of(found)} {query.of}"
    else:
        value = found.get(query.path) if query.path else found.state
        name = f"{name_of(found)} {query.path}".strip()
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
                f"the text holds a lone surrogate (at {error.start}), which no file can"
            ) from None
        return Attachment(f"{name}.txt", iter([text]), "text/plain; charset=utf-8", len(text))
    written = dumps(as_json(value)).encode()
    return Attachment(f"{name}.json", iter([written]), "application/json", len(written))


@TABLE.add("GET", _AT + "/blame", Role.VIEWER)
def get_blame(service: Service, run: str, version: str, query: BlameQuery) -> list[BlameShown]:
    """Which version last changed each part of the state; of the first thousand parts."""
    found = _version(service, run, version)
    parts = service.hf.history(found.run).blame_parts(query.path, at=found, depth=query.depth)
    return [blame_record(part, value=query.values) for part in islice(parts, _BLAMED)]


@TABLE.add("GET", _AT + "/artifacts", Role.VIEWER)
def list_held(service: Service, run: str, version: str) -> list[ArtifactHeld]:
    """The large values in the state of a version."""
    return [
        {"digest": each.digest, "size": each.size, "path": paths.show(where), "name": each.name}
        for where, each in artifacts_in(_version(service, run, version).state)
    ]


def _version(service: Service, run: str, version: str) -> Version:
    return within(service.hf, service.hf.find(run), version)
