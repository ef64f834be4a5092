"""What a durable stage of a Stageflow pipeline costs, with a long conversation in the context."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import holdfast
from bench import workload
from bench.measure import Bench, Row, note

_STAGES = 40
_SIZES = (100, 1_000, 10_000)


def stages(bench: Bench) -> Iterator[Row]:
    """A stage of a Stageflow pipeline with 100, 1,000 and 10,000 messages in its context."""
    if importlib.util.find_spec("stageflow") is None:
        note("Stageflow: not installed, left out")
        return
    note("stages, Stageflow")
    logging.getLogger("pipeline_dag").setLevel(logging.ERROR)
    for name, read in (("the last message", _read_last), ("all messages", _read_all)):
        for size in _SIZES:
            ours, plain, spent = bench.repeat(partial(_overhead, size=size, read=read))
            # The processor's time: the rest is the commit's wait for the disk.
            times = f"{ours * 1e3:.2f} ms of CPU, without a record {plain * 1e3:.2f}"
            detail = f"{times}; {spent * 1e3:.1f} ms by the clock"
            most = 3 if read is _read_last or size <= 1_000 else None
            work = f"a durable stage, Stageflow, reads {name}"
            yield Row(work, f"{size:,} messages", (ours - plain) * 1e3, "ms", detail, at_most=most)


def _overhead(folder: Path, *, size: int, read: Callable[[list[Any]], int]) -> tuple[float, float, float]:
    """Seconds of CPU for a stage of a durable pipeline, and of the same pipeline as Stageflow runs it; and seconds
    by the clock for the first."""
    from stageflow.api import Pipeline, StageContext, StageKind
    from stageflow.context import Message
    from stageflow.context.conversation import Conversation

    from holdfast.integrations.stageflow import durable

    begun: list[tuple[float, float]] = []

    async def work(ctx: StageContext) -> dict[str, Any]:
        begun.append((process_time(), perf_counter()))
        return {"read": read(ctx.snapshot.messages)}

    pipeline = Pipeline(name="stages")
    for number in range(_STAGES):
        after = f"s{number - 1}" if number else ()
        pipeline = pipeline.with_stage(f"s{number}", work, StageKind.WORK, after=after)
    said = Conversation([Message(message["role"], message["content"]) for message in workload.messages(size)])

    def spent(flow: Pipeline) -> tuple[float, ...]:
        begun.clear()
        asyncio.run(flow.run(conversation=said))
        return tuple((last - first) / (_STAGES - 1) for first, last in zip(begun[0], begun[-1], strict=True))

    with holdfast.open(folder / "runs.db") as hf:
        worked, took = spent(durable(pipeline, hf, "run"))
    return worked, spent(pipeline)[0], took


def _read_last(messages: list[Any]) -> int:
    return len(messages[-1].content)


def _read_all(messages: list[Any]) -> int:
    return sum(len(message.content) for message in messages)
