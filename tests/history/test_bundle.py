"""Bundles: an exported run is imported exactly, from and into every kind of store."""

from __future__ import annotations

import io
import os
import tracemalloc
from pathlib import Path

import bundle_helpers
import pytest
from bundle_helpers import exported, facts, frames_of, full_run, holds, random_run

import holdfast
from holdfast import Holdfast, NotFound, Retention
from holdfast.history.bundle.frames import ArtifactFrame, VersionFrame

hf, other = bundle_helpers.hf, bundle_helpers.other


# There and back


@pytest.mark.slow
def test_exported_run_is_imported_exactly(hf: Holdfast, other: Holdfast, tmp_path: Path) -> None:
    full_run(hf)
    hf.export_run("full", tmp_path / "full.hf")
    log = other.import_run(tmp_path / "full.hf")
    assert log.id == "full"
    assert facts(other, "full") == facts(hf, "full")
    assert other.verify().ok
    assert log.head.hash == hf.history("full").head.hash


def test_imported_run_can_be_continued(hf: Holdfast, other: Holdfast) -> None:
    full_run(hf)
    log = other.import_run(io.BytesIO(exported(hf, "full")))
    last = log.versions(limit=1)[0].number
    with log.edit(step="next") as state:
        state["messages"].append("more")
    assert log.head.number == last + 1
    log.rollback(to=3)
    log.commit({"plain": True})
    assert log.head.parent == 3
    assert log.prune(Retention(last=2)).versions
    assert other.verify().ok
    again = hf.import_run(io.BytesIO(exported(other, "full")), run_id="returned")
    assert again.head.state == {"plain": True}
    assert hf.verify().ok


def test_bundle_of_an_imported_run_has_the_same_bytes(hf: Holdfast, other: Holdfast) -> None:
    full_run(hf)
    data = exported(hf, "full")
    other.import_run(io.BytesIO(data))
    assert exported(other, "full") == data


def test_bundle_of_a_pruned_run_has_its_stubs(hf: Holdfast, other: Holdfast) -> None:
    full_run(hf)
    hf.history("full").prune(Retention(last=3))
    assert any(frame.pruned for frame in frames_of(exported(hf, "full")) if isinstance(frame, VersionFrame))
    other.import_run(io.BytesIO(exported(hf, "full")))
    assert facts(other, "full") == facts(hf, "full")
    with pytest.raises(NotFound, match="pruned"):
        other.history("full").at(2)
    assert other.verify().ok


def test_bundle_of_a_fork_of_a_fork_is_self_contained(hf: Holdfast, other: Holdfast) -> None:
    full_run(hf)
    hf.fork("full@7", "one")
    with hf.history("one").edit(step="one") as state:
        state["messages"].append({"one": "1" * 300})
    hf.fork("one@2", "two")
    with hf.history("two").edit(step="two") as state:
        state["wide"]["key-7"] = "two" * 60
    before = [hf.history(run).head.state for run in ("one", "two")]
    other.import_run(io.BytesIO(exported(hf, "two")))
    assert facts(other, "two") == facts(hf, "two")
    assert other.runs()[0].origin is None
    assert other.verify().ok
    assert other.history("two").blame("wide.key-7").version.number == 2
    with other.history("two").edit() as state:
        state["messages"].append("on")
    other.fork("two", "three")
    assert other.history("three").head.state == other.history("two").head.state
    assert [hf.history(run).head.state for run in ("one", "two")] == before
    assert hf.runs()[0].origin == "one@2"


def test_fork_whose_origin_was_deleted_is_exported_and_imported(hf: Holdfast, other: Holdfast) -> None:
    full_run(hf)
    hf.fork("full@7", "one")
    hf.fork("one@1", "two")
    hf.delete("full")
    for run in ("one", "two"):
        other.import_run(io.BytesIO(exported(hf, run)))
        assert facts(other, run) == facts(hf, run)
    assert other.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("run", ["full", "pruned", "fork"])
def test_import_under_another_id_equals_the_exported_run(hf: Holdfast, other: Holdfast, run: str) -> None:
    full_run(hf)
    if run == "fork":
        hf.fork("full@9", "fork")
    elif run == "pruned":
        full_run(hf, "pruned")
        hf.history("pruned").prune(Retention(last=3))
    log = other.import_run(io.BytesIO(exported(hf, run)), run_id="new")
    assert log.id == "new"
    assert facts(other, "new") == facts(hf, run)
    assert log.head.hash != hf.history(run).head.hash
    assert other.verify().ok
    hf.import_run(io.BytesIO(exported(other, "new")))
    assert facts(hf, "new") == facts(hf, run)
    assert hf.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_random_runs_are_imported_exactly(hf: Holdfast, tmp_path: Path, seed: int) -> None:
    run = random_run(hf, seed)
    with holdfast.open(tmp_path / "b.db") as other:
        other.import_run(io.BytesIO(exported(hf, run)))
        hf.import_run(io.BytesIO(exported(hf, run)), run_id="copy")
        expected = facts(hf, run)
        assert facts(other, run) == facts(hf, "copy") == expected
        assert holds(other, run) == holds(hf, "copy")
        assert {number: held for number, held in holds(other, run).items() if number > 0} == holds(hf, run)
        assert other.verify().ok
        assert hf.verify().ok
        assert other.gc(grace=0).artifacts == 0
        assert facts(other, run) == expected


def test_run_with_large_blocks_is_imported_exactly(hf: Holdfast, other: Holdfast) -> None:
    hf.history("big").commit({f"k{n}": os.urandom(500).hex() for n in range(2000)})
    data = exported(hf, "big")
    assert max(frame.blocks for frame in frames_of(data) if isinstance(frame, VersionFrame)) > 10
    other.import_run(io.BytesIO(data))
    assert other.history("big").head.state == hf.history("big").head.state


def test_empty_and_large_artifacts_are_imported_exactly(hf: Holdfast, other: Holdfast) -> None:
    content = os.urandom(5 << 19)
    hf.history("a").commit(
        {"empty": holdfast.artifact(b""), "many": holdfast.artifact(content), "leaf": content + b"!"}
    )
    other.import_run(io.BytesIO(exported(hf, "a")))
    state = other.history("a").head.state
    assert (state["empty"].read(), state["many"].read(), state["leaf"]) == (b"", content, content + b"!")
    assert other.verify().ok


# Artifacts


def test_gc_after_an_import_removes_only_unreferenced_artifacts(hf: Holdfast, tmp_path: Path) -> None:
    log = hf.history("a")
    log.commit({"n": 1, "gone": holdfast.artifact(b"gone"), "leaf": os.urandom(70_000)})
    log.commit({"n": 2, "kept": {"deep": [holdfast.artifact(b"kept")]}, "leaf": os.urandom(70_000)})
    log.commit(
        {"n": 3, "kept": {"deep": [holdfast.artifact(b"kept")]}, "tuple": (holdfast.artifact(b"in"), 1)}
    )
    log.prune(Retention(last=1))
    data = exported(hf, "a")
    assert sum(isinstance(frame, ArtifactFrame) for frame in frames_of(data)) == 2
    with holdfast.open(tmp_path / "b.db", artifacts=tmp_path / "files") as other:
        loose = holdfast.artifact(b"loose")
        other.history("loose").commit({"loose": loose})
        imported = other.import_run(io.BytesIO(data))
        other.delete("loose")
        assert other.gc(grace=0).artifacts == 1
        assert imported.head.state["kept"]["deep"][0].read() == b"kept"
        assert other.artifact(imported.head.state["tuple"][0].digest).read() == b"in"
        imported.commit({"n": 4})
        imported.prune(Retention(last=1))
        assert other.gc(grace=0).artifacts == 2
        assert other.verify().ok
        assert not [file for file in (tmp_path / "files").rglob("*") if file.is_file()]


def test_import_shares_artifacts_that_the_store_has(hf: Holdfast) -> None:
    full_run(hf)
    before = hf.stats()
    hf.import_run(io.BytesIO(exported(hf, "full")), run_id="copy")
    assert hf.stats().artifacts == before.artifacts
    hf.delete("full")
    assert hf.gc(grace=0).artifacts == 0
    assert hf.verify().ok


@pytest.mark.slow
def test_export_and_import_of_a_large_artifact_use_little_memory(hf: Holdfast, tmp_path: Path) -> None:
    piece = os.urandom(1 << 20)
    with (tmp_path / "large.bin").open("wb") as file:
        for _ in range(48):
            file.write(piece)
    hf.history("a").commit({"file": holdfast.artifact(tmp_path / "large.bin")})
    with holdfast.open(tmp_path / "b.db", artifacts=tmp_path / "files") as other:
        tracemalloc.start()
        hf.export_run("a", tmp_path / "a.hf")
        other.import_run(tmp_path / "a.hf")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20
        assert other.verify().ok


def test_import_accepts_times_ahead_of_its_own_clock(hf: Holdfast, tmp_path: Path) -> None:
    hf.history("a").commit({})
    with holdfast.open(tmp_path / "b.db", clock=lambda: 1_000_000.0) as early:
        early.import_run(io.BytesIO(exported(hf, "a")))
        assert early.runs()[0].updated.timestamp() == 1_000_000
