"""Damage to the file: a flipped bit, a zeroed page, a truncated end.

Whatever is damaged: a read gives exactly what was written or raises a typed error; a list of versions gives each as
it was written, or lists it as damaged. `verify` reports a problem where a read would raise, and
damage in one place leaves other versions readable. Lists of tags and events, and searches by tag or step, may lose
entries without an error; `verify` must find that too.

`HOLDFAST_FLIPS` sets how many bits are flipped, one at a time (default 600; `make crash`: 2000): half in headers
of the file, of its pages and of its rows, half anywhere.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from sample_store import RUNS, Readings, build, holds, is_damaged, is_loose, read_all

import holdfast
from holdfast import HoldfastError

pytestmark = pytest.mark.slow

FLIPS = int(os.environ.get("HOLDFAST_FLIPS", "600"))
_PARTS = 2
_PAGE = 4096
#: How pages of tables and indices begin.
_TREES = (0x02, 0x05, 0x0A, 0x0D)
_INNER = (0x02, 0x05)
_VERSIONS = [f"{run}@{number}" for run, numbers in RUNS.items() for number in numbers]


class IntactStore(NamedTuple):
    """An undamaged store: its bytes, and the results of all reads."""

    content: bytes
    sound: dict[str, tuple[str, ...]]
    #: Where a damaged copy is put, in memory where the system has a place for that.
    path: Path


@pytest.fixture(scope="module")
def intact() -> Iterator[IntactStore]:
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        path = Path(folder) / "runs.db"
        build(path)
        content = path.read_bytes()
        readings = read_all(path)
        sound = {name: reading for name, reading in readings.items() if isinstance(reading, tuple)}
        assert len(sound) == len(readings)
        assert 100_000 < len(content) < 300_000
        yield IntactStore(content, sound, path)


class Outcome(NamedTuple):
    """The results of all reads of a damaged store."""

    readings: Readings
    #: Reads that gave something else than the sound store.
    changed: list[str]
    #: Reads that raised an error, or listed versions as damaged.
    raised: list[str]
    #: Versions whose state and facts could be read.
    versions: int


def _outcome(intact: IntactStore, content: bytes) -> Outcome:
    for old in intact.path.parent.iterdir():
        old.unlink()
    intact.path.write_bytes(content)
    readings = read_all(intact.path)
    changed = [
        name
        for name, reading in readings.items()
        if isinstance(reading, tuple) and not holds(reading, intact.sound[name])
    ]
    raised = [
        name
        for name, reading in readings.items()
        if not isinstance(reading, tuple) or any(map(is_damaged, reading))
    ]
    versions = sum(isinstance(readings.get(name), tuple) for name in _VERSIONS)
    return Outcome(readings, changed, raised, versions)


def _verified(intact: IntactStore, content: bytes) -> bool:
    """Return whether the store can be opened and `verify` finds no problem."""
    for old in intact.path.parent.iterdir():
        old.unlink()
    intact.path.write_bytes(content)
    try:
        with holdfast.open(intact.path, timeout=0.2) as hf:
            return hf.verify().ok
    except HoldfastError:
        return False


def flipped(content: bytes, bit: int) -> bytes:
    """Return the content with one bit changed."""
    damaged = bytearray(content)
    damaged[bit >> 3] ^= 1 << (bit & 7)
    return bytes(damaged)


def bits(content: bytes, count: int) -> list[int]:
    """Return bits to flip: half of them in headers, half anywhere."""
    rng = random.Random("flips")
    aimed = list(_headers(content))
    rng.shuffle(aimed)
    chosen = dict.fromkeys(aimed[: count // 2])
    while len(chosen) < min(count, len(content) * 8):
        chosen[rng.randrange(len(content) * 8)] = None
    return list(chosen)


def _headers(content: bytes) -> Iterator[int]:
    """Return the bits of the file's header, and of the header, cell pointers and starts of cells of each page of a
    table or index."""
    yield from range(100 * 8)
    for start in range(0, len(content), _PAGE):
        head = start + (100 if start == 0 else 0)
        if content[head] not in _TREES:
            continue
        pointers = head + (12 if content[head] in _INNER else 8)
        end = pointers + 2 * int.from_bytes(content[head + 3 : head + 5], "big")
        yield from range(head * 8, end * 8)
        for pointer in range(pointers, end, 2):
            cell = start + int.from_bytes(content[pointer : pointer + 2], "big")
            yield from range(cell * 8, min(cell + 20, start + _PAGE) * 8)


@pytest.mark.parametrize("part", range(_PARTS))
def test_flipped_bit_is_harmless_or_detected(part: int, intact: IntactStore) -> None:
    chosen = bits(intact.content, FLIPS)[part::_PARTS]
    found: Counter[str] = Counter()
    for bit in chosen:
        where = f"bit {bit & 7} of byte {(bit >> 3) % _PAGE} of page {(bit >> 3) // _PAGE + 1}"
        outcome = _check(intact, flipped(intact.content, bit), where)
        found["raised" if outcome.raised else "lost" if outcome.changed else "harmless"] += 1
        found["with lists that lost entries"] += bool(outcome.changed)
        found["mostly readable"] += outcome.versions > len(_VERSIONS) * 0.8
    print(f"{len(chosen)} flips: {dict(found)}")
    few = 5
    assert found["raised"] + few > 0.5 * len(chosen)
    assert found["lost"] - few < 0.05 * len(chosen)
    assert found["mostly readable"] + few > 0.75 * len(chosen), "one bit makes most versions unreadable"


def _check(intact: IntactStore, content: bytes, where: str) -> Outcome:
    """Return the results of a damaged store, after checking that they are allowed."""
    outcome = _outcome(intact, content)
    strict = [name for name in outcome.changed if not is_loose(name)]
    assert not strict, f"{where}: changed data in {strict}"
    if outcome.raised or outcome.changed:
        assert not _verified(intact, content), (
            f"{where}: verify is blind to {outcome.raised or outcome.changed}"
        )
    return outcome


def test_zeroed_page_is_detected(intact: IntactStore) -> None:
    found: Counter[str] = Counter()
    for start in range(0, len(intact.content), _PAGE):
        content = intact.content[:start] + bytes(_PAGE) + intact.content[start + _PAGE :]
        outcome = _check(intact, content, f"page {start // _PAGE + 1}")
        assert not _verified(intact, content), f"page {start // _PAGE + 1}: verify is blind"
        found["raised" if outcome.raised else "lost" if outcome.changed else "harmless"] += 1
    print(f"zeroed pages: {dict(found)}")
    assert found["raised"] > found["harmless"]


def test_truncated_file_is_detected(intact: IntactStore) -> None:
    rng = random.Random("ends")
    size = len(intact.content)
    whole = range(_PAGE, size, _PAGE)
    ends = {*range(1, 20), *whole, *rng.sample(range(20, size), 200)}
    for end in sorted(ends):
        content = intact.content[:end]
        _check(intact, content, f"cut at {end}")
        assert not _verified(intact, content), f"cut at {end}: verify is blind"


def test_empty_file_is_opened_as_a_new_store(intact: IntactStore) -> None:
    """A new store is created in an empty file, so the two cannot be distinguished."""
    assert _verified(intact, b"")
