"""Contracts of the index of open questions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import StaleVersion
from holdfast.model.records import QUESTION_KINDS, QuestionRecord, RunRecord
from holdfast.store.protocol import (
    Append,
    OpenQuestion,
    Prune,
    QuestionFilters,
    Store,
    list_order,
    matches,
    place_of,
)
from holdfast.testing.conformance.threads import together
from holdfast.testing.samples import ALL, advanced, begin, change_of, commit, event, imported, new_run, stubs

_WORKFLOWS = ("plan", "review", "Grüße 🪸")
_PEOPLE = (None, "ana", "bo", "a" * 200, "'\"%_\\")


def _question(number: int = 1, **fields: Any) -> QuestionRecord:
    return QuestionRecord(**({"number": number, "opened": 100 + number} | fields))


def _ask(store: Store, run: RunRecord, *questions: QuestionRecord) -> RunRecord:
    return store.append(Append(expect=run, run=advanced(run), questions=questions))


def _begin(store: Store, run_id: str, *questions: QuestionRecord, **fields: Any) -> RunRecord:
    run = new_run(run_id, workflow="plan", **fields)
    return store.append(Append(expect=None, run=run, questions=questions))


def _crowd(store: Store, seed: int = 7, count: int = 120) -> list[QuestionRecord]:
    """Store runs with questions of all kinds; return the questions in the order of the list."""
    random = Random(seed)
    kept: list[QuestionRecord] = []
    while len(kept) < count:
        run = begin(store, f"run-{len(kept)}", workflow=random.choice(_WORKFLOWS))
        asked = [
            QuestionRecord(
                run=run.key,
                number=number,
                kind=random.choice(QUESTION_KINDS),
                opened=random.randrange(1_000, 1_040),
                workflow=random.choice((None, run.workflow)),
                assignee=random.choice(_PEOPLE),
                priority=random.choice((-100, 0, 0, 0, 1, 100)),
                due=random.choice((None, 5)),
                expires=random.choice((None, None, 40, 60)),
                wake=random.choice((None, 10, 20, 30)),
            )
            for number in range(1, random.randrange(2, 5))
        ]
        _ask(store, run, *[replace(question, run=0) for question in asked])
        kept += asked
    return sorted(kept, key=lambda question: list_order(place_of(question)))


def _listed(store: Store, limit: int = ALL, now: int = 50, **filters: Any) -> list[QuestionRecord]:
    """Return the whole list, read page by page."""
    found: list[QuestionRecord] = []
    while page := store.open_questions(
        now=now, after=place_of(found[-1]) if found else None, limit=limit, **filters
    ):
        assert len(page) <= limit
        assert [each.run for each in page] == [store.run_by_key(each.question.run) for each in page]
        found += [each.question for each in page]
    return found


def _questions(found: Sequence[OpenQuestion]) -> list[QuestionRecord]:
    return [each.question for each in found]


class QuestionContract:
    """`Append.questions`, `open_questions`, `questions_of`, `waking_questions`."""

    def test_question_reads_back_with_its_run(self, store: Store) -> None:
        full = _question(
            3, kind="stalled", workflow="plan", assignee="ana", priority=-7, due=5, expires=1 << 60, wake=-6
        )
        run = _begin(store, "run", _question(1), full)
        expected = [_question(1, run=run.key), replace(full, run=run.key)]
        assert store.questions_of(run.key) == expected
        assert store.open_questions(now=0) == [OpenQuestion(each, run) for each in expected]
        assert store.questions_of(1_000) == []
        assert store.open_questions(now=0, run=1_000) == []

    def test_change_without_questions_keeps_them(self, store: Store) -> None:
        run = _begin(store, "run", _question(1))
        run = commit(store, run)
        run = store.append(Append(expect=run, run=advanced(run), events=[event()]))
        assert _questions(store.open_questions(now=0)) == [_question(1, run=run.key)]
        assert store.open_questions(now=0)[0].run == run

    def test_change_replaces_all_questions_of_its_run_only(self, store: Store) -> None:
        other = _begin(store, "other", _question(1, priority=9))
        run = _begin(store, "run", _question(1), _question(2, wake=4, assignee="ana"))
        moved = _question(2, assignee="bo", priority=3, wake=8, expires=70)
        run = store.append(
            change_of(run, events=[event()], tags=["tag"], questions=[moved, _question(5, opened=1)])
        )
        expected = [replace(moved, run=run.key), _question(5, opened=1, run=run.key)]
        assert store.questions_of(run.key) == expected
        assert _listed(store) == [_question(1, priority=9, run=other.key), *expected]
        assert _listed(store, assignee="ana") == []
        assert _listed(store, assignee="bo") == expected[:1]
        assert _questions(store.waking_questions(7, 9)) == []
        assert _questions(store.waking_questions(8, 9)) == expected[:1]
        _ask(store, run)
        assert _listed(store) == store.questions_of(other.key)
        assert store.check() == []

    def test_refused_change_changes_no_question(self, store: Store) -> None:
        run = _begin(store, "run", _question(1))
        commit(store, run)
        with pytest.raises(StaleVersion):
            _ask(store, run, _question(2))
        with pytest.raises(StaleVersion):
            _begin(store, "run", _question(3))
        assert store.questions_of(run.key) == [_question(1, run=run.key)]
        assert _listed(store, limit=1) == [_question(1, run=run.key)]

    def test_many_changes_together_bring_their_questions(self, store: Store) -> None:
        runs = [begin(store, f"run-{n}") for n in range(9)]
        changes = [change_of(run, questions=[_question(n)] if n % 2 else None) for n, run in enumerate(runs)]
        store.append_many(changes)
        assert [len(store.questions_of(run.key)) for run in runs] == [n % 2 for n in range(9)]

    @pytest.mark.parametrize("limit", [1, 7, ALL])
    def test_list_is_in_order_and_complete_page_by_page(self, store: Store, limit: int) -> None:
        every = _crowd(store)
        assert _listed(store, limit) == [each for each in every if matches(each, 50, {})]

    def test_filters_are_combined(self, store: Store) -> None:
        every = _crowd(store)
        kinds, workflows, people = (None, *QUESTION_KINDS, "odd"), (None, *_WORKFLOWS), (*_PEOPLE, "eve")
        for kind, workflow, assignee in product(kinds, workflows, people):
            for before in (None, 1_000, 1_020, 2_000):
                filters: QuestionFilters = {
                    "kind": kind, "workflow": workflow, "assignee": assignee, "opened_before": before
                }  # fmt: skip
                expected = [each for each in every if matches(each, 50, filters)]
                assert _listed(store, **filters) == expected
                if kind is None:
                    assert _listed(store, 3, **filters) == expected

    def test_list_of_one_run_has_the_filters(self, store: Store) -> None:
        every = _crowd(store)
        for key in {each.run for each in every}:
            own = [each for each in every if each.run == key]
            assert _listed(store, 1, run=key) == [each for each in own if matches(each, 50, {})]
            filters: QuestionFilters = {"kind": "stalled", "opened_before": 1_020}
            expected = [each for each in own if matches(each, 50, filters)]
            assert _listed(store, run=key, **filters) == expected

    def test_expired_questions_are_not_listed(self, store: Store) -> None:
        run = _begin(store, "run", _question(1, expires=50), _question(2, expires=51))
        assert [each.number for each in _listed(store, now=50)] == [2]
        assert _listed(store, now=51) == []
        assert len(store.questions_of(run.key)) == 2

    def test_page_after_a_question_that_is_gone_continues_there(self, store: Store) -> None:
        run = _begin(store, "run", *[_question(n) for n in range(1, 6)])
        _ask(store, run, *[_question(n) for n in (1, 2, 4, 5)])
        after = place_of(_question(3, run=run.key))
        assert [each.question.number for each in store.open_questions(now=0, after=after)] == [4, 5]

    def test_waking_questions_are_the_earliest(self, store: Store) -> None:
        every = [each for each in _crowd(store) if each.wake is not None]
        every.sort(key=lambda each: (each.wake, each.run, each.number))
        assert _questions(store.waking_questions(9, ALL)) == []
        for now in (10, 25, 30):
            due = [each for each in every if each.wake is not None and each.wake <= now]
            assert _questions(store.waking_questions(now, ALL)) == due
            assert _questions(store.waking_questions(now, 5)) == due[:5]

    def test_deleted_run_has_no_questions(self, store: Store) -> None:
        run = _begin(store, "run", _question(1, wake=1), _question(2))
        store.delete_run(run)
        again = _begin(store, "run")
        assert store.questions_of(run.key) == store.questions_of(again.key) == []
        assert _listed(store) == []
        assert store.waking_questions(9, 9) == []
        assert store.check() == []

    def test_pruned_run_keeps_its_questions(self, store: Store) -> None:
        run = commit(store, commit(store, _begin(store, "run", _question(1))))
        store.prune(Prune(expect=run, run=advanced(run), drop=[], thin=stubs(1)))
        assert store.questions_of(run.key) == [_question(1, run=run.key)]

    def test_imported_run_has_no_questions(self, store: Store) -> None:
        run = store.import_run(imported(3))
        assert store.questions_of(run.key) == []

    def test_concurrent_changes_leave_the_questions_of_the_last(self, store: Store) -> None:
        runs = [begin(store, f"run-{n}") for n in range(3)]

        def change(turn: int) -> None:
            for number in range(12):
                run = store.run(runs[(turn + number) % 3].id)
                assert run is not None
                asked = [
                    _question(n, priority=turn, opened=run.revision)
                    for n in range(1, 1 + (turn + number) % 4)
                ]
                try:
                    _ask(store, run, *asked)
                except StaleVersion:
                    continue

        assert together(4, change) == [None] * 4
        every = [question for run in runs for question in store.questions_of(run.key)]
        assert _listed(store) == sorted(every, key=lambda question: list_order(place_of(question)))
        for run in runs:
            last = store.run_by_key(run.key)
            assert last is not None
            assert {each.opened for each in store.questions_of(run.key)} <= {last.revision - 1}
        assert store.check() == []
