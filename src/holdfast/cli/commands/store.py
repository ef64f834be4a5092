"""`holdfast backup`, `holdfast verify`, `holdfast stats` and `holdfast doctor`"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, command
from holdfast.cli.settings import find_app, load_app
from holdfast.doctor import CheckResult, run_checks
from holdfast.errors import InvalidCall
from holdfast.operator_view.lookup import store_overview
from holdfast.operator_view.records import report_view
from holdfast.operator_view.text import count, plain, size


@command("backup")
@click.argument("file", type=click.Path())
@click.option(
    "--artifacts",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The folder for copies of artifacts, if the store keeps them in a folder.",
)
def backup_command(ctx: CommandContext, *, file: str, artifacts: Path | None) -> None:
    """Copy the store to a new file while it is in use. Never overwrites."""
    if file == "-":
        raise click.UsageError(
            "a backup is written to a file, not to standard output; for a file called -, write ./-"
        )
    ctx.hf.backup(file, artifacts=artifacts)
    written = Path(file).stat().st_size
    ctx.out.done({"file": file, "bytes": written}, f"backed up to {file}, {size(written)}")


@command("verify")
@click.argument("run", type=RUN, required=False)
def verify_command(ctx: CommandContext, run: str | None) -> int:
    """Verify every version, hash and artifact, and the database itself; or one run.

    Exits with 6 if anything is damaged, and lists it. Everything else can be read.
    """
    hf = ctx.hf
    if run is not None:
        report = hf.history(hf.get(run, prefix=True).id).verify()
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


@command("stats")
def stats_command(ctx: CommandContext) -> None:
    """Show what the store holds and how large it is."""
    stats = ctx.hf.stats()
    statuses, largest = store_overview(ctx.hf, 3)
    facts = {"store": ctx.location.public, **msgspec.structs.asdict(stats)}
    if ctx.out.json:
        ctx.out.document({**facts, "statuses": statuses})
        return
    facts.update({f"{status}_runs": number for status, number in statuses.items()})
    shown = {
        "runs": ", ".join(
            [
                f"{stats.runs:,}",
                *(f"{number:,} {status}" for status, number in sorted(statuses.items()) if number),
            ]
        ),
        "versions": f"{stats.versions:,}",
        "events": f"{stats.events:,}",
        "artifacts": f"{stats.artifacts:,}",
        "artifact_bytes": size(stats.artifact_bytes),
        "pack_bytes": size(stats.pack_bytes),
        "file_bytes": "" if stats.file_bytes is None else size(stats.file_bytes),
        "largest": ", ".join(f"{run.id} ({size(run.size)})" for run in largest),
        **{f"{status}_runs": "" for status in statuses},
    }
    ctx.out.facts(facts, shown)


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
        out.document(found)
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
