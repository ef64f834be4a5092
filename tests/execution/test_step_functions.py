"""A step is an ordinary function outside a run and for tools that inspect it; a method can be one."""

from __future__ import annotations

import asyncio

import pytest
import step_fixtures
import step_flows as f
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, InvalidCall, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


def test_step_outside_a_run_is_an_ordinary_function() -> None:
    with holdfast.call_steps_directly({"texts": ["z"]}) as state:
        assert f.write("a") == "A"
        assert f.book("kelp") == "A+B"
        assert asyncio.run(f.awrite("c")) == "C"  # type: ignore[arg-type, unused-ignore]
    assert state == {"texts": ["z", "a", "a", "b", "c"], "topic": "kelp", "done": True}
    assert f.write("a") == "A"
    assert asyncio.run(f.abook("x")) == "A+B"  # type: ignore[arg-type, unused-ignore]
    with pytest.raises(InvalidCall, match="call_steps_directly"):
        holdfast.state()
    with pytest.raises(Broken):
        f.fragile()


def test_decorated_functions_look_like_themselves() -> None:
    import inspect

    assert f.write.__name__ == "write"
    assert list(inspect.signature(f.write).parameters) == ["task"]
    assert f.stuck.__doc__ is not None


def test_methods_can_be_steps_of_an_object(hf: Holdfast) -> None:
    class Agent:
        def __init__(self, name: str) -> None:
            self.name = name

        @step
        def speak(self, word: str) -> str:
            control.did("speak")
            return f"{self.name}: {word}"

    @workflow(name="speaking")
    def speaking() -> str:
        said = Agent("a").speak("hi")
        control.did("end")
        return said

    control.failing["end"] = 1
    run = hf.run(speaking, raises=False)
    assert hf.resume(run.id).result == "a: hi"
    assert control.ran == ["speak", "end", "end"]
