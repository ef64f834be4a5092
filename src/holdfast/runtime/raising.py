"""Raise the error of a failed run to the caller of `run`, `resume`, `rollback`, `answer` or `send`.

Invariant: the exception is the one that the workflow raised, with one note per run, however often it is raised.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType

from holdfast.errors import LimitExceeded

_ENGINE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class RunNote(str):
    """A note on an exception: which run failed with it, in which step, how to resume it."""

    __slots__ = ("run",)
    run: str

    def __new__(cls, run: str, step: str, resume: str) -> RunNote:
        where = f" in step {step!r}" if step else ""
        note = super().__new__(
            cls, f"Run {run!r} failed{where}. {resume}: completed steps are not run again."
        )
        note.run = run
        return note


def add_run_note(error: BaseException, run: str, step: str) -> None:
    """Note on an exception which run failed with it; replaces the note of an earlier failure of that run."""
    note = RunNote(run, step, _how_to_resume(error, run))
    remove_run_note(error, run)
    # The class of the exception may refuse new attributes, or use the name for something else.
    with suppress(Exception):
        if str(note) not in getattr(error, "__notes__", ()):
            error.add_note(note)


def _how_to_resume(error: BaseException, run: str) -> str:
    if not isinstance(error, LimitExceeded):
        return f"hf.resume({run!r}) resumes it"
    if error.details.get("block"):
        return f"hf.resume({run!r}) resumes it once the limit of the block is raised in the code"
    if error.run == run:
        return f"hf.resume({run!r}, limits=Limits({error.limit}=…)) with a higher limit resumes it"
    return f"hf.resume({run!r}) resumes it once the limit of run {error.run!r} is raised"


def remove_run_note(error: BaseException, run: str) -> None:
    """Remove what `add_run_note` added for a run. An application may raise one exception object again and again."""
    with suppress(Exception):
        notes = error.__notes__
        notes[:] = [note for note in notes if not (isinstance(note, RunNote) and note.run == run)]


def without_engine_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback with the frames of the application, and the frame that raised, also if it is of the engine."""
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for each in reversed(entries):
        if kept is None or not each.tb_frame.f_code.co_filename.startswith(_ENGINE):
            # A signal handler may raise where a function has no line yet: Python then says None, against its types.
            line = each.tb_lineno or each.tb_frame.f_code.co_firstlineno
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, line)
    return kept
