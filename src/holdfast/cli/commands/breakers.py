"""`holdfast breakers`"""

from __future__ import annotations

import click

from holdfast.cli.context import CommandContext, command
from holdfast.cli.output import Column
from holdfast.operator_view.records import breaker_view
from holdfast.operator_view.text import plain


@command("breakers")
@click.argument("action", type=click.Choice(["reset"]), required=False)
@click.argument("name", required=False)
def breakers_command(ctx: CommandContext, *, action: str | None, name: str | None) -> None:
    """List the circuit breakers of steps that have failed; or close one by hand.

    The runs that wait for it try again. The breaker opens again if its step still fails.

    \b
    holdfast breakers
    holdfast breakers reset search
    """
    if action is not None:
        if name is None:
            raise click.UsageError("name the breaker to close: holdfast breakers reset NAME")
        found = ctx.hf.reset_breaker(name)
        ctx.out.done(breaker_view(found), f"breaker {plain(found.name)} is closed")
        return
    columns = [
        Column("name", lambda each: each.name, style="bold", min_width=12),
        Column("status", lambda each: each.status),
        Column("failures", lambda each: each.failures, right=True),
        Column("since", lambda each: each.since),
        Column("retry at", lambda each: each.retry_at),
        Column("error", lambda each: each.error),
    ]
    ctx.out.rows(ctx.hf.breakers(), columns, breaker_view, empty="no step with a breaker has failed")
