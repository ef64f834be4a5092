"""`holdfast resume`"""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.outcome import advised, ended, followed
from holdfast.cli.plan import careful, go_ahead
from holdfast.cli.spending import limited
from holdfast.desk.lookup import run_of
from holdfast.desk.plan import need_workflow, told
from holdfast.desk.records import preview_record
from holdfast.errors import InvalidCall


@command("resume")
@click.argument("run", type=RUN)
@click.option("--from", "from_address", metavar="ADDRESS", help="Run this step, and all after it, anew.")
@click.option(
    "--on-divergence",
    type=click.Choice(["raise", "rerun"]),
    default="raise",
    show_default=True,
    help="What to do where a step is called with other arguments than it was recorded with.",
)
@click.option(
    "--changed",
    type=click.Choice(["warn", "refuse", "allow", "accept"]),
    help="What to do if the workflow's code has changed since the run began; accept also drops recorded steps that do "
    "not fit it, from the first on.",
)
@limited
@click.option("--clear-overrides", is_flag=True, help="Run the steps' own code where the run has overrides.")
@careful
def resume_command(
    call: Call,
    run: str,
    *,
    from_address: str | None,
    clear_overrides: bool,
    yes: bool,
    dry_run: bool,
    **how: Any,
) -> int:
    """Go on with a run from its head: recorded steps are not run again.

    Needs the workflow's code: --app, or [tool.holdfast] app in pyproject.toml.
    """
    hf = call.with_code()
    run = run_of(hf, run, "`holdfast rollback RUN --to VERSION` goes on from a version")
    preview = hf.preview(run, from_address=from_address)
    need_workflow(preview, "there is no workflow to resume")
    if preview.status == "completed" and from_address is None and not dry_run:
        return ended(call, hf.get(run))
    if preview.status == "cancelled" and from_address is None and not preview.left:
        raise InvalidCall(
            f"run {run!r} was cancelled: `holdfast rollback {run} --to VERSION` or `holdfast fork {run}@VERSION` goes "
            "on from a version",
            run=run,
        )
    if not dry_run:
        call.need_code(preview, "resume")
    if not go_ahead(call, told(preview), preview_record(preview), yes=yes, dry_run=dry_run):
        return exits.DONE
    overrides: dict[str, None] | None = {} if clear_overrides else None
    with followed(call, hf, run), advised(preview):
        resumed = hf.resume(run, from_address=from_address, overrides=overrides, raises=False, **how)
    return ended(call, resumed)
