"""Questions of loops in the inbox: what the engine needs from the part that runs loops.

A loop keeps its questions in its control run `loop/NAME/control`, and their rows, of kind `loop`, in the index of open
questions, which `History.commit_record` writes together with the control record. Their ids are those of the control
run, `#` and a number, as for runs. The engine lists, filters and pages them by the index; this protocol supplies the
rest.

Invariant: whether a question is a loop's follows from its id alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.errors import InvalidAnswer
from holdfast.model.public import Question
from holdfast.model.question import Handling
from holdfast.store.protocol import OpenQuestion

_PREFIX, _SUFFIX = "loop/", "/control"


def is_control_run(run_id: str) -> bool:
    """Return whether a run is the control run of a loop."""
    return len(run_id) > len(_PREFIX + _SUFFIX) and run_id.startswith(_PREFIX) and run_id.endswith(_SUFFIX)


class LoopQuestions(Protocol):
    """Shows, answers and changes questions of loops."""

    def shown(self, rows: Sequence[OpenQuestion]) -> list[Question]:
        """Return the questions of these rows, in their order, without those that are no longer open. Each row comes
        with its control run as of the same moment. Called with one page of the inbox."""

    def question(self, question_id: str) -> Question:
        """Return an open question; `NotFound` if there never was one with this id, `InvalidAnswer` if it was answered
        (with `actor` and `at` in its details) or is no longer open."""

    def answer(self, question_id: str, choice: Any, *, version: Any, keep: Any, actor: str | None) -> None:
        """Carry out a choice: resume, rollback (to `version`, or else the last good one), reinitialize (with the parts
        of the memory to `keep`) or cancel. The first answer counts: `InvalidAnswer` for a second one, or one that does
        not fit. Writes `question.answered` with `question_id`, `choice`, `opened`, `question` and `actor`."""

    def handle(
        self,
        question_id: str,
        change: Callable[[Handling], tuple[Handling, dict[str, dict[str, Any]]] | None],
        actor: str | None,
    ) -> bool:
        """Change who is to answer an open question, and by when: `change` returns the new handling, and the events to
        write with it, by kind, with their data (add `question_id`, `question` and `actor`), or None for no change. It
        is called again if the control record has changed meanwhile. The row of the question gets the values of the new
        handling (`assignee`, `priority`, `due`, `wake`). Return whether it changed. Errors as for `question`."""


class NoLoops:
    """For an engine without loops: their questions are listed, but what is asked is unknown."""

    def shown(self, rows: Sequence[OpenQuestion]) -> list[Question]:
        """Return no question."""
        return []

    def question(self, question_id: str) -> Question:
        """Refuse a question of a loop."""
        raise _refusal(question_id)

    def answer(self, question_id: str, choice: Any, *, version: Any, keep: Any, actor: str | None) -> None:
        """Refuse an answer to a loop."""
        raise _refusal(question_id)

    def handle(
        self,
        question_id: str,
        change: Callable[[Handling], tuple[Handling, dict[str, dict[str, Any]]] | None],
        actor: str | None,
    ) -> bool:
        """Refuse a change of a question of a loop."""
        raise _refusal(question_id)


def _refusal(question_id: str) -> InvalidAnswer:
    return InvalidAnswer(
        f"question {question_id!r} belongs to a loop: answer it with LoopEngine.answer",
        question_id=question_id,
    )
