"""`holdfast replay`"""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.outcome import ended, followed
from holdfast.cli.output import Column
from holdfast.cli.plan import careful, go_ahead
from holdfast.desk.plan import need_workflow
from holdfast.desk.words import as_json, brief, count


@command("replay")
@click.argument("run", type=RUN)
@click.option(
    "--validate", is_flag=True, help="Run the recorded steps again and compare; the run is not changed."
)
@click.option("--republish", is_flag=True, help="Write an event for each recorded step again, then resume.")
@careful
def replay_command(call: Call, run: str, *, validate: bool, republish: bool, yes: bool, dry_run: bool) -> int:
    """Run the recorded steps of a run again beside the record, or tell of them again.

    With --validate, exits with 1 if a step gave another result, changed the state otherwise, or was called otherwise.
    """
    if validate == republish:
        raise click.UsageError("say --validate or --republish")
    hf = call.with_code()
    run = hf.find(run)
    preview = hf.preview(run)
    need_workflow(preview, "there are no steps to replay")
    if not dry_run:
        call.need_code(preview, "replay")
    steps = count(len(preview.passed), "recorded step")
    line = (
        f"the recorded steps of {preview.workflow} ({len(preview.passed)}) really run again, with what they do to the "
        "world; nothing of it is kept"
        if validate
        else f"the journal gets an event step.replayed for {steps}, then the run is resumed"
    )
    record = {"run": run, "steps": list(preview.passed)}
    if not go_ahead(call, [line], record, yes=yes, dry_run=dry_run):
        return exits.DONE
    with followed(call, hf, run):
        resumed = hf.resume(run, mode="validate" if validate else "republish", raises=False)
    if republish:
        call.out.say(f"published {steps} again")
        return ended(call, resumed)
    columns = [
        Column("step", lambda each: each.address or "(workflow)", style="bold"),
        Column("what", lambda each: each.what),
        Column(
            "recorded", lambda each: as_json(each.recorded), lambda each: brief(each.recorded), style="red"
        ),
        Column("now", lambda each: as_json(each.now), lambda each: brief(each.now), style="green"),
    ]
    call.out.rows(
        resumed.differences,
        columns,
        lambda each: {
            "address": each.address,
            "what": each.what,
            "recorded": as_json(each.recorded),
            "now": as_json(each.now),
        },
        empty=f"{steps} gave what is recorded",
    )
    return exits.FINDINGS if resumed.differences else exits.DONE
