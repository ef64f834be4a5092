"""Workflows on PostgreSQL, from end to end: what differs from SQLite is below them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from postgres_server import Server, address

import holdfast
from holdfast import Holdfast, step, workflow

pytest_plugins = ["postgres_fixtures"]

#: Steps that really ran, in this process.
ran: list[str] = []


@step(name="pg_search")
def search(topic: str) -> str:
    ran.append("search")
    holdfast.state()["sources"] = [topic]
    return f"about {topic}"


@step(name="pg_write")
def write(found: str) -> str:
    ran.append("write")
    holdfast.state()["draft"] = found.upper()
    return found.upper()


@workflow(name="pg_report")
def report(topic: str) -> str:
    return write(search(topic))


@workflow
def publish(topic: str) -> str:
    draft = write(search(topic))
    return draft if holdfast.ask("Publish?") == "yes" else ""


@pytest.fixture
def hf(url: str) -> Holdfast:
    ran.clear()
    return holdfast.open(url)


def test_run_is_rolled_back_forked_and_compared(hf: Holdfast) -> None:
    run = hf.run(report, "kelp")
    assert run.result == "ABOUT KELP"
    assert run.state == {"sources": ["kelp"], "draft": "ABOUT KELP"}
    assert hf.rollback(run.id, to=2).result == "ABOUT KELP"
    assert ran == ["search", "write", "write"]
    fork = hf.fork(run.id, "fork", at=2, edit={"sources": ["moss"]})
    assert hf.resume("fork").result == "ABOUT KELP"
    assert fork.head.state["sources"] == ["moss"]
    assert "pg_write" in [pair.name for pair in hf.compare(run.id, "fork").steps]
    assert hf.history(run.id).blame("draft").step == "pg_write"
    assert hf.verify().problems == ()
    hf.close()


def test_killed_run_is_resumed_elsewhere(hf: Holdfast, url: str, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "import os, signal, sys, holdfast\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / 'store')]!r}\n"
        "import test_postgres_runs as flows\n"
        "flows.ran = type('Fatal', (list,), {'append': lambda self, name: "
        "name == 'write' and os.kill(os.getpid(), signal.SIGKILL)})()\n"
        "holdfast.open(sys.argv[1]).run(flows.report, 'kelp', run_id='run')\n"
    )
    done = subprocess.run([sys.executable, str(program), url], check=False, timeout=50)
    assert done.returncode == -signal.SIGKILL
    assert hf.version("run").state == {"sources": ["kelp"]}
    assert hf.resume("run").result == "ABOUT KELP"
    assert ran == ["write"]
    hf.close()


def test_answer_and_events_arrive_from_another_process(hf: Holdfast, url: str) -> None:
    came = threading.Event()
    seen: list[str] = []

    def hear(event: holdfast.model.public.Event) -> None:
        seen.append(event.kind)
        if event.kind == "run.completed":
            came.set()

    with hf.subscribe(hear), holdfast.open(url) as other:
        run = other.run(publish, "kelp", run_id="run")
        assert run.status == "suspended"
        (prompt,) = hf.inbox()
        hf.answer(prompt.id, "yes")
        assert other.resume("run").result == "ABOUT KELP"
        assert came.wait(10)
    assert seen[0] == "run.started"
    assert len(seen) == len(hf.events())
    hf.close()


def test_concurrent_tasks_share_transactions(hf: Holdfast) -> None:
    count = 30

    @step(name="tick")
    async def tick(number: int) -> int:
        return number

    @workflow(name="ticks")
    async def ticks() -> int:
        return sum([await tick(number) for number in range(5)])

    async def main() -> list[int]:
        runs = await asyncio.gather(*(hf.arun(ticks) for _ in range(count)))
        return [run.result for run in runs]

    assert asyncio.run(main()) == [10] * count
    assert hf.stats().versions == count * 7
    hf.close()


@pytest.mark.slow
def test_run_resumes_after_the_server_went_away(own_server: Server) -> None:
    tries: list[str] = []

    @step(name="prepare")
    def prepare() -> str:
        tries.append("prepare")
        return "ready"

    @step(name="vanish")
    def vanish() -> str:
        tries.append("vanish")
        if len(tries) == 2:
            own_server.stop()
        return "there"

    @workflow(name="journey")
    def journey() -> list[str]:
        return [prepare(), vanish()]

    with holdfast.open(address(own_server.url, "journey"), timeout=3) as hf:
        with pytest.raises((holdfast.StoreUnavailable, holdfast.CommitUnknown)):
            hf.run(journey, run_id="run")
        own_server.again()
        assert hf.resume("run").result == ["ready", "there"]
        assert tries == ["prepare", "vanish", "vanish"]
        assert [version.step for version in hf.history("run").versions()] == [None, "vanish", "prepare", None]
