"""`holdfast blame`"""

from __future__ import annotations

import click

from holdfast.cli.call import Call, command
from holdfast.cli.completing import REF
from holdfast.cli.output import Column
from holdfast.desk.records import blame_record
from holdfast.desk.words import age, as_json, brief, dumps


@command("blame")
@click.argument("ref", type=REF, metavar="RUN")
@click.argument("path", required=False, default="")
@click.option("--depth", default=1, show_default=True, type=click.IntRange(0), help="Levels below PATH.")
def blame_command(call: Call, ref: str, path: str, *, depth: int) -> None:
    """Which version last changed each part of the state, or of the part at PATH: its step and time.

    RUN may name a version (RUN@12): then it is the state as it was there.
    """
    version = call.hf.version(ref)
    found = call.hf.history(version.run).blame_parts(path, at=version, depth=depth)
    columns = [
        Column("path", lambda part: part.path, lambda part: part.path or "(all)", style="bold", least=20),
        Column("version", lambda part: part.version.number, right=True),
        Column("step", lambda part: part.version.address or part.version.kind, least=12),
        Column("when", lambda part: part.version.at, lambda part: age(part.version.at), spare=2),
        Column(
            "value",
            lambda part: dumps(as_json(part.value)),
            lambda part: brief(part.value, 50),
            style="bright_black",
            least=12,
            spare=1,
        ),
    ]
    call.out.rows(found, columns, blame_record)
