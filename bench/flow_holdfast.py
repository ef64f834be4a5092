"""The workflow on Holdfast, as it is by default."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import holdfast
from bench import flow
from bench.measure import seconds


@holdfast.step
def work(number: int) -> str:
    return flow.body(number)


@holdfast.workflow
def in_line(steps: int) -> None:
    for number in range(1, steps + 1):
        work(number)


@holdfast.step
async def awork(number: int) -> str:
    return flow.body(number)


@holdfast.workflow
async def at_once(steps: int) -> None:
    for number in range(1, steps + 1):
        await awork(number)


class Engine:
    """Ours."""

    name = ""

    def __init__(self, path: Path) -> None:
        self._hf = holdfast.open(path)

    def run(self, run_id: str, steps: int) -> None:
        _check(self._hf.run(in_line, steps, run_id=run_id, raises=False))

    async def run_many(self, runs: int, steps: int) -> None:
        flows = (
            self._hf.arun(at_once, steps, run_id=f"run-{uuid4().hex}", raises=False) for _ in range(runs)
        )
        for run in await asyncio.gather(*flows):
            _check(run)

    def go_back(self, run_id: str, step: int) -> None:
        # Version 1 is the state at the beginning.
        _check(self._hf.rollback(run_id, to=step + 1, raises=False))

    def replay(self, run_id: str, steps: int) -> float | None:
        # After the last step, before the end of the run.
        self._hf.rollback(run_id, to=steps + 1, resume=False)
        return seconds(lambda: self.resume(run_id))

    def resume(self, run_id: str) -> None:
        _check(self._hf.resume(run_id, raises=False))

    def close(self) -> None:
        self._hf.close()


def _check(run: holdfast.Run) -> None:
    """Only a run that was stopped may have failed."""
    if run.status != "completed" and not isinstance(run.error, flow.Stop):
        raise AssertionError(f"run {run.id} is {run.status}: {run.error}")
