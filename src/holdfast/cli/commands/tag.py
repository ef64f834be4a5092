"""`holdfast tag` and `holdfast pin`"""

from __future__ import annotations

import click

from holdfast.cli.context import REF, CommandContext, command
from holdfast.cli.output import Column
from holdfast.errors import NotFound
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.operator_view.records import reference_to
from holdfast.operator_view.text import age


@command("tag")
@click.argument("ref", type=REF)
@click.argument("name", required=False)
@click.option("-d", "--delete", is_flag=True, help="Remove the tag.")
def tag_command(ctx: CommandContext, ref: str, *, name: str | None, delete: bool) -> None:
    """Tag a version, or list the tags of a run if NAME is omitted. RUN:NAME refers to the tagged version.

    Tagged versions are never pruned. If several versions have the same tag, RUN:NAME is the newest of them.
    """
    version = ctx.hf.version(ref)
    log = ctx.hf.history(version.run)
    if name is None:
        if delete:
            raise click.UsageError("which tag? holdfast tag -d REF NAME")
        tagged = [(tag, each) for each in log.iter_versions() for tag in each.tags]
        columns = [
            Column("tag", lambda row: row[0], style="yellow", min_width=20),
            Column("version", lambda row: row[1].number, right=True),
            Column("step", lambda row: row[1].address or row[1].kind, min_width=12, drop_order=2),
            Column("when", lambda row: row[1].at, lambda row: age(row[1].at), drop_order=1),
        ]
        ctx.out.rows(
            tagged,
            columns,
            lambda row: {"tag": row[0], "version": row[1].number, "step": row[1].step, "at": row[1].at},
            empty="no tags",
        )
        return
    if delete:
        if _names_run(ctx, ref):
            version = _tagged(log, name)
        log.untag(version, name)
        what = f"removed tag {name} from {reference_to(version)}"
    else:
        log.tag(version, name)
        newest = log.at(name)
        what = f"tagged {reference_to(version)} as {version.run}:{name}"
        if newest.number != version.number:
            other = reference_to(newest)
            what = (
                f"{reference_to(version)} is tagged {name}; {version.run}:{name} is {other}, the newest with that tag "
                f"(`holdfast tag -d {other} {name}` removes it there)"
            )
    ctx.out.done({"run": version.run, "version": version.number, "tag": name, "removed": delete}, what)


def _names_run(ctx: CommandContext, ref: str) -> bool:
    try:
        ctx.hf.get(ref, prefix=True)
    except NotFound:
        return False
    return True


def _tagged(log: History, name: str) -> Version:
    """Return the version that has a tag."""
    found = log.versions(tag=name, limit=2)
    if len(found) > 1:
        several = ", ".join(map(reference_to, found))
        raise click.UsageError(f"several versions are tagged {name}, the newest are {several}: name one")
    return found[0] if found else log.head


@command("pin")
@click.argument("ref", type=REF)
@click.option("-d", "--delete", is_flag=True, help="Remove the protection.")
def pin_command(ctx: CommandContext, ref: str, *, delete: bool) -> None:
    """Protect a version from being pruned."""
    version = ctx.hf.version(ref)
    log = ctx.hf.history(version.run)
    if delete:
        log.unpin(version)
    else:
        log.pin(version)
    done = "unpinned" if delete else "pinned"
    ctx.out.done(
        {"run": version.run, "version": version.number, "pinned": not delete},
        f"{done} {reference_to(version)}",
    )
