"""The demo tells its story as the README says it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import holdfast


def test_the_demo(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    command = [sys.executable, "-m", "holdfast.demo", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    for part in (
        "no connection",
        "kill -9",
        "0 steps repeated",
        "timeline 2",
        "headline: @8 ≠ @11",
        "every hash is right",
    ):
        assert part in done.stdout, done.stdout
    assert done.stderr == ""
    with holdfast.open(path) as hf:
        assert hf.get("newsletter").status == "completed"
        assert "tried" not in hf.history("newsletter").at(4).state or not hf.get("newsletter").state["tried"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode != 0
    assert "exists" in again.stderr
    assert "Traceback" not in again.stderr
