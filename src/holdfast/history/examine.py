"""Examining a bundle from its first frame to its last, before anything of it is written.

Invariant: a bundle that passes is complete, in order, and agrees with itself in every hash, count and name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from holdfast.errors import CorruptVersion, InvalidReference, InvalidSnapshot
from holdfast.history.chain import Chain, Facts
from holdfast.history.frames import (
    AnyFrame,
    ArtifactFrame,
    BlockFrame,
    EndFrame,
    EventFrame,
    MarkFrame,
    PieceFrame,
    RunFrame,
    Source,
    TimelineFrame,
    VersionFrame,
)
from holdfast.model.names import check_run_id, check_tag
from holdfast.model.records import PIN, EventRecord, MarkRecord, TimelineRecord, VersionRecord

#: In what order frames come; blocks come right after their version.
_RANKS: dict[type, int] = {
    RunFrame: 0,
    TimelineFrame: 1,
    VersionFrame: 2,
    MarkFrame: 3,
    EventFrame: 4,
    ArtifactFrame: 5,
    PieceFrame: 5,
    EndFrame: 6,
}
_LAST = _RANKS[EndFrame]

S = TypeVar("S", bound=msgspec.Struct)


def entries(source: Source) -> Iterator[tuple[AnyFrame, list[bytes]]]:
    """The frames of a bundle, which must be in order; versions together with their blocks."""
    frames = source.frames()
    rank = -1
    for frame in frames:
        before, rank = rank, _RANKS.get(type(frame), -1)
        if rank < max(before, 0) or (rank == 0) != (before == -1) or before == _LAST:
            raise InvalidSnapshot("its parts are not in order")
        blocks: list[bytes] = []
        if isinstance(frame, VersionFrame):
            for _ in range(frame.blocks):
                block = next(frames, None)
                if not isinstance(block, BlockFrame):
                    raise InvalidSnapshot(f"version {frame.number} lacks a block")
                blocks.append(block.data)
        yield frame, blocks
    if rank != _LAST:
        raise InvalidSnapshot("it is cut short")


def examine(source: Source, free: Callable[[str], None]) -> Examination:
    """Read a whole bundle, or `InvalidSnapshot` with what is wrong with it. `free` is asked, before all the
    rest is read, to refuse the run's id if it cannot be used."""
    reading = entries(source)
    header = next(reading)[0]
    assert isinstance(header, RunFrame)
    try:
        check_run_id(header.id)
    except InvalidReference as error:
        raise InvalidSnapshot(str(error)) from error
    free(header.id)
    found = Examination(header)
    for frame, blocks in reading:
        found.take(frame, blocks)
    return found


def record(kind: type[S], frame: msgspec.Struct, **more: Any) -> S:
    """A record with those of its fields that a frame has, and more."""
    names = (name for name in frame.__struct_fields__ if name in kind.__struct_fields__)
    return kind(**{**{name: getattr(frame, name) for name in names}, **more})


class Examination:
    """What a bundle was found to hold, but for its versions and the contents of its artifacts."""

    def __init__(self, header: RunFrame) -> None:
        self.chain = Chain(header)
        self.timelines: list[TimelineRecord] = []
        self.marks: list[MarkRecord] = []
        self.events: list[EventRecord] = []
        #: Digests and sizes, in order of the digests.
        self.artifacts: list[tuple[bytes, int]] = []
        self._versions = 0
        self._content = sha256()
        self._missing = 0

    def take(self, frame: AnyFrame, blocks: list[bytes]) -> None:
        """Examine the next frame."""
        if isinstance(frame, PieceFrame):
            self._piece(frame.data)
        elif isinstance(frame, VersionFrame):
            self._version(frame, blocks)
        elif isinstance(frame, TimelineFrame):
            self.timelines.append(record(TimelineRecord, frame))
        elif isinstance(frame, MarkFrame):
            self._mark(frame)
        elif isinstance(frame, EventFrame):
            self._event(frame)
        elif isinstance(frame, ArtifactFrame):
            self._artifact(frame)
        elif isinstance(frame, EndFrame):
            self._end(frame)

    def _version(self, frame: VersionFrame, blocks: list[bytes]) -> None:
        try:
            holds = self.chain.add(record(VersionRecord, frame), blocks)
        except CorruptVersion as error:
            raise InvalidSnapshot(str(error)) from error
        if holds != frame.holds:
            raise InvalidSnapshot(f"version {frame.number} names other artifacts than it refers to")
        self._versions += 1

    def _mark(self, frame: MarkFrame) -> None:
        try:
            name = frame.name if frame.name == PIN else check_tag(frame.name)
        except InvalidReference as error:
            raise InvalidSnapshot(str(error)) from error
        if frame.number not in self.chain.alive:
            raise InvalidSnapshot(f"version {frame.number} is tagged {name!r} but is not there")
        self.marks.append(record(MarkRecord, frame))

    def _event(self, frame: EventFrame) -> None:
        try:
            Facts.read(frame.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidSnapshot(f"an event holds what is no event's data ({error})") from error
        self.events.append(record(EventRecord, frame))

    def _artifact(self, frame: ArtifactFrame) -> None:
        self._whole()
        if self.artifacts and frame.digest <= self.artifacts[-1][0]:
            raise InvalidSnapshot("its artifacts are not in order")
        self.artifacts.append((frame.digest, frame.size))
        self._content = sha256()
        self._missing = frame.size

    def _piece(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing < 0:
            raise InvalidSnapshot("it holds more of an artifact than its size")
        self._content.update(data)

    def _whole(self) -> None:
        if self.artifacts:
            name = self.artifacts[-1][0]
            if self._missing or self._content.digest() != name:
                raise InvalidSnapshot(f"artifact {name.hex()[:12]} does not fit its hash")

    def _end(self, frame: EndFrame) -> None:
        self._whole()
        try:
            self.chain.close(self.timelines)
        except CorruptVersion as error:
            raise InvalidSnapshot(str(error)) from error
        if {name for name, _ in self.artifacts} != self.chain.held:
            raise InvalidSnapshot("its artifacts are not those that its versions refer to")
        if len({(mark.number, mark.name) for mark in self.marks}) != len(self.marks):
            raise InvalidSnapshot("a version has one tag twice")
        counts = (len(self.timelines), self._versions, len(self.marks), len(self.events), len(self.artifacts))
        if counts != msgspec.structs.astuple(frame):
            raise InvalidSnapshot("some of its parts are missing")
