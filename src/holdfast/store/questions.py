"""The index of open questions in a database: the part that SQLite and PostgreSQL share.

A question has one row, and a row in `question_place` for each combination of kind, workflow and assignee by which it
can be found, a *facet*: every list is one range of the index of that table, also with several filters and also if none
matches. A facet is a hash, because a name may be longer than an entry of an index. With `opened_before`, the list is a
range for each priority, of which there are few (see `MAX_PRIORITY`).

Invariant: a question has the places of its row, and no others.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise, product
from typing import Any, Unpack

import msgspec

from holdfast.errors import CorruptStore
from holdfast.model.records import QUESTION_KINDS, QuestionRecord
from holdfast.model.run_detail import detail_of, question_rows
from holdfast.store.protocol import (
    OpenQuestion,
    QuestionFilters,
    QuestionPlace,
    list_order,
    matches,
    place_of,
)
from holdfast.store.rows import LIVE_RUN, RUN, row_sum, run_record
from holdfast.store.sql import SQLDatabase

#: Columns of a question, without its checksum.
QUESTION = "run, number, kind, opened, workflow, assignee, priority, due, expires, wake"
PLACE = "facet, rank, opened, run, number, expires"
_QUESTION_COLUMNS = [f"question.{name}" for name in (*QUESTION.split(", "), "sum")]
_COLUMNS = ", ".join([*_QUESTION_COLUMNS, *(f"run.{name}" for name in (*RUN.split(", "), "sum"))])
_WIDTH = len(_QUESTION_COLUMNS)
#: Questions of some places with their runs. The order of the tables is that in which they are read.
_JOINED = (
    f"SELECT {_COLUMNS} FROM ({{}}) place CROSS JOIN question CROSS JOIN run "
    "WHERE question.run = place.run AND question.number = place.number AND run.key = place.run"
)
#: Whether there are as many places as the questions have facets.
_HAS_ALL_PLACES = (
    "SELECT (SELECT count(*) FROM question_place) = (SELECT coalesce(sum(2 * CASE WHEN workflow IS NULL THEN 1 ELSE 2 "
    "END * CASE WHEN assignee IS NULL THEN 1 ELSE 2 END), 0) FROM question)"
)
_NOT_EXPIRED = "(expires IS NULL OR expires > {})"
_IN_ORDER = " ORDER BY place.rank, place.opened, place.run, place.number"
_PAGE = (
    _JOINED.format(
        "SELECT rank, opened, run, number FROM question_place "
        "WHERE facet = $1 AND (rank, opened, run, number) > ($2, $3, $4, $5) "
        f"AND {_NOT_EXPIRED.format('$6')} ORDER BY rank, opened, run, number LIMIT $7"
    )
    + _IN_ORDER
)
_PAGE_OF_RANK = (
    _JOINED.format(
        "SELECT rank, opened, run, number FROM question_place "
        "WHERE facet = $1 AND rank = $2 AND (opened, run, number) > ($3, $4, $5) AND opened < $6 "
        f"AND {_NOT_EXPIRED.format('$7')} ORDER BY opened, run, number LIMIT $8"
    )
    + _IN_ORDER
)
#: The ranks of a facet from $2 on, each found by a search in the index.
_RANKS = (
    "WITH RECURSIVE found (rank) AS (SELECT min(rank) FROM question_place WHERE facet = $1 AND rank >= $2 "
    "UNION ALL SELECT (SELECT min(rank) FROM question_place WHERE facet = $1 AND rank > found.rank) "
    "FROM found WHERE found.rank IS NOT NULL) SELECT rank FROM found WHERE rank IS NOT NULL"
)
_OF_RUN = (
    _JOINED.format("SELECT run, number FROM question WHERE run = $1 ORDER BY number")
    + " ORDER BY place.number"
)
_WAKING = (
    _JOINED.format(
        "SELECT run, number, wake FROM question WHERE wake IS NOT NULL AND wake <= $1 "
        "ORDER BY wake, run, number LIMIT $2"
    )
    + " ORDER BY place.wake, place.run, place.number"
)
#: The records of runs that may have questions.
SELECT_WITH_DETAIL = f"SELECT {RUN}, sum FROM run WHERE {LIVE_RUN} AND detail IS NOT NULL"
#: Before every place.
_START = (-(1 << 62), -(1 << 62), 0, 0)

_encode = msgspec.msgpack.Encoder().encode


def facet(kind: str | None, workflow: str | None, assignee: str | None) -> bytes:
    """Return the facet of questions with these values; None for any."""
    return sha256(_encode((kind, workflow, assignee))).digest()[:16]


def facets_of(question: QuestionRecord) -> list[bytes]:
    """Return the facets by which a question is found."""
    values = [(None, value) for value in (question.kind, question.workflow, question.assignee)]
    return [facet(*some) for some in dict.fromkeys(product(*values))]


def question_row(key: int, question: QuestionRecord) -> tuple[Any, ...]:
    """Return the values of a question's row, with the checksum."""
    values = (key, *msgspec.structs.astuple(question)[1:])
    return *values, row_sum(*values)


def place_rows(key: int, question: QuestionRecord) -> list[tuple[Any, ...]]:
    """Return the values of the rows of a question's places."""
    place = (-question.priority, question.opened, key, question.number, question.expires)
    return [(each, *place) for each in facets_of(question)]


def question_record(row: Sequence[Any], run_id: str = "RUN") -> QuestionRecord:
    """Build a question of a run from its row."""
    if row_sum(*row[:-1]) != row[-1] or row[2] not in QUESTION_KINDS:
        raise CorruptStore(
            f"the row of question '{run_id}#{row[1]}' in the index is damaged: answer or assign the question, which "
            "writes the row again, and verify the store"
        )
    return QuestionRecord(
        run=row[0],
        number=row[1],
        kind=row[2],
        opened=row[3],
        workflow=row[4],
        assignee=row[5],
        priority=row[6],
        due=row[7],
        expires=row[8],
        wake=row[9],
    )


def stored_questions(
    rows: Iterable[tuple[Any, ...]],
) -> Iterator[tuple[int, tuple[QuestionRecord, ...]]]:
    """Yield the questions in the records of runs, with the runs' keys, for a store that has no index of them yet.
    Damaged records have none: reading the run reports them."""
    for row in rows:
        with suppress(CorruptStore):
            run = run_record(row)
            if questions := question_rows(run, detail_of(run)):
                yield run.key, questions


class SQLQuestions:
    """Reads the open questions of a database."""

    def __init__(self, database: SQLDatabase) -> None:
        self._database = database

    def page(
        self, *, now: int, after: QuestionPlace | None = None, limit: int = 100, **filters: Unpack[QuestionFilters]
    ) -> list[OpenQuestion]:  # fmt: skip
        """Return questions that match the filters, after a place, by priority and time."""
        run = filters.get("run")
        if run is not None:
            return page_of_run(_joined(self._database.rows(_OF_RUN, (run,))), now, after, limit, filters)
        name = facet(filters.get("kind"), filters.get("workflow"), filters.get("assignee"))
        start = _START if after is None else list_order(after)
        before = filters.get("opened_before")
        if before is None:
            rows = self._database.rows(_PAGE, (name, *start, now, limit))
        else:
            rows = []
            for rank, place in self._ranks(name, start):
                values = (name, rank, *place, before, now, limit - len(rows))
                rows += self._database.rows(_PAGE_OF_RANK, values)
                if len(rows) >= limit:
                    break
        found = _joined(rows)
        _check_order(start, [list_order(place_of(each.question)) for each in found])
        for each in found:
            if not matches(each.question, now, filters):
                raise CorruptStore(
                    f"the index of open questions lists question {each.question.number} of run {each.run.id!r}, which "
                    "has other values: verify the store"
                )
        return found

    def _ranks(self, name: bytes, start: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the ranks from a place on, each with the rest of the place after which its list starts."""
        for (rank,) in self._database.rows(_RANKS, (name, start[0])):
            yield rank, start[1:] if rank == start[0] else _START[1:]

    def check(self) -> list[str]:
        """Return what is wrong with the index as a whole."""
        row = self._database.row(_HAS_ALL_PLACES)
        return (
            []
            if row is None or row[0]
            else ["the index of open questions lists questions that have other values"]
        )

    def of_run(self, run: int) -> list[QuestionRecord]:
        """Return the open questions of a run by number, expired ones included."""
        return [each.question for each in _joined(self._database.rows(_OF_RUN, (run,)))]

    def waking(self, now: int, limit: int) -> list[OpenQuestion]:
        """Return questions whose `wake` is at or before `now`, the earliest first."""
        return _joined(self._database.rows(_WAKING, (now, limit)))


def page_of_run(
    questions: Sequence[OpenQuestion],
    now: int,
    after: QuestionPlace | None,
    limit: int,
    filters: QuestionFilters,
) -> list[OpenQuestion]:
    """Return the page of the questions of one run, of which there are few."""
    found = [each for each in questions if matches(each.question, now, filters)]
    found.sort(key=lambda each: list_order(place_of(each.question)))
    if after is not None:
        found = [each for each in found if list_order(place_of(each.question)) > list_order(after)]
    return found[:limit]


def _joined(rows: Sequence[tuple[Any, ...]]) -> list[OpenQuestion]:
    found = [(row[:_WIDTH], run_record(row[_WIDTH:])) for row in rows]
    return [OpenQuestion(question_record(row, run.id), run) for row, run in found]


def _check_order(start: Sequence[int], places: list[tuple[int, int, int, int]]) -> None:
    """Refuse rows that are repeated or out of order: reading page by page might never end."""
    if any(one >= other for one, other in pairwise([tuple(start), *places])):
        raise CorruptStore("the index of open questions lists rows out of order: verify the store")
