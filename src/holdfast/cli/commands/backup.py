"""`holdfast backup`"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.call import Call, command
from holdfast.desk.words import size


@command("backup")
@click.argument("file", type=click.Path())
@click.option(
    "--artifacts",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where copies of large values go, if the store keeps them in a folder.",
)
def backup_command(call: Call, *, file: str, artifacts: Path | None) -> None:
    """Copy the store, while it is in use, to a new file, FILE, that needs no other. Never overwrites."""
    if file == "-":
        raise click.UsageError(
            "a backup goes into a file, not to standard output: name one; for a file called -, say ./-"
        )
    call.hf.backup(file, artifacts=artifacts)
    written = Path(file).stat().st_size
    call.out.done({"file": file, "bytes": written}, f"{file} holds the store as it is now, {size(written)}")
