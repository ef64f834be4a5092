"""`holdfast merge`"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.plan import careful, go_ahead
from holdfast.desk.lookup import behind, run_of, within
from holdfast.desk.records import name_of
from holdfast.desk.words import as_json, brief, count
from holdfast.errors import InvalidCall, MergeConflict, NotFound
from holdfast.tree.edits import MISSING

#: Which of the two values stays: the path, the common one, ours, theirs.
_SIDES: dict[str, Callable[[tuple[Any, ...], Any, Any, Any], Any]] = {
    "head": lambda path, base, ours, theirs: theirs,
    "other": lambda path, base, ours, theirs: ours,
}


@command("merge")
@click.argument("run", type=RUN)
@click.argument("other", required=False, metavar="[REF]")
@click.option("--timeline", type=click.IntRange(1), metavar="N", help="The last version of this timeline.")
@click.option(
    "--prefer", type=click.Choice(list(_SIDES)), help="Whose value stays where both changed the same place."
)
@click.option("--note", metavar="TEXT", help="Kept with the new version.")
@careful
def merge_command(
    call: Call,
    run: str,
    other: str | None,
    *,
    timeline: int | None,
    prefer: str | None,
    note: str | None,
    yes: bool,
    dry_run: bool,
) -> int:
    """Bring what another version or timeline of a run changed into its head.

    What changed in one of them only is taken; where both changed the same place, it is a conflict (exit code 4), unless
    --prefer says which one stays.
    """
    hf = call.hf
    log = hf.history(run_of(hf, run, "name the other version after it"))
    if (other is None) == (timeline is None):
        raise click.UsageError("name a version, or --timeline N")
    found = log.versions(timeline=timeline, limit=1) if other is None else [within(hf, log.id, other)]
    if not found:
        raise NotFound(
            f"run {log.id!r} has no timeline {timeline} with a version of its own: `holdfast log {log.id}` shows them",
            run=log.id,
            timeline=timeline,
        )
    theirs = found[0]
    head = log.head
    if theirs.number in behind(log, head):
        raise InvalidCall(
            f"nothing to merge: {name_of(head)} comes from {name_of(theirs)} already",
            run=log.id,
            version=theirs.number,
        )
    how: dict[str, Any] = {"note": note, "resolve": None if prefer is None else _SIDES[prefer]}
    with _told_here(name_of(head), name_of(theirs)):
        log.merge(theirs, **how, dry_run=True)
    lines = [
        f"{name_of(theirs)} is merged into {name_of(head)}, which differ in "
        f"{count(len(hf.diff(head, theirs).changes), 'place')}"
    ]
    record = {"run": log.id, "head": head.number, "other": theirs.number}
    if not go_ahead(call, lines, record, yes=yes, dry_run=dry_run):
        return exits.DONE
    with _told_here(name_of(head), name_of(theirs)):
        made = log.merge(theirs, **how)
    call.out.done(
        {**record, "version": made.number}, f"{name_of(made)} joins {head.number} and {theirs.number}"
    )
    return exits.DONE


@contextmanager
def _told_here(head: str, other: str) -> Iterator[None]:
    try:
        yield
    except MergeConflict as error:
        raise _conflict(error, head, other) from None


def _conflict(error: MergeConflict, head: str, other: str) -> MergeConflict:
    """A conflict in the words of the command line."""
    details = error.details
    more = len(details["paths"]) - 1
    place = (details["path"] or "the root") + (f" (and {count(more, 'other place')})" if more else "")
    return MergeConflict(
        f"both changed {place}: {head} {_has(details['theirs'])}, {other} {_has(details['ours'])}; say --prefer head "
        "or --prefer other",
        path=details["path"],
        paths=details["paths"],
        base=_kept(details["base"]),
        head=_kept(details["theirs"]),
        other=_kept(details["ours"]),
    )


def _has(value: Any) -> str:
    return "deletes it" if value is MISSING else f"has {brief(value)}"


def _kept(value: Any) -> Any:
    return None if value is MISSING else as_json(value)
