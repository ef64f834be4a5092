"""Timelines drawn as lanes beside a list of versions, newest first.

    ●        12  publish
    ○        11  headline
    │ ○      10  publish      (of the timeline that was left)
    │ ○       9  headline
    ├─╯
    ○         8  draft

Invariant: a version's dot stands in one lane, and every line leads from a version to its parent: to its dot, beyond the
end of the list where the parent is older than all in it, or into a gap (┆) where the parent is missing in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Point(NamedTuple):
    """A version, as the drawing needs to know it."""

    number: int
    #: Those it follows: its parent, and what was merged into it.
    parents: tuple[int, ...]


class Row(NamedTuple):
    """A line of the drawing: of a version, or between two of them."""

    number: int | None
    #: Each character with the lane that it belongs to.
    cells: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        return "".join(sign for sign, _ in self.cells)


def draw(points: Iterable[Point], head: int | None = None) -> Iterator[Row]:
    """The lines of a list of versions, which comes newest first."""
    listed = list(points)
    known = {point.number for point in listed}
    oldest = min(known, default=0)
    #: The version that each lane leads to; None for a lane that is free.
    lanes: list[int | None] = []
    for point in listed:
        waiting = [lane for lane, wanted in enumerate(lanes) if wanted == point.number]
        own = waiting[0] if waiting else _free(lanes)
        if len(waiting) > 1:
            yield Row(None, _joined(lanes, own, waiting[1:], "╯"))
            for lane in waiting[1:]:
                lanes[lane] = None
        lanes[own] = point.number
        sign = "●" if point.number == head else "○"
        yield Row(
            point.number,
            tuple(
                _cells(sign if lane == own else "│" if wanted is not None else " ", lane)
                for lane, wanted in _used(lanes)
            ),
        )
        ahead = [parent for parent in point.parents if parent in known or parent < oldest]
        lanes[own] = ahead[0] if ahead else None
        if point.parents and not ahead:
            yield Row(None, tuple(_gap(lanes, own)))
        for parent in ahead[1:]:
            there = parent in lanes
            lane = lanes.index(parent) if there else _free(lanes)
            lanes[lane] = parent
            if lane != own:
                yield Row(None, _joined(lanes, own, [lane], "┤" if there else "╮"))
        while lanes and lanes[-1] is None:
            lanes.pop()


def _free(lanes: list[int | None]) -> int:
    """A lane that nothing uses, made if there is none."""
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _used(lanes: list[int | None]) -> Iterator[tuple[int, int | None]]:
    last = max((lane for lane, wanted in enumerate(lanes) if wanted is not None), default=-1)
    return ((lane, lanes[lane]) for lane in range(last + 1))


def _gap(lanes: list[int | None], own: int) -> Iterator[tuple[str, int]]:
    """A line that leads nowhere."""
    for lane in range(max(own, *(lane for lane, _ in _used(lanes)), 0) + 1):
        yield _cells("┆" if lane == own else "│" if lanes[lane] is not None else " ", lane)


def _cells(sign: str, lane: int) -> tuple[str, int]:
    return (f"{sign} ", lane)


def _joined(lanes: list[int | None], own: int, others: list[int], corner: str) -> tuple[tuple[str, int], ...]:
    """A line between a lane and others: that end in it (╯), begin from it (╮), or go on (┤)."""
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
