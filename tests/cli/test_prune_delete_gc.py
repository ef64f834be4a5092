"""`holdfast prune`, `holdfast delete` and `holdfast gc`"""

from __future__ import annotations

import json
import shlex
import threading

import pytest
from filled_store import SampleStore
from terminal import PROGRAM, Terminal

import holdfast
from holdfast import step, workflow


def kept(own: SampleStore, run: str) -> list[int]:
    return [version["version"] for version in own.json("log", run)]


def test_prune_dry_run_changes_nothing(own: SampleStore) -> None:
    before = own.json("log", "counted")
    lines = own.screen("prune", "counted", "--keep-last", "2", "--dry-run").splitlines()
    assert [line.split() for line in lines] == [
        ["run", "prune", "keep", "versions"],
        ["counted", "3", "3", "1–2,", "4"],
        ["nothing", "was", "changed", "(--dry-run)"],
    ]
    assert own.rows("prune", "counted", "--keep-last", "2", "--dry-run") == [["counted", "3", "3", "1,2,4"]]
    found = own.json("prune", "counted", "--keep-last", "2", "--dry-run")
    assert found["dry_run"] is True
    (plan,) = found["runs"]
    assert (plan["prune"], plan["keep"]) == ([1, 2, 4], [3, 5, 6]), "3 is tagged"
    assert own.json("log", "counted") == before


def test_prune_keeps_what_the_policy_keeps(own: SampleStore) -> None:
    assert "3 versions" in own.pipe("prune", "counted", "--keep-last", "2", "-y")
    assert kept(own, "counted") == [6, 5, 3]
    reported = own.refused("show", "counted@2", code=3)
    assert "version 2" in reported
    own.pipe("verify")


def test_prune_prints_json(own: SampleStore) -> None:
    found = json.loads(own.pipe("prune", "hand", "--keep-last", "1", "--json", "-y"))
    assert found["runs"] == ["hand"]
    assert found["versions"] == 9 - len(kept(own, "hand"))
    assert {9, 7, 3} <= set(kept(own, "hand")), "the head, what is tagged, what is pinned"


def test_prune_of_all_runs(own: SampleStore) -> None:
    own.pipe("prune", "--all", "--keep-last", "1", "-y")
    assert kept(own, "counted") == [6, 3]
    assert kept(own, "report-1") == [6, 3, 2, 1], "a fork that is not over needs what it came from"
    assert kept(own, "asks") == [4, 3, 2, 1], "a run that is not over needs its steps"


@pytest.mark.parametrize("rule", ["--keep-within=1h", "--keep-last=9"])
def test_prune_with_nothing_to_prune(own: SampleStore, rule: str) -> None:
    assert own.pipe("prune", "hand", rule, "-y") == "nothing to prune\n"
    assert own.json("prune", "hand", rule) == {"versions": 0, "bytes": 0, "runs": ["hand"]}
    assert len(kept(own, "hand")) == 9


@pytest.mark.parametrize("rule", ["--keep-hourly", "--keep-daily", "--keep-weekly"])
def test_prune_keeps_one_per_hour_day_or_week(own: SampleStore, rule: str) -> None:
    """All are of this hour, or of two if it has just started: the newest of each stays."""
    (plan,) = own.json("prune", "counted", rule, "3", "--dry-run")["runs"]
    assert {6, 3} <= set(plan["keep"])
    assert len(plan["keep"]) <= 3
    (plan,) = own.json("prune", "counted", rule, "0", "--dry-run")["runs"]
    assert plan["keep"] == [3, 6]


def test_prune_asks_on_a_terminal(own: SampleStore) -> None:
    asked = Terminal("prune", "counted", "--keep-last", "2", cwd=own.folder)
    asked.until("Go ahead? [y/N]")
    assert "counted: 1–2, 4 of 6" in asked.text
    assert "3 versions of 1 run will be removed" in asked.text
    asked.type("n\n")
    assert asked.end() == 1
    assert "nothing was changed" in asked.text
    assert len(kept(own, "counted")) == 6
    asked = Terminal("prune", "counted", "--keep-last", "2", cwd=own.folder).until("Go ahead?").type("y\n")
    assert asked.end() == 0
    assert "3 versions" in asked.text
    assert len(kept(own, "counted")) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["prune"], 2, "name the runs, or use --all"),
        (["prune", "hand"], 2, "name what to keep: --keep-last 10"),
        (["prune", "hand", "--keep-last", "-1"], 2, "--keep-last"),
        (["prune", "hand", "--keep-within", "a while"], 2, "not a duration"),
        (["prune", "hand", "--keep-within", "999999999y"], 2, "is too long"),
        (["prune", "nosuch", "--keep-last", "1"], 3, "no run"),
        (["delete"], 2, "missing argument"),
        (["delete", "nosuch", "-y"], 3, "no run"),
        (["delete", "hand"], 2, "this cannot be undone: confirm it with --yes"),
        (["gc", "--grace", "soon"], 2, "not a duration"),
        (["gc", "--grace", "999999999y"], 2, "is too long"),
    ],
)
def test_prune_usage_errors_are_reported(
    own: SampleStore, arguments: list[str], code: int, reported: str
) -> None:
    assert reported in own.refused(*arguments, code=code)
    assert kept(own, "hand")


def test_delete_removes_runs(own: SampleStore) -> None:
    reported = own.call("delete", "hand", "--dry-run").out
    assert reported == "delete 1 run permanently, with all versions: hand\n"
    assert own.json("delete", "hand", "--dry-run") == {"dry_run": True, "runs": ["hand"], "children": []}
    assert kept(own, "hand")
    assert own.pipe("delete", "hand", "pruned", "-y") == "deleted hand, pruned\n"
    assert own.refused("log", "hand", code=3)
    assert own.json("delete", "report-2", "-y") == {"deleted": ["report-2"], "children": []}
    own.pipe("verify")


def test_delete_asks_on_a_terminal(own: SampleStore) -> None:
    asked = Terminal("delete", "hand", cwd=own.folder).until("Go ahead?").type("\n")
    assert asked.end() == 1
    assert kept(own, "hand")
    asked = (
        Terminal("delete", "hand", cwd=own.folder)
        .until("with all versions: hand")
        .until("Go ahead?")
        .type("y\n")
    )
    assert asked.end() == 0
    assert own.refused("log", "hand", code=3)


def test_prune_without_confirmation_is_refused(own: SampleStore) -> None:
    done = own.call("prune", "counted", "hand", "counted", "--keep-last", "2")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == "counted: 1–2, 4 of 6"
    assert "confirm it with --yes" in done.err
    reported = own.call("prune", "counted", "--keep-last", "2", "--json")
    assert (reported.code, reported.out) == (2, "")
    assert len(kept(own, "counted")) == 6


def test_prune_announces_on_standard_error(own: SampleStore) -> None:
    command = f"{shlex.join(PROGRAM)} prune counted --keep-last 2 > out.txt"
    asked = Terminal(cwd=own.folder, program=["sh", "-c", command]).until("Go ahead?")
    assert "counted: 1–2, 4 of 6" in asked.text
    assert asked.type("y\n").end() == 0
    assert "3 versions" in (own.folder / "out.txt").read_text()


def test_prune_removes_no_more_than_announced(own: SampleStore) -> None:
    asked = Terminal("prune", "counted", "--keep-last", "2", cwd=own.folder).until("Go ahead?")
    with own.open() as hf:
        hf.history("counted").commit({"n": 7})
    assert asked.type("y\n").end() == 4
    assert "more of its versions would be removed (5); nothing was pruned" in asked.text.replace("\n", "")
    assert len(kept(own, "counted")) == 7


@workflow(name="forget_part")
def part(inner: bool) -> None:
    if inner:
        part(False)


def test_delete_announces_and_removes_children(own: SampleStore) -> None:
    with own.open() as hf:
        hf.run(part, True, run_id="whole")
        (inner,) = hf.get("whole").children
    reported = own.call("delete", "whole", "--dry-run").out.splitlines()
    assert reported[1] == f"and 1 child run: {inner}"
    plan = own.json("delete", inner, "whole", "han", "hand", "--dry-run")
    assert plan == {"dry_run": True, "runs": ["whole", "hand"], "children": [inner]}
    assert own.json("delete", inner, "whole", "whole", "-y") == {"deleted": ["whole"], "children": [inner]}
    assert own.refused("log", inner, code=3)


def test_delete_of_a_running_run_is_refused(own: SampleStore) -> None:
    started, go = threading.Event(), threading.Event()

    @step(name="forget_wait")
    def wait() -> None:
        started.set()
        go.wait(30)

    @workflow(name="forget_inner")
    def inner() -> None:
        wait()

    @workflow(name="forget_outer")
    def outer() -> None:
        inner()

    with own.open() as hf:
        thread = threading.Thread(target=hf.run, args=(outer,), kwargs={"run_id": "busy"})
        thread.start()
        assert started.wait(30)
        try:
            reported = own.refused("delete", "busy", "-y", code=4)
            assert "is being advanced elsewhere: wait for it, or cancel it" in reported
            (below,) = hf.get("busy").children
            with pytest.raises(holdfast.AlreadyRunning):
                hf.delete(below)
            with pytest.raises(holdfast.AlreadyRunning):
                hf.delete("busy")
            assert hf.get(below).status == "running", "nothing of it was removed"
        finally:
            go.set()
            thread.join()
        hf.delete("busy")
        assert "busy" not in [run.id for run in hf.runs()]


def test_gc_removes_unreferenced_artifacts(own: SampleStore) -> None:
    with own.open() as hf:
        hf.history("large").commit({"doc": holdfast.artifact(b"x" * 100_000)})
    assert own.pipe("gc", "--grace", "0s") == "removed 0 artifacts, 0 B\n"
    own.call("delete", "large", "-y")
    assert own.json("gc")["artifacts"] == 0, "what is young may be on its way into a version"
    found = own.json("gc", "--grace", "0s", "--compact")
    assert (found["artifacts"], found["bytes"]) == (1, 100_000)
    assert "the file shrank from" in own.screen("gc", "--compact")
