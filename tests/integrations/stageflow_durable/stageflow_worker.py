"""The program that is killed while it runs a durable pipeline.

Arguments: the store, the file of effects, and when to kill itself: a stage (during it), `saved:STAGE` (right after its
output was written) or nothing. Each stage appends a line to the file of effects before it returns.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

from stageflow.api import Pipeline, StageContext, StageKind
from stageflow.events import NoOpEventSink

import holdfast
from holdfast.integrations.stageflow import durable

PARTS = tuple(f"part{number}" for number in range(5))
STAGES = ("plan", *PARTS, "join", "write")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Sink(NoOpEventSink):
    """Kills the process after the output of a stage was written."""

    def __init__(self, doom: str) -> None:
        self._doom = doom

    def try_emit(self, *, type: str, data: dict[str, Any] | None) -> None:  # noqa: A002 - as Stageflow has it
        if (
            type == "pipeline.checkpoint_saved"
            and data is not None
            and self._doom == f"saved:{data['stage']}"
        ):
            die()


def pipeline(effects: Path, doom: str) -> Pipeline:
    async def run(ctx: StageContext) -> dict[str, Any]:
        name, nonce = ctx.stage_name, uuid.uuid4().hex
        if name in PARTS:
            # The parts end one after another, each while others are running.
            for _ in range(5 * PARTS.index(name)):
                await asyncio.sleep(0.001)
        with effects.open("a") as file:
            file.write(f"{name} {nonce}\n")
        print(name, flush=True)
        if doom == name:
            die()
        seen = {stage: output.data["nonce"] for stage, output in ctx.inputs.prior_outputs.items()}
        return {
            "nonce": nonce,
            "seen": seen,
            "input": ctx.snapshot.input_text,
            "request": ctx.snapshot.request_id,
        }

    flow = Pipeline(name="doomed").with_stage("plan", run, StageKind.ROUTE)
    for name in PARTS:
        flow = flow.with_stage(name, run, StageKind.WORK, after="plan")
    return flow.with_stage("join", run, StageKind.TRANSFORM, after=PARTS).with_stage(
        "write", run, StageKind.WORK, after="join"
    )


def main(where: str, effects: str, doom: str = "") -> None:
    with holdfast.open(where) as hf:
        flow = durable(pipeline(Path(effects), doom), hf, "doomed")
        asyncio.run(flow.run(input_text="kelp", request_id=uuid.uuid4(), event_sink=Sink(doom)))
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
