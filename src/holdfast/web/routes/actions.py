"""Actions on runs: resume, rollback, fork, merge, pause, cancel, signal, replay, delete.

An action that may run workflow code is a task: it ends when the run has ended or waits. Its current state is returned
if that takes longer than the caller wants to wait.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec

from holdfast.errors import CodeChanged, InvalidCall, NotFound
from holdfast.execution.preview import Preview
from holdfast.operator_view.actions import RunOutcome, check_run_id_is_free, require_workflow, run_outcome
from holdfast.operator_view.lookup import ancestor_numbers, iter_descendants, resolve_run, version_in_run
from holdfast.operator_view.records import VersionView, reference_to, version_view
from holdfast.operator_view.text import as_json
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


class RollbackBody(Body):
    """Target of a rollback, and whether to resume from it."""

    to: Name | int
    resume: bool = True
    changed: Literal["warn", "refuse", "allow"] | None = None
    reason: Text | None = None
    actor: Actor | None = None
    wait: Wait = _DEFAULT_WAIT


class ForkBody(Body):
    """New run: its id, changes of its state (`set`, by paths), or its complete state."""

    run: Name | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    state: Any = msgspec.UNSET
    resume: bool = False
    changed: Literal["warn", "refuse", "allow"] | None = None
    note: Text | None = None
    actor: Actor | None = None
    wait: Wait = _DEFAULT_WAIT


class MergeBody(Body):
    """Version to merge into the head: another version, or the last one of a timeline."""

    other: Name | None = None
    timeline: Number | None = None
    prefer: Literal["head", "other"] | None = None
    note: Text | None = None
    actor: Actor | None = None
    dry_run: bool = False


class StopBody(Body):
    """Reason to stop a run."""

    reason: Text | None = None
    actor: Actor | None = None


class SignalBody(Body):
    """Signal for a run that waits for it, now or later."""

    name: Name
    data: Any = None
    resume: bool = True
    actor: Actor | None = None
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
    _require_code(preview, "resume")

    def work(_: Any) -> RunOutcome:
        resumed = hf.resume(
            run,
            from_address=body.from_,
            on_divergence=body.on_divergence,
            changed=body.changed,
            overrides={} if body.clear_overrides else None,
            raises=False,
            limits=None if body.limits is None else body.limits.limits(),
        )
        return run_outcome(hf, resumed)

    return service.tasks.start("resume", work, caller.role, run=run)


@TABLE.add("POST", "/runs/{run}/rollback", Role.OPERATOR, long=True)
def rollback_run(service: Service, run: str, body: RollbackBody, caller: Caller) -> BackgroundTask:
    """Roll a run back to a version, on a new timeline, and resume from there. Nothing is deleted.

    Later steps that have a compensation are undone first. `preview` shows the effect."""
    hf = service.hf
    run = hf.get(run).id
    target = version_in_run(hf, run, str(body.to))
    preview = hf.preview(run, target)
    if body.resume or preview.undo:
        _require_code(preview, "rollback")
    if body.resume:
        _refuse_changed(preview, body.changed)

    def work(_: Any) -> RunOutcome:
        rolled = hf.rollback(
            run,
            target,
            resume=body.resume,
            reason=body.reason,
            actor=body.actor,
            changed=body.changed,
            raises=False,
        )
        return run_outcome(hf, rolled)

    return service.tasks.start("rollback", work, caller.role, run=run)


@TABLE.add("POST", "/runs/{run}/versions/{version}/fork", Role.OPERATOR, long=True, most=16 << 20)
def fork_version(service: Service, run: str, version: str, body: ForkBody, caller: Caller) -> BackgroundTask:
    """Start another run from a version. The two are independent."""
    hf = service.hf
    source = version_in_run(hf, hf.get(run).id, version)
    if body.run is not None:
        check_run_id_is_free(hf, body.run)
    if body.resume:
        preview = hf.preview(source.run)
        _require_code(preview, "resuming the fork")
        _refuse_changed(preview, body.changed)
    given = RequestValues(hf)
    changes = given.edits(body.set)
    if changes and body.state is not msgspec.UNSET:
        raise InvalidCall("give set, or the whole state, not both")
    state = None if body.state is msgspec.UNSET else given.value(body.state)

    def work(_: Any) -> RunOutcome:
        made = hf.fork(source, body.run, edit=changes or None, state=state, note=body.note, actor=body.actor)
        if not body.resume:
            return run_outcome(hf, hf.get(made.id))
        return run_outcome(hf, hf.resume(made.id, changed=body.changed, raises=False))

    return service.tasks.start("fork", work, caller.role, run=source.run)


@TABLE.add("POST", "/runs/{run}/merge", Role.OPERATOR)
def merge_versions(service: Service, run: str, body: MergeBody) -> VersionView:
    """Merge the changes of another version or timeline of a run into its head.

    If both changed the same place, it is a conflict, unless `prefer` says which side wins. With `dry_run`, nothing is
    written, and the head is returned."""
    hf = service.hf
    log = hf.history(hf.get(run).id)
    if (body.other is None) == (body.timeline is None):
        raise InvalidCall("name another version, or a timeline")
    found = (
        log.versions(timeline=body.timeline, limit=1)
        if body.other is None
        else [version_in_run(hf, log.id, body.other)]
    )
    if not found:
        raise NotFound(
            f"run {log.id!r} has no timeline {body.timeline} with a version of its own", run=log.id
        )
    head, theirs = log.head, found[0]
    if theirs.number in ancestor_numbers(log, head):
        raise InvalidCall(
            f"nothing to merge: {reference_to(head)} already includes {reference_to(theirs)}", run=log.id
        )

    def chosen(path: Any, base: Any, ours: Any, theirs: Any) -> Any:
        return theirs if body.prefer == "head" else ours

    made = log.merge(
        theirs,
        note=body.note,
        actor=body.actor,
        resolve=None if body.prefer is None else chosen,
        dry_run=body.dry_run,
    )
    return version_view(made)


@TABLE.add("POST", "/runs/{run}/pause", Role.OPERATOR)
def pause_run(service: Service, run: str, body: StopBody) -> RunOutcome:
    """Pause a run at the next step, until it is resumed."""
    hf = service.hf
    found = hf.get(run)
    require_workflow(found, "there is nothing to pause")
    return run_outcome(hf, hf.pause(found.id, reason=body.reason, actor=body.actor))


@TABLE.add("POST", "/runs/{run}/cancel", Role.OPERATOR)
def cancel_run(service: Service, run: str, body: StopBody) -> RunOutcome:
    """Cancel a run and its children at the next step, permanently. Its effects are not undone."""
    hf = service.hf
    found = hf.get(run)
    require_workflow(found, "there is nothing to cancel")
    return run_outcome(hf, hf.cancel(found.id, reason=body.reason, actor=body.actor))


@TABLE.add("POST", "/runs/{run}/signal", Role.OPERATOR, long=True)
def signal_run(service: Service, run: str, body: SignalBody, caller: Caller) -> BackgroundTask:
    """Send a signal to a run that waits for it, now or later."""
    hf = service.hf
    run = hf.get(run).id
    data = RequestValues(hf).value(body.data)

    def work(_: Any) -> RunOutcome:
        sent = hf.signal(run, body.name, data, actor=body.actor, resume=body.resume, raises=False)
        return run_outcome(hf, sent)

    return service.tasks.start("signal", work, caller.role, run=run)


@TABLE.add("POST", "/runs/{run}/replay", Role.OPERATOR, long=True)
def replay_run(service: Service, run: str, body: ReplayBody, caller: Caller) -> BackgroundTask:
    """Run the recorded steps of a run again and compare, or publish their events again.

    With `validate`, the result of the task lists the differences."""
    hf = service.hf
    run = hf.get(run).id
    preview = hf.preview(run)
    require_workflow(preview, "there are no steps to replay")
    _require_code(preview, "replay")

    def work(_: Any) -> Any:
        resumed = hf.resume(run, mode=body.mode, raises=False)
        if body.mode == "republish":
            return run_outcome(hf, resumed)
        return [
            {
                "address": each.address,
                "what": each.what,
                "recorded": as_json(each.recorded),
                "now": as_json(each.now),
            }
            for each in resumed.differences
        ]

    return service.tasks.start("replay", work, caller.role, run=run)


@TABLE.add("DELETE", "/runs/{run}", Role.ADMIN)
def delete_run(service: Service, run: str, query: DeleteQuery) -> DeletedRuns:
    """Delete a run and its children permanently. Its forks stay. The id must be complete."""
    hf = service.hf
    children = list(dict.fromkeys(iter_descendants(hf, run)))
    if not query.dry_run:
        hf.delete(run)
    return {"deleted": [run], "children": children, "dry_run": query.dry_run}


def _refuse_changed(preview: Preview, changed: str | None) -> None:
    """Refuse, before anything is changed, to resume a run whose code has changed, unless that is allowed."""
    if preview.changed and changed in (None, "refuse"):
        raise CodeChanged(
            f"the code of workflow {preview.workflow!r} has changed since run {preview.run!r} was last executed: start "
            "the server with the old code, or say changed: allow",
            run=preview.run,
        )


def _require_code(preview: Preview, what: str) -> None:
    """Refuse an action that needs the code of a workflow that this server does not have."""
    if preview.workflow is not None and not preview.known:
        raise InvalidCall(
            f"{what} needs the code of workflow {preview.workflow!r}, which this server does not have: start it with "
            "--app module, or requeue the run for a worker that has it",
            workflow=preview.workflow,
        )
