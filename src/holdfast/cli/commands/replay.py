"""`holdfast replay` and `holdfast check`"""

from __future__ import annotations

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command, confirm, confirm_options
from holdfast.cli.outcome import report_outcome, show_progress
from holdfast.cli.output import Column
from holdfast.cli.settings import find_app
from holdfast.errors import InvalidCall
from holdfast.operator_view.actions import require_workflow
from holdfast.operator_view.lookup import resolve_run
from holdfast.operator_view.records import difference_view
from holdfast.operator_view.text import as_json, brief, count, plain


@command("replay")
@click.argument("run", type=RUN)
@click.option(
    "--validate",
    is_flag=True,
    help="Run the recorded steps again and compare the results; does not change the run.",
)
@click.option("--republish", is_flag=True, help="Write the events of the recorded steps again, then resume.")
@confirm_options
def replay_command(
    ctx: CommandContext, run: str, *, validate: bool, republish: bool, yes: bool, dry_run: bool
) -> int:
    """Run the recorded steps of a run again to validate them, or republish their events.

    With --validate, exits with 1 if the result, the changes or the arguments of a step differ.
    """
    if validate == republish:
        raise click.UsageError("use --validate or --republish")
    hf = ctx.open_with_app()
    run = hf.get(run, prefix=True).id
    preview = hf.preview(run)
    require_workflow(preview, "there are no steps to replay")
    if not dry_run:
        ctx.require_code(preview, "replay")
    steps = count(len(preview.replayed), "recorded step")
    line = (
        f"run {steps} of {preview.workflow} again, side effects included; nothing is recorded"
        if validate
        else f"write an event step.replayed for {steps}, then resume the run"
    )
    record = {"run": run, "steps": list(preview.replayed)}
    if not confirm(ctx, [line], record, yes=yes, dry_run=dry_run):
        return exit_codes.DONE
    with show_progress(ctx, hf, run):
        resumed = hf.resume(run, mode="validate" if validate else "republish", raises=False)
    if republish:
        ctx.out.say(f"republished {steps}")
        return report_outcome(ctx, resumed)
    columns = [
        Column("step", lambda each: each.address or "(workflow)", style="bold"),
        Column("what", lambda each: each.what),
        Column(
            "recorded", lambda each: as_json(each.recorded), lambda each: brief(each.recorded), style="red"
        ),
        Column("now", lambda each: as_json(each.now), lambda each: brief(each.now), style="green"),
    ]
    ctx.out.rows(
        resumed.differences,
        columns,
        difference_view,
        empty=f"no difference in {steps}",
    )
    return exit_codes.FINDINGS if resumed.differences else exit_codes.DONE


@command("check")
@click.argument("module", metavar="[APP]", required=False)
@click.option("--run", type=RUN, help="Check only this run, in any status.")
def check_command(ctx: CommandContext, module: str | None, *, run: str | None) -> int:
    """Check, before a deploy, that APP can resume every unfinished run of the store.

    Replays each run against the code of APP (a module; --app and [tool.holdfast] app work too) without running a step
    or writing anything. Lists the runs whose recorded steps do not match the code, with the first step that differs,
    and the runs whose workflow is missing or raises. Exits with 1 if there are any.
    """
    ctx.app = module or ctx.app
    if find_app(ctx.app) is None:
        raise InvalidCall(
            "name the module with the workflows: `holdfast check MODULE`, or [tool.holdfast] app"
        )
    hf = ctx.open_with_app()
    found = hf.check(None if run is None else resolve_run(hf, run, "check checks whole runs"))
    out = ctx.out
    if out.json:
        out.document(found)
    for each in () if out.json else found:
        if out.is_for_people:
            line = (
                out.styled("! ", "yellow")
                .append(f"{plain(each.run)} ", "bold")
                .append(f"{each.kind}: ", "yellow")
            )
            out.text(line.append(plain(each.message)))
        else:
            out.fields((each.run, each.kind, each.workflow, each.address, each.called, each.message))
    if not found:
        out.say("every unfinished run matches the code" if run is None else f"run {run} matches the code")
    return exit_codes.FINDINGS if found else exit_codes.DONE
