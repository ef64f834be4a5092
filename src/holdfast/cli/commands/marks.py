"""`holdfast tag` and `holdfast pin`"""

from __future__ import annotations

import click

from holdfast.cli.call import Call, command
from holdfast.cli.completing import REF
from holdfast.cli.output import Column
from holdfast.desk.records import name_of
from holdfast.desk.words import age
from holdfast.errors import NotFound
from holdfast.history.history import History
from holdfast.history.version import Version


@command("tag")
@click.argument("ref", type=REF)
@click.argument("name", required=False)
@click.option("-d", "--delete", is_flag=True, help="Take the name away.")
def tag_command(call: Call, ref: str, *, name: str | None, delete: bool) -> None:
    """Give a version a name, which is then RUN:NAME. Without NAME, list the tags of the run.

    A tagged version is never forgotten by a policy. If several have the same name, RUN:NAME is the newest of them.
    """
    version = call.hf.version(ref)
    log = call.hf.history(version.run)
    if name is None:
        if delete:
            raise click.UsageError("which tag? holdfast tag -d REF NAME")
        tagged = [(tag, each) for each in log.iter_versions() for tag in each.tags]
        columns = [
            Column("tag", lambda row: row[0], style="yellow", least=20),
            Column("version", lambda row: row[1].number, right=True),
            Column("step", lambda row: row[1].address or row[1].kind, least=12, spare=2),
            Column("when", lambda row: row[1].at, lambda row: age(row[1].at), spare=1),
        ]
        call.out.rows(
            tagged,
            columns,
            lambda row: {"tag": row[0], "version": row[1].number, "step": row[1].step, "at": row[1].at},
            empty="no tags",
        )
        return
    if delete:
        if _names_run(call, ref):
            version = _tagged(log, name)
        log.untag(version, name)
        what = f"{name_of(version)} is no longer {name}"
    else:
        log.tag(version, name)
        newest = log.at(name)
        what = f"{name_of(version)} is {version.run}:{name}"
        if newest.number != version.number:
            what = (
                f"{name_of(version)} is tagged {name}; {version.run}:{name} is {name_of(newest)}, the newest that is "
                f"(`holdfast tag -d {name_of(newest)} {name}` takes it away there)"
            )
    call.out.done({"run": version.run, "version": version.number, "tag": name, "removed": delete}, what)


def _names_run(call: Call, ref: str) -> bool:
    try:
        call.hf.find(ref)
    except NotFound:
        return False
    return True


def _tagged(log: History, name: str) -> Version:
    """The version that has a tag."""
    found = log.versions(tag=name, limit=2)
    if len(found) > 1:
        raise click.UsageError(
            f"several versions are {name}, the newest of them {name_of(found[0])}, {name_of(found[1])}: name one"
        )
    return found[0] if found else log.head


@command("pin")
@click.argument("ref", type=REF)
@click.option("-d", "--delete", is_flag=True, help="Let it be forgotten again.")
def pin_command(call: Call, ref: str, *, delete: bool) -> None:
    """Keep a version from being forgotten."""
    version = call.hf.version(ref)
    log = call.hf.history(version.run)
    if delete:
        log.unpin(version)
    else:
        log.pin(version)
    what = "is no longer pinned" if delete else "is pinned: no policy forgets it"
    call.out.done(
        {"run": version.run, "version": version.number, "pinned": not delete}, f"{name_of(version)} {what}"
    )
