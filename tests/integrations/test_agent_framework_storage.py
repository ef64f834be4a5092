"""Checkpoints of agent-framework as versions: real workflows, stopped, killed and resumed."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import agent_framework as af
import pytest
from af_flows import Draft, Puts, Scripted, Unknown, Verdict, essay, nested
from agent_framework.exceptions import WorkflowCheckpointException

import holdfast
from holdfast import (
    CorruptVersion,
    Holdfast,
    IncompatibleFormat,
    InvalidCall,
    InvalidReference,
    Retention,
    UnsupportedValue,
)
from holdfast.integrations.agent_framework import HoldfastCheckpointStorage

pytest_plugins = ["postgres_fixtures"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def hf(path: Path) -> Iterator[Holdfast]:
    with holdfast.open(path, durability="fast") as hf:
        yield hf


def storage_of(hf: Holdfast) -> HoldfastCheckpointStorage:
    return HoldfastCheckpointStorage(hf, allow=[Draft, Verdict])


def answer(checkpoint: af.WorkflowCheckpoint | None, value: Any) -> dict[str, Any]:
    assert checkpoint is not None
    return dict.fromkeys(checkpoint.pending_request_info_events, value)


async def _stop_and_go(where: Any, make: Any, name: str, value: Any, start: Any = "kelp") -> Any:
    """Run a workflow up to its question; then, with all else new, go on from the latest checkpoint."""
    with holdfast.open(where) as hf:
        assert (await make(storage_of(hf)).run(start)).get_outputs() == []
    with holdfast.open(where) as hf:
        storage = storage_of(hf)
        latest = await storage.get_latest(workflow_name=name)
        assert latest is not None
        flow = make(storage)
        ended = await flow.run(checkpoint_id=latest.checkpoint_id, responses=answer(latest, value))
        assert hf.verify()
        assert len(hf.runs()) == 1
        return ended.get_outputs()


def test_a_workflow_is_stopped_and_resumed(path: Path) -> None:
    found = asyncio.run(_stop_and_go(path, essay, "essay", Verdict(True)))
    assert found == ["on kelp ['new', 'edited'] good"]
    with holdfast.open(path) as hf:
        run = hf.runs()[0]
        log = hf.history(run.id)
        assert run.id.startswith("agent-framework/essay/")
        assert len(log.timelines()) == 1
        steps = [version.step for version in log.versions()][::-1]
        assert steps == [f"superstep {number}" for number in (0, 1, 2, 3, 3, 4)]
        assert log.head.get("state._executor_state.writer") == {"written": 1}
        assert log.blame("state.topic").version.number == 2


def test_a_workflow_inside_another_is_resumed(path: Path) -> None:
    found = asyncio.run(_stop_and_go(path, nested, "nested", False, Draft("kelp")))
    assert found == ["inner: on kelp ['new', 'edited'] bad"]


def test_a_workflow_that_was_killed_is_resumed(path: Path) -> None:
    program = "import asyncio, sys, af_flows; asyncio.run(af_flows.write_an_essay(sys.argv[1]))"
    dead = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "DIE": "editor", "PYTHONPATH": str(Path(__file__).parent)},
        timeout=60,
        check=False,
    )
    assert dead.returncode == -signal.SIGKILL

    async def go_on(hf: Holdfast) -> None:
        storage = storage_of(hf)
        latest = await storage.get_latest(workflow_name="essay")
        assert latest is not None
        assert latest.messages["writer"][0].data == Draft("on kelp", ["new"])
        flow = essay(storage)
        await flow.run(checkpoint_id=latest.checkpoint_id)
        latest = await storage.get_latest(workflow_name="essay")
        assert latest is not None
        assert latest.state["_executor_state"]["writer"] == {"written": 1}
        ended = await essay(storage).run(
            checkpoint_id=latest.checkpoint_id, responses=answer(latest, Verdict(True))
        )
        assert ended.get_outputs() == ["on kelp ['new', 'edited'] good"]

    with holdfast.open(path) as hf:
        asyncio.run(go_on(hf))


def test_going_on_from_an_earlier_checkpoint_begins_a_timeline(hf: Holdfast) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        await essay(storage).run("kelp")
        ids = await storage.list_checkpoint_ids(workflow_name="essay")
        latest = await storage.get_latest(workflow_name="essay")
        outputs = []
        for good in (True, False):
            flow = essay(storage_of(hf))
            ended = await flow.run(checkpoint_id=ids[-1], responses=answer(latest, Verdict(good)))
            outputs += ended.get_outputs()
        assert [text.split()[-1] for text in outputs] == ["good", "bad"]
        log = hf.history(hf.runs()[0].id)
        assert [(line.number, line.parent) for line in log.timelines()] == [(1, None), (2, 4)]
        assert [len(log.versions(timeline=number)) for number in (1, 2)] == [6, 2]
        listed = await storage.list_checkpoints(workflow_name="essay")
        assert [one.checkpoint_id for one in listed[:4]] == ids
        assert len(listed) == 8
        # What a person rolls back is where it goes on.
        hf.rollback(log.id, to=2)
        latest = await storage.get_latest(workflow_name="essay")
        assert latest is not None
        assert latest.checkpoint_id == ids[1]
        await essay(storage).run(checkpoint_id=latest.checkpoint_id)
        assert [version.number for version in log.ancestors()] == [10, 9, 2, 1]

    asyncio.run(run())
    assert len(hf.runs()) == 1


def test_executions_side_by_side_are_runs_of_their_own(hf: Holdfast) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        await asyncio.gather(*(essay(storage).run(f"topic {number}") for number in range(6)))
        await essay(storage, "other/~@..").run("x")
        assert len(hf.runs()) == 7
        for found in hf.runs():
            log = hf.history(found.id)
            assert (found.versions, len(log.timelines())) == (4, 1)
            assert len({version.get("state").get("topic") for version in log.versions()} - {None}) == 1
        assert len(await storage.list_checkpoint_ids(workflow_name="essay")) == 24
        assert len(await storage.list_checkpoint_ids(workflow_name="other/~@..")) == 4
        assert await storage.list_checkpoint_ids(workflow_name="ess") == []
        assert await storage.get_latest(workflow_name="none") is None

    asyncio.run(run())


def test_the_latest_is_of_the_execution_that_was_changed_last(hf: Holdfast) -> None:
    async def latest() -> tuple[str, int]:
        found = await storage_of(hf).get_latest(workflow_name="w")
        assert found is not None
        return found.checkpoint_id, found.iteration_count

    async def run() -> None:
        storage = storage_of(hf)
        for name, previous, number in (("a", None, 0), ("b", None, 0), ("a2", "a", 1), ("b2", "b", 1)):
            one = checkpoint(checkpoint_id=name, previous_checkpoint_id=previous, iteration_count=number)
            await storage.save(one)
        assert await latest() == ("b2", 1)
        hf.rollback("agent-framework/w/a", to=1)
        assert await latest() == ("a", 0)
        await storage.save(checkpoint(checkpoint_id="b3", previous_checkpoint_id="b2", iteration_count=2))
        assert await latest() == ("b3", 2)

    asyncio.run(run())


def test_agents_and_what_they_say(hf: Holdfast) -> None:
    async def run() -> None:
        def build(*answers: str) -> tuple[af.Workflow, Scripted, Scripted]:
            clients = Scripted(answers[0]), Scripted(answers[1])
            one, two = (
                af.AgentExecutor(af.Agent(client, name=name), id=name)
                for client, name in zip(clients, ("poet", "critic"), strict=True)
            )
            builder = af.WorkflowBuilder(name="pair", start_executor=one, checkpoint_storage=storage)
            return builder.add_edge(one, two).build(), *clients

        storage = HoldfastCheckpointStorage(hf)
        await build("a poem", "a critique")[0].run("kelp")
        checkpoints = await storage.list_checkpoints(workflow_name="pair")
        middle = next(one for one in checkpoints if "poet" in one.messages)
        response = middle.messages["poet"][0].data
        assert isinstance(response, af.AgentExecutorResponse)
        assert (response.agent_response.text, response.agent_response.raw_representation) == ("a poem", None)
        flow, poet, critic = build("never", "another critique")
        ended = await flow.run(checkpoint_id=middle.checkpoint_id)
        assert (poet.asked, critic.asked) == ([], [["kelp", "a poem"]])
        assert [output.text for output in ended.get_outputs()] == ["another critique"]

    asyncio.run(run())


@af.step
async def double(number: int) -> int:
    return number * 2


@af.workflow(name="sums")
async def sums(number: int) -> int:
    return await double(number) + await double(number + 1)


def test_a_workflow_that_is_a_function(hf: Holdfast) -> None:
    async def run() -> None:
        storage = HoldfastCheckpointStorage(hf)
        ended = await sums.build(checkpoint_storage=storage).run(3)
        assert ended.get_outputs() == [14]
        ids = await storage.list_checkpoint_ids(workflow_name="sums")
        assert ids
        again = await sums.build(checkpoint_storage=storage).run(checkpoint_id=ids[0])
        assert again.get_outputs() == [14]

    asyncio.run(run())


def checkpoint(**fields: Any) -> af.WorkflowCheckpoint:
    return af.WorkflowCheckpoint(**{"workflow_name": "w", "graph_signature_hash": "h", **fields})


def test_a_checkpoint_comes_back_as_it_was(hf: Holdfast) -> None:
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


@pytest.mark.parametrize(
    "kind",
    [bool, Verdict, list[str], dict[str, Any], Verdict | None, Literal["yes", 2], tuple[int, ...], Any],
)
def test_types_of_answers(hf: Holdfast, kind: Any) -> None:
    event = af.WorkflowEvent.request_info(
        request_id="r", source_executor_id="e", request_data="?", response_type=kind
    )

    async def run() -> af.WorkflowCheckpoint:
        saved = await storage_of(hf).save(checkpoint(pending_request_info_events={"r": event}))
        return await storage_of(hf).load(saved)

    assert asyncio.run(run()).pending_request_info_events["r"].response_type == kind


def test_what_is_not_allowed_is_refused_by_name_and_nothing_is_written(
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
        # The framework goes on without the checkpoint, and says why there is none.
        flow = af.WorkflowBuilder(name="w", start_executor=Puts(), checkpoint_storage=storage).build()
        await flow.run("x")
        assert "Unknown is not registered" in caplog.text
        assert len(await storage.list_checkpoint_ids(workflow_name="w")) == 1

    asyncio.run(run())


def test_a_class_that_is_not_allowed_here_is_named(path: Path) -> None:
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


def test_deleting_takes_the_id_and_leaves_the_version(hf: Holdfast) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        await essay(storage).run("kelp")
        ids = await storage.list_checkpoint_ids(workflow_name="essay")
        assert await storage.delete(ids[-1]) is True
        assert await storage.delete(ids[-1]) is False
        with pytest.raises(WorkflowCheckpointException, match=ids[-1]):
            await storage.load(ids[-1])
        assert await storage_of(hf).list_checkpoint_ids(workflow_name="essay") == ids[:-1]
        latest = await storage.get_latest(workflow_name="essay")
        assert latest is not None
        assert latest.checkpoint_id == ids[-2]
        log = hf.history(hf.runs()[0].id)
        assert log.at(4).get("checkpoint_id") == ids[-1]
        assert await storage.delete(ids[1]) is True
        assert log.prune(Retention(last=1)).versions == (2,)

    asyncio.run(run())


def test_a_checkpoint_that_is_saved_again_replaces_the_first(hf: Holdfast) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        await storage.save(checkpoint(checkpoint_id="a", state={"n": 1}))
        await storage.save(checkpoint(checkpoint_id="b", previous_checkpoint_id="a", state={"n": 2}))
        await storage.save(checkpoint(checkpoint_id="a", state={"n": 3}))
        await storage.save(checkpoint(checkpoint_id="b", previous_checkpoint_id="a", state={"n": 4}))
        listed = await storage_of(hf).list_checkpoints(workflow_name="w")
        assert [(one.checkpoint_id, one.state["n"]) for one in listed] == [("a", 3), ("b", 4)]
        assert (await storage.load("a")).state == {"n": 3}
        assert await storage.delete("a") is True
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["b"]
        # One whose previous is not known here begins a run.
        await storage.save(checkpoint(checkpoint_id="c", previous_checkpoint_id="elsewhere"))
        assert len(hf.runs()) == 2

    asyncio.run(run())


def test_bad_input(hf: Holdfast) -> None:
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


def test_a_damaged_checkpoint_is_refused(path: Path) -> None:
    with holdfast.open(path) as hf:
        asyncio.run(storage_of(hf).save(checkpoint(checkpoint_id="a", state={"n": "x" * 50})))
        asyncio.run(storage_of(hf).save(checkpoint(checkpoint_id="b", state={"n": 1})))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE run = 1 AND number = 1")
    with holdfast.open(path) as hf:
        with pytest.raises(CorruptVersion):
            asyncio.run(storage_of(hf).load("a"))
        assert asyncio.run(storage_of(hf).load("b")).state == {"n": 1}


def test_the_loop_does_not_wait_for_the_store(hf: Holdfast, path: Path) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        await storage.save(checkpoint(checkpoint_id="a"))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        saving = asyncio.create_task(storage.save(checkpoint(checkpoint_id="b", previous_checkpoint_id="a")))
        assert (await storage.load("a")).checkpoint_id == "a"
        assert not saving.done()
        other.execute("ROLLBACK")
        other.close()
        assert await saving == "b"

    asyncio.run(run())


def test_on_postgres(url: str) -> None:
    found = asyncio.run(_stop_and_go(url, essay, "essay", Verdict(True)))
    assert found == ["on kelp ['new', 'edited'] good"]
