"""Large values: stored once by content hash, read lazily, removed when no version needs them."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_clock import Clock

import holdfast
from holdfast import Artifact, CorruptStore, Holdfast, InvalidCall, NotFound, Retention, StaleVersion, thaw

TEXT = "document " * 20_000
BYTES = bytes(range(256)) * 400
MIB = 1 << 20


@pytest.fixture(params=["sqlite", "folder", "memory"])
def hf(request: pytest.FixtureRequest, file: Path, clock: Clock) -> Iterator[Holdfast]:
    where = ":memory:" if request.param == "memory" else file
    folder = file.with_name("artifacts") if request.param == "folder" else None
    with holdfast.open(where, durability="fast", artifacts=folder, clock=clock) as opened:
        yield opened


# Leaves that are too large for the tree


@pytest.mark.parametrize(
    "value", [TEXT, BYTES, "\ud800" * 70_000, bytearray(BYTES), (TEXT, 1), frozenset({TEXT})]
)
def test_large_leaf_is_stored_outside_the_pack_and_read_exactly(hf: Holdfast, value: Any) -> None:
    log = hf.history("run-1")
    version = log.commit({"value": value, "list": [value]})
    assert version.size < 2000
    assert hf.stats().artifacts == 1
    assert hf.stats().artifact_bytes >= 64 * 1024
    found = thaw(log.at(1).state)
    assert found == {"value": value, "list": [value]}
    assert type(found["value"]) is type(value)


def test_leaf_beyond_64_kib_becomes_an_artifact(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({"value": b"x" * 65_536})
    assert hf.stats().artifacts == 0
    log.commit({"value": b"x" * 65_537})
    assert hf.stats().artifacts == 1
    assert [len(log.at(number).state["value"]) for number in (1, 2)] == [65_536, 65_537]


def test_large_value_of_many_runs_is_stored_once(hf: Holdfast) -> None:
    for number in range(5):
        log = hf.history(f"run-{number}")
        log.commit({"doc": TEXT, "n": 0})
        with log.edit() as state:
            state["n"] = 1
        log.commit({"elsewhere": [TEXT, TEXT], "file": holdfast.artifact(BYTES)})
    assert hf.stats().artifacts == 2
    assert hf.verify().ok


def test_version_with_an_unchanged_large_value_adds_no_artifact(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({"doc": TEXT})
    with log.edit() as state:
        state["n"] = 1
    assert log.commit({**thaw(log.head.state), "n": 2}).size < 200
    assert hf.stats().artifacts == 1


def test_large_result_is_stored_as_an_artifact(hf: Holdfast) -> None:
    hf.history("run-1").commit({}, result=TEXT, annotations={"prompt": TEXT})
    found = hf.history("run-1").at(1)
    assert (found.result, found.annotations) == (TEXT, {"prompt": TEXT})
    assert hf.stats().artifacts == 1


# Handles


def test_artifact_is_made_from_bytes_a_path_and_an_open_file(hf: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "report.bin"
    path.write_bytes(BYTES)
    log = hf.history("run-1")
    with path.open("rb") as open_file:
        log.commit(
            {
                "bytes": holdfast.artifact(BYTES, "b.bin"),
                "path": holdfast.artifact(path),
                "text path": holdfast.artifact(str(path), name="other"),
                "file": holdfast.artifact(open_file),
            }
        )
    path.unlink()
    state = log.at(1).state
    digest = hashlib.sha256(BYTES).hexdigest()
    assert {key: (found.digest, found.size, found.name) for key, found in state.items()} == {
        "bytes": (digest, len(BYTES), "b.bin"),
        "path": (digest, len(BYTES), "report.bin"),
        "text path": (digest, len(BYTES), "other"),
        "file": (digest, len(BYTES), None),
    }
    for found in state.values():
        assert found.read() == BYTES
    assert hf.artifact(digest).read() == BYTES
    assert hf.stats().artifacts == 1


def test_artifact_is_read_in_pieces_as_a_file_and_into_a_file(hf: Holdfast, tmp_path: Path) -> None:
    content = bytes(MIB) + b"middle" + bytes(MIB)
    hf.history("run-1").commit({"file": holdfast.artifact(content)})
    found: Artifact = hf.history("run-1").head.state["file"]
    assert max(map(len, found.pieces())) <= MIB
    with found.open() as opened:
        assert opened.read(10) == bytes(10)
        assert opened.read() == content[10:]
    found.save(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content


def test_artifact_can_be_moved_within_and_between_runs(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({"file": holdfast.artifact(BYTES, "f")})
    with log.edit() as state:
        state["moved"] = [state.pop("file")]
    hf.history("run-2").commit({"copy": log.head.state["moved"][0]})
    assert hf.history("run-2").head.state["copy"].read() == BYTES
    assert log.head.state["moved"][0] == log.at(1).state["file"]
    assert hf.stats().artifacts == 1


def test_artifact_of_a_small_content_is_stored_as_an_artifact(hf: Holdfast) -> None:
    hf.history("run-1").commit({"file": holdfast.artifact(b"")})
    assert hf.history("run-1").head.state["file"].read() == b""


def test_artifact_of_a_changed_file_is_refused(hf: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(BYTES)
    handle = holdfast.artifact(path)
    path.write_bytes(b"other")
    log = hf.history("run-1")
    with pytest.raises(InvalidCall, match="changed"):
        log.commit({"file": handle})
    path.unlink()
    with pytest.raises(NotFound):
        log.commit({"file": handle})
    assert hf.runs() == []
    assert hf.stats().artifacts == 0
    log.commit({"file": holdfast.artifact(BYTES)})
    assert hf.verify().ok


def test_artifact_whose_content_is_not_in_the_store_is_refused(hf: Holdfast) -> None:
    with holdfast.open(":memory:") as other:
        other.history("x").commit({"file": holdfast.artifact(BYTES)})
        stranger = other.history("x").head.state["file"]
        with pytest.raises(NotFound, match=r"holdfast\.artifact"):
            hf.history("run-1").commit({"file": Artifact(stranger.digest, stranger.size)})
    assert hf.runs() == []


# Streaming


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in the database", "in a folder"])
def test_large_file_is_stored_and_read_in_pieces(file: Path, tmp_path: Path, where: str) -> None:
    path = tmp_path / "large"
    with path.open("wb") as out:
        for number in range(48):
            out.write(bytes([number]) * MIB)
    folder = tmp_path / "artifacts" if where == "in a folder" else None
    with holdfast.open(file, durability="fast", artifacts=folder) as hf:
        tracemalloc.start()
        try:
            hf.history("run-1").commit({"file": holdfast.artifact(path)})
            hf.history("run-1").head.state["file"].save(tmp_path / "copy")
            assert hf.verify().ok
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 12 * MIB
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()


def test_reading_a_version_does_not_read_its_artifacts(file: Path) -> None:
    folder = file.with_name("artifacts")
    with holdfast.open(file, artifacts=folder) as hf:
        hf.history("run-1").commit({"file": holdfast.artifact(BYTES), "n": 1})
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
    with holdfast.open(file, artifacts=folder) as hf:
        state = hf.history("run-1").head.state
        assert (state["n"], state["file"].size) == (1, len(BYTES))
        with pytest.raises(holdfast.HoldfastError):
            state["file"].read()
        assert not hf.verify().ok


# Collection


def test_save_of_damaged_content_does_not_replace_a_file(file: Path, tmp_path: Path) -> None:
    folder, target = tmp_path / "large", tmp_path / "out" / "copy"
    target.parent.mkdir()
    target.write_bytes(b"before")
    with holdfast.open(file, artifacts=folder) as hf:
        hf.history("run-1").commit({"handle": holdfast.artifact(BYTES * 20)})
        handle = hf.history("run-1").head.state["handle"]
        (content,) = (found for found in folder.rglob("*") if found.is_file())
        content.write_bytes(content.read_bytes()[:-1] + b"?")
        with pytest.raises(CorruptStore):
            handle.save(target)
        with pytest.raises(InvalidCall, match="cannot be written"):
            handle.save(tmp_path / "none" / "copy")
        with pytest.raises(InvalidCall, match="cannot be written"):
            handle.save(target.parent)
    assert target.read_bytes() == b"before"
    assert [found.name for found in target.parent.iterdir()] == ["copy"]


def test_gc_removes_only_unreferenced_artifacts(hf: Holdfast, clock: Clock) -> None:
    log = hf.history("run-1")
    log.commit({"doc": TEXT, "file": holdfast.artifact(BYTES)})
    log.commit({"doc": TEXT})
    log.commit({"n": 1})
    hf.history("run-2").commit({"copy": TEXT})
    clock.forward(days=1)
    assert hf.gc().artifacts == 0, "all of it is needed"
    log.prune(Retention(last=1))
    assert hf.gc().artifacts == 1, "the file; run-2 still holds the document"
    assert hf.history("run-2").head.state["copy"] == TEXT
    hf.delete("run-2")
    collected = hf.gc()
    assert collected.artifacts == 1
    assert collected.bytes >= len(TEXT)
    assert (hf.stats().artifacts, hf.stats().artifact_bytes) == (0, 0)
    assert hf.verify().ok


def test_artifact_of_a_shared_node_survives_pruning_and_forks(hf: Holdfast, clock: Clock) -> None:
    log = hf.history("run-1")
    log.commit(
        {"deep": {"docs": [{"text": TEXT, "pad": "p" * 600}], "file": holdfast.artifact(BYTES)}, "n": 0}
    )
    for number in range(5):
        with log.edit() as state:
            state["n"] = number
    hf.fork("run-1", "run-2")
    log.prune(Retention(last=1))
    with log.edit() as state:
        del state["deep"]
    clock.forward(days=1)
    assert hf.gc().artifacts == 0
    hf.delete("run-1")
    assert hf.gc().artifacts == 0, "the fork took along what it needs"
    state = hf.history("run-2").head.state
    assert state["deep"]["docs"][0]["text"] == TEXT
    assert state["deep"]["file"].read() == BYTES
    assert hf.verify().ok


def test_gc_keeps_recent_artifacts(hf: Holdfast, clock: Clock) -> None:
    hf.history("run-1").commit({"doc": TEXT})
    hf.delete("run-1")
    assert hf.gc().artifacts == 0, "a commit that needs it may be on its way"
    clock.forward(hours=2)
    assert hf.gc().artifacts == 1


def test_collected_artifact_can_be_stored_again(hf: Holdfast, clock: Clock) -> None:
    log = hf.history("run-1")
    log.commit({"doc": TEXT, "file": holdfast.artifact(BYTES)})
    old = log.head.state
    log.commit({})
    log.prune(Retention(last=1))
    clock.forward(days=1)
    hf.gc()
    log.commit({"doc": TEXT, "file": holdfast.artifact(io.BytesIO(BYTES))})
    assert log.head.state["file"].read() == BYTES
    log.commit({})
    log.prune(Retention(last=1))
    clock.forward(days=1)
    hf.gc()
    log.commit({"doc": old["doc"]})
    assert log.head.state["doc"] == TEXT
    with pytest.raises((NotFound, StaleVersion)):
        log.commit({"file": old["file"]})
    assert hf.verify().ok


def test_value_that_is_deleted_while_it_is_read_is_missing_and_not_damaged(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record and its pieces are read one by one."""
    with holdfast.open(file) as hf, holdfast.open(file) as other:
        hf.history("run-1").commit({"value": BYTES})
        log = other.history("run-1")
        store = log.context.store
        read = store.artifact_pieces

        def interrupted(name: bytes) -> Iterator[bytes]:
            pieces = read(name)
            hf.delete("run-1", release=True)
            yield from pieces

        monkeypatch.setattr(store, "artifact_pieces", interrupted)
        with pytest.raises(NotFound):
            log.context.reader(log.run_record()).state(1)
