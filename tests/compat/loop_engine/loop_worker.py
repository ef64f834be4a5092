"""A process that works on a project: `loop_worker.py FILE ROLE [ARGUMENTS]`; prints each result as a line of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast import Holdfast
from holdfast.loops import LoopEngine


def say(what: Any) -> None:
    print(json.dumps(what, default=str), flush=True)


def hang(hf: Holdfast, engine: LoopEngine) -> None:
    """Start an agent, change the state, and never complete."""
    state = engine.get_project_state("p")["state"]
    engine.log_agent_start("p", "planner", timeout=60)
    say(engine.set_project_state("p", state | {"memory": "half done"}))
    while True:
        time.sleep(60)


def check(hf: Holdfast, engine: LoopEngine) -> None:
    """Wait for a line of input, then look for stalled agents."""
    say("ready")
    sys.stdin.readline()
    say(engine.check_timeouts())


def count(hf: Holdfast, engine: LoopEngine, name: str) -> None:
    """Read, change and set the state repeatedly, concurrently with other processes."""
    say("ready")
    sys.stdin.readline()
    replies = []
    for turn in range(15):
        state = engine.get_project_state("p")["state"]
        state[name] = turn
        state["log"].append(f"{name} {turn}")
        replies.append(engine.set_project_state("p", state)["status"])
        replies.append(engine.log_agent_start("p", name)["status"])
        replies.append(engine.log_agent_complete("p", name)["snapshot"]["status"])
    say(replies)


def start_and_complete(hf: Holdfast, engine: LoopEngine) -> None:
    """Start and complete agents until this process is killed."""
    turn = 0
    while True:
        turn += 1
        engine.log_agent_start("p", "planner", timeout=60)
        engine.update_project_state("p", {"loop_count": turn})
        say(engine.log_agent_complete("p", "planner")["snapshot"]["loop"])


ROLES: dict[str, Callable[..., None]] = {
    "hang": hang,
    "check": check,
    "count": count,
    "start_and_complete": start_and_complete,
}

if __name__ == "__main__":
    file, role, now, *rest = sys.argv[1:]
    with holdfast.open(file, durability="fast", clock=lambda: float(now)) as opened:
        ROLES[role](opened, LoopEngine(opened, check_every=None), *rest)
