"""Values in checkpoints of agent-framework: read back unchanged, or refused."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, cast

import agent_framework as af
import pytest
from agent_framework.exceptions import WorkflowCheckpointException
from agent_framework_workflows import Draft, Puts, Unknown, Verdict, checkpoint, storage_of

import holdfast
from database import Database
from holdfast import (
    CorruptVersion,
    Holdfast,
    IncompatibleFormat,
    InvalidCall,
    InvalidReference,
    UnsupportedValue,
)
from holdfast.integrations.agent_framework import HoldfastCheckpointStorage


def test_checkpoint_is_read_back_unchanged(hf: Holdfast) -> None:
    event = af.WorkflowEvent.request_info(
        request_id="r",
        source_executor_id="e",
        request_data=Draft("x"),
        response_type=cast(Any, list[Verdict]),
    )
    state = {"t": (1, 2.0), "s": {3}, "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "big": 2**80, 7: b"\0"}
    call = af.Content.from_function_call("c", "search", arguments={"q": "kelp"})
    sent = checkpoint(
        state={"a": state, "said": af.Message(role="user", contents=["hi", call])},
        messages={"e": [af.WorkflowMessage(data=Verdict(True), source_id="e", trace_contexts=[{"a": "b"}])]},
        pending_request_info_events={"r": event},
        metadata={"odd": "\ud800"},
    )
    whole = copy.deepcopy(sent.to_dict())

    async def run() -> af.WorkflowCheckpoint:
        assert await storage_of(hf).save(sent) == sent.checkpoint_id
        return await storage_of(hf).load(sent.checkpoint_id)

    found = asyncio.run(run())
    for name in ("checkpoint_id", "timestamp", "metadata", "messages", "workflow_name", "version"):
        assert getattr(found, name) == whole[name]
    assert found.state["a"] == state
    assert [content.to_dict() for content in found.state["said"].contents] == [
        content.to_dict() for content in whole["state"]["said"].contents
    ]
    back = found.pending_request_info_events["r"]
    assert (back.request_type, back.response_type, back.data) == (Draft, list[Verdict], Draft("x"))
    assert back.origin is event.origin


def test_response_types_are_read_back(hf: Holdfast) -> None:
    async def run() -> None:
        kinds: list[Any] = [bool, Verdict, list[str], dict[str, Any], Verdict | None]
        for kind in [*kinds, Literal["yes", 2], tuple[int, ...], Any]:
            event = af.WorkflowEvent.request_info(
                request_id="r", source_executor_id="e", request_data="?", response_type=kind
            )
            saved = await storage_of(hf).save(checkpoint(pending_request_info_events={"r": event}))
            found = await storage_of(hf).load(saved)
            assert found.pending_request_info_events["r"].response_type == kind

    asyncio.run(run())


def test_class_that_is_not_allowed_is_refused_before_writing(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    event = af.WorkflowEvent.request_info(
        request_id="r", source_executor_id="e", request_data="?", response_type=Unknown
    )

    async def run() -> None:
        storage = storage_of(hf)
        message = af.WorkflowMessage(data=Unknown(1), source_id="e")
        for fields in (
            {"state": {"a": [Unknown(1)]}},
            {"messages": {"e": [message]}},
            {"pending_request_info_events": {"r": event}},
            {"state": {"a": lambda: None}},
        ):
            with pytest.raises(UnsupportedValue, match=r"Unknown|function"):
                await storage.save(checkpoint(**fields))
        assert hf.runs() == []
        # The framework continues without the checkpoint, and logs why there is none.
        flow = af.WorkflowBuilder(name="w", start_executor=Puts(), checkpoint_storage=storage).build()
        await flow.run("x")
        assert "Unknown is not registered" in caplog.text
        assert len(await storage.list_checkpoint_ids(workflow_name="w")) == 1

    asyncio.run(run())


def test_load_names_a_class_that_is_not_allowed(path: Path) -> None:
    program = (
        "import asyncio, dataclasses, sys, holdfast, agent_framework as af\n"
        "from holdfast.integrations.agent_framework import HoldfastCheckpointStorage\n"
        "@dataclasses.dataclass\nclass Strange:\n    n: int\n"
        "message = af.WorkflowMessage(data=Strange(1), source_id='e')\n"
        "one = af.WorkflowCheckpoint('w', 'h', checkpoint_id='c', messages={'e': [message]})\n"
        "event = af.WorkflowEvent.request_info(\n"
        "    request_id='r', source_executor_id='e', request_data='?', response_type=list[Strange])\n"
        "two = af.WorkflowCheckpoint('w', 'h', checkpoint_id='d', pending_request_info_events={'r': event})\n"
        "with holdfast.open(sys.argv[1]) as hf:\n"
        "    storage = HoldfastCheckpointStorage(hf, allow=[Strange])\n"
        "    asyncio.run(storage.save(one))\n"
        "    asyncio.run(storage.save(two))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)
    with holdfast.open(path) as hf:
        for name in ("c", "d"):
            with pytest.raises((InvalidCall, IncompatibleFormat), match=r"Strange.*allow="):
                asyncio.run(HoldfastCheckpointStorage(hf).load(name))


def test_invalid_arguments_are_refused(hf: Holdfast) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        wrongs: tuple[Any, ...] = (None, {}, "x")
        for wrong in wrongs:
            with pytest.raises(InvalidCall, match="WorkflowCheckpoint"):
                await storage.save(wrong)
        for name in ("", "12", "head", "a@b", "a\0", "x" * 101, None, 7):
            with pytest.raises(InvalidReference):
                await storage.save(checkpoint(checkpoint_id=name))
            with pytest.raises(WorkflowCheckpointException):
                await storage.load(cast(Any, name))
            assert await storage.delete(cast(Any, name)) is False
        with pytest.raises(InvalidReference):
            await storage.save(checkpoint(workflow_name="a\0"))
        for name in ("", None, 7, "x" * 201):
            with pytest.raises(InvalidCall):
                await storage.save(checkpoint(workflow_name=name))
            with pytest.raises(InvalidCall):
                await storage.list_checkpoints(workflow_name=cast(Any, name))
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(UnsupportedValue):
            await storage.save(checkpoint(state={"deep": deep}))
        assert hf.runs() == []
        hf.history("agent-framework/w/x").commit({"plan": 1}, tags=["mine"])
        assert await storage.list_checkpoints(workflow_name="w") == []
        assert await storage.get_latest(workflow_name="w") is None
        with pytest.raises(WorkflowCheckpointException):
            await storage.load("mine")

    asyncio.run(run())
    with pytest.raises(InvalidCall, match="open store"):
        HoldfastCheckpointStorage(cast(Any, "runs.db"))
    with pytest.raises(InvalidCall, match="allow"):
        HoldfastCheckpointStorage(hf, allow=cast(Any, Draft))


def test_corrupt_checkpoint_is_refused(path: Path) -> None:
    with holdfast.open(path) as hf:
        asyncio.run(storage_of(hf).save(checkpoint(checkpoint_id="a", state={"n": "x" * 50})))
        asyncio.run(storage_of(hf).save(checkpoint(checkpoint_id="b", state={"n": 1})))
    with Database(path) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE run = 1 AND number = 1")
    with holdfast.open(path) as hf:
        with pytest.raises(CorruptVersion):
            asyncio.run(storage_of(hf).load("a"))
        assert asyncio.run(storage_of(hf).load("b")).state == {"n": 1}
