"""Errors as problem documents (RFC 9457), with Holdfast's own message and a status that says what to do next.

Invariant: no response holds a traceback; an unexpected exception is logged and reported as a fault.
"""

from __future__ import annotations

import logging
from typing import Any, TypedDict

from holdfast import errors
from holdfast.operator_view.text import details_as_json

log = logging.getLogger("holdfast.web")

#: The first match counts.
_STATUSES: tuple[tuple[type[errors.HoldfastError], int], ...] = (
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.InvalidCall, 422),
    (errors.AlreadyRunning, 423),
    (errors.StoreBusy, 503),
    (errors.BreakerOpen, 503),
    (errors.TryAgain, 409),
    (errors.DecisionNeeded, 409),
    (errors.NotFinished, 409),
    (errors.RunEnded, 409),
    (errors.IncompatibleFormat, 422),
    (errors.UnknownTimeZone, 422),
    (errors.StoreUnavailable, 503),
    (errors.HoldfastError, 500),
)
_TITLES = {
    400: "Malformed request",
    401: "Authentication required",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    411: "Length required",
    413: "Body too large",
    415: "Unsupported media type",
    421: "Wrong host",
    422: "Invalid request",
    423: "Locked by another process",
    429: "Too many requests",
    431: "Headers too large",
    500: "Internal error",
    503: "Temporarily unavailable",
}


class ProblemDocument(TypedDict):
    """Problem. `code` is a stable identifier of its kind, `detail` says what to do next, `details` has the facts for
    programs."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    details: dict[str, Any]


class RequestRefused(Exception):
    """The request was refused."""

    def __init__(
        self, status: int, code: str, detail: str, details: dict[str, Any] | None = None, **headers: str
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.details = details
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def status_for(code: str) -> int:
    """Return the HTTP status for the code of an error."""
    return next((status for kind, status in _STATUSES if code in _codes(kind)), 422)


def make_problem(
    status: int, code: str, detail: str, details: dict[str, Any] | None = None
) -> ProblemDocument:
    """Return a problem document."""
    is_damaged = status == 500 and code in _codes(errors.BadData)
    return {
        "type": f"urn:holdfast:{code}",
        "title": "Damaged data" if is_damaged else _TITLES.get(status, "Request refused"),
        "status": status,
        "detail": detail,
        "code": code,
        "details": details_as_json(details or {}),
    }


def problem_for(error: BaseException) -> tuple[ProblemDocument, dict[str, str]]:
    """Return an error as a problem document, with response headers."""
    if isinstance(error, RequestRefused):
        return make_problem(error.status, error.code, str(error), error.details), error.headers
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            headers = {"retry-after": "1"} if status == 503 else {}
            return make_problem(status, error.code, str(error), error.details), headers
    log.error("a fault in Holdfast", exc_info=error)
    return make_problem(500, "fault", f"a fault in Holdfast ({type(error).__name__}): see its log"), {}


def _codes(kind: type[errors.HoldfastError]) -> set[str]:
    """Return the codes of an error and of its subclasses."""
    return {kind.code}.union(*(_codes(each) for each in kind.__subclasses__()))
