"""`holdfast runs`"""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.call import Call, command
from holdfast.cli.records import run_columns
from holdfast.desk.lookup import find_runs
from holdfast.desk.records import SEEN, run_record, status_of
from holdfast.desk.words import age, moment
from holdfast.model.public import RunSummary

_EVERY = 1.0


@command("runs")
@click.option("--status", multiple=True, type=click.Choice(SEEN), help="Only runs of this status.")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only runs with a version of this tag.")
@click.option("--since", metavar="WHEN", help="Only runs changed since: 2h, 3d, 2026-11-15.")
@click.option("-n", "--limit", default=50, show_default=True, type=click.IntRange(1), help="So many at most.")
@click.option("--watch", is_flag=True, help="Go on showing them as they change.")
def runs_command(call: Call, *, watch: bool, **wanted: Any) -> None:
    """List runs, newest first."""
    if watch and call.out.for_people:
        _watch(call, wanted)
    elif watch:
        _stream(call, wanted)
    else:
        limit = wanted["limit"]
        found = _find(call, {**wanted, "limit": limit + 1})
        out = call.out
        out.rows(found[:limit], run_columns(out), run_record, empty="no runs")
        if len(found) > limit and out.for_people:
            out.say(out.styled(f"there are more: -n {limit * 10}", "bright_black"))


def _find(call: Call, wanted: dict[str, Any]) -> list[RunSummary]:
    since = wanted["since"]
    return find_runs(call.hf, **{**wanted, "since": None if since is None else moment(since)})


def _watch(call: Call, wanted: dict[str, Any]) -> None:
    from rich.live import Live

    with Live(console=call.out.console, screen=False, auto_refresh=False) as live:
        while True:
            live.update(call.out.table(_find(call, wanted), run_columns(call.out)), refresh=True)
            time.sleep(_EVERY)


def _stream(call: Call, wanted: dict[str, Any]) -> None:
    """In a pipe: each run once, and again whenever it has changed."""
    known: dict[str, RunSummary] = {}
    while True:
        for run in reversed(_find(call, wanted)):
            if known.get(run.id) != run:
                known[run.id] = run
                values = [column.value(run) for column in run_columns(call.out)]
                call.out.line(run_record(run), values, f"{run.id} {status_of(run)} {age(run.updated)}")
        time.sleep(_EVERY)
