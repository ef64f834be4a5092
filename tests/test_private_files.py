"""The files that Holdfast makes: for their owner alone, until somebody shares them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import terminal

import holdfast

LARGE = b"x" * 100_000


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """A umask that takes no rights away."""
    before = os.umask(0)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_store_and_the_files_around_it_are_private(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        hf.history("a").commit({"n": 1})
        found = {each.name: rights(each) for each in tmp_path.iterdir()}
    assert found == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}


def test_store_behind_a_link_is_private(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to("runs.db")
    holdfast.open(tmp_path / "link.db").close()
    assert rights(tmp_path / "runs.db") == 0o600


def test_store_that_was_shared_stays_shared(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holdfast.open(path).close()
    path.chmod(0o660)
    with holdfast.open(path) as hf:
        hf.history("a").commit({"n": 1})
        assert {rights(each) for each in tmp_path.iterdir()} == {0o660}
        hf.gc(compact=True)
    assert rights(path) == 0o660


@pytest.mark.slow
def test_exports_are_private(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "holdfast.db") as hf:
        hf.history("a").commit({"n": 1})
        hf.export_run("a", tmp_path / "a.holdfast")
    terminal.call("export", "a", "-o", "a.json", cwd=tmp_path)
    terminal.call("export", "--all", "-o", "all", cwd=tmp_path)
    assert rights(tmp_path / "a.holdfast") == rights(tmp_path / "a.json") == 0o600
    assert rights(tmp_path / "all") == 0o700
    assert {rights(each) for each in (tmp_path / "all").iterdir()} == {0o600}
    # One that was shared keeps its rights.
    (tmp_path / "a.json").chmod(0o644)
    terminal.call("export", "a", "-o", "a.json", "--force", cwd=tmp_path)
    assert rights(tmp_path / "a.json") == 0o644


@pytest.mark.parametrize(
    ("given", "folder", "file"), [(None, 0o700, 0o600), (0o755, 0o700, 0o600), (0o2770, 0o770, 0o660)]
)
def test_artifacts_are_private_unless_others_may_write_to_their_folder(
    tmp_path: Path, given: int | None, folder: int, file: int
) -> None:
    artifacts = tmp_path / "artifacts"
    if given is not None:
        artifacts.mkdir()
        artifacts.chmod(given)
    with holdfast.open(tmp_path / "runs.db", artifacts=artifacts) as hf:
        hf.history("a").commit({"large": LARGE})
    assert rights(artifacts) == (given or 0o700)
    (below,) = artifacts.iterdir()
    (content,) = below.iterdir()
    assert (rights(below) & 0o777, rights(content)) == (folder, file)
