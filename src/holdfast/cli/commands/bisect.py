"""`holdfast bisect`"""

from __future__ import annotations

import subprocess

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.desk.lookup import run_of, within
from holdfast.desk.records import name_of, version_record
from holdfast.desk.words import as_json, dumps
from holdfast.errors import InvalidCall
from holdfast.history.version import Version

#: The highest number that a signal has.
_SIGNALS = 64


@command("bisect")
@click.argument("run", type=RUN)
@click.argument("check", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGS]...")
@click.option("--good", metavar="REF", help="A version that is known to pass.")
@click.option(
    "--bad", metavar="REF", default="head", show_default=True, help="A version that is known to fail."
)
def bisect_command(call: Call, run: str, check: tuple[str, ...], *, good: str | None, bad: str) -> int:
    """Find the first version for which a command fails.

    CMD gets the state as JSON on its standard input, and says by its exit code whether that is good (0) or bad.

    \b
    holdfast bisect RUN -- jq -e '.plan.days < 7'
    """
    hf = call.hf
    log = hf.history(run_of(hf, run, "name versions with --good and --bad"))
    tried: list[int] = []

    def tell(version: Version, passed: bool) -> None:
        tried.append(version.number)
        call.out.say(f"  {name_of(version)}: {'good' if passed else 'bad'}")

    found = log.bisect(
        lambda state: _passes(check, dumps(as_json(state))),
        good=None if good is None else within(hf, log.id, good),
        bad=within(hf, log.id, bad),
        tried=tell,
    )
    if found is None:
        call.out.done({"version": None, "tried": len(tried)}, f"no version fails: {bad} passes")
        return exits.FINDINGS
    call.out.done(
        {**version_record(found), "tried": len(tried)},
        f"{name_of(found)} ({found.address or found.kind}) is the first that fails",
    )
    return exits.DONE


def _passes(check: tuple[str, ...], state: str) -> bool:
    try:
        done = subprocess.run(check, input=state, text=True, stdout=subprocess.DEVNULL, check=False)  # noqa: S603 - the user's command
    except OSError as error:
        raise InvalidCall(f"the command {check[0]!r} cannot be run: {error.strerror}") from None
    # A shell adds 128 to the signal that ended what it ran.
    signal = -done.returncode if done.returncode < 0 else done.returncode - 128
    if 0 < signal <= _SIGNALS:
        raise InvalidCall(
            f"the command {check[0]!r} was ended by signal {signal}, which says neither good nor bad"
        )
    if done.returncode in (126, 127):
        raise InvalidCall(
            f"the command {check[0]!r} ended with {done.returncode}, which says that it cannot be run"
        )
    return done.returncode == 0
