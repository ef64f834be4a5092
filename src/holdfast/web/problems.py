"""Errors as answers: RFC 9457, with Holdfast's own message and the status that says what to do next.

Invariant: no answer holds a traceback; what was not foreseen is logged here and told as a fault.
"""

from __future__ import annotations

import logging
from typing import Any, TypedDict

from holdfast import errors
from holdfast.desk.words import details_as_json

log = logging.getLogger("holdfast.web")

#: The first that fits.
_STATUSES: tuple[tuple[type[errors.HoldfastError], int], ...] = (
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.InvalidCall, 422),
    (errors.AlreadyRunning, 423),
    (errors.StoreBusy, 503),
    (errors.BreakerOpen, 503),
    (errors.TryAgain, 409),
    (errors.Decide, 409),
    (errors.NotFinished, 409),
    (errors.RunEnded, 409),
    (errors.IncompatibleFormat, 422),
    (errors.UnknownTimeZone, 422),
    (errors.StoreUnavailable, 503),
    (errors.HoldfastError, 500),
)
_TITLES = {
    400: "The request cannot be understood",
    401: "Who are you?",
    403: "You may not do this",
    404: "There is no such thing",
    405: "This cannot be done here",
    409: "It is not as you think it is",
    411: "How long is it?",
    413: "That is too much",
    415: "Not in this form",
    421: "This is another host's",
    422: "The call cannot be carried out as it is",
    423: "Somebody else is at it",
    429: "That is too many at once",
    431: "The headers are too large",
    500: "Something is broken",
    503: "Not now",
}


class Problem(TypedDict):
    """What went wrong. `code` is a stable word for the kind of it, `detail` tells people what to do next, `details`
    has the facts for programs."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    details: dict[str, Any]


class Refused(Exception):
    """The request is not carried out."""

    def __init__(self, status: int, code: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def status_for(code: str) -> int:
    """The status that goes with the code of an error."""
    return next((status for kind, status in _STATUSES if code in _codes(kind)), 422)


def problem(status: int, code: str, detail: str, details: dict[str, Any] | None = None) -> Problem:
    """A problem as an answer tells it."""
    return {
        "type": f"urn:holdfast:{code}",
        "title": _TITLES.get(status, "This cannot be done"),
        "status": status,
        "detail": detail,
        "code": code,
        "details": details_as_json(details or {}),
    }


def told(error: BaseException) -> tuple[Problem, dict[str, str]]:
    """An error as a problem, and the headers that go with it."""
    if isinstance(error, Refused):
        return problem(error.status, error.code, str(error)), error.headers
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            headers = {"retry-after": "1"} if status == 503 else {}
            return problem(status, error.code, str(error), error.details), headers
    log.error("a fault in Holdfast", exc_info=error)
    return problem(500, "fault", f"a fault in Holdfast ({type(error).__name__}): its log shows where"), {}


def _codes(kind: type[errors.HoldfastError]) -> set[str]:
    """The codes of an error and of those below it."""
    return {kind.code}.union(*(_codes(each) for each in kind.__subclasses__()))
