"""Paths into state: `plan.tasks[3].title`, `["odd key"]`, `[(1, 2)]`.

A path is a list of segments: dict keys and list indices. A name of letters, digits, `_` and `-` is written bare; any
other key in brackets, as a Python literal.

Invariant: `parse(show(segments)) == segments` for keys with a Python literal: names, finite numbers, bytes, None, and
tuples of them. Other keys (a date, an enum) can be shown, and looked up by passing the segments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from holdfast.errors import InvalidReference, NotFound, UnsupportedValue
from holdfast.tree import syntax

_NAME = re.compile(r"[^\W\d][\w-]*")
_DOT = re.compile(r"\.?([^\W\d][\w-]*)")
#: The usual content of brackets.
_INDEX = re.compile(r"\[(0|-?[1-9][0-9]{0,17})\]")
#: Quoted texts, which may contain brackets, and brackets.
_TOKEN = re.compile(r"""'(?:[^'\\]++|\\.)*+'?|"(?:[^"\\]++|\\.)*+"?|[\[({})\]]""", re.S)
#: Characters of a path as text.
_MAX_TEXT = 100_000
#: Characters of a path in a message; a cycle has a long path.
_MAX_PATH = 120
_STAR = re.compile(r"\.\*|\[\*\]|\A\*")


class _Any:
    __slots__ = ()

    def __repr__(self) -> str:
        return "*"


#: The segment of a pattern that matches every key and every index.
ANY: Any = _Any()


def parse(path: str | Sequence[Any]) -> list[Any]:
    """Return the segments of a path, given as text or as segments; an empty path is the root."""
    return _segments(path, wild=False) if isinstance(path, str) else _checked(path)


def parse_pattern(pattern: str) -> list[Any]:
    """Return the segments of a pattern: a path in which `*` (`scores.*`, `tasks[*].title`) is `ANY`. A key that is a
    star is written `["*"]`."""
    return _segments(pattern, wild=True)


def _segments(path: str, *, wild: bool) -> list[Any]:
    if len(path) > _MAX_TEXT:
        raise InvalidReference(
            f"a path has at most {_MAX_TEXT:,} characters, not {len(path):,}: pass its keys and indices as a list"
        )
    segments: list[Any] = []
    at = 0
    while at < len(path):
        if wild and (star := _STAR.match(path, at)) is not None:
            segments.append(ANY)
            at = star.end()
            continue
        if path[at] == "[":
            segment, at = _bracket(path, at)
            segments.append(segment)
            continue
        match = _DOT.match(path, at)
        if match is None or (path[at] != "." and segments):
            raise InvalidReference(
                f'path {path!r:.200} is wrong at character {at}: write plan.tasks[3] or ["any key"]'
            )
        segments.append(match[1])
        at = match.end()
    return segments


def show(segments: Sequence[Any]) -> str:
    """Return a path as text."""
    out: list[str] = []
    for segment in segments:
        if isinstance(segment, str) and _NAME.fullmatch(segment):
            # The text itself: an enum of strings would show its name.
            out.append(("." if out else "") + str.__str__(segment))
        else:
            out.append(f"[{_literal(segment)}]")
    return "".join(out)


def name_place(error: UnsupportedValue, part: str = "") -> UnsupportedValue:
    """Return an error that names the place of the refused value, and the `part` of the version, if it is not the state.
    Its path is a text."""
    where = show(error.details.get("path", []))
    shown = where if len(where) <= _MAX_PATH else f"{where[:_MAX_PATH]}…"
    of = f" of the {part}" if part else ""
    return UnsupportedValue(
        f"at {shown or 'the root'}{of}: {error}",
        **{**error.details, "path": where, "reason": str(error)},
    )


def pointer(segments: Sequence[Any]) -> str:
    """Return a path as a JSON pointer (RFC 6901)."""
    return "".join("/" + _text(segment).replace("~", "~0").replace("/", "~1") for segment in segments)


def get(value: Any, path: str | Sequence[Any]) -> Any:
    """Return the value at a path of a loaded tree, or raise `NotFound`."""
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
            raise InvalidReference(f"a {name} in a path cannot be a key or an index") from error
    return list(path)


def _bracket(path: str, start: int) -> tuple[Any, int]:
    """Return the literal in the brackets that open at `start`, and where they end."""
    index = _INDEX.match(path, start)
    if index is not None:
        return int(index[1]), index.end()
    depth = 0
    for match in _TOKEN.finditer(path, start):
        sign = path[match.start()]
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth == 0:
                break
    else:
        raise _invalid_key(path, start)
    try:
        segment = ast.literal_eval(syntax.parse(path[start + 1 : match.start()].strip(), "eval"))
        hash(segment)
    except (ValueError, SyntaxError, TypeError, ArithmeticError, MemoryError, RecursionError):
        raise _invalid_key(path, start) from None
    return segment, match.end()


def _invalid_key(path: str, start: int) -> InvalidReference:
    return InvalidReference(
        f'path {path!r:.200} has no valid key in the brackets at character {start}: quote names, as in ["a b"]'
    )


def _text(segment: Any) -> str:
    try:
        return str(segment)
    except Exception:
        return safe_repr(segment)


def _literal(segment: Any) -> str:
    if type(segment) is str and "'" not in segment and '"' not in segment:
        return f'"{repr(segment)[1:-1]}"'
    return safe_repr(segment)


def shorten(text: str, length: int = 60) -> str:
    """Return a text of at most `length` characters; a longer one ends with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def safe_repr(value: Any) -> str:
    """Return the `repr` of a value; its type if that fails, as for integers of very many digits or for a class of the
    application."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
