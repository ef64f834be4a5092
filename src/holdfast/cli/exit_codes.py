"""Exit codes, and the errors that each stands for.

Invariant: a script can decide by the code alone what to do next.
"""

from __future__ import annotations

from holdfast import errors

DONE = 0
#: Versions differ, a check found a problem, a workflow failed, the user declined.
FINDINGS = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
#: The run has questions for an operator.
WAITS = 5
CORRUPT = 6
NO_STORE = 10
LOCKED = 11
#: A bug in Holdfast.
FAULT = 70
#: The output, or a file other than the store, cannot be written or read.
FILES = 74
INTERRUPTED = 130


class AlreadyAnswered(errors.InvalidAnswer):
    """The question is not open any more."""


#: The first match counts.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.NotFound, NOT_FOUND),
    (errors.AlreadyExists, CONFLICT),
    (AlreadyAnswered, CONFLICT),
    (errors.InvalidSnapshot, CORRUPT),
    (errors.InvalidCall, USAGE),
    (errors.StoreBusy, LOCKED),
    (errors.TryAgain, CONFLICT),
    (errors.DecisionNeeded, CONFLICT),
    (errors.NotFinished, WAITS),
    (errors.BadData, CORRUPT),
    (errors.StoreUnavailable, NO_STORE),
    (errors.HoldfastError, FINDINGS),
    (KeyboardInterrupt, INTERRUPTED),
)


def code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAULT)
