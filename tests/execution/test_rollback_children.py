"""Rolling back a run that has children: their steps are compensated with its own, newest first; they are rewound."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import store_fixtures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import Server, address

import holdfast
from holdfast import AlreadyRunning, CompensationFailed, Holdfast, InvalidCall, step, workflow

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place
_ = (Server, address)

#: What was done to the world and undone, in order.
world: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def clean() -> None:
    world.clear()
    broken.clear()


def cb_undo(result: str, name: str) -> None:
    if name in broken:
        raise ConnectionError(name)
    world.append(f"undo {name}")


@step(name="cb book", compensate=cb_undo)
def book(name: str) -> str:
    world.append(name)
    holdfast.state().setdefault("booked", []).append(name)
    return name


@step(name="cb abook", compensate=cb_undo)
async def abook(name: str) -> str:
    world.append(name)
    return name


@step(name="cb look")
def look(name: str) -> str:
    world.append(f"look {name}")
    return name


@workflow(name="cb_leaf")
def leaf(name: str) -> str:
    book(f"{name}.1")
    book(f"{name}.2")
    return name


@workflow(name="cb_middle")
def middle(name: str) -> str:
    book(f"{name}.a")
    leaf(f"{name}.leaf")
    book(f"{name}.b")
    return name


@workflow(name="cb_top")
def top() -> str:
    look("start")
    book("p1")
    middle("m")
    book("p2")
    leaf("l")
    return "done"


@workflow(name="cb_aleaf")
async def aleaf(name: str) -> str:
    await abook(f"{name}.1")
    await abook(f"{name}.2")
    return name


@workflow(name="cb_atop")
async def atop() -> str:
    await abook("p1")
    await asyncio.gather(aleaf("x"), aleaf("y"))
    await abook("p2")
    return "done"


def undone() -> list[str]:
    return [each for each in world if each.startswith("undo ")]


def expected() -> list[str]:
    """What must be undone after what was done: the newest first."""
    return [f"undo {each}" for each in reversed(world) if not each.startswith(("look", "undo"))]


def test_rollback_compensates_children_newest_first(hf: Holdfast) -> None:
    hf.run(top, run_id="r")
    oracle = expected()
    preview = hf.preview("r", to=2)
    assert preview.undo == (
        "cb book#2 of r.cb_leaf", "cb book of r.cb_leaf", "cb book#2", "cb book#2 of r.cb_middle",
        "cb book#2 of r.cb_middle.cb_leaf", "cb book of r.cb_middle.cb_leaf", "cb book of r.cb_middle", "cb book",
    )  # fmt: skip
    assert set(preview.cancelled) == {"r.cb_middle", "r.cb_leaf"}
    assert preview.rewound == ()
    hf.rollback("r", to=2, resume=False)
    assert undone() == oracle
    # Each is recorded in the run whose step it was.
    assert [v.address for v in hf.history("r.cb_leaf").versions() if "undo" in (v.address or "")] == [
        "[undo]/cb book",
        "[undo]/cb book#2",
    ]
    assert {hf.get(run).status for run in ("r.cb_middle", "r.cb_leaf", "r.cb_middle.cb_leaf")} == {
        "cancelled"
    }
    world.clear()
    assert hf.resume("r").result == "done"
    assert world == ["p1", "m.a", "m.leaf.1", "m.leaf.2", "m.b", "p2", "l.1", "l.2"]
    assert hf.verify().ok


def test_rollback_leaves_a_child_before_the_version_alone(hf: Holdfast) -> None:
    hf.run(top, run_id="r")
    number = next(v.number for v in hf.history("r").versions() if v.address == "cb_middle")
    world.clear()
    assert hf.rollback("r", to=number).result == "done"
    assert world == ["undo l.2", "undo l.1", "undo p2", "p2", "l.1", "l.2"]
    assert hf.get("r.cb_middle").status == "completed"


def test_rollback_compensates_parallel_async_children(hf: Holdfast) -> None:
    hf.run(atop, run_id="r")
    oracle = expected()
    hf.rollback("r", to=1, resume=False)
    assert undone() == oracle
    assert hf.resume("r").result == "done"


inside, go = threading.Event(), threading.Event()


@workflow(name="cb_slow")
def slow() -> str:
    book("s.1")
    holdfast.wait_for("go")
    book("s.2")
    return "slow"


@workflow(name="cb_beside")
def beside() -> Any:
    def other() -> str:
        holdfast.wait_for("other")
        return book("o")

    return holdfast.parallel(slow, other)


def test_rollback_rewinds_a_child_that_was_under_way(hf: Holdfast) -> None:
    hf.run(beside, run_id="r")
    (child,) = hf.get("r").children
    hf.signal("r", "other", resume=False)
    hf.resume("r")
    number = next(v.number for v in hf.history("r").versions() if (v.address or "").endswith("cb book"))
    hf.signal(child, "go", resume=False)
    hf.resume("r")
    assert hf.get("r").status == "completed"
    assert world == ["s.1", "o", "s.2"]
    preview = hf.preview("r", to=number)
    assert (preview.rewound, preview.undo) == ((child,), (f"cb book#2 of {child}",))
    hf.rollback("r", to=number, resume=False)
    assert world == ["s.1", "o", "s.2", "undo s.2"]
    assert hf.get(child).state["booked"] == ["s.1"]
    hf.resume("r")
    # Only its second half runs again, in the same child.
    assert hf.get("r").status == "suspended"
    hf.signal(child, "go", resume=False)
    hf.resume("r")
    assert hf.get("r").result == ["slow", "o"]
    assert world == ["s.1", "o", "s.2", "undo s.2", "s.2"]
    assert hf.get("r").children == [child]


def test_rollback_is_refused_before_anything_while_a_child_runs(hf: Holdfast) -> None:
    inside.clear()
    go.clear()

    @step(name="cb hold")
    def hold() -> None:
        inside.set()
        assert go.wait(60)

    @workflow(name="cb_holding")
    def holding() -> str:
        book("h")
        holdfast.wait_for("go")
        hold()
        return "held"

    @workflow(name="cb_outer")
    def outer() -> str:
        book("q")
        return holding()

    hf.run(outer, run_id="r")
    (child,) = hf.get("r").children
    hf.signal(child, "go", resume=False)
    thread = threading.Thread(target=lambda: hf.resume(child), daemon=True)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(AlreadyRunning, match=child):
        hf.rollback("r", to=1, resume=False)
    assert undone() == []
    go.set()
    thread.join(60)
    hf.rollback("r", to=1, resume=False)
    assert undone() == ["undo h", "undo q"]


def test_rollback_that_failed_in_a_child_goes_on(hf: Holdfast) -> None:
    hf.run(top, run_id="r")
    oracle = expected()
    broken.add("m.leaf.1")
    with pytest.raises(CompensationFailed, match=r"cb_middle\.cb_leaf"):
        hf.rollback("r", to=2, resume=False)
    broken.clear()
    assert undone() == oracle[:-3]
    assert hf.preview("r").undo == ("cb book of r.cb_middle.cb_leaf", "cb book of r.cb_middle", "cb book")
    hf.rollback("r", to=2, resume=False)
    assert undone() == oracle
    # What was undone cannot be the head again, nor can the call of a child whose steps were.
    number = next(v.number for v in hf.history("r").versions() if v.address == "cb_middle")
    with pytest.raises(InvalidCall, match="was undone"):
        hf.rollback("r", to=number, resume=False)


def test_step_with_undo_in_its_name_is_rolled_back_by_hand(hf: Holdfast) -> None:
    @step(name="undo_typo")
    def undo_typo(text: str) -> str:
        return text

    @workflow(name="cb_typo")
    def typo() -> str:
        return undo_typo("undo moved")

    hf.run(typo, run_id="r")
    hf.history("r").rollback(1)
    assert hf.resume("r").result == "undo moved"
    assert hf.history("r").prune(holdfast.Retention(last=1)).versions


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plan=st.recursive(st.just("b"), lambda inner: st.lists(inner, max_size=4), max_leaves=12), data=st.data()
)
def test_rollback_order_is_that_of_the_effects(plan: Any, data: st.DataObject) -> None:
    world.clear()
    with holdfast.open(":memory:") as hf:
        run = hf.run(walk, plan if isinstance(plan, list) else [plan], "x")
        versions = [v.number for v in run.history().versions()]
        to = data.draw(st.sampled_from(versions))
        later = run.history().at(to).record.seq
        # The oracle: all recorded effects after the version, by their place in the journal.
        effects = []
        for each in [run.id for run in hf.iter_runs()]:
            for version in hf.history(each).versions(limit=1000):
                if version.step == "cb book" and version.record.seq > later:
                    effects.append((version.record.seq, version.result))
        hf.rollback(run.id, to=to, resume=False)
        assert undone() == [f"undo {name}" for _, name in sorted(effects, reverse=True)]
        world.clear()
        assert hf.resume(run.id).result == "end"
        assert hf.verify().ok


@workflow(name="cb_walk")
def walk(plan: list[Any], name: str) -> str:
    for number, each in enumerate(plan):
        if isinstance(each, list):
            walk(each, f"{name}.{number}")
        else:
            book(f"{name}.{number}")
    return "end"


@pytest.mark.slow
def test_rollback_that_was_killed_in_a_child_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "store")]
    program.write_text(
        "import os, signal, sys, holdfast\n"
        f"sys.path[:0] = {folders!r}\n"
        "import test_rollback_children as flows\n"
        "flows.world = type('Fatal', (list,), {'append': lambda self, name: (print(name, flush=True), "
        "name == 'undo m.leaf.1' and os.kill(os.getpid(), signal.SIGKILL))})()\n"
        "hf = holdfast.open(sys.argv[1], lease=0.5)\n"
        "hf.run(flows.top, run_id='r')\n"
        "hf.rollback('r', to=2, resume=False)\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "x.db")], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = [line for line in done.stdout.decode().splitlines() if line.startswith("undo")]
    assert before[-1] == "undo m.leaf.1"
    # Later than any lease.
    with holdfast.open(tmp_path / "x.db", clock=lambda: time.time() + 3600) as hf:
        hf.rollback("r", to=2, resume=False)
        # Only the one that was not recorded is run once more.
        assert undone() == ["undo m.leaf.1", "undo m.a", "undo p1"]
        assert hf.resume("r").result == "done"
        assert hf.verify().ok
