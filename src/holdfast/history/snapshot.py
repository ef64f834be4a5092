"""A version as a JSON document, and back.

The document has a format name and number, the fields of the version, and its state in the portable form of
`tree.portable`: readable by people and other tools, and exact when Holdfast reads it back. A checksum over the document
detects accidental changes; it is not a signature.

Invariant: `validate` never raises, and a document that passes it can be imported. Importing never overwrites.
"""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import HoldfastError, InvalidSnapshot
from holdfast.model.checks import check_text
from holdfast.model.names import MAX_NOTE, MAX_STEP, check_run_id, check_tag
from holdfast.model.records import KINDS, STATUSES, current_status, stored_status
from holdfast.tree.portable import from_json, to_json

if TYPE_CHECKING:
    from holdfast.history.version import Version

FORMAT = "holdfast.snapshot"
NUMBER = 1

_FIELDS: dict[str, tuple[type, ...]] = {
    "run": (str,),
    "version": (int,),
    "parent": (int, type(None)),
    "timeline": (int,),
    "kind": (str,),
    "status": (str,),
    "step": (str, type(None)),
    "at": (str,),
    "tags": (list,),
    "note": (str, type(None)),
    "actor": (str, type(None)),
}
#: Problems that are named, and characters of each.
_MAX_PROBLEMS = 20
_MAX_LINE = 300
_TREES = ("meta", "result", "error", "state")
#: Keys of a document for which the attribute of a version has another name.
_READ_AS = {"meta": "annotations"}


class Validation(msgspec.Struct, frozen=True):
    """The problems of a document; true if there are none."""

    problems: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.problems


def export(version: Version) -> dict[str, Any]:
    """Return a version as a document that `json.dumps` accepts."""
    return document_of(facts_of(version))


def facts_of(version: Version) -> dict[str, Any]:
    """Return the fields and trees of a version, as `read` returns them for its document."""
    written = {"version": version.number, "at": version.at.isoformat(), "tags": list(version.tags)}
    facts = written | {
        name: getattr(version, _READ_AS.get(name, name))
        for name in (*_FIELDS, *_TREES)
        if name not in written
    }
    # As it is stored: a caller may have changed objects in the state that it was given.
    facts["state"] = version.read_state()
    return facts


def document_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return fields and trees as a document; the inverse of `read`."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "number": NUMBER,
        **{name: facts[name] for name in _FIELDS},
        "status": stored_status(facts["status"]),
        **{name: to_json(facts[name]) for name in _TREES},
    }
    document["sum"] = _sum(document)
    return document


def validate(document: Any) -> Validation:
    """Return whether a document is a snapshot that can be imported, with its problems. Never raises."""
    try:
        problems = [
            problem if len(problem) <= _MAX_LINE else problem[:_MAX_LINE] + "…"
            for problem in _problems(document)
        ]
        return Validation(tuple(problems[:_MAX_PROBLEMS]))
    except Exception as error:
        return Validation((f"cannot be checked: {type(error).__name__}",))


def read(document: Any) -> dict[str, Any]:
    """Return the fields and trees of a document; `InvalidSnapshot` with all problems if it is not valid."""
    found = validate(document)
    if not found:
        raise InvalidSnapshot(
            f"this snapshot cannot be imported: {'; '.join(found.problems)}", problems=found.problems
        )
    document = _parsed(document)
    document["status"] = current_status(document["status"])
    return {**document, **{name: from_json(document[name]) for name in _TREES}}


def _parsed(document: Any) -> Any:
    if isinstance(document, str | bytes):
        try:
            return json.loads(document)
        except (ValueError, RecursionError) as error:
            raise InvalidSnapshot(f"not JSON: {type(error).__name__}") from error
    return document


def _problems(document: Any) -> list[str]:
    try:
        document = _parsed(document)
    except InvalidSnapshot as error:
        return [str(error)]
    if not isinstance(document, dict):
        return [f"a snapshot is a JSON object, not {type(document).__name__}"]
    if document.get("format") != FORMAT:
        return [f"format is {document.get('format')!r}, not {FORMAT!r}"]
    number = document.get("number")
    if type(number) is not int or number < 1:
        return [f"number of the format is {number!r}"]
    if number > NUMBER:
        return [f"format {number} is newer than this Holdfast knows ({NUMBER}): upgrade Holdfast"]
    problems = [f"{name} is missing" for name in (*_FIELDS, *_TREES, "sum") if name not in document]
    known = {"format", "number", "sum", *_FIELDS, *_TREES}
    problems += [f"{name!r} is not a field of a snapshot" for name in document if name not in known]
    for name, kinds in _FIELDS.items():
        if name in document and type(document[name]) not in kinds:
            problems.append(f"{name} is a {type(document[name]).__name__}")
    if problems:
        return problems
    problems += _field_problems(document)
    for name in _TREES:
        try:
            from_json(document[name])
        except HoldfastError as error:
            problems.append(f"{name}: {error}")
    if not problems and document["sum"] != _sum(document):
        problems.append("the checksum does not match: the document was changed or truncated")
    return problems


def _field_problems(document: dict[str, Any]) -> list[str]:
    problems = []
    for test, value in ((check_run_id, document["run"]), *((check_tag, tag) for tag in document["tags"])):
        try:
            test(value)
        except HoldfastError as error:
            problems.append(str(error))
    for name, limit in (("step", MAX_STEP), ("note", MAX_NOTE), ("actor", MAX_STEP)):
        try:
            check_text(name, document[name], limit)
        except HoldfastError as error:
            problems.append(str(error))
    if document["version"] < 1:
        problems.append(f"version is {document['version']}")
    if document["parent"] is not None and not 0 < document["parent"] < document["version"]:
        problems.append(f"parent {document['parent']} does not come before version {document['version']}")
    if document["kind"] not in KINDS:
        problems.append(f"kind is {document['kind']!r}")
    if current_status(document["status"]) not in STATUSES:
        problems.append(f"status is {document['status']!r}")
    try:
        datetime.fromisoformat(document["at"])
    except ValueError:
        problems.append(f"at is not a time: {document['at']!r}")
    return problems


def _sum(document: dict[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "sum"}
    return sha256(
        json.dumps(rest, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
    ).hexdigest()
