"""A simulated disk that loses power: its possible content afterwards, given the system calls before.

Synced content of a file is kept. Each sector of later writes is kept, lost or torn, in any order. Changes of the names
in a folder since its last sync are kept or lost, in any order, except that changes of one name stay in order.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from disk import Call

SECTOR = 512
#: The share of unsynced writes that reaches the disk; one is chosen per power failure.
_SHARES = (0.0, 0.3, 0.7, 0.95, 1.0)


class _Content:
    """The content of a file: synced, and the writes and truncations since."""

    def __init__(self, *, is_folder: bool = False) -> None:
        self.is_folder = is_folder
        self._synced = bytearray()
        self._pending: list[Call] = []

    def add(self, call: Call) -> None:
        self._pending.append(call)

    def sync(self) -> None:
        for call in self._pending:
            _apply(self._synced, call, 0, len(call.data))
        self._pending = []

    def after_a_cut(self, rng: random.Random, share: float) -> bytes:
        found = bytearray(self._synced)
        for call in self._pending:
            if call.kind == "truncate":
                if rng.random() < share:
                    _apply(found, call, 0, 0)
                continue
            start = 0
            while start < len(call.data):
                end = min(len(call.data), start + SECTOR - (call.offset + start) % SECTOR)
                if rng.random() < share:
                    torn = share < 1 and rng.random() < 0.05
                    _apply(found, call, start, rng.randrange(start, end) if torn else end)
                start = end
        return bytes(found)


class SimulatedDisk:
    """Records system calls; `cut` writes the content after a power failure into a folder."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        #: The names as programs see them, and as they were synced.
        self._names: dict[str, _Content] = {}
        self._synced: dict[str, _Content] = {}
        #: Changes since the last sync: names with their new content, or None for a removed name.
        self._pending: list[dict[str, _Content | None]] = []

    def apply(self, call: Call) -> None:
        """Apply a system call."""
        if call.kind in ("write", "truncate"):
            self._names[call.path].add(call)
        elif call.kind == "sync":
            self._names[call.path].sync()
        elif call.kind == "sync_folder":
            self._sync_folder(call.path)
        elif call.kind in ("create", "mkdir"):
            if not os.path.basename(call.path) or call.path in self._names:
                return
            self._rename({call.path: _Content(is_folder=call.kind == "mkdir")})
        elif call.kind == "delete":
            if call.path in self._names:
                self._rename({call.path: None})
        elif call.kind == "link":
            self._rename({call.other: self._names[call.path]})
        elif call.kind == "rename":
            self._rename({call.other: self._names[call.path], call.path: None})
        else:
            raise AssertionError(call.kind)

    def cut(self, target: Path, rng: random.Random) -> None:
        """Write the content after a power failure into an empty folder."""
        share = rng.choice(_SHARES)
        names = dict(self._synced)
        lost: set[str] = set()
        for change in self._pending:
            if rng.random() < share and not lost & change.keys():
                _change(names, change)
            else:
                lost |= change.keys()
        for path in sorted(names):
            there = target / os.path.relpath(path, self._root)
            if not there.parent.is_dir():
                # Its folder was lost.
                continue
            if names[path].is_folder:
                there.mkdir()
            else:
                there.write_bytes(names[path].after_a_cut(rng, share))

    def _rename(self, change: dict[str, _Content | None]) -> None:
        _change(self._names, change)
        self._pending.append(change)

    def _sync_folder(self, folder: str) -> None:
        rest = []
        for change in self._pending:
            if any(os.path.dirname(path) == folder for path in change):
                _change(self._synced, change)
            else:
                rest.append(change)
        self._pending = rest


def _change(names: dict[str, _Content], change: dict[str, _Content | None]) -> None:
    for path, content in change.items():
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content


def _apply(content: bytearray, call: Call, start: int, end: int) -> None:
    """Apply a truncation, or a part of a write."""
    if call.kind == "truncate":
        del content[call.offset :]
        content.extend(bytes(call.offset - len(content)))
        return
    at = call.offset + start
    content.extend(bytes(max(0, at - len(content))))
    content[at : at + end - start] = call.data[start:end]
