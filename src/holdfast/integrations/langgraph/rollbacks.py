"""The rollbacks of a run, and the checkpoints of its subgraphs that they abandoned.

A rollback returns to a version as it was: only the checkpoints that subgraphs had made on the way to that version
count, and those that are made since. The newest rollback decides, because it may undo earlier ones.

LangGraph stores in each checkpoint of a subgraph its caller: the checkpoint of the run above from which the subgraph
was called. The checkpoint counts if the caller is on the line to the target of the newest rollback, and if the run was
not rolled back to the caller in between, which makes the caller's tasks run again. Each checkpoint also stores its
mark: the newest rollback that was known when it was put. If the caller is not stored, ids and marks decide.

Invariant: timelines are append-only, so each is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import NotFound
from holdfast.history.reader import check_timelines
from holdfast.integrations.langgraph.checkpoints import Checkpoints
from holdfast.model.records import RunRecord, TimelineRecord

#: The reasons of timelines that the saver starts, other than those that a rollback starts.
ABANDONED, BRANCH, DELETED, REPLACED = (
    "its later checkpoints were abandoned",
    "another branch of the thread",
    "its checkpoints were deleted",
    "a checkpoint was put again",
)
_OWN_REASONS = {ABANDONED, BRANCH, DELETED, REPLACED}
#: Above every checkpoint's id.
_HIGHEST = chr(0x10FFFF)


class _Segment(NamedTuple):
    """A part of a line: the versions of a timeline up to one, and the checkpoint of that one."""

    timeline: int
    number: int
    checkpoint: str | None


class _Line(NamedTuple):
    """The line to a version, newest segment first."""

    segments: list[_Segment]
    #: Whether it reaches the first version: not if the version at which a timeline started was pruned.
    is_whole: bool


class _Timelines(NamedTuple):
    """The timelines of a run when they were read."""

    #: Key and newest timeline of the run.
    known: tuple[int, int] = (0, 0)
    #: By timeline, the version at which it started.
    starts: Mapping[int, int] = {}
    #: The timelines that rollbacks started, oldest first.
    rollbacks: Sequence[int] = ()
    #: By version, the timeline of the last rollback to it.
    targets: Mapping[int, int] = {}
    is_replaced: bool = False


class RunRollbacks:
    """The rollbacks of one run, as of the last `refresh`."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._history = checkpoints.history
        #: Key of the run, and number of its head; None if it does not exist.
        self.head: tuple[int, int] | None = None
        # Several threads may refresh: each replaces the whole.
        self._read = _Timelines()
        #: Key of the run and newest rollback, and the line to the target of that rollback.
        self._line: tuple[tuple[int, int], _Line] | None = None
        #: By key of the run and version, the checkpoint; None if the version was pruned.
        self._targets: dict[tuple[int, int], str | None] = {}

    def refresh(self) -> None:
        """Read the timelines that were started since the last call; all, if the run was created again."""
        try:
            run = self._history.run_record()
            self.head = (run.key, run.head)
        except NotFound:
            self._read, self.head = _Timelines(), None
            return
        read = self._read if self._read.known[0] == run.key else _Timelines((run.key, 1))
        if run.timeline > read.known[1]:
            after = read.known[1]
            lines = self._history.context.store.timelines(run.key, after=after)
            read = _extended(read, run, check_timelines(run, lines, after=after))
        self._read = read

    @property
    def newest(self) -> int:
        """The timeline of the newest rollback; 0 if there is none."""
        return max(self._read.rollbacks, default=0)

    @property
    def is_replaced(self) -> bool:
        """Whether a checkpoint that was continued has been put again."""
        return self._read.is_replaced

    def last_to(self, number: int) -> int | None:
        """Return the timeline of the last rollback to a version; None if there is none."""
        return self._read.targets.get(number)

    def abandoned(self, checkpoint: str, caller: str | None, mark: int) -> bool:
        """Return whether the newest rollback abandoned a checkpoint of a subgraph."""
        if mark >= self.newest:
            return False
        counts = None if caller is None else self._counts(caller, mark)
        return self._is_later(checkpoint, mark) if counts is None else not counts

    def _counts(self, caller: str, mark: int) -> bool | None:
        """Return whether a checkpoint with this caller and mark counts; None if that cannot be decided, because the
        caller is not stored, or versions were pruned."""
        line = self._read_line()
        versions = self._checkpoints.versions_of(caller)
        # The timeline by which the line leaves the caller.
        left = self.newest
        for segment in line.segments:
            if segment.checkpoint == caller:
                break
            left = segment.timeline
            if any(each.timeline == left and each.number <= segment.number for each in versions):
                break
        else:
            return False if versions and line.is_whole else None
        again = [number for number in self._read.rollbacks if self._target(number) == caller]
        return _last_until(left, again) == _last_until(mark, again)

    def _is_later(self, checkpoint: str, mark: int) -> bool:
        """Return whether a rollback that was not undone went to a checkpoint with a lower id, or the same, after the
        checkpoint was put."""
        line = self._read_line()
        on_line = {self.newest, *(segment.timeline for segment in line.segments)}
        return any(
            number > mark
            and (number in on_line or not line.is_whole)
            and checkpoint >= (self._target(number) or _HIGHEST)
            for number in self._read.rollbacks
        )

    def _read_line(self) -> _Line:
        place = (self._read.known[0], self.newest)
        if self._line is None or self._line[0] != place:
            self._line = (place, self._walk(self._read.starts))
        return self._line[1]

    def _walk(self, starts: Mapping[int, int]) -> _Line:
        segments: list[_Segment] = []
        number: int | None = starts[self.newest]
        while number is not None:
            try:
                version = self._history.at(number)
            except NotFound:
                return _Line(segments, is_whole=False)
            segments.append(_Segment(version.timeline, number, self._checkpoints.id_of(version)))
            number = starts.get(version.timeline)
        return _Line(segments, is_whole=True)

    def _target(self, timeline: int) -> str | None:
        """Return the checkpoint to which a rollback went; None if it was pruned."""
        number = self._read.starts[timeline]
        place = (self._read.known[0], number)
        if place not in self._targets:
            try:
                self._targets[place] = self._checkpoints.id_of(self._history.at(number))
            except NotFound:
                self._targets[place] = None
        return self._targets[place]


def _extended(read: _Timelines, run: RunRecord, lines: Sequence[TimelineRecord]) -> _Timelines:
    """Return the timelines of a run with some that were started since."""
    starts = {line.number: line.parent for line in lines}
    rollbacks = [line.number for line in lines if line.reason not in _OWN_REASONS]
    return _Timelines(
        (run.key, run.timeline),
        {**read.starts, **starts},
        [*read.rollbacks, *rollbacks],
        {**read.targets, **{starts[number]: number for number in rollbacks}},
        read.is_replaced or any(line.reason == REPLACED for line in lines),
    )


def _last_until(limit: int, numbers: Sequence[int]) -> int:
    return max((number for number in numbers if number <= limit), default=0)
