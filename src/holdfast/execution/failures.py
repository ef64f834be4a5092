"""The failed steps of one execution, and the error of a failed run.

A failure that the code around it handles is a result: it is recorded when that code continues, and fails the same way
on replay. A failure that ends the run is not a result: a resume tries that step again.

Invariant: a failure is recorded only when the code of its frame, or of one around it, has done something else since.
The caller of a run gets the exception that the workflow raised, with one note per run, however often it is raised.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from holdfast.errors import LimitExceeded
from holdfast.execution.exception_codec import ENGINE_CODE, describe

#: Characters of an error in an event.
_LONGEST_TEXT = 1000
#: Recorded failures that are kept in memory, with all that their tracebacks hold.
_MOST_RECORDED = 200


class Failure(NamedTuple):
    """A step that failed for good. It is recorded if the workflow continues."""

    name: str
    address: str
    args: bytes
    error: BaseException
    attempts: int
    #: The version that recorded it, once there is one.
    number: int = 0
    #: Its arguments, captured.
    given: Any = None
    #: Its implementation, if its version is to name it.
    ran: Any = None
    #: The error as it was when the step failed: code that handles it may add notes, or raise others from it.
    described: Any = None
    #: What it has spent: cost, tokens, and steps that it called.
    spent: dict[str, Any] | None = None
    #: Its place among the results that code got (see `replay_order`), if it ran in parallel.
    after: tuple[int, int] | None = None


class _Handled:
    """A failure that is to be recorded."""

    __slots__ = ("by", "failure", "writing")

    def __init__(self, failure: Failure, by: str) -> None:
        self.failure = failure
        #: The address of the outermost frame whose code is known to have handled it.
        self.by = by
        #: Is a branch recording it?
        self.writing = False

    def concerns(self, frame: str) -> bool:
        """Return whether it must be recorded before the code of a frame starts a step: it failed within that frame, or
        code that called what this frame is part of has handled it."""
        return self.failure.address.startswith(_within(frame)) or _within(frame).startswith(_within(self.by))


class Failures:
    """The failures of one execution."""

    __slots__ = ("_lock", "_recorded", "handled", "pending")

    def __init__(self) -> None:
        #: Failures that no code is known to have handled.
        self.pending: list[Failure] = []
        #: Those that are to be recorded with the next step, and those that are recorded.
        self.handled: list[_Handled] = []
        self._recorded: list[Failure] = []
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Return whether a failure is not recorded yet."""
        return bool(self.pending or self.handled)

    def add(self, failure: Failure) -> None:
        """Add a step that failed for good; the workflow may handle that."""
        described = failure._replace(described=describe(failure.error))
        with self._lock:
            self.pending.append(described)

    def note_progress(self, frame: str) -> None:
        """Note that the code of a frame continues: it has handled the failures in it. Failures in other branches may
        not be handled yet."""
        if self:
            within = _within(frame)
            with self._lock:
                for each in self.handled:
                    if _within(each.by).startswith(within):
                        each.by = frame
                handled = [each for each in self.pending if each.address.startswith(within)]
                self.pending = [each for each in self.pending if each not in handled]
                self.handled += [_Handled(each, frame) for each in handled]

    def take_handled(self, frame: str) -> Failure | None:
        """Return a failure that must be recorded before the code of a frame continues, for the caller to record."""
        with self._lock:
            for each in self.handled:
                if not each.writing and each.concerns(frame):
                    each.writing = True
                    return each.failure
        return None

    def is_awaited(self, frame: str) -> bool:
        """Return whether a failure is being recorded that the code of a frame must wait for."""
        with self._lock:
            return any(each.concerns(frame) for each in self.handled)

    def written(self, failure: Failure, number: int) -> None:
        """Note that a taken failure was recorded by a version, or, with 0, was not."""
        with self._lock:
            for each in self.handled:
                if each.failure is failure:
                    each.writing = False
            if number:
                self.handled = [each for each in self.handled if each.failure is not failure]
        if number:
            self.note_recorded(failure._replace(number=number))

    def note_recorded(self, failure: Failure) -> None:
        """Note a failure that was recorded, now or when it was replayed."""
        with self._lock:
            self._recorded.append(failure)
            del self._recorded[:-_MOST_RECORDED]

    def step_of(self, error: BaseException) -> str:
        """Return the address of the step whose failure is this error, or led to it; empty if none did."""
        failed = [*self._recorded, *(each.failure for each in self.handled), *self.pending]
        same = [each.address for each in failed if each.error is error]
        led = [each.address for each in failed if is_cause_of(each.error, error)]
        # A failure passes through the steps around it: the innermost is added first.
        return next(iter([*same, *reversed(led)]), "")

    def drop_causes(self, error: BaseException) -> list[Failure]:
        """Drop the causes of an error; return those of them that were recorded."""
        with self._lock:
            self.pending = [each for each in self.pending if not is_cause_of(each.error, error)]
            self.handled = [each for each in self.handled if not is_cause_of(each.failure.error, error)]
        return [each for each in self._recorded if is_cause_of(each.error, error)]


def _within(frame: str) -> str:
    """Return the prefix of the addresses in a frame."""
    return f"{frame}/" if frame else ""


def is_cause_of(cause: BaseException, error: BaseException | None) -> bool:
    """Return whether a failure is the error of a run, or a cause of it."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        if one is cause:
            return True
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return False


def error_text(error: BaseException) -> str:
    """Return the class and the message of an error, shortened; the class alone if the message raises."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"[:_LONGEST_TEXT]
    except Exception:
        return kind


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
    """Remove the note that `add_run_note` added for a run. An application may raise one exception object repeatedly."""
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
        if kept is None or not each.tb_frame.f_code.co_filename.startswith(ENGINE_CODE):
            # A signal handler may raise where a function has no line yet: Python then says None, against its types.
            line = each.tb_lineno or each.tb_frame.f_code.co_firstlineno
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, line)
    return kept
