"""`holdfast check`"""

from __future__ import annotations

import click
import msgspec

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command
from holdfast.cli.settings import find_app
from holdfast.errors import InvalidCall
from holdfast.operator_view.lookup import resolve_run
from holdfast.operator_view.text import plain


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
        out.document([msgspec.structs.asdict(each) for each in found])
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
