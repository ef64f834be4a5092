"""Whether a list that was read from the store is whole.

A hash guards what a row says, but not that it is there: damage to a database's pages can make rows vanish from
a list, come twice or out of order, without a trace in those that are left. What a run's record says about the
numbers of its versions and timelines tells.

Invariant: none of these checks refuses a list that others have added to since the run was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from holdfast.errors import CorruptStore
from holdfast.model.records import RunRecord, TimelineRecord


def is_whole(run: RunRecord, numbers: Sequence[int], *, before: int | None, limit: int) -> bool:
    """Can these be the numbers of a run's newest versions before one, newest first? Of a run that was pruned,
    only the whole list can be judged."""
    top = run.last if before is None else min(run.last, before - 1)
    if run.epoch == 0:
        first = numbers[0] if numbers else 0
        return first >= top and list(numbers) == list(range(first, max(0, first - limit), -1))
    if any(one <= other for one, other in pairwise(numbers)):
        return False
    known = sum(number <= run.last for number in numbers)
    return before is not None or len(numbers) == limit or known == run.kept


def whole_lines(run: RunRecord, lines: Sequence[TimelineRecord]) -> list[TimelineRecord]:
    """The timelines of a run as it was read, or `CorruptStore` if one is missing."""
    known = [line for line in lines if line.number <= run.timeline]
    if [line.number for line in known] != list(range(2, run.timeline + 1)):
        raise CorruptStore(
            f"run {run.id!r} has lost timelines: verify the store, restore the run from a bundle", run=run.id
        )
    return known
