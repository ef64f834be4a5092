"""Write the open questions of a run as rows of a SQLite store; `store.questions` reads them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import CorruptStore
from holdfast.model.records import QuestionRecord
from holdfast.store.questions import QUESTION, place_rows, question_record, question_row
from holdfast.store.sqlite.connection import SQLiteConnection

# ruff: noqa: S608 - statements are made of constants only

#: Created with the first question: an empty index takes a page, too.
_CREATE_WAKE_INDEX = (
    "CREATE INDEX IF NOT EXISTS question_wake ON question (wake, run, number) WHERE wake IS NOT NULL"
)
_SELECT = f"SELECT {QUESTION}, sum FROM question WHERE run=?"
_INSERT = f"INSERT INTO question ({QUESTION}, sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_PLACE = (
    "INSERT INTO question_place (facet, rank, opened, run, number, expires) VALUES (?, ?, ?, ?, ?, ?)"
)
_DELETE_PLACE = "DELETE FROM question_place WHERE facet=? AND rank=? AND opened=? AND run=? AND number=?"


def put_questions(connection: SQLiteConnection, key: int, questions: Sequence[QuestionRecord]) -> None:
    """Replace the open questions of a run."""
    old = connection.rows(_SELECT, (key,))
    new = [question_row(key, question) for question in questions]
    if set(old) == set(new):
        return
    if old:
        connection.execute("DELETE FROM question WHERE run=?", (key,))
        try:
            places = [place for row in old for place in place_rows(key, question_record(row))]
        except CorruptStore:
            # A damaged row does not say where its places are.
            connection.execute("DELETE FROM question_place WHERE run=?", (key,))
        else:
            connection.executemany(_DELETE_PLACE, [place[:-1] for place in places])
    if new:
        connection.execute(_CREATE_WAKE_INDEX)
        connection.executemany(_INSERT, new)
        connection.executemany(
            _INSERT_PLACE, [place for question in questions for place in place_rows(key, question)]
        )
