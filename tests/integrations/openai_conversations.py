"""Conversations of the OpenAI Agents SDK for tests: a model that needs no network, and short items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from agents import ModelResponse, RunConfig, Usage
from agents.items import TResponseInputItem, TResponseStreamEvent
from agents.models.interface import Model
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

QUIET = RunConfig(tracing_disabled=True)


class Scripted(Model):
    """A model with scripted replies that records its input."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 - the interface's name
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        self.asked.append(input)
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id="r1")

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        raise NotImplementedError


def text(words: str) -> ResponseOutputMessage:
    part = ResponseOutputText(annotations=[], text=words, type="output_text")
    return ResponseOutputMessage(
        id="m1", content=[part], role="assistant", status="completed", type="message"
    )


def said(words: str) -> TResponseInputItem:
    return cast(TResponseInputItem, {"role": "user", "content": words})


def words(items: list[TResponseInputItem]) -> list[Any]:
    return [cast(Any, item)["content"] for item in items]
