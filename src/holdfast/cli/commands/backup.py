"""`holdfast backup`"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.context import CommandContext, command
from holdfast.operator_view.text import size


@command("backup")
@click.argument("file", type=click.Path())
@click.option(
    "--artifacts",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The folder for copies of artifacts, if the store keeps them in a folder.",
)
def backup_command(ctx: CommandContext, *, file: str, artifacts: Path | None) -> None:
    """Copy the store to a new file while it is in use. Never overwrites."""
    if file == "-":
        raise click.UsageError(
            "a backup is written to a file, not to standard output; for a file called -, write ./-"
        )
    ctx.hf.backup(file, artifacts=artifacts)
    written = Path(file).stat().st_size
    ctx.out.done({"file": file, "bytes": written}, f"backed up to {file}, {size(written)}")
