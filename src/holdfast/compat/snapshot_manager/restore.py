"""Restore of a snapshot into an object.

Values that could be stored are restored as copies. Other values are represented in the snapshot by a text or
a dict: an error is restored as an error; an object gets its fields back if the store has an object of its
class at that place; for the rest, and for redacted secrets, the store keeps its current value.

Invariant: only the setters and copy methods of the store run; the store shares no object with the snapshot;
nothing in the store changes except its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any

import msgspec

from holdfast.compat.snapshot_manager.record import MISSING, Snapshot, Target
from holdfast.execution.exception_codec import describe, revive
from holdfast.tree import path as paths
from holdfast.tree.codec import REDACTED
from holdfast.tree.frozen import thaw
from holdfast.tree.sanitize import TYPE_KEY, public_fields, sanitize

#: Value of `TYPE_KEY` in the dict for an error whose class is not registered. No class has this name.
_ERROR = "exception"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a restore."""

    #: The fields that were set.
    fields: tuple[Any, ...]
    #: Fields that are not in the snapshot and were kept.
    kept: tuple[Any, ...] = ()
    #: Fields that are not in the snapshot and were removed.
    removed: tuple[Any, ...] = ()
    #: Paths of values that could not be stored and are missing in the store: a text or a dict replaces them.
    lost: tuple[str, ...] = ()


def storable_fields(holder: Any, fields: dict[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
    """Return the fields of an object in storable form, and the paths of the values that had to be replaced."""

    def instead(value: Any) -> Any:
        """Describe an error whose class is not registered: its message and its traceback."""
        if value is holder:
            return "<cycle to the root>"
        return {TYPE_KEY: _ERROR, **describe(value)} if isinstance(value, BaseException) else NotImplemented

    made, replaced = sanitize(fields, instead=instead)
    return made, replaced


def restore(target: Target, snapshot: Snapshot, *, keep_unknown: bool | None) -> Restored:
    """Write the fields of a snapshot back; all of them, or none."""
    graft = _Graft(snapshot.replaced)
    made = {}
    for name, value in thaw(snapshot.state).items():
        live = target.fields.get(name, MISSING)
        new = graft.value(value, live, (name,))
        if (name,) not in graft.live:
            made[name] = new
    unknown = [name for name in target.fields if name not in snapshot.state]
    keep = not target.is_mapping if keep_unknown is None else keep_unknown
    target.write(made, [] if keep else unknown)
    return Restored(
        fields=tuple(made),
        kept=tuple(unknown) if keep else (),
        removed=() if keep else tuple(unknown),
        lost=tuple(graft.lost),
    )


class _Graft:
    """Replacement of values that a snapshot could not hold by the store's current values."""

    def __init__(self, replaced: tuple[str, ...]) -> None:
        self._replaced = frozenset(replaced)
        self.lost: list[str] = []
        #: Paths where the store keeps its current value.
        self.live: set[tuple[Any, ...]] = set()

    def value(self, value: Any, live: Any, path: tuple[Any, ...]) -> Any:
        kind = type(value)
        if kind is str and value == REDACTED:
            return self._instead(value, live, path)
        if self._replaced and paths.show(path) in self._replaced:
            return self._instead(value, live, path)
        if kind is dict:
            within = live if isinstance(live, Mapping) else {}
            return {key: self.value(item, _entry(within, key), (*path, key)) for key, item in value.items()}
        if kind is list or kind is tuple:
            beside = live if type(live) is kind else ()
            items = [
                self.value(item, beside[index] if index < len(beside) else MISSING, (*path, index))
                for index, item in enumerate(value)
            ]
            return items if kind is list else tuple(items)
        if self._is_above(path):
            # A new object of a registered class that contains a value that could not be stored.
            with suppress(Exception):
                self._fields(value, public_fields(value, kind) or {}, live, path)
        return value

    def _instead(self, value: Any, live: Any, path: tuple[Any, ...]) -> Any:
        """Return the value to use for a text or a dict that represents something else."""
        if type(value) is dict and TYPE_KEY in value:
            fields = {name: item for name, item in value.items() if name != TYPE_KEY}
            if value[TYPE_KEY] == _ERROR:
                return revive(fields)
            if live is not MISSING and _name(type(live)) == value[TYPE_KEY]:
                with suppress(Exception):
                    made = copy(live)
                    if made is not live:
                        self._fields(made, fields, live, path)
                        return made
        if live is MISSING:
            self.lost.append(paths.show(path))
            return value
        self.live.add(path)
        return live

    def _fields(self, made: Any, fields: dict[str, Any], live: Any, path: tuple[Any, ...]) -> None:
        """Set the fields of an object that is not referenced elsewhere yet."""
        beside = {} if live is MISSING else public_fields(live, type(live)) or {}
        for name, item in fields.items():
            new = self.value(item, beside.get(name, MISSING), (*path, name))
            object.__setattr__(made, name, new)

    def _is_above(self, path: tuple[Any, ...]) -> bool:
        if not self._replaced:
            return False
        start = paths.show(path)
        return any(each.startswith((f"{start}.", f"{start}[")) for each in self._replaced)


def _entry(within: Mapping[Any, Any], key: Any) -> Any:
    return within.get(key, MISSING)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
