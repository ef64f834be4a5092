"""How fast versions are read: a state from a file just opened, a page of a long history, diff, blame."""

from __future__ import annotations

import gc
import random
import sqlite3
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import zstandard

import holdfast
from bench import workload
from bench.measure import Bench, Row, median_seconds, medians, note, seconds
from bench.writing import VERSIONS, edit_messages

_OPENS = 20
_LONG = 10_000
_PAGE = 100
_CALLS = 50
_LARGE = 10_000  # documents of 1 KB: 10 MB


def read(bench: Bench) -> Iterator[Row]:
    """Open the file and read the head of the 1,000-message run, and version 500."""
    note("opening and reading")
    said = workload.messages(VERSIONS)
    with bench.place() as folder:
        edit_messages(folder, said)
        path = folder / "runs.db"
        opening = median_seconds(lambda: _open_only(path), _OPENS) * 1e3
        # Version 1 is the empty list.
        for name, ref, length in (("head", "head", VERSIONS), ("version 500", 500, 499)):
            state = {"messages": said[:length]}
            blob = msgspec.msgpack.encode(state)
            if holdfast.thaw(_read(path, ref)) != state:
                raise AssertionError(f"the {name} did not read back as it was written")
            ours, decoded, ratio = medians(_against_blob(path, ref, blob) for _ in range(bench.repetitions))
            yield Row(
                f"open and read {VERSIONS:,} messages", f"{name} ÷ one msgspec blob", ratio, "×",
                f"{ours:.2f} ms (open and close alone {opening:.2f}), blob {decoded:.2f} ms", at_most=4,
            )  # fmt: skip
            least, decoded, ratio = medians(
                _floor_against_blob(folder / f"floor-{length}.db", blob) for _ in range(bench.repetitions)
            )
            yield Row(
                f"open and read {VERSIONS:,} messages", f"{name}, the floor: the blob as one row", ratio, "×",
                f"{least:.2f} ms: open, read one row, zstd, SHA-256, decode, close; blob {decoded:.2f} ms",
            )  # fmt: skip


def page(bench: Bench) -> Iterator[Row]:
    """A page of 100 of 10,000 versions, with a small and with a large state."""
    work = f"a page of {_PAGE} of {_LONG:,} versions"
    found = []
    for name, state, change in (
        ("small state", {"turn": 0}, _turn),
        ("state of 10 MB", {"documents": workload.documents(_LARGE)}, _revise),
    ):
        note(f"{work}, {name}")
        with bench.place() as folder:
            path = folder / "runs.db"
            _write_long(path, state, change)
            first, later, summary = medians(_pages(path) for _ in range(bench.repetitions))
        found.append((later, summary))
        yield Row(work, name, later, "ms", f"the first call after opening {first:.2f} ms", at_most=5)
        yield Row(work, f"{name}, summary", summary, "ms", "with completed steps and keys", at_most=5)
    small, large = found
    for measure, one, other in (
        ("large ÷ small", small[0], large[0]),
        ("large ÷ small, summary", small[1], large[1]),
    ):
        yield Row(work, measure, other / one, "×", "should not depend on the state", at_most=1.25)


def diff(bench: Bench) -> Iterator[Row]:
    """Diff of two versions of 10 MB that differ in 3 places, and blame of a path."""
    note("diff and blame in 10 MB")
    with bench.place() as folder:
        path = folder / "runs.db"
        _write_revised(path)
        loading, differing, blaming, deep = medians(_look(path) for _ in range(bench.repetitions))
    work = "a state of 10 MB, 203 versions"
    yield Row(
        work,
        "diff, 3 places",
        differing,
        "ms",
        f"loading both states before took {loading:.0f} ms",
        at_most=2,
    )
    yield Row(work, "blame of a document's field", blaming, "ms", "last changed 102 versions ago", at_most=1)
    yield Row(work, "blame of a list item's field", deep, "ms", "last changed by version 1 of 203", at_most=1)


def _open_only(path: Path) -> None:
    holdfast.open(path).close()


def _read(path: Path, ref: int | str) -> Any:
    with holdfast.open(path) as hf:
        return hf.history("run").at(ref).state


def _against_blob(path: Path, ref: int | str, blob: bytes) -> tuple[float, ...]:
    """Milliseconds for ours, for the blob, and their ratio; both measured in turn."""
    ours, decoded = [], []
    for _ in range(_OPENS):
        gc.collect()
        ours.append(seconds(lambda: _read(path, ref)))
        gc.collect()
        decoded.append(seconds(lambda: msgspec.msgpack.decode(blob)))
    mine, theirs = statistics.median(ours) * 1e3, statistics.median(decoded) * 1e3
    return mine, theirs, mine / theirs


def _floor_against_blob(path: Path, blob: bytes) -> tuple[float, ...]:
    """The same for the least that a checked and compressed state in a SQLite file can take."""
    if not path.exists():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE state (data BLOB NOT NULL)")
            connection.execute("INSERT INTO state VALUES (?)", (zstandard.compress(blob),))
            connection.commit()
    digest = sha256(blob).digest()
    least, decoded = [], []
    for _ in range(_OPENS):
        gc.collect()
        least.append(seconds(lambda: _read_floor(path, digest)))
        gc.collect()
        decoded.append(seconds(lambda: msgspec.msgpack.decode(blob)))
    mine, theirs = statistics.median(least) * 1e3, statistics.median(decoded) * 1e3
    return mine, theirs, mine / theirs


def _read_floor(path: Path, digest: bytes) -> Any:
    with closing(sqlite3.connect(path)) as connection:
        data = zstandard.decompress(connection.execute("SELECT data FROM state").fetchone()[0])
    if sha256(data).digest() != digest:
        raise AssertionError("the floor did not read back as it was written")
    return msgspec.msgpack.decode(data)


def _write_long(path: Path, state: dict[str, Any], change: Callable[[Any, int], None]) -> None:
    with holdfast.open(path, durability="fast") as hf:
        log = hf.history("run")
        log.commit(state)
        for number in range(2, _LONG + 1):
            with log.edit(step="work") as draft:
                change(draft, number)


def _turn(draft: Any, number: int) -> None:
    draft["turn"] = number


def _revise(draft: Any, number: int) -> None:
    draft["documents"][f"doc-{number * 7 % _LARGE:06}"]["score"] = number


def _pages(path: Path) -> tuple[float, ...]:
    """Milliseconds for the first page that is read, for those after it, and for a page of the summary."""
    source = random.Random(5)
    with holdfast.open(path) as hf:
        log = hf.history("run")

        def one() -> None:
            before = source.randint(_PAGE + 1, _LONG)
            shown = [
                (v.number, v.at, v.step, v.steps, v.status, v.size, v.tags)
                for v in log.versions(before=before)
            ]
            if len(shown) != _PAGE or shown[0][0] != before - 1:
                raise AssertionError("the page is not the one asked for")

        def summarize() -> None:
            before = source.randint(_PAGE + 1, _LONG)
            shown = [(v.version, v.step, len(v.completed_steps), v.keys) for v in log.summary(before=before)]
            if len(shown) != _PAGE or shown[0][0] != before - 1 or not shown[0][3]:
                raise AssertionError("the summary is not the one asked for")

        first = seconds(one)
        return first * 1e3, median_seconds(one, _CALLS) * 1e3, median_seconds(summarize, _CALLS) * 1e3


def _write_revised(path: Path) -> None:
    source = random.Random(6)
    with holdfast.open(path, durability="fast") as hf:
        log = hf.history("run")
        log.commit({"documents": workload.documents(_LARGE), "messages": workload.messages(200)}, step="load")
        for number in range(2, 203):
            with log.edit(step="revise") as draft:
                draft["documents"][f"doc-{number:06}"] = workload.document(source)
        with log.edit(step="revise") as draft:
            draft["documents"]["doc-005000"]["seen"] = True
            draft["messages"][100]["content"] = "Withdrawn."
            draft["done"] = True


def _look(path: Path) -> tuple[float, ...]:
    """Milliseconds to load two versions, and then for a diff and two blames."""
    with holdfast.open(path) as hf:
        log = hf.history("run")
        held: list[Any] = []
        loading = seconds(lambda: held.extend(hf.version(ref).state for ref in ("run@202", "run@203")))
        if len(hf.diff("run@202", "run@203")) != 3:
            raise AssertionError("the diff does not show the 3 places")
        if (
            log.blame("documents.doc-000101.text").version.number,
            log.blame("messages[7].content").version.number,
        ) != (101, 1):
            raise AssertionError("blame names the wrong version")
        return (
            loading * 1e3,
            median_seconds(lambda: hf.diff("run@202", "run@203"), _CALLS) * 1e3,
            median_seconds(lambda: log.blame("documents.doc-000101.text"), _CALLS) * 1e3,
            median_seconds(lambda: log.blame("messages[7].content"), _CALLS) * 1e3,
        )
