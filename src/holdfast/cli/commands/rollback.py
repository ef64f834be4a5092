"""`holdfast rollback`"""

from __future__ import annotations

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command, confirm, confirm_options
from holdfast.cli.outcome import explain_refusal, refuse_changed_code, report_outcome, show_progress
from holdfast.operator_view.actions import describe_preview
from holdfast.operator_view.lookup import resolve_run, version_in_run
from holdfast.operator_view.records import preview_view


@command("rollback")
@click.argument("run", type=RUN)
@click.option("--to", required=True, metavar="REF", help="The version: 12, ~2, a tag, RUN@12.")
@click.option("--resume/--no-resume", default=True, help="Resume the run, or leave it paused.")
@click.option(
    "--changed",
    type=click.Choice(["warn", "refuse", "allow"]),
    help="What to do if the workflow's code has changed since the run started.",
)
@click.option("--reason", metavar="TEXT", help="The reason, recorded with the new timeline.")
@click.option("--actor", metavar="NAME", help="Your name, recorded with the new timeline.")
@confirm_options
def rollback_command(
    ctx: CommandContext,
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
    """Move a run back to a version, on a new timeline, and resume it.

    The compensations of later steps run first. Nothing is deleted: the abandoned timeline stays readable.
    """
    hf = ctx.open_with_app()
    run = resolve_run(hf, run, "name the version with --to")
    target = version_in_run(hf, run, to)
    preview = hf.preview(run, target)
    if not dry_run and (resume or preview.undo):
        ctx.require_code(preview, "rollback")
        if resume:
            refuse_changed_code(preview, changed)
    if not confirm(
        ctx,
        describe_preview(preview, resume=resume, back=True),
        preview_view(preview),
        yes=yes,
        dry_run=dry_run,
    ):
        return exit_codes.DONE
    with show_progress(ctx, hf, run), explain_refusal(preview):
        rolled = hf.rollback(
            run, target, resume=resume, reason=reason, actor=actor, changed=changed, raises=False
        )
    if preview.workflow is not None and resume:
        return report_outcome(ctx, rolled)
    ctx.out.done(
        {
            "run": run,
            "status": rolled.status,
            "version": target.number,
            "timeline": rolled.history().timelines()[-1].number,
        },
        f"rolled back {run} to version {target.number}",
    )
    return exit_codes.DONE
