"""One execution of a pipeline on a run: what was recorded before, what it records, and who else writes.

The state of a version is `pipeline` (which stages, and what the run was begun with), `snapshot` (the context as it was
then) and `stages` (the output of each stage that has ended). An output is taken down in the event loop, in the moment
in which its stage ends; it is written in a thread.

Invariant: a stage whose output was recorded is passed, unless something that it depends on was run again; what ends
after the run was rolled back, or taken over by another process, is refused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any

from stageflow.context import ContextSnapshot
from stageflow.core import StageCancellationRequested, StageContext, StageOutput, StageStatus
from stageflow.pipeline.results import PipelineResults

from holdfast.errors import (
    HoldfastError,
    LeaseLost,
    NotFound,
    StaleVersion,
    UnsupportedValue,
)
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.integrations.ledger import off_loop
from holdfast.integrations.stageflow.plan import DONE, Asked, Plan, ask
from holdfast.integrations.stageflow.records import FORMAT, fold, layout, restored, snapshot_of
from holdfast.runtime.failure import describe
from holdfast.runtime.log import warn
from holdfast.tree.fold import Folded

SAVED, RESTORED = "pipeline.checkpoint_saved", "pipeline.checkpoint_restored"


class Session:
    """One execution."""

    def __init__(self, log: History, plan: Plan, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self.log, self._plan, self._emitter = log, plan, emit
        #: The version that this execution stands on, and the run's status with it.
        self._at, self._told = 0, ""
        #: Whoever writes next waits for whoever writes now.
        self._writing = threading.Lock()
        self._head: Version | None = None
        #: Stages whose outputs were recorded before, and may be passed; those that were; those that were called.
        self._known: set[str] = set()
        self._passed: set[str] = set()
        self._called: set[str] = set()
        self._statuses: dict[str, StageStatus] = {}
        self._durations: dict[str, int | None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Was the run taken away from this execution? Has the execution ended?
        self._lost = self._over = False

    # Beginning and end

    async def open(self, given: ContextSnapshot[Any]) -> None:
        """Begin the run, or find where it stands."""
        self._plan.check_names(self.log.id, lambda value: self.log.capture(value).root)
        tree = self._capture("the context", fold(given, ContextSnapshot))
        asked = ask(given, self._plan.name, lambda value: self._capture("the context", value).root)
        if await off_loop(self._begin, tree, asked):
            self.snapshot = given
            self._emit(SAVED, {"version": self._at, "stage": None, "status": None})
            return
        assert self._head is not None
        self.snapshot = await off_loop(snapshot_of, self._head)
        names = sorted(self._known)
        await off_loop(self._tell_restored, len(names))
        self._emit(RESTORED, {"version": self._at, "stages": names})

    async def ended(self) -> None:
        """The pipeline has come to its end: the run's status says so, whatever was said before."""
        status = self._status()
        if status == "running":
            missing = sorted(set(self._plan.stages) - set(self._statuses))
            await self._note(f"ended without a record of {', '.join(missing)}"[:1000], "paused")
        elif status != self._told:
            await self._note(None, status)

    async def cancelled(self, reason: str) -> None:
        """The pipeline was cancelled: by a stage's output, which is recorded, or from outside."""
        if self._told != "cancelled":
            await self._note(f"cancelled: {reason}"[:1000], "cancelled")

    async def failed(self, stage: str | None, error: BaseException) -> None:
        """The pipeline has failed: by a stage, which has recorded that, or before or around one."""
        status = None if stage is None else self._statuses.get(stage)
        if status in DONE:
            # It was recorded, and then too late, or something around it failed: what is recorded stands.
            await self._record(None, error)
        elif status is not StageStatus.FAIL:
            await self._record(stage, error)

    async def _record(self, stage: str | None, error: BaseException) -> None:
        """Record a failure. Never hides the error by one of its own."""
        if self._lost:
            return
        try:
            if stage is not None and stage in self._plan.stages:
                await self._save(stage, StageOutput.fail(error=str(error) or type(error).__name__), error)
            else:
                await self._note("failed", "failed", error)
        except HoldfastError as trouble:
            warn("run %r: how its pipeline failed could not be recorded: %s", self.log.id, trouble)

    async def stop(self) -> None:
        """End the stages that are under way. Stageflow, when it is itself cancelled, lets them go on."""
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Let no stage begin, or go on, from now on."""
        self._over = True
        self._head = None
        for task in self._tasks:
            task.cancel()

    def timed(self, results: PipelineResults) -> PipelineResults:
        """Results with the time that each stage took when it was run, not when it was passed."""
        for name, took in self._durations.items():
            if name in results and took is not None:
                results[name] = results[name].with_duration(took)
        return results

    # A stage

    async def stage(self, name: str, run: Callable[[StageContext], Awaitable[Any]], ctx: StageContext) -> Any:
        """Pass a stage, or run and record it."""
        if self._over:
            raise asyncio.CancelledError("the pipeline has ended without this stage")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            first = name not in self._called
            self._called.add(name)
            after = self._plan.stages[name]["after"]
            if first and name in self._known and self._passed.issuperset(after):
                return self._pass(name)
            self._passed.discard(name)
            ctx = replace(ctx, snapshot=self.snapshot, inputs=replace(ctx.inputs, snapshot=self.snapshot))
            return await self._run(name, run, ctx)
        finally:
            self._tasks.discard(task)

    def _pass(self, name: str) -> StageOutput:
        assert self._head is not None
        output: StageOutput = restored(self._head, ("stages", name), StageOutput)
        self._passed.add(name)
        self._statuses[name], self._durations[name] = output.status, output.duration_ms
        return output

    async def _run(self, name: str, run: Callable[[StageContext], Awaitable[Any]], ctx: StageContext) -> Any:
        reason = ctx.inputs.get("skip_reason") if self._plan.stages[name]["conditional"] else None
        began = perf_counter()
        if reason:
            output: Any = StageOutput.skip(reason=reason)
        else:
            try:
                output = await run(ctx)
            except StageCancellationRequested:
                raise
            except Exception as error:
                await self._record(name, error)
                raise
        if output is None or isinstance(output, dict):
            output = StageOutput.ok(data=output)
        if not isinstance(output, StageOutput):
            return output  # Stageflow says what is wrong with it
        if output.duration_ms is None and type(output) is StageOutput:
            output = output.with_duration(int((perf_counter() - began) * 1000))
        self._durations[name] = output.duration_ms
        try:
            await self._save(name, output)
        except UnsupportedValue as error:
            await self._record(name, error)
            raise
        return output

    # Writing

    async def _save(self, name: str, output: StageOutput, error: BaseException | None = None) -> None:
        """Record how a stage ended."""
        done = output.status in DONE
        tree = self._capture(f"the output of stage {name!r}", fold(output, StageOutput))
        snapshot = self._capture("the context", fold(self.snapshot, ContextSnapshot))
        facts: dict[str, Any] = {"step": name} if done else {"note": f"stage {name} failed"}
        if error is not None:
            facts["error"] = describe(error)
        elif not done:
            facts["error"] = {"type": "StageOutput", "message": str(output.error), "traceback": ""}
        told = {"stage": name, "status": str(output.status)}

        def change(state: Any) -> None:
            state["snapshot"] = snapshot
            state["stages"][name] = tree

        version = await off_loop(self._write, change, facts, told, (name, output.status))
        self._emit(SAVED, {"version": version, **told})

    async def _note(self, note: str | None, status: str, error: BaseException | None = None) -> None:
        """Record what became of the run, where no stage says so."""
        facts: dict[str, Any] = {"note": note, "error": None if error is None else describe(error)}
        await off_loop(self._write, _unchanged, facts, {}, None, status)

    def _write(
        self,
        change: Callable[[Any], None],
        facts: dict[str, Any],
        told: dict[str, Any],
        ended: tuple[str, StageStatus] | None,
        status: str | None = None,
    ) -> int:
        with self._writing:
            if ended is not None:
                self._statuses[ended[0]] = ended[1]
            while True:
                status = status or self._status()
                events = [(SAVED, {"pipeline": self._plan.name, **told})]
                edit = self.log.edit(**facts, status=status, events=events, expected=self._at)
                try:
                    with edit as state:
                        change(state)
                except StaleVersion:
                    self._look(None if ended is None else ended[0])
                    continue
                self._at, self._told = edit.number, status
                return edit.number

    def _look(self, name: str | None) -> None:
        """Somebody else wrote: go on from there, unless what this execution stands on is not there any more, or the
        stage was recorded by another."""
        head = self.log.head
        for version in self.log.ancestors(head):
            if version.number <= self._at:
                break
            if name is not None and version.step == name:
                self._lost = True
                raise LeaseLost(
                    f"stage {name!r} of run {self.log.id!r} was recorded by another execution meanwhile ({version!r}): "
                    "what it gave here is not kept; let one at a time execute a run",
                    run=self.log.id,
                    stage=name,
                )
        if version.number != self._at:
            self._lost = True
            raise LeaseLost(
                f"run {self.log.id!r} was rolled back while its pipeline was under way: what stages gave since is not "
                "kept; run it again to go on from where it stands",
                run=self.log.id,
                stage=name,
            )
        self._at = head.number

    def _status(self) -> str:
        """The run's status, as the stages of this execution have ended so far."""
        ended = dict(self._statuses)
        found = set(ended.values())
        if StageStatus.CANCEL in found:
            return "cancelled"
        if not found.issubset(DONE):
            return "failed"
        return "completed" if ended.keys() >= self._plan.stages.keys() else "running"

    def _capture(self, what: str, tree: Any) -> Folded:
        try:
            return self.log.capture(tree)
        except UnsupportedValue as error:
            raise UnsupportedValue(
                f"{what} of run {self.log.id!r} cannot be stored: {error}",
                **{**error.details, "run": self.log.id},
            ) from None

    # Where the run stands

    def _begin(self, snapshot: Folded, asked: Asked) -> bool:
        """Make the run, or read its head; whether it was made."""
        plan = self._plan
        while True:
            try:
                head = self.log.head
            except NotFound:
                pipeline: dict[str, Any] = {
                    "format": FORMAT,
                    "name": plan.name,
                    "stages": plan.stages,
                    "given": asked.digests,
                }
                state = {"pipeline": pipeline, "snapshot": snapshot, "stages": {}}
                events = [(SAVED, {"pipeline": plan.name})]
                with suppress(StaleVersion):
                    made = self.log.commit(state, status="running", events=events, expected=0)
                    self._at, self._told = made.number, made.status
                    return True
                continue
            found = layout(head)
            plan.compare(self.log.id, found["pipeline"], asked)
            if plan.differs(found["pipeline"]):
                with suppress(StaleVersion):
                    self._adopt(head, plan.good(found))
                continue
            self._head, self._at, self._told = head, head.number, head.status
            self._known = plan.good(found)
            return False

    def _adopt(self, head: Version, good: set[str]) -> None:
        """Have the run be one of this pipeline from now on, without the outputs that do not stand in it."""
        plan = self._plan
        events = [(SAVED, {"pipeline": plan.name})]
        note = f"goes on with pipeline {plan.name}"[:1000]
        with self.log.edit(note=note, status="running", events=events, expected=head.number) as state:
            state["pipeline"]["name"], state["pipeline"]["stages"] = plan.name, plan.stages
            for name in [name for name in state["stages"] if name not in good]:
                del state["stages"][name]

    # Telling

    def _tell_restored(self, count: int) -> None:
        self.log.tell(RESTORED, {"pipeline": self._plan.name, "stages": count}, version=self._at)

    def _emit(self, kind: str, data: dict[str, Any]) -> None:
        """Through Stageflow's own sink, whose failures are nobody's here."""
        try:
            self._emitter(kind, {"run": self.log.id, "pipeline": self._plan.name, **data})
        except Exception:
            warn("an event sink of Stageflow failed on %s of run %s", kind, self.log.id, trace=True)


def _unchanged(state: Any) -> None:
    """Leave a state as it is."""
