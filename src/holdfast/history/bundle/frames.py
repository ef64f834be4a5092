"""The bytes of a bundle: a line with the format, a compressed stream of frames, a hash over all of it.

    holdfast.bundle 2\\n
    zstd( length of frame (4 bytes, big-endian), frame in msgpack; … )
    SHA-256 of every byte before (32 bytes)

A frame is an array whose first item names its type. Types and limits of all fields are checked as it is read;
`checks` compares frames with each other.

Invariant: reading allocates no more than a frame at a time, whatever the bytes claim, and ends without an error only if
every byte matches the hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Any, BinaryIO, TypeVar, cast

import msgspec
import zstandard
from msgspec import Meta

from holdfast.errors import IncompatibleFormat, InvalidSnapshot, UnsupportedValue
from holdfast.model.names import MAX_ATTACHMENT_KEY, MAX_KEY
from holdfast.model.records import (
    KINDS,
    STORED_STATUSES,
    EventRecord,
    current_kind,
    current_status,
    stored_status,
)
from holdfast.tree.artifact import PIECE
from holdfast.tree.block import MAX_BLOCK

FORMAT = "holdfast.bundle"
#: Format 1 has neither keys of versions nor attachments.
NUMBER = 2

_MAGIC = re.compile(rb"holdfast\.bundle ([1-9][0-9]{0,8})\n")
_LONGEST_MAGIC = 32
_SUM = 32
#: The largest compression window that `BundleWriter` uses.
_WINDOW = 1 << 23
#: Frames held in memory may take this many bytes, plus this many times the bytes that were read.
_FREE = 64 << 20
_RATIO = 100

# References have 32 bits, which limits the distance between version numbers.
Number = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
TimelineNumber = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
#: Microseconds since 1970, in the range of datetime.
Time = Annotated[int, Meta(ge=-62_135_596_800_000_000, le=253_402_300_799_999_999)]
Text = Annotated[str, Meta(max_length=100_000)]
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]
AttachmentKey = Annotated[str, Meta(min_length=1, max_length=MAX_ATTACHMENT_KEY)]
Kind = Annotated[str, Meta(pattern=rf"^({'|'.join(KINDS)})\Z")]
Status = Annotated[str, Meta(pattern=rf"^({'|'.join(STORED_STATUSES)})\Z")]
Link = Annotated[bytes, Meta(min_length=8, max_length=8)]
Hash = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class BundleFrame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One entry of a bundle."""


class RunFrame(BundleFrame, frozen=True, tag="run"):
    """The run itself; the first frame."""

    id: str
    workflow: Text | None
    status: Status
    created: Time
    updated: Time
    head: Number
    last: Number
    timeline: TimelineNumber
    epoch: Count
    step: Text | None
    due: Time | None = None
    detail: bytes = b""


class TimelineFrame(BundleFrame, frozen=True, tag="timeline"):
    number: TimelineNumber
    parent: Number
    at: Time
    reason: Text | None
    actor: Text | None


class VersionFrame(BundleFrame, frozen=True, tag="version"):
    """A version, or the stub of a pruned one. Its further blocks follow it."""

    number: Number
    parent: Number
    timeline: TimelineNumber
    kind: Kind
    status: Status
    at: Time
    steps: Count
    step: Text | None
    detail: bytes
    prev: Link
    pack_hash: Hash
    hash: Hash
    size: Count
    pruned: bool
    pack: bytes
    #: How many further blocks follow.
    blocks: Count
    #: The artifacts that it refers to, in order.
    holds: list[Digest]
    key: Key | None = None


class BlockFrame(BundleFrame, frozen=True, tag="block"):
    data: bytes


class MarkFrame(BundleFrame, frozen=True, tag="mark"):
    number: Number
    name: str
    at: Time


class EventFrame(BundleFrame, frozen=True, tag="event"):
    kind: Text
    at: Time
    data: bytes


class AttachmentFrame(BundleFrame, frozen=True, tag="attachment"):
    key: AttachmentKey
    name: Key
    at: Time
    data: bytes
    hash: Hash


class ArtifactFrame(BundleFrame, frozen=True, tag="artifact"):
    """A large value. Its content follows in pieces."""

    digest: Digest
    size: Count


class PieceFrame(BundleFrame, frozen=True, tag="piece"):
    data: Annotated[bytes, Meta(min_length=1, max_length=PIECE)]


class EndFrame(BundleFrame, frozen=True, tag="end"):
    """The last frame: the numbers of frames."""

    timelines: Count
    versions: Count
    marks: Count
    events: Count
    artifacts: Count
    attachments: Count = 0


AnyFrame = (
    RunFrame
    | TimelineFrame
    | VersionFrame
    | BlockFrame
    | MarkFrame
    | EventFrame
    | AttachmentFrame
    | ArtifactFrame
    | PieceFrame
    | EndFrame
)

#: The order of frames; blocks follow their version directly.
_RANKS: dict[type, int] = {
    RunFrame: 0,
    TimelineFrame: 1,
    VersionFrame: 2,
    MarkFrame: 3,
    EventFrame: 4,
    AttachmentFrame: 5,
    ArtifactFrame: 6,
    PieceFrame: 6,
    EndFrame: 7,
}
_LAST = _RANKS[EndFrame]

S = TypeVar("S", bound=msgspec.Struct)

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def to_frame(kind: type[S], record: msgspec.Struct, **more: Any) -> S:
    """Return a frame with the fields of a record."""
    fields = {name: getattr(record, name) for name in kind.__struct_fields__ if name not in more}
    if "status" in fields:
        fields["status"] = stored_status(fields["status"])
    return kind(**fields, **more)


def to_record(kind: type[S], frame: msgspec.Struct, **more: Any) -> S:
    """Return a record with the fields that a frame has, and more."""
    names = (name for name in frame.__struct_fields__ if name in kind.__struct_fields__)
    fields = {name: getattr(frame, name) for name in names}
    if "status" in fields:
        fields["status"] = current_status(fields["status"])
    if kind is EventRecord:
        fields["kind"] = current_kind(fields["kind"])
    return kind(**{**fields, **more})


class BundleWriter:
    """Writes a bundle."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hashed = sha256()
        self._stream = zstandard.ZstdCompressor(level=3).compressobj()
        self._put(f"{FORMAT} {NUMBER}\n".encode())

    def write(self, frame: AnyFrame) -> None:
        """Add a frame."""
        data = _encode(frame)
        if len(data) > MAX_BLOCK:
            raise UnsupportedValue(
                f"{len(data)} bytes in one piece cannot be exported; the limit is {MAX_BLOCK}"
            )
        self._put(self._stream.compress(len(data).to_bytes(4, "big") + data))

    def close(self) -> None:
        """Write buffered data and the hash."""
        self._put(self._stream.flush())
        self._put(self._hashed.digest())

    def _put(self, data: bytes) -> None:
        self._hashed.update(data)
        rest = memoryview(data)
        while rest:
            # A raw file may write a part only; others return None or the whole length.
            written = self._file.write(rest)
            rest = rest[len(rest) if written is None else written :]


class BundleReader:
    """Reads a bundle from the current position of a seekable file to its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = file.tell()
        self._end = file.seek(0, os.SEEK_END) - _SUM
        self._magic = self._magic_length()
        file.seek(max(self._end, self._start))
        self._sum = file.read(_SUM)

    def frames(self) -> Iterator[AnyFrame]:
        """Yield all frames; raise an error after the last one if the bytes do not match the hash."""
        raw = _HashedSection(self._file, self._start, self._end)
        raw.read(self._magic)
        # Across frames: no bytes between the first compressed stream and the hash may be skipped.
        stream = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
            cast(BinaryIO, raw), read_size=PIECE, read_across_frames=True, closefd=False
        )
        guard = _MemoryGuard()
        while head := _take(stream, 4):
            size = int.from_bytes(head, "big")
            if len(head) < 4 or not 0 < size <= MAX_BLOCK:
                raise InvalidSnapshot(f"it holds a frame of {size} bytes")
            data = _take(stream, size)
            if len(data) < size:
                raise InvalidSnapshot("it is truncated")
            frame = _decoded(data)
            guard.add(frame, size, raw.at - self._start)
            yield frame
        if raw.digest() != self._sum:
            raise InvalidSnapshot("its bytes do not match its SHA-256")

    def entries(self) -> Iterator[tuple[AnyFrame, list[bytes]]]:
        """Yield the frames, which must be in order, versions together with their blocks."""
        frames = self.frames()
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
            raise InvalidSnapshot("it is truncated")

    def _magic_length(self) -> int:
        """Return the length of the first line; `InvalidSnapshot` if it is not that of a bundle."""
        self._file.seek(self._start)
        match = _MAGIC.match(self._file.read(_LONGEST_MAGIC))
        if match is None:
            raise InvalidSnapshot("it does not start like a file that export_run wrote")
        number = int(match[1])
        if number > NUMBER:
            raise IncompatibleFormat(
                f"this bundle has format {number}, this Holdfast knows up to {NUMBER}: upgrade Holdfast",
                format=number,
            )
        return match.end()


class _HashedSection:
    """Part of a file, hashed as it is read. It keeps its own position, so that several can share the file."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file = file
        self.at = start
        self._end = end
        self._hashed = sha256()

    def read(self, size: int) -> bytes:
        self._file.seek(self.at)
        data = self._file.read(max(0, min(size, self._end - self.at)))
        self.at += len(data)
        self._hashed.update(data)
        return data

    def digest(self) -> bytes:
        """Return the hash of the whole section."""
        while self.read(PIECE):
            pass
        return self._hashed.digest()


class _MemoryGuard:
    """Limits the memory of a small bundle that unpacks to a large one. Versions, attachments and artifacts are
    streamed; blocks are held until the next version."""

    def __init__(self) -> None:
        self._rows = 0
        self._blocks = 0

    def add(self, frame: AnyFrame, size: int, consumed: int) -> None:
        if isinstance(frame, VersionFrame):
            self._blocks = 0
        elif isinstance(frame, BlockFrame):
            self._blocks += size
        elif isinstance(frame, TimelineFrame | MarkFrame | EventFrame):
            self._rows += size
        if self._rows + self._blocks > _FREE + _RATIO * consumed:
            raise InvalidSnapshot(f"it unpacks to more than {_RATIO} times its size")


def _take(stream: Any, size: int) -> bytes:
    """Read up to `size` bytes of a stream; memory is allocated as they arrive."""
    parts = []
    while size:
        try:
            part = stream.read(min(size, PIECE))
        except zstandard.ZstdError as error:
            raise InvalidSnapshot(f"it cannot be decompressed ({error})") from error
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _decoded(data: bytes) -> AnyFrame:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidSnapshot(f"it holds an invalid frame ({error})") from error
