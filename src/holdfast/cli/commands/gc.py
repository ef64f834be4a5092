"""`holdfast gc`"""

from __future__ import annotations

import click

from holdfast.cli.context import CommandContext, command
from holdfast.operator_view.text import count, parse_duration, size


@command("gc")
@click.option("--compact", is_flag=True, help="Also return free space to the file system (slow).")
@click.option(
    "--grace",
    metavar="TIME",
    default="1h",
    show_default=True,
    help="Keep younger artifacts.",
)
def gc_command(ctx: CommandContext, *, compact: bool, grace: str) -> None:
    """Remove artifacts that no version refers to."""
    hf = ctx.hf
    before = hf.stats().file_bytes or 0
    with ctx.out.progress("collecting") as advance:
        advance(0, 1)
        found = hf.gc(grace=parse_duration(grace).total_seconds(), compact=compact)
    after = hf.stats().file_bytes or 0
    compacted = f"; the file shrank from {size(before)} to {size(after)}" if compact else ""
    ctx.out.done(
        {"artifacts": found.artifacts, "bytes": found.bytes, "file_bytes": after},
        f"removed {count(found.artifacts, 'artifact')}, {size(found.bytes)}{compacted}",
    )
