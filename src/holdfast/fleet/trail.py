"""The versions of a run, from its head back, as a search for loops sees them.

Most runs do not loop, and that shows in the newest one or two versions: nothing is read before it is asked for.

Invariant: only the head's ancestors are seen, and none before the version at which a person let the run go on; that
one is there to compare a state with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from holdfast.history.commit import ERROR, RESULT
from holdfast.history.reader import Reader
from holdfast.model.records import VersionRecord
from holdfast.tree.codec import decode
from holdfast.tree.diff import changes

_PAGE = 32


class Tree:
    """A frozen tree that is compared with others."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and not changes(self._root, other._root)

    # What is compared by its content, however large, is no key; mypy knows `object` only with a hash.
    __hash__ = None  # type: ignore[assignment]


class Mark:
    """A version of the trail."""

    def __init__(self, reader: Reader, version: VersionRecord, floor: int) -> None:
        self._reader = reader
        self.number = version.number
        self.at = version.at
        self.step = version.step
        detail = decode(version.detail) if version.detail and version.number > floor else {}
        args = detail.get("args")
        self.call = None if args is None else (version.step, args, "failed" in detail)

    @cached_property
    def result(self) -> tuple[Tree, ...]:
        return tuple(Tree(self._reader.part(self.number, which)) for which in (RESULT, ERROR))

    @cached_property
    def state(self) -> Tree:
        return Tree(self._reader.state(self.number))


class Trail:
    """The versions by their distance from a head."""

    def __init__(self, reader: Reader, head: int, floor: int) -> None:
        self._marks: list[Mark] = []
        self._rest = self._read(reader, head, floor)

    def __call__(self, distance: int) -> Mark | None:
        while distance >= len(self._marks):
            mark = next(self._rest, None)
            if mark is None:
                return None
            self._marks.append(mark)
        return self._marks[distance]

    def _read(self, reader: Reader, head: int, floor: int) -> Iterator[Mark]:
        wanted, before = head, head + 1
        while wanted > 0:
            page = reader.store.versions(reader.run.key, before=before, limit=_PAGE)
            if not page:
                return
            for version in page:
                if version.number == wanted:
                    yield Mark(reader, version, floor)
                    if version.number <= floor:
                        return
                    wanted = version.parent
                elif version.number < wanted:
                    return
            before = min(page[-1].number, wanted + 1)
