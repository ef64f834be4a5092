"""A state drawn as a tree, as far as a person wants to see it.

Invariant: the cost follows what is shown, not the size of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from holdfast.desk.words import brief, count, places, plain

#: Entries of one dict or list, and levels, that are shown.
ENTRIES = 30
LEVELS = 6
#: Places in which a dict or list is shown in a line.
_SHORT = 60


class Line(NamedTuple):
    """A line of the drawing: guides, name, value."""

    guide: str
    name: str
    value: str
    #: string, number, none, other or more.
    kind: str


def draw(value: Any, *, width: int = 100, entries: int = ENTRIES, levels: int = LEVELS) -> Iterator[Line]:
    """The lines of a tree."""
    if _is_container(value) and value:
        yield from _below(value, "", width, entries, levels)
    else:
        yield Line("", "", brief(value, width), _kind(value))


def _below(value: Any, guide: str, width: int, entries: int, levels: int) -> Iterator[Line]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    more = len(value) - entries
    listed = list(islice(items, entries))
    for place, (key, item) in enumerate(listed):
        last = place == len(listed) - 1 and more <= 0
        name = plain(key) if isinstance(key, str) else f"[{plain(repr(key))}]"
        branch, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        room = max(10, width - len(guide) - places(name) - 5)
        short = min(room, _SHORT)
        if _is_flat(item, entries):
            told = f" ({count(len(item), 'item')})"
            yield Line(guide + branch, name, brief(item, max(10, room - len(told))) + told, "number")
        elif _is_container(item) and item and levels > 1 and places(brief(item, short + 1)) > short:
            yield Line(guide + branch, name, f"({count(len(item), 'item')})", "more")
            yield from _below(item, guide + below, width, entries, levels - 1)
        else:
            yield Line(guide + branch, name, brief(item, room), _kind(item))
    if more > 0:
        yield Line(guide + "└─ ", "", f"… {more:,} more", "more")


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _is_flat(value: Any, entries: int) -> bool:
    """Is this a list of numbers, of which there are more than a person reads one by one?"""
    return (
        isinstance(value, list)
        and len(value) > entries
        and all(isinstance(item, int | float) for item in islice(value, entries))
    )


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool) or value is None:
        return "none"
    return "number" if isinstance(value, int | float) else "other"
