"""A workflow whose code changed between two executions: whatever does not fit the record is refused before it runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_flows import control

import holdfast
from holdfast import Holdfast, ReplayDiverged, step, workflow
from holdfast.testing import isolated_definitions

fresh, hf = step_fixtures.fresh, step_fixtures.hf


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only for a moment for results that the code asks for in another order, or no more."""
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1.0)
    monkeypatch.setattr("holdfast.execution.replay_order._LOOK", 0.1)


def named(name: str) -> Any:
    """A step that does nothing but say that it ran."""

    @step(name=f"code-{name}")
    def run(*args: Any) -> str:
        control.did(name)
        return name

    return run


def anamed(name: str) -> Any:
    @step(name=f"acode-{name}")
    async def run(*args: Any) -> str:
        control.did(name)
        await asyncio.sleep(0)
        return name

    return run


a, b, c, x = [named(name) for name in "abcx"]
aa, ab, ac, ax = [anamed(name) for name in "abcx"]


def define(code: Any) -> Any:
    """Define the workflow, as if its module had been edited."""
    code.__qualname__ = "changing"
    return workflow(name="changing")(code)


def interrupted(hf: Holdfast, code: Callable[..., Any], *fail: str) -> str:
    """A run of a workflow that failed, at its end or at steps; its id."""
    control.failing = dict.fromkeys(fail or ("end",), 1)
    run = hf.run(define(code), raises=False)
    assert run.status == "failed"
    control.ran.clear()
    return run.id


def resumed(hf: Holdfast, run_id: str, code: Callable[..., Any], **how: Any) -> Any:
    define(code)
    return hf.resume(run_id, **how)


def calls(*steps: Any) -> Callable[[], list[Any]]:
    def changing() -> list[Any]:
        found = [each() for each in steps]
        control.did("end")
        return found

    return changing


# One after the other

CHANGES = {
    "renamed": ([a, b, c], [a, x, c], "code-b", "code-x"),
    "inserted first": ([a, b, c], [x, a, b, c], "code-a", "code-x"),
    "inserted": ([a, b, c], [a, b, x, c], "code-c", "code-x"),
    "reordered": ([a, b, c], [b, a, c], "code-a", "code-b"),
    "deleted": ([a, b, c], [a, c], "code-b", "code-c"),
    "called more often": ([a, b], [a, a, b], "code-b", "code-a#2"),
    "deleted at the end": ([a, b, c], [a, b], "code-c", None),
    "all deleted": ([a, b, c], [], "code-a", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_calls_are_refused_before_anything_runs(hf: Holdfast, change: str) -> None:
    old, new, expected, called = CHANGES[change]
    run_id = interrupted(hf, calls(*old))
    with pytest.raises(ReplayDiverged) as caught:
        resumed(hf, run_id, calls(*new))
    assert (caught.value.details["address"], caught.value.details["called"]) == (expected, called)
    assert repr(expected) in str(caught.value)
    assert called is None or repr(called) in str(caught.value)
    assert set(control.ran) <= {"end"}
    run = hf.get(run_id)
    assert (run.status, run.alive) == ("failed", False)
    # Nothing is lost: with the old code, it ends.
    assert len(resumed(hf, run_id, calls(*old)).result) == len(old)


def test_calls_after_the_record_may_change(hf: Holdfast) -> None:
    run_id = interrupted(hf, calls(a, b))
    assert resumed(hf, run_id, calls(a, b, x, c)).result == ["a", "b", "x", "c"]
    assert control.ran == ["x", "c", "end"]


def test_changed_step_is_refused_inside_an_interrupted_step(hf: Holdfast) -> None:
    def outer_of(*steps: Any) -> Callable[[], Any]:
        @step(name="code-outer")
        def outer() -> list[Any]:
            return calls(*steps)()

        return lambda: [a(), outer()]

    @workflow(name="cut-off")
    def cut_off() -> Any:
        return control.value()

    control.value = outer_of(b, c)
    control.failing["end"] = 1
    run = hf.run(cut_off, raises=False)
    assert run.status == "failed"
    # The attempt failed: what it called may be left out.
    control.value = outer_of(b)
    assert hf.resume(run.id).result == ["a", ["b"]]


def test_step_inserted_before_an_interrupted_one_is_refused(hf: Holdfast, tmp_path: Any) -> None:
    db = tmp_path / "cut.db"
    f.kill(f.start_stuck(db, "nested", tmp_path / "effects", "r"))

    @workflow(name="nested")
    def nested() -> Any:
        return [x(), f.outer()]

    with (
        holdfast.open(db) as engine,
        pytest.raises(ReplayDiverged, match=r"now calls 'code-x' where .*'outer/inner'"),
    ):
        engine.resume("r", workflow=nested)
    assert control.ran == []


def test_sleep_may_be_left_out_but_not_inserted(hf: Holdfast) -> None:
    def pause() -> None:
        holdfast.sleep(0)

    run_id = interrupted(hf, calls(a, pause, b))
    with pytest.raises(ReplayDiverged):
        resumed(hf, run_id, calls(a, x, b))
    assert resumed(hf, run_id, calls(a, b)).result == ["a", "b"]
    run_id = interrupted(hf, calls(a, b))
    with pytest.raises(ReplayDiverged, match="now calls 'sleep'"):
        resumed(hf, run_id, calls(a, pause, b))


def test_steps_with_keys_may_be_called_in_any_order(hf: Holdfast) -> None:
    @step(key="name")
    def keyed(name: str) -> str:
        control.did(f"keyed-{name}")
        return name

    def each_of(names: list[str]) -> Callable[[], list[str]]:
        def changing() -> list[str]:
            found = [keyed(name) for name in names]
            control.did("end")
            return found

        return changing

    names, new = [str(number) for number in range(7)], ["7", "8", "9"]
    run_id = interrupted(hf, each_of(names + new), "keyed-7")
    random.Random(13).shuffle(names)
    with pytest.raises(ReplayDiverged):
        resumed(hf, run_id, each_of([*names[:3], "8", *names[3:]]))
    assert control.ran == []
    assert resumed(hf, run_id, each_of(names + new)).result == names + new
    assert control.ran == ["keyed-7", "keyed-8", "keyed-9", "end"]
    run_id = interrupted(hf, each_of(names))
    with pytest.raises(ReplayDiverged):
        resumed(hf, run_id, calls(x))


# In parallel


def gathers(*steps: Any) -> Any:
    async def changing() -> Any:
        found = await asyncio.gather(*[each() for each in steps])
        control.did("end")
        return found

    return changing


def works(*workers: list[Any], then: Any = None, by: Any = asyncio.gather) -> Any:
    async def work(steps: list[Any]) -> list[Any]:
        return [await each() for each in steps]

    async def changing() -> Any:
        found = await by(*[work(steps) for steps in workers])
        if then is not None:
            await then()
        control.did("end")
        return list(found)

    return changing


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_steps_interrupted_while_others_were_recorded_are_not_a_change(hf: Holdfast, missing: str) -> None:
    run_id = interrupted(hf, gathers(aa, ab, ac), missing)
    # Steps that had not started when the workflow failed are not recorded, either.
    recorded = {each.step for each in hf.history(run_id).versions() if each.error is None}
    assert resumed(hf, run_id, gathers(aa, ab, ac)).result == ["a", "b", "c"]
    assert control.ran == [name for name in "abc" if f"acode-{name}" not in recorded] + ["end"]
    assert missing in control.ran


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("changed", [[aa, ax, ab, ac], [aa, ac], [ab, aa, ac], [aa, ab, ax]])
def test_changed_calls_in_parallel_are_refused(hf: Holdfast, changed: list[Any]) -> None:
    run_id = interrupted(hf, gathers(aa, ab, ac))
    with pytest.raises(ReplayDiverged):
        resumed(hf, run_id, gathers(*changed))
    assert set(control.ran) <= {"end"}


BRANCHES = {
    "inserted": ([[aa, ab], [aa, ax, ab]], None),
    "deleted": ([[aa, ab], [aa]], None),
    "deleted, then more": ([[aa, ab], [aa]], ax),
    "fewer": ([[aa, ab]], None),
    "renamed": ([[aa, ax], [aa, ab]], None),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("by", [asyncio.gather, holdfast.parallel])
@pytest.mark.parametrize("change", BRANCHES)
def test_changed_calls_in_a_branch_are_refused(hf: Holdfast, change: str, by: Any) -> None:
    changed, then = BRANCHES[change]
    run_id = interrupted(hf, works([aa, ab], [aa, ab], by=by))
    with pytest.raises(ReplayDiverged):
        resumed(hf, run_id, works(*changed, then=then, by=by))
    assert set(control.ran) <= {"end"}
    assert resumed(hf, run_id, works([aa, ab], [aa, ab], by=by)).result == [["a", "b"], ["a", "b"]]


@pytest.mark.parametrize("by", [asyncio.gather, holdfast.parallel])
def test_step_inserted_before_or_after_branches_is_distinguished(hf: Holdfast, by: Any) -> None:
    run_id = interrupted(hf, works([aa], [aa, ab], by=by))
    assert resumed(hf, run_id, works([aa], [aa, ab], then=ax, by=by)).status == "completed"
    assert control.ran == ["x", "end"]


def test_branches_inserted_before_recorded_steps_are_refused(hf: Holdfast) -> None:
    run_id = interrupted(hf, calls(a, b))
    with pytest.raises(ReplayDiverged, match="now calls 'parallel'"):
        resumed(hf, run_id, calls(lambda: holdfast.parallel(x, c), a, b))
    assert control.ran == []


def test_plain_parallel_with_another_branch_is_refused(hf: Holdfast) -> None:
    def both(*parts: Any) -> Any:
        return lambda: holdfast.parallel(*parts)

    run_id = interrupted(hf, calls(both(lambda: [a(), b()], c)))
    for parts in ([lambda: [a(), x(), b()], c], [lambda: [a(), b()]], [lambda: [a()], c]):
        with pytest.raises(ReplayDiverged):
            resumed(hf, run_id, calls(both(*parts)))
    assert set(control.ran) <= {"end"}
    assert resumed(hf, run_id, calls(both(lambda: [a(), b()], c))).status == "completed"


# What need not be called again


def test_steps_after_a_failure_that_is_tried_again_are_not_expected(hf: Holdfast) -> None:
    def changing() -> Any:
        try:
            found = a()
        except f.Broken:
            b()
            raise
        c()
        return found

    run_id = interrupted(hf, changing, "a")
    control.failing = {"c": 1}
    assert hf.resume(run_id, raises=False).status == "failed"
    # What was recorded since is expected again.
    with pytest.raises(ReplayDiverged):
        resumed(hf, run_id, calls(x))
    assert resumed(hf, run_id, changing).result == "a"
    assert control.ran == ["a", "c", "c"]


def test_divergence_in_a_child_is_raised_and_leaves_both_runs_unchanged(hf: Holdfast) -> None:
    @workflow(name="part")
    def part() -> Any:
        return control.value()

    def changing() -> Any:
        return [a(), part()]

    control.value = calls(b, c)
    run_id = interrupted(hf, changing)
    control.value = calls(b, x)
    with pytest.raises(ReplayDiverged) as caught:
        hf.resume(run_id)
    assert (caught.value.details["run"], caught.value.details["of"]) == (run_id, f"{run_id}.part")
    assert f"{run_id}.part" in str(caught.value)
    assert [hf.get(each).status for each in (run_id, f"{run_id}.part")] == ["failed", "failed"]
    control.value = calls(b, c)
    assert hf.resume(run_id).result == ["a", ["b", "c"]]
    assert control.ran == ["end"]


def test_suspended_run_that_diverges_stays_suspended(hf: Holdfast) -> None:
    def asks(first: Any) -> Any:
        def changing() -> Any:
            return [first(), holdfast.ask("Go?"), c()]

        return changing

    run = hf.run(define(asks(a)))
    hf.answer(run.questions()[0].id, True, resume=False)
    with pytest.raises(ReplayDiverged):
        resumed(hf, run.id, asks(b))
    assert run.status == "suspended"
    assert resumed(hf, run.id, asks(a)).result == ["a", True, "c"]


# Remedies


def test_renamed_step_is_found_by_its_alias(hf: Holdfast) -> None:
    with isolated_definitions():

        @step(name="code-new", aliases=["code-a", "code-b"])
        def new(*args: Any) -> str:
            control.did("new")
            return "new"

    run_id = interrupted(hf, calls(a, a, b, c))
    changed = calls(new, new, new, c, new)
    control.failing = {"end": 1}
    assert resumed(hf, run_id, changed, raises=False).status == "failed"
    assert control.ran == ["new", "end"]
    # What was recorded under the new name since is found as well.
    assert resumed(hf, run_id, changed).result == ["a", "a", "b", "c", "new"]
    assert control.ran == ["new", "end", "end"]


def test_renamed_step_that_was_interrupted_finds_its_inner_steps(tmp_path: Any) -> None:
    db = tmp_path / "cut.db"
    f.kill(f.start_stuck(db, "nested", tmp_path / "effects", "r"))

    @step(name="renamed", aliases=["outer"])
    def renamed() -> Any:
        return [f.inner("x"), f.stuck(), f.inner("y")]

    @workflow(name="also-renamed", aliases=["nested"])
    def also_renamed() -> Any:
        return renamed()

    with holdfast.open(db) as engine:
        assert engine.resume("r", workflow=also_renamed).result == ["<x>", "free", "<y>"]
    assert control.ran == ["stuck", "inner-y"]


def test_renamed_workflow_resumes_its_runs_and_children(hf: Holdfast) -> None:
    def both(part: Any) -> Any:
        def changing() -> Any:
            return [a(), part(), part()]

        return changing

    @workflow(name="old-part")
    def old_part() -> Any:
        return calls(b)()

    run_id = interrupted(hf, both(old_part))
    control.failing = {"end": 1}

    with isolated_definitions():

        @workflow(name="new-part", aliases=["old-part"])
        def new_part() -> Any:
            return calls(b)()

        renamed = both(new_part)
        renamed.__qualname__ = "renamed"
        workflow(name="renamed", aliases=["changing"])(renamed)
        assert hf.resume(run_id, workflow="renamed", raises=False).status == "failed"
        assert hf.resume(run_id, workflow="renamed").result == ["a", ["b"], ["b"]]
    assert control.ran == ["end", "end", "b", "end"]
    assert hf.get(run_id).children == [f"{run_id}.old-part", f"{run_id}.new-part#2"]


def test_renamed_workflow_is_known_by_its_old_name(hf: Holdfast) -> None:
    run_id = interrupted(hf, calls(a))
    from holdfast.workflow import definition

    del definition._workflows["changing"]
    with pytest.raises(holdfast.NotFound):
        hf.resume(run_id)
    workflow(name="renamed", aliases=["changing"])(calls(a, b))
    assert hf.resume(run_id).result == ["a", "b"]


def test_patched_is_true_only_for_runs_that_reach_it_first(hf: Holdfast) -> None:
    def new() -> Any:
        return [a(), *([x()] if holdfast.patched("check") else []), b()]

    def changing() -> Any:
        found = new()
        control.did("end")
        return found

    old = interrupted(hf, calls(a, b))
    control.failing = {"end": 2}
    for _ in range(2):
        assert resumed(hf, old, changing, raises=False).status == "failed"
    assert hf.resume(old).result == ["a", "b"]
    before = interrupted(hf, calls(a), "end")
    control.failing = {"b": 1, "end": 1}
    for _ in range(2):
        assert resumed(hf, before, changing, raises=False).status == "failed"
    assert hf.resume(before).result == ["a", "x", "b"]
    assert control.ran == ["x", "b", "b", "end", "end"]
    assert hf.run(define(changing)).result == ["a", "x", "b"]
    assert holdfast.patched("outside a run")


def test_patched_in_a_loop_is_false_for_recorded_iterations(hf: Holdfast) -> None:
    def turns(inserted: bool) -> Any:
        def changing() -> Any:
            for turn in range(4):
                a(turn)
                if inserted and holdfast.patched("also x"):
                    x(turn)
                if turn == 1:
                    control.did("end")

        return changing

    run_id = interrupted(hf, turns(False))
    control.failing = {"end": 0, "x": 0}
    assert resumed(hf, run_id, turns(True)).status == "completed"
    # The second turn was recorded to its end: whether the run was beyond its place cannot be known.
    assert control.ran == ["x", "end", "a", "x", "a", "x"]


def test_patched_is_false_before_tasks_that_are_recorded(hf: Holdfast) -> None:
    async def changing() -> Any:
        if holdfast.patched("check"):
            await ax()
        return await works([aa], [ab])()

    run_id = interrupted(hf, works([aa], [ab]))
    resumed(hf, run_id, changing)
    assert control.ran == ["end"]


def test_patched_is_false_before_a_question_that_was_asked(hf: Holdfast) -> None:
    def changing() -> Any:
        if holdfast.patched("check"):
            x()
        return holdfast.ask("Go?")

    run = hf.run(define(lambda: holdfast.ask("Go?")))
    define(changing)
    hf.answer(run.questions()[0].id, True)
    assert run.result is True
    assert control.ran == []


@pytest.mark.parametrize(
    "how", [{"changed": "accept"}, {"on_divergence": "rerun"}, {"from_address": "code-b"}]
)
def test_changed_code_is_accepted_from_where_it_differs(hf: Holdfast, how: dict[str, Any]) -> None:
    run_id = interrupted(hf, calls(a, b, c))
    run = resumed(hf, run_id, calls(a, x, c), **how)
    assert run.result == ["a", "x", "c"]
    assert control.ran == ["x", "c", "end"]
    # What was dropped stays in the history, on the timeline that was left.
    versions = [version for version in run.history().versions() if version.step]
    assert [(version.step, version.timeline) for version in reversed(versions)][1:] == [
        ("code-b", 1), ("code-c", 1), ("code-x", 2), ("code-c", 2),
    ]  # fmt: skip
    moved = [event for event in run.events() if event.kind == "run.rolled_back"]
    assert len(moved) == 1
    assert "code-b" in moved[0].data["reason"]


def test_accepting_changed_code_compensates_dropped_steps(hf: Holdfast) -> None:
    @step(name="paid", compensate=lambda *_: control.did("refund"))
    def paid() -> str:
        control.did("paid")
        return "paid"

    run_id = interrupted(hf, calls(a, paid, c))
    assert resumed(hf, run_id, calls(a, c), changed="accept").result == ["a", "c"]
    assert control.ran == ["refund", "c", "end"]


def test_accepting_changed_code_continues_in_a_child(hf: Holdfast) -> None:
    @workflow(name="part")
    def part() -> Any:
        return control.value()

    control.value = calls(b, c)
    run_id = interrupted(hf, lambda: [a(), part()])
    control.value = calls(b, x)
    assert hf.resume(run_id, changed="accept").result == ["a", ["b", "x"]]
    assert control.ran == ["x", "end"]


@pytest.mark.parametrize("bad", ["one", [1], ["a/b"], None, [""]])
def test_aliases_must_be_names(bad: Any) -> None:
    for decorate in (step, workflow):
        with pytest.raises(holdfast.InvalidCall):
            decorate(name="aliased", aliases=bad)(lambda: None)


@pytest.mark.parametrize("bad", ["", None, 3, "x" * 1000, "\ud800"])
def test_patched_requires_an_id(bad: Any) -> None:
    with pytest.raises(holdfast.InvalidCall):
        holdfast.patched(bad)


# By keys


@step(name="code-fetch", key="url")
def fetch(url: str) -> str:
    control.did(url)
    return url


def fetched(*urls: str) -> Callable[[], list[Any]]:
    def changing() -> list[Any]:
        found = [fetch(url) for url in urls]
        control.did("end")
        return found

    return changing


def test_recorded_keys_may_be_called_in_another_order(hf: Holdfast) -> None:
    run_id = interrupted(hf, fetched("a", "b", "c"))
    assert resumed(hf, run_id, fetched("c", "a", "b")).result == ["c", "a", "b"]
    assert control.ran == ["end"]


@pytest.mark.parametrize("urls", [("x", "y", "z"), ("a", "x", "c"), ("x", "a", "b", "c")])
def test_other_keys_are_refused_before_anything_runs(hf: Holdfast, urls: tuple[str, ...]) -> None:
    run_id = interrupted(hf, fetched("a", "b", "c"))
    define(fetched(*urls))
    (problem,) = hf.check(run_id)
    assert problem.run == run_id
    with pytest.raises(ReplayDiverged):
        resumed(hf, run_id, fetched(*urls))
    assert control.ran == []
    # Nothing is lost: with the old code, it ends.
    assert resumed(hf, run_id, fetched("a", "b", "c")).result == ["a", "b", "c"]


# In a branch that had ended


def branched(work: Callable[[Any], Any]) -> Callable[[], Any]:
    def changing() -> Any:
        found = holdfast.parallel(lambda: work(a), lambda: work(b))
        found.append(c())
        control.did("end")
        return found

    return changing


def test_patched_is_false_in_a_branch_that_the_code_had_passed(hf: Holdfast) -> None:
    def patched_work(own: Any) -> Any:
        found = own()
        return x() if holdfast.patched("x") else found

    run_id = interrupted(hf, branched(lambda own: own()))
    assert resumed(hf, run_id, branched(patched_work)).result == ["a", "b", "c"]
    assert control.ran == ["end"]
    assert hf.run(define(branched(patched_work))).result == ["x", "x", "c"]


def test_step_inserted_in_a_branch_that_had_ended_is_refused(hf: Holdfast) -> None:
    run_id = interrupted(hf, branched(lambda own: own()))
    with pytest.raises(ReplayDiverged) as caught:
        resumed(hf, run_id, branched(lambda own: [own(), x()]))
    assert caught.value.details["address"] == "code-c"
    assert control.ran == []


def test_step_appended_to_an_interrupted_branch_runs(hf: Holdfast) -> None:
    run_id = interrupted(hf, branched(lambda own: own()), "b")
    assert resumed(hf, run_id, branched(lambda own: [own(), x()])).result == [["a", "x"], ["b", "x"], "c"]


# Children


def test_child_that_waits_is_refused_with_other_arguments(hf: Holdfast) -> None:
    @workflow(name="code-child")
    def child(customer: str) -> str:
        holdfast.wait_for("go")
        return customer

    hf.run(define(lambda: child("ada")), run_id="run")
    define(lambda: child("bob"))
    (problem,) = hf.check()
    assert "customer was 'ada', is 'bob'" in problem.message
    with pytest.raises(ReplayDiverged, match="customer was 'ada', is 'bob'"):
        hf.signal("run.code-child", "go")
    define(lambda: child(customer="bob"))
    assert hf.resume("run", changed="accept").status == "suspended"
    assert hf.get("run.code-child").status in ("cancelled", "completed")
    assert hf.signal("run.code-child.2", "go").status == "completed"
    assert hf.get("run").result == "bob"
