"""One execution of a pipeline on a run: replayed outputs, new records, and concurrent writers.

The state of a version has `pipeline` (the stages, and the task that the run was started with), `snapshot`
(the context at that time) and `stages` (the output of each stage that has ended). An output is captured in
the event loop when its stage ends; it is written in a thread.

Invariant: a stage with a recorded output is replayed, unless a stage that it depends on ran again; the output
of a stage that ends after the run was rolled back, or taken over by another process, is refused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from stageflow.context import ContextSnapshot
from stageflow.core import StageCancellationRequested, StageContext, StageOutput, StageStatus
from stageflow.pipeline.results import PipelineResults

from holdfast.errors import (
    CodeChanged,
    HoldfastError,
    InvalidCall,
    LeaseLost,
    NotFound,
    ReplayDiverged,
    StaleVersion,
    UnsupportedValue,
)
from holdfast.execution.call_arguments import digest_of
from holdfast.execution.exception_codec import describe
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.integrations.histories import off_loop
from holdfast.integrations.stageflow.records import FORMAT, fold, layout, restored, snapshot_of
from holdfast.log import warn
from holdfast.tree.fold import Folded

SAVED, RESTORED = "pipeline.checkpoint_saved", "pipeline.checkpoint_restored"


class Session:
    """One execution of a pipeline."""

    def __init__(self, log: History, plan: Plan, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self.log, self._plan, self._emitter = log, plan, emit
        #: The version that this execution is based on, and the run's status at it.
        self._at, self._told = 0, ""
        #: Serializes writes.
        self._writing = threading.Lock()
        self._head: Version | None = None
        #: Stages with recorded outputs that may be replayed; those that were replayed; those that were called.
        self._known: set[str] = set()
        self._passed: set[str] = set()
        self._called: set[str] = set()
        self._statuses: dict[str, StageStatus] = {}
        self._durations: dict[str, int | None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Whether this execution has lost the run; whether it has ended.
        self._lost = self._over = False

    # Start and end

    async def open(self, given: ContextSnapshot[Any]) -> None:
        """Create the run, or read its head."""
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
        """Record the end of the pipeline in the run's status, unless the status is already recorded."""
        status = self._status()
        if status == "running":
            missing = sorted(set(self._plan.stages) - set(self._statuses))
            await self._note(f"ended without a record of {', '.join(missing)}"[:1000], "paused")
        elif status != self._told:
            await self._note(None, status)

    async def cancelled(self, reason: str) -> None:
        """Record a cancellation from outside, unless a stage's output has already recorded it."""
        if self._told != "cancelled":
            await self._note(f"cancelled: {reason}"[:1000], "cancelled")

    async def failed(self, stage: str | None, error: BaseException) -> None:
        """Record a failure of the pipeline that a stage has not recorded itself."""
        status = None if stage is None else self._statuses.get(stage)
        if status in DONE:
            # The stage was recorded, and then timed out, or something around it failed: its output stays
            # valid.
            await self._record(None, error)
        elif status is not StageStatus.FAIL:
            await self._record(stage, error)

    async def _record(self, stage: str | None, error: BaseException) -> None:
        """Record a failure. An error while recording never hides the original one."""
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
        """Cancel the running stages. Stageflow does not cancel them when it is itself cancelled."""
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Prevent stages from starting or continuing."""
        self._over = True
        self._head = None
        for task in self._tasks:
            task.cancel()

    def timed(self, results: PipelineResults) -> PipelineResults:
        """Return results with the time that each stage took when it ran, not when it was replayed."""
        for name, took in self._durations.items():
            if name in results and took is not None:
                results[name] = results[name].with_duration(took)
        return results

    # Stages

    async def stage(self, name: str, run: Callable[[StageContext], Awaitable[Any]], ctx: StageContext) -> Any:
        """Replay a stage, or run and record it."""
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
            return output  # Stageflow reports the error
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
        """Record the end of a stage."""
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
        """Record the status of the run when no stage records it."""
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
        """Handle a concurrent write: continue from the new head, or raise `LeaseLost` if the version that
        this execution is based on was rolled back, or another execution recorded the stage."""
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
        """Return the run's status, from the stages of this execution that have ended so far."""
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

    # Position of the run

    def _begin(self, snapshot: Folded, asked: Asked) -> bool:
        """Create the run, or read its head; return whether it was created."""
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
        """Assign the run to this pipeline, without the outputs that are not valid in it."""
        plan = self._plan
        events = [(SAVED, {"pipeline": plan.name})]
        note = f"goes on with pipeline {plan.name}"[:1000]
        with self.log.edit(note=note, status="running", events=events, expected=head.number) as state:
            state["pipeline"]["name"], state["pipeline"]["stages"] = plan.name, plan.stages
            for name in [name for name in state["stages"] if name not in good]:
                del state["stages"][name]

    # Events

    def _tell_restored(self, count: int) -> None:
        self.log.add_event(RESTORED, {"pipeline": self._plan.name, "stages": count}, version=self._at)

    def _emit(self, kind: str, data: dict[str, Any]) -> None:
        """Emit an event through Stageflow's own sink; a failure of the sink only logs a warning."""
        try:
            self._emitter(kind, {"run": self.log.id, "pipeline": self._plan.name, **data})
        except Exception:
            warn("an event sink of Stageflow failed on %s of run %s", kind, self.log.id, trace=True)


def _unchanged(state: Any) -> None:
    """Leave a state unchanged."""


#: Statuses of valid outputs: such a stage is replayed the next time.
DONE = (StageStatus.OK, StageStatus.SKIP, StageStatus.CANCEL)


#: Fields of a snapshot that describe the task; the others, ids and times, identify the request.
_GIVEN = (
    "input_text",
    "input_audio_duration_ms",
    "topology",
    "execution_mode",
    "metadata",
    "extensions",
    "conversation",
    "enrichments",
)


#: Keys that are required to read a state.
_KEYS = (
    *("pipeline", "format", "name", "stages", "given", "kind", "after", "conditional"),
    *("snapshot", "run_id", "status", "data"),
)


#: Maximum characters of a list of names in a message.
_SHOWN = 300


class Asked(NamedTuple):
    """The task that a context describes."""

    #: Digests of the fields, in order, separated by spaces.
    digests: str
    #: Whether the context is empty. If so, the recorded task is used.
    empty: bool


def ask(given: ContextSnapshot[Any], pipeline: str, freeze: Callable[[Any], Any]) -> Asked:
    """Return the task of a context; `freeze` returns a value as it would be stored."""
    values = {name: getattr(given, name) for name in _GIVEN}
    if values["topology"] == pipeline:
        # Stageflow's default, if the caller sets none.
        values["topology"] = None
    empty = values["metadata"] == {} and all(values[name] is None for name in _GIVEN if name != "metadata")
    return Asked(" ".join(digest_of((freeze(value),), {}).hex() for value in values.values()), empty)


class Plan(NamedTuple):
    """A pipeline as recorded in a run."""

    name: str
    #: For each stage: `kind`, the stages that it comes `after`, and whether it is `conditional`.
    stages: Mapping[str, Mapping[str, Any]]
    #: Reaction if the run was started with other stages: refuse, warn or allow.
    changed: str

    def check_names(self, run_id: str, freeze: Callable[[Any], Any]) -> None:
        """Refuse stages whose names match the redaction patterns: their outputs would be hidden."""
        names = freeze(dict.fromkeys([*self.stages, *_KEYS], 0))
        hidden = [name for name, value in names.items() if value != 0]
        if hidden:
            raise InvalidCall(
                f"run {run_id!r}: {', '.join(hidden)[:_SHOWN]} would be hidden by the patterns that the store was "
                "opened with (redact=…): rename the stages, or choose narrower patterns",
                run=run_id,
                names=hidden,
            )

    def compare(self, run_id: str, begun: Mapping[str, Any], asked: Asked) -> None:
        """Refuse another pipeline, and another task."""
        if self.changed != "allow" and self.differs(begun):
            self._object(run_id, begun)
        if asked.empty:
            return
        pairs = zip(_GIVEN, begun["given"].split(), asked.digests.split(), strict=False)
        other = [name for name, then, now in pairs if then != now]
        if other:
            raise ReplayDiverged(
                f"run {run_id!r} was begun with another {', '.join(other)}: use another run id, or run it without a "
                "context to go on with the one that is recorded",
                run=run_id,
                fields=other,
            )

    def differs(self, begun: Mapping[str, Any]) -> bool:
        """Return whether this is not the pipeline that the run was started, or last continued, with."""
        return bool((begun["name"], begun["stages"]) != (self.name, self.stages))

    def good(self, state: Mapping[str, Any]) -> set[str]:
        """Return the stages with valid recorded outputs: unchanged, and all stages that they come after are
        unchanged."""
        begun = state["pipeline"]["stages"]
        left = {
            name
            for name, output in state["stages"].items()
            if name in self.stages and begun.get(name) == self.stages[name] and _status(output) in DONE
        }
        good: set[str] = set()
        while found := {name for name in left if good.issuperset(self.stages[name]["after"])}:
            good |= found
            left -= found
        return good

    def _object(self, run_id: str, begun: Mapping[str, Any]) -> None:
        names = [
            name
            for name in {**begun["stages"], **self.stages}
            if begun["stages"].get(name) != self.stages.get(name)
        ]
        what = f"other stages ({', '.join(names)[:_SHOWN]})" if names else "another name"
        message = f"run {run_id!r} was begun with pipeline {begun['name']!r}; {self.name!r} has {what}"
        if self.changed == "refuse":
            raise CodeChanged(
                f"{message}: use another run id, or durable(…, changed='allow') to pass the stages that are the same",
                run=run_id,
                stages=names,
            )
        warn("%s: the stages that are the same are passed", message)


def _status(output: Any) -> Any:
    return output.get("status") if isinstance(output, dict) else getattr(output, "status", None)
