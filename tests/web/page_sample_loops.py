"""A store with loops of every kind, and an open circuit breaker, made by the real engine."""

from __future__ import annotations

from pathlib import Path

import holdfast
from database import Database
from holdfast import Breaker, Holdfast, QuestionPolicy, Retry, step, workflow
from holdfast.loops import LoopEngine
from patience import until

REPORT = "nightly report"
#: A project id with everything that a path and a document can trip over.
HOSTILE = "a/../b?c#d%2F <script>window.hacked=1</script>"


@step(
    name="call_index", breaker=Breaker(failures=2, reset=3600, name="search index"), retry=Retry(2, delay=0)
)
def call_index() -> None:
    raise ConnectionError("the index answered with 503")


@workflow(name="index_study")
def index_study() -> None:
    call_index()


def open_breaker(hf: Holdfast) -> None:
    """Let the breaker `search index` open."""
    hf.run(index_study, run_id="unlucky", raises=False)


def engine_of(hf: Holdfast) -> LoopEngine:
    """Return an engine that looks for stalled agents only when a test asks for it."""
    return LoopEngine(hf, check_every=None)


def create_report(hf: Holdfast) -> LoopEngine:
    """A loop with four snapshots on two timelines, changes since, and a running agent."""
    engine = engine_of(hf)
    engine.configure(
        REPORT,
        timeouts={"researcher": 120, "writer": 600},
        question=QuestionPolicy(assignee="ana", priority=2, due=3600),
        actor="ana",
    )
    for turn, agent in enumerate(("planner", "researcher", "writer"), 1):
        state = {"loop_count": turn, "completed_steps": [agent], "memory": [f"finding {turn}" * turn]}
        engine.log_agent_start(REPORT, agent, actor="worker 7")
        engine.log_agent_complete(REPORT, agent, state=state)
    engine.restore_snapshot(REPORT, 2, reason="the third draft was dull", actor="ana", keep_unknown=False)
    engine.get_project_state(REPORT)
    state = {"loop_count": 3, "memory": ["a better finding"]}
    saved = engine.save_loop_snapshot(REPORT, state, tags=["reviewed"], note="read by ana")
    assert saved["status"] == "saved", saved
    engine.update_project_state(REPORT, {"memory": ["nonsense"], "draft": "half a page", "loop_count": 4})
    engine.log_agent_start(REPORT, "researcher", timeout=9000, actor="worker 7")
    return engine


def stall(engine: LoopEngine, project: str, agent: str = "writer") -> None:
    """Let an agent stall, so that the loop asks."""
    engine.log_agent_start(project, agent, timeout=0.001, actor="worker 9")
    until(lambda: engine.check_timeouts(project)["stalled"])


def create_loops(where: Path) -> None:
    """Fill a store with loops."""
    with holdfast.open(where, durability="fast") as hf:
        engine = create_report(hf)
        stall(engine, REPORT)
        engine.save_loop_snapshot("translations", {"loop_count": 12})
        engine.log_agent_start("translations", "reviewer", timeout=0.001)
        engine.save_loop_snapshot("idle project", {"loop_count": 1})
        engine.configure("idle project", loop_autoresume=True, every=3600)
        engine.save_loop_snapshot(HOSTILE, {"loop_count": 1, "<b>": "<i>"}, note="<script>note</script>")
        engine.configure("only configured", loop_autoresume=False)
        open_breaker(hf)
    damage(where, f"loop/{REPORT.replace(' ', '%20')}", 3)


def damage(where: Path, run: str, number: int) -> None:
    """Overwrite the state of a version; the store must be closed."""
    with Database(where) as database:
        changed = database.change(
            "UPDATE journal SET pack = zeroblob(length(pack)) "
            "WHERE number = ? AND run = (SELECT key FROM run WHERE id = ?)",
            (number, run),
        )
    assert changed == 1
