"""A version as a JSON document, and back.

The document carries a format name and number, the facts of the version, and its state in the portable form of
`tree.portable`: readable by people and other tools, exact when read back by us. A check sum over the document
finds accidents; it is no signature.

Invariant: `validate` never raises; what it passes can be imported; importing never overwrites.
"""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import HoldfastError, InvalidSnapshot
from holdfast.model.names import MAX_NOTE, MAX_STEP, check_run_id, check_tag, check_text
from holdfast.model.records import KINDS, STATUSES
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
#: How many problems are named, and with how many characters each.
_MOST = 20
_LINE = 300
_TREES = ("meta", "result", "error", "state")


class Validation(msgspec.Struct, frozen=True):
    """What is wrong with a document; true if nothing is."""

    problems: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.problems


def export(version: Version) -> dict[str, Any]:
    """A version as a document that `json.dumps` takes."""
    return document_of(facts_of(version))


def facts_of(version: Version) -> dict[str, Any]:
    """The facts and trees of a version, as `read` gives them from its document."""
    written = {"version": version.number, "at": version.at.isoformat(), "tags": list(version.tags)}
    facts = written | {name: getattr(version, name) for name in (*_FIELDS, *_TREES) if name not in written}
    # As it is stored, whatever a reader has done to the objects in the state that it was given.
    facts["state"] = version.read_state()
    return facts


def document_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts and trees as a document; the opposite of `read`."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "number": NUMBER,
        **{name: facts[name] for name in _FIELDS},
        **{name: to_json(facts[name]) for name in _TREES},
    }
    document["sum"] = _sum(document)
    return document


def validate(document: Any) -> Validation:
    """Is this a snapshot that can be imported? Never raises."""
    try:
        problems = [
            problem if len(problem) <= _LINE else problem[:_LINE] + "…" for problem in _problems(document)
        ]
        return Validation(tuple(problems[:_MOST]))
    except Exception as error:
        return Validation((f"cannot be looked at: {type(error).__name__}",))


def read(document: Any) -> dict[str, Any]:
    """The facts and trees of a document, or `InvalidSnapshot` with all that is wrong with it."""
    found = validate(document)
    if not found:
        raise InvalidSnapshot(
            f"this snapshot cannot be imported: {'; '.join(found.problems)}", problems=found.problems
        )
    document = _parsed(document)
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
    problems += [f"{name!r} is no field of a snapshot" for name in document if name not in known]
    for name, kinds in _FIELDS.items():
        if name in document and type(document[name]) not in kinds:
            problems.append(f"{name} is a {type(document[name]).__name__}")
    if problems:
        return problems
    problems += _facts(document)
    for name in _TREES:
        try:
            from_json(document[name])
        except HoldfastError as error:
            problems.append(f"{name}: {error}")
    if not problems and document["sum"] != _sum(document):
        problems.append("the sum does not fit: the document was changed or cut off")
    return problems


def _facts(document: dict[str, Any]) -> list[str]:
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
    if document["status"] not in STATUSES:
        problems.append(f"status is {document['status']!r}")
    try:
        datetime.fromisoformat(document["at"])
    except ValueError:
        problems.append(f"at is no time: {document['at']!r}")
    return problems


def _sum(document: dict[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "sum"}
    return sha256(
        json.dumps(rest, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
    ).hexdigest()
