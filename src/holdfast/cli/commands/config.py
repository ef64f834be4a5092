"""`holdfast config`"""

from __future__ import annotations

import click

from holdfast.cli.call import Call, command, shared
from holdfast.cli.output import Column
from holdfast.history.redaction import DEFAULTS, Redaction


@click.group("config", invoke_without_command=True)
@shared
@click.pass_context
def config_command(context: click.Context) -> None:
    """Settings that the store keeps for all who use it."""
    _help(context)


@click.group("redact", invoke_without_command=True, short_help="The keys whose values are never stored.")
@shared
@click.pass_context
def _redact(context: click.Context) -> None:
    """Patterns of keys whose values are replaced before anything is stored, by whatever process.

    They hold for what is committed from now on: versions that are stored stay as they are.
    """
    _help(context)


@command("list", short_help="List the patterns.")
def _list(call: Call) -> None:
    """The patterns that the store keeps, and the usual ones, which hold in loops and over HTTP."""
    found = call.hf.redaction
    rows = [(pattern, "everywhere") for pattern in found.patterns]
    rows += [(pattern, "loops and HTTP" if found.defaults else "off") for pattern in DEFAULTS]
    if call.out.json:
        call.out.document(_record(found))
        return
    columns = [
        Column("pattern", lambda row: row[0], style="bold", least=12),
        Column("holds", lambda row: row[1]),
    ]
    call.out.rows(rows, columns, lambda row: {"pattern": row[0], "holds": row[1]})


@command("add", short_help="Add patterns.")
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
def _add(call: Call, *, patterns: tuple[str, ...]) -> None:
    """Add patterns: names of keys with * and ?, without regard to case. Quote them for your shell."""
    found = call.hf.change_redaction(add=patterns)
    call.out.done(_record(found), f"redacted from now on: {', '.join(found.patterns)}")


@command("remove", short_help="Remove patterns.")
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
def _remove(call: Call, *, patterns: tuple[str, ...]) -> None:
    """Remove patterns."""
    found = call.hf.change_redaction(remove=patterns)
    call.out.done(_record(found), f"redacted from now on: {', '.join(found.patterns) or 'nothing'}")


@command("defaults", short_help="Switch the usual patterns on or off.")
@click.argument("switch", type=click.Choice(["on", "off"]))
def _defaults(call: Call, *, switch: str) -> None:
    """Switch the usual patterns (*password*, *api_key*, *secret*, *token) on or off, for loops and HTTP."""
    found = call.hf.change_redaction(defaults=switch == "on")
    call.out.done(_record(found), f"the usual patterns are {switch} in loops and over HTTP")


def _record(found: Redaction) -> dict[str, object]:
    return {"patterns": list(found.patterns), "defaults": list(DEFAULTS) if found.defaults else []}


def _help(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        if context.ensure_object(Call).out.json:
            raise click.UsageError("say what to do: `holdfast config redact list`, add, remove or defaults")
        click.echo(context.get_help())


for _each in (_list, _add, _remove, _defaults):
    _redact.add_command(_each)
config_command.add_command(_redact)
