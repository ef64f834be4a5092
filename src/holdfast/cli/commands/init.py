"""`holdfast init`"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.files import whole
from holdfast.cli.plan import careful, go_ahead
from holdfast.cli.settings import DEFAULT, project
from holdfast.desk.words import dumps
from holdfast.errors import InvalidCall, StoreUnavailable
from holdfast.opening import file_of, formats, is_server


@command("init")
@click.argument("path", required=False)
@careful
def init_command(call: Call, path: str | None, *, yes: bool, dry_run: bool) -> int:
    """Make a store, and tell this project where it is.

    That is written into pyproject.toml, if there is one here that does not speak of Holdfast yet.

    PATH is ./holdfast.db, unless --store or HOLDFAST_STORE names another.
    """
    if path is not None:
        call.store = path
    where = call.place.shown
    if where == ":memory:":
        raise InvalidCall("a store at :memory: ends with the program that opens it: name a file or a server")
    there = _is_there(call)
    config = Path("pyproject.toml")
    writes = config.exists() and project() is None and "://" not in where and where.isprintable()
    record = {"store": where, "made": not there}
    lines = [f"{where} is there already" if there else f"a store is made at {where}"]
    if writes:
        lines.append(f"{config} gets a table [tool.holdfast] that names it")
    # Where nobody is asked, what was done says it all.
    silent = not call.out.can_ask or (there and not writes)
    if not go_ahead(call, lines, record, yes=yes or silent, dry_run=dry_run):
        return exits.DONE
    call.make()
    if writes:
        _append(config, f"[tool.holdfast]\nstore = {dumps(where)}\n")
    named = f"; {config} names it" if writes else ""
    hint = (
        "" if where == DEFAULT or writes or call.place.source != "--store" else f" (HOLDFAST_STORE={where})"
    )
    call.out.done(
        record,
        f"{where} is {'there' if there else 'made'}{named}: hf = holdfast.open({dumps(where)}), then "
        f"`holdfast runs`{hint}",
    )
    return exits.DONE


def _is_there(call: Call) -> bool:
    where = call.place.where
    if not is_server(where):
        return Path(file_of(where)).exists()
    try:
        formats(where)
    except StoreUnavailable as error:
        if not error.details.get("missing"):
            raise
        return False
    return True


def _append(config: Path, table: str) -> None:
    """Put a table at the end of a file, which is left as it is otherwise."""
    before = config.read_bytes()
    newline = b"\r\n" if b"\r\n" in before else b"\n"
    added = table.encode().replace(b"\n", newline)
    if before.strip():
        added = (b"" if before.endswith(b"\n") else newline) + newline + added
    with whole(config, overwrite=True) as file:
        file.write(before + added)
