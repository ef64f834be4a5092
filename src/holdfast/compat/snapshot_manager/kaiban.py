"""Snapshots as KaibanJS exports them: the JSON of its snapshot object, with names such as `stepResults` and times in
milliseconds.

Invariant: `parse` and `problems` never raise; a document without problems can be read.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import InvalidSnapshot

#: Names of fields in Python, by KaibanJS's name; and back.
NAMES = {
    "version": "version",
    "timestamp": "timestamp",
    "runId": "run_id",
    "workflowId": "workflow_id",
    "status": "status",
    "stepResults": "step_results",
    "executionPath": "execution_path",
    "suspendedPaths": "suspended_paths",
    "events": "events",
    "executionGraph": "execution_graph",
    "result": "result",
    "error": "error",
    "logs": "logs",
    "executionContext": "execution_context",
}
CAMEL = {snake: camel for camel, snake in NAMES.items()}

#: Statuses of a run and of a step, in lower case.
RUN_STATUSES = ("pending", "running", "completed", "failed", "suspended", "paused", "cancelled")
STEP_STATUSES = ("running", "completed", "failed", "suspended")

#: The last second that a number can mean before it can only be milliseconds: the year 5138.
LAST_SECOND = 100_000_000_000

_KINDS: dict[str, tuple[type, ...]] = {
    "version": (str,),
    "timestamp": (int, float),
    "runId": (str,),
    "workflowId": (str,),
    "status": (str,),
    "stepResults": (dict,),
    "executionPath": (list,),
    "suspendedPaths": (dict,),
    "events": (list,),
    "executionGraph": (list,),
    "logs": (list,),
    "executionContext": (dict,),
}
#: Fields by which a document is recognised.
_MARKS = ("runId", "workflowId", "timestamp")


def _status(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of a status in any case."""
    return {"type": "string", "pattern": f"^(?i:{'|'.join(names)})$"}


_STEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": _status(STEP_STATUSES),
        "suspended_path": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["status"],
}

#: JSON Schema of the fields of the original, by their names in Python; statuses in any case.
RUN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string"},
        "workflow_id": {"type": "string"},
        "status": _status(RUN_STATUSES),
        "step_results": {"type": "object", "additionalProperties": _STEP},
        "execution_path": {"type": "array", "items": {"type": "number"}},
        "suspended_paths": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "number"}},
        },
        "events": {"type": "array"},
        "execution_graph": {"type": "array"},
        "result": {},
        "error": {},
        "logs": {"type": "array"},
        "execution_context": {"type": "object"},
    },
    "required": ["run_id", "workflow_id", "status", "step_results"],
}


def parse(document: Any) -> dict[str, Any] | None:
    """Return a document of KaibanJS, given as text or as a document; None for anything else."""
    try:
        if isinstance(document, str | bytes):
            document = json.loads(document)
        if type(document) is dict and "format" not in document and all(name in document for name in _MARKS):
            return document
    except Exception:
        return None
    return None


def problems(document: dict[str, Any]) -> list[str]:
    """Return what is wrong with a document of KaibanJS."""
    found = [f"{name} is missing" for name in _KINDS if name not in document]
    for name, kinds in _KINDS.items():
        value = document.get(name)
        if name in document and (not isinstance(value, kinds) or isinstance(value, bool)):
            found.append(f"{name} is a {type(value).__name__}")
    if found:
        return found
    time = document["timestamp"]
    if not LAST_SECOND <= time < 1000 * LAST_SECOND:
        found.append(
            f"timestamp is {time!r:.60}: KaibanJS gives milliseconds since 1970, such as 1700000000000"
        )
    for name, step in document["stepResults"].items():
        status = step.get("status") if isinstance(step, dict) else None
        if not isinstance(status, str) or status.lower() not in STEP_STATUSES:
            found.append(f"stepResults.{name:.60}.status is {status!r:.60}")
    return found


def read(document: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a document of KaibanJS, as `history.snapshot.read` returns them for one of Holdfast;
    `InvalidSnapshot` if it has problems."""
    found = problems(document)
    if found:
        raise InvalidSnapshot(
            f"this snapshot of KaibanJS cannot be imported: {'; '.join(found[:20])}", problems=tuple(found)
        )
    state = {
        NAMES.get(name, name): value
        for name, value in document.items()
        if name not in ("version", "timestamp")
    }
    return {
        "run": document["runId"],
        "version": 1,
        "at": datetime.fromtimestamp(document["timestamp"] / 1000, UTC).isoformat(),
        "tags": [],
        "note": None,
        "kind": "manual",
        "meta": {"workflow_id": document["workflowId"], "replaced": []},
        "state": state,
    }
