"""`holdfast compare`"""

from __future__ import annotations

import click

from holdfast.cli.call import Call, command
from holdfast.cli.commands.diff import shown
from holdfast.cli.completing import REF
from holdfast.cli.output import Column
from holdfast.desk.lookup import version_of
from holdfast.desk.records import change_record, changes_of, name_of, pair_record
from holdfast.history.compare import StepPair


@command("compare")
@click.argument("a", type=REF)
@click.argument("b", type=REF)
def compare_command(call: Call, a: str, b: str) -> None:
    """Two runs or timelines, step by step, and how their states differ."""
    one = call.hf.version(a)
    found = call.hf.compare(one, version_of(call.hf, b, one))
    out = call.out
    if out.json:
        changes = [change_record(*each) for each in changes_of(found.diff)]
        steps = [pair_record(pair) for pair in found.steps]
        out.document(
            {"a": name_of(found.left), "b": name_of(found.right), "steps": steps, "changes": changes}
        )
        return
    columns = [
        Column("step", _name, style="bold", least=12),
        Column(name_of(found.left), lambda pair: pair.left and pair.left.number, right=True, least=8),
        Column("", lambda pair: "same" if pair.same else "differs", lambda pair: "=" if pair.same else "≠"),
        Column(name_of(found.right), lambda pair: pair.right and pair.right.number, right=True, least=8),
    ]
    if any(map(_code, found.steps)):
        columns.append(Column("code", _code, least=8))
    out.rows(found.steps, columns, pair_record)
    if out.for_people:
        for place, change in enumerate(shown(found.diff)):
            if not place and found.steps:
                out.text("")
            out.text(change.line(out))
        if not found.steps and not found.diff:
            out.text("no difference")


def _code(pair: StepPair) -> str:
    """What ran, where it was not the same or took the place of the step's own code."""
    if pair.same_code is False:
        return f"{pair.left_code} → {pair.right_code}"
    ran = pair.left_code or pair.right_code
    return str(ran) if ran is not None and ran.overridden else ""


def _name(pair: StepPair) -> str:
    """Where in the run the step is, or what kind of version it is."""
    version = pair.left or pair.right
    assert version is not None
    return version.address or f"({version.kind})"
