"""The keys of a state that a version records, so that a list of versions shows them without reading a state.

A version records the first keys of its state (`keys` in its detail) if they differ from those of the version before it,
and at the latest after `LOOK_BACK` versions.

Invariant: recording keys costs the same for a state of any size.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from holdfast.history.reader import Head
from holdfast.model.names import short
from holdfast.tree.frozen import DICTS

#: Versions after which the keys are recorded again.
LOOK_BACK = 32
#: Keys that are recorded, and the characters of all and of one of them.
_MAX_KEYS = 32
_MAX_TEXT = 1000
_MAX_KEY = 100


def recorded_keys(root: Any, head: Head | None, number: int) -> list[Any] | None:
    """Return the keys of a state, and how many there are, for the detail of the version `number` that follows `head`;
    None if the version need not record them, and None for the keys if only their number has changed."""
    before = None
    if head is not None and number % LOOK_BACK and head.version.number == number - 1:
        before = head
    if type(root) not in DICTS:
        return None if before is not None and type(before.root) not in DICTS else [[], 0]
    if before is not None and type(before.root) in DICTS and _begin_alike(root, before.root):
        return None if len(root) == len(before.root) else [None, len(root)]
    found, room = [], _MAX_TEXT
    for key in islice(root, _MAX_KEYS):
        text = _text_of(key)
        room -= len(text)
        if room < 0:
            break
        found.append(text)
    return [found, len(root)]


def keys_after(recorded: Any, before: Any) -> Any:
    """Return the keys and their number of a version that has `recorded` some in its detail, or None; `before` are those
    of the version before it, None if they are not known."""
    if recorded is None:
        return before
    if recorded[0] is None:
        return None if before is None else [before[0], recorded[1]]
    return recorded


def _begin_alike(one: Any, other: Any) -> bool:
    return list(islice(one, _MAX_KEYS)) == list(islice(other, _MAX_KEYS))


def _text_of(key: Any) -> str:
    if type(key) is not str:
        return short(key)
    if len(key) > _MAX_KEY:
        key = f"{key[: _MAX_KEY - 1]}…"
    text: str = key if key.isascii() else key.encode(errors="backslashreplace").decode()
    return text
