"""Large values by parts: containers cut with counts, long texts cut with their length.

Invariant: an answer has a bounded number of nodes and characters, however large the value is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, NotRequired, TypedDict

from holdfast.desk.words import as_json, brief, dumps
from holdfast.errors import HoldfastError
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact

#: Nodes in one answer; beyond them, containers are only counted.
_NODES = 5000
#: Characters of all texts in one answer; beyond them, texts are cut short.
_ALL_TEXT = 2_000_000
_SHORT = 100


class NodeEntry(TypedDict):
    """A part of a container. `path` is where it is in the state; null for a key that cannot be written in a path."""

    key: Any
    label: str
    path: str | None
    node: Node


class Node(TypedDict):
    """A value, or what is said of one that is large.

    `kind` is dict, list, str, int, float, bool, none, bytes, artifact, or the name of another type. `count` tells how
    many entries, characters or bytes it has. Of a container, `entries` are those that were asked for and `more` is
    how many follow; without `entries` it was not opened. Of a text, `more` is how many characters follow `value`."""

    kind: str
    value: NotRequired[Any]
    count: NotRequired[int]
    entries: NotRequired[list[NodeEntry]]
    more: NotRequired[int]


class Cut(NamedTuple):
    """How much is wanted."""

    depth: int = 1
    limit: int = 100
    offset: int = 0
    text: int = 1000


def sent(value: Any, *, cut: bool) -> Any:
    """What a step or a run gave: as JSON, or as a node that is no larger than somebody reads."""
    return node_of(value, _GIVEN) if cut else as_json(value)


class _Rest:
    """What may still be given."""

    def __init__(self) -> None:
        self.nodes = _NODES
        self.text = _ALL_TEXT


#: How much is shown of what a step or a run gave.
_GIVEN = Cut(depth=3, limit=50, text=10_000)


def node_of(value: Any, cut: Cut, segments: Sequence[Any] = ()) -> Node:
    """A value as far as it is wanted. `offset` is for the value itself, not for what lies in it."""
    return _node(value, cut.depth, cut.offset, cut, paths.show(segments), _Rest())


def _node(value: Any, depth: int, offset: int, cut: Cut, at: str | None, rest: _Rest) -> Node:
    rest.nodes -= 1
    if isinstance(value, dict):
        return _container("dict", value.items(), len(value), depth, offset, cut, at, rest)
    if isinstance(value, list):
        return _container("list", enumerate(value), len(value), depth, offset, cut, at, rest)
    if isinstance(value, str):
        return _text(value, offset, cut, rest)
    if isinstance(value, Artifact):
        shown = {"digest": value.digest, "size": value.size, "name": value.name}
        return {"kind": "artifact", "value": shown, "count": value.size}
    if isinstance(value, bytes):
        return {"kind": "bytes", "count": len(value)}
    if value is None or isinstance(value, bool | int | float):
        kind = "none" if value is None else type(value).__name__
        return {"kind": kind, "value": as_json(value)}
    written = as_json(value)
    name = type(value).__name__
    if len(dumps(written)) > _allowed(cut, rest):
        return {"kind": name, "value": brief(value, _SHORT), "more": 1}
    return {"kind": name, "value": written}


def _container(
    kind: str,
    items: Iterable[tuple[Any, Any]],
    count: int,
    depth: int,
    offset: int,
    cut: Cut,
    at: str | None,
    rest: _Rest,
) -> Node:
    if depth <= 0 or rest.nodes <= 0:
        return {"kind": kind, "count": count}
    entries: list[NodeEntry] = []
    for key, item in islice(items, offset, offset + cut.limit):
        if rest.nodes <= 0:
            break
        where = _path(at, key)
        entries.append(
            {
                "key": as_json(key),
                "label": key if isinstance(key, str) else brief(key, _SHORT),
                "path": where,
                "node": _node(item, depth - 1, 0, cut, where, rest),
            }
        )
    return {
        "kind": kind,
        "count": count,
        "entries": entries,
        "more": max(0, count - offset - len(entries)),
    }


def _text(value: str, offset: int, cut: Cut, rest: _Rest) -> Node:
    shown = value[offset : offset + _allowed(cut, rest)]
    rest.text -= len(shown)
    return {
        "kind": "str",
        "value": as_json(shown),
        "count": len(value),
        "more": max(0, len(value) - offset - len(shown)),
    }


def _allowed(cut: Cut, rest: _Rest) -> int:
    return cut.text if rest.text > 0 else min(cut.text, _SHORT)


def _path(around: str | None, key: Any) -> str | None:
    """Where a part is in the state; None if that cannot be written."""
    if around is None:
        return None
    shown = paths.show([key])
    try:
        if paths.parse(shown) != [key]:
            return None
    except HoldfastError:
        return None
    return around + ("" if not around or shown.startswith("[") else ".") + shown
