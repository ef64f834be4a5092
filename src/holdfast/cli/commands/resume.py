"""`holdfast resume`"""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command, confirm, confirm_options, limit_option
from holdfast.cli.outcome import explain_refusal, report_outcome, show_progress
from holdfast.errors import InvalidCall
from holdfast.operator_view.actions import describe_preview, require_workflow
from holdfast.operator_view.lookup import resolve_run
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
