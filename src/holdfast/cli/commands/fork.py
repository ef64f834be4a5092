"""`holdfast fork`"""

from __future__ import annotations

import json
from typing import Any

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import REF
from holdfast.cli.outcome import ended, followed, refuse_changed
from holdfast.cli.plan import careful, go_ahead
from holdfast.desk.plan import check_free, told_fork
from holdfast.desk.records import name_of
from holdfast.desk.words import as_json, dumps, parsed
from holdfast.errors import InvalidCall, InvalidSnapshot
from holdfast.history.version import Version, edited
from holdfast.tree.portable import from_json


@command("fork")
@click.argument("ref", type=REF)
@click.argument("new", required=False, metavar="[NEW-RUN]")
@click.option(
    "--set", "settings", multiple=True, metavar="PATH=JSON", help="Change a part of the state. Repeatable."
)
@click.option("--edit", is_flag=True, help="Change the state as JSON in your editor.")
@click.option("--resume", is_flag=True, help="Go on with the new run at once (needs the workflow's code).")
@click.option(
    "--changed",
    type=click.Choice(["warn", "refuse", "allow"]),
    help="What to do if the workflow's code has changed since the run began.",
)
@click.option("--note", metavar="TEXT", help="Why; kept with its first version.")
@careful
def fork_command(
    call: Call,
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
    """Start another run from a version. Both go their own way.

    \b
    holdfast fork RUN@3 RUN-b --set plan.days=5 --set 'title="Kelp"'
    """
    hf = call.with_code() if resume else call.hf
    source = hf.version(ref)
    changes = dict(_setting(text) for text in settings)
    state = _edited(call, source) if edit else None
    if changes and state is None:
        # What cannot be set is told before anybody is asked.
        edited(source.state, changes)
    if new is not None:
        check_free(hf, new)
    if resume and not dry_run:
        preview = hf.preview(source.run)
        call.need_code(preview, "fork --resume")
        refuse_changed(preview, changed)
    lines = told_fork(source, new, changes, written=edit, resume=resume)
    record = {
        "source": name_of(source),
        "run": new,
        "set": {path: as_json(each) for path, each in changes.items()},
    }
    if not go_ahead(call, lines, record, yes=yes, dry_run=dry_run):
        return exits.DONE
    made = hf.fork(source, new, edit=changes or None, state=state, note=note)
    if resume:
        with followed(call, hf, made.id):
            resumed = hf.resume(made.id, changed=changed, raises=False)
        return ended(call, resumed)
    call.out.done({"run": made.id, "source": name_of(source)}, made.id)
    return exits.DONE


def _setting(text: str) -> tuple[str, Any]:
    path, sign, value = text.partition("=")
    if not sign or not path:
        raise InvalidCall(f"--set takes PATH=JSON, such as plan.days=5, not {text!r:.80}")
    return path, parsed(value, f"--set {path}")


def _edited(call: Call, source: Version) -> Any:
    text = dumps(as_json(source.state), indent=2)
    while True:
        after = click.edit(text, extension=".json", require_save=True)
        if after is None:
            raise InvalidCall("the state was not saved in the editor: nothing was forked")
        try:
            return from_json(json.loads(after))
        except (ValueError, RecursionError, InvalidSnapshot) as error:
            message = f"the edited state cannot be read: {error}"
        if not call.out.can_ask:
            raise InvalidCall(f"{message}; nothing was forked")
        call.out.say(message)
        if not click.confirm("Edit it again?", default=True, err=True):
            raise InvalidCall("nothing was forked")
        text = after
