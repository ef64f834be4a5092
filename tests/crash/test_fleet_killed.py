"""Workers are killed and stopped repeatedly: every run completes, and nothing is recorded twice.

`HOLDFAST_FLEET` multiplies the size: 1 is for every day (4 workers, 300 runs of 5 steps, a kill each second for 8
seconds; 10 workers frozen past their lease), 7 is what the promises say (2,000 runs, a minute of kills; 100 freezes).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.model.records import RunRecord
from patience import until
from process_suspension import suspend_process

pytestmark = pytest.mark.slow
pytest_plugins = ["postgres_fixtures"]

SIZE = float(os.environ.get("HOLDFAST_FLEET", "1"))
WORKERS = 4
RUNS = int(300 * SIZE) if SIZE < 7 else 2000
STEPS = 5
KILLS = int(8 * SIZE) if SIZE < 7 else 60
FREEZES = int(10 * SIZE) if SIZE < 7 else 100
LEASE = 1.0
PATIENCE = 120.0 * max(1.0, SIZE)
PROGRAM = Path(__file__).with_name("fleet_worker.py")


class Crew:
    """Workers, each in its own process, that are replaced when they end."""

    def __init__(self, where: str, folder: Path, **options: Any) -> None:
        self._given = json.dumps({"where": where, "folder": str(folder), "lease": LEASE, **options})
        self._folder = folder
        self.members: list[subprocess.Popen[bytes]] = []
        self.hired = 0

    def hire(self) -> subprocess.Popen[bytes]:
        with (self._folder / "stderr.txt").open("a") as errors:
            member = subprocess.Popen([sys.executable, str(PROGRAM), self._given], stderr=errors)
        self.members.append(member)
        self.hired += 1
        return member

    def kill(self, member: subprocess.Popen[bytes]) -> None:
        member.kill()
        member.wait()
        self.members.remove(member)

    def close(self) -> None:
        """End all workers; one that has just started does not handle the signal yet."""
        for member in self.members:
            member.terminate()
        assert {member.wait(60) for member in self.members} <= {0, -signal.SIGTERM}


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs.db") if request.param == "sqlite" else str(request.getfixturevalue("url"))


@pytest.fixture
def hf(where: str) -> Iterator[Holdfast]:
    with holdfast.open(where, durability="fast", lease=LEASE) as opened:
        yield opened


def enqueue(hf: Holdfast, count: int) -> None:
    for number in range(count):
        hf.enqueue("crash_fleet" if number % 2 else "crash_afleet", number, STEPS, run_id=f"run-{number}")


def wait_for_all(hf: Holdfast, count: int) -> None:
    end = time.monotonic() + PATIENCE
    while (runs := hf.queue("default").runs).get("completed", 0) < count:
        assert time.monotonic() < end, runs
        assert not runs.get("failed"), runs
        time.sleep(0.1)


def owned(hf: Holdfast, pid: int) -> list[RunRecord]:
    """Return the runs that a process owns according to the store."""
    runs = hf._store.runs(statuses=["running"], limit=1000)
    return [run for run in runs if run.owner is not None and run.owner.split("|")[1] == str(pid)]


def has_started(hf: Holdfast, pid: int) -> bool:
    """Return whether a process owns runs, or no run is left."""
    return bool(owned(hf, pid)) or not hf.queue("default").runs.get("queued")


def has_lost_one(hf: Holdfast, before: list[RunRecord]) -> bool:
    """Return whether another process has taken over one of these runs."""
    return any(
        now is not None and now.owner not in (None, run.owner)
        for run in before
        for now in [hf._store.run(run.id)]
    )


def check(hf: Holdfast, folder: Path, count: int) -> None:
    """Check of each run that every step is recorded once, and that its state and result follow from them."""
    for number in range(count):
        run = hf.get(f"run-{number}")
        versions = [version for version in run.history().versions(limit=50) if version.kind == "step"]
        addresses = Counter(version.address for version in versions)
        assert len(addresses) == STEPS, addresses
        assert set(addresses.values()) == {1}, addresses
        results = [version.result for version in reversed(versions)]
        assert run.result == results
        assert run.state == {"done": results}
        assert [result.split(":")[0] for result in results] == [f"{number}.{step}" for step in range(STEPS)]
    # Every execution of a step that was tried twice had the same idempotency key.
    keys: dict[str, set[str]] = {}
    for line in (folder / "effects.txt").read_text().splitlines():
        step, key = line.split()
        keys.setdefault(step, set()).add(key)
    assert len(keys) == count * STEPS
    assert all(len(found) == 1 for found in keys.values())
    report = hf.verify()
    assert report.ok, report


def test_runs_complete_while_workers_are_killed_repeatedly(hf: Holdfast, where: str, tmp_path: Path) -> None:
    enqueue(hf, RUNS)
    crew = Crew(where, tmp_path, pause=WORKERS * 8 * KILLS / (RUNS * STEPS) * 0.8)
    for _ in range(WORKERS):
        crew.hire()
    chance = random.Random(7)
    for _ in range(KILLS):
        time.sleep(1.0)
        crew.kill(chance.choice(crew.members))
        crew.hire()
    wait_for_all(hf, RUNS)
    crew.close()
    check(hf, tmp_path, RUNS)


def test_stopped_worker_cannot_commit_after_its_lease_expired(
    hf: Holdfast, where: str, tmp_path: Path
) -> None:
    count = 15 * FREEZES
    enqueue(hf, count)
    crew = Crew(where, tmp_path, pause=WORKERS * 8 * FREEZES * LEASE * 3 / (count * STEPS))
    for _ in range(WORKERS):
        crew.hire()
    chance = random.Random(11)
    taken = 0
    for _ in range(FREEZES):
        member = chance.choice(crew.members)
        until(partial(has_started, hf, member.pid), "a worker to start")
        suspend_process(member.pid, where)
        if before := owned(hf, member.pid):
            until(partial(has_lost_one, hf, before), "another to take a run over")
            taken += 1
        os.kill(member.pid, signal.SIGCONT)
    wait_for_all(hf, count)
    crew.close()
    check(hf, tmp_path, count)
    # What they did while they believed to own a run that another took was refused, and they said so.
    assert taken >= FREEZES / 2
    assert (tmp_path / "stderr.txt").read_text().count("another process owns run") >= taken / 2
