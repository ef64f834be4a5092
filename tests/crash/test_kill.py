"""kill -9: all calls that were acknowledged before are in the store, complete, and the store stays usable.

`HOLDFAST_KILLS` sets the number of kills (default 200). A process is killed at a random moment of its work; several
kills hit one growing store, some of them before it was opened again.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from killed_process import KEEP, RUNS, digest

import holdfast
from holdfast import History, Holdfast

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("HOLDFAST_KILLS", "200"))
PER_STORE = 10
#: Kills of each of the rarer sorts of work.
FEW = max(3, KILLS // 20)
_PATIENCE = 60.0


class Moment(NamedTuple):
    """When to kill: a number of seconds after a number of reports."""

    calls: int
    seconds: float

    @classmethod
    def choose(cls, rng: random.Random, most: int = 30) -> Moment:
        """Return a random moment, mostly during the work, sometimes while the store is opened."""
        opening = rng.random() < 0.2
        return (
            cls(0, rng.uniform(0.0, 0.03)) if opening else cls(rng.randrange(most), rng.uniform(0.0, 0.006))
        )


class KilledProcesses:
    """Starts processes and kills them."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("killed_process.py")
        self._server = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._rest = b""

    def kill(self, job: dict[str, Any], moment: Moment) -> list[dict[str, Any]]:
        """Start a job and kill its process; return its reports of acknowledged calls."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job).encode() + b"\n")
        pid = self._next(_PATIENCE)["ready"]
        acknowledged: list[dict[str, Any]] = []
        while len(acknowledged) < moment.calls and (not acknowledged or "failed" not in acknowledged[-1]):
            acknowledged.append(self._next(_PATIENCE))
        deadline = time.monotonic() + moment.seconds
        while (left := deadline - time.monotonic()) > 0:
            line = self._next(left, missing={})
            if line:
                acknowledged.append(line)
        os.kill(pid, signal.SIGKILL)
        while "ended" not in (line := self._next(_PATIENCE)):
            acknowledged.append(line)
        assert line["ended"] == signal.SIGKILL
        failed = [line["failed"] for line in acknowledged if "failed" in line]
        assert not failed, failed[0]
        return acknowledged

    def _next(self, wait: float, missing: Any = None) -> dict[str, Any]:
        """Return the next line, or `missing` if there is none in time."""
        assert self._server.stdout is not None
        deadline = time.monotonic() + wait
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._server.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                assert missing is not None, "the process that should be killed does nothing"
                return dict(missing)
            more = os.read(self._server.stdout.fileno(), 1 << 16)
            assert more, "the fork server has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(_PATIENCE)
        self._server.stdout.close()


@pytest.fixture(scope="module")
def victims() -> Iterator[KilledProcesses]:
    found = KilledProcesses()
    yield found
    found.close()


class AcknowledgedCalls:
    """The acknowledged calls of all killed processes, and checks that their effects are in the store."""

    def __init__(self) -> None:
        self.digests: dict[tuple[str, int], str] = {}
        self.seeds: dict[tuple[str, int], float] = {}
        self.tags: dict[tuple[str, int], set[str]] = {}
        self.timelines: dict[tuple[str, int], int] = {}
        self.pins: set[tuple[str, int]] = set()
        #: Versions that a pruning may have removed, and those that one has.
        self.doomed: set[tuple[str, int]] = set()
        self.gone: set[tuple[str, int]] = set()

    def add(self, lines: list[dict[str, Any]]) -> list[tuple[str, int]]:
        """Add the reports of one process; return the versions among them."""
        fresh = []
        for line in lines:
            run = line["run"]
            if "digest" in line:
                place = (run, line["number"])
                assert place not in self.digests, f"{place} was given twice"
                fresh.append(place)
                self.digests[place] = line["digest"]
                self.tags.setdefault(place, set()).update(line.get("tags", ()))
                if "seed" in line:
                    self.seeds[place] = line["seed"]
            elif "tag" in line:
                self.tags.setdefault((run, line["tagged"]), set()).add(line["tag"])
            elif "timeline" in line:
                self.timelines[(run, line["timeline"])] = line["to"]
            elif "pinned" in line:
                self.pins.add((run, line["pinned"]))
            elif "pruning" in line:
                self.doomed.update((run, number) for number in line["pruning"])
            elif "pruned" in line:
                self.gone.update((run, number) for number in line["pruned"])
        return fresh

    def check(self, hf: Holdfast, states: list[tuple[str, int]]) -> None:
        """Check that all acknowledged versions are listed, and compare the states of these versions."""
        for run in {run for run, _ in self.digests}:
            log = hf.history(run)
            listed = {version.number: version for version in log.versions(limit=1_000_000)}
            missing = {number for name, number in self.digests if name == run} - listed.keys()
            assert {(run, number) for number in missing} <= self.doomed, f"lost: {run} {sorted(missing)}"
            for (name, number), tags in self.tags.items():
                assert name != run or number in missing or tags <= set(listed[number].tags)
            parents = {line.number: line.parent for line in log.timelines()}
            for (name, number), parent in self.timelines.items():
                assert name != run or parents[number] == parent
        for place in states:
            if place not in self.doomed:
                self._compare(hf.history(place[0]), place)

    def _compare(self, log: History, place: tuple[str, int]) -> None:
        version = log.at(place[1])
        assert digest(version.state) == self.digests[place], f"{place} is torn"
        if place in self.seeds:
            assert version.result == {"seed": self.seeds[place]}


def _numbers(log: History) -> list[int]:
    return sorted(version.number for version in log.versions(limit=1_000_000))


@pytest.mark.parametrize("store", range(max(1, KILLS // PER_STORE)))
def test_kill_loses_no_acknowledged_version(store: int, victims: KilledProcesses, tmp_path: Path) -> None:
    rng = random.Random(f"kill {store}")
    job: dict[str, Any] = {"job": "commit", "path": str(tmp_path / "runs.db")}
    if store % 2:
        job["artifacts"] = str(tmp_path / "artifacts")
    calls = AcknowledgedCalls()
    unopened = 0
    fresh: list[tuple[str, int]] = []
    for turn in range(min(PER_STORE, KILLS)):
        fresh += calls.add(victims.kill({**job, "seed": rng.random()}, Moment.choose(rng)))
        unopened += 1
        if rng.random() < 0.3 and turn < PER_STORE - 1:
            continue
        with holdfast.open(job["path"], artifacts=job.get("artifacts")) as hf:
            calls.check(hf, fresh)
            assert hf.verify().problems == ()
            written = 0
            for run in hf.runs():
                numbers = _numbers(hf.history(run.id))
                assert numbers == list(range(1, len(numbers) + 1))
                written += len(numbers)
            silent = written - len(calls.digests)
            assert 0 <= silent <= unopened, "more versions than were acknowledged or under way"
            calls.digests.update(_unacknowledged(hf, calls))
        unopened = 0
        fresh = []
    with holdfast.open(job["path"], artifacts=job.get("artifacts")) as hf:
        calls.check(hf, list(calls.digests))
        there = {run.id for run in hf.runs()}
        for name in RUNS:
            log = hf.history(name)
            before = len(_numbers(log)) if name in there else 0
            assert log.commit({"still": "alive"}).number == before + 1
        assert hf.verify().ok


def _unacknowledged(hf: Holdfast, calls: AcknowledgedCalls) -> dict[tuple[str, int], str]:
    """Return versions whose commit was not acknowledged before the kill: once seen, they must stay."""
    return {
        (run.id, number): digest(hf.history(run.id).at(number).state)
        for run in hf.runs()
        for number in _numbers(hf.history(run.id))
        if (run.id, number) not in calls.digests
    }


@pytest.mark.parametrize("folder", [False, True], ids=["database", "folder"])
@pytest.mark.parametrize("work", ["prune", "collect"])
def test_killed_prune_and_gc_are_all_or_nothing(
    work: str, folder: bool, victims: KilledProcesses, tmp_path: Path
) -> None:
    rng = random.Random(f"{work} {folder}")
    job: dict[str, Any] = {"job": work, "path": str(tmp_path / "runs.db")}
    if folder:
        job["artifacts"] = str(tmp_path / "artifacts")
    calls = AcknowledgedCalls()
    for _ in range(FEW):
        calls.add(victims.kill({**job, "seed": rng.random()}, Moment.choose(rng)))
        if not calls.digests:
            continue
        with holdfast.open(job["path"], artifacts=job.get("artifacts")) as hf:
            assert hf.verify().problems == ()
            log = hf.history("ada")
            numbers = _numbers(log)
            calls.check(hf, [])
            calls.digests.update(_unacknowledged(hf, calls))
            assert not calls.gone & {("ada", number) for number in numbers}
            assert {number for _, number in calls.pins} <= set(numbers)
            last = numbers[-1]
            assert set(range(max(1, last - 1), last + 1)) <= set(numbers)
            for number in numbers:
                assert digest(log.at(number).state) == calls.digests[("ada", number)]
    with holdfast.open(job["path"], artifacts=job.get("artifacts")) as hf:
        log = hf.history("ada")
        log.commit({"still": "alive"})
        log.prune(holdfast.Retention(last=KEEP))
        hf.gc(grace=0)
        assert hf.verify().ok
        assert log.head.state == {"still": "alive"}


def test_killed_import_is_all_or_nothing(victims: KilledProcesses, tmp_path: Path) -> None:
    rng = random.Random("import")
    bundle = tmp_path / "run.bundle"
    with holdfast.open(tmp_path / "source.db", durability="fast") as source:
        log = source.history("source")
        for number in range(60):
            with log.edit(step="work") as state:
                state.setdefault("messages", []).append({"n": number, "text": "x" * 200})
                if number % 20 == 0:
                    state["large"] = rng.randbytes(70_000)
        log.rollback(to=30)
        log.tag(30, "good")
        source.export_run("source", bundle)
        expected = [digest(log.at(number).state) for number in _numbers(log)]
    job = {"job": "bring_in", "path": str(tmp_path / "runs.db"), "more": str(bundle)}
    acknowledged: set[str] = set()
    for _ in range(FEW):
        lines = victims.kill({**job, "seed": rng.random()}, Moment.choose(rng, most=5))
        acknowledged |= {line["run"] for line in lines}
        with holdfast.open(job["path"]) as hf:
            assert hf.verify().problems == ()
            runs = {run.id for run in hf.runs(limit=100_000)}
            assert acknowledged <= runs
            assert len(runs - acknowledged) <= FEW
            for run in runs:
                copied = hf.history(run)
                assert _numbers(copied) == list(range(1, len(expected) + 1))
                assert copied.at("good").number == 30
            last = hf.history(max(runs)) if runs else None
            if last is not None:
                assert [digest(last.at(number).state) for number in _numbers(last)] == expected


@pytest.mark.parametrize("folder", [False, True], ids=["database", "folder"])
def test_killed_backup_is_complete_or_absent(folder: bool, victims: KilledProcesses, tmp_path: Path) -> None:
    rng = random.Random(f"backup {folder}")
    copies = tmp_path / "copies"
    copies.mkdir()
    job: dict[str, Any] = {"job": "back_up", "path": str(tmp_path / "runs.db"), "more": str(copies)}
    if folder:
        job["artifacts"] = str(tmp_path / "artifacts")
    calls = AcknowledgedCalls()
    acknowledged: dict[str, int] = {}
    for _ in range(FEW):
        lines = victims.kill({**job, "seed": rng.random()}, Moment.choose(rng, most=6))
        calls.add([line for line in lines if "backup" not in line])
        acknowledged |= {line["backup"]: line["version"] for line in lines if "backup" in line}
        if not calls.digests:
            continue
        with holdfast.open(job["path"], artifacts=job.get("artifacts")) as hf:
            assert hf.verify().problems == ()
            calls.check(hf, list(calls.digests))
            calls.digests.update(_unacknowledged(hf, calls))
    found = {file.name: file for file in copies.glob("copy-*.db")}
    assert acknowledged
    assert acknowledged.keys() <= found.keys()
    for name, file in found.items():
        with holdfast.open(file, artifacts=copies / "copies" if folder else None) as copy:
            assert copy.verify().problems == ()
            log = copy.history("ada")
            assert log.head.number == acknowledged.get(name, log.head.number)
            for number in _numbers(log):
                assert digest(log.at(number).state) == calls.digests[("ada", number)]
