"""How a replay follows the record: which call comes next in each frame, and what to say if another is made.

Invariant: a call that the record contradicts raises before anything runs, and ends the execution: no step that is not
recorded begins after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from msgspec import structs

from holdfast.errors import ReplayDiverged
from holdfast.runtime.expected import Calls, Path, stored_path

if TYPE_CHECKING:
    from holdfast.runtime.record import Record
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.session import Session
    from holdfast.runtime.waits import Wait

#: Recorded steps that a message names.
_NAMED = 5
#: The name of a call of `parallel`, in whose address those of its branches lie.
PARALLEL = "parallel"


class _Place(NamedTuple):
    """A call that the record has."""

    address: str
    #: The version that has recorded it, and the name of its step; None if it waits.
    number: int | None
    step: str | None

    @property
    def where(self) -> str:
        """Where it is recorded."""
        return "waits" if self.number is None else f"version {self.number}"


class Replay:
    """What one execution has still to replay."""

    __slots__ = ("_session", "diverged", "frames", "paths")

    def __init__(self, session: Session, record: Record, values: Mapping[str, Any]) -> None:
        self._session = session
        #: The recorded calls that were not made yet, by the address of their frame.
        waits = session.facts.waits
        self.frames: dict[str, Calls] = record.expected(values, waits) if record.steps or waits else {}
        for wait in waits:
            calls = self.frames.get(wait.address.rpartition("/")[0])
            if calls is None or wait.address not in calls.left:
                self._note_wait(wait.address)
        #: The paths of calls that were made and are not recorded yet, by address.
        self.paths: dict[str, Path] = {}
        #: Why the workflow's code does not fit the record, once that is known.
        self.diverged: ReplayDiverged | None = None

    def _note_wait(self, address: str) -> None:
        """A call waits: the code of its frame, and of those around it, was beyond whatever it had called before."""
        while address:
            frame = address.rpartition("/")[0]
            self.frames.setdefault(frame, Calls()).unordered.add(address)
            address = frame

    def _is_lenient(self) -> bool:
        """Are differences collected rather than refused?"""
        rehearsal = self._session.rehearsal
        return rehearsal is not None and not rehearsal.strict

    def described(self, address: str) -> dict[str, Any]:
        """The path of a call, as part of the detail of its version."""
        path = self.paths.get(address)
        return {} if path is None else {"call": stored_path(path)}

    def placed(self, wait: Wait) -> Wait:
        """A wait with the place of its call, so that a replay comes to it before anything new."""
        path = self.paths.get(wait.address, ())
        return structs.replace(wait, call=list(path), head=self._session.head.version.number, idle=False)

    def is_left(self, address: str) -> bool:
        """Is a call recorded, or does it wait, that this execution has not made?"""
        calls = self.frames.get(address.rpartition("/")[0])
        return calls is not None and (address in calls.left or address in calls.unordered)

    def is_recorded(self, address: str) -> bool:
        """Is there a record of a call at an address: that it ended, waits, or has called others?"""
        session = self._session
        record = session.record
        return (
            address in record.steps
            or address in record.begun
            or session.facts.wait_at(address) is not None
            or session.has_value(address)
        )

    def expect(self, frame: Frame, address: str, index: int, group: str) -> None:
        """A call is made in a frame: refuse it if the record has another in its place. Calls whose addresses begin with
        `group` differ by their keys only, and may be made in any order."""
        calls = frame.expected
        if calls is None or self._is_lenient():
            return
        first = calls.replaced(address, index, group)
        if first is not None:
            self._refuse(frame, [first], address)
        if address not in self._session.record.steps:
            for branch in frame.ended_branches():
                self.refuse_leftover(branch)

    def is_live(self, frame: Frame) -> bool:
        """Has the code of a frame come to where the record ends? Not in a branch of code that was beyond it."""
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
        """The code of a frame has returned: refuse that if it left out calls that are recorded."""
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
                f"the code of run {self._session.id!r} has changed: when it was recorded, it cancelled {address!r} "
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
        """End the execution because the workflow's code does not fit the record."""
        error.details.setdefault("run", self._session.id)
        self.diverged = self.diverged or error
        self._session.halt("diverged", frame)

    def refuse_child(self, error: ReplayDiverged, frame: Frame) -> NoReturn:
        """End the execution because the code of a child run does not fit the child's record."""
        of = error.details.get("of", error.details["run"])
        details = {**error.details, "run": self._session.id, "of": of}
        again = ReplayDiverged(str(error), **details)
        again.__cause__ = error
        self.refuse(again, frame)

    def _refuse(self, frame: Frame, expected: Sequence[str], called: str | None) -> NoReturn:
        run = self._session.id
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

    def _places(self, address: str) -> list[_Place]:
        """What is known of a call: its own record, or those of the calls in it, the first one first; or its wait."""
        session = self._session
        steps = session.record.steps
        if address in steps:
            entry = steps[address]
            return [_Place(address, entry.number, entry.version.step)]
        within = f"{address}/"
        found = [
            _Place(entry.address, entry.number, entry.version.step)
            for entry in steps.values()
            if entry.address.startswith(within)
        ]
        waits = [
            _Place(wait.address, None, None)
            for wait in session.facts.waits
            if wait.address == address or wait.address.startswith(within)
        ]
        return [*sorted(found, key=lambda place: place.number or 0), *waits]


def _name_in(address: str) -> str:
    """Return the name of the step that an address is of."""
    return address.rpartition("/")[2].partition("[")[0].partition("#")[0]
