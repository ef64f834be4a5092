"""`holdfast worker`"""

from __future__ import annotations

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import CommandContext, command
from holdfast.errors import InvalidCall
from holdfast.operator_view.text import count, plain
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
) -> int:
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
    return exit_codes.DONE
