"""`holdfast fork`"""

from __future__ import annotations

import json
from typing import Any

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import REF, CommandContext, command, confirm, confirm_options
from holdfast.cli.outcome import refuse_changed_code, report_outcome, show_progress
from holdfast.errors import InvalidCall, InvalidSnapshot
from holdfast.history.branching import apply_edit
from holdfast.history.version import Version
from holdfast.operator_view.actions import check_run_id_is_free, describe_fork
from holdfast.operator_view.records import reference_to
from holdfast.operator_view.text import as_json, dumps, parse_json
from holdfast.tree.portable import from_json


@command("fork")
@click.argument("ref", type=REF)
@click.argument("new", required=False, metavar="[NEW-RUN]")
@click.option(
    "--set", "settings", multiple=True, metavar="PATH=JSON", help="Change a part of the state. Repeatable."
)
@click.option("--edit", is_flag=True, help="Change the state as JSON in your editor.")
@click.option("--resume", is_flag=True, help="Resume the new run at once (needs the workflow's code).")
@click.option(
    "--changed",
    type=click.Choice(["warn", "refuse", "allow"]),
    help="What to do if the workflow's code has changed since the run started.",
)
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
        refuse_changed_code(preview, changed)
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
