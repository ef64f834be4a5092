"""`holdfast rollback`"""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.outcome import advised, ended, followed, refuse_changed
from holdfast.cli.plan import careful, go_ahead
from holdfast.desk.lookup import run_of, within
from holdfast.desk.plan import told
from holdfast.desk.records import preview_record


@command("rollback")
@click.argument("run", type=RUN)
@click.option("--to", required=True, metavar="REF", help="The version to go back to: 12, ~2, a tag, RUN@12.")
@click.option("--resume/--no-resume", default=True, help="Go on from there, or leave the run paused.")
@click.option(
    "--changed",
    type=click.Choice(["warn", "refuse", "allow"]),
    help="What to do if the workflow's code has changed since the run began.",
)
@click.option("--reason", metavar="TEXT", help="Why; kept with the new timeline.")
@click.option("--actor", metavar="NAME", help="Who; kept with the new timeline.")
@careful
def rollback_command(
    call: Call,
    run: str,
    *,
    to: str,
    resume: bool,
    changed: str | None,
    reason: str | None,
    actor: str | None,
    yes: bool,
    dry_run: bool,
) -> int:
    """Move a run back to a version, on a new timeline, and go on from there.

    Steps after the version that have a compensation are undone first. Nothing is deleted: what was left stays readable.
    """
    hf = call.with_code()
    run = run_of(hf, run, "name the version with --to")
    target = within(hf, run, to)
    preview = hf.preview(run, target)
    if not dry_run and (resume or preview.undo):
        call.need_code(preview, "rollback")
        if resume:
            refuse_changed(preview, changed)
    if not go_ahead(
        call, told(preview, resume=resume, back=True), preview_record(preview), yes=yes, dry_run=dry_run
    ):
        return exits.DONE
    with followed(call, hf, run), advised(preview):
        rolled = hf.rollback(
            run, target, resume=resume, reason=reason, actor=actor, changed=changed, raises=False
        )
    if preview.workflow is not None and resume:
        return ended(call, rolled)
    call.out.done(
        {
            "run": run,
            "status": rolled.status,
            "version": target.number,
            "timeline": rolled.history().timelines()[-1].number,
        },
        f"{run} is at version {target.number} again",
    )
    return exits.DONE
