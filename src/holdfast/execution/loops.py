"""Agent loops as the engine sees them: their questions in the inbox, and what a monitor checks.

A loop keeps its questions in its control run `loop/NAME/control`, and their rows, of kind `loop`, in the index of open
questions, which `History.commit_record` writes together with the control record. Their ids are those of the control
run, `#` and a number, as for runs. The engine lists, filters and pages them by the index; this protocol supplies the
rest.

Invariant: whether a question is a loop's follows from its id alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.model.public import Question
from holdfast.model.question import Handling
from holdfast.store.protocol import OpenQuestion

PREFIX = "loop/"
#: What follows the name of a loop in the ids of the runs with its control record and with its agents' heartbeats.
CONTROL = "/control"
BEATS = "/beats"

#: A change of a question's handling: returns the new one, and the events to write with it, by kind, with their data; or
#: None for no change.
HandlingChange = Callable[[Handling], tuple[Handling, dict[str, dict[str, Any]]] | None]


def is_control_run(run_id: str) -> bool:
    """Return whether a run is the control run of a loop."""
    return _is_part(run_id, CONTROL)


def control_run_of(run_id: str) -> str | None:
    """Return the id of the control run of the loop that may have its state in a run; None for a run of no loop."""
    return run_id + CONTROL if run_id.startswith(PREFIX) and not is_bookkeeping(run_id) else None


def is_bookkeeping(run_id: str) -> bool:
    """Return whether a run belongs to a loop without being its state: lists of runs leave it out."""
    return _is_part(run_id, CONTROL) or _is_part(run_id, BEATS)


def _is_part(run_id: str, part: str) -> bool:
    return run_id.startswith(PREFIX) and run_id.endswith(part) and len(run_id) > len(PREFIX + part)


class StalledLoop(NamedTuple):
    """A loop whose agents have stalled: its run, the reason, and `recover` if it is restored, or `stall` if a person is
    asked."""

    run: str
    why: str
    action: str


class LoopCheck(NamedTuple):
    """The stalled loops that a check found, and the errors of those that could not be checked."""

    stalled: Sequence[StalledLoop] = ()
    errors: Sequence[tuple[str, BaseException]] = ()


class Loops(Protocol):
    """Shows, answers and changes questions of loops, and looks for stalled agents."""

    def check(self, every: float) -> LoopCheck:
        """Look for stalled agents in all loops, execute what dead processes left, and save scheduled snapshots, unless
        another process does so at least as often; this one does it `every` so many seconds."""

    def release(self) -> None:
        """Let another process check the loops at once, because this one stops."""

    def overdue(self) -> list[StalledLoop]:
        """Return what a check would find now. Nothing is changed."""

    def index_questions(self) -> None:
        """Put open questions of stores of earlier formats into the index, once per store."""

    def adopt(self, run_id: str) -> None:
        """Put the questions of an imported control run into the index."""

    def shown(self, rows: Sequence[OpenQuestion]) -> list[Question]:
        """Return the questions of these rows, in their order, without those that are no longer open. Called with one
        page of the inbox."""

    def question(self, question_id: str) -> Question:
        """Return an open question; `NotFound` if there never was one with this id, `InvalidAnswer` if it was answered
        (with `actor` and `at` in its details) or is no longer open."""

    def answer(self, question_id: str, choice: Any, *, version: Any, keep: Any, actor: str | None) -> object:
        """Carry out a choice: resume, rollback (to `version`, or else the last good one), reinitialize (with the parts
        of the memory to `keep`) or cancel. The first answer counts: `InvalidAnswer` for a second one, or one that does
        not fit. Writes `question.answered` with `question_id`, `choice`, `opened`, `question` and `actor`."""

    def handle(self, question_id: str, change: HandlingChange, actor: str | None) -> bool:
        """Change who is to answer an open question, and by when, and its row in the index with it. `change` is called
        again if the control record has changed meanwhile. Return whether the handling changed. Errors as for
        `question`."""
