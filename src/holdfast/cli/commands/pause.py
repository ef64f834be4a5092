"""`holdfast pause` and `holdfast cancel`"""

from __future__ import annotations

from collections.abc import Callable

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command, confirm, confirm_options, reason_option
from holdfast.execution.run import Run
from holdfast.model.records import ENDED
from holdfast.operator_view.actions import join_names, require_workflow
from holdfast.operator_view.records import status_of


@command("pause")
@click.argument("run", type=RUN)
@reason_option
@confirm_options
def pause_command(ctx: CommandContext, run: str, *, reason: str | None, yes: bool, dry_run: bool) -> int:
    """Pause a run at the next step, until it is resumed."""
    effect = "stops at the next step, until it is resumed"
    return _stop(ctx, run, "pause", effect, lambda found: ctx.hf.pause(found, reason=reason), yes, dry_run)


@command("cancel")
@click.argument("run", type=RUN)
@reason_option
@confirm_options
def cancel_command(ctx: CommandContext, run: str, *, reason: str | None, yes: bool, dry_run: bool) -> int:
    """Cancel a run and its children at the next step, permanently. No compensations run; for that, use `rollback`."""
    effect = "is stopped permanently; its history stays"
    return _stop(ctx, run, "cancel", effect, lambda found: ctx.hf.cancel(found, reason=reason), yes, dry_run)


def _stop(
    ctx: CommandContext,
    name: str,
    verb: str,
    effect: str,
    stop: Callable[[str], Run],
    yes: bool,
    dry_run: bool,
) -> int:
    """Stop a run that has not ended, and return the exit code."""
    run = ctx.hf.get(name, prefix=True)
    require_workflow(run, f"there is nothing to {verb}")
    wanted = {"pause": "paused", "cancel": "cancelled"}[verb]
    if run.status not in ENDED:
        lines = [f"{run.id}, which is {status_of(run)}, {effect}"]
        if verb == "cancel" and run.children:
            lines.append(f"its children are cancelled, too: {join_names(run.children)}")
        if not confirm(ctx, lines, _record(run), yes=yes, dry_run=dry_run):
            return exit_codes.DONE
        run = stop(run.id)
    status = run.status
    if status == wanted:
        text = f"{run.id} is {status}"
    elif status in ENDED:
        text = f"{run.id} had ended already: it is {status}"
    else:
        text = f"{run.id} is being advanced: it will be {wanted} at the next step"
    ctx.out.done(_record(run), text)
    return exit_codes.CONFLICT if status in ENDED and status != wanted else exit_codes.DONE


def _record(run: Run) -> dict[str, str]:
    return {"run": run.id, "status": run.status}
