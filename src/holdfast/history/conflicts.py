"""Who wrote both sides of a `MergeConflict`.

Invariant: nothing here fails; a version that cannot be read any more is left out of the message.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import HoldfastError, MergeConflict
from holdfast.history.commit import Facts
from holdfast.history.reader import Head, Reader
from holdfast.model.records import VersionRecord
from holdfast.tree import path as paths
from holdfast.tree.codec import decode
from holdfast.tree.edits import MISSING
from holdfast.tree.fold import same

#: Versions that are searched for the one that changed a place.
_SEARCHED = 500


def explained(
    error: MergeConflict, reader: Reader, base: int | None, head: Head, facts: Facts
) -> MergeConflict:
    """Return the conflict with the step that is refused, and the version and step that changed the place before it."""
    details: dict[str, Any] = dict(error.details)
    mine = facts.more.get("address") or facts.step
    ours = f"step {mine!r}" if mine else "this change"
    if base is not None and base > 0:
        ours += f", made from version {base},"
        details["base_version"] = base
    if mine:
        details["step"] = mine
    theirs = "the head"
    other = None
    writer = _writer(reader, head.version, details.get("path", ""))
    if writer is not None:
        details["version"] = writer.number
        theirs = f"version {writer.number}"
        other = (decode(writer.detail).get("address") if writer.detail else None) or writer.step
        if other:
            details["other_step"] = other
            theirs += f" (step {other!r})"
    details["run"] = reader.run.id
    if mine and other and other.startswith(f"{mine}/"):
        return MergeConflict(_with_own_step(details), **details)
    return MergeConflict(f"{ours} conflicts with {theirs} of run {reader.run.id!r}: {error}", **details)


def _with_own_step(details: dict[str, Any]) -> str:
    """Explain the conflict of a step with one that it called: nothing was concurrent."""
    where = details["path"] or "the root"
    return (
        f"step {details['step']!r} changed {where} in the state that it had taken before it called "
        f"{details['other_step']!r}, which does not see uncommitted changes and changed {where}, too (version "
        f"{details['version']} of run {details['run']!r}): call that step first and take holdfast.state() after it, "
        "pass it values as arguments, or declare how the two changes are merged, merge={…} on the workflow"
    )


def _writer(reader: Reader, newest: VersionRecord, path: str) -> VersionRecord | None:
    """The newest version up to this one that changed the place at a path."""
    try:
        segments = paths.parse(path)
        version = newest
        now = _value(reader, version.number, segments)
        for _ in range(_SEARCHED):
            if version.parent < 1:
                return version
            before = _value(reader, version.parent, segments)
            if not same(before, now):
                return version
            version = reader.record(version.parent)
    except HoldfastError:
        return None
    return None


def _value(reader: Reader, number: int, segments: list[Any]) -> Any:
    value = reader.state(number)
    for segment in segments:
        try:
            value = value[segment]
        except (LookupError, TypeError):
            return MISSING
    return value
