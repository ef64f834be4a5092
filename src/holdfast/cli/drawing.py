"""Drawings for a terminal: the graph of a run's versions, and the tree of a state.

The graph is a list of versions, newest first, with a lane for each timeline:

    ●        12  publish
    ○        11  headline
    │ ○      10  publish      (on the abandoned timeline)
    │ ○       9  headline
    ├─╯
    ○         8  draft

Invariant: a version has one dot in one lane, and every line leads from a version to its parent: to the parent's dot,
past the end of the list if the parent is older than all versions in it, or into a gap (┆) if the parent is not listed.
Invariant: the cost of a tree follows the lines that are shown, not the size of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from holdfast.operator_view.text import brief, count, display_width, plain


class GraphNode(NamedTuple):
    """A version in the graph."""

    number: int
    #: Its parent, and the version that was merged into it.
    parents: tuple[int, ...]


class GraphRow(NamedTuple):
    """A line of the graph: a version, or the space between two versions."""

    number: int | None
    #: Characters with the lane that each belongs to.
    cells: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        return "".join(sign for sign, _ in self.cells)


def draw_graph(points: Iterable[GraphNode], head: int | None = None) -> Iterator[GraphRow]:
    """Yield the lines of the graph of versions, which are given newest first."""
    listed = list(points)
    known = {point.number for point in listed}
    oldest = min(known, default=0)
    #: The version that each lane leads to; None for a free lane.
    lanes: list[int | None] = []
    for point in listed:
        waiting = [lane for lane, wanted in enumerate(lanes) if wanted == point.number]
        own = waiting[0] if waiting else _free(lanes)
        if len(waiting) > 1:
            yield GraphRow(None, _joined(lanes, own, waiting[1:], "╯"))
            for lane in waiting[1:]:
                lanes[lane] = None
        lanes[own] = point.number
        sign = "●" if point.number == head else "○"
        yield GraphRow(
            point.number,
            tuple(
                _cells(sign if lane == own else "│" if wanted is not None else " ", lane)
                for lane, wanted in _used(lanes)
            ),
        )
        ahead = [parent for parent in point.parents if parent in known or parent < oldest]
        lanes[own] = ahead[0] if ahead else None
        if point.parents and not ahead:
            yield GraphRow(None, tuple(_gap(lanes, own)))
        for parent in ahead[1:]:
            there = parent in lanes
            lane = lanes.index(parent) if there else _free(lanes)
            lanes[lane] = parent
            if lane != own:
                yield GraphRow(None, _joined(lanes, own, [lane], "┤" if there else "╮"))
        while lanes and lanes[-1] is None:
            lanes.pop()


def _free(lanes: list[int | None]) -> int:
    """Return a free lane; add one if there is none."""
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _used(lanes: list[int | None]) -> Iterator[tuple[int, int | None]]:
    last = max((lane for lane, wanted in enumerate(lanes) if wanted is not None), default=-1)
    return ((lane, lanes[lane]) for lane in range(last + 1))


def _gap(lanes: list[int | None], own: int) -> Iterator[tuple[str, int]]:
    """Yield the cells of a line whose end is not listed."""
    for lane in range(max(own, *(lane for lane, _ in _used(lanes)), 0) + 1):
        yield _cells("┆" if lane == own else "│" if lanes[lane] is not None else " ", lane)


def _cells(sign: str, lane: int) -> tuple[str, int]:
    return (f"{sign} ", lane)


def _joined(lanes: list[int | None], own: int, others: list[int], corner: str) -> tuple[tuple[str, int], ...]:
    """Return the cells of a line that joins a lane with others, which end in it (╯), start from it (╮), or pass (┤)."""
    first, last = min(own, *others), max(own, *others)
    cells = []
    for lane, wanted in _used(lanes):
        inside = first <= lane < last
        if lane == own:
            sign = "├" if lane == first else "┤"
        elif lane in others:
            sign = corner if lane == last else "┴" if corner == "╯" else "┬"
            if lane == first and own == last:
                sign = {"╯": "╰", "╮": "╭", "┤": "├"}[corner]
        elif wanted is not None:
            sign = "┼" if inside else "│"
        else:
            sign = "─" if inside else " "
        cells.append((f"{sign}{'─' if inside else ' '}", others[0] if inside or lane in others else lane))
    return tuple(cells)


#: Entries of one dict or list, and levels, that are drawn by default.
ENTRIES = 30
LEVELS = 6
#: The width up to which a dict or list is drawn on one line.
_SHORT = 60


class TreeLine(NamedTuple):
    """A line of the tree: guides, name, value."""

    guide: str
    name: str
    value: str
    #: string, number, none, other or more.
    kind: str


def draw_tree(
    value: Any, *, width: int = 100, entries: int = ENTRIES, levels: int = LEVELS
) -> Iterator[TreeLine]:
    """Yield the lines of the tree of a value."""
    if _is_container(value) and value:
        yield from _below(value, "", width, entries, levels)
    else:
        yield TreeLine("", "", brief(value, width), _kind(value))


def _below(value: Any, guide: str, width: int, entries: int, levels: int) -> Iterator[TreeLine]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    more = len(value) - entries
    listed = list(islice(items, entries))
    for place, (key, item) in enumerate(listed):
        last = place == len(listed) - 1 and more <= 0
        name = plain(key) if isinstance(key, str) else f"[{plain(repr(key))}]"
        branch, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        room = max(10, width - len(guide) - display_width(name) - 5)
        short = min(room, _SHORT)
        if _is_flat(item, entries):
            total = f" ({count(len(item), 'item')})"
            yield TreeLine(guide + branch, name, brief(item, max(10, room - len(total))) + total, "number")
        elif _is_container(item) and item and levels > 1 and display_width(brief(item, short + 1)) > short:
            yield TreeLine(guide + branch, name, f"({count(len(item), 'item')})", "more")
            yield from _below(item, guide + below, width, entries, levels - 1)
        else:
            yield TreeLine(guide + branch, name, brief(item, room), _kind(item))
    if more > 0:
        yield TreeLine(guide + "└─ ", "", f"… {more:,} more", "more")


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _is_flat(value: Any, entries: int) -> bool:
    """Return whether a value is a list of more numbers than are drawn."""
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
