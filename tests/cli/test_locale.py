"""Output for programs is UTF-8 in every locale, and Python's `-OO` changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

_C = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
_RUN = "käse-✓"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with holdfast.open(tmp_path / "holdfast.db") as hf:
        hf.history(_RUN).commit({"größe": "ß"}, step="Ω")
    return tmp_path


def call(
    folder: Path, *arguments: str | bytes, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *python, "-m", "holdfast", *arguments],
        cwd=folder,
        env={**os.environ, **_C},
        capture_output=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("python", [(), ("-OO",)], ids=["plain", "-OO"])
def test_json_and_rows_are_utf_8_in_every_locale(folder: Path, python: tuple[str, ...]) -> None:
    done = call(folder, "runs", "--json", python=python)
    assert (done.returncode, json.loads(done.stdout.decode())[0]["id"]) == (0, _RUN), done
    rows = call(folder, "runs", python=python)
    assert rows.stdout.decode().split("\t")[0] == _RUN
    one = call(folder, "log", _RUN.encode(), "--json", python=python)
    assert (one.returncode, json.loads(one.stdout.decode())[0]["step"]) == (0, "Ω"), one


def test_argument_that_is_not_utf_8_is_refused(folder: Path) -> None:
    done = call(folder, "log", b"\xff\xfe")
    assert done.returncode not in (0, 70), done
    assert b"Traceback" not in done.stderr
