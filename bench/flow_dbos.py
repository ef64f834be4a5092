"""The workflow on DBOS with a SQLite system database, or on a PostgreSQL server.

Set: nothing is logged, no OTLP, no conductor, a fixed version of the application (else it hashes the source at every
launch), WAL in the file (DBOS leaves it at SQLite's slower default, which `AsItComes` measures). Everything else is as
it comes, its serializer and its threads among it: what is started again by a fork or a recovery waits in a queue that
DBOS polls once a second.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench import flow


@DBOS.step()
def work(number: int) -> str:
    return flow.body(number)


@DBOS.workflow()
def in_line(steps: int) -> float:
    """Gives the seconds that it took: to replay them, if all steps were recorded."""
    start = perf_counter()
    for number in range(1, steps + 1):
        work(number)
    return perf_counter() - start


@DBOS.step()
async def awork(number: int) -> str:
    return flow.body(number)


@DBOS.workflow()
async def at_once(steps: int) -> None:
    for number in range(1, steps + 1):
        await awork(number)


class Engine:
    """DBOS, of which there is one in a process."""

    name = "DBOS"
    with_log = True

    def __init__(self, path: Path) -> None:
        if self.with_log and not path.exists():
            flow.make_with_log(path)
        _launch(f"sqlite:///{path}")

    def run(self, run_id: str, steps: int) -> None:
        with SetWorkflowID(run_id), suppress(flow.Stop):
            in_line(steps)

    async def run_many(self, runs: int, steps: int) -> None:
        await asyncio.gather(*(at_once(steps) for _ in range(runs)))

    def go_back(self, run_id: str, step: int) -> None:
        with suppress(flow.Stop):
            DBOS.fork_workflow(run_id, step + 1).get_result()

    def replay(self, run_id: str, steps: int) -> float | None:
        # From the workflow's first line to its last, without the wait for the queue.
        took: float = DBOS.fork_workflow(run_id, steps + 1).get_result()
        return took

    def resume(self, run_id: str) -> None:
        # It has been under way since the launch.
        threading.Event().wait(60)
        raise AssertionError(f"run {run_id} was not recovered")

    def close(self) -> None:
        DBOS.destroy()


class AsItComes(Engine):
    """DBOS with a file that it makes itself."""

    name = "DBOS as it comes"
    with_log = False


class OnServer(Engine):
    """DBOS in a database of a PostgreSQL server."""

    def __init__(self, url: str) -> None:
        _launch(url)


def _launch(url: str) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "application_version": "1",
        "system_database_url": url,
        "log_level": "CRITICAL",
        "console_log_level": "CRITICAL",
        "enable_otlp": False,
    }
    DBOS(config=config)
    DBOS.launch()
