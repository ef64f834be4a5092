"""How long `import holdfast` takes in a new process, and the program `holdfast`."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import holdfast
from bench.measure import Bench, Row, note, seconds

_STARTS = 10


def start(bench: Bench) -> Iterator[Row]:
    """The time of a process that imports Holdfast, less that of one that does nothing."""
    note("import")
    _run("-c", "import holdfast")  # the first compiles, as an installation does
    bare, full = [], []
    for _ in range(_STARTS):
        bare.append(_run("-c", "pass"))
        full.append(_run("-c", "import holdfast"))
    wall, cpu = (
        statistics.median(a[n] for a in full) - statistics.median(b[n] for b in bare) for n in (0, 1)
    )
    detail = f"CPU {cpu:.0f} ms; the interpreter alone {statistics.median(b[0] for b in bare):.0f} ms"
    yield Row("import holdfast", "beyond a bare start", wall, "ms", detail, at_most=100)


def program(bench: Bench) -> Iterator[Row]:
    """The time of the CPU that `holdfast` takes, from its start to its end."""
    note("program")
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        store = Path(folder) / "runs.db"
        with holdfast.open(store, durability="fast") as hf:
            for number in range(50):
                hf.history(f"run-{number}").commit({"n": number})
        for command in (["--help"], ["runs"]):
            call = ["-m", "holdfast", *command, *(["--store", str(store)] if command == ["runs"] else [])]
            _run(*call)
            walls, cpus = zip(*(_run(*call) for _ in range(_STARTS)), strict=True)
            detail = f"{statistics.median(walls):.0f} ms on the wall, the interpreter included"
            yield Row(f"holdfast {command[0]}", "CPU", statistics.median(cpus), "ms", detail, at_most=150)


def _run(*arguments: str) -> tuple[float, float]:
    """Milliseconds on the wall and of the CPU."""
    # As installed: with compiled modules at hand, even where this process was told not to write them.
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = seconds(lambda: subprocess.run(command, check=True, env=settings, stdout=subprocess.DEVNULL))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1e3, cpu * 1e3
