"""Blocks: compression with and without the dictionary, and blocks that nobody wrote."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import msgspec
import pytest
import zstandard

from holdfast.errors import IncompatibleFormat
from holdfast.tree.block import MAX_BLOCK, squeeze, unsqueeze
from holdfast.tree.dictionary import WORDS

MESSAGE = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q": "kelp"}'}}
    ],
}


def frame(data: bytes, *, words: bool) -> bytes:
    """Return a block of these bytes, as any other implementation of zstd would write it."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    dictionary = zstandard.ZstdCompressionDict(WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    given: Any = {"dict_data": dictionary} if words else {}
    return bytes([1 + words]) + zstandard.ZstdCompressor(compression_params=parameters, **given).compress(
        data
    )


def test_dictionary_never_changes() -> None:
    assert len(WORDS) == 2867
    assert sha256(WORDS).hexdigest() == "b37a98995c266a89397597be9fcf3aab81ebfa3d95152060f1ec7a8d9ce53ce1"


def test_small_block_of_known_names_takes_half_the_space() -> None:
    block = squeeze([MESSAGE])
    assert block[0] == 2
    assert len(block) * 2 < len(frame(msgspec.msgpack.encode([MESSAGE]), words=False))
    assert unsqueeze(block) == [MESSAGE]


def test_blocks_of_every_size_are_read_as_written() -> None:
    source = random.Random(3)
    markers = set()
    for size in (0, 1, 63, 64, 500, 8_000, 8_300, 70_000):
        nodes = ["".join(source.choices("abcdefgh ", k=size)), source.randbytes(size), {"size": size}]
        block = squeeze(nodes)
        markers.add(block[0])
        assert unsqueeze(block) == nodes
    assert markers == {0, 1, 2}


def test_blocks_of_other_writers_are_read() -> None:
    for words in (False, True):
        assert unsqueeze(frame(msgspec.msgpack.encode([MESSAGE, 1]), words=words)) == [MESSAGE, 1]


def test_damaged_and_oversized_blocks_are_refused() -> None:
    for words in (False, True):
        marker = bytes([1 + words])
        bomb = frame(b"\0" * (MAX_BLOCK + 1), words=words)
        cut = frame(msgspec.msgpack.encode([MESSAGE]), words=words)[:-3]
        for block in (marker, marker + b"garbage", bomb, cut):
            with pytest.raises(IncompatibleFormat):
                unsqueeze(block)
    with pytest.raises(IncompatibleFormat, match="newer"):
        unsqueeze(b"\x03" + b"x" * 80)


def test_threads_share_the_dictionary() -> None:
    def work(number: int) -> bool:
        nodes = [{**MESSAGE, "n": number}] * 3
        return all(unsqueeze(squeeze(nodes)) == nodes for _ in range(200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
