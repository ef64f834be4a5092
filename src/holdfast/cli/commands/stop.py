"""`holdfast pause` and `holdfast cancel`"""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.plan import careful, go_ahead
from holdfast.desk.plan import need_workflow
from holdfast.desk.records import status_of
from holdfast.runtime.endings import ENDED
from holdfast.runtime.run import Run


@command("pause")
@click.argument("run", type=RUN)
@click.option("--reason", metavar="TEXT", help="Why; kept with the run.")
@careful
def pause_command(call: Call, run: str, *, reason: str | None, yes: bool, dry_run: bool) -> int:
    """Stop a run at the next step, until it is resumed."""
    found = call.hf.get(call.hf.find(run))
    need_workflow(found, "there is nothing to pause")
    if found.status in ENDED:
        return _stopped(call, found, "paused")
    lines = [f"{found.id}, which is {status_of(found)}, stops at the next step, until it is resumed"]
    if not go_ahead(call, lines, _record(found), yes=yes, dry_run=dry_run):
        return exits.DONE
    return _stopped(call, call.hf.pause(found.id, reason=reason), "paused")


@command("cancel")
@click.argument("run", type=RUN)
@click.option("--reason", metavar="TEXT", help="Why; kept with the run.")
@careful
def cancel_command(call: Call, run: str, *, reason: str | None, yes: bool, dry_run: bool) -> int:
    """Stop a run for good, at the next step. What it did is not undone: that is `rollback`."""
    found = call.hf.get(call.hf.find(run))
    need_workflow(found, "there is nothing to cancel")
    if found.status in ENDED:
        return _stopped(call, found, "cancelled")
    lines = [f"{found.id}, which is {status_of(found)}, is stopped for good; its history stays"]
    if found.children:
        lines.append(f"so are the runs that are parts of it: {', '.join(found.children)}")
    if not go_ahead(call, lines, _record(found), yes=yes, dry_run=dry_run):
        return exits.DONE
    return _stopped(call, call.hf.cancel(found.id, reason=reason), "cancelled")


def _record(run: Run) -> dict[str, str]:
    return {"run": run.id, "status": run.status}


def _stopped(call: Call, run: Run, wanted: str) -> int:
    status = run.status
    if status == wanted:
        text = f"{run.id} is {status}"
    elif status in ENDED:
        text = f"{run.id} had ended already: it is {status}"
    else:
        text = f"{run.id} is being advanced: it will be {wanted} at the next step"
    call.out.done(_record(run), text)
    return exits.CONFLICT if status in ENDED and status != wanted else exits.DONE
