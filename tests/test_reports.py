"""A test that fails is told of, whatever those before it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: There is always one more to be collected, and to be parsed for.
FAILING = """
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


def test_a_failure_is_told_though_what_is_collected_meanwhile_parses(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_failing.py").write_text(FAILING + "a = [1, 2, 3]\n" * 500)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "INTERNALERROR" not in done.stdout
    assert "assert not 'a fault'" in done.stdout
    assert done.returncode == 1
