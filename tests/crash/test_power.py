"""Power failures at any point, with torn and reordered sectors: acknowledged work is in the store afterwards.

`HOLDFAST_CUTS` sets how often (default 500).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from acknowledged_work import Check, Fact, Work, reopened
from power_failure import SimulatedDisk

import holdfast
import holdfast.atomic_file
import holdfast.store.artifact_folder
from disk import Call, Disk

pytestmark = pytest.mark.slow

CUTS = int(os.environ.get("HOLDFAST_CUTS", "500"))
#: Cuts of one recorded piece of work.
_PER_WORK = 50


def record(folder: Path, rng: random.Random, durability: str) -> list[Call | Fact]:
    """Do work of every kind; return its system calls and, between them, the acknowledged effects."""
    entries: list[Call | Fact] = []

    def watch(call: Call) -> None:
        if call.kind != "read":
            entries.append(call)

    with_folder = rng.random() < 0.6
    with Disk(folder, watch):
        for _ in range(2):
            artifacts = folder / "artifacts" if with_folder else None
            with holdfast.open(folder / "runs.db", durability=durability, artifacts=artifacts) as hf:
                work = Work(hf, folder, entries.append, rng)
                work.commit(count=3)
                kinds = [work.commit, work.commit, work.commit, work.rollback, work.tag, work.prune, work.gc]
                kinds += [work.delete, work.export, work.bring_in, work.backup, work.flow, work.compact]
                rng.shuffle(kinds)
                for kind in kinds:
                    kind()
    return entries


def cuts(folder: Path, seed: int, count: int, durability: str) -> tuple[int, list[str], list[str]]:
    """Record work and simulate power failures during it; return how many, and the lost and torn effects."""
    rng = random.Random(f"{durability} {seed}")
    original = folder / "original"
    original.mkdir()
    entries = record(original, rng, durability)
    places = sorted(rng.choices(range(len(entries) + 1), k=count))
    disk, facts, done = SimulatedDisk(original), [], 0
    lost: list[str] = []
    torn: list[str] = []
    for number, place in enumerate(places):
        for entry in entries[done:place]:
            if isinstance(entry, Call):
                disk.apply(entry)
            else:
                facts.append(entry)
        done = place
        left = folder / "left"
        left.mkdir()
        disk.cut(left, rng)
        at = f"seed {seed}, cut {number} at {place}: "
        with reopened(left) as hf:
            check = Check(hf, left, facts)
            lost += [at + each for each in check.lost]
            torn += [at + each for each in check.torn]
            assert hf.history("after").commit({"still": "usable"}).number == 1
        shutil.rmtree(left)
    shutil.rmtree(original)
    return len(places), lost, torn


@pytest.mark.parametrize("part", range(10))
def test_power_failure_loses_no_acknowledged_commit(tmp_path: Path, part: int) -> None:
    left = -(-CUTS // 10)
    while left > 0:
        count, lost, torn = cuts(tmp_path, part * 1_000_000 + left, min(left, _PER_WORK), "durable")
        assert (lost, torn) == ([], [])
        left -= count


def test_power_failure_of_a_fast_store_loses_whole_commits_only(tmp_path: Path) -> None:
    """Losses here show that the test detects losses."""
    _, lost, torn = cuts(tmp_path, 1, 40, "fast")
    assert lost
    assert torn == []


def test_power_failure_loses_files_whose_folder_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same control for files that Holdfast writes itself."""
    for module in (holdfast.atomic_file, holdfast.store.artifact_folder):
        monkeypatch.setattr(module, "sync_folder", lambda folder: None)
    _, lost, torn = cuts(tmp_path, 2, 40, "durable")
    assert lost + torn
