"""The recorded calls that a replay expects, by frame and in call order.

Each version of a step records its *call path*: the index of the call within its frame, after those of the calls around
it. So a replay knows which call comes next in every frame, also where calls were interrupted while others, made later,
had ended.

Invariant: a call is expected only if the same code, run again on the same record, makes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.record import Entry
    from holdfast.runtime.waits import Wait

#: The path of a call: its index within its frame, after the indexes of the calls around it.
Path = tuple[int, ...]

#: The name of a call of `sleep`, which is recorded as a value: when it ended, and the index of the call.
SLEEP = "sleep"
#: Addresses of compensations, which no workflow calls.
_UNDO = "[undo]/"


class Calls:
    """The recorded calls of one frame that a replay has not made yet."""

    __slots__ = ("_next", "_order", "branches", "left", "sleeps", "unordered")

    def __init__(self) -> None:
        #: Index by address.
        self.left: dict[str, int] = {}
        #: The same of calls of `sleep`, which code may leave out.
        self.sleeps: dict[str, int] = {}
        #: Addresses that were recorded without a call path.
        self.unordered: set[str] = set()
        #: The highest number of a branch of this frame in which a step was recorded.
        self.branches = 0
        self._order: Sequence[str] = ()
        self._next = 0

    def __bool__(self) -> bool:
        return bool(self.left)

    def sort(self) -> None:
        """Fix the order of calls, once all are known."""
        self._order = sorted(self.left, key=self.left.__getitem__)

    @property
    def first(self) -> str:
        """The address of the call that comes next. There must be one."""
        while self._order[self._next] not in self.left:
            self._next += 1
        return self._order[self._next]

    def all(self) -> list[str]:
        """The addresses that are left, in call order."""
        return [address for address in self._order[self._next :] if address in self.left]

    def is_next(self, address: str) -> bool:
        """Note a call that is being made, if it is the next of the record."""
        order, place = self._order, self._next
        if place == len(order) or order[place] != address or address not in self.left:
            return False
        self._next = place + 1
        del self.left[address]
        return True

    def replaced(self, address: str, index: int, group: str) -> str | None:
        """Note a call that is being made; return the recorded address that was expected instead, if any.

        Recorded calls that share the prefix `group` differ by their keys, and may be made in any order. A call that is
        not recorded is made after those that are: code with other keys does not fit the record."""
        left = self.left
        self.unordered.discard(address)
        self.sleeps.pop(address, None)
        if address in left:
            first = self.first
            del left[address]
            return None if first == address or (group and first.startswith(group)) else first
        if not left:
            return None
        first = self.first
        place = left[first]
        return first if place - sum(each < place for each in self.sleeps.values()) <= index else None


def calls_by_frame(
    entries: Iterable[Entry],
    sleeps: Mapping[str, int],
    is_void: Callable[[Entry], bool] | None = None,
    waits: Iterable[Wait] = (),
) -> dict[str, Calls]:
    """Return the calls that a replay expects, by the address of their frame. `sleeps` holds the index of each `sleep`
    by its address; `waits` are calls that wait, of which the path is known."""
    frames: dict[str, Calls] = {}

    def calls_of(frame: str) -> Calls:
        found = frames.get(frame)
        if found is None:
            found = frames[frame] = Calls()
        return found

    def expect_around(frame: str, path: Sequence[int]) -> None:
        """The calls around a call in a frame are expected as well, recorded or not."""
        around, depth = frame, len(path) - 2
        while around:
            frame, _, local = around.rpartition("/")
            if local.startswith("["):
                calls = calls_of(frame)
                calls.branches = max(calls.branches, int(local[1:-1]))
            elif depth >= 0:
                calls_of(frame).left.setdefault(around, path[depth])
                depth -= 1
            around = frame

    for entry in entries:
        address = entry.address
        if address.startswith(_UNDO) or (is_void is not None and is_void(entry)):
            continue
        frame = address.rpartition("/")[0]
        calls = calls_of(frame)
        path = entry.detail.get("call")
        if path is None:
            calls.unordered.add(address)
            continue
        if isinstance(path, int):
            calls.left[address] = path
            path = (path,)
        else:
            calls.left[address] = path[-1]
        if frame:
            expect_around(frame, path)
    for wait in waits:
        frame = wait.address.rpartition("/")[0]
        calls_of(frame).left[wait.address] = wait.call[-1]
        expect_around(frame, wait.call)
    for address, index in sleeps.items():
        calls_of(address.rpartition("/")[0]).sleeps[address] = index
    for calls in frames.values():
        calls.sort()
    return frames


def slept(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the indexes of the calls of `sleep` among recorded values, by address."""
    return {
        address: value[1]
        for address, value in values.items()
        if type(value) is list and address.rpartition("/")[2].partition("#")[0] == SLEEP
    }


class Void:
    """Tells which recorded steps a replay need not call: those that followed a failure which counts no more, and those
    that a failed attempt at a step called."""

    def __init__(self, spans: Iterable[tuple[int, float]], failed: Mapping[str, int]) -> None:
        self._starts: list[int] = []
        self._ends: list[float] = []
        for start, end in sorted(spans):
            if self._ends and start < self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
        #: By the address of a step: the head when an attempt at it failed last.
        self._failed = failed

    def __call__(self, entry: Entry) -> bool:
        return self.covers(entry.address, entry.number)

    def covers(self, address: str, number: int) -> bool:
        """Is this so of a call at an address that a version of this number has recorded?"""
        place = bisect_right(self._starts, number - 1) - 1
        if place >= 0 and number < self._ends[place]:
            return True
        around = address if self._failed else ""
        while "/" in around:
            around = around.rpartition("/")[0]
            if number <= self._failed.get(around, number - 1):
                return True
        return False


def stored_path(path: Path) -> Any:
    """Return a path as a version's detail holds it."""
    return path[0] if len(path) == 1 else list(path)
