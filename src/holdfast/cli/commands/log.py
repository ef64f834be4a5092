"""`holdfast log` and `holdfast watch`"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli import drawing
from holdfast.cli.context import RUN, CommandContext, command, number_option
from holdfast.cli.outcome import exit_code_of, is_at_rest, report_outcome
from holdfast.cli.output import Column, Output
from holdfast.execution.run import Run
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.operator_view.lookup import parse_conditions, resolve_run
from holdfast.operator_view.records import event_view, has_failed, status_of, version_view
from holdfast.operator_view.text import age, as_json, brief, display_width, plain, size, span

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text


def _took(version: Version) -> str:
    return "" if version.took is None else span(version.took)


#: Columns of the list without a graph.
_COLUMNS = (
    Column("version", lambda version: version.number, right=True, style="bold"),
    Column("timeline", lambda version: version.timeline, right=True, drop_order=3),
    Column("step", lambda version: version.address or version.kind, min_width=12),
    Column("kind", lambda version: version.kind, drop_order=4),
    Column("status", lambda version: version.status),
    Column("at", lambda version: version.at, lambda version: age(version.at), drop_order=1),
    Column("took", lambda version: version.took, _took, right=True, drop_order=2),
    Column(
        "size", lambda version: version.size, lambda version: size(version.size), right=True, drop_order=5
    ),
    Column("tags", lambda version: version.tags, style="yellow", min_width=8, drop_order=7),
    Column("note", lambda version: version.note, style="italic", min_width=8, drop_order=6),
    Column("key", lambda version: version.key, min_width=8, drop_order=8),
)
#: The widest name of a step to which the others are aligned.
_MAX_NAME = 32
#: Colours of lanes, in turn.
_LANES = ("cyan", "magenta", "yellow", "green", "blue", "red")


@command("log")
@click.argument("run", type=RUN)
@number_option(100, "At most N versions.")
@click.option("--before", type=click.IntRange(1), metavar="N", help="Only versions before this one.")
@click.option("--step", metavar="NAME", help="Only versions of this step.")
@click.option("--tag", metavar="TAG", help="Only versions with this tag.")
@click.option("--timeline", type=click.IntRange(1), metavar="N", help="Only versions of this timeline.")
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Only versions with this annotation: model=gpt-4, 'cost>0.5'. Repeatable.",
)
@click.option("--oneline", is_flag=True, help="Only number and step.")
@click.option("--graph/--no-graph", default=None, help="Draw timelines as a graph; default on a terminal.")
def log_command(
    ctx: CommandContext,
    run: str,
    *,
    limit: int,
    before: int | None,
    step: str | None,
    tag: str | None,
    timeline: int | None,
    where: tuple[str, ...],
    oneline: bool,
    graph: bool | None,
) -> None:
    """List the versions of a run, newest first. The filled dot is the head."""
    log = ctx.hf.history(
        resolve_run(ctx.hf, run, "--before N lists the versions before one, `holdfast show` shows one")
    )
    conditions = parse_conditions(where)
    found = log.versions(
        limit=limit + 1, before=before, step=step, tag=tag, timeline=timeline, where=conditions
    )
    versions = found[:limit]
    out = ctx.out
    if out.json:
        out.document([version_view(version) for version in versions])
    elif graph or (graph is None and out.is_for_people):
        for line in version_graph(
            out, log, versions, oneline=oneline, lines=step is None and tag is None and not where
        ):
            out.text(line)
        if not versions:
            out.say("no such versions")
    else:
        out.rows(versions, _COLUMNS[:3] if oneline else _COLUMNS, version_view, empty="no such versions")
    if len(found) > limit and out.is_for_people:
        out.say(
            out.styled(f"more versions: -n {limit * 10}, or --before {versions[-1].number}", "bright_black")
        )


def version_graph(
    out: Output, log: History, versions: Sequence[Version], *, oneline: bool = False, lines: bool = True
) -> list[Text]:
    """Return the lines of the list with its graph; without `lines`, versions are not connected."""
    head = log.head_number
    reasons = {line.number: line for line in log.timelines()}
    by_number = {version.number: version for version in versions}
    points = [drawing.GraphNode(version.number, _parents(version) if lines else ()) for version in versions]
    rows = list(drawing.draw_graph(points, head))
    width = max((len(row.text) for row in rows), default=0)
    wide = min(_MAX_NAME, max((display_width(_name(version)) for version in versions), default=0))
    drawn = []
    for row in rows:
        line = out.styled("")
        for sign, lane in row.cells:
            line.append(sign, _LANES[lane % len(_LANES)])
        line.append(" " * (width - len(row.text)))
        if row.number is not None:
            version = by_number[row.number]
            first = version.timeline > 1 and version.parent == reasons[version.timeline].parent
            reason = reasons[version.timeline].reason if first else None
            _describe(line, version, head=row.number == head, wide=0 if oneline else wide, reason=reason)
        if out.is_for_people:
            line.truncate(out.width, overflow="ellipsis")
        line.rstrip()
        drawn.append(line)
    return drawn


def _parents(version: Version) -> tuple[int, ...]:
    merged = version.detail.get("merged")
    return tuple(number for number in (version.parent, merged) if number)


def _name(version: Version) -> str:
    return plain(version.address or f"({version.kind})")


def _describe(line: Text, version: Version, *, head: bool, wide: int, reason: str | None) -> None:
    """Append the description of a version; only number and name if `wide` is 0."""
    line.append(f"{version.number:>4}  ", "bold")
    name = _name(version)
    line.append(name, "red" if has_failed(version) or version.is_damaged else "")
    if not wide:
        return
    if version.is_damaged:
        line.append("  cannot be read: run `holdfast verify`", "red")
        return
    line.append(" " * (wide - display_width(name)))
    line.append(f"  {age(version.at)}", "bright_black")
    if version.took is not None:
        line.append(f", took {span(version.took)}", "bright_black")
    if version.attempt > 1:
        line.append(f", attempt {version.attempt}", "yellow")
    for tag in version.tags:
        line.append(f"  :{plain(tag)}", "yellow")
    if version.pinned:
        line.append("  pinned", "yellow")
    if version.key is not None:
        line.append(f"  key {plain(version.key)}", "cyan")
    if head:
        line.append("  ← head", "green")
    if reason:
        line.append(f"  timeline {version.timeline}: {brief(reason, 60)}", "bright_black italic")
    if version.note:
        line.append(f"  {brief(version.note, 60)}", "italic")


_INTERVAL = 0.3


@command("watch")
@click.argument("run", type=RUN)
def watch_command(ctx: CommandContext, run: str) -> int:
    """Follow a run until it ends or waits for an operator. In a pipe, print its events, one per line."""
    found = ctx.hf.get(run, prefix=True)
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
