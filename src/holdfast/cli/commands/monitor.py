"""`holdfast monitor`"""

from __future__ import annotations

import click
import msgspec

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.plan import go_ahead
from holdfast.desk.words import count, plain, span

#: What each action would be.
_WOULD = {
    "restore": "it would go back to its last good version, and on from there",
    "freeze": "it would be frozen, and you would be asked",
    "hand over": "others would go on with it",
    "report": "that would be noted in its journal, as nobody has said what to do",
    "resume": "it would be gone on with here",
}


@command("monitor")
@click.argument("module", required=False, metavar="[MODULE[:HF]]")
@click.option(
    "--interval",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two looks.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Look once, act, tell what was found and done, and end when the runs that it went on with have.",
)
@click.option("--dry-run", is_flag=True, help="Only say what a look would do now.")
def monitor_command(call: Call, module: str | None, *, interval: float, once: bool, dry_run: bool) -> int:
    """Look after runs that are dead, silent, looping or too expensive, until a signal comes.

    What is done about them is what their workflow's `watch` says. Workers do this, too; of all that look, one acts.
    Runs that are to be resumed here need their code: MODULE, --app, or [tool.holdfast] app in pyproject.toml.
    """
    call.app = module or call.app
    monitor = call.with_code().monitor(interval=interval)
    if dry_run:
        planned = monitor.plan()
        lines = [
            plain(f"{alert.run} is {alert.symptom} ({alert.why}): {_WOULD[alert.action]}")
            for alert in planned
        ]
        record = {"runs": [msgspec.structs.asdict(alert) for alert in planned]}
        go_ahead(call, lines or ["there is nothing to be done"], record, yes=False, dry_run=True)
        return exits.DONE
    if once:
        found = monitor.look()
        monitor.wait()
        if call.out.json:
            call.out.document([msgspec.structs.asdict(alert) for alert in found])
        for alert in () if call.out.json else found:
            values = (alert.run, alert.symptom, alert.action, alert.why)
            call.out.line({}, values, f"{alert.run} is {alert.symptom}: {alert.action} ({alert.why})")
        call.out.say(f"{count(len(found), 'run')} to be looked after")
        return exits.FINDINGS if found else exits.DONE
    ready = f"looks after the store every {span(interval)}; Ctrl-C ends it"
    monitor.serve(ready=lambda: call.out.say(ready))
    call.out.done({"stopped": True}, "stopped")
    return exits.DONE
