"""Programs for tests of the monitor: a worker that knows flows which hang, and a monitor that may die half-way."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import fleet_flows as f

import holdfast
from holdfast import step, workflow


@step(name="f_slow_step")
def slow_step(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        holdfast.progress()
        time.sleep(0.05)
    f.did("slow")
    return "slow"


@workflow(name="f_slow")
def slow(seconds: float) -> str:
    return slow_step(seconds)


@workflow(name="f_lingering")
def lingering(name: str) -> str:
    f.mark("before")
    f.until(f"go-{name}")
    return name


@step(name="f_turn")
def turn(word: str) -> str:
    time.sleep(0.02)
    return word


@workflow(name="f_looping")
def looping(*words: str) -> None:
    for at in range(100_000):
        turn(words[at % len(words)])
        if at % len(words) == len(words) - 1 and (f.WORLD / "enough").exists():
            return


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch_over(where: str, dies: str = "") -> None:
    """Look after a store; die after a stuck run was taken away, or after it was rolled back, too."""
    from holdfast.fleet.monitor.unowned_runs import UnownedRuns

    finish = UnownedRuns.finish

    def finish_and_die(unowned: UnownedRuns, run: Any) -> None:
        if dies == "move":
            finish(unowned, run)
        _die()

    if dies:
        UnownedRuns.finish = finish_and_die  # type: ignore[method-assign, assignment]
    with holdfast.open(where, lease=2.0) as hf:
        hf.monitor(interval=0.1).run()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.pop("role", "worker") == "monitor":
        watch_over(**given)
    else:
        f.work(given)
