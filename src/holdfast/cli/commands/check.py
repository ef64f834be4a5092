"""`holdfast check`"""

from __future__ import annotations

import click
import msgspec

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.settings import find_app
from holdfast.desk.lookup import run_of
from holdfast.desk.words import plain
from holdfast.errors import InvalidCall


@command("check")
@click.argument("module", metavar="[APP]", required=False)
@click.option("--run", type=RUN, help="Check this run only, whatever its status.")
def check_command(call: Call, module: str | None, *, run: str | None) -> int:
    """Check, before a deploy, that APP can resume every unfinished run of the store.

    Replays each run against the code of APP (a module; --app and [tool.holdfast] app work too), without running a step
    and without writing anything. Lists the runs whose recorded steps do not fit the code, with the first that differs,
    and those whose workflow is missing or raises.

    Exits with 1 if there is one.
    """
    call.app = module or call.app
    if find_app(call.app) is None:
        raise InvalidCall(
            "name the module with the workflows: `holdfast check MODULE`, or [tool.holdfast] app"
        )
    hf = call.with_code()
    found = hf.check(None if run is None else run_of(hf, run, "a run is checked as a whole"))
    out = call.out
    if out.json:
        out.document([msgspec.structs.asdict(each) for each in found])
    for each in () if out.json else found:
        if out.for_people:
            line = (
                out.styled("! ", "yellow")
                .append(f"{plain(each.run)} ", "bold")
                .append(f"{each.kind}: ", "yellow")
            )
            out.text(line.append(plain(each.message)))
        else:
            out.fields((each.run, each.kind, each.workflow, each.address, each.called, each.message))
    if not found:
        out.say("every unfinished run fits the code" if run is None else f"run {run} fits the code")
    return exits.FINDINGS if found else exits.DONE
