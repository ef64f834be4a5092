"""The open questions of a store in memory, sorted for each facet as the places of a database are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Unpack

import msgspec

from holdfast.model.records import QuestionRecord, RunRecord
from holdfast.store.memory.contents import Steps
from holdfast.store.protocol import (
    OpenQuestion,
    QuestionFilters,
    QuestionPlace,
    list_order,
    matches,
    place_of,
)
from holdfast.store.questions import facet, facets_of, page_of_run

_Order = tuple[int, int, int, int]


class MemoryQuestions:
    """Open questions by run and by facet. The caller holds the lock of the store."""

    def __init__(self, run_of: Callable[[int], RunRecord]) -> None:
        self._run_of = run_of
        self._of_runs: dict[int, dict[int, QuestionRecord]] = {}
        self._places: dict[bytes, list[_Order]] = {}
        #: By time: `wake`, the run and the number.
        self._wakes: list[tuple[int, int, int]] = []

    def put(self, steps: Steps, run: int, questions: Sequence[QuestionRecord]) -> None:
        """Replace the open questions of a run."""
        gone: dict[int, tuple[list[Any], list[tuple[int, ...]]]] = {}
        for question in self._of_runs.get(run, {}).values():
            listed: list[tuple[list[Any], tuple[int, ...]]] = [
                (self._places[name], list_order(place_of(question))) for name in facets_of(question)
            ]
            if question.wake is not None:
                listed.append((self._wakes, (question.wake, run, question.number)))
            for places, place in listed:
                gone.setdefault(id(places), (places, []))[1].append(place)
        for places, removed in gone.values():
            # From the end, so that the indices before stay valid.
            for place in sorted(removed, reverse=True):
                steps.add(places.pop, bisect_left(places, place))
        stored = {question.number: msgspec.structs.replace(question, run=run) for question in questions}
        if stored:
            steps.add(self._of_runs.__setitem__, run, stored)
        else:
            steps.add(self._of_runs.pop, run, None)
        for question in stored.values():
            for name in facets_of(question):
                places = steps.inner(self._places, name, [])
                steps.add(insort, places, list_order(place_of(question)))
            if question.wake is not None:
                steps.add(insort, self._wakes, (question.wake, run, question.number))

    def page(
        self, now: int, after: QuestionPlace | None, limit: int, **filters: Unpack[QuestionFilters]
    ) -> list[OpenQuestion]:
        """Return a page as `QuestionStore.open_questions` does."""
        run = filters.get("run")
        if run is not None:
            own = [OpenQuestion(each, self._run_of(run)) for each in self.of_run(run)]
            return page_of_run(own, now, after, limit, filters)
        name = facet(filters.get("kind"), filters.get("workflow"), filters.get("assignee"))
        places = self._places.get(name, [])
        before = filters.get("opened_before")
        start = 0 if after is None else bisect_right(places, list_order(after))
        found: list[OpenQuestion] = []
        while start < len(places) and len(found) < limit:
            rank = places[start][0]
            # The end of the questions of this priority that were opened early enough; where the next one starts.
            next_rank = bisect_left(places, (rank + 1,))
            end = next_rank if before is None else bisect_left(places, (rank, before), start)
            every = (self._open(*places[at][2:]) for at in range(start, end))
            found += islice(
                (each for each in every if matches(each.question, now, filters)), limit - len(found)
            )
            start = next_rank
        return found

    def of_run(self, run: int) -> list[QuestionRecord]:
        """Return the open questions of a run by number."""
        return [question for _, question in sorted(self._of_runs.get(run, {}).items())]

    def waking(self, now: int, limit: int) -> list[OpenQuestion]:
        """Return questions whose `wake` is at or before `now`, the earliest first."""
        end = bisect_right(self._wakes, (now + 1,))
        return [self._open(run, number) for _, run, number in self._wakes[: min(end, limit)]]

    def _open(self, run: int, number: int) -> OpenQuestion:
        return OpenQuestion(self._of_runs[run][number], self._run_of(run))
