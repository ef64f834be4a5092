"""One execution of a pipeline on a run: replay of recorded outputs, recording of new ones, concurrent writers.

The state of a version has `pipeline` (the stages, and the task that the run was started with), `snapshot`
(the context, which no stage changes: the first version stores it, the others share it) and `stages` (the
output of each stage that has ended). An output is captured in the event loop when its stage ends; it is
written in a thread.

Invariant: a stage with a recorded output is replayed, unless a stage that it depends on ran again; the output
of a stage that ends after the run was rolled back, or taken over by another process, is refused. What the
next stage gets is what was captured, whatever the stage does with its output afterwards.
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
from holdfast.integrations.stageflow.copies import copier, copy_outputs, copy_value, is_changed
from holdfast.integrations.stageflow.records import FORMAT, check_state, read_record, snapshot_of, to_tree
from holdfast.log import warn
from holdfast.off_loop import run_off_loop
from holdfast.tree.fold import Folded

SAVED, RESTORED = "pipeline.checkpoint_saved", "pipeline.checkpoint_restored"
#: Statuses of valid outputs: such a stage is replayed the next time.
DONE = (StageStatus.OK, StageStatus.SKIP, StageStatus.CANCEL)
#: Fields of a snapshot that describe the task; the others, ids and times, identify the request.
_TASK_FIELDS = (
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
_STATE_KEYS = (
    *("pipeline", "format", "name", "stages", "given", "kind", "after", "conditional"),
    *("snapshot", "run_id", "status", "data"),
)
#: Maximum characters of a list of names in a message.
_MAX_NAMES = 300


class PipelineInput(NamedTuple):
    """The task that a context describes."""

    #: Digests of the fields, in order, separated by spaces.
    digests: str
    #: Whether the context is empty. If so, the recorded task is used.
    is_empty: bool


def digest_input(given: ContextSnapshot[Any], pipeline: str, freeze: Callable[[Any], Any]) -> PipelineInput:
    """Return the task of a context; `freeze` returns a value as it would be stored."""
    values = {name: getattr(given, name) for name in _TASK_FIELDS}
    if values["topology"] == pipeline:
        # Stageflow's default, if the caller sets none.
        values["topology"] = None
    empty = values["metadata"] == {} and all(
        values[name] is None for name in _TASK_FIELDS if name != "metadata"
    )
    return PipelineInput(" ".join(digest_of((freeze(value),), {}).hex() for value in values.values()), empty)


class Plan(NamedTuple):
    """A pipeline as recorded in a run."""

    name: str
    #: For each stage: `kind`, the stages that it comes `after`, and whether it is `conditional`.
    stages: Mapping[str, Mapping[str, Any]]
    #: Reaction if the run was started with other stages: refuse, warn or allow.
    changed: str

    def check_names(self, run_id: str, freeze: Callable[[Any], Any]) -> None:
        """Refuse stages whose names match the redaction patterns: their outputs would be hidden."""
        names = freeze(dict.fromkeys([*self.stages, *_STATE_KEYS], 0))
        hidden = [name for name, value in names.items() if value != 0]
        if hidden:
            raise InvalidCall(
                f"run {run_id!r}: {', '.join(hidden)[:_MAX_NAMES]} would be hidden by the patterns that the store was "
                "opened with (redact=…): rename the stages, or choose narrower patterns",
                run=run_id,
                names=hidden,
            )

    def compare(self, run_id: str, recorded: Mapping[str, Any], task: PipelineInput) -> None:
        """Refuse another pipeline, and another task."""
        if self.changed != "allow" and self.differs(recorded):
            self._report_change(run_id, recorded)
        if task.is_empty:
            return
        pairs = zip(_TASK_FIELDS, recorded["given"].split(), task.digests.split(), strict=False)
        other = [name for name, then, now in pairs if then != now]
        if other:
            raise ReplayDiverged(
                f"run {run_id!r} was started with another {', '.join(other)}: use another run id, or run it without a "
                "context to continue with the one that is recorded",
                run=run_id,
                fields=other,
            )

    def differs(self, recorded: Mapping[str, Any]) -> bool:
        """Return whether this is not the pipeline that the run was started, or last continued, with."""
        return bool((recorded["name"], recorded["stages"]) != (self.name, self.stages))

    def valid_stages(self, state: Mapping[str, Any]) -> set[str]:
        """Return the stages with valid recorded outputs: unchanged, and all stages that they come after are
        unchanged."""
        recorded = state["pipeline"]["stages"]
        left = {
            name
            for name, output in state["stages"].items()
            if name in self.stages and recorded.get(name) == self.stages[name] and _status_of(output) in DONE
        }
        valid: set[str] = set()
        while found := {name for name in left if valid.issuperset(self.stages[name]["after"])}:
            valid |= found
            left -= found
        return valid

    def _report_change(self, run_id: str, recorded: Mapping[str, Any]) -> None:
        names = [
            name
            for name in {**recorded["stages"], **self.stages}
            if recorded["stages"].get(name) != self.stages.get(name)
        ]
        what = f"other stages ({', '.join(names)[:_MAX_NAMES]})" if names else "another name"
        message = f"run {run_id!r} was started with pipeline {recorded['name']!r}; {self.name!r} has {what}"
        if self.changed == "refuse":
            raise CodeChanged(
                f"{message}: use another run id, or durable(…, changed='allow') to replay the stages that are the same",
                run=run_id,
                stages=names,
            )
        warn("%s: the stages that are the same are replayed", message)


def _status_of(output: Any) -> Any:
    return output.get("status") if isinstance(output, dict) else getattr(output, "status", None)


class PipelineExecution:
    """One execution of a pipeline."""

    def __init__(self, history: History, plan: Plan, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self.history, self.plan, self._emitter = history, plan, emit
        #: The version that this execution is based on, and the run's status at it.
        self._base, self._recorded_status = 0, ""
        #: Serializes writes.
        self._writing = threading.Lock()
        self._head: Version | None = None
        #: Stages with recorded outputs that may be replayed; those that were replayed; those that were called.
        self._replayable: set[str] = set()
        self._replayed: set[str] = set()
        self._called: set[str] = set()
        self._statuses: dict[str, StageStatus] = {}
        self._durations: dict[str, int | None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Whether this execution has lost the run; whether it has ended.
        self._is_lost = self._is_closed = False

    # Start and end

    async def open(self, given: ContextSnapshot[Any]) -> None:
        """Create the run, or read its head."""
        self.plan.check_names(self.history.id, lambda value: self.history.capture(value).root)
        tree = self._capture("the context", to_tree(given, ContextSnapshot))
        copied = copy_value(given)
        task = digest_input(given, self.plan.name, lambda value: self._capture("the context", value).root)
        if await run_off_loop(self._start, tree, task):
            self._use(copied)
            self._emit(SAVED, {"version": self._base, "stage": None, "status": None})
            return
        assert self._head is not None
        self._use(await run_off_loop(snapshot_of, self._head))
        names = sorted(self._replayable)
        data = {"pipeline": self.plan.name, "stages": len(names)}
        await run_off_loop(self.history.add_event, RESTORED, data, version=self._base)
        self._emit(RESTORED, {"version": self._base, "stages": names})

    def _use(self, snapshot: ContextSnapshot[Any]) -> None:
        """Set the snapshot of which stages get copies."""
        self._snapshot = snapshot
        self._copy_snapshot = copier(snapshot, ContextSnapshot)

    async def record_end(self) -> None:
        """Record the end of the pipeline in the run's status, unless the status is already recorded."""
        status = self._status()
        if status == "running":
            missing = sorted(set(self.plan.stages) - set(self._statuses))
            await self._record_status(f"ended without a record of {', '.join(missing)}"[:1000], "paused")
        elif status != self._recorded_status:
            await self._record_status(None, status)

    async def record_cancellation(self, reason: str) -> None:
        """Record a cancellation from outside, unless a stage's output has already recorded it."""
        if self._recorded_status != "cancelled":
            await self._record_status(f"cancelled: {reason}"[:1000], "cancelled")

    async def record_failure(self, stage: str | None, error: BaseException) -> None:
        """Record a failure of the pipeline that a stage has not recorded itself."""
        status = None if stage is None else self._statuses.get(stage)
        if status in DONE:
            # The stage was recorded, and then timed out, or something around it failed: its output stays
            # valid.
            await self._save_failure(None, error)
        elif status is not StageStatus.FAIL:
            await self._save_failure(stage, error)

    async def _save_failure(self, stage: str | None, error: BaseException) -> None:
        """Record a failure. An error while recording never hides the original one."""
        if self._is_lost:
            return
        try:
            if stage is not None and stage in self.plan.stages:
                await self._save(stage, StageOutput.fail(error=str(error) or type(error).__name__), error)
            else:
                await self._record_status("failed", "failed", error)
        except HoldfastError as trouble:
            warn("run %r: the failure of its pipeline could not be recorded: %s", self.history.id, trouble)

    async def stop(self) -> None:
        """Cancel the running stages. Stageflow does not cancel them when it is itself cancelled."""
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Prevent stages from starting or continuing."""
        self._is_closed = True
        self._head = None
        for task in self._tasks:
            task.cancel()

    def restore_durations(self, results: PipelineResults) -> PipelineResults:
        """Return results with the time that each stage took when it ran, not when it was replayed."""
        for name, took in self._durations.items():
            if name in results and took is not None:
                results[name] = results[name].with_duration(took)
        return results

    # Stages

    async def run_stage(
        self, name: str, run: Callable[[StageContext], Awaitable[Any]], ctx: StageContext
    ) -> Any:
        """Replay a stage, or run and record it."""
        if self._is_closed:
            raise asyncio.CancelledError("the pipeline has ended without this stage")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            first = name not in self._called
            self._called.add(name)
            after = self.plan.stages[name]["after"]
            if first and name in self._replayable and self._replayed.issuperset(after):
                return self._replay(name)
            self._replayed.discard(name)
            return await self._run(name, run, ctx)
        finally:
            self._tasks.discard(task)

    def _replay(self, name: str) -> StageOutput:
        assert self._head is not None
        output: StageOutput = read_record(self._head, ("stages", name), StageOutput)
        self._replayed.add(name)
        self._statuses[name], self._durations[name] = output.status, output.duration_ms
        return output

    async def _run(self, name: str, run: Callable[[StageContext], Awaitable[Any]], ctx: StageContext) -> Any:
        reason = ctx.inputs.get("skip_reason") if self.plan.stages[name]["conditional"] else None
        began = perf_counter()
        if reason:
            output: Any = StageOutput.skip(reason=reason)
        else:
            prior = ctx.inputs.prior_outputs
            copied = self._copy_snapshot()
            inputs = replace(ctx.inputs, snapshot=copied, prior_outputs=copy_outputs(prior))
            ctx = replace(ctx, snapshot=copied, inputs=inputs)
            try:
                output = await run(ctx)
            except StageCancellationRequested:
                raise
            except Exception as error:
                await self._save_failure(name, error)
                raise
        if output is None or isinstance(output, dict):
            output = StageOutput.ok(data=output)
        if not isinstance(output, StageOutput):
            return output  # Stageflow reports the error
        if output.duration_ms is None and type(output) is StageOutput:
            output = output.with_duration(int((perf_counter() - began) * 1000))
        self._durations[name] = output.duration_ms
        if not reason and (is_changed(copied, self._snapshot) or is_changed(inputs.prior_outputs, prior)):
            warn(
                "run %r: stage %r changed its copy of the context or of its inputs; other stages do not see the "
                "change: return it in the output of the stage",
                self.history.id,
                name,
            )
        try:
            return await self._save(name, output)
        except UnsupportedValue as error:
            await self._save_failure(name, error)
            raise

    # Writing

    async def _save(self, name: str, output: StageOutput, error: BaseException | None = None) -> StageOutput:
        """Record the end of a stage; return a copy of its output, which the stage may still change."""
        done = output.status in DONE
        tree = self._capture(f"the output of stage {name!r}", to_tree(output, StageOutput))
        copied: StageOutput = copy_value(output)
        facts: dict[str, Any] = {"step": name} if done else {"note": f"stage {name} failed"}
        if error is not None:
            facts["error"] = describe(error)
        elif not done:
            facts["error"] = {"type": "StageOutput", "message": str(output.error), "traceback": ""}

        def change(state: Any) -> None:
            state["stages"][name] = tree

        version = await run_off_loop(self._write, change, facts, stage=(name, output.status))
        self._emit(SAVED, {"version": version, "stage": name, "status": str(output.status)})
        return copied

    async def _record_status(self, note: str | None, status: str, error: BaseException | None = None) -> None:
        """Record the status of the run when no stage records it."""
        facts: dict[str, Any] = {"note": note, "error": None if error is None else describe(error)}
        await run_off_loop(self._write, lambda state: None, facts, status=status)

    def _write(
        self,
        change: Callable[[Any], None],
        facts: dict[str, Any],
        *,
        stage: tuple[str, StageStatus] | None = None,
        status: str | None = None,
    ) -> int:
        """Commit a change of the state, the end of a stage or a status of the run; return the version's number."""
        event = {"pipeline": self.plan.name}
        with self._writing:
            if stage is not None:
                self._statuses[stage[0]] = stage[1]
                event |= {"stage": stage[0], "status": str(stage[1])}
            while True:
                status = status or self._status()
                edit = self.history.edit(**facts, status=status, events=[(SAVED, event)], expected=self._base)
                try:
                    with edit as state:
                        change(state)
                except StaleVersion:
                    self._rebase(None if stage is None else stage[0])
                    continue
                self._base, self._recorded_status = edit.number, status
                return edit.number

    def _rebase(self, name: str | None) -> None:
        """Handle a concurrent write: continue from the new head, or raise `LeaseLost` if the version that
        this execution is based on was rolled back, or another execution recorded the stage."""
        head = self.history.head
        for version in self.history.ancestors(head):
            if version.number <= self._base:
                break
            if name is not None and version.step == name:
                raise self._lose(
                    f"stage {name!r} of run {self.history.id!r} was recorded by another execution ({version!r}): "
                    "its output here is not recorded; execute a run in one process at a time",
                    name,
                )
        if version.number != self._base:
            raise self._lose(
                f"run {self.history.id!r} was rolled back while its pipeline was running: the outputs of stages since "
                "then are not recorded; run it again to continue from its head",
                name,
            )
        self._base = head.number

    def _lose(self, message: str, stage: str | None) -> LeaseLost:
        """Note that this execution must record nothing more, and return the error that says why."""
        self._is_lost = True
        return LeaseLost(message, run=self.history.id, stage=stage)

    def _status(self) -> str:
        """Return the run's status, from the stages of this execution that have ended so far."""
        ended = dict(self._statuses)
        found = set(ended.values())
        if StageStatus.CANCEL in found:
            return "cancelled"
        if not found.issubset(DONE):
            return "failed"
        return "completed" if ended.keys() >= self.plan.stages.keys() else "running"

    def _capture(self, what: str, tree: Any) -> Folded:
        try:
            return self.history.capture(tree)
        except UnsupportedValue as error:
            raise UnsupportedValue(
                f"{what} of run {self.history.id!r} cannot be stored: {error}",
                **{**error.details, "run": self.history.id},
            ) from None

    # Position of the run

    def _start(self, snapshot: Folded, task: PipelineInput) -> bool:
        """Create the run, or read its head; return whether it was created."""
        plan = self.plan
        while True:
            try:
                head = self.history.head
            except NotFound:
                pipeline: dict[str, Any] = {"format": FORMAT, "name": plan.name, "stages": plan.stages}
                pipeline["given"] = task.digests
                state = {"pipeline": pipeline, "snapshot": snapshot, "stages": {}}
                events = [(SAVED, {"pipeline": plan.name})]
                with suppress(StaleVersion):
                    made = self.history.commit(state, status="running", events=events, expected=0)
                    self._base, self._recorded_status = made.number, made.status
                    return True
                continue
            found = check_state(head)
            plan.compare(self.history.id, found["pipeline"], task)
            if plan.differs(found["pipeline"]):
                with suppress(StaleVersion):
                    self._adopt(head, plan.valid_stages(found))
                continue
            self._head, self._base, self._recorded_status = head, head.number, head.status
            self._replayable = plan.valid_stages(found)
            return False

    def _adopt(self, head: Version, valid: set[str]) -> None:
        """Assign the run to this pipeline, without the outputs that are not valid in it."""
        plan = self.plan
        events = [(SAVED, {"pipeline": plan.name})]
        note = f"continued with pipeline {plan.name}"[:1000]
        with self.history.edit(note=note, status="running", events=events, expected=head.number) as state:
            state["pipeline"]["name"], state["pipeline"]["stages"] = plan.name, plan.stages
            for name in [name for name in state["stages"] if name not in valid]:
                del state["stages"][name]

    def _emit(self, kind: str, data: dict[str, Any]) -> None:
        """Emit an event through Stageflow's own sink; a failure of the sink only logs a warning."""
        try:
            self._emitter(kind, {"run": self.history.id, "pipeline": self.plan.name, **data})
        except Exception:
            warn("an event sink of Stageflow failed on %s of run %s", kind, self.history.id, trace=True)
