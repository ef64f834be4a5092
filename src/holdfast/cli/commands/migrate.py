"""`holdfast migrate`"""

from __future__ import annotations

from holdfast.cli import exit_codes
from holdfast.cli.context import CommandContext, command, confirm, confirm_options
from holdfast.store_url import formats


@command("migrate")
@confirm_options
def migrate_command(ctx: CommandContext, *, yes: bool, dry_run: bool) -> int:
    """Upgrade a store to the current format, as every command that opens an older store does.

    Older releases of Holdfast cannot open it afterwards.
    """
    where = ctx.location.public
    before, newest = ctx.explain_missing_store(lambda: formats(ctx.location.where))
    record = {"store": where, "format": before, "newest": newest}
    if before == newest:
        ctx.out.done(record, f"{where} has format {before}, which is current")
        return exit_codes.DONE
    lines = [
        f"upgrade {where} from format {before} to {newest}; older releases of Holdfast cannot open it afterwards"
    ]
    if not confirm(ctx, lines, record, yes=yes, dry_run=dry_run):
        return exit_codes.DONE
    ctx.hf.stats()
    ctx.out.done({**record, "format": newest}, f"upgraded {where} to format {newest}")
    return exit_codes.DONE
