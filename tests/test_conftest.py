"""Failing and hanging tests are reported, and the tests after them run."""

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
HANGING = """
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

#: Each collection of garbage parses source text and leaves more garbage.
PARSING = """
import ast, gc


class Left:
    def __init__(self):
        self.me = self

    def __del__(self):
        ast.parse("a = 1")
        Left()


def test_it():
    Left()
    gc.set_threshold(50, 1, 1)
    assert not "a fault"
"""


def run_pytest(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a folder with the settings of this test suite, and as few plugins as possible."""
    shutil.copy(HERE / "conftest.py", folder)
    (folder / "test_program.py").write_text(program)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parent / "src"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "pytest_timeout,xdist.plugin",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_failure_is_reported_although_garbage_parses_source(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, PARSING + "a = [1, 2, 3]\n" * 500)
    assert "INTERNALERROR" not in done.stdout
    assert "assert not 'a fault'" in done.stdout
    assert done.returncode == 1


@pytest.mark.slow
def test_hanging_tests_fail_and_the_next_one_runs(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, HANGING, "-n1", "--dist", "worksteal", "--timeout", "4")
    for name in ("test_swallows_the_timeout", "test_fails_and_cleans_up"):
        assert f"crashed while running 'test_program.py::{name}'" in done.stdout, done.stdout
    assert " 1 passed" in done.stdout
    assert "in test_swallows_the_timeout" in done.stderr, done.stderr
    assert "in slow_end" in done.stderr, done.stderr
