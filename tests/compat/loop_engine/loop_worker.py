"""A process that works on a project: `loop_worker.py STORE ROLE TIME [ARGUMENTS]`; prints each result as a line of
JSON. If the time is empty, it uses the clock of the machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast import Holdfast
from holdfast.agent_loops.project import Project
from holdfast.agent_loops.questions import Questions
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


def leave(hf: Holdfast, engine: LoopEngine, project: str, timeout: str) -> None:
    """Start an agent, change the state, and hang."""
    engine.log_agent_start(project, "planner", timeout=float(timeout))
    say(engine.update_project_state(project, {"memory": "half done"}))
    while True:
        time.sleep(60)


def check_all_the_time(hf: Holdfast, engine: LoopEngine, every: str) -> None:
    """Look for stalled agents until this process is killed."""
    checker = engine.checker(float(every)).start()
    while not checker.checks:
        time.sleep(0.01)
    say("ready")
    while True:
        time.sleep(60)


def recoveries(hf: Holdfast, engine: LoopEngine, project: str = "") -> None:
    """Report each recovery, with the state that the loop finds then, until this process is killed."""

    def wake(recovery: dict[str, Any]) -> None:
        say({**recovery, "state": engine.get_project_state(recovery["project_id"]).get("state")})

    engine.on_recovery(wake, project or None)
    say("ready")
    while True:
        time.sleep(60)


def decide(hf: Holdfast, engine: LoopEngine, question_id: str = "") -> None:
    """Answer a question, or decide about a stopped loop, and hang before the decision is executed."""

    def hang_instead(*_: object) -> Any:
        say("decided")
        while True:
            time.sleep(60)

    setattr(Questions, "execute", hang_instead)  # noqa: B010
    if question_id:
        engine.answer_question(question_id, "rollback")
    engine.auto_restore_if_configured("p", "crash")


def complete(hf: Holdfast, engine: LoopEngine) -> None:
    """Start an agent, complete it, and hang before its snapshot is saved."""

    def hang_instead(*_: object, **__: object) -> Any:
        say("completing")
        while True:
            time.sleep(60)

    engine.log_agent_start("p", "planner", timeout=5)
    setattr(Project, "write", hang_instead)  # noqa: B010
    engine.log_agent_complete("p", "planner")


ROLES: dict[str, Callable[..., None]] = {
    "hang": hang,
    "check": check,
    "count": count,
    "start_and_complete": start_and_complete,
    "leave": leave,
    "check_all_the_time": check_all_the_time,
    "recoveries": recoveries,
    "decide": decide,
    "complete": complete,
}

if __name__ == "__main__":
    file, role, now, *rest = sys.argv[1:]
    clock = (lambda: float(now)) if now else None
    with holdfast.open(file, durability="fast", clock=clock) as opened:
        ROLES[role](opened, LoopEngine(opened, check_every=None), *rest)
