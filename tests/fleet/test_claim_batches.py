"""Runs that are claimed together are read together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fleet_flows as flows
import pytest
from worker_processes import World

import holdfast
from holdfast import Holdfast, workflow


@workflow(name="f_batched")
async def batched(value: int) -> int:
    return value


@pytest.fixture
def hf(tmp_path: Path, world: World) -> Any:
    with holdfast.open(tmp_path / "runs.db") as opened:
        yield opened


@pytest.mark.parametrize("flow", [batched, flows.adding], ids=["async", "plain"])
def test_claimed_batch_reads_its_heads_at_once(
    hf: Holdfast, flow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    single, many = hf._store.packs, hf._store.packs_of

    def packs(run: int, numbers: Sequence[int]) -> Any:
        reads.append(1)
        return single(run, numbers)

    def packs_of(places: Sequence[tuple[int, int]]) -> Any:
        reads.append(len(places))
        return many(places)

    runs = [hf.enqueue(flow, 1) for _ in range(30)]
    monkeypatch.setattr(hf._store, "packs", packs)
    monkeypatch.setattr(hf._store, "packs_of", packs_of)
    with hf.worker(concurrency=30, monitor=False):
        for run in runs:
            run.wait(20)
    assert reads == [30]


def test_claimed_batch_reads_heads_one_by_one_after_an_error(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Any:
        raise holdfast.StoreUnavailable("away for a moment")

    monkeypatch.setattr(hf._store, "packs_of", refused)
    runs = [hf.enqueue(batched, number) for number in range(5)]
    with hf.worker(monitor=False):
        assert [run.wait(20).result for run in runs] == list(range(5))
