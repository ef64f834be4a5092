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

#: Statuses of a run and of a step, in lower case: those of KaibanJS, and two that runs in Python often have.
RUN_STATUSES = (
    "initial", "running", "paused", "resumed", "completed", "failed", "suspended", "pending", "cancelled",
)  # fmt: skip
STEP_STATUSES = ("running", "completed", "failed", "suspended")
#: What an entry of the log is about.
LOG_TYPES = ("status", "step")

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
#: Fields by one of which a document is recognised.
_MARKS = ("runId", "workflowId", "stepResults")


def _status(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of a status in any case."""
    # `$` alone also matches before a line break at the end.
    return {"type": "string", "pattern": f"^(?i:{'|'.join(names)})$(?!\\n)"}


_NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
_OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_STEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": _status(STEP_STATUSES),
        "suspended_path": _NUMBERS,
        "suspendedPath": _NUMBERS,
    },
    "required": ["status"],
}
_LOG: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"enum": list(LOG_TYPES)},
        "status": _status(RUN_STATUSES),
        "step_status": _status(STEP_STATUSES),
        "stepStatus": _status(STEP_STATUSES),
    },
}

#: JSON Schema of the fields of the original, by their names in Python; statuses in any case.
RUN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string"},
        "workflow_id": {"type": "string"},
        "status": _status(RUN_STATUSES),
        "step_results": {"type": "object", "additionalProperties": _STEP},
        "execution_path": _NUMBERS,
        "suspended_paths": {"type": "object", "additionalProperties": _NUMBERS},
        "events": _OBJECTS,
        "execution_graph": _OBJECTS,
        "result": {},
        "error": {},
        "logs": {"type": "array", "items": _LOG},
        "execution_context": {"type": "object"},
    },
    "required": ["run_id", "workflow_id", "status", "step_results"],
}


def parse(document: Any) -> dict[str, Any] | None:
    """Return a document of KaibanJS, given as text or as a document; None for anything else."""
    try:
        if isinstance(document, str | bytes):
            document = json.loads(document)
        if type(document) is dict and "format" not in document and any(name in document for name in _MARKS):
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
    found += _odd_status("status", document, "status", RUN_STATUSES)
    for name, step in document["stepResults"].items():
        where = f"stepResults.{name:.60}"
        if not isinstance(step, dict):
            found.append(f"{where} is a {type(step).__name__}")
            continue
        found += _odd_status(f"{where}.status", step, "status", STEP_STATUSES)
        found += _odd_items(f"{where}.suspendedPath", step.get("suspendedPath") or [], (int, float))
    found += _odd_items("executionPath", document["executionPath"], (int, float))
    for name, path in document["suspendedPaths"].items():
        found += _odd_items(f"suspendedPaths.{name:.60}", path, (int, float))
    for name in ("events", "executionGraph", "logs"):
        found += _odd_items(name, document[name], (dict,))
    for index, entry in enumerate(each for each in document["logs"] if isinstance(each, dict)):
        where = f"logs[{index}]"
        found += _odd_status(f"{where}.type", entry, "type", LOG_TYPES)
        for key, names in (("status", RUN_STATUSES), ("stepStatus", STEP_STATUSES)):
            found += _odd_status(f"{where}.{key}", entry, key, names) if entry.get(key) is not None else []
    return found


def _odd_status(where: str, holder: dict[str, Any], key: str, names: tuple[str, ...]) -> list[str]:
    """Return the problem of a text that is none of some names in any case."""
    value = holder.get(key)
    is_known = isinstance(value, str) and value.lower() in names
    return [] if is_known else [f"{where} is {value!r:.60}, not one of {', '.join(names)}"]


def _odd_items(where: str, items: Any, kinds: tuple[type, ...]) -> list[str]:
    """Return the problem of the first item of a list that is of another type."""
    if not isinstance(items, list):
        return [f"{where} is a {type(items).__name__}"]
    for index, item in enumerate(items):
        if not isinstance(item, kinds) or isinstance(item, bool):
            return [f"{where}[{index}] is a {type(item).__name__}"]
    return []


def read(document: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a document of KaibanJS, as `history.snapshot.read` returns them for one of Holdfast;
    `InvalidSnapshot` if it has problems."""
    found = problems(document)
    if found:
        raise InvalidSnapshot(
            f"this snapshot of KaibanJS cannot be imported: {'; '.join(found[:20])}", problems=tuple(found)
        )
    state = {name: value for name, value in document.items() if name not in NAMES}
    state |= {
        NAMES[name]: value
        for name, value in document.items()
        if name in NAMES and name not in ("version", "timestamp")
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
