"""`holdfast compare`"""

from __future__ import annotations

import click

from holdfast.cli.commands.diff import diff_lines
from holdfast.cli.context import REF, CommandContext, command
from holdfast.cli.output import Column
from holdfast.history.compare import StepPair
from holdfast.operator_view.lookup import resolve_version
from holdfast.operator_view.records import change_view, changes_of, reference_to, step_pair_view


@command("compare")
@click.argument("a", type=REF)
@click.argument("b", type=REF)
def compare_command(ctx: CommandContext, a: str, b: str) -> None:
    """Compare two runs or timelines step by step, and their states."""
    one = ctx.hf.version(a)
    found = ctx.hf.compare(one, resolve_version(ctx.hf, b, one))
    out = ctx.out
    if out.json:
        changes = [change_view(*each) for each in changes_of(found.diff)]
        steps = [step_pair_view(pair) for pair in found.steps]
        out.document(
            {
                "a": reference_to(found.left),
                "b": reference_to(found.right),
                "steps": steps,
                "changes": changes,
            }
        )
        return
    columns = [
        Column("step", _name, style="bold", min_width=12),
        Column(
            reference_to(found.left), lambda pair: pair.left and pair.left.number, right=True, min_width=8
        ),
        Column("", lambda pair: "same" if pair.same else "differs", lambda pair: "=" if pair.same else "≠"),
        Column(
            reference_to(found.right), lambda pair: pair.right and pair.right.number, right=True, min_width=8
        ),
    ]
    if any(map(_code, found.steps)):
        columns.append(Column("code", _code, min_width=8))
    out.rows(found.steps, columns, step_pair_view)
    if out.is_for_people:
        for place, change in enumerate(diff_lines(found.diff)):
            if not place and found.steps:
                out.text("")
            out.text(change.line(out))
        if not found.steps and not found.diff:
            out.text("no difference")


def _code(pair: StepPair) -> str:
    """Return the code that ran, where it differs or was an override."""
    if pair.same_code is False:
        return f"{pair.left_code} → {pair.right_code}"
    ran = pair.left_code or pair.right_code
    return str(ran) if ran is not None and ran.overridden else ""


def _name(pair: StepPair) -> str:
    """Return the address of a step, or the kind of a version."""
    version = pair.left or pair.right
    assert version is not None
    return version.address or f"({version.kind})"
