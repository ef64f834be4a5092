"""`holdfast events`"""

from __future__ import annotations

from datetime import UTC, datetime
from fnmatch import fnmatchcase

import click

from holdfast.cli.context import RUN, CommandContext, command
from holdfast.model.public import Event
from holdfast.operator_view.records import event_view
from holdfast.operator_view.text import as_json, brief, plain

_PAGE = 500


@command("events")
@click.argument("run", type=RUN, required=False)
@click.option("-f", "--follow", is_flag=True, help="Wait for new events until interrupted.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="PATTERN",
    help="Only these kinds: 'run.*', step.failed. Repeatable.",
)
@click.option(
    "--after", type=click.IntRange(0), metavar="CURSOR", default=0, help="Only events after this cursor."
)
def events_command(
    ctx: CommandContext, run: str | None, *, follow: bool, kinds: tuple[str, ...], after: int
) -> None:
    """List the events of a run or of the whole store, oldest first.

    With --json each event is one line; pass its `cursor` to --after to continue from there.
    """
    hf = ctx.hf
    run_id = None if run is None else hf.get(run, prefix=True).id
    if follow:
        with hf.subscribe(run_id=run_id, kinds=kinds, after=after) as subscription:
            for event in subscription:
                _print_event(ctx, event)
    while not follow:
        page = (
            hf.events(after=after, limit=_PAGE)
            if run_id is None
            else hf.history(run_id).events(after=after, limit=_PAGE)
        )
        for event in page:
            if not kinds or any(fnmatchcase(event.kind, pattern) for pattern in kinds):
                _print_event(ctx, event)
        if not page:
            return
        after = page[-1].cursor


def _print_event(ctx: CommandContext, event: Event) -> None:
    out = ctx.out
    at = event.at.astimezone()
    time = (
        f"{at:%H:%M:%S}" if at.date() == datetime.now(UTC).astimezone().date() else f"{at:%Y-%m-%d %H:%M:%S}"
    )
    line = out.styled(f"{time}  ", "bright_black").append(event.kind.ljust(18), "cyan")
    where = f"@{event.version}" if event.version is not None else ""
    line.append(f"{event.run}{where}  ", "bold")
    what = event.data.get("address") or event.step or ""
    rest = {
        name: value
        for name, value in event.data.items()
        if name in ("error", "reason", "tag", "fork", "question_id")
    }
    line.append(plain(str(what))).append(f"  {brief(rest, 80)}" if rest else "", "bright_black")
    values = (event.cursor, event.at, event.run, event.kind, event.version, event.step, as_json(event.data))
    out.line(event_view(event), values, line)
