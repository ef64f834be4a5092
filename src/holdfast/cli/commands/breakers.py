"""`holdfast breakers`"""

from __future__ import annotations

import click

from holdfast.cli.context import CommandContext, actor_option, command
from holdfast.cli.output import Column
from holdfast.operator_view.records import breaker_view
from holdfast.operator_view.text import age, plain


@command("breakers")
@click.argument("action", type=click.Choice(["reset"]), required=False)
@click.argument("name", required=False)
@actor_option
def breakers_command(ctx: CommandContext, *, action: str | None, name: str | None, actor: str | None) -> None:
    """List the circuit breakers of steps, or close one by hand. A step that never failed has none.

    The runs that wait for it try again. The breaker opens again if its step still fails.

    \b
    holdfast breakers
    holdfast breakers reset search
    """
    if action is not None:
        if name is None:
            raise click.UsageError("name the breaker to close: holdfast breakers reset NAME")
        found = ctx.hf.reset_breaker(name, actor=actor)
        ctx.out.done(breaker_view(found), f"breaker {plain(found.name)} is closed")
        return
    columns = [
        Column("name", lambda each: each.name, style="bold", min_width=12),
        Column("status", lambda each: each.status),
        Column("failures", lambda each: each.failures, right=True),
        Column("since", lambda each: each.since, lambda each: age(each.since) if each.since else ""),
        Column(
            "retry at", lambda each: each.retry_at, lambda each: age(each.retry_at) if each.retry_at else ""
        ),
        Column("error", lambda each: each.error, min_width=20),
    ]
    ctx.out.rows(ctx.hf.breakers(), columns, breaker_view, empty="no step with a breaker has failed")
