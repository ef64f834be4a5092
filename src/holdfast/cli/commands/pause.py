"""`holdfast pause` and `holdfast cancel`"""

from __future__ import annotations

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command, confirm, confirm_options
from holdfast.execution.run import Run
from holdfast.model.records import ENDED
from holdfast.operator_view.actions import require_workflow
from holdfast.operator_view.records import status_of


@command("pause")
@click.argument("run", type=RUN)
@click.option("--reason", metavar="TEXT", help="The reason, recorded with the run.")
@confirm_options
def pause_command(ctx: CommandContext, run: str, *, reason: str | None, yes: bool, dry_run: bool) -> int:
    """Stop a run at the next step until it is resumed."""
    found = ctx.hf.get(run)
    require_workflow(found, "there is nothing to pause")
    if found.status in ENDED:
        return _stopped(ctx, found, "paused")
    lines = [f"{found.id}, which is {status_of(found)}, stops at the next step, until it is resumed"]
    if not confirm(ctx, lines, _record(found), yes=yes, dry_run=dry_run):
        return exit_codes.DONE
    return _stopped(ctx, ctx.hf.pause(found.id, reason=reason), "paused")


@command("cancel")
@click.argument("run", type=RUN)
@click.option("--reason", metavar="TEXT", help="The reason, recorded with the run.")
@confirm_options
def cancel_command(ctx: CommandContext, run: str, *, reason: str | None, yes: bool, dry_run: bool) -> int:
    """Stop a run permanently at the next step. No compensations run; for that, use `rollback`."""
    found = ctx.hf.get(run)
    require_workflow(found, "there is nothing to cancel")
    if found.status in ENDED:
        return _stopped(ctx, found, "cancelled")
    lines = [f"{found.id}, which is {status_of(found)}, is stopped for good; its history stays"]
    if found.children:
        lines.append(f"so are the runs that are parts of it: {', '.join(found.children)}")
    if not confirm(ctx, lines, _record(found), yes=yes, dry_run=dry_run):
        return exit_codes.DONE
    return _stopped(ctx, ctx.hf.cancel(found.id, reason=reason), "cancelled")


def _record(run: Run) -> dict[str, str]:
    return {"run": run.id, "status": run.status}


def _stopped(ctx: CommandContext, run: Run, wanted: str) -> int:
    status = run.status
    if status == wanted:
        text = f"{run.id} is {status}"
    elif status in ENDED:
        text = f"{run.id} had ended already: it is {status}"
    else:
        text = f"{run.id} is being advanced: it will be {wanted} at the next step"
    ctx.out.done(_record(run), text)
    return exit_codes.CONFLICT if status in ENDED and status != wanted else exit_codes.DONE
