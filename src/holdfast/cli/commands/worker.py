"""`holdfast worker` and `holdfast monitor`"""

from __future__ import annotations

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import CommandContext, command, confirm
from holdfast.errors import InvalidCall
from holdfast.operator_view.text import count, plain, span
from holdfast.workflow.definition import workflows

_STOPPING = {1: "stopping after the current steps (repeat to stop at once)", 2: "stopped at once"}


@command("worker")
@click.argument("module", required=False, metavar="[MODULE[:HF]]")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    default=["default"],
    show_default="default",
    help="A queue to serve. Repeatable.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Execute at most N runs at once.",
)
def worker_command(
    ctx: CommandContext, module: str | None, *, queues: tuple[str, ...], concurrency: int
) -> None:
    """Execute the runs of queues until interrupted.

    MODULE is the module with the workflows' code; --app and [tool.holdfast] app in pyproject.toml work, too. SIGTERM
    and Ctrl-C let the current steps end and return unfinished runs to the queue; a second one stops at once.
    """
    ctx.app = module or ctx.app
    hf = ctx.open_with_app()
    known = workflows()
    if not known:
        raise InvalidCall(
            "a worker needs the code of workflows: name their module, as in holdfast worker flows, or in "
            'pyproject.toml: [tool.holdfast] app = "flows"'
        )
    worker = hf.worker(queues=queues, concurrency=concurrency)
    waiting = [f"{name} ({count(hf.queue(name).runs.get('queued', 0), 'run')} queued)" for name in queues]
    ready = plain(
        f"serving {', '.join(waiting)}: {count(len(known), 'workflow')}, {count(concurrency, 'run')} at once; "
        "Ctrl-C stops it"
    )
    # Printed when it is ready: an earlier signal would end the process at once.
    worker.serve(lambda number: ctx.out.say(_STOPPING[min(number, 2)]), lambda: ctx.out.say(ready))
    ctx.out.done(
        {"executed": worker.done, "queues": list(queues)}, f"stopped; {count(worker.done, 'execution')}"
    )


#: Descriptions of actions for `--dry-run`.
_ACTIONS = {
    "recover": "it would be rolled back to its last good version and resumed",
    "stall": "it would be stalled, with a question in the inbox",
    "hand over": "it would be left to a process that has its code",
    "report": "an event would be written, as it has no watchdog that says what to do",
    "resume": "it would be resumed here",
}


@command("monitor")
@click.argument("module", required=False, metavar="[MODULE[:HF]]")
@click.option(
    "--interval",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two checks.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Check once, act, report, and exit when the resumed runs have ended.",
)
@click.option("--dry-run", is_flag=True, help="Only describe what a check would do now.")
def monitor_command(
    ctx: CommandContext, module: str | None, *, interval: float, once: bool, dry_run: bool
) -> int:
    """Detect runs that are dead, silent, looping or over budget, and act on them, until interrupted.

    The watchdog of each workflow decides the action. Workers monitor, too; of all monitors of a store, one acts.
    Resuming runs here needs their code: MODULE, --app, or [tool.holdfast] app in pyproject.toml.
    """
    ctx.app = module or ctx.app
    monitor = ctx.open_with_app().monitor(interval=interval)
    if dry_run:
        planned = monitor.plan()
        lines = [
            plain(f"{alert.run} is {alert.symptom} ({alert.why}): {_ACTIONS[alert.action]}")
            for alert in planned
        ]
        record = {"runs": planned}
        confirm(ctx, lines or ["nothing to do"], record, yes=False, dry_run=True)
        return exit_codes.DONE
    if once:
        found = monitor.look()
        monitor.wait()
        if ctx.out.json:
            ctx.out.document(found)
        for alert in () if ctx.out.json else found:
            values = (alert.run, alert.symptom, alert.action, alert.why)
            ctx.out.line({}, values, f"{alert.run} is {alert.symptom}: {alert.action} ({alert.why})")
        ctx.out.say(f"{count(len(found), 'run')} needed action")
        return exit_codes.FINDINGS if found else exit_codes.DONE
    ready = f"monitoring the store every {span(interval)}; Ctrl-C stops it"
    monitor.serve(ready=lambda: ctx.out.say(ready))
    ctx.out.done({"stopped": True}, "stopped")
    return exit_codes.DONE
