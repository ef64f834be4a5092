"""`holdfast migrate`"""

from __future__ import annotations

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.plan import careful, go_ahead
from holdfast.opening import formats


@command("migrate")
@careful
def migrate_command(call: Call, *, yes: bool, dry_run: bool) -> int:
    """Bring a store to this Holdfast's format. Every command that opens an older store does so, too.

    An older Holdfast cannot open it afterwards.
    """
    where = call.place.shown
    before, newest = call.checked(lambda: formats(call.place.where))
    record = {"store": where, "format": before, "newest": newest}
    if before == newest:
        call.out.done(record, f"{where} has format {before}, the newest")
        return exits.DONE
    lines = [f"{where} goes from format {before} to {newest}; an older Holdfast cannot open it afterwards"]
    if not go_ahead(call, lines, record, yes=yes, dry_run=dry_run):
        return exits.DONE
    call.hf.stats()
    call.out.done({**record, "format": newest}, f"{where} has format {newest} now")
    return exits.DONE
