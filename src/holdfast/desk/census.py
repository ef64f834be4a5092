"""All runs of a store at a glance: how many stand how, and which are the largest.

Invariant: however many runs there are, only so many are held.
"""

from __future__ import annotations

from heapq import nlargest
from typing import NamedTuple

from holdfast.desk.records import SEEN, status_of
from holdfast.engine import Holdfast
from holdfast.model.public import RunSummary


class Census(NamedTuple):
    """What was counted; the largest run comes first."""

    statuses: dict[str, int]
    largest: list[RunSummary]


def census(hf: Holdfast, largest: int) -> Census:
    """Look at every run."""
    statuses = dict.fromkeys(SEEN, 0)
    found: list[RunSummary] = []
    for run in hf.iter_runs():
        statuses[status_of(run)] += 1
        found.append(run)
        if len(found) > 4 * largest:
            found = _largest(found, largest)
    return Census(statuses, _largest(found, largest))


def _largest(runs: list[RunSummary], count: int) -> list[RunSummary]:
    return nlargest(count, runs, key=lambda run: run.size)
