"""`holdfast verify`"""

from __future__ import annotations

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command
from holdfast.operator_view.records import report_view
from holdfast.operator_view.text import count, plain


@command("verify")
@click.argument("run", type=RUN, required=False)
def verify_command(ctx: CommandContext, run: str | None) -> int:
    """Check every version, hash and artifact, and the database itself; or one run.

    Exits with 6 if anything is damaged, and lists it. Everything else can be read.
    """
    hf = ctx.hf
    if run is not None:
        report = hf.history(hf.get(run).id).verify()
    else:
        with ctx.out.progress("verifying") as advance:
            report = hf.verify(advance)
    out = ctx.out
    checked = ", ".join(
        (count(report.runs, "run"), count(report.versions, "version"), count(report.artifacts, "artifact"))
    )
    record = report_view(report)
    if report.ok:
        out.done(record, out.styled("ok", "green").append(f"  {checked}: every hash matches"))
        return exit_codes.DONE
    if out.json:
        out.document(record)
    for problem in () if out.json else report.problems:
        out.line(record, (problem.run, problem.version, problem.what), out.styled(plain(str(problem)), "red"))
    out.say(f"{checked}: {count(len(report.problems), 'problem')}; import the damaged runs from bundles")
    return exit_codes.CORRUPT
