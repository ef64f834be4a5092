"""The position of a replay in the log: the call that comes next in each frame, and the error if another is made.

Each version of a step records its *call path*: the index of the call within its frame, after those of the calls around
it. So a replay knows which call comes next in every frame, also where calls were interrupted while later ones had
ended.

Invariant: a call is expected only if the same code, run again on the same log, makes it. A call that contradicts the
log raises before anything runs, and ends the execution: no unrecorded step starts after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from msgspec import structs

from holdfast.errors import ReplayDiverged

if TYPE_CHECKING:
    from holdfast.execution.execution import Execution
    from holdfast.execution.frame import Frame
    from holdfast.execution.replay_log import RecordedStep, ReplayLog
    from holdfast.model.run_detail import Wait

#: The path of a call: its index within its frame, after the indexes of the calls around it.
Path = tuple[int, ...]

#: The name of a call of `sleep`, which is recorded as a value: when it ended, and the index of the call.
SLEEP = "sleep"
#: Addresses of compensations, which no workflow calls.
_UNDO = "[undo]/"
#: Recorded steps that a message names.
_NAMED = 5
#: The name of a call of `parallel`, in whose address those of its branches lie.
PARALLEL = "parallel"


class _RecordedCall(NamedTuple):
    """A call that an earlier execution recorded, or whose wait it stored."""

    address: str
    #: The version that has recorded it, and the name of its step; None if it waits.
    number: int | None
    step: str | None

    @property
    def where(self) -> str:
        """Where it is recorded."""
        return "waits" if self.number is None else f"version {self.number}"


class ReplayCursor:
    """The calls that one execution has still to replay."""

    __slots__ = ("_execution", "diverged", "frames", "paths")

    def __init__(self, execution: Execution, record: ReplayLog, values: Mapping[str, Any]) -> None:
        self._execution = execution
        #: The recorded calls that were not made yet, by the address of their frame.
        waits = execution.detail.waits
        self.frames: dict[str, ExpectedCalls] = (
            record.expected(values, waits) if record.steps or waits else {}
        )
        for wait in waits:
            calls = self.frames.get(wait.address.rpartition("/")[0])
            if calls is None or wait.address not in calls.left:
                self._note_wait(wait.address)
        #: The paths of calls that were made and are not recorded yet, by address.
        self.paths: dict[str, Path] = {}
        #: Why the workflow's code does not fit the record, once that is known.
        self.diverged: ReplayDiverged | None = None

    def _note_wait(self, address: str) -> None:
        """Note a call that waits: the code of its frame, and of those around it, had passed all calls before it."""
        while address:
            frame = address.rpartition("/")[0]
            self.frames.setdefault(frame, ExpectedCalls()).unordered.add(address)
            address = frame

    def _is_lenient(self) -> bool:
        """Return whether differences are collected rather than refused."""
        replay_check = self._execution.replay_check
        return replay_check is not None and not replay_check.strict

    def described(self, address: str) -> dict[str, Any]:
        """Return the path of a call as part of the detail of its version."""
        path = self.paths.get(address)
        return {} if path is None else {"call": stored_path(path)}

    def placed(self, wait: Wait) -> Wait:
        """Return a wait with the path of its call, so that a replay reaches it before anything new."""
        path = self.paths.get(wait.address, ())
        return structs.replace(wait, call=list(path), head=self._execution.head.version.number, idle=False)

    def is_left(self, address: str) -> bool:
        """Return whether a call is recorded, or waits, that this execution has not made."""
        calls = self.frames.get(address.rpartition("/")[0])
        return calls is not None and (address in calls.left or address in calls.unordered)

    def is_recorded(self, address: str) -> bool:
        """Return whether a call at an address has ended, waits, or has called others."""
        execution = self._execution
        record = execution.replay_log
        return (
            address in record.steps
            or address in record.before_inner
            or execution.detail.wait_at(address) is not None
            or execution.has_value(address)
        )

    def expect(self, frame: Frame, address: str, index: int, group: str) -> None:
        """Refuse a call in a frame if the log has another in its place. Calls whose addresses start with `group` differ
        by their keys only, and may be made in any order."""
        calls = frame.expected
        if calls is None or self._is_lenient():
            return
        first = calls.replaced(address, index, group)
        if first is not None:
            self._refuse(frame, [first], address)
        if address not in self._execution.replay_log.steps:
            for branch in frame.ended_branches():
                self.refuse_leftover(branch)

    def is_live(self, frame: Frame) -> bool:
        """Return whether the code of a frame has passed the end of the log. Not in a branch of code that was beyond
        it."""
        calls = frame.expected
        if calls is not None and (calls.left or calls.unordered or calls.branches > frame.tasks):
            return False
        return self._call_beyond(frame.address) is None

    def refuse_beyond(self, frame: Frame, address: str) -> None:
        """Refuse a call that is not recorded in a branch of `parallel`, if the code around it was beyond the block:
        all of its branches had ended then."""
        if PARALLEL in frame.address and not self._is_lenient():
            beyond = self._call_beyond(frame.address, parallel=True)
            if beyond is not None:
                self._refuse(frame, [beyond], address)

    def _call_beyond(self, address: str, *, parallel: bool = False) -> str | None:
        """Return the next recorded call of the code around a branch; None if there is none. With `parallel`, only the
        branches of `parallel` count: tasks may run while the code around them continues."""
        while True:
            outer, _, local = address.rpartition("/")
            if not local.startswith("["):
                return None
            around, _, name = outer.rpartition("/")
            is_block = name.partition("#")[0] == PARALLEL
            address = around if is_block else outer
            calls = self.frames.get(address)
            if calls is not None and calls.left and (is_block or not parallel):
                return calls.first

    def refuse_leftover(self, frame: Frame) -> None:
        """Refuse that the code of a frame has returned without calls that are recorded."""
        calls = frame.expected
        if calls is None or self._is_lenient():
            return
        if calls.left:
            self._refuse(frame, calls.all(), None)
        for branch in frame.ended_branches():
            self.refuse_leftover(branch)
        self.refuse_fewer(frame, frame.address, frame.tasks)

    def refuse_fewer(self, frame: Frame, address: str, made: int) -> None:
        """Refuse that fewer branches are made at an address than have recorded steps."""
        calls = self.frames.get(address)
        if calls is not None and calls.branches > made and not self._is_lenient():
            before = f"{address}/" if address else ""
            missing = [f"{before}[{number}]" for number in range(made + 1, calls.branches + 1)]
            self._refuse(frame, [each for each in missing if self._places(each)], None)

    def recorded_after(self, frame: Frame) -> str | None:
        """Return the next recorded call of a frame, or of the code around it if it is a branch; None if there is
        none."""
        calls = frame.expected
        return calls.first if calls is not None and calls.left else self._call_beyond(frame.address)

    def refuse_abandoned(self, frame: Frame, address: str, seconds: float, after: str) -> NoReturn:
        """Refuse a call that the code had abandoned before it made the call `after`, and does not cancel now."""
        place = self._places(after)[0]
        self.refuse(
            ReplayDiverged(
                f"the code of run {self._execution.id!r} has changed: when it was recorded, it cancelled {address!r} "
                f"after {seconds:.3g} s (asyncio.timeout, wait_for, a cancelled task) and called {place.address!r} "
                f"({place.where}), and now it does not; {address!r} was not run. Bring the old code back, or resume "
                "with changed='accept', which drops what was recorded after it; @step(timeout=…) is a limit that the "
                "record knows",
                address=place.address,
                version=place.number,
                called=address,
                expected=[place.address],
            ),
            frame,
        )

    def refuse(self, error: ReplayDiverged, frame: Frame | None = None) -> NoReturn:
        """End the execution because the workflow's code does not fit the log."""
        error.details.setdefault("run", self._execution.id)
        self.diverged = self.diverged or error
        self._execution.stop.stop("diverged", frame)

    def refuse_child(self, error: ReplayDiverged, frame: Frame) -> NoReturn:
        """End the execution because the code of a child run does not fit the child's log."""
        of = error.details.get("of", error.details["run"])
        details = {**error.details, "run": self._execution.id, "of": of}
        again = ReplayDiverged(str(error), **details)
        again.__cause__ = error
        self.refuse(again, frame)

    def _refuse(self, frame: Frame, expected: Sequence[str], called: str | None) -> NoReturn:
        run = self._execution.id
        first = self._places(expected[0])[0]
        where = f"step {frame.address!r}" if frame.attempt else "the workflow"
        where = f"branch {frame.address!r}" if frame.address and not frame.attempt else where
        if called is None:
            places = [self._places(address)[0] for address in expected[:_NAMED]]
            names = ", ".join(f"{place.address!r} ({place.where})" for place in places)
            names += f" and {len(expected) - _NAMED} more" if len(expected) > _NAMED else ""
            said = f"{where} has ended without calling steps that are recorded: {names}"
            remedy = "keep calling them for old runs: `if not holdfast.patched('some-id'):`"
        else:
            recorded = "the run waits at" if first.number is None else f"version {first.number} has recorded"
            said = f"{where} now calls {called!r} where {recorded} {first.address!r}"
            said += f"; {called!r} was not run"
            remedy = "if code was inserted, put it under `if holdfast.patched('some-id'):`"
            if first.step is not None and first.step != _name_in(called):
                remedy = f"if the step was renamed, give the old name, aliases=[{first.step!r}]; {remedy}"
        if first.number is None:
            drop = "changed='accept', which drops that wait, and an answer to it"
        else:
            drop = (
                f"from_address={first.address!r} or changed='accept', which drop version {first.number} and all after "
                "it from the run's timeline"
            )
        self.refuse(
            ReplayDiverged(
                f"the code of run {run!r} has changed: {said}. Bring the old code back; {remedy}; or resume with "
                f"{drop}",
                address=first.address,
                version=first.number,
                called=called,
                expected=list(expected[:_NAMED]),
            ),
            frame,
        )

    def _places(self, address: str) -> list[_RecordedCall]:
        """Return the record of a call, or those of the calls in it, oldest first; or its wait."""
        execution = self._execution
        steps = execution.replay_log.steps
        if address in steps:
            entry = steps[address]
            return [_RecordedCall(address, entry.number, entry.version.step)]
        within = f"{address}/"
        found = [
            _RecordedCall(entry.address, entry.number, entry.version.step)
            for entry in steps.values()
            if entry.address.startswith(within)
        ]
        waits = [
            _RecordedCall(wait.address, None, None)
            for wait in execution.detail.waits
            if wait.address == address or wait.address.startswith(within)
        ]
        return [*sorted(found, key=lambda place: place.number or 0), *waits]


def _name_in(address: str) -> str:
    """Return the name of the step that an address is of."""
    return address.rpartition("/")[2].partition("[")[0].partition("#")[0]


class ExpectedCalls:
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
    entries: Iterable[RecordedStep],
    sleeps: Mapping[str, int],
    is_void: Callable[[RecordedStep], bool] | None = None,
    waits: Iterable[Wait] = (),
) -> dict[str, ExpectedCalls]:
    """Return the calls that a replay expects, by the address of their frame. `sleeps` holds the index of each `sleep`
    by its address; `waits` are calls that wait, of which the path is known."""
    frames: dict[str, ExpectedCalls] = {}

    def calls_of(frame: str) -> ExpectedCalls:
        found = frames.get(frame)
        if found is None:
            found = frames[frame] = ExpectedCalls()
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


def sleep_indexes(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the indexes of the calls of `sleep` among recorded values, by address."""
    return {
        address: value[1]
        for address, value in values.items()
        if type(value) is list and address.rpartition("/")[2].partition("#")[0] == SLEEP
    }


class VoidedSteps:
    """The recorded steps that a replay need not call: those that followed a failure which was dropped, and those that a
    failed attempt at a step called."""

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

    def __call__(self, entry: RecordedStep) -> bool:
        return self.covers(entry.address, entry.number)

    def covers(self, address: str, number: int) -> bool:
        """Return whether a call at an address, recorded by a version of this number, is void."""
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
