"""`holdfast doctor`"""

from __future__ import annotations

import msgspec

from holdfast.cli import exit_codes
from holdfast.cli.context import CommandContext, command
from holdfast.cli.settings import find_app, load_app
from holdfast.doctor import CheckResult, run_checks
from holdfast.errors import InvalidCall
from holdfast.operator_view.text import plain


@command("doctor")
def doctor_command(ctx: CommandContext) -> int:
    """Look for problems with the store and this installation: interrupted runs, space, open questions, SQLite.

    Exits with 1 if it finds one. `holdfast verify` checks the data itself.
    """
    found = [
        CheckResult("store", True, f"{ctx.location.public}, named by {ctx.location.source}"),
        *run_checks(ctx.hf, ctx.location.where),
        _app(ctx),
    ]
    out = ctx.out
    if out.json:
        out.document([msgspec.structs.asdict(each) for each in found])
    for each in () if out.json else found:
        line = out.styled("✓ " if each.ok else "! ", "green" if each.ok else "yellow")
        line.append(f"{each.check:11} ", "bold").append(plain(each.what))
        if each.advice:
            line.append(f"\n  {'':11} → {plain(each.advice)}", "cyan")
        if out.is_for_people:
            out.text(line)
        else:
            out.fields(("ok" if each.ok else "warning", each.check, each.what, each.advice))
    return exit_codes.DONE if all(each.ok for each in found) else exit_codes.FINDINGS


def _app(ctx: CommandContext) -> CheckResult:
    name = find_app(ctx.app)
    if name is None:
        return CheckResult(
            "app", True, "none is named", "resume and rollback need --app, or [tool.holdfast] app"
        )
    try:
        engine = load_app(name)
    except InvalidCall as error:
        return CheckResult("app", False, str(error), "fix the module, or name another")
    if engine is not None:
        engine.close()
    return CheckResult("app", True, f"{name} can be imported")
