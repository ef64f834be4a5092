"""A replay that differs from the record is refused, or run again from there: other arguments and changed code."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from replay_flows import adiverging, diverging, given
from step_flows import Broken, control

import holdfast
from holdfast import CodeChanged, Holdfast, ReplayDiverged, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


# Arguments


@pytest.mark.parametrize("flow", [diverging, adiverging])
def test_divergence_is_raised_for_other_arguments(hf: Holdfast, flow: Any) -> None:
    control.value = "old"
    control.failing["end"] = 1
    run = hf.run(flow, run_id="r", raises=False)
    control.value = "new"
    with pytest.raises(ReplayDiverged) as caught:
        hf.resume("r")
    error = caught.value
    assert error.details["address"] == "given#2"
    assert "given#2" in str(error)
    assert error.details["recorded"] == {"value": "'old'"}
    assert error.details["now"] == {"value": "'new'"}
    assert "value was 'old', is 'new'" in str(error)
    assert run.head.number == 4
    again = hf.resume("r", on_divergence="rerun")
    assert again.result == ["got same", "got new", "got last"]
    assert control.ran == [
        "given-same", "given-old", "given-last", "end", "given-new", "given-last", "end",
    ]  # fmt: skip
    assert run.history().at(3).result == "got old"


def test_divergence_leaves_the_run_unchanged(hf: Holdfast) -> None:
    control.value = "old"
    control.failing["end"] = 1
    run = hf.run(diverging, run_id="r", raises=False)
    assert isinstance(run.error, Broken)
    control.value = "new"
    with pytest.raises(ReplayDiverged):
        hf.resume("r")
    assert run.status == "failed"
    assert isinstance(run.error, Broken)
    assert not run.alive
    diverged = [event for event in run.events() if event.kind == "run.diverged"]
    assert [event.data["address"] for event in diverged] == ["given#2"]


@pytest.mark.parametrize(
    ("old", "new"), [(1, True), (1, 1.0), ("1", 1), ([1], (1,)), (0.0, -0.0), ({"a": 1}, {"a": 1, "b": 2})]
)
def test_divergence_is_raised_for_arguments_of_another_type(hf: Holdfast, old: Any, new: Any) -> None:
    control.value = old
    control.failing["end"] = 1
    hf.run(diverging, run_id="r", raises=False)
    control.value = new
    with pytest.raises(ReplayDiverged):
        hf.resume("r")
    control.value = old
    assert hf.resume("r").status == "completed"


def test_divergence_cannot_be_caught_by_user_code(hf: Holdfast) -> None:
    @workflow(name="swallows")
    def swallows() -> str:
        try:
            given(control.value)
        except BaseException:
            control.ran.append("swallowed")
        control.did("end")
        return "done"

    control.value = "old"
    control.failing["end"] = 1
    hf.run(swallows, run_id="r", raises=False)
    control.value = "new"
    with pytest.raises(ReplayDiverged):
        hf.resume("r")
    assert "swallowed" in control.ran
    assert hf.get("r").status == "failed"
    assert hf.get("r").history().at(2).result == "got old"


def test_redacted_result_does_not_make_a_run_diverge(tmp_path: Path) -> None:
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
        run = hf.run(secretive, raises=False)
        assert hf.resume(run.id).result == "me"
    assert all(b"s3cret" not in each.read_bytes() for each in tmp_path.iterdir())


def test_rerun_continues_to_the_next_divergence(hf: Holdfast) -> None:
    over: list[asyncio.Event] = []

    @step(name="later")
    async def later(n: int, word: str) -> str:
        if n == 0:
            await over[-1].wait()
        control.did(f"later-{n}")
        return word

    @workflow(name="two_diverge")
    async def two_diverge() -> list[str]:
        mine = asyncio.Event()
        over.append(mine)
        calls = [asyncio.ensure_future(later(n, control.value)) for n in range(2)]
        calls[1].add_done_callback(lambda _: mine.set())
        found = await asyncio.gather(*calls)
        control.did("end")
        return list(found)

    control.value = "old"
    control.failing["end"] = 1
    run = hf.run(two_diverge, raises=False)
    assert run.history().at(2).address == "later#2"
    control.value = "new"
    assert hf.resume(run.id, on_divergence="rerun").result == ["new", "new"]


# Code


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


def test_changed_code_is_reported(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    control.failing["end"] = 9
    hf.run(_define(ONE), 1, run_id="r", raises=False)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        _define(SAME)
        assert hf.resume("r", raises=False).status == "failed"
        assert caplog.records == []
        _define(OTHER)
        assert hf.resume("r", raises=False).status == "failed"
        assert [record.name for record in caplog.records] == ["holdfast"]
        assert "edited" in caplog.text
        assert "'r'" in caplog.text
        caplog.clear()
        assert hf.resume("r", raises=False).status == "failed"
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


def test_workflow_may_refuse_changed_code_by_itself(hf: Holdfast) -> None:
    control.failing["end"] = 1
    hf.run(_define(ONE, changed="refuse"), 1, run_id="r", raises=False)
    _define(OTHER, changed="refuse")
    with pytest.raises(CodeChanged):
        hf.resume("r")
    assert hf.resume("r", changed="warn").result == 3


def test_workflow_version_replaces_the_fingerprint(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    control.failing["end"] = 2
    hf.run(_define(ONE, version="1", changed="refuse"), 1, run_id="r", raises=False)
    _define(OTHER, version="1", changed="refuse")
    assert hf.resume("r", raises=False).status == "failed"
    _define(OTHER, version="2", changed="refuse")
    with pytest.raises(CodeChanged):
        hf.resume("r")


def test_fork_knows_the_code_of_its_origin(hf: Holdfast) -> None:
    hf.run(_define(ONE), 1, run_id="r")
    hf.fork("r", "child", at=2)
    _define(OTHER)
    with pytest.raises(CodeChanged):
        hf.resume("child", changed="refuse")
