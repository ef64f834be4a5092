"""`holdfast blame` and `holdfast bisect`"""

from __future__ import annotations

import subprocess

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import REF, RUN, CommandContext, command
from holdfast.cli.output import Column
from holdfast.errors import InvalidCall
from holdfast.history.version import Version
from holdfast.operator_view.lookup import resolve_run, version_in_run
from holdfast.operator_view.records import blame_view, reference_to, version_view
from holdfast.operator_view.text import age, as_json, brief, dumps


@command("blame")
@click.argument("ref", type=REF, metavar="RUN")
@click.argument("path", required=False, default="")
@click.option(
    "--depth", default=1, show_default=True, type=click.IntRange(0), help="Levels to list below PATH."
)
def blame_command(ctx: CommandContext, ref: str, path: str, *, depth: int) -> None:
    """Show which version last changed each part of the state, or of the part at PATH, with its step and time.

    RUN may name a version (RUN@12) to inspect the state there.
    """
    version = ctx.hf.version(ref)
    found = ctx.hf.history(version.run).blame_parts(path, at=version, depth=depth)
    columns = [
        Column("path", lambda part: part.path, lambda part: part.path or "(all)", style="bold", min_width=20),
        Column("version", lambda part: part.version.number, right=True),
        Column("step", lambda part: part.version.address or part.version.kind, min_width=12),
        Column("when", lambda part: part.version.at, lambda part: age(part.version.at), drop_order=2),
        Column(
            "value",
            lambda part: dumps(as_json(part.value)),
            lambda part: brief(part.value, 50),
            style="bright_black",
            min_width=12,
            drop_order=1,
        ),
    ]
    ctx.out.rows(found, columns, blame_view)


#: The highest signal number.
_MAX_SIGNAL = 64


@command("bisect")
@click.argument("run", type=RUN)
@click.argument("check", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGS]...")
@click.option("--good", metavar="REF", help="A version that passes.")
@click.option("--bad", metavar="REF", default="head", show_default=True, help="A version that fails.")
def bisect_command(
    ctx: CommandContext, run: str, check: tuple[str, ...], *, good: str | None, bad: str
) -> int:
    """Find the first version for which a command fails.

    CMD receives the state as JSON on standard input; exit code 0 means good, any other bad.

    \b
    holdfast bisect RUN -- jq -e '.plan.days < 7'
    """
    hf = ctx.hf
    log = hf.history(resolve_run(hf, run, "name versions with --good and --bad"))
    tried: list[int] = []

    def print_check(version: Version, passed: bool) -> None:
        tried.append(version.number)
        ctx.out.say(f"  {reference_to(version)}: {'good' if passed else 'bad'}")

    found = log.bisect(
        lambda state: _passes(check, dumps(as_json(state))),
        good=None if good is None else version_in_run(hf, log.id, good),
        bad=version_in_run(hf, log.id, bad),
        tried=print_check,
    )
    if found is None:
        ctx.out.done({"version": None, "tried": len(tried)}, f"no version fails: {bad} passes")
        return exit_codes.FINDINGS
    ctx.out.done(
        {**version_view(found), "tried": len(tried)},
        f"{reference_to(found)} ({found.address or found.kind}) is the first version that fails",
    )
    return exit_codes.DONE


def _passes(check: tuple[str, ...], state: str) -> bool:
    try:
        done = subprocess.run(check, input=state, text=True, stdout=subprocess.DEVNULL, check=False)  # noqa: S603 - the user's command
    except OSError as error:
        raise InvalidCall(f"the command {check[0]!r} cannot be run: {error.strerror}") from None
    # A shell adds 128 to the signal that ended its command.
    signal = -done.returncode if done.returncode < 0 else done.returncode - 128
    if 0 < signal <= _MAX_SIGNAL:
        raise InvalidCall(
            f"the command {check[0]!r} was ended by signal {signal}, which means neither good nor bad"
        )
    if done.returncode in (126, 127):
        raise InvalidCall(
            f"the command {check[0]!r} exited with {done.returncode}, which means that it cannot be run"
        )
    return done.returncode == 0
