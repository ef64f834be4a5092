"""`holdfast config`"""

from __future__ import annotations

import click

from holdfast.cli.context import CommandContext, command, shared_options
from holdfast.cli.output import Column
from holdfast.history.redaction import DEFAULT_PATTERNS, Redaction


@click.group("config", invoke_without_command=True)
@shared_options
@click.pass_context
def config_command(click_context: click.Context) -> None:
    """Change the settings that are stored in the store, for every process that uses it."""
    _print_help(click_context)


@click.group("redact", invoke_without_command=True, short_help="Keys whose values are never stored.")
@shared_options
@click.pass_context
def _redact(click_context: click.Context) -> None:
    """Manage patterns of keys whose values are redacted before they are stored, in every process.

    They apply to new commits; existing versions do not change.
    """
    _print_help(click_context)


@command("list", short_help="List the patterns.")
def _list(ctx: CommandContext) -> None:
    """List the patterns of the store, and the default patterns, which apply to loops and HTTP."""
    found = ctx.hf.redaction
    rows = [(pattern, "everywhere") for pattern in found.patterns]
    rows += [(pattern, "loops and HTTP" if found.defaults else "off") for pattern in DEFAULT_PATTERNS]
    if ctx.out.json:
        ctx.out.document(_record(found))
        return
    columns = [
        Column("pattern", lambda row: row[0], style="bold", min_width=12),
        Column("applies to", lambda row: row[1]),
    ]
    ctx.out.rows(rows, columns, lambda row: {"pattern": row[0], "applies_to": row[1]})


@command("add", short_help="Add patterns.")
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
def _add(ctx: CommandContext, *, patterns: tuple[str, ...]) -> None:
    """Add patterns: names of keys with * and ?, case-insensitive. Quote them for your shell."""
    found = ctx.hf.change_redaction(add=patterns)
    ctx.out.done(_record(found), f"redacted from now on: {', '.join(found.patterns)}")


@command("remove", short_help="Remove patterns.")
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
def _remove(ctx: CommandContext, *, patterns: tuple[str, ...]) -> None:
    """Remove patterns."""
    found = ctx.hf.change_redaction(remove=patterns)
    ctx.out.done(_record(found), f"redacted from now on: {', '.join(found.patterns) or 'nothing'}")


@command("defaults", short_help="Switch the default patterns on or off.")
@click.argument("switch", type=click.Choice(["on", "off"]))
def _defaults(ctx: CommandContext, *, switch: str) -> None:
    """Switch the default patterns (*password*, *api_key*, *secret*, *token) on or off, for loops and HTTP."""
    found = ctx.hf.change_redaction(defaults=switch == "on")
    ctx.out.done(_record(found), f"the default patterns are {switch} for loops and HTTP")


def _record(found: Redaction) -> dict[str, object]:
    return {"patterns": list(found.patterns), "defaults": list(DEFAULT_PATTERNS) if found.defaults else []}


def _print_help(click_context: click.Context) -> None:
    if click_context.invoked_subcommand is None:
        if click_context.ensure_object(CommandContext).out.json:
            raise click.UsageError(
                "name a subcommand: `holdfast config redact list`, add, remove or defaults"
            )
        click.echo(click_context.get_help())


for _each in (_list, _add, _remove, _defaults):
    _redact.add_command(_each)
config_command.add_command(_redact)
