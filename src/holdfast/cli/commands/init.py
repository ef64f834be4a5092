"""`holdfast init` and `holdfast migrate`"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.context import CommandContext, command, confirm, confirm_options, open_output_file
from holdfast.cli.settings import DEFAULT_STORE, find_project_config
from holdfast.errors import InvalidCall, StoreUnavailable
from holdfast.operator_view.text import dumps
from holdfast.store_url import file_of, formats, is_server


@command("init")
@click.argument("path", required=False)
@confirm_options
def init_command(ctx: CommandContext, path: str | None, *, yes: bool, dry_run: bool) -> None:
    """Create a store and record its location in pyproject.toml.

    pyproject.toml is changed only if it is in this folder and has no [tool.holdfast] table yet. PATH defaults to
    ./holdfast.db, --store or HOLDFAST_STORE.
    """
    if path is not None:
        ctx.store = path
    where = ctx.location.public
    if where == ":memory:":
        raise InvalidCall("a store at :memory: is lost when the program ends: name a file or a server")
    exists = _store_exists(ctx)
    config = Path("pyproject.toml")
    writes = config.exists() and find_project_config() is None and "://" not in where and where.isprintable()
    record = {"store": where, "created": not exists}
    lines = [f"{where} exists already" if exists else f"create a store at {where}"]
    if writes:
        lines.append(f"add a table [tool.holdfast] with its location to {config}")
    # Without a question, the result says enough.
    silent = not ctx.out.can_ask or (exists and not writes)
    if not confirm(ctx, lines, record, yes=yes or silent, dry_run=dry_run):
        return
    ctx.create_store()
    if writes:
        _append(config, f"[tool.holdfast]\nstore = {dumps(where)}\n")
    recorded = f" and recorded it in {config}" if writes else ""
    hint = (
        ""
        if where == DEFAULT_STORE or writes or ctx.location.source != "--store"
        else f" (HOLDFAST_STORE={where})"
    )
    ctx.out.done(
        record,
        f"{'found' if exists else 'created'} {where}{recorded}: hf = holdfast.open({dumps(where)}), then "
        f"`holdfast runs`{hint}",
    )


def _store_exists(ctx: CommandContext) -> bool:
    where = ctx.location.where
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
    """Append a table to a file without changing the rest."""
    before = config.read_bytes()
    newline = b"\r\n" if b"\r\n" in before else b"\n"
    added = table.encode().replace(b"\n", newline)
    if before.strip():
        added = (b"" if before.endswith(b"\n") else newline) + newline + added
    with open_output_file(config, overwrite=True) as file:
        file.write(before + added)


@command("migrate")
@confirm_options
def migrate_command(ctx: CommandContext, *, yes: bool, dry_run: bool) -> None:
    """Upgrade a store to the current format, as every command that opens an older store does.

    Older releases of Holdfast cannot open it afterwards.
    """
    where = ctx.location.public
    before, newest = ctx.explain_missing_store(lambda: formats(ctx.location.where))
    record = {"store": where, "format": before, "newest": newest}
    if before == newest:
        ctx.out.done(record, f"{where} has format {before}, which is current")
        return
    lines = [
        f"upgrade {where} from format {before} to {newest}; older releases of Holdfast cannot open it afterwards"
    ]
    if not confirm(ctx, lines, record, yes=yes, dry_run=dry_run):
        return
    ctx.hf.stats()
    ctx.out.done({**record, "format": newest}, f"upgraded {where} to format {newest}")
