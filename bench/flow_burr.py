"""The workflow on Burr: one application, one action, which is repeated.

Set: no tracker (its UI's log), no hooks but the persister, its logger silent, WAL in the file (Burr leaves it at
SQLite's slower default, which `AsItComes` measures). A persister writes the whole state after each action; here that is
the number and the last result alone, so that each result is written once. Burr records no results: it goes on from the
state, and so has nothing to replay.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from burr.core import ApplicationBuilder, State, action
from burr.core.persistence import SQLitePersister
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

from bench import flow

logging.getLogger("burr").setLevel(
    logging.CRITICAL
)  # it logs each failure of an action, and ours mean nothing


@action(reads=["number"], writes=["number", "result"])
def work(state: State) -> State:
    number = state["number"] + 1
    return state.update(number=number, result=flow.body(number))


@action(reads=["number"], writes=["number", "result"])
async def awork(state: State) -> State:
    number = state["number"] + 1
    return state.update(number=number, result=flow.body(number))


class Engine:
    """Burr, with the persisters for SQLite that come with it."""

    name = "Burr"
    with_log = True

    def __init__(self, path: Path) -> None:
        if self.with_log and not path.exists():
            flow.make_with_log(path)
        self._path = path
        self._persister = SQLitePersister.from_values(str(path))
        self._persister.initialize()

    def run(self, run_id: str, steps: int) -> None:
        _steps(_builder(self._persister, run_id).build(), steps)

    async def run_many(self, runs: int, steps: int) -> None:
        async with AsyncSQLitePersister.from_values(str(self._path)) as persister:
            await persister.initialize()
            await asyncio.gather(*(_run(persister, steps) for _ in range(runs)))

    def go_back(self, run_id: str, step: int) -> None:
        # The first action has the number 0.
        parts = {"fork_from_app_id": run_id, "fork_from_sequence_id": step - 1}
        _steps(_builder(self._persister, uuid4().hex, **parts).build(), flow.STEPS - step)

    def replay(self, run_id: str, steps: int) -> float | None:
        return None

    def resume(self, run_id: str) -> None:
        self.run(run_id, flow.STEPS)

    def close(self) -> None:
        self._persister.cleanup()


class AsItComes(Engine):
    """Burr with a file that it makes itself."""

    name = "Burr as it comes"
    with_log = False


async def _run(persister: AsyncSQLitePersister, steps: int) -> None:
    app = await _builder(persister, uuid4().hex, awork).abuild()
    for _ in range(steps):
        await app.astep()


def _steps(app: Any, count: int) -> None:
    with suppress(flow.Stop):
        for _ in range(count):
            app.step()


def _builder(persister: Any, app_id: str, what: Any = work, **fork: Any) -> Any:
    """An application that goes on from what is kept of it, or of the one that it is forked from."""
    return (
        ApplicationBuilder()
        .with_actions(work=what)
        .with_transitions(("work", "work"))
        .with_identifiers(app_id=app_id)
        .initialize_from(
            persister,
            resume_at_next_action=True,
            default_state={"number": 0},
            default_entrypoint="work",
            **fork,
        )
        .with_state_persister(persister)
    )
