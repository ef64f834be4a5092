"""`holdfast watch`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.commands.log import version_graph
from holdfast.cli.context import RUN, CommandContext, command
from holdfast.cli.outcome import exit_code_of, is_at_rest, report_outcome
from holdfast.execution.run import Run
from holdfast.operator_view.records import event_view, status_of
from holdfast.operator_view.text import age, as_json

if TYPE_CHECKING:
    from rich.console import Group

_INTERVAL = 0.3


@command("watch")
@click.argument("run", type=RUN)
def watch_command(ctx: CommandContext, run: str) -> int:
    """Follow a run until it ends or waits for an operator. In a pipe, print its events, one per line."""
    found = ctx.hf.get(run)
    if ctx.out.is_for_people:
        if not is_at_rest(ctx.hf, found):
            _live(ctx, found)
        for line in version_graph(ctx.out, found.history(), found.history().versions(limit=20)):
            ctx.out.text(line)
    else:
        _stream(ctx, found)
    if status_of(found) == "interrupted":
        ctx.out.say(f"interrupted  {found.id}: no process executes it; use `holdfast resume {found.id}`")
    elif not ctx.out.json:
        return report_outcome(ctx, found)
    return exit_code_of(ctx.hf, found)


def _live(ctx: CommandContext, run: Run) -> None:
    from rich.live import Live

    with Live(console=ctx.out.console, auto_refresh=False, transient=True) as live:
        while not is_at_rest(ctx.hf, run):
            live.update(_view(ctx, run), refresh=True)
            time.sleep(_INTERVAL)


def _stream(ctx: CommandContext, run: Run) -> None:
    with ctx.hf.subscribe(run_id=run.id, after=0) as subscription:
        while True:
            at_rest = is_at_rest(ctx.hf, run)
            for event in subscription.wait(_INTERVAL):
                values = (event.cursor, event.at, event.kind, event.version, event.step, as_json(event.data))
                ctx.out.line(event_view(event), values, event.kind)
            if at_rest:
                return


def _view(ctx: CommandContext, run: Run) -> Group:
    from rich.console import Group

    out = ctx.out
    head = run.head
    title = out.status(run.status).append(f"  {run.id}@{head.number}  {age(head.at)}")
    return Group(
        title,
        *version_graph(out, run.history(), run.history().versions(limit=max(5, out.console.height - 4))),
    )
