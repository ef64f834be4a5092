"""`holdfast runs`"""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.context import CommandContext, command, number_option
from holdfast.cli.output import run_columns
from holdfast.model.public import RunSummary
from holdfast.model.records import STATUS_FILTERS
from holdfast.operator_view.lookup import find_runs
from holdfast.operator_view.records import run_view, status_of
from holdfast.operator_view.text import age, parse_time

_INTERVAL = 1.0


@command("runs")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(STATUS_FILTERS),
    help="Only runs with this status. Repeatable.",
)
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Only runs with a version of this tag. Repeatable."
)
@click.option(
    "--meta",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only runs with these metadata: customer=7, or customer='\"7\"' for the text 7. Repeatable.",
)
@click.option("--since", metavar="WHEN", help="Only runs changed since: 2h, 3d, 2026-11-15.")
@number_option(50, "At most N runs.")
@click.option("--watch", is_flag=True, help="Keep updating the list.")
def runs_command(ctx: CommandContext, *, watch: bool, **wanted: Any) -> None:
    """List runs, newest first."""
    if watch and ctx.out.is_for_people:
        _watch(ctx, wanted)
    elif watch:
        _stream(ctx, wanted)
    else:
        limit = wanted["limit"]
        found = _find(ctx, {**wanted, "limit": limit + 1})
        out = ctx.out
        out.rows(found[:limit], run_columns(out), run_view, empty="no runs")
        if len(found) > limit and out.is_for_people:
            out.say(out.styled(f"more runs: -n {limit * 10}", "bright_black"))


def _find(ctx: CommandContext, wanted: dict[str, Any]) -> list[RunSummary]:
    since = wanted["since"]
    return find_runs(ctx.hf, **{**wanted, "since": None if since is None else parse_time(since)})


def _watch(ctx: CommandContext, wanted: dict[str, Any]) -> None:
    from rich.live import Live

    with Live(console=ctx.out.console, screen=False, auto_refresh=False) as live:
        while True:
            live.update(ctx.out.table(_find(ctx, wanted), run_columns(ctx.out)), refresh=True)
            time.sleep(_INTERVAL)


def _stream(ctx: CommandContext, wanted: dict[str, Any]) -> None:
    """Print each run once, and again whenever it changes."""
    known: dict[str, RunSummary] = {}
    while True:
        for run in reversed(_find(ctx, wanted)):
            if known.get(run.id) != run:
                known[run.id] = run
                values = [column.value(run) for column in run_columns(ctx.out)]
                ctx.out.line(run_view(run), values, f"{run.id} {status_of(run)} {age(run.updated)}")
        time.sleep(_INTERVAL)
