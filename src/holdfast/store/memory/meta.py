"""The metadata of the runs of a store in memory, and the runs of each facet in the order of their keys."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from holdfast.model.meta import MetaRow, facets_of, wanted_facets
from holdfast.store.memory.contents import Steps


class MemoryMeta:
    """Metadata by run, and runs by facet. The caller holds the lock of the store."""

    def __init__(self) -> None:
        self._of_runs: dict[int, tuple[MetaRow, ...]] = {}
        self._places: dict[bytes, list[int]] = {}

    def put(self, steps: Steps, run: int, rows: Sequence[MetaRow]) -> None:
        """Replace the metadata of a run."""
        stored = tuple(sorted(rows))
        before, after = set(facets_of(self._of_runs.get(run, ()))), set(facets_of(stored))
        for facet in before - after:
            places = self._places[facet]
            if len(places) > 1:
                steps.add(places.pop, bisect_left(places, run))
            else:
                steps.add(self._places.pop, facet)
        for facet in after - before:
            steps.add(insort, steps.inner(self._places, facet, []), run)
        if stored:
            steps.add(self._of_runs.__setitem__, run, stored)
        else:
            steps.add(self._of_runs.pop, run, None)

    def of_run(self, run: int) -> list[MetaRow]:
        """Return the metadata of a run, by name."""
        return list(self._of_runs.get(run, ()))

    def runs(self, rows: Sequence[MetaRow], before: int | None) -> Iterator[int]:
        """Yield the keys of the runs that have all these metadata, highest first, below `before`."""
        first, *others = (self._places.get(facet, []) for facet in wanted_facets(rows))
        end = len(first) if before is None else bisect_left(first, before)
        for at in range(end - 1, -1, -1):
            if all(_has(places, first[at]) for places in others):
                yield first[at]


def _has(places: list[int], run: int) -> bool:
    at = bisect_left(places, run)
    return at < len(places) and places[at] == run
