"""`holdfast worker`"""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.desk.words import count, plain
from holdfast.errors import InvalidCall
from holdfast.runtime.definition import workflows

_SIGNS = {1: "stopping: steps that are under way may end (once more ends them at once)", 2: "stopped at once"}


@command("worker")
@click.argument("module", required=False, metavar="[MODULE[:HF]]")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    default=["default"],
    show_default="default",
    help="A queue to work on. Repeatable.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Runs that are executed at once, at most.",
)
def worker_command(call: Call, module: str | None, *, queues: tuple[str, ...], concurrency: int) -> int:
    """Execute runs of queues until a signal comes.

    MODULE is the module with the workflows' code; --app and [tool.holdfast] app in pyproject.toml name it, too. SIGTERM
    and Ctrl-C let steps end and hand back what is not finished; a second one ends everything at once.
    """
    call.app = module or call.app
    hf = call.with_code()
    known = workflows()
    if not known:
        raise InvalidCall(
            "a worker needs the code of workflows: name the module that defines them, as in holdfast worker flows, or "
            'in pyproject.toml: [tool.holdfast] app = "flows"'
        )
    worker = hf.worker(queues=queues, concurrency=concurrency)
    waiting = [f"{name} ({count(hf.queue(name).runs.get('queued', 0), 'run')} waiting)" for name in queues]
    ready = plain(
        f"works on {', '.join(waiting)}: {count(len(known), 'workflow')}, {count(concurrency, 'run')} at once; "
        "Ctrl-C ends it"
    )
    # Said when it is true: before, a signal would end the process at once.
    worker.serve(lambda number: call.out.say(_SIGNS[min(number, 2)]), lambda: call.out.say(ready))
    call.out.done(
        {"executed": worker.done, "queues": list(queues)}, f"stopped; {count(worker.done, 'execution')}"
    )
    return exits.DONE
