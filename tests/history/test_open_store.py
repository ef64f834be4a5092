"""Opening a store: valid and invalid addresses, and independence of the working directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, HoldfastError, HoldfastWarning, InvalidCall, StoreUnavailable
from holdfast.store_url import formats

LARGE = 100_000


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_open_creates_a_file_and_opens_it_again(file: Path, form: str) -> None:
    with holdfast.open(form.format(file)) as hf:
        hf.history("run-1").commit({"n": 1})
    assert file.exists()
    with holdfast.open(file) as hf:
        assert hf.version("run-1").state == {"n": 1}


def test_open_accepts_a_relative_path_and_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open("sqlite:///runs.db") as hf:
        hf.history("run-1").commit({})
    assert (tmp_path / "runs.db").exists()
    with holdfast.open() as hf:
        assert hf.runs() == []
    assert (tmp_path / "holdfast.db").exists()


#: Opens a file when it gets a line.
_OPENS = """
import sys
import holdfast.store.sqlite.store
print("ready", flush=True)
sys.stdin.readline()
holdfast.open(sys.argv[1]).close()
"""


def test_processes_that_open_a_new_file_at_once_do_not_warn(tmp_path: Path) -> None:
    for number in range(4):
        file = tmp_path / f"{number}.db"
        processes = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _OPENS, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.communicate()[1] for process in processes] == [""] * 4


def test_copy_of_a_new_store_without_its_log_warns(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        hf.history("run-1").commit({})
        shutil.copyfile(tmp_path / "runs.db", tmp_path / "copy.db")
    with pytest.warns(HoldfastWarning, match="copy both files"):
        holdfast.open(tmp_path / "copy.db").close()


def test_memory_stores_are_separate() -> None:
    with holdfast.open(":memory:") as one, holdfast.open(":memory:") as other:
        one.history("run-1").commit({})
        assert other.runs() == []


@pytest.mark.parametrize("durability", ["durable", "fast", "memory"])
def test_close_keeps_all_commits_at_every_durability(file: Path, durability: str) -> None:
    with holdfast.open(file, durability=durability) as hf:
        hf.history("run-1").commit({"n": 1})
    with holdfast.open(file) as hf:
        assert hf.version("run-1").state == {"n": 1}


def test_closed_store_refuses_calls(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({})
    hf.close()
    hf.close()
    for call in (lambda: log.commit({}), lambda: log.head, hf.runs, hf.stats):
        with pytest.raises(HoldfastError, match="closed"):
            call()


def test_open_refuses_invalid_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    cases: list[dict[str, Any]] = [
        {"where": "\ud800.db"},
        {"where": "a\0b.db"},
        {"where": b"a.db"},
        {"where": ""},
        {"where": 3},
        {"artifacts": "\ud800"},
        {"artifacts": "a\0b"},
        {"artifacts": b"folder"},
        {"artifacts": ""},
        {"artifacts": 3},
        {"timeout": "a"},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": 10**30},
        {"clock": 3},
        {"lease": -1},
        {"redact": "secret"},
    ]
    monkeypatch.chdir(tmp_path)
    for wanted in cases:
        with subtests.test(wanted=wanted), pytest.raises(InvalidCall):
            holdfast.open(**{"where": "a.db", **wanted})


def test_formats_refuses_an_invalid_path() -> None:
    with pytest.raises(InvalidCall):
        formats("\ud800.db")


def test_open_store_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    (here / "document").write_bytes(b"text")
    handle = holdfast.artifact("document")
    with holdfast.open("a.db", artifacts="large") as hf:
        hf.history("run").commit({"at": 0, "large": os.urandom(LARGE)})
        monkeypatch.chdir(elsewhere)
        seen: list[int] = []
        gate = threading.Barrier(4)

        def read_and_commit(number: int) -> None:
            gate.wait()
            seen.append(len(hf.history("run").head.state["large"]))
            hf.history(f"run-{number}").commit({"large": os.urandom(LARGE)})

        threads = [threading.Thread(target=read_and_commit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hf.history("run").commit({"document": handle})

        assert seen == [LARGE] * 4
        assert hf.history("run").head.state["document"].read() == b"text"
        assert hf.stats().file_bytes
        assert hf.verify().ok
    assert list(elsewhere.iterdir()) == []


def test_open_reports_a_deleted_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StoreUnavailable, match="does not exist"):
        holdfast.open("a.db")
