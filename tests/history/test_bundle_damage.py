"""Damaged bundles: truncated, with flipped bits, of another format, or compressed too well: refused without effect."""

from __future__ import annotations

import io
import random
import tracemalloc
from pathlib import Path
from typing import Any

import bundle_helpers
import pytest
import zstandard
from bundle_helpers import (
    MAGIC,
    attached,
    bundle,
    changed,
    first,
    frames_of,
    full_bundle,
    hashed,
    refused,
    snapshot,
)
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast, HoldfastError, IncompatibleFormat, InvalidSnapshot
from holdfast.history.bundle.frames import (
    AnyFrame,
    ArtifactFrame,
    AttachmentFrame,
    BlockFrame,
    EndFrame,
    EventFrame,
    MarkFrame,
    PieceFrame,
    RunFrame,
    TimelineFrame,
    VersionFrame,
)
from holdfast.tree.codec import encode, to_bytes

other, small = bundle_helpers.own, bundle_helpers.small


@pytest.fixture(scope="module")
def full() -> bytes:
    return full_bundle()


# Damage


def test_small_bundle_of_these_tests_is_valid_and_has_every_part(other: Holdfast, small: bytes) -> None:
    kinds = {type(frame) for frame in frames_of(small)}
    assert {
        RunFrame,
        TimelineFrame,
        VersionFrame,
        MarkFrame,
        EventFrame,
        AttachmentFrame,
        ArtifactFrame,
        PieceFrame,
        EndFrame,
    } == kinds
    assert any(frame.pruned for frame in frames_of(small) if isinstance(frame, VersionFrame))
    assert changed(small, lambda frames: None) == small
    other.import_run(io.BytesIO(small))
    assert other.verify().ok


def test_small_bundle_truncated_at_any_byte_is_refused(other: Holdfast, small: bytes) -> None:
    for size in range(len(small)):
        with pytest.raises(InvalidSnapshot):
            other.import_run(io.BytesIO(small[:size]))
    refused(other, b"")


@pytest.mark.slow
def test_large_bundle_truncated_at_many_places_is_refused(other: Holdfast, full: bytes) -> None:
    before = snapshot(other)
    for size in random.Random(1).sample(range(len(full)), 100):
        with pytest.raises(InvalidSnapshot):
            other.import_run(io.BytesIO(full[:size]))
        with pytest.raises(InvalidSnapshot):
            other.import_run(io.BytesIO(hashed(full[:size])))
    assert snapshot(other) == before


def test_small_bundle_with_any_flipped_bit_is_refused(other: Holdfast, small: bytes) -> None:
    before = snapshot(other)
    for place in range(len(small)):
        flipped = bytearray(small)
        flipped[place] ^= 1 << (place % 8)
        with pytest.raises((InvalidSnapshot, IncompatibleFormat)):
            other.import_run(io.BytesIO(flipped))
    assert snapshot(other) == before


@pytest.mark.slow
def test_large_bundle_with_flipped_bytes_is_refused(other: Holdfast, full: bytes) -> None:
    chance = random.Random(2)
    before = snapshot(other)
    for _ in range(300):
        flipped = bytearray(full)
        flipped[chance.randrange(len(full))] ^= chance.randint(1, 255)
        with pytest.raises(HoldfastError):
            other.import_run(io.BytesIO(flipped))
    assert snapshot(other) == before


def test_flipped_bytes_with_a_matching_hash_are_refused(other: Holdfast, small: bytes) -> None:
    """A changed stream with a recomputed hash: the checks of the frames must detect it."""
    for place in range(len(MAGIC), len(small) - 32):
        flipped = bytearray(small[:-32])
        flipped[place] ^= 1 << (place % 8)
        try:
            other.import_run(io.BytesIO(hashed(bytes(flipped))))
        except HoldfastError:
            continue
        # The same content in other bytes of the compression.
        assert other.verify().ok
        other.delete("small")
    assert [run.id for run in other.runs()] == ["mine"]


@pytest.mark.parametrize("garbage", [b"\0", b"garbage", b"x" * 100_000])
def test_bundle_with_trailing_bytes_is_refused(other: Holdfast, small: bytes, garbage: bytes) -> None:
    refused(other, small + garbage)
    refused(other, bundle(frames_of(small), after=garbage))
    refused(other, bundle(frames_of(small), after=zstandard.compress(garbage)))


@pytest.mark.parametrize(
    "data", [b"\0" * 100, b"PK\x03\x04" * 50, b'{"format": "holdfast.snapshot"}' * 10, MAGIC]
)
def test_file_of_another_format_is_refused(other: Holdfast, data: bytes) -> None:
    refused(other, data)


def test_bundle_of_a_newer_format_is_refused(other: Holdfast, small: bytes) -> None:
    data = bundle(frames_of(small), magic=b"holdfast.bundle 3\n")
    refused(other, data, "format 3.*upgrade", IncompatibleFormat)
    for magic in (
        b"holdfast.bundle 0\n",
        b"holdfast.bundle -1\n",
        b"holdfast.bundle 1",
        b"holdfast.bundle 01\n",
    ):
        refused(other, bundle(frames_of(small), magic=magic))


# Sizes


def test_frame_of_an_impossible_length_is_refused(other: Holdfast) -> None:
    for size in (0, (64 << 20) + 1, 0xFFFFFFFF):
        packed = zstandard.ZstdCompressor().compress(size.to_bytes(4, "big") + b"x" * 100)
        refused(other, hashed(MAGIC + packed), f"frame of {size} bytes")
    cut = zstandard.ZstdCompressor().compress((64 << 20).to_bytes(4, "big") + b"x" * 100)
    tracemalloc.start()
    refused(other, hashed(MAGIC + cut), "truncated")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def _bomb(small: bytes, kind: type[Any], frame: AnyFrame, count: int) -> bytes:
    frames = frames_of(small)
    at = first(frames, kind)
    return bundle([*frames[:at], *[frame] * count, *frames[at:]], level=19)


@pytest.mark.slow
def test_bundle_whose_events_exceed_the_memory_limit_is_refused(other: Holdfast, small: bytes) -> None:
    event = EventFrame("x", 0, encode({"k": "\0" * (1 << 20)}))
    data = _bomb(small, EventFrame, event, 400)
    assert len(data) < 200_000
    tracemalloc.start()
    refused(other, data, "times its size")
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [True, False])
def test_attachments_of_a_bundle_are_not_held_in_memory(tmp_path: Path, small: bytes, is_whole: bool) -> None:
    frames = frames_of(small)
    at = first(frames, ArtifactFrame)
    data = b"\0" + to_bytes(["\0" * (1 << 20)])
    more = [attached("small", "x", f"{number:03}", data) for number in range(100)]
    end = frames[-1]
    assert isinstance(end, EndFrame)
    end = replace(end, attachments=end.attachments + 100) if is_whole else end
    given = bundle([*frames[:at], *more, *frames[at:-1], end], level=19)
    del more
    with holdfast.open(tmp_path / "other.db", durability="memory") as other:
        tracemalloc.start()
        if is_whole:
            other.import_run(io.BytesIO(given))
        else:
            refused(other, given, "some of its parts are missing")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30 << 20
        if is_whole:
            assert len(other.history("small").attachment_names("x")) == 100
            assert other.verify().ok


@pytest.mark.slow
def test_bundle_whose_blocks_exceed_the_memory_limit_is_refused(other: Holdfast, small: bytes) -> None:
    block = b"\0" * (16 << 20)
    frames = frames_of(small)
    at = first(frames, VersionFrame)
    version = replace(frames[at], blocks=100)
    data = bundle([*frames[:at], version, *[BlockFrame(block)] * 100, *frames[at + 1 :]])
    tracemalloc.start()
    refused(other, data, "times its size")
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()


def test_bundle_of_compressed_zeros_is_refused(other: Holdfast) -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    data = MAGIC + b"".join(stream.compress(b"\0" * (1 << 20)) for _ in range(512)) + stream.flush()
    refused(other, hashed(data), "frame of 0 bytes")


def test_bundle_with_a_large_compression_window_is_refused(other: Holdfast, small: bytes) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(b"\0\0\0\1x" + b"y" * 1000) + stream.flush()
    refused(other, hashed(MAGIC + packed), "decompressed")
