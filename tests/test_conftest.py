"""A test that hangs fails, with the stacks of its threads, and the tests after it run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: One test swallows the exception of pytest-timeout, as the step of an asyncio task does. Another one fails, after
#: which pytest-timeout no longer limits the clean-up of its fixture.
PROGRAM = """
import time
import pytest

def test_swallows_the_timeout():
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            time.sleep(60)
        except BaseException:
            pass

@pytest.fixture
def slow_end():
    yield
    time.sleep(600)

def test_fails_and_cleans_up(slow_end):
    assert False

def test_next():
    pass
"""


@pytest.mark.slow
def test_hanging_tests_fail_and_the_next_one_runs(tmp_path: Path) -> None:
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "test_hang.py").write_text(PROGRAM)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    plugins = ("-p", "no:langsmith_plugin", "-p", "no:schemathesis")
    command = [sys.executable, "-m", "pytest", *plugins, "-n1", "--dist", "worksteal", "--timeout", "4"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    for name in ("test_swallows_the_timeout", "test_fails_and_cleans_up"):
        assert f"crashed while running 'test_hang.py::{name}'" in done.stdout, done.stdout
    assert " 1 passed" in done.stdout
    assert "in test_swallows_the_timeout" in done.stderr, done.stderr
    assert "in slow_end" in done.stderr, done.stderr
