"""Files of bundles: paths, pipes and file objects; nothing is overwritten, and no partial file stays."""

from __future__ import annotations

import gzip
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_helpers
import pytest
from bundle_helpers import exported, facts, full_run

import holdfast
from database import Database
from holdfast import (
    AlreadyExists,
    CorruptStore,
    CorruptVersion,
    Holdfast,
    InvalidCall,
    InvalidReference,
    NotFound,
    Retention,
    StaleVersion,
)
from holdfast.store.protocol import Store

hf, other = bundle_helpers.hf, bundle_helpers.other


# Where to and where from


def test_bundle_is_written_to_and_read_from_file_objects_at_any_position(
    hf: Holdfast, tmp_path: Path
) -> None:
    full_run(hf)
    with (tmp_path / "some.bin").open("w+b") as file:
        file.write(b"before")
        hf.export_run("full", file)
        file.seek(6)
        hf.import_run(file, run_id="copy")
    assert facts(hf, "copy") == facts(hf, "full")


def test_bundle_passes_through_a_pipe(hf: Holdfast, other: Holdfast) -> None:
    full_run(hf)
    reading, writing = os.pipe()

    def export() -> None:
        with open(writing, "wb", buffering=0) as pipe:
            hf.export_run("full", pipe)

    thread = threading.Thread(target=export)
    thread.start()
    with open(reading, "rb") as pipe:
        other.import_run(pipe)
    thread.join()
    assert facts(other, "full") == facts(hf, "full")


def test_bundle_is_imported_from_the_path_of_a_pipe(hf: Holdfast, tmp_path: Path) -> None:
    full_run(hf)
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(exported(hf, "full")))
    thread.start()
    hf.import_run(tmp_path / "pipe", run_id="copy")
    thread.join()
    assert facts(hf, "copy") == facts(hf, "full")


@pytest.mark.slow
def test_bundle_is_imported_from_a_file_that_cannot_seek_to_its_end(hf: Holdfast, tmp_path: Path) -> None:
    full_run(hf)
    with gzip.open(tmp_path / "full.hf.gz", "wb") as packed:
        hf.export_run("full", packed)  # type: ignore[arg-type]
    with gzip.open(tmp_path / "full.hf.gz", "rb") as packed:
        hf.import_run(packed, run_id="copy")  # type: ignore[arg-type]
    assert facts(hf, "copy") == facts(hf, "full")


def test_export_does_not_overwrite_a_file(hf: Holdfast, tmp_path: Path) -> None:
    hf.history("a").commit({"n": 1})
    target = tmp_path / "folder" / "a.hf"
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(AlreadyExists, match=r"a\.hf"):
        hf.export_run("a", target)
    assert target.read_bytes() == b"mine"
    (target.parent / "link.hf").symlink_to("nowhere")
    with pytest.raises(AlreadyExists):
        hf.export_run("a", str(target.parent / "link.hf"))
    assert sorted(os.listdir(target.parent)) == ["a.hf", "link.hf"]


def test_export_does_not_overwrite_a_file_that_appears_meanwhile(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.history("a").commit({"n": 1})
    target = tmp_path / "folder" / "a.hf"
    target.parent.mkdir()
    timelines = hf._store.timelines

    def intruding(run: int) -> Any:
        target.write_bytes(b"theirs")
        return timelines(run)

    monkeypatch.setattr(hf._store, "timelines", intruding)
    with pytest.raises(AlreadyExists):
        hf.export_run("a", target)
    assert target.read_bytes() == b"theirs"
    assert os.listdir(target.parent) == ["a.hf"]


def test_export_renames_where_hard_links_are_not_supported(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    hf.history("a").commit({"n": 1})
    target = tmp_path / "folder" / "a.hf"
    target.parent.mkdir()
    monkeypatch.setattr(os, "link", refuse)
    hf.export_run("a", target)
    assert os.listdir(target.parent) == ["a.hf"]
    assert hf.import_run(target, run_id="b").head.state == {"n": 1}


@pytest.mark.parametrize("target", ["no/such/folder/a.hf", "nul\0.hf"])
def test_export_to_an_unwritable_path_is_refused(hf: Holdfast, tmp_path: Path, target: str) -> None:
    hf.history("a").commit({"n": 1})
    with pytest.raises(InvalidCall):
        hf.export_run("a", tmp_path / target)


@pytest.mark.parametrize("wrong", ["text", "none"])
def test_export_and_import_refuse_text_files(hf: Holdfast, wrong: str) -> None:
    hf.history("a").commit({"n": 1})
    file: Any = io.StringIO() if wrong == "text" else None
    for call in (lambda: hf.export_run("a", file), lambda: hf.import_run(file)):
        with pytest.raises(InvalidCall, match="binary"):
            call()


def test_import_of_an_unreadable_file_is_refused(hf: Holdfast, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.hf"):
        hf.import_run(tmp_path / "none.hf")
    with pytest.raises(InvalidCall):
        hf.import_run(tmp_path)
    with pytest.raises(InvalidCall):
        hf.import_run("nul\0")


# Never over another


def test_import_refuses_an_id_that_exists(hf: Holdfast, other: Holdfast) -> None:
    full_run(hf)
    data = exported(hf, "full")
    other.history("b").commit({"mine": 1})
    other.import_run(io.BytesIO(data))
    before = other.stats()
    with pytest.raises(AlreadyExists, match="full"):
        other.import_run(io.BytesIO(data))
    with pytest.raises(AlreadyExists, match="'b'"):
        other.import_run(io.BytesIO(data), run_id="b")
    with pytest.raises(InvalidReference):
        other.import_run(io.BytesIO(data), run_id="../b")
    assert other.stats() == before
    assert other.history("b").head.state == {"mine": 1}


def test_import_refuses_an_id_that_is_created_meanwhile(
    hf: Holdfast, other: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(hf)
    store = other._store
    write = store.import_run

    def late(imported: Any) -> Any:
        other.history("full").commit({"theirs": 1})
        return write(imported)

    monkeypatch.setattr(store, "import_run", late)
    with pytest.raises(AlreadyExists):
        other.import_run(io.BytesIO(exported(hf, "full")))
    assert other.history("full").head.state == {"theirs": 1}
    assert other.stats().versions == 1
    assert other.verify().ok


# What is wrong in the store is not exported


def _damage(path: Path, statement: str) -> None:
    connection = Database(path)
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (
            "UPDATE journal SET pack = CAST(substr(pack, 2) || x'ff' AS BLOB) WHERE number = 3",
            CorruptVersion,
        ),
        ("UPDATE journal SET step = 'other' WHERE number = 3", CorruptVersion),
        ("UPDATE block SET data = CAST(substr(data, 2) AS BLOB) WHERE n = 0", CorruptVersion),
        ("DELETE FROM block WHERE n = 0", CorruptVersion),
        ("DELETE FROM journal WHERE number = 4", CorruptVersion),
        ("DELETE FROM journal WHERE number = 13", CorruptVersion),
        ("UPDATE artifact_piece SET data = x'00'", CorruptStore),
        ("DELETE FROM artifact_piece", (CorruptStore, NotFound)),
        ("DELETE FROM artifact", NotFound),
        ("UPDATE artifact SET size = size + 1", CorruptStore),
        ("UPDATE mark SET name = 'x' WHERE name = 'first'", CorruptStore),
    ],
)
def test_export_of_a_damaged_run_is_refused(tmp_path: Path, statement: str, error: Any) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        full_run(hf)
        hf.history("full").commit({f"k{n}": os.urandom(300).hex() for n in range(500)})
    _damage(tmp_path / "a.db", statement)
    (tmp_path / "out").mkdir()
    with holdfast.open(tmp_path / "a.db") as hf, pytest.raises(error):
        hf.export_run("full", tmp_path / "out" / "full.hf")
    assert os.listdir(tmp_path / "out") == []


def _during(hf: Holdfast, monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Do something once, when an export has started to read versions."""
    store: Store = hf._store
    block = store.block

    def interrupted(run: int, number: int, index: int) -> bytes | None:
        monkeypatch.setattr(store, "block", block)
        what()
        return block(run, number, index)

    monkeypatch.setattr(store, "block", interrupted)


def test_export_omits_concurrent_commits(
    hf: Holdfast, other: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(hf)
    before = facts(hf, "full")
    log = hf.history("full")

    def commit() -> None:
        log.rollback(to=2)
        log.commit({"later": 1}, tags=["later"])

    _during(hf, monkeypatch, commit)
    other.import_run(io.BytesIO(exported(hf, "full")))
    after = facts(other, "full")
    # A rollback before the first omitted version cannot be distinguished from earlier ones.
    assert after.pop("events")[: len(before["events"])] == before.pop("events")
    assert after == before
    assert other.verify().ok


@pytest.mark.parametrize("what", ["fork", "origin"])
def test_export_of_a_fork_that_is_detached_meanwhile_is_refused(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    full_run(hf)
    hf.fork("full@7", "fork")
    _during(hf, monkeypatch, lambda: hf.delete("full" if what == "origin" else "fork"))
    with pytest.raises(StaleVersion, match="again"):
        exported(hf, "fork")


def test_export_of_a_run_that_is_pruned_meanwhile_is_refused(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(hf)
    (tmp_path / "out").mkdir()
    _during(hf, monkeypatch, lambda: hf.history("full").prune(Retention(last=1)))
    with pytest.raises(StaleVersion, match="again"):
        hf.export_run("full", tmp_path / "out" / "full.hf")
    assert os.listdir(tmp_path / "out") == []
    hf.export_run("full", tmp_path / "out" / "full.hf")
