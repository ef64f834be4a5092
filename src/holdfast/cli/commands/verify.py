"""`holdfast verify`"""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.desk.records import report_record
from holdfast.desk.words import count, plain


@command("verify")
@click.argument("run", type=RUN, required=False)
def verify_command(call: Call, run: str | None) -> int:
    """Check every version, every hash, every large value, and the database itself; or one run.

    Exits with 6 if anything is damaged, and names it. What is not named can be read.
    """
    hf = call.hf
    if run is not None:
        report = hf.history(hf.find(run)).verify()
    else:
        with call.out.progress("verifying") as advance:
            report = hf.verify(advance)
    out = call.out
    looked = ", ".join(
        (count(report.runs, "run"), count(report.versions, "version"), count(report.artifacts, "large value"))
    )
    record = report_record(report)
    if report.ok:
        out.done(record, out.styled("sound", "green").append(f"  {looked}: every hash is right"))
        return exits.DONE
    if out.json:
        out.document(record)
    for problem in () if out.json else report.problems:
        out.line(record, (problem.run, problem.version, problem.what), out.styled(plain(str(problem)), "red"))
    out.say(
        f"{looked}: {count(len(report.problems), 'problem')}; restore the runs that are named from bundles"
    )
    return exits.CORRUPT
