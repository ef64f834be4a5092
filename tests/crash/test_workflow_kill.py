"""kill -9 of a process that runs a workflow of 50 steps: the next process resumes it.

After every kill, and in the end: each step whose effect is in the world and that is not recorded was under way when
the process died; what is recorded is what one of the step's executions returned, never changes and is never run again;
all executions of a step have one idempotency key; the state is what the recorded steps make of it; one resume completes
the run, unless it is killed again.

`HOLDFAST_KILLS` sets how often (default 200). In ten stores, seven are killed at named points of the commit path, with
`def` and `async def` workflows in turn, two at random moments, one during a rollback that undoes what steps did.
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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killed_workflow import PARTS, STEPS, UNDOABLE, change, fresh

import holdfast
from holdfast import Holdfast, Version, thaw

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("HOLDFAST_KILLS", "200"))
PER_STORE = 10
_PATIENCE = 60.0

#: Points of a commit: before the store is called, with the rows written but not committed, while COMMIT runs, before it
#: is acknowledged, and after it has returned.
PLACES = ("before", "inside", "during", "committed", "after")
OTHERS = (
    ("before", "effect"),
    ("after", "effect"),
    ("between", "steps"),
    ("before", "load"),
    ("after", "load"),
)
#: Steps that can run at the same time: two in parallel, or one within another.
UNDER_WAY = 2


class KilledProcesses:
    """Starts processes that are killed or kill themselves."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("killed_workflow.py")
        self._server = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._rest = b""

    def live(self, job: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Run a process until it kills itself, completes, or is killed after some seconds; return its reports."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job).encode() + b"\n")
        outcome = self._next(_PATIENCE) or {}
        pid = outcome["ready"]
        deadline = None if seconds is None else time.monotonic() + seconds
        while "done" not in outcome and "failed" not in outcome and "ended" not in outcome:
            left = _PATIENCE if deadline is None else deadline - time.monotonic()
            line = self._next(max(0.0, left))
            if line is None:
                assert deadline is not None, f"the process does nothing: {job}"
                break
            outcome.update(line)
        if "ended" not in outcome:
            os.kill(pid, signal.SIGKILL)
        while "ended" not in outcome:
            outcome.update(self._next(_PATIENCE) or {"ended": "never"})
        assert outcome["ended"] == signal.SIGKILL
        assert "failed" not in outcome, outcome["failed"]
        return outcome

    def _next(self, wait: float) -> dict[str, Any] | None:
        """Return the next line; None if there is none in time."""
        assert self._server.stdout is not None
        deadline = time.monotonic() + wait
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._server.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
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


class Witness:
    """The observations of a run after each kill, and checks that they stay true."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.run: str = job["run"]
        #: By run and version: what was recorded there.
        self.recorded: dict[tuple[str, int], Any] = {}
        #: By label of a recorded step: how often it had run by then.
        self.ran: dict[str, int] = {}
        self.lost = 0

    def lines(self) -> list[dict[str, Any]]:
        """Return the effects of steps; an incomplete line does not count."""
        path = Path(self.job["effects"])
        if not path.exists():
            return []
        whole = path.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def look(self, hf: Holdfast) -> list[Version]:
        """Compare the run with earlier observations and with the effects; return its versions."""
        lines = self.lines()
        keys: dict[str, set[str]] = {}
        returned: dict[str, list[Any]] = {}
        for line in lines:
            keys.setdefault(line["label"], set()).add(line.pop("key"))
            returned.setdefault(line["label"], []).append(line)
        assert all(len(found) == 1 for found in keys.values()), "a step's executions differ in their key"
        assert len({key for found in keys.values() for key in found}) == len(keys), "two steps share a key"
        versions: list[Version] = []
        there = {run.id for run in hf.runs()}
        fresh_labels: set[str] = set()
        for run in sorted(name for name in there if name.startswith(self.run)):
            listed = sorted(hf.history(run).versions(limit=10_000), key=lambda version: version.number)
            assert [version.number for version in listed] == list(range(1, len(listed) + 1))
            for version in listed:
                result = thaw(version.result)
                facts = (version.kind, version.address, version.hash, result)
                assert self.recorded.setdefault((run, version.number), facts) == facts, "a record has changed"
                if version.kind == "step" and isinstance(result, dict) and "label" in result:
                    assert result in returned[result["label"]], "recorded is what no execution returned"
                    fresh_labels.add(result["label"])
            if run == self.run:
                versions = listed
        for label in fresh_labels:
            times = len(returned[label])
            assert self.ran.setdefault(label, times) == times, f"{label} was recorded and ran again"
        assert self.ran.keys() == fresh_labels, "what was recorded is gone"
        under_way = returned.keys() - fresh_labels
        assert len(under_way) <= UNDER_WAY, f"these had been done and are not recorded: {under_way}"
        self.lost += len(under_way)
        return versions

    def check_state(self, versions: list[Version]) -> None:
        """The state of the head, and of some versions before it, is what the recorded steps make of it."""
        expected = fresh()
        for version in versions:
            result = thaw(version.result)
            if version.kind == "step" and isinstance(result, dict) and "label" in result:
                change(expected, result["label"], result["token"])
            if version.number % 7 == 0 or version is versions[-1]:
                assert thaw(version.state) == expected, f"the state of version {version.number}"

    def after_kill(self) -> None:
        with holdfast.open(self.job["path"], durability="fast") as hf:
            self.check_state(self.look(hf))

    def finish(self, victims: KilledProcesses) -> None:
        """One resume completes the run; everything is there, once."""
        outcome = victims.live(self.job)
        assert outcome["done"] == "completed", outcome
        with holdfast.open(self.job["path"], durability="fast") as hf:
            versions = self.look(hf)
            self.check_state(versions)
            assert [version.kind for version in versions] == ["initial", *["step"] * STEPS, "final"]
            addresses = [version.address for version in versions]
            assert len(set(addresses[1:-1])) == STEPS
            of_parts = [label for label in self.ran if label.startswith("part of")]
            assert (len(self.ran), len(of_parts)) == (STEPS - 3 + PARTS, PARTS)
            assert {line["label"] for line in self.lines()} == self.ran.keys()
            by_label = {v.result["label"]: thaw(v.result) for v in versions if _is_work(v)}
            final = [
                by_label[given["label"]] if isinstance(given, dict) and "label" in given else given
                for given in hf.get(self.run).result
            ]
            assert final == hf.get(self.run).result, "what the workflow got is what was recorded"
            assert final.count("yes") == final.count({"now": True}) == 1
            events = Counter(event.kind for event in hf.history(self.run).events(limit=10_000))
            assert events["step.completed"] == STEPS
            for kind in (
                "run.started",
                "question.opened",
                "question.answered",
                "signal.sent",
                "run.completed",
            ):
                assert events[kind] == 1, (kind, events)
            report = hf.verify()
            assert report.ok, [str(problem) for problem in report.problems]


def _is_work(version: Version) -> bool:
    return version.kind == "step" and isinstance(version.result, dict) and "label" in version.result


def _plan(store: int, rng: random.Random) -> list[tuple[str, str, int]]:
    """Ten points at which to die, in the order in which a run comes to them; stores differ in the places."""

    def place(number: int) -> str:
        return PLACES[(store // 10 * 7 + store % 10 + number) % len(PLACES)]

    def some_step(number: int) -> tuple[str, str, int]:
        return place(number), "step", rng.randrange(1, 8)

    def other(number: int) -> tuple[str, str, int]:
        where, what = OTHERS[(store + number) % len(OTHERS)]
        return where, what, 1 if what == "load" else rng.randrange(1, 3 if what == "steps" else 8)

    waiting = ("question.opened", "question.answered", "run.suspended", "signal.sent")
    parts = ("part initial", "part step", "part final", "run.resumed")
    return [
        (place(0), "initial", 1),
        some_step(1),
        (place(2), "run.resumed", 1),
        some_step(3),
        other(0),
        (place(4), waiting[store % 2], 1),
        (place(5), parts[store % 4], 1),
        (place(6), waiting[2 + store % 2], 1),
        some_step(7) if store % 3 else other(1),
        (place(8), "final", 1),
    ]


STORES = range(max(1, KILLS // PER_STORE))


@pytest.mark.parametrize("store", [store for store in STORES if store % 10 < 7])
def test_workflow_killed_at_every_point_of_the_commit_path_is_resumed(
    store: int, victims: KilledProcesses, tmp_path: Path
) -> None:
    rng = random.Random(f"point {store}")
    workflow = "awhole" if store % 2 else "whole"
    job = {"job": "advance", "path": str(tmp_path / "runs.db"), "effects": str(tmp_path / "effects")}
    job |= {"run": f"run-{store}", "workflow": workflow}
    witness = Witness(job)
    for point in _plan(store, rng)[:KILLS]:
        outcome = victims.live({**job, "point": point, "seed": rng.random()})
        assert outcome.get("reached") == list(point[:2]), f"{point} was not reached: {outcome}"
        witness.after_kill()
    witness.finish(victims)


@pytest.mark.parametrize("store", [store for store in STORES if store % 10 in (7, 8)])
def test_workflow_killed_at_random_moments_is_resumed(
    store: int, victims: KilledProcesses, tmp_path: Path
) -> None:
    rng = random.Random(f"moment {store}")
    job = {"job": "advance", "path": str(tmp_path / "runs.db")}
    witness: Witness | None = None
    kills = runs = 0
    while kills < PER_STORE:
        if witness is None:
            runs += 1
            name = f"run-{store}-{runs}"
            witness = Witness(
                {
                    **job,
                    "run": name,
                    "workflow": rng.choice(["whole", "awhole"]),
                    "effects": str(tmp_path / name),
                }
            )
        outcome = victims.live(witness.job, seconds=rng.uniform(0.0, 0.15))
        if "done" in outcome:
            witness.finish(victims)
            witness = None
            continue
        kills += 1
        witness.after_kill()
    if witness is not None:
        witness.finish(victims)


@pytest.mark.parametrize("store", [store for store in STORES if store % 10 == 9])
def test_rollback_killed_half_way_is_resumed(store: int, victims: KilledProcesses, tmp_path: Path) -> None:
    """Newest first, each undone at least once, recorded once and never again; then the head is where it should be."""
    rng = random.Random(f"undo {store}")
    name = f"trip-{store}"
    job = {"job": "advance", "path": str(tmp_path / "runs.db"), "effects": str(tmp_path / "effects")}
    job |= {"run": name, "workflow": "trip"}
    assert victims.live(job)["done"] == "completed"
    witness = Witness(job)
    undo: dict[str, Any] = {**job, "job": "undo", "by_resume": False}
    steps = ("step", "effect", "step", "effect", "step", "step", "effect")
    for number, kind in enumerate(("run.rolling_back", *steps, "run.compensated", "run.rolled_back")):
        place = (
            ("before", "after")[number % 2] if kind == "effect" else PLACES[(store + number) % len(PLACES)]
        )
        outcome = victims.live({**undo, "point": (place, kind, 1), "seed": rng.random()})
        assert outcome.get("reached") == [place, kind], f"{place} {kind} was not reached: {outcome}"
        with holdfast.open(job["path"], durability="fast") as hf:
            witness.look(hf)
    with holdfast.open(job["path"], durability="fast") as hf:
        before = len(hf.history(name).timelines())
    outcome = victims.live({**undo, "by_resume": store % 20 == 9})
    labels = list(dict.fromkeys(line["label"] for line in witness.lines()))
    done = [f"{name} {number}" for number in range(UNDOABLE)]
    assert labels[: 2 * UNDOABLE] == done + [f"undo {label}" for label in reversed(done)]
    with holdfast.open(job["path"], durability="fast") as hf:
        log = hf.history(name)
        assert len(log.timelines()) in (before, before + 1)
        undone = [v for v in log.versions(limit=1000) if (v.address or "").startswith("[undo]/")]
        assert len(undone) == UNDOABLE
        assert outcome["done"] in ("paused", "completed")
        if outcome["done"] == "paused":
            assert (log.head.number, thaw(log.head.state)) == (1, fresh())
        else:
            assert thaw(log.head.state)["log"] == done
        report = hf.verify()
        assert report.ok, [str(problem) for problem in report.problems]
