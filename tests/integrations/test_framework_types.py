"""Values of frameworks that are committed by hand: the refusal names the integration."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest

import holdfast
from holdfast import UnsupportedValue
from holdfast.tree.values import is_registered


def _langgraph() -> list[Any]:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.types import Command, StateSnapshot

    class Mine(AIMessage):
        pass

    snapshot = StateSnapshot({}, (), {}, None, None, None, (), ())
    return [AIMessage("x"), HumanMessage("x"), Mine(content="x"), snapshot, Command()]


def _burr() -> list[Any]:
    pytest.importorskip("burr")
    from burr.core import State

    return [State({"a": 1})]


def _stageflow() -> list[Any]:
    pytest.importorskip("stageflow")
    from stageflow import create_test_stage_context
    from stageflow.context import ContextSnapshot

    return [ContextSnapshot(input_text="hello"), create_test_stage_context()]


def _openai() -> list[Any]:
    pytest.importorskip("agents")
    from agents import Agent, MessageOutputItem, RunContextWrapper, RunItemStreamEvent, Usage
    from openai.types.responses import ResponseOutputMessage

    message = ResponseOutputMessage(id="m", content=[], role="assistant", status="completed", type="message")
    item = MessageOutputItem(Agent("a"), message)
    event = RunItemStreamEvent(name="message_output_created", item=item)
    return [item, message, RunContextWrapper(None), Agent("a"), Usage(), event]


def _agent_framework() -> list[Any]:
    pytest.importorskip("agent_framework")
    from agent_framework import AgentSession, Message

    return [AgentSession(), Message("user", ["hello"])]


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("langgraph", _langgraph),
        ("burr", _burr),
        ("stageflow", _stageflow),
        ("openai_agents", _openai),
        ("agent_framework", _agent_framework),
    ],
)
def test_refusal_names_the_integration(module: str, make: Any) -> None:
    with holdfast.open(":memory:") as hf:
        log = hf.history("r")
        for value in make():
            name = type(value).__name__
            if is_registered(type(value)):
                # Another test has imported the integration, which registers it.
                log.commit({"value": value})
                continue
            for state, where in ((value, "the root"), ({"a": [{"b": value}]}, "a[0].b")):
                with pytest.raises(UnsupportedValue) as found:
                    log.commit(state)
                text = str(found.value)
                assert f"import holdfast.integrations.{module}" in text, text
                assert f"holdfast.register({name}" in text
                assert where in text


def test_framework_without_an_integration_is_named() -> None:
    message: Any = type("ModelRequest", (), {"__module__": "pydantic_ai.messages"})()
    with (
        holdfast.open(":memory:") as hf,
        pytest.raises(UnsupportedValue, match=r"a type of Pydantic AI: store ModelMessagesTypeAdapter"),
    ):
        hf.history("r").commit({"messages": [message]})


@pytest.mark.parametrize(
    "module",
    [
        "agents",
        "agents.items",
        "agents.usage",
        "agents.mine",
        "openai",
        "burrow",
        "langgraphs",
        "my.langgraph",
        None,
    ],
)
def test_class_of_a_similar_module_is_not_taken_for_one_of_a_framework(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only one package of this name can be imported.
    monkeypatch.setitem(sys.modules, "agents", types.ModuleType("agents"))
    value: Any = type("Thing", (), {"__module__": module})()
    with holdfast.open(":memory:") as hf, pytest.raises(UnsupportedValue) as found:
        hf.history("r").commit({"thing": value})
    assert "integration" not in str(found.value)


def test_refusal_imports_no_framework() -> None:
    code = (
        "import sys, holdfast\n"
        "value = type('AIMessage', (), {'__module__': 'langchain_core.messages'})()\n"
        "try: holdfast.open(':memory:').history('r').commit({'m': value})\n"
        "except holdfast.UnsupportedValue as error: assert 'integrations.langgraph' in str(error)\n"
        "assert not {'langgraph', 'langchain_core', 'agents', 'burr'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
