"""Replay by address: only what the head follows counts, differences are told, and going back forgets what was after."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flows_steps as f
import pytest
from flows_steps import Broken, control, wait_until

import holdfast
from holdfast import CodeChanged, Holdfast, ReplayDiverged, step, workflow


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    control.reset()
    yield
    control.reset()


@pytest.fixture(params=["file", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(":memory:" if request.param == "memory" else tmp_path / "runs.db") as engine:
        yield engine


BOOKS = [pytest.param(f.book, id="def"), pytest.param(f.abook, id="async")]


def _dump(path: Path) -> list[str]:
    """All that a store holds."""
    with sqlite3.connect(path) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize("flow", BOOKS)
def test_a_rollback_starts_a_new_timeline(hf: Holdfast, flow: Any) -> None:
    run = hf.run(flow, "kelp", run_id="r")
    again = hf.rollback("r", to=2)
    assert again.result == "A+B"
    assert control.ran == ["plan", "write-a", "write-b", "finish", "write-a", "write-b", "finish"]
    versions = {version.number: version for version in run.history().versions()}
    assert sorted(versions) == list(range(1, 11))
    assert [versions[number].parent for number in (7, 8, 9, 10)] == [2, 7, 8, 9]
    assert [versions[number].timeline for number in (6, 7)] == [1, 2]
    assert versions[4].state == {"topic": "kelp", "texts": ["a", "b"]}
    assert versions[6].status == "completed"
    assert run.state == {"topic": "kelp", "texts": ["a", "b"], "done": True}


@step
def analyst(topic: str) -> str:
    control.did("analyst")
    holdfast.state()["topic"] = topic
    return f"on {topic}"


@step
def marketer(insight: str) -> str:
    control.did("marketer")
    holdfast.state()["slogan"] = insight.upper()
    return insight.upper()


def marketer_v2(insight: str) -> str:
    control.did("marketer_v2")
    holdfast.state()["slogan"] = f"{insight}!"
    return f"{insight}!"


@workflow
def strategy(topic: str) -> str:
    return marketer(analyst(topic))


def test_two_of_four_and_both_timelines_compared(hf: Holdfast) -> None:
    run = hf.run(strategy, "kelp", run_id="r")
    assert run.head.number == 4
    again = hf.rollback("r", to=2, overrides={"marketer": marketer_v2}, reason="dull")
    assert again.result == "on kelp!"
    versions = run.history().versions()[::-1]
    assert [(version.number, version.parent) for version in versions] == [
        (1, None), (2, 1), (3, 2), (4, 3), (5, 2), (6, 5),
    ]  # fmt: skip
    assert run.history().at(3).result == "ON KELP"
    comparison = hf.compare("r@4", "r@6")
    assert [(pair.step, pair.same) for pair in comparison.steps] == [("marketer", False), (None, False)]
    assert [change.path for change in comparison.diff.changes] == [("slogan",)]
    assert control.ran == ["analyst", "marketer", "marketer_v2"]


def test_a_fork_tries_another_step_beside_the_first(hf: Holdfast) -> None:
    hf.run(strategy, "kelp", run_id="r")
    hf.fork("r", "other", at=2, overrides={"marketer": marketer_v2})
    assert hf.resume("other").result == "on kelp!"
    assert control.ran == ["analyst", "marketer", "marketer_v2"]
    assert hf.get("r").result == "ON KELP"
    assert hf.get("other").state == {"topic": "kelp", "slogan": "on kelp!"}
    comparison = hf.compare("r", "other")
    assert "slogan" in str(comparison)
    assert hf.resume("other").result == "on kelp!"
    hf.rollback("other", to=1)
    assert control.ran == ["analyst", "marketer", "marketer_v2", "marketer_v2"]


def test_a_fork_with_edited_state(hf: Holdfast) -> None:
    run = hf.run(f.book, "kelp", run_id="r")

    def edit(state: Any) -> None:
        state["texts"].append("edited")

    hf.fork("r", "by-function", at=3, edit=edit)
    assert hf.resume("by-function").result == "A+B"
    assert hf.get("by-function").state["texts"] == ["a", "edited", "b"]
    hf.fork("r", "by-path", at=3, edit={"texts[0]": "A!"})
    assert hf.resume("by-path").result == "A+B"
    assert hf.get("by-path").state["texts"] == ["A!", "b"]
    hf.fork("r", "anew", at=3, state={"texts": ["0"]})
    hf.resume("anew")
    assert hf.get("anew").state == {"texts": ["0", "b"], "done": True}
    assert run.state["texts"] == ["a", "b"]
    assert control.ran.count("plan") == 1


@workflow
def decides() -> str:
    outer_choice()
    return f.write(str(holdfast.state()["choice"]))


@step
def outer_choice() -> None:
    inner_choice()


@step
def inner_choice() -> None:
    holdfast.state()["choice"] = "first"


@workflow
def decides_flat() -> str:
    inner_choice()
    return f.write(str(holdfast.state()["choice"]))


@pytest.mark.parametrize(
    "flow",
    [
        "flat",
        "nested",
    ],
)
def test_a_workflow_sees_the_edited_state_of_its_fork(hf: Holdfast, flow: str) -> None:
    hf.run(decides_flat if flow == "flat" else decides, run_id="r")
    hf.fork("r", "edited", at=2 if flow == "flat" else 3, edit={"choice": "second"})
    assert hf.resume("edited").result == "SECOND"


def test_a_fork_of_a_fork_resumes(hf: Holdfast) -> None:
    hf.run(f.book, "kelp", run_id="r0")
    for turn in range(1, 6):
        hf.fork(f"r{turn - 1}", f"r{turn}", at=3 if turn == 1 else 1)
    assert hf.resume("r5").result == "A+B"
    assert control.ran.count("plan") == control.ran.count("write-a") == 1
    assert hf.get("r5").state == hf.get("r0").state


@workflow
def lucky() -> list[Any]:
    first = [holdfast.now(), holdfast.uuid4(), holdfast.random()]
    f.write("a")
    second = [holdfast.now(), holdfast.uuid4(), holdfast.random(), drawn()]
    f.write("b")
    control.did("end")
    return [first, second]


@step
def drawn() -> Any:
    return holdfast.uuid4()


def test_time_and_luck_are_replayed_and_not_from_an_abandoned_timeline(hf: Holdfast) -> None:
    control.failing["end"] = 1
    run = hf.run(lucky, run_id="r")
    assert isinstance(run.error, Broken)
    one = hf.resume("r").result
    hf.rollback("r", to=2)
    two = run.result
    assert two[0] == one[0]
    assert two[1][1] != one[1][1]
    assert two[1][3] != one[1][3]
    hf.rollback("r", to=1)
    three = run.result
    assert three[0] != one[0]
    hf.rollback("r", to=run.history().versions()[1].number)
    assert run.result == three


def test_what_was_drawn_before_a_failed_step_is_drawn_again_the_same(hf: Holdfast) -> None:
    """An order's number made by uuid4() must not change because placing the order failed."""

    @step(name="order")
    def order(number: str) -> str:
        control.ran.append(number)
        if len(control.ran) == 1:
            raise Broken("lost the answer")
        return number

    @workflow(name="ordering")
    def ordering() -> str:
        return order(str(holdfast.uuid4()))

    run = hf.run(ordering)
    assert run.status == "failed"
    assert hf.resume(run.id).status == "completed"
    assert control.ran[0] == control.ran[1]


@workflow
def asking() -> Any:
    f.write("a")
    answer = holdfast.ask("Publish?")
    event = holdfast.wait_for("go")
    return [answer, event, f.write("b")]


def test_answers_and_events_of_an_abandoned_timeline_do_not_leak(hf: Holdfast) -> None:
    run = hf.run(asking, run_id="r")
    assert run.status == "suspended"
    hf.answer(run.prompts()[0].id, "yes")
    hf.send("r", "go", {"n": 1})
    assert run.result == ["yes", {"n": 1}, "B"]
    hf.rollback("r", to=2)
    assert run.status == "suspended"
    hf.answer(run.prompts()[0].id, "no")
    assert run.status == "suspended"
    hf.send("r", "go", {"n": 2})
    assert run.result == ["no", {"n": 2}, "B"]
    assert control.ran == ["write-a", "write-b", "write-b"]


@step
def given(value: Any) -> str:
    control.did(f"given-{value}")
    return f"got {value}"


@step(name="given")
async def agiven(value: Any) -> str:
    control.did(f"given-{value}")
    return f"got {value}"


@workflow
def diverging() -> list[str]:
    found = [given("same"), given(control.value), given("last")]
    control.did("end")
    return found


@workflow
async def adiverging() -> list[str]:
    found = [await agiven("same"), await agiven(control.value), await agiven("last")]
    control.did("end")
    return found


@pytest.mark.parametrize("flow", [diverging, adiverging])
def test_other_arguments_are_noticed(hf: Holdfast, flow: Any) -> None:
    control.value = "old"
    control.failing["end"] = 1
    run = hf.run(flow, run_id="r")
    control.value = "new"
    error = hf.resume("r").error
    assert isinstance(error, ReplayDiverged)
    assert error.details["address"] == "given#2"
    assert "given#2" in str(error)
    assert error.details["recorded"] != error.details["now"]
    assert error.details["recorded"] in str(error)
    assert error.details["now"] in str(error)
    assert run.head.number == 4
    again = hf.resume("r", on_divergence="rerun")
    assert again.result == ["got same", "got new", "got last"]
    assert control.ran == [
        "given-same", "given-old", "given-last", "end", "given-new", "given-last", "end",
    ]  # fmt: skip
    assert run.history().at(3).result == "got old"


def test_a_handle_tells_the_error_of_the_last_execution(hf: Holdfast) -> None:
    control.value = "old"
    control.failing["end"] = 1
    run = hf.run(diverging, run_id="r")
    assert isinstance(run.error, Broken)
    control.value = "new"
    hf.resume("r")
    assert isinstance(run.error, ReplayDiverged)


@pytest.mark.parametrize(
    ("old", "new"), [(1, True), (1, 1.0), ("1", 1), ([1], (1,)), (0.0, -0.0), ({"a": 1}, {"a": 1, "b": 2})]
)
def test_arguments_differ_by_type_too(hf: Holdfast, old: Any, new: Any) -> None:
    control.value = old
    control.failing["end"] = 1
    hf.run(diverging, run_id="r")
    control.value = new
    assert isinstance(hf.resume("r").error, ReplayDiverged)
    control.value = old
    assert hf.resume("r").status == "completed"


def test_a_divergence_that_the_workflow_swallows_is_still_told(hf: Holdfast) -> None:
    @workflow(name="swallows")
    def swallows() -> str:
        try:
            given(control.value)
        except Exception:
            control.ran.append("swallowed")
        control.did("end")
        return "done"

    control.value = "old"
    control.failing["end"] = 1
    hf.run(swallows, run_id="r")
    control.value = "new"
    assert hf.resume("r").status in {"failed", "completed"}
    assert hf.get("r").history().at(2).result == "got old"


@step
def sub(name: str) -> str:
    control.did(f"sub-{name}")
    holdfast.state().setdefault("subs", []).append(name)
    return name


@step
def top(name: str) -> list[str]:
    control.did(f"top-{name}")
    return [sub(f"{name}1"), sub(f"{name}2")]


@workflow
def layered() -> list[list[str]]:
    return [top("a"), top("b")]


def test_from_an_address_that_step_and_all_after_it_run_anew_once(hf: Holdfast) -> None:
    run = hf.run(f.book, "kelp", run_id="r")
    control.ran.clear()
    again = hf.resume("r", from_address="write#2")
    assert again.result == "A+B"
    assert control.ran == ["write-b", "finish"]
    assert run.state["texts"] == ["a", "b"]
    control.ran.clear()
    assert hf.resume("r").result == "A+B"
    assert control.ran == []
    assert run.head.number == 9
    control.failing["finish"] = 1
    assert hf.resume("r", from_address="plan").status == "failed"
    control.ran.clear()
    assert hf.resume("r").result == "A+B"
    assert control.ran == ["finish"]


def test_from_an_address_in_a_nested_step(hf: Holdfast) -> None:
    run = hf.run(layered, run_id="r")
    control.ran.clear()
    assert hf.resume("r", from_address="top/sub#2").result == [["a1", "a2"], ["b1", "b2"]]
    assert control.ran == ["top-a", "sub-a2", "top-b", "sub-b1", "sub-b2"]
    assert run.state["subs"] == ["a1", "a2", "b1", "b2"]
    control.ran.clear()
    hf.resume("r")
    assert control.ran == []


def test_from_the_address_of_a_step_that_calls_steps(hf: Holdfast) -> None:
    run = hf.run(layered, run_id="r")
    control.ran.clear()
    hf.resume("r", from_address="top#2")
    assert control.ran == ["top-b", "sub-b1", "sub-b2"]
    assert run.state["subs"] == ["a1", "a2", "b1", "b2"]


def test_an_address_that_is_not_recorded_is_refused(hf: Holdfast) -> None:
    hf.run(f.book, "kelp", run_id="r")
    with pytest.raises(holdfast.NotFound, match="write#2"):
        hf.resume("r", from_address="nope")
    assert hf.get("r").status == "completed"


@step
def measured() -> Any:
    control.did("measured")
    if isinstance(control.value, Exception):
        raise control.value
    holdfast.state()["level"] = control.value
    return control.value


@workflow
def measuring() -> list[Any]:
    try:
        found = measured()
    except Broken as error:
        found = str(error)
    return [found, f.write("a")]


@workflow
async def ameasuring() -> list[Any]:
    try:
        found = measured()
    except Broken as error:
        found = str(error)
    return [found, await f.awrite("a")]


@pytest.mark.parametrize("flow", [measuring, ameasuring])
def test_validate_runs_the_steps_and_changes_nothing(tmp_path: Path, flow: Any) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        control.value = 5
        run = hf.run(flow, run_id="r")
        control.ran.clear()
        before = _dump(path)
        assert hf.resume("r", mode="validate").differences == ()
        assert control.ran == ["measured", "write-a"]
        control.value = 6
        found = hf.resume("r", mode="validate").differences
        assert [(each.address, each.what) for each in found] == [
            ("measured", "result"),
            ("measured", "state"),
        ]
        assert (found[0].recorded, found[0].now) == (5, 6)
        assert "measured" in str(found[0])
        control.value = Broken("now it fails")
        found = hf.resume("r", mode="validate").differences
        assert [(each.address, each.what) for each in found] == [("measured", "error")]
        assert "now it fails" in str(found[0])
        assert _dump(path) == before
        assert run.result == [5, "A"]
        assert run.status == "completed"


def test_validate_tells_of_errors_that_differ(hf: Holdfast) -> None:
    control.value = Broken("old trouble")
    hf.run(measuring, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()
    control.value = 5
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("measured", "error")]


def test_validate_tells_of_another_error_than_the_recorded_one(hf: Holdfast) -> None:
    control.value = Broken("old trouble")
    hf.run(measuring, run_id="r")
    control.value = Broken("new trouble")
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("measured", "error")]


def test_validate_tells_of_other_arguments_and_another_result(hf: Holdfast) -> None:
    control.value = "old"
    hf.run(diverging, run_id="r")
    control.value = "new"
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("given#2", "arguments"), ("given#2", "result")]
    assert hf.get("r").result == ["got same", "got old", "got last"]


@workflow
def growing() -> list[str]:
    found = [given("one")]
    if control.value == "more":
        found.append(given("two"))
    return found if control.value != "less" else []


def test_validate_tells_of_steps_beyond_a_finished_record(hf: Holdfast) -> None:
    hf.run(growing, run_id="r")
    control.value = "more"
    control.ran.clear()
    found = hf.resume("r", mode="validate").differences
    assert control.ran == ["given-one"]
    assert found


def test_validate_tells_of_another_result_of_the_workflow(hf: Holdfast) -> None:
    hf.run(growing, run_id="r")
    control.value = "less"
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("", "result")]


def test_validate_of_nested_steps(hf: Holdfast) -> None:
    hf.run(layered, run_id="r")
    control.ran.clear()
    assert hf.resume("r", mode="validate").differences == ()
    assert control.ran == ["top-a", "sub-a1", "sub-a2", "top-b", "sub-b1", "sub-b2"]


def test_validate_of_a_failed_run_stops_where_the_record_ends(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    hf.run(f.book, "kelp", run_id="r")
    control.ran.clear()
    assert hf.resume("r", mode="validate").differences == ()
    assert control.ran == ["plan", "write-a", "write-b"]
    assert hf.get("r").status == "failed"


def test_validate_of_a_run_whose_own_code_failed(hf: Holdfast) -> None:
    @workflow(name="own_failure")
    def own_failure() -> None:
        f.write("a")
        raise Broken("own")

    hf.run(own_failure, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()


def test_validate_of_a_run_that_waits(hf: Holdfast) -> None:
    hf.run(asking, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()
    assert hf.get("r").status == "suspended"


def test_validate_of_parallel_steps(hf: Holdfast) -> None:
    @step(name="adds")
    async def adds(n: int) -> int:
        state = holdfast.state()
        await asyncio.sleep(0)
        state["list"].append(n)
        return n

    @workflow(name="adding")
    async def adding() -> list[int]:
        return list(await asyncio.gather(*[adds(n) for n in range(5)]))

    hf.run(adding, run_id="r", state={"list": []})
    assert hf.resume("r", mode="validate").differences == ()


def test_republish_tells_of_recorded_steps_again(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    run = hf.run(f.book, "kelp", run_id="r")
    assert run.status == "failed"
    heard: list[tuple[str, Any]] = []
    with hf.subscribe(lambda event: heard.append((event.kind, event.data.get("address"))), run_id="r"):
        control.ran.clear()
        assert hf.resume("r", mode="republish").result == "A+B"
        wait_until(lambda: any(kind == "run.completed" for kind, _ in heard))
    assert control.ran == ["finish"]
    replayed = [address for kind, address in heard if kind == "step.replayed"]
    assert replayed == ["plan", "write", "write#2"]
    assert [kind for kind, _ in heard].count("step.completed") == 1


def test_a_normal_resume_tells_nothing_twice(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    run = hf.run(f.book, "kelp", run_id="r")
    heard: list[str] = []
    with hf.subscribe(lambda event: heard.append(event.kind), run_id="r"):
        hf.resume("r")
        wait_until(lambda: "run.completed" in heard)
    assert heard.count("step.completed") == 1
    assert "step.replayed" not in heard
    assert [event.kind for event in run.events()].count("step.completed") == 4


def _define(source: str, **options: Any) -> Any:
    """A workflow of given source, as if its module had been edited."""
    import linecache

    name = f"<edited {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType("edited")
    exec(compile(source, name, "exec"), {**vars(module), "f": f, "control": control}, vars(module))
    function: Callable[..., Any] = vars(module)["edited"]
    return workflow(name="edited", **options)(function)


ONE = """def edited(x):
    f.write("a")
    control.did("end")
    return x + 1
"""
SAME = '''def edited(
    x,
):
    """Now with a docstring."""
    # and comments
    f.write('a')

    control.did("end")
    return (x + 1)
'''
OTHER = """def edited(x):
    f.write("a")
    control.did("end")
    return x + 2
"""


def test_changed_code_is_noticed(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    control.failing["end"] = 9
    hf.run(_define(ONE), 1, run_id="r")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        _define(SAME)
        assert hf.resume("r").status == "failed"
        assert caplog.records == []
        _define(OTHER)
        assert hf.resume("r").status == "failed"
        assert [record.name for record in caplog.records] == ["holdfast"]
        assert "edited" in caplog.text
        assert "'r'" in caplog.text
        caplog.clear()
        assert hf.resume("r").status == "failed"
        assert caplog.records == []
        _define(ONE)
        with pytest.raises(CodeChanged, match="edited") as caught:
            hf.resume("r", changed="refuse")
        assert caught.value.details["recorded"] != caught.value.details["now"]
        assert hf.get("r").status == "failed"
        caplog.clear()
        control.failing.clear()
        assert hf.resume("r", changed="allow").result == 2
        assert caplog.records == []
    assert control.ran.count("write-a") == 1


def test_a_workflow_may_refuse_changed_code_by_itself(hf: Holdfast) -> None:
    control.failing["end"] = 1
    hf.run(_define(ONE, changed="refuse"), 1, run_id="r")
    _define(OTHER, changed="refuse")
    with pytest.raises(CodeChanged):
        hf.resume("r")
    assert hf.resume("r", changed="warn").result == 3


def test_a_version_by_hand_stands_for_the_code(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    control.failing["end"] = 2
    hf.run(_define(ONE, version="1", changed="refuse"), 1, run_id="r")
    _define(OTHER, version="1", changed="refuse")
    assert hf.resume("r").status == "failed"
    _define(OTHER, version="2", changed="refuse")
    with pytest.raises(CodeChanged):
        hf.resume("r")


def test_a_fork_knows_the_code_that_it_came_from(hf: Holdfast) -> None:
    hf.run(_define(ONE), 1, run_id="r")
    hf.fork("r", "child", at=2)
    _define(OTHER)
    with pytest.raises(CodeChanged):
        hf.resume("child", changed="refuse")


@pytest.mark.parametrize("call", ["resume", "rollback"])
def test_a_call_that_is_refused_in_an_event_loop_leaves_the_run_as_it_was(hf: Holdfast, call: str) -> None:
    run = hf.run(f.abook, "kelp", run_id="r")

    async def inside() -> None:
        with pytest.raises(holdfast.InvalidCall, match="await"):
            hf.resume("r", from_address="finish") if call == "resume" else hf.rollback("r", to=2)

    asyncio.run(inside())
    assert run.status == "completed"
    assert run.head.number == 6


def test_an_asynchronous_run_is_resumed_in_an_event_loop(hf: Holdfast) -> None:
    async def inside() -> None:
        control.failing["finish"] = 1
        run = await hf.arun(f.abook, "kelp", run_id="r")
        assert run.status == "failed"
        assert (await hf.aresume("r")).result == "A+B"
        control.failing["finish"] = 1
        assert (await hf.aresume("r", from_address="finish")).status == "failed"
        assert (await hf.aresume("r", mode="validate")).differences == ()
        assert (await hf.aresume("r")).result == "A+B"
        blocking = await hf.arun(f.book, "kelp")
        assert blocking.result == "A+B"

    asyncio.run(inside())


def test_state_that_was_rolled_back_is_gone_from_the_step_that_follows(hf: Holdfast) -> None:
    run = hf.run(f.book, "kelp", run_id="r")
    for _ in range(5):
        hf.rollback("r", to=2)
        assert run.state["texts"] == ["a", "b"]
    assert run.head.timeline == 6
    assert [version.number for version in run.history().ancestors()][-2:] == [2, 1]


def test_a_redacted_result_does_not_make_a_run_diverge(tmp_path: Path) -> None:
    @step(name="login")
    def login() -> dict[str, str]:
        return {"api_key": "s3cret", "user": "me"}

    @step(name="use")
    def use(token: dict[str, str]) -> str:
        return token["user"]

    @workflow(name="secretive")
    def secretive() -> str:
        found = use(login())
        control.did("end")
        return found

    path = tmp_path / "runs.db"
    with holdfast.open(path, redact=["api_key"]) as hf:
        control.failing["end"] = 1
        run = hf.run(secretive)
        assert hf.resume(run.id).result == "me"
    assert all(b"s3cret" not in each.read_bytes() for each in tmp_path.iterdir())


def test_rerun_goes_on_to_the_next_divergence(hf: Holdfast) -> None:
    @step(name="later")
    async def later(n: int, word: str) -> str:
        if n == 0:
            while "later-1" not in control.ran:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
        control.did(f"later-{n}")
        return word

    @workflow(name="two_diverge")
    async def two_diverge() -> list[str]:
        found = await asyncio.gather(later(0, control.value), later(1, control.value))
        control.did("end")
        return list(found)

    control.value = "old"
    control.failing["end"] = 1
    run = hf.run(two_diverge)
    assert run.history().at(2).address == "later#2"
    control.value = "new"
    assert hf.resume(run.id, on_divergence="rerun").result == ["new", "new"]
