"""How fast workflows run: steps one by one and many at once, going back, going on after a kill, replay.

The peers do the same work on the same disk; `flow_dbos` and `flow_burr` say how they are set. Whatever takes
turns with the raw limit does so from within: at every 50th step the watch stops while the raw writer commits.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from bench import flow
from bench.measure import TURN, Bench, Rates, Raw, Row, Turns, file_size, megabytes, note

_HALF = flow.STEPS // 2
_CROWD = 500
_CROWD_STEPS = 4
_TASKS = 64
_TASK_STEPS = 50
_ROUNDS = 3
_MODULES = {"holdfast": "bench.flow_holdfast", "dbos": "bench.flow_dbos", "burr": "bench.flow_burr"}
_FILE = "flow.db"


def steps(bench: Bench) -> Iterator[Row]:
    """1 run of 1,000 steps that return 500 bytes each, and its file."""
    work = f"1 run × {flow.STEPS:,} steps"
    given = sum(len(result.encode()) for result in flow.results())
    for engine in _engines():
        size, speed, row = _run_row(bench, engine, work)
        yield row
        own = speed.raw_work * 1e6
        cpu = f"the raw limit's own {own:,.0f} µs, beyond it {speed.work * 1e6 - own:,.0f}"
        bound = None if engine.name else 150
        yield Row(work, _of(engine, "CPU a step"), speed.work * 1e6, "µs", cpu, at_most=bound)
        sizes = f"{megabytes(size)} for {megabytes(given)}"
        limit = None if engine.name else 1.5
        yield Row(work, _of(engine, "file ÷ results"), size / given, "×", sizes, at_most=limit)
    for engine in _as_they_come():
        yield _run_row(bench, engine, work)[-1]


def crowd(bench: Bench) -> Iterator[Row]:
    """500 async runs of 4 steps at once."""
    work = f"{_CROWD} async runs × {_CROWD_STEPS} steps"
    for engine in _engines():
        note(f"{work}, {engine.name or 'ours'}")
        often = _often(bench, engine)
        # A peer may take many seconds for one round.
        rounds = 1 if engine.name else _ROUNDS
        found = often.repeat(partial(_at_once, engine, runs=_CROWD, steps=_CROWD_STEPS, rounds=rounds))
        yield _crowd_row(engine, work, found)


def tasks(bench: Bench) -> Iterator[Row]:
    """64 tasks that commit to 64 runs."""
    work = f"{_TASKS} tasks, {_TASKS} runs"
    note(work)
    engine = _engine("holdfast")
    found = bench.repeat(partial(_at_once, engine, runs=_TASKS, steps=_TASK_STEPS, rounds=_ROUNDS))
    yield _crowd_row(engine, work, found)


def rollback(bench: Bench) -> Iterator[Row]:
    """Rollback to step 500 of 1,000, until step 501 runs; and replay of a recorded step."""
    work = f"back to step {_HALF} of {flow.STEPS:,}"
    replayed: list[Row] = []
    for engine in _engines():
        note(f"{work}, {engine.name or 'ours'}")
        often = _often(bench, engine)
        with bench.place() as folder:
            path = folder / _FILE
            with closing(engine(path)) as opened:
                opened.run("run", flow.STEPS)
            took = [_going_back(engine, path) for _ in range(often.repetitions)]
            with closing(engine(path)) as opened:
                opened.run("replayed", flow.STEPS)
                with flow.watching(_no_step):
                    each = [opened.replay("replayed", flow.STEPS) for _ in range(often.repetitions)]
        yield _time_row(engine, work, took, at_most=30)
        replayed += _replay_rows(engine, each)
    yield from replayed


def kill(bench: Bench) -> Iterator[Row]:
    """Kill at step 500, and a new process until step 501 runs, after its imports."""
    work = f"kill at step {_HALF}, resume"
    for name, engine in zip(_names(), _engines(), strict=True):
        note(f"{work}, {engine.name or 'ours'}")
        with bench.place() as folder:
            path = folder / _FILE
            if _child("begin", name, path).returncode != -signal.SIGKILL:
                raise AssertionError("the process was not killed")
            took = [
                float(_child("resume", name, path).stdout) for _ in range(_often(bench, engine).repetitions)
            ]
        yield _time_row(engine, work, took, at_most=50)


def _run_row(bench: Bench, engine: type[flow.Engine], work: str) -> tuple[float, Rates, Row]:
    """Bytes of the file, and how fast it was written."""
    note(f"{work}, {engine.name or 'ours'}")
    size, ratio, *rates = _often(bench, engine).repeat(partial(_one_run, engine))
    speed = Rates(*rates)
    bound = None if engine.name else 0.6
    return size, speed, Row(work, _of(engine, "rate"), ratio, "× raw", str(speed), at_least=bound)


def _one_run(engine: type[flow.Engine], folder: Path) -> tuple[float, ...]:
    """Bytes of the file, the ratio to raw, and the rates."""
    path = folder / _FILE
    with closing(Raw(folder)) as raw, closing(engine(path)) as opened:
        turns = Turns(raw)

        def step(number: int) -> None:
            if number % TURN == 0:
                turns.end(TURN)
                turns.begin()

        turns.begin()
        with flow.watching(step):
            opened.run("run", flow.STEPS)
        # The last step began this turn: the end of the run belongs to it, too.
        turns.end(0)
    rates = turns.result()
    return file_size(path), rates.ratio, *rates


def _at_once(
    engine: type[flow.Engine], folder: Path, *, runs: int, steps: int, rounds: int
) -> tuple[float, ...]:
    """The ratio to raw, and the rates, of many runs at once."""
    with closing(Raw(folder)) as raw, closing(engine(folder / _FILE)) as opened:
        turns = Turns(raw)
        with asyncio.Runner() as runner:
            runner.run(opened.run_many(2, steps))  # the first opens connections and starts threads
            for _ in range(rounds):
                turns.take(lambda: runner.run(opened.run_many(runs, steps)), runs * steps, raw=500)
    rates = turns.result()
    return rates.ratio, *rates


def _going_back(engine: type[flow.Engine], path: Path) -> float:
    """Seconds from the call to the beginning of the step that follows, in a store just opened."""
    began: list[float] = []

    def step(number: int) -> None:
        if number != _HALF + 1:
            raise AssertionError(f"step {number} ran instead of {_HALF + 1}")
        began.append(perf_counter())
        raise flow.Stop

    with closing(engine(path)) as opened, flow.watching(step):
        gc.collect()
        start = perf_counter()
        opened.go_back("run", _HALF)
    return began[0] - start


def _no_step(number: int) -> None:
    raise AssertionError(f"step {number} ran, though it was recorded")


def _replay_rows(engine: type[flow.Engine], took: list[float | None]) -> Iterator[Row]:
    known = [one for one in took if one is not None]
    if not known:
        return
    detail = (
        "from the workflow's first line to its last, without the wait for its queue"
        if engine.name
        else f"a whole resume ÷ {flow.STEPS:,}, with the loading of the record and the commit at the end"
    )
    each = statistics.median(known) / flow.STEPS * 1e6
    yield Row(
        "replay", _of(engine, "a recorded step"), each, "µs", detail, at_most=None if engine.name else 20
    )


def _time_row(engine: type[flow.Engine], work: str, took: list[float], *, at_most: float) -> Row:
    shown = f"{min(took) * 1e3:,.1f} to {max(took) * 1e3:,.1f} ms; tries: {len(took)}"
    measure = _of(engine, f"until step {_HALF + 1} runs")
    bound = None if engine.name else at_most
    return Row(work, measure, statistics.median(took) * 1e3, "ms", shown, at_most=bound)


def _crowd_row(engine: type[flow.Engine], work: str, found: tuple[float, ...]) -> Row:
    ratio, *rates = found
    measure = _of(engine, "steps of all ÷ raw of one")
    return Row(work, measure, ratio, "× raw", str(Rates(*rates)), at_least=None if engine.name else 3)


def _of(engine: type[flow.Engine], measure: str) -> str:
    return f"{engine.name}: {measure}" if engine.name else measure


def _often(bench: Bench, engine: type[flow.Engine]) -> Bench:
    """The peers take longer and are measured half as often."""
    return bench.seldom() if engine.name else bench


def _names() -> list[str]:
    """What is installed: `make bench` installs all."""
    return [name for name in _MODULES if find_spec(name) is not None]


def _engines() -> list[type[flow.Engine]]:
    return [_engine(name) for name in _names()]


def _as_they_come() -> list[type[flow.Engine]]:
    """The peers with a file that they make themselves."""
    return [_engine(name, "AsItComes") for name in _names() if name != "holdfast"]


def _engine(name: str, which: str = "Engine") -> type[flow.Engine]:
    # Only where they are run: a peer starts slowly, and is not there without the extra `bench`.
    engine: type[flow.Engine] = getattr(importlib.import_module(_MODULES[name]), which)
    return engine


def _child(what: str, name: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Begin or resume the run in a new process; fails if that fails in another way than by the kill."""
    # With compiled modules at hand, as an installation has them.
    settings = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "bench.running", what, name, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=settings)
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done


def _begin(engine: type[flow.Engine], path: Path) -> None:
    """Run until the process is killed in the step after the half."""

    def step(number: int) -> None:
        if number == _HALF + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with flow.watching(step):
        engine(path).run("run", flow.STEPS)


def _resume(engine: type[flow.Engine], path: Path) -> None:
    """Go on until the step after the half; say how long that took, and be gone again."""

    def step(number: int) -> None:
        took = perf_counter() - start
        if number != _HALF + 1:
            raise AssertionError(f"step {number} ran instead of {_HALF + 1}")
        print(json.dumps(took), flush=True)
        os._exit(0)

    with flow.watching(step):
        start = perf_counter()
        engine(path).resume("run")


if __name__ == "__main__":
    {"begin": _begin, "resume": _resume}[sys.argv[1]](_engine(sys.argv[2]), Path(sys.argv[3]))
