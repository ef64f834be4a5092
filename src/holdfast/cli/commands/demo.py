"""`holdfast demo`"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.call import Call, command


@command("demo")
@click.argument("path", required=False)
@click.option("--picture", metavar="FILE.svg", help="Also draw what is shown as a picture.")
def demo_command(call: Call, *, path: str | None, picture: str | None) -> None:
    """An agent is killed, goes on, makes a mistake and is put right.

    Takes a few seconds, needs no network, and leaves its store behind at PATH (./demo.db) for you to look at.
    """
    from holdfast.cli.story import Story, place

    out = call.out
    if out.json and picture is not None:
        raise click.UsageError("a picture is of what is shown: leave out --json")
    if picture is not None:
        out.record(width=96)
    told = Story(out, place(path)).tell()
    if picture is not None:
        out.save_picture(Path(picture), "holdfast demo")
    if out.json:
        out.document(told)
