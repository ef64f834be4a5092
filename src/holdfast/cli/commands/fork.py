"""`holdfast fork` and `holdfast merge`"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import REF, RUN, CommandContext, changed_option, command, confirm, confirm_options
from holdfast.cli.outcome import CHANGED_ADVICE, report_outcome, show_progress
from holdfast.errors import InvalidCall, InvalidSnapshot, MergeConflict
from holdfast.history.branching import apply_edit
from holdfast.history.version import Version
from holdfast.operator_view.actions import (
    MERGE_SIDES,
    check_run_id_is_free,
    describe_fork,
    find_merge,
    refuse_changed_code,
)
from holdfast.operator_view.lookup import resolve_run, version_in_run
from holdfast.operator_view.records import reference_to
from holdfast.operator_view.text import as_json, brief, count, dumps, parse_json
from holdfast.tree.list_alignment import MISSING
from holdfast.tree.portable import from_json


@command("fork")
@click.argument("ref", type=REF)
@click.argument("new", required=False, metavar="[NEW-RUN]")
@click.option(
    "--set", "settings", multiple=True, metavar="PATH=JSON", help="Change a part of the state. Repeatable."
)
@click.option("--edit", is_flag=True, help="Change the state as JSON in your editor.")
@click.option("--resume", is_flag=True, help="Resume the new run at once (needs the workflow's code).")
@changed_option
@click.option("--note", metavar="TEXT", help="A note for its first version.")
@confirm_options
def fork_command(
    ctx: CommandContext,
    ref: str,
    new: str | None,
    *,
    settings: tuple[str, ...],
    edit: bool,
    resume: bool,
    changed: str | None,
    note: str | None,
    yes: bool,
    dry_run: bool,
) -> int:
    """Start a new run from a version. Both runs are independent.

    \b
    holdfast fork RUN@3 RUN-b --set plan.days=5 --set 'title="Kelp"'
    """
    hf = ctx.open_with_app() if resume else ctx.hf
    source = hf.version(ref)
    changes = dict(_parse_setting(text) for text in settings)
    state = _edit_state(ctx, source) if edit else None
    if changes and state is None:
        # Fail before asking for confirmation.
        apply_edit(source.state, changes)
    if new is not None:
        check_run_id_is_free(hf, new)
    if resume and not dry_run:
        preview = hf.preview(source.run)
        ctx.require_code(preview, "fork --resume")
        refuse_changed_code(preview, changed, CHANGED_ADVICE)
    lines = describe_fork(source, new, changes, written=edit, resume=resume)
    record = {
        "source": reference_to(source),
        "run": new,
        "set": {path: as_json(each) for path, each in changes.items()},
    }
    if not confirm(ctx, lines, record, yes=yes, dry_run=dry_run):
        return exit_codes.DONE
    made = hf.fork(source, new, edit=changes or None, state=state, note=note)
    if resume:
        with show_progress(ctx, hf, made.id):
            resumed = hf.resume(made.id, changed=changed, raises=False)
        return report_outcome(ctx, resumed)
    ctx.out.done({"run": made.id, "source": reference_to(source)}, made.id)
    return exit_codes.DONE


def _parse_setting(text: str) -> tuple[str, Any]:
    path, sign, value = text.partition("=")
    if not sign or not path:
        raise InvalidCall(f"--set takes PATH=JSON, such as plan.days=5, not {text!r:.80}")
    return path, parse_json(value, f"--set {path}")


def _edit_state(ctx: CommandContext, source: Version) -> Any:
    text = dumps(as_json(source.state), indent=2)
    while True:
        after = click.edit(text, extension=".json", require_save=True)
        if after is None:
            raise InvalidCall("the state was not saved in the editor; nothing was forked")
        try:
            return from_json(json.loads(after))
        except (ValueError, RecursionError, InvalidSnapshot) as error:
            message = f"the edited state cannot be read: {error}"
        if not ctx.out.can_ask:
            raise InvalidCall(f"{message}; nothing was forked")
        ctx.out.say(message)
        if not click.confirm("Edit it again?", default=True, err=True):
            raise InvalidCall("nothing was forked")
        text = after


@command("merge")
@click.argument("run", type=RUN)
@click.argument("other", required=False, metavar="[REF]")
@click.option(
    "--timeline", type=click.IntRange(1), metavar="N", help="Merge the last version of this timeline."
)
@click.option(
    "--prefer",
    type=click.Choice(list(MERGE_SIDES)),
    help="Which value to keep where both changed the same path.",
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
) -> None:
    """Merge the changes of another version or timeline into a run's head.

    If both changed the same path, it is a conflict (exit code 4), unless --prefer names the side to keep.
    """
    hf = ctx.hf
    log = hf.history(resolve_run(hf, run, "pass the other version as the second argument"))
    if (other is None) == (timeline is None):
        raise click.UsageError("name a version, or --timeline N")
    head = log.head
    theirs = find_merge(log, head, None if other is None else version_in_run(hf, log.id, other), timeline)
    how: dict[str, Any] = {"note": note, "resolve": None if prefer is None else MERGE_SIDES[prefer]}
    with _explain_conflict(reference_to(head), reference_to(theirs)):
        log.merge(theirs, **how, dry_run=True)
    lines = [
        f"merge {reference_to(theirs)} into {reference_to(head)}; they differ in "
        f"{count(len(hf.diff(head, theirs).changes), 'path')}"
    ]
    record = {"run": log.id, "head": head.number, "other": theirs.number}
    if not confirm(ctx, lines, record, yes=yes, dry_run=dry_run):
        return
    with _explain_conflict(reference_to(head), reference_to(theirs)):
        made = log.merge(theirs, **how)
    ctx.out.done(
        {**record, "version": made.number}, f"{reference_to(made)} merges {head.number} and {theirs.number}"
    )


@contextmanager
def _explain_conflict(head: str, other: str) -> Iterator[None]:
    """Add the options of the command to a conflict."""
    try:
        yield
    except MergeConflict as error:
        details = error.details
        more = len(details["paths"]) - 1
        where = (details["path"] or "the root") + (f" (and {count(more, 'other path')})" if more else "")
        raise MergeConflict(
            f"both changed {where}: {head} {_has(details['theirs'])}, {other} {_has(details['ours'])}; use --prefer "
            "head or --prefer other",
            path=details["path"],
            paths=details["paths"],
            base=_json_or_none(details["base"]),
            head=_json_or_none(details["theirs"]),
            other=_json_or_none(details["ours"]),
        ) from None


def _has(value: Any) -> str:
    return "deletes it" if value is MISSING else f"has {brief(value)}"


def _json_or_none(value: Any) -> Any:
    return None if value is MISSING else as_json(value)
