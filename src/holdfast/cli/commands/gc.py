"""`holdfast gc`"""

from __future__ import annotations

import click

from holdfast.cli.call import Call, command
from holdfast.desk.words import count, length, size


@command("gc")
@click.option("--compact", is_flag=True, help="Also give free space back to the system; takes a while.")
@click.option("--grace", metavar="TIME", default="1h", show_default=True, help="Leave alone what is younger.")
def gc_command(call: Call, *, compact: bool, grace: str) -> None:
    """Remove large values that no version holds any more."""
    hf = call.hf
    before = hf.stats().file_bytes or 0
    with call.out.progress("collecting") as advance:
        advance(0, 1)
        found = hf.gc(grace=length(grace).total_seconds(), compact=compact)
    after = hf.stats().file_bytes or 0
    given = f"; the file went from {size(before)} to {size(after)}" if compact else ""
    call.out.done(
        {"artifacts": found.artifacts, "bytes": found.bytes, "file_bytes": after},
        f"{count(found.artifacts, 'large value')} removed, {size(found.bytes)}{given}",
    )
