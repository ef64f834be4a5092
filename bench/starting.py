"""How long `import holdfast` takes in a new process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from bench.measure import Bench, Row, note, seconds

_STARTS = 10


def start(bench: Bench) -> Iterator[Row]:
    """The time of a process that imports Holdfast, less that of one that does nothing."""
    note("import")
    _run("import holdfast")  # the first compiles, as an installation does
    bare, full = [], []
    for _ in range(_STARTS):
        bare.append(_run("pass"))
        full.append(_run("import holdfast"))
    wall, cpu = (
        statistics.median(a[n] for a in full) - statistics.median(b[n] for b in bare) for n in (0, 1)
    )
    detail = f"CPU {cpu:.0f} ms; the interpreter alone {statistics.median(b[0] for b in bare):.0f} ms"
    yield Row("import holdfast", "beyond a bare start", wall, "ms", detail, at_most=100)


def _run(code: str) -> tuple[float, float]:
    """Milliseconds on the wall and of the CPU."""
    # As installed: with compiled modules at hand, even where this process was told not to write them.
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    wall = seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True, env=settings))
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall * 1e3, cpu * 1e3
