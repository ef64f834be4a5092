"""Recorded errors as people read them: a traceback with all causes, notes and members, as Python prints it.

Invariant: whatever the facts are, this gives a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
#: Links that are followed: no record has more.
_DEEPEST = 50


def full_traceback(error: Any) -> str:
    """Return the text of a recorded error, causes first."""
    return "\n".join(_lines(error, 0))


def _lines(error: Any, depth: int) -> Iterator[str]:
    if not isinstance(error, Mapping) or depth > _DEEPEST:
        return
    link = _cause(error)
    if link is not None:
        yield from _lines(link[1], depth + 1)
        if error.get("skipped"):
            yield f"\n… {error['skipped']:,} further causes …"
        yield f"\n{link[0]}\n"
    text = str(error.get("traceback") or f"{error.get('type', 'error')}: {error.get('message', '')}")
    yield from text.rstrip().split("\n")
    yield from _list(error.get("notes"))
    members = _list(error.get("errors"))
    for number, member in enumerate(members, 1):
        yield f"  +---------------- {number} of {len(members) + (error.get('left_out') or 0)}"
        for line in _lines(member, depth + 1):
            yield from (f"  | {each}" for each in line.split("\n"))


def _cause(error: Any) -> tuple[str, Mapping[str, Any]] | None:
    """The error that Python shows before another, and what it writes between them."""
    if not isinstance(error, Mapping):
        return None
    cause, context = error.get("cause"), error.get("context")
    if isinstance(cause, Mapping) and "same_as" not in cause:
        return (_CONTEXT if error.get("direct") is False else _CAUSE), cause
    if cause is None and isinstance(context, Mapping) and not error.get("suppressed"):
        return None if "same_as" in context else (_CONTEXT, context)
    return None


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []
