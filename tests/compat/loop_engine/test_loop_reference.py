"""Every call of the engine is in the reference, and the engine is loaded only where it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from holdfast.loops import LoopEngine

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "loops.md"


def test_reference_documents_every_call() -> None:
    text = REFERENCE.read_text()
    calls = [
        name for name, _ in inspect.getmembers(LoopEngine, inspect.isfunction) if not name.startswith("_")
    ]
    assert len(calls) > 25
    assert [name for name in calls if f"LoopEngine.{name}(" not in text] == []
    assert [name for name in calls if not getattr(LoopEngine, name).__doc__] == []


def test_import_of_holdfast_does_not_load_the_loop_engine() -> None:
    program = (
        "import sys, holdfast; print([name for name in sys.modules if name.startswith('holdfast.loops')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
