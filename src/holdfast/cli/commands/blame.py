"""`holdfast blame`"""

from __future__ import annotations

import click

from holdfast.cli.context import REF, CommandContext, command
from holdfast.cli.output import Column
from holdfast.operator_view.records import blame_view
from holdfast.operator_view.text import age, as_json, brief, dumps


@command("blame")
@click.argument("ref", type=REF, metavar="RUN")
@click.argument("path", required=False, default="")
@click.option(
    "--depth", default=1, show_default=True, type=click.IntRange(0), help="Levels to list below PATH."
)
def blame_command(ctx: CommandContext, ref: str, path: str, *, depth: int) -> None:
    """Show which version last changed each part of the state, or of the part at PATH, with its step and time.

    RUN may name a version (RUN@12) to inspect the state there.
    """
    version = ctx.hf.version(ref)
    found = ctx.hf.history(version.run).blame_parts(path, at=version, depth=depth)
    columns = [
        Column("path", lambda part: part.path, lambda part: part.path or "(all)", style="bold", min_width=20),
        Column("version", lambda part: part.version.number, right=True),
        Column("step", lambda part: part.version.address or part.version.kind, min_width=12),
        Column("when", lambda part: part.version.at, lambda part: age(part.version.at), drop_order=2),
        Column(
            "value",
            lambda part: dumps(as_json(part.value)),
            lambda part: brief(part.value, 50),
            style="bright_black",
            min_width=12,
            drop_order=1,
        ),
    ]
    ctx.out.rows(found, columns, blame_view)
