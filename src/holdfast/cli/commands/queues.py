"""`holdfast queues`, `holdfast enqueue` and `holdfast requeue`"""

from __future__ import annotations

import json
from typing import Any

import click

from holdfast.cli.context import RUN, CommandContext, command, delay_option, limit_option, reason_option
from holdfast.cli.output import Column
from holdfast.cli.settings import find_app
from holdfast.errors import InvalidCall, NotFound
from holdfast.model.names import suggest
from holdfast.model.public import QueueSummary
from holdfast.model.records import STATUSES
from holdfast.operator_view.actions import enqueue_parameters, join_names
from holdfast.operator_view.lookup import parse_meta
from holdfast.operator_view.records import queue_view
from holdfast.operator_view.text import parse_duration, parse_json, plain, span
from holdfast.workflow.definition import workflows

_NONE = "none"


@command("queues")
@click.argument("name", required=False)
@click.option("--concurrency", metavar="N", help="Execute at most N runs of the queue at once; or none.")
@click.option("--rate", metavar="N/TIME", help="Start at most N runs per TIME, as in 100/60s; or none.")
def queues_command(
    ctx: CommandContext, name: str | None, *, concurrency: str | None, rate: str | None
) -> None:
    """List the queues, their runs and their limits; or change the limits of the queue NAME.

    \b
    holdfast queues mail --concurrency 5 --rate 100/60s
    holdfast queues mail --rate none
    """
    hf = ctx.hf
    if concurrency is not None or rate is not None:
        if name is None:
            raise click.UsageError("name the queue to limit: holdfast queues NAME --concurrency N")
        _limit(ctx, name, concurrency, rate)
    found = hf.queues()
    if name is not None:
        one = hf.queue(name)
        if not one.runs and all(each is None for each in (one.concurrency, one.rate, concurrency, rate)):
            hint = suggest(name, [queue.name for queue in found]) or ": `holdfast queues` lists the queues"
            raise NotFound(f"there is no queue {name!r:.120}{hint}", queue=name)
        found = [one]
    ctx.out.rows(
        found,
        _for_people(found) if ctx.out.is_for_people else _FIELDS,
        queue_view,
        empty="no queues",
    )


@command("enqueue")
@click.argument("workflow")
@click.argument("args", nargs=-1, metavar="[JSON]…")
@click.option("--with", "named", multiple=True, metavar="NAME=JSON", help="A keyword argument. Repeatable.")
@click.option("--queue", default="default", show_default=True, metavar="NAME", help="The queue.")
@click.option("--priority", type=int, default=0, metavar="N", help="Higher priorities run first.")
@delay_option
@click.option(
    "--dedupe", metavar="KEY", help="Return the run that was enqueued with the same key, if there is one."
)
@click.option("--run-id", metavar="RUN", help="The id of the run.")
@click.option("--state", metavar="JSON", help="The state with which the run starts.")
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="A tag for its first version. Repeatable.")
@click.option(
    "--meta", multiple=True, metavar="NAME=VALUE", help="Metadata by which the run is found. Repeatable."
)
@limit_option
def enqueue_command(
    ctx: CommandContext,
    workflow: str,
    args: tuple[str, ...],
    *,
    named: tuple[str, ...],
    state: str | None,
    meta: tuple[str, ...],
    **how: Any,
) -> None:
    """Add a run of a workflow to a queue.

    Arguments are JSON (3, true, {"a": 1}); anything else is a text. The workflow's code is not needed, but if --app or
    pyproject.toml names it, the workflow's name and the arguments are checked.

    \b
    holdfast enqueue trip Oslo --with days=3 --delay 10m
    holdfast enqueue agent --state '{"messages": []}'
    """
    hf = ctx.open_with_app()
    given = dict(_parse_named(text) for text in named)
    if taken := sorted(given.keys() & enqueue_parameters()):
        raise click.UsageError(f"--with {taken[0]} is not possible: enqueue has a parameter of that name")
    _check_defined(ctx, workflow)
    if state is not None:
        how["state"] = parse_json(state, "--state")
    how["meta"] = parse_meta(meta)
    run = hf.enqueue(workflow, *map(_parse_value, args), **how, **given)
    text = f"{run.id} is {run.status}" if run.status != "queued" else f"queued {run.id} on {how['queue']}"
    ctx.out.done({"run": run.id, "status": run.status}, plain(text))


@command("requeue")
@click.argument("run", type=RUN)
@click.option("--queue", metavar="NAME", help="Another queue; default: its last one.")
@click.option("--priority", type=int, metavar="N", help="Another priority; default: its last one.")
@delay_option
@reason_option
@limit_option
def requeue_command(ctx: CommandContext, run: str, **how: Any) -> None:
    """Put a stopped run back into a queue: paused, failed, stalled, interrupted, or rolled back."""
    found = ctx.hf.requeue(ctx.hf.get(run, prefix=True).id, **how)
    ctx.out.done({"run": found.id, "status": found.status}, plain(f"queued {found.id}"))


def _check_defined(ctx: CommandContext, workflow: str) -> None:
    """Raise `InvalidCall` if an application is named and does not define the workflow."""
    app = find_app(ctx.app)
    known = workflows()
    if app is None or not workflow or workflow in known:
        return
    hint = suggest(workflow, known) or f": it defines {join_names(sorted(known)) or 'none'}"
    raise InvalidCall(f"the app {app!r} defines no workflow {workflow!r:.120}{hint}", workflow=workflow)


def _limit(ctx: CommandContext, name: str, concurrency: str | None, rate: str | None) -> None:
    """Change the limits that are given."""
    before = ctx.hf.queue(name)
    most = before.concurrency if concurrency is None else _number("--concurrency", concurrency)
    started, per = before.rate, before.per
    if rate is not None:
        number, _, time = rate.partition("/")
        started = _number("--rate", number)
        per = parse_duration(time).total_seconds() if time else 1.0
    ctx.hf.limit_queue(name, concurrency=most, rate=started, per=per)


def _number(option: str, text: str) -> int | None:
    if text == _NONE:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidCall(f"{option} takes a whole number or none, not {text!r:.60}") from None


def _parse_named(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name.isidentifier():
        raise click.UsageError(f"--with takes NAME=JSON, not {text!r:.60}")
    return name, _parse_value(value)


def _parse_value(text: str) -> Any:
    """Parse JSON; return anything else as text."""
    try:
        json.loads(text)
    except ValueError:
        return text
    return parse_json(text, "an argument")


def _of_status(status: str) -> Column:
    return Column(
        status, lambda queue: queue.runs.get(status, 0), lambda queue: f"{queue.runs.get(status, 0):,}"
    )


#: For programs: the same fields whatever the store holds.
_FIELDS = [
    Column("queue", lambda queue: queue.name),
    *(_of_status(status) for status in STATUSES),
    Column("concurrency", lambda queue: queue.concurrency),
    Column("rate", lambda queue: queue.rate),
    Column("per", lambda queue: queue_view(queue)["per"]),
]


def _for_people(found: list[QueueSummary]) -> list[Column]:
    seen = [status for status in STATUSES if any(queue.runs.get(status) for queue in found)]
    return [
        Column("queue", lambda queue: queue.name, style="bold"),
        *(_of_status(status) for status in seen or ["queued"]),
        Column(
            "concurrency", lambda queue: queue.concurrency, lambda queue: _format_limit(queue.concurrency)
        ),
        Column("rate", _rate),
    ]


def _format_limit(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _rate(queue: QueueSummary) -> str:
    return "" if queue.rate is None else f"{queue.rate:,}/{span(queue.per)}"
