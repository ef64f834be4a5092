"""Paths into state: `plan.tasks[3].title`, `["odd key"]`, `[(1, 2)]`.

A path is a list of segments: dict keys and list indices. A name of letters, digits, `_` and `-` is written
bare; any other key is written in brackets as a Python literal.

Invariant: `parse(show(segments)) == segments` for every path of keys that have a Python literal: names,
numbers but NaN and infinity, bytes, None, and tuples of them. Other keys (a date, an enum) can be shown, and
looked up by giving the segments themselves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from holdfast.errors import InvalidReference, NotFound
from holdfast.tree import syntax

_NAME = re.compile(r"[^\W\d][\w-]*")
_DOT = re.compile(r"\.?([^\W\d][\w-]*)")


def parse(path: str | Sequence[Any]) -> list[Any]:
    """The segments of a path. Takes segments as they are; an empty path is the root."""
    if not isinstance(path, str):
        return _checked(path)
    segments: list[Any] = []
    at = 0
    while at < len(path):
        if path[at] == "[":
            segment, at = _bracket(path, at)
            segments.append(segment)
            continue
        match = _DOT.match(path, at)
        if match is None or (path[at] != "." and segments):
            raise InvalidReference(
                f'path {path!r} is wrong at character {at}: write plan.tasks[3] or ["any key"]'
            )
        segments.append(match[1])
        at = match.end()
    return segments


def show(segments: Sequence[Any]) -> str:
    """A path as a person writes it."""
    out: list[str] = []
    for segment in segments:
        if isinstance(segment, str) and _NAME.fullmatch(segment):
            # The text itself: an enum of strings would write its name.
            out.append(("." if out else "") + str.__str__(segment))
        else:
            out.append(f"[{_literal(segment)}]")
    return "".join(out)


def pointer(segments: Sequence[Any]) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(segment).replace("~", "~0").replace("/", "~1") for segment in segments)


def get(value: Any, path: str | Sequence[Any]) -> Any:
    """The part of a loaded tree at a path, or `NotFound`."""
    segments = parse(path)
    for depth, segment in enumerate(segments):
        try:
            value = value[segment]
        except (LookupError, TypeError):
            where = show(segments[: depth + 1])
            raise NotFound(f"there is nothing at {where}", path=where) from None
    return value


def _checked(path: Any) -> list[Any]:
    if not isinstance(path, Sequence) or isinstance(path, bytes | bytearray | memoryview):
        raise InvalidReference(f"a path is a text or a list of keys and indices, not {type(path).__name__}")
    for segment in path:
        try:
            hash(segment)
        except Exception as error:
            name = type(segment).__name__
            raise InvalidReference(f"a {name} in a path can be no key and no index") from error
    return list(path)


def _bracket(path: str, start: int) -> tuple[Any, int]:
    """The literal in brackets that begins at `start`: the shortest piece up to a `]` that is one."""
    end = path.find("]", start)
    while end != -1:
        try:
            segment = ast.literal_eval(syntax.parse(path[start + 1 : end].strip(), "eval"))
            hash(segment)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            end = path.find("]", end + 1)
        else:
            return segment, end + 1
    raise InvalidReference(
        f'path {path!r} has no valid key in the brackets at character {start}: quote names, as in ["a b"]'
    )


def _literal(segment: Any) -> str:
    if type(segment) is str and "'" not in segment and '"' not in segment:
        return f'"{repr(segment)[1:-1]}"'
    try:
        return repr(segment)
    except Exception:
        return f"<{type(segment).__name__}>"
