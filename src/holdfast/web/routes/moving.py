"""Putting runs right: going on, going back, forking, merging, stopping.

What may run a workflow's code is a task: it ends when the run has ended or waits, and is answered as it stands if
that takes longer than the caller wants to wait.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec

from holdfast.desk.lookup import behind, parts_of, run_of, within
from holdfast.desk.plan import check_free, need_workflow
from holdfast.desk.records import name_of, version_record
from holdfast.desk.shapes import VersionShown
from holdfast.desk.standing import Standing, standing
from holdfast.desk.words import as_json
from holdfast.errors import CodeChanged, InvalidCall, NotFound
from holdfast.runtime.preview import Preview
from holdfast.web.auth import Caller
from holdfast.web.fields import Actor, Body, Name, Number, Query, SpendingLimits, Text, Wait
from holdfast.web.incoming import Incoming
from holdfast.web.operation import Role, Table
from holdfast.web.service import Service
from holdfast.web.tasks import Task

TABLE = Table("moves")
_PATIENCE = 2.0


class ResumeBody(Body):
    """How to go on: from the head, or anew `from` a step."""

    from_: Name | None = msgspec.field(default=None, name="from")
    on_divergence: Literal["raise", "rerun"] = "raise"
    changed: Literal["warn", "refuse", "allow", "accept"] | None = None
    limits: SpendingLimits | None = None
    clear_overrides: Annotated[
        bool, msgspec.Meta(description="Run the steps' own code where the run has overrides.")
    ] = False
    wait: Wait = _PATIENCE


class RollbackBody(Body):
    """Where to go back to, and whether to go on from there."""

    to: Name | int
    resume: bool = True
    changed: Literal["warn", "refuse", "allow"] | None = None
    reason: Text | None = None
    actor: Actor | None = None
    wait: Wait = _PATIENCE


class ForkBody(Body):
    """Another run: its id, what is different in its state (`set`, by paths), or all of its state."""

    run: Name | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    state: Any = msgspec.UNSET
    resume: bool = False
    changed: Literal["warn", "refuse", "allow"] | None = None
    note: Text | None = None
    actor: Actor | None = None
    wait: Wait = _PATIENCE


class MergeBody(Body):
    """What to bring into the head: another version, or the last one of a timeline."""

    other: Name | None = None
    timeline: Number | None = None
    prefer: Literal["head", "other"] | None = None
    note: Text | None = None
    actor: Actor | None = None
    dry_run: bool = False


class StopBody(Body):
    """Why a run is stopped."""

    reason: Text | None = None
    actor: Actor | None = None


class SendBody(Body):
    """An event for a run that waits for it, now or later."""

    event: Name
    data: Any = None
    resume: bool = True
    actor: Actor | None = None
    wait: Wait = _PATIENCE


class ReplayBody(Body):
    """`validate` really runs the recorded steps beside the record; `republish` writes an event for each of
    them again, then resumes the run."""

    mode: Literal["validate", "republish"]
    wait: Wait = _PATIENCE


class DeleteQuery(Query):
    """Whether only to tell what would go."""

    dry_run: bool = False


class Deleted(TypedDict):
    """Runs that went, and the parts that went with them."""

    deleted: list[str]
    parts: list[str]
    dry_run: bool


@TABLE.add("POST", "/runs/{run}/resume", Role.OPERATOR, long=True)
def resume_run(service: Service, run: str, body: ResumeBody, caller: Caller) -> Task:
    """Go on with a run from its head, in this process: recorded steps are not run again.

    Needs the workflow's code (`holdfast serve --app`); without it, requeue the run, and a worker goes on."""
    hf = service.hf
    run = run_of(hf, run, "roll back to it instead")
    preview = hf.preview(run, from_address=body.from_)
    need_workflow(preview, "there is no workflow to resume")
    _need_code(preview, "resume")

    def work(_: Any) -> Standing:
        resumed = hf.resume(
            run,
            from_address=body.from_,
            on_divergence=body.on_divergence,
            changed=body.changed,
            overrides={} if body.clear_overrides else None,
            raises=False,
            limits=None if body.limits is None else body.limits.limits(),
        )
        return standing(hf, resumed)

    return service.tasks.begin("resume", work, caller.role, run=run)


@TABLE.add("POST", "/runs/{run}/rollback", Role.OPERATOR, long=True)
def rollback_run(service: Service, run: str, body: RollbackBody, caller: Caller) -> Task:
    """Move a run back to a version, on a new timeline, and go on from there. Nothing is deleted.

    Steps after the version that have a compensation are undone first. `preview` tells what would be done."""
    hf = service.hf
    run = hf.find(run)
    target = within(hf, run, str(body.to))
    preview = hf.preview(run, target)
    if body.resume or preview.undo:
        _need_code(preview, "rollback")
    if body.resume:
        _refuse_changed(preview, body.changed)

    def work(_: Any) -> Standing:
        rolled = hf.rollback(
            run,
            target,
            resume=body.resume,
            reason=body.reason,
            actor=body.actor,
            changed=body.changed,
            raises=False,
        )
        return standing(hf, rolled)

    return service.tasks.begin("rollback", work, caller.role, run=run)


@TABLE.add("POST", "/runs/{run}/versions/{version}/fork", Role.OPERATOR, long=True, most=16 << 20)
def fork_version(service: Service, run: str, version: str, body: ForkBody, caller: Caller) -> Task:
    """Start another run from a version. Both go their own way."""
    hf = service.hf
    source = within(hf, hf.find(run), version)
    if body.run is not None:
        check_free(hf, body.run)
    if body.resume:
        preview = hf.preview(source.run)
        _need_code(preview, "going on with the fork")
        _refuse_changed(preview, body.changed)
    given = Incoming(hf)
    changes = given.edits(body.set)
    if changes and body.state is not msgspec.UNSET:
        raise InvalidCall("give set, or the whole state, not both")
    state = None if body.state is msgspec.UNSET else given.value(body.state)

    def work(_: Any) -> Standing:
        made = hf.fork(source, body.run, edit=changes or None, state=state, note=body.note, actor=body.actor)
        if not body.resume:
            return standing(hf, hf.get(made.id))
        return standing(hf, hf.resume(made.id, changed=body.changed, raises=False))

    return service.tasks.begin("fork", work, caller.role, run=source.run)


@TABLE.add("POST", "/runs/{run}/merge", Role.OPERATOR)
def merge_versions(service: Service, run: str, body: MergeBody) -> VersionShown:
    """Bring what another version or timeline of a run changed into its head.

    Where both changed the same place, it is a conflict, unless `prefer` says which one stays. With `dry_run`, nothing
    is written, and the head is answered."""
    hf = service.hf
    log = hf.history(hf.find(run))
    if (body.other is None) == (body.timeline is None):
        raise InvalidCall("name another version, or a timeline")
    found = (
        log.versions(timeline=body.timeline, limit=1)
        if body.other is None
        else [within(hf, log.id, body.other)]
    )
    if not found:
        raise NotFound(
            f"run {log.id!r} has no timeline {body.timeline} with a version of its own", run=log.id
        )
    head, theirs = log.head, found[0]
    if theirs.number in behind(log, head):
        raise InvalidCall(
            f"nothing to merge: {name_of(head)} comes from {name_of(theirs)} already", run=log.id
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
    return version_record(made)


@TABLE.add("POST", "/runs/{run}/pause", Role.OPERATOR)
def pause_run(service: Service, run: str, body: StopBody) -> Standing:
    """Stop a run at the next step, until it is resumed."""
    hf = service.hf
    found = hf.get(hf.find(run))
    need_workflow(found, "there is nothing to pause")
    return standing(hf, hf.pause(found.id, reason=body.reason, actor=body.actor))


@TABLE.add("POST", "/runs/{run}/cancel", Role.OPERATOR)
def cancel_run(service: Service, run: str, body: StopBody) -> Standing:
    """Stop a run for good, at the next step, and the runs that are parts of it. What it did is not undone."""
    hf = service.hf
    found = hf.get(hf.find(run))
    need_workflow(found, "there is nothing to cancel")
    return standing(hf, hf.cancel(found.id, reason=body.reason, actor=body.actor))


@TABLE.add("POST", "/runs/{run}/send", Role.OPERATOR, long=True)
def send_event(service: Service, run: str, body: SendBody, caller: Caller) -> Task:
    """Send an event to a run that waits for it, now or later."""
    hf = service.hf
    run = hf.find(run)
    data = Incoming(hf).value(body.data)

    def work(_: Any) -> Standing:
        sent = hf.send(run, body.event, data, actor=body.actor, resume=body.resume, raises=False)
        return standing(hf, sent)

    return service.tasks.begin("send", work, caller.role, run=run)


@TABLE.add("POST", "/runs/{run}/replay", Role.OPERATOR, long=True)
def replay_run(service: Service, run: str, body: ReplayBody, caller: Caller) -> Task:
    """Run the recorded steps of a run again beside the record, or tell subscribers of them again.

    With `validate`, the result of the task is what was otherwise."""
    hf = service.hf
    run = hf.find(run)
    preview = hf.preview(run)
    need_workflow(preview, "there are no steps to replay")
    _need_code(preview, "replay")

    def work(_: Any) -> Any:
        resumed = hf.resume(run, mode=body.mode, raises=False)
        if body.mode == "republish":
            return standing(hf, resumed)
        return [
            {
                "address": each.address,
                "what": each.what,
                "recorded": as_json(each.recorded),
                "now": as_json(each.now),
            }
            for each in resumed.differences
        ]

    return service.tasks.begin("replay", work, caller.role, run=run)


@TABLE.add("DELETE", "/runs/{run}", Role.ADMIN)
def delete_run(service: Service, run: str, query: DeleteQuery) -> Deleted:
    """Remove a run for ever, with the runs that are parts of it. Forks of it stay. The id is to be written in
    full."""
    hf = service.hf
    parts = list(dict.fromkeys(parts_of(hf, run)))
    if not query.dry_run:
        hf.delete(run)
    return {"deleted": [run], "parts": parts, "dry_run": query.dry_run}


def _refuse_changed(preview: Preview, changed: str | None) -> None:
    """Refuse, before anything is done, to go on with other code than a run was executed with, if its workflow does."""
    if preview.changed and changed in (None, "refuse"):
        raise CodeChanged(
            f"the code of workflow {preview.workflow!r} has changed since run {preview.run!r} was last executed: start "
            "the server with the old code, or say changed: allow",
            run=preview.run,
        )


def _need_code(preview: Preview, what: str) -> None:
    """Refuse to go on without the code of a run's workflow."""
    if preview.workflow is not None and not preview.known:
        raise InvalidCall(
            f"{what} needs the code of workflow {preview.workflow!r}, which this server does not know: start it with "
            "--app module, or requeue the run for a worker that does",
            workflow=preview.workflow,
        )
