"""The pipeline and the contexts of the tests of CORE-005; as a program, the process that is killed in one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from stageflow.api import Pipeline, StageContext, StageKind
from stageflow.context import Message
from stageflow.context.conversation import Conversation
from stageflow.context.enrichments import DocumentEnrichment, Enrichments, ProfileEnrichment

import holdfast
from holdfast.integrations.stageflow import durable

#: What the stages did, since a test began.
executed: list[str] = []


def writing(*, trouble: Any = None) -> Pipeline:
    """research → draft → review → publish. `trouble` is raised, returned or called by `review`."""

    async def research(ctx: StageContext) -> dict[str, Any]:
        executed.append("research")
        return {"facts": [f"{ctx.snapshot.input_text} grows", 2**80]}

    async def draft(ctx: StageContext) -> dict[str, Any]:
        executed.append("draft")
        return {
            "text": f"Did you know? {ctx.inputs.get_from('research', 'facts')[0]}.",
            "try": executed.count("draft"),
        }

    async def review(ctx: StageContext) -> Any:
        executed.append("review")
        found = trouble() if callable(trouble) else trouble
        if isinstance(found, Exception):
            raise found
        return found or {"good": True}

    async def publish(ctx: StageContext) -> dict[str, Any]:
        executed.append("publish")
        return {"url": "https://example.org/kelp"}

    return (
        Pipeline(name="writing")
        .with_stage("research", research, StageKind.ENRICH)
        .with_stage("draft", draft, StageKind.TRANSFORM, after="research")
        .with_stage("review", review, StageKind.GUARD, after="draft")
        .with_stage("publish", publish, StageKind.WORK, after="review")
    )


def rich(number: int) -> dict[str, Any]:
    """The fields of a context, different for each number."""
    at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number, microseconds=number)
    return {
        "input_text": f"question {number} \u2603 \U0001f30a",
        "metadata": {
            "huge": 3**number,
            "at": at,
            "nested": {"list": [number, float(number), {"deep": (number,)}]},
        },
        "conversation": Conversation(
            messages=[Message("user", f"m{n}", at, {"n": n}) for n in range(number % 7)]
        ),
        "enrichments": Enrichments(
            profile=ProfileEnrichment(display_name=f"user {number}", preferences={"n": number}),
            documents=[DocumentEnrichment(document_id=str(number), blocks=[{"text": "x" * number}])],
        ),
        "created_at": at,
    }


def _killed(where: str) -> None:
    """The process of `test_snapshot_is_intact_after_a_kill`."""
    with holdfast.open(where) as hf:
        flow = durable(writing(trouble=lambda: os.kill(os.getpid(), signal.SIGKILL)), hf, "article")
        asyncio.run(flow.run(input_text="kelp"))


if __name__ == "__main__":
    _killed(sys.argv[1])
