"""Results of the engine's calls: a dict with a `status`, also for errors.

Invariant: a `reported` call raises no `Exception`. Exceptions that end the program (`KeyboardInterrupt`,
`SystemExit`) pass through.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec

from holdfast.errors import HoldfastError
from holdfast.log import warn
from holdfast.model.public import when
from holdfast.tree.diff import Change

P = ParamSpec("P")
Reply = dict[str, Any]

#: Changes that a reply lists at the most; further ones are on the next page.
PAGE = 1000
#: The code of an error that is a fault in Holdfast.
UNEXPECTED = "unexpected"
#: Details of an error that its reply repeats.
ERROR_DETAILS = ("paths", "question_id", "answered")


def reported(method: Callable[P, Reply]) -> Callable[P, Reply]:
    """Wrap a method to return errors as replies."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Reply:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            return failure(error, invalid_call=_is_invalid_call(method, error, args, kwargs))

    return call


def failure(error: BaseException, *, invalid_call: bool = False) -> Reply:
    """Return an error as a reply: `message` for people, `code` for programs."""
    message = type(error).__name__
    with suppress(Exception):
        message = str(error) or message
    if isinstance(error, HoldfastError):
        shown = {name: error.details[name] for name in ERROR_DETAILS if name in error.details}
        return {"status": "error", "message": message, "code": error.code, **shown}
    if invalid_call:
        return {"status": "error", "message": message, "code": "invalid"}
    with suppress(Exception):
        warn("a call of a loop engine failed unexpectedly: %s", message, trace=True)
    return {"status": "error", "message": f"{type(error).__name__}: {message}", "code": UNEXPECTED}


def no_snapshot(project_id: str) -> Reply:
    """Return the reply for a project without a snapshot to restore."""
    return {
        "status": "no snapshot available",
        "project_id": project_id,
        "message": f"project {project_id!r} cannot be restored: no snapshot of it was saved",
    }


def difference(changes: Sequence[Change], *, limit: int = PAGE, after: int = 0) -> Reply:
    """Return a page of changes in the form of a reply, with the values before and after; `next` is where the next page
    starts, None for none."""
    shown = [
        {
            "path": change.where,
            "change": change.kind,
            "summary": change.summary,
            "old": change.old,
            "new": change.new,
        }
        for change in changes[after : after + limit]
    ]
    end = after + len(shown)
    return {"diff": shown, "diff_count": len(changes), "next": end if end < len(changes) else None}


def stamp(at: datetime | int) -> str:
    """Return a time in the form of a reply."""
    return (when(at) if isinstance(at, int) else at).isoformat()


def packed(facts: Reply) -> str:
    """Encode facts as the text of a version's annotations: as text, their names are not redacted like keys
    of a state."""
    return json.dumps(facts, separators=(",", ":"))


def unpacked(text: Any) -> Reply:
    """Return the facts encoded in a text; an empty dict if it does not encode any."""
    with suppress(ValueError, TypeError, RecursionError):
        facts = json.loads(text)
        if isinstance(facts, dict):
            return facts
    return {}


def _is_invalid_call(method: Callable[..., Any], error: BaseException, args: Any, kwargs: Any) -> bool:
    """Return whether the method was called with arguments that do not match its signature."""
    if not isinstance(error, TypeError):
        return False
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError:
        return True
    return False
