"""`holdfast queues`, `holdfast enqueue` and `holdfast requeue`"""

from __future__ import annotations

import json
from typing import Any

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.output import Column
from holdfast.cli.settings import find_app
from holdfast.cli.spending import limited
from holdfast.desk.plan import names
from holdfast.desk.records import queue_record
from holdfast.desk.words import length, parsed, plain, span
from holdfast.errors import InvalidCall, NotFound
from holdfast.model.names import meant
from holdfast.model.public import QueueSummary
from holdfast.model.records import STATUSES
from holdfast.runtime.definition import workflows

_NONE = "none"
#: Arguments that are for `enqueue` and not for the workflow.
_OWN = {
    "workflow",
    "queue",
    "priority",
    "delay",
    "dedupe",
    "run_id",
    "tags",
    "state",
    "note",
    "actor",
    "limits",
}


@command("queues")
@click.argument("name", required=False)
@click.option(
    "--concurrency", metavar="N", help="Let workers execute N runs of NAME at once, at most; or none."
)
@click.option(
    "--rate", metavar="N/TIME", help="Let workers begin N runs in TIME, at most, as in 100/60s; or none."
)
def queues_command(call: Call, name: str | None, *, concurrency: str | None, rate: str | None) -> None:
    """The queues, what waits in them, and their limits.

    \b
    holdfast queues mail --concurrency 5 --rate 100/60s
    holdfast queues mail --rate none
    """
    hf = call.hf
    if concurrency is not None or rate is not None:
        if name is None:
            raise click.UsageError("say whose limits these are: holdfast queues NAME --concurrency N")
        _limit(call, name, concurrency, rate)
    found = hf.queues()
    if name is not None:
        one = hf.queue(name)
        if (
            not one.runs
            and one.concurrency is None
            and one.rate is None
            and concurrency is None
            and rate is None
        ):
            hint = (
                meant(name, [queue.name for queue in found])
                or ": `holdfast queues` lists those that there are"
            )
            raise NotFound(f"there is no queue {name!r:.120}{hint}", queue=name)
        found = [one]
    call.out.rows(
        found,
        _for_people(found) if call.out.for_people else _FIELDS,
        queue_record,
        empty="no runs were put into a queue",
    )


@command("enqueue")
@click.argument("workflow")
@click.argument("args", nargs=-1, metavar="[JSON]…")
@click.option(
    "--with", "named", multiple=True, metavar="NAME=JSON", help="An argument by its name. Repeatable."
)
@click.option(
    "--queue", default="default", show_default=True, metavar="NAME", help="The queue to put it into."
)
@click.option("--priority", type=int, default=0, metavar="N", help="Runs of a higher one go first.")
@click.option("--delay", metavar="TIME", help="Not before so much time has passed, as in 90s or 2h.")
@click.option("--dedupe", metavar="TEXT", help="If a run was put in with this text, give that one instead.")
@click.option("--run-id", metavar="RUN", help="The id of the run.")
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="A tag for its first version. Repeatable.")
@limited
def enqueue_command(
    call: Call, workflow: str, args: tuple[str, ...], *, named: tuple[str, ...], delay: str | None, **how: Any
) -> int:
    """Let a worker run a workflow.

    Arguments are JSON (3, true, {"a": 1}); what is no JSON is a text. The workflow's code is not needed here; where
    --app or pyproject.toml names it, the workflow's name and the arguments are checked.

    \b
    holdfast enqueue trip Oslo --with days=3 --delay 10m
    """
    hf = call.with_code()
    seconds = 0.0 if delay is None else length(delay).total_seconds()
    given = dict(_named(text) for text in named)
    if taken := sorted(given.keys() & _OWN):
        raise click.UsageError(
            f"--with {taken[0]} cannot be given: enqueue has an argument of that name itself"
        )
    _check_defined(call, workflow)
    run = hf.enqueue(workflow, *map(_value, args), delay=seconds, **how, **given)
    text = f"{run.id} is {run.status}" if run.status != "queued" else f"{run.id} waits in {how['queue']}"
    call.out.done({"run": run.id, "status": run.status}, plain(text))
    return exits.DONE


@command("requeue")
@click.argument("run", type=RUN)
@click.option("--queue", metavar="NAME", help="Another queue than the one that it was in.")
@click.option("--priority", type=int, metavar="N", help="Another priority than the one that it had.")
@click.option("--delay", metavar="TIME", help="Not before so much time has passed, as in 90s or 2h.")
@click.option("--reason", metavar="TEXT", help="Why; kept with the run.")
@limited
def requeue_command(call: Call, run: str, *, delay: str | None, **how: Any) -> int:
    """Let a worker go on with a run that has stopped: paused, failed, frozen, interrupted, or rolled back."""
    seconds = 0.0 if delay is None else length(delay).total_seconds()
    found = call.hf.requeue(call.hf.find(run), delay=seconds, **how)
    call.out.done({"run": found.id, "status": found.status}, plain(f"{found.id} waits for a worker"))
    return exits.DONE


def _check_defined(call: Call, workflow: str) -> None:
    """Refuse the name of a workflow that the application does not define, if one is named."""
    app = find_app(call.app)
    known = workflows()
    if app is None or not workflow or workflow in known:
        return
    hint = meant(workflow, known) or f": it defines {names(sorted(known)) or 'none'}"
    raise InvalidCall(f"the app {app!r} defines no workflow {workflow!r:.120}{hint}", workflow=workflow)


def _limit(call: Call, name: str, concurrency: str | None, rate: str | None) -> None:
    """Change the limits that are named; the other stays."""
    before = call.hf.queue(name)
    most = before.concurrency if concurrency is None else _number("--concurrency", concurrency)
    begun, per = before.rate, before.per
    if rate is not None:
        number, _, time = rate.partition("/")
        begun = _number("--rate", number)
        per = length(time).total_seconds() if time else 1.0
    call.hf.limit(name, concurrency=most, rate=begun, per=per)


def _number(option: str, text: str) -> int | None:
    if text == _NONE:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidCall(f"{option} takes a whole number or none, not {text!r:.60}") from None


def _named(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name.isidentifier():
        raise click.UsageError(f"--with takes NAME=JSON, not {text!r:.60}")
    return name, _value(value)


def _value(text: str) -> Any:
    """JSON as a value, or the text itself."""
    try:
        json.loads(text)
    except ValueError:
        return text
    return parsed(text, "an argument")


def _of_status(status: str) -> Column:
    return Column(
        status, lambda queue: queue.runs.get(status, 0), lambda queue: f"{queue.runs.get(status, 0):,}"
    )


#: For programs: whatever is in the store, a field has its place.
_FIELDS = [
    Column("queue", lambda queue: queue.name),
    *(_of_status(status) for status in STATUSES),
    Column("concurrency", lambda queue: queue.concurrency),
    Column("rate", lambda queue: queue.rate),
    Column("per", lambda queue: queue_record(queue)["per"]),
]


def _for_people(found: list[QueueSummary]) -> list[Column]:
    seen = [status for status in STATUSES if any(queue.runs.get(status) for queue in found)]
    return [
        Column("queue", lambda queue: queue.name, style="bold"),
        *(_of_status(status) for status in seen or ["queued"]),
        Column("at once", lambda queue: queue.concurrency, lambda queue: _shown(queue.concurrency)),
        Column("rate", _rate),
    ]


def _shown(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _rate(queue: QueueSummary) -> str:
    return "" if queue.rate is None else f"{queue.rate:,}/{span(queue.per)}"
