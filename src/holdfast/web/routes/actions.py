"""Actions on runs: resume, rollback, fork, merge, pause, cancel, signal, replay, delete.

An action that may run workflow code is a task: it ends when the run has ended or waits. Its current state is returned
if that takes longer than the caller wants to wait.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec

from holdfast.errors import InvalidCall
from holdfast.execution.run import Run
from holdfast.operator_view.actions import (
    MERGE_SIDES,
    RunOutcome,
    check_run_id_is_free,
    find_merge,
    refuse_changed_code,
    require_code,
    require_workflow,
    run_outcome,
)
from holdfast.operator_view.lookup import iter_descendants, resolve_run, version_in_run
from holdfast.operator_view.records import VersionView, difference_view, version_view
from holdfast.web.auth import Caller
from holdfast.web.operation import (
    Actor,
    Body,
    Name,
    Number,
    OperationTable,
    Query,
    Role,
    SpendingLimits,
    Text,
    Wait,
)
from holdfast.web.request import RequestValues
from holdfast.web.service import BackgroundTask, Service

TABLE = OperationTable("actions")
_DEFAULT_WAIT = 2.0
_NO_CODE = ", which this server does not have: start it with --app module, or requeue the run for a worker that has it"
_CHANGED = "start the server with the old code, or say changed: allow"


class ResumeBody(Body):
    """How to resume: from the head, or again `from` a step."""

    from_: Name | None = msgspec.field(default=None, name="from")
    on_divergence: Literal["raise", "rerun"] = "raise"
    changed: Literal["warn", "refuse", "allow", "accept"] | None = None
    limits: SpendingLimits | None = None
    clear_overrides: Annotated[
        bool, msgspec.Meta(description="Run the steps' own code where the run has overrides.")
    ] = False
    wait: Wait = _DEFAULT_WAIT


class ActorBody(Body):
    """Actor of a change."""

    actor: Actor | None = None


class AdvanceBody(ActorBody):
    """Change after which the run may be resumed: by whom, what to do if the code has changed, and how long to wait."""

    changed: Literal["warn", "refuse", "allow"] | None = None
    wait: Wait = _DEFAULT_WAIT


class RollbackBody(AdvanceBody, kw_only=True):
    """Target of a rollback, and whether to resume from it."""

    to: Name | int
    resume: bool = True
    reason: Text | None = None


class ForkBody(AdvanceBody):
    """New run: its id, changes of its state (`set`, by paths), or its complete state."""

    run: Name | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    state: Any = msgspec.UNSET
    resume: bool = False
    note: Text | None = None


class MergeBody(ActorBody):
    """Version to merge into the head: another version, or the last one of a timeline."""

    other: Name | None = None
    timeline: Number | None = None
    prefer: Literal["head", "other"] | None = None
    note: Text | None = None
    dry_run: bool = False


class StopBody(ActorBody):
    """Reason to stop a run."""

    reason: Text | None = None


class SignalBody(ActorBody, kw_only=True):
    """Signal for a run that waits for it, now or later."""

    name: Name
    data: Any = None
    resume: bool = True
    wait: Wait = _DEFAULT_WAIT


class ReplayBody(Body):
    """`validate` runs the recorded steps again and compares; `republish` writes an event for each of them again, then
    resumes the run."""

    mode: Literal["validate", "republish"]
    wait: Wait = _DEFAULT_WAIT


class DeleteQuery(Query):
    """Whether only to list the runs."""

    dry_run: bool = False


class DeletedRuns(TypedDict):
    """Runs that were deleted, and their children."""

    deleted: list[str]
    children: list[str]
    dry_run: bool


@TABLE.add("POST", "/runs/{run}/resume", Role.OPERATOR, long=True)
def resume_run(service: Service, run: str, body: ResumeBody, caller: Caller) -> BackgroundTask:
    """Resume a run from its head, in this process: completed steps are replayed from history.

    Needs the workflow's code (`holdfast serve --app`); without it, requeue the run for a worker."""
    hf = service.hf
    run = resolve_run(hf, run, "roll back to it instead")
    preview = hf.preview(run, from_address=body.from_)
    require_workflow(preview, "there is no workflow to resume")
    require_code(preview, "resume", _NO_CODE)
    return service.advance(
        "resume",
        run,
        caller,
        lambda: hf.resume(
            run,
            from_address=body.from_,
            on_divergence=body.on_divergence,
            changed=body.changed,
            overrides={} if body.clear_overrides else None,
            raises=False,
            limits=None if body.limits is None else body.limits.limits(),
        ),
    )


@TABLE.add("POST", "/runs/{run}/rollback", Role.OPERATOR, long=True)
def rollback_run(service: Service, run: str, body: RollbackBody, caller: Caller) -> BackgroundTask:
    """Roll a run back to a version, on a new timeline, and resume from there. Nothing is deleted.

    Later steps that have a compensation are undone first. `preview` shows the effect."""
    hf = service.hf
    run = hf.get(run, prefix=True).id
    target = version_in_run(hf, run, str(body.to))
    preview = hf.preview(run, target)
    if body.resume or preview.undo:
        require_code(preview, "rollback", _NO_CODE)
    if body.resume:
        refuse_changed_code(preview, body.changed, _CHANGED)
    return service.advance(
        "rollback",
        run,
        caller,
        lambda: hf.rollback(
            run,
            target,
            resume=body.resume,
            reason=body.reason,
            actor=body.actor,
            changed=body.changed,
            raises=False,
        ),
    )


@TABLE.add("POST", "/runs/{run}/versions/{version}/fork", Role.OPERATOR, long=True, most=16 << 20)
def fork_version(service: Service, run: str, version: str, body: ForkBody, caller: Caller) -> BackgroundTask:
    """Start a new run from a version. Both runs are independent."""
    hf = service.hf
    source = version_in_run(hf, hf.get(run, prefix=True).id, version)
    if body.run is not None:
        check_run_id_is_free(hf, body.run)
    if body.resume:
        preview = hf.preview(source.run)
        require_code(preview, "resuming the fork", _NO_CODE)
        refuse_changed_code(preview, body.changed, _CHANGED)
    given = RequestValues(hf)
    changes = given.edits(body.set)
    if changes and body.state is not msgspec.UNSET:
        raise InvalidCall("give set, or the whole state, not both")
    state = None if body.state is msgspec.UNSET else given.value(body.state)

    def fork() -> Run:
        made = hf.fork(source, body.run, edit=changes or None, state=state, note=body.note, actor=body.actor)
        return hf.resume(made.id, changed=body.changed, raises=False) if body.resume else hf.get(made.id)

    return service.advance("fork", source.run, caller, fork)


@TABLE.add("POST", "/runs/{run}/merge", Role.OPERATOR)
def merge_versions(service: Service, run: str, body: MergeBody) -> VersionView:
    """Merge the changes of another version or timeline of a run into its head.

    If both changed the same place, it is a conflict, unless `prefer` says which side wins. With `dry_run`, nothing is
    written, and the head is returned."""
    hf = service.hf
    log = hf.history(hf.get(run, prefix=True).id)
    if (body.other is None) == (body.timeline is None):
        raise InvalidCall("name another version, or a timeline")
    other = None if body.other is None else version_in_run(hf, log.id, body.other)
    made = log.merge(
        find_merge(log, log.head, other, body.timeline),
        note=body.note,
        actor=body.actor,
        resolve=None if body.prefer is None else MERGE_SIDES[body.prefer],
        dry_run=body.dry_run,
    )
    return version_view(made)


@TABLE.add("POST", "/runs/{run}/pause", Role.OPERATOR)
def pause_run(service: Service, run: str, body: StopBody) -> RunOutcome:
    """Pause a run at the next step, until it is resumed."""
    found = service.hf.get(run, prefix=True)
    require_workflow(found, "there is nothing to pause")
    return run_outcome(service.hf, service.hf.pause(found.id, reason=body.reason, actor=body.actor))


@TABLE.add("POST", "/runs/{run}/cancel", Role.OPERATOR)
def cancel_run(service: Service, run: str, body: StopBody) -> RunOutcome:
    """Cancel a run and its children at the next step, permanently. Its effects are not undone."""
    found = service.hf.get(run, prefix=True)
    require_workflow(found, "there is nothing to cancel")
    return run_outcome(service.hf, service.hf.cancel(found.id, reason=body.reason, actor=body.actor))


@TABLE.add("POST", "/runs/{run}/signal", Role.OPERATOR, long=True)
def signal_run(service: Service, run: str, body: SignalBody, caller: Caller) -> BackgroundTask:
    """Send a signal to a run that waits for it, now or later."""
    hf = service.hf
    run = hf.get(run, prefix=True).id
    data = RequestValues(hf).value(body.data)
    return service.advance(
        "signal",
        run,
        caller,
        lambda: hf.signal(run, body.name, data, actor=body.actor, resume=body.resume, raises=False),
    )


@TABLE.add("POST", "/runs/{run}/replay", Role.OPERATOR, long=True)
def replay_run(service: Service, run: str, body: ReplayBody, caller: Caller) -> BackgroundTask:
    """Run the recorded steps of a run again to validate them, or republish their events.

    With `validate`, the result of the task lists the differences."""
    hf = service.hf
    run = hf.get(run, prefix=True).id
    preview = hf.preview(run)
    require_workflow(preview, "there are no steps to replay")
    require_code(preview, "replay", _NO_CODE)

    def work(_: Any) -> Any:
        resumed = hf.resume(run, mode=body.mode, raises=False)
        if body.mode == "republish":
            return run_outcome(hf, resumed)
        return list(map(difference_view, resumed.differences))

    return service.tasks.start("replay", work, caller.role, run=run)


@TABLE.add("DELETE", "/runs/{run}", Role.ADMIN)
def delete_run(service: Service, run: str, query: DeleteQuery) -> DeletedRuns:
    """Delete a run and its children permanently. Its forks stay. The id must be complete."""
    hf = service.hf
    run = hf.get(run).id
    children = list(dict.fromkeys(iter_descendants(hf, run)))
    if not query.dry_run:
        hf.delete(run)
    return {"deleted": [run], "children": children, "dry_run": query.dry_run}
