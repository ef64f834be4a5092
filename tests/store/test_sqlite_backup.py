"""Backups of a store in use, and the file after its process has ended."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path

import pytest

import holdfast
from holdfast import AlreadyExists, Holdfast, InvalidCall, StoreUnavailable, step, workflow


@step
def backup_step(n: int) -> int:
    holdfast.state()["n"] = n
    return n


@workflow
def backup_flow() -> int:
    return sum(backup_step(n) for n in range(3))


def test_backup_is_the_store_in_one_file(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        hf.run(backup_flow, run_id="r")
        hf.history("large").commit({"data": holdfast.artifact(b"kelp" * 50_000)})
        hf.backup(tmp_path / "copy.db")
        hf.history("large").commit({"data": None})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "runs.db"]
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    with holdfast.open(tmp_path / "copy.db") as copy:
        assert copy.verify()
        assert copy.get("r").result == 3
        assert copy.history("large").head.number == 1
        assert copy.history("large").head.state["data"].read() == b"kelp" * 50_000


def test_backup_is_one_moment_while_others_write(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        hf.history("busy").commit({"n": 0})
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                hf.history("busy").commit({"n": number, "text": str(number) * 1000})

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for copy in range(5):
                hf.backup(tmp_path / f"{copy}.db")
        finally:
            stop.set()
            writer.join()
        last = hf.history("busy").head.number
    for copy in range(5):
        with holdfast.open(tmp_path / f"{copy}.db") as there:
            head = there.history("busy").head
            assert there.verify()
            assert head.state["n"] == head.number - 1 < last


def test_backup_copies_artifacts_of_a_folder(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", artifacts=tmp_path / "large") as hf:
        hf.history("r").commit({"data": holdfast.artifact(b"kelp" * 50_000), "none": holdfast.artifact(b"")})
        with pytest.raises(InvalidCall, match="artifacts="):
            hf.backup(tmp_path / "copy.db")
        hf.backup(tmp_path / "copy.db", artifacts=tmp_path / "copies")
    shutil.rmtree(tmp_path / "large")
    with holdfast.open(tmp_path / "copy.db", artifacts=tmp_path / "copies") as copy:
        assert copy.verify()
        assert copy.history("r").head.state["data"].read() == b"kelp" * 50_000


def test_backup_overwrites_nothing_and_leaves_no_partial_file(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        (tmp_path / "mine").write_text("mine")
        with pytest.raises(AlreadyExists):
            hf.backup(tmp_path / "mine")
        with pytest.raises(AlreadyExists):
            hf.backup(tmp_path / "runs.db")
        with pytest.raises(StoreUnavailable, match="cannot be written"):
            hf.backup(tmp_path / "nowhere" / "copy.db")
    assert (tmp_path / "mine").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "runs.db"]


def test_memory_store_refuses_a_backup(tmp_path: Path) -> None:
    with holdfast.open(":memory:") as hf, pytest.raises(InvalidCall, match="export_run"):
        hf.backup(tmp_path / "copy.db")


_LEAVES_OPEN = """
import sys
import holdfast
hf = holdfast.open(sys.argv[1])
for number in range(20):
    hf.history("r").commit({"n": number})
"""


def test_file_alone_holds_everything_after_a_clean_exit(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _LEAVES_OPEN, str(tmp_path / "runs.db")], check=True, timeout=120)
    assert [path.name for path in tmp_path.iterdir()] == ["runs.db"]
    shutil.copy(tmp_path / "runs.db", tmp_path / "copy.db")
    with holdfast.open(tmp_path / "copy.db") as copy:
        assert copy.history("r").head.state == {"n": 19}


@pytest.mark.parametrize("give", [pickle.dumps, deepcopy], ids=["pickle", "deepcopy"])
def test_stores_and_runs_refuse_pickling(give: object, tmp_path: Path) -> None:
    assert callable(give)
    with holdfast.open(tmp_path / "runs.db") as hf:
        run = hf.run(backup_flow, run_id="r")
        with pytest.raises(InvalidCall, match=r"holdfast\.open in the other process"):
            give(hf)
        with pytest.raises(InvalidCall, match=r"hf\.get\(id\)"):
            give(run)
        assert isinstance(hf, Holdfast)
