"""Workflows of agent-framework for tests. One of them kills its process if the environment asks for it."""

# No `from __future__ import annotations`: the framework reads the annotations of handlers.

import os
import signal
from dataclasses import dataclass, field
from typing import Any

import agent_framework as af

import holdfast
from holdfast.integrations.agent_framework import HoldfastCheckpointStorage


@dataclass
class Draft:
    text: str
    notes: list[str] = field(default_factory=list)


@dataclass
class Verdict:
    good: bool


class Writer(af.Executor):
    """Writes a draft; its own state is a count."""

    def __init__(self) -> None:
        super().__init__(id="writer")
        self.written = 0

    @af.handler
    async def write(self, topic: str, ctx: af.WorkflowContext[Draft]) -> None:
        self.written += 1
        ctx.set_state("topic", topic)
        await ctx.send_message(Draft(f"on {topic}", ["new"]))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"written": self.written}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.written = state["written"]


class Editor(af.Executor):
    """Adds a note, or kills the process if DIE names this executor."""

    def __init__(self) -> None:
        super().__init__(id="editor")

    @af.handler
    async def edit(self, draft: Draft, ctx: af.WorkflowContext[Draft]) -> None:
        if os.environ.get("DIE") == "editor":
            os.kill(os.getpid(), signal.SIGKILL)
        await ctx.send_message(Draft(draft.text, [*draft.notes, "edited"]))


class Reviewer(af.Executor):
    """Asks a person."""

    def __init__(self) -> None:
        super().__init__(id="reviewer")

    @af.handler
    async def review(self, draft: Draft, ctx: af.WorkflowContext) -> None:
        await ctx.request_info(draft, Verdict)

    @af.response_handler
    async def decided(self, draft: Draft, verdict: Verdict, ctx: af.WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{draft.text} {draft.notes} {'good' if verdict.good else 'bad'}")


def essay(storage: Any, name: str = "essay") -> af.Workflow:
    writer, editor, reviewer = Writer(), Editor(), Reviewer()
    builder = af.WorkflowBuilder(
        name=name, start_executor=writer, checkpoint_storage=storage, output_from="all"
    )
    return builder.add_edge(writer, editor).add_edge(editor, reviewer).build()


@dataclass
class Unknown:
    """A class that no storage allows."""

    number: int


class Puts(af.Executor):
    """Puts something into the state."""

    def __init__(self) -> None:
        super().__init__(id="puts")

    @af.handler
    async def put(self, word: str, ctx: af.WorkflowContext) -> None:
        ctx.set_state("unknown", Unknown(1))


class Outer(af.Executor):
    """Answers the request of a workflow inside its own."""

    def __init__(self) -> None:
        super().__init__(id="outer")

    @af.handler
    async def begin(self, draft: Draft, ctx: af.WorkflowContext[str]) -> None:
        await ctx.send_message(draft.text, target_id="inner")

    @af.handler
    async def asked(self, request: af.SubWorkflowRequestMessage, ctx: af.WorkflowContext) -> None:
        await ctx.request_info(request, bool)

    @af.response_handler
    async def answered(
        self,
        request: af.SubWorkflowRequestMessage,
        good: bool,
        ctx: af.WorkflowContext[af.SubWorkflowResponseMessage],
    ) -> None:
        await ctx.send_message(request.create_response(Verdict(good)), target_id=request.executor_id)

    @af.handler
    async def done(self, result: str, ctx: af.WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"inner: {result}")


def nested(storage: Any) -> af.Workflow:
    outer, inner = Outer(), af.WorkflowExecutor(essay(None), id="inner")
    builder = af.WorkflowBuilder(
        name="nested", start_executor=outer, checkpoint_storage=storage, output_from=[outer]
    )
    return builder.add_edge(outer, inner).add_edge(inner, outer).build()


class Scripted(af.BaseChatClient[Any]):
    """A model with scripted replies, whose raw representation is an object of its library."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        self.asked.append([message.text for message in messages])
        message = af.Message(role="assistant", contents=[self.answers.pop(0)], raw_representation=object())
        return af.ChatResponse(messages=[message], response_id="r", raw_representation=object())


async def write_an_essay(path: str) -> None:
    """Run the workflow in a process of its own."""
    with holdfast.open(path) as hf:
        storage: af.CheckpointStorage = HoldfastCheckpointStorage(hf, allow=[Draft, Verdict])
        await essay(storage).run("kelp")


def storage_of(hf: holdfast.Holdfast) -> HoldfastCheckpointStorage:
    """A storage that knows the classes of these workflows."""
    return HoldfastCheckpointStorage(hf, allow=[Draft, Verdict])


def checkpoint(**fields: Any) -> af.WorkflowCheckpoint:
    """A checkpoint made by hand."""
    return af.WorkflowCheckpoint(**{"workflow_name": "w", "graph_signature_hash": "h", **fields})
