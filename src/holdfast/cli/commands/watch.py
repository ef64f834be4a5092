"""`holdfast watch`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.call import Call, command
from holdfast.cli.commands.log import picture
from holdfast.cli.completing import RUN
from holdfast.cli.outcome import code_for, ended, interrupted, rests
from holdfast.desk.records import event_record
from holdfast.desk.words import age, as_json
from holdfast.runtime.run import Run

if TYPE_CHECKING:
    from rich.console import Group

_EVERY = 0.3


@command("watch")
@click.argument("run", type=RUN)
def watch_command(call: Call, run: str) -> int:
    """See a run at work until it ends, or waits for somebody. In a pipe: its events, a line each."""
    found = call.hf.get(call.hf.find(run))
    if call.out.for_people:
        if not rests(call.hf, found):
            _live(call, found)
        for line in picture(call.out, found.history(), found.history().versions(limit=20)):
            call.out.text(line)
    else:
        _stream(call, found)
    if interrupted(found):
        call.out.say(f"interrupted  {found.id}: nobody goes on with it; `holdfast resume {found.id}` does")
    elif not call.out.json:
        return ended(call, found)
    return code_for(call.hf, found)


def _live(call: Call, run: Run) -> None:
    from rich.live import Live

    with Live(console=call.out.console, auto_refresh=False, transient=True) as live:
        while not rests(call.hf, run):
            live.update(_view(call, run), refresh=True)
            time.sleep(_EVERY)


def _stream(call: Call, run: Run) -> None:
    with call.hf.subscribe(run_id=run.id, after=0) as subscription:
        while True:
            resting = rests(call.hf, run)
            for event in subscription.wait(_EVERY):
                values = (event.cursor, event.at, event.kind, event.version, event.step, as_json(event.data))
                call.out.line(event_record(event), values, event.kind)
            if resting:
                return


def _view(call: Call, run: Run) -> Group:
    from rich.console import Group

    out = call.out
    head = run.head
    title = out.status(run.status).append(f"  {run.id}@{head.number}  {age(head.at)}")
    return Group(
        title, *picture(out, run.history(), run.history().versions(limit=max(5, out.console.height - 4)))
    )
