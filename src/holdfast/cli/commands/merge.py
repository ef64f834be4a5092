"""`holdfast merge`"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command, confirm, confirm_options
from holdfast.errors import InvalidCall, MergeConflict, NotFound
from holdfast.operator_view.lookup import ancestor_numbers, resolve_run, version_in_run
from holdfast.operator_view.records import reference_to
from holdfast.operator_view.text import as_json, brief, count
from holdfast.tree.list_alignment import MISSING

#: Resolvers of a conflict: functions of the path and the common, our and their value.
_SIDES: dict[str, Callable[[tuple[Any, ...], Any, Any, Any], Any]] = {
    "head": lambda path, base, ours, theirs: theirs,
    "other": lambda path, base, ours, theirs: ours,
}


@command("merge")
@click.argument("run", type=RUN)
@click.argument("other", required=False, metavar="[REF]")
@click.option(
    "--timeline", type=click.IntRange(1), metavar="N", help="Merge the last version of this timeline."
)
@click.option(
    "--prefer", type=click.Choice(list(_SIDES)), help="Which value to keep where both changed the same path."
)
@click.option("--note", metavar="TEXT", help="A note for the new version.")
@confirm_options
def merge_command(
    ctx: CommandContext,
    run: str,
    other: str | None,
    *,
    timeline: int | None,
    prefer: str | None,
    note: str | None,
    yes: bool,
    dry_run: bool,
) -> int:
    """Merge the changes of another version or timeline into a run's head.

    If both changed the same path, it is a conflict (exit code 4), unless --prefer names the side to keep.
    """
    hf = ctx.hf
    log = hf.history(resolve_run(hf, run, "pass the other version as the second argument"))
    if (other is None) == (timeline is None):
        raise click.UsageError("name a version, or --timeline N")
    found = log.versions(timeline=timeline, limit=1) if other is None else [version_in_run(hf, log.id, other)]
    if not found:
        raise NotFound(
            f"run {log.id!r} has no timeline {timeline} with a version of its own: `holdfast log {log.id}` lists them",
            run=log.id,
            timeline=timeline,
        )
    theirs = found[0]
    head = log.head
    if theirs.number in ancestor_numbers(log, head):
        raise InvalidCall(
            f"nothing to merge: {reference_to(head)} already contains {reference_to(theirs)}",
            run=log.id,
            version=theirs.number,
        )
    how: dict[str, Any] = {"note": note, "resolve": None if prefer is None else _SIDES[prefer]}
    with _explain_conflict(reference_to(head), reference_to(theirs)):
        log.merge(theirs, **how, dry_run=True)
    lines = [
        f"merge {reference_to(theirs)} into {reference_to(head)}; they differ in "
        f"{count(len(hf.diff(head, theirs).changes), 'path')}"
    ]
    record = {"run": log.id, "head": head.number, "other": theirs.number}
    if not confirm(ctx, lines, record, yes=yes, dry_run=dry_run):
        return exit_codes.DONE
    with _explain_conflict(reference_to(head), reference_to(theirs)):
        made = log.merge(theirs, **how)
    ctx.out.done(
        {**record, "version": made.number}, f"{reference_to(made)} merges {head.number} and {theirs.number}"
    )
    return exit_codes.DONE


@contextmanager
def _explain_conflict(head: str, other: str) -> Iterator[None]:
    try:
        yield
    except MergeConflict as error:
        raise _conflict(error, head, other) from None


def _conflict(error: MergeConflict, head: str, other: str) -> MergeConflict:
    """Return a conflict that names the options of the command."""
    details = error.details
    more = len(details["paths"]) - 1
    where = (details["path"] or "the root") + (f" (and {count(more, 'other path')})" if more else "")
    return MergeConflict(
        f"both changed {where}: {head} {_has(details['theirs'])}, {other} {_has(details['ours'])}; use --prefer head "
        "or --prefer other",
        path=details["path"],
        paths=details["paths"],
        base=_json_or_none(details["base"]),
        head=_json_or_none(details["theirs"]),
        other=_json_or_none(details["ours"]),
    )


def _has(value: Any) -> str:
    return "deletes it" if value is MISSING else f"has {brief(value)}"


def _json_or_none(value: Any) -> Any:
    return None if value is MISSING else as_json(value)
