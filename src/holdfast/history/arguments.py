"""The arguments of a recorded call, by the names of the parameters, and how those of two calls differ.

A version stores a call as `[positional, keywords, names]`: `names` are the parameters of the positional values; the
last one is written `*rest` where it takes all further values. Versions from before names were stored have the first
two only.

Invariant: reading never needs the code of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.model.names import short
from holdfast.tree import diff as trees
from holdfast.tree import path as paths
from holdfast.tree.codec import REDACTED, open_box
from holdfast.tree.frozen import Box, FrozenDict, freeze_dict, freeze_list
from holdfast.tree.values import register

#: Differences that a message names.
_NAMED = 3


@dataclass(frozen=True, repr=False)
class NotStored:
    """Placeholder for an argument that cannot be stored, such as an open client."""

    #: Module and name of its type.
    type: str

    def __repr__(self) -> str:
        return f"<{self.type}, not stored>"


register(NotStored, "holdfast.NotStored")


def by_name(call: Any) -> FrozenDict | None:
    """Return the values of a stored call by parameter; None if the version stores no call."""
    if call is None:
        return None
    given, keywords, *names = call
    named = list(names[0]) if names else []
    found: dict[str, Any] = {}
    for index, value in enumerate(given):
        if index >= len(named):
            found[str(index)] = value
        elif named[index].startswith("*"):
            found[named[index]] = freeze_list(list.__getitem__(given, slice(index, None)))
            break
        else:
            found[named[index]] = value
    for name, value in keywords.items():
        # `def f(a, /, **more)` takes two values of one name.
        found[f"**{name}" if name in found else name] = value
    return freeze_dict(found)


def is_incomplete(call: Any) -> bool:
    """Does a stored call have a placeholder for a value that is not stored, or redacted?"""
    given, keywords, *_ = call
    values = [open_box(value) if type(value) is Box else value for value in (*given, *keywords.values())]
    return any(
        isinstance(value, NotStored) or (isinstance(value, str) and value == REDACTED) for value in values
    )


def differences(recorded: Any, now: Any) -> list[tuple[str, str, str]]:
    """Return where two stored calls differ: the place, beginning with the parameter, and both values, shortened."""
    before: Mapping[str, Any] = by_name(recorded) or {}
    after: Mapping[str, Any] = by_name(now) or {}
    return [found for name in dict.fromkeys((*before, *after)) for found in _differences(name, before, after)]


def described(found: list[tuple[str, str, str]]) -> str:
    """Return differences as part of a sentence."""
    shown = [f"{where} was {was}, is {now}" for where, was, now in found[:_NAMED]]
    if len(found) > _NAMED:
        shown.append(f"{len(found) - _NAMED} more differ")
    return "; ".join(shown)


def _differences(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    if name not in after:
        yield name, short(before[name]), "not given"
    elif name not in before:
        yield name, "not given", short(after[name])
    else:
        for change in trees.changes(before[name], after[name]):
            below = paths.show(change.path)
            where = name + (f".{below}" if below and below[0] != "[" else below)
            if change.source is not None:
                yield where, f"at {name}{paths.show(change.source)}", "moved"
            else:
                was, now = _apart(change.old, change.new)
                yield (
                    where,
                    "missing" if change.kind == "added" else was,
                    "missing" if change.kind == "removed" else now,
                )


def _apart(old: Any, new: Any) -> tuple[str, str]:
    """Two values, shortened so that the difference shows: long texts from shortly before the place where they part."""
    if type(old) is type(new) and isinstance(old, str | bytes) and old[:40] == new[:40]:
        same = next(
            (place for place, (one, other) in enumerate(zip(old, new, strict=False)) if one != other),
            min(len(old), len(new)),
        )
        start = max(0, same - 20)
        more = "…" if start else ""
        return f"{more}{short(old[start:])}", f"{more}{short(new[start:])}"
    return short(old), short(new)
