"""A commit whose outcome cannot be learned is neither sent again nor recorded as a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import step, workflow
from holdfast.errors import CommitUnknown, HoldfastError, LeaseLost
from holdfast.model.records import RunRecord
from holdfast.store.protocol import Append


class Forgetful:
    """A store that carries a change out and then cannot say so."""

    def __init__(self, hf: holdfast.Holdfast, when: Any) -> None:
        self._store = hf._store
        self._when = when
        self.lost = 0

    def _spoil(self, change: Append) -> None:
        if self._when(change) and not self.lost:
            self.lost += 1
            raise CommitUnknown("the connection was lost during a commit")

    def append(self, change: Append) -> RunRecord:
        made = self._store.append(change)
        self._spoil(change)
        return made

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        made = self._store.append_many(changes)
        for change in changes:
            self._spoil(change)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


done: list[str] = []


@step(name="unknown_pay")
async def pay() -> str:
    done.append("pay")
    return "paid"


@step(name="unknown_ship")
async def ship() -> str:
    done.append("ship")
    return "shipped"


@workflow(name="unknown_order")
async def order() -> list[str]:
    found = []
    try:
        found.append(await pay())
    except Exception as error:
        found.append(type(error).__name__)
    found.append(await ship())
    return found


def _is_pay(change: Append) -> bool:
    return change.version is not None and change.version.step == "unknown_pay"


def test_unknown_commit_is_recorded_once_and_never_as_a_failure(tmp_path: Path) -> None:
    done.clear()
    with holdfast.open(tmp_path / "runs.db") as hf:
        forgetful: Any = Forgetful(hf, _is_pay)
        hf._engine.committer.store = forgetful
        with pytest.raises(HoldfastError):
            asyncio.run(hf.arun(order, run_id="o"))
        assert forgetful.lost == 1
    with holdfast.open(tmp_path / "runs.db") as hf:
        steps = [version.step for version in hf.history("o").versions() if version.step]
        assert steps.count("unknown_pay") == 1
        assert hf.history("o").versions(step="unknown_pay")[0].error is None
        assert asyncio.run(hf.aresume("o")).result == ["paid", "shipped"]
        assert done.count("pay") == 1


@step(name="given_up_step")
def counted(number: int) -> int:
    done.append(f"step {number}")
    return number


@workflow(name="given_up")
def three() -> list[int]:
    return [counted(number) for number in range(3)]


def test_execution_abandoned_while_it_wrote_stays_abandoned(tmp_path: Path) -> None:
    done.clear()
    with holdfast.open(tmp_path / "runs.db") as hf:
        store = hf._store

        class Slow:
            """A store whose answer comes when the run is another's already."""

            def append(self, change: Append) -> RunRecord:
                made = store.append(change)
                if change.version is not None and change.version.number == 2:
                    hf._engine.abandon("r", hf._engine.executions["r"])
                return made

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        slow: Any = Slow()
        hf._engine.committer.store = slow
        with pytest.raises(LeaseLost):
            hf.run(three, run_id="r")
        assert hf.history("r").head.number == 2
        assert "step 2" not in done
