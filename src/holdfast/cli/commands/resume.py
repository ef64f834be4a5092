"""`holdfast resume` and `holdfast rollback`"""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import (
    RUN,
    CommandContext,
    actor_option,
    changed_option,
    command,
    confirm,
    confirm_options,
    limit_option,
    reason_option,
)
from holdfast.cli.outcome import CHANGED_ADVICE, explain_refusal, report_outcome, show_progress
from holdfast.errors import InvalidCall
from holdfast.operator_view.actions import describe_preview, refuse_changed_code, require_workflow
from holdfast.operator_view.lookup import resolve_run, version_in_run
from holdfast.operator_view.records import preview_view


@command("resume")
@click.argument("run", type=RUN)
@click.option("--from", "from_address", metavar="ADDRESS", help="Run this step and all later steps again.")
@click.option(
    "--on-divergence",
    type=click.Choice(["raise", "rerun"]),
    default="raise",
    show_default=True,
    help="What to do if a step is called with other arguments than recorded.",
)
@click.option(
    "--changed",
    type=click.Choice(["warn", "refuse", "allow", "accept"]),
    help="What to do if the workflow's code has changed since the run started; accept also discards the recorded steps "
    "from the first that does not match.",
)
@limit_option
@click.option(
    "--clear-overrides", is_flag=True, help="Run the steps' own code instead of the run's overrides."
)
@confirm_options
def resume_command(
    ctx: CommandContext,
    run: str,
    *,
    from_address: str | None,
    clear_overrides: bool,
    yes: bool,
    dry_run: bool,
    **how: Any,
) -> int:
    """Resume a run from its head; completed steps are replayed from history.

    Needs the workflow's code: --app, or [tool.holdfast] app in pyproject.toml.
    """
    hf = ctx.open_with_app()
    run = resolve_run(hf, run, "use `holdfast rollback RUN --to VERSION`")
    preview = hf.preview(run, from_address=from_address)
    require_workflow(preview, "there is no workflow to resume")
    if preview.status == "completed" and from_address is None and not dry_run:
        return report_outcome(ctx, hf.get(run))
    if preview.status == "cancelled" and from_address is None and not preview.left:
        raise InvalidCall(
            f"run {run!r} was cancelled: use `holdfast rollback {run} --to VERSION` or `holdfast fork {run}@VERSION`",
            run=run,
        )
    if not dry_run:
        ctx.require_code(preview, "resume")
    if not confirm(ctx, describe_preview(preview), preview_view(preview), yes=yes, dry_run=dry_run):
        return exit_codes.DONE
    overrides: dict[str, None] | None = {} if clear_overrides else None
    with show_progress(ctx, hf, run), explain_refusal(preview):
        resumed = hf.resume(run, from_address=from_address, overrides=overrides, raises=False, **how)
    return report_outcome(ctx, resumed)


@command("rollback")
@click.argument("run", type=RUN)
@click.option("--to", required=True, metavar="REF", help="The version: 12, ~2, a tag, RUN@12.")
@click.option("--resume/--no-resume", default=True, help="Resume the run, or leave it paused.")
@changed_option
@reason_option
@actor_option
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
    """Roll a run back to a version, on a new timeline, and resume it.

    The compensations of later steps run first. Nothing is deleted: the abandoned timeline stays readable.
    """
    hf = ctx.open_with_app()
    run = resolve_run(hf, run, "name the version with --to")
    target = version_in_run(hf, run, to)
    preview = hf.preview(run, target)
    if not dry_run and (resume or preview.undo):
        ctx.require_code(preview, "rollback")
        if resume:
            refuse_changed_code(preview, changed, CHANGED_ADVICE)
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
