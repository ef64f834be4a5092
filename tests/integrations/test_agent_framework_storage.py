"""Checkpoints of agent-framework as versions: real workflows, stopped, killed and resumed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import agent_framework as af
import pytest
from agent_framework.exceptions import WorkflowCheckpointException
from agent_framework_workflows import Draft, Scripted, Verdict, checkpoint, essay, nested, storage_of

import holdfast
from database import Database
from holdfast import Holdfast, Retention
from holdfast.integrations.agent_framework import HoldfastCheckpointStorage

pytest_plugins = ["postgres_fixtures"]


def answer(checkpoint: af.WorkflowCheckpoint | None, value: Any) -> dict[str, Any]:
    assert checkpoint is not None
    return dict.fromkeys(checkpoint.pending_request_info_events, value)


async def _stop_and_go(where: Any, make: Any, name: str, value: Any, start: Any = "kelp") -> Any:
    """Run a workflow up to its question; then, with new objects, continue from the latest checkpoint."""
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


def test_workflow_resumes_after_a_stop(path: Path) -> None:
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


def test_nested_workflow_resumes(path: Path) -> None:
    found = asyncio.run(_stop_and_go(path, nested, "nested", False, Draft("kelp")))
    assert found == ["inner: on kelp ['new', 'edited'] bad"]


def test_workflow_resumes_after_a_kill(path: Path) -> None:
    program = (
        "import asyncio, sys, agent_framework_workflows as w; asyncio.run(w.write_an_essay(sys.argv[1]))"
    )
    dead = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "DIE": "editor", "PYTHONPATH": str(Path(__file__).parent)},
        timeout=60,
        check=False,
    )
    assert dead.returncode == -signal.SIGKILL

    async def resume(hf: Holdfast) -> None:
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
        asyncio.run(resume(hf))


def test_save_after_an_earlier_checkpoint_starts_a_timeline(hf: Holdfast) -> None:
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
        # The execution continues from a rollback.
        hf.rollback(log.id, to=2)
        latest = await storage.get_latest(workflow_name="essay")
        assert latest is not None
        assert latest.checkpoint_id == ids[1]
        await essay(storage).run(checkpoint_id=latest.checkpoint_id)
        assert [version.number for version in log.ancestors()] == [10, 9, 2, 1]

    asyncio.run(run())
    assert len(hf.runs()) == 1


def test_concurrent_executions_are_separate_runs(hf: Holdfast) -> None:
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


def test_get_latest_returns_the_execution_changed_last(hf: Holdfast) -> None:
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


def test_checkpoints_store_agents_messages_and_responses(hf: Holdfast) -> None:
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


def test_functional_workflow_resumes(hf: Holdfast) -> None:
    async def run() -> None:
        storage = HoldfastCheckpointStorage(hf)
        ended = await sums.build(checkpoint_storage=storage).run(3)
        assert ended.get_outputs() == [14]
        ids = await storage.list_checkpoint_ids(workflow_name="sums")
        assert ids
        again = await sums.build(checkpoint_storage=storage).run(checkpoint_id=ids[0])
        assert again.get_outputs() == [14]

    asyncio.run(run())


def test_unknown_checkpoint_is_reported_in_the_words_of_the_framework(hf: Holdfast) -> None:
    async def message_of(storage: Any, checkpoint_id: str) -> str:
        with pytest.raises(WorkflowCheckpointException) as refused:
            await storage.load(checkpoint_id)
        return str(refused.value)

    async def run() -> None:
        ours, theirs = HoldfastCheckpointStorage(hf), af.InMemoryCheckpointStorage()
        for name in ("abc", "it's", "'quoted'", '"', "a\\b", "a\nb", "", "x" * 300):
            assert await message_of(ours, name) == await message_of(theirs, name)
        assert len(await message_of(ours, "x" * 100_000)) < 1_100

    asyncio.run(run())


def test_delete_removes_the_id_and_keeps_the_version(hf: Holdfast) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        await essay(storage).run("kelp")
        ids = await storage.list_checkpoint_ids(workflow_name="essay")
        assert await storage.delete(ids[-1]) is True
        assert await storage.delete(ids[-1]) is False
        with pytest.raises(WorkflowCheckpointException, match=f"No checkpoint found with ID {ids[-1]}"):
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


def test_save_again_replaces_the_first_checkpoint(hf: Holdfast) -> None:
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


def test_storage_does_not_block_the_event_loop(hf: Holdfast, path: Path) -> None:
    async def run() -> None:
        storage = storage_of(hf)
        await storage.save(checkpoint(checkpoint_id="a"))
        other = Database(path)
        other.execute("BEGIN IMMEDIATE")
        saving = asyncio.create_task(storage.save(checkpoint(checkpoint_id="b", previous_checkpoint_id="a")))
        assert (await storage.load("a")).checkpoint_id == "a"
        assert not saving.done()
        other.execute("ROLLBACK")
        other.close()
        assert await saving == "b"

    asyncio.run(run())


def test_storage_works_on_postgres(url: str) -> None:
    found = asyncio.run(_stop_and_go(url, essay, "essay", Verdict(True)))
    assert found == ["on kelp ['new', 'edited'] good"]
