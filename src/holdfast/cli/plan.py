"""Asking whether a command shall do what it told that it will.

Invariant: with `--dry-run` nothing is changed; on a terminal nothing is changed before somebody said yes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from holdfast.cli import exits
from holdfast.cli.call import Call

F = TypeVar("F", bound=Callable[..., Any])


def careful(command: F) -> F:
    """The options of a command that tells first what it will do."""
    command = click.option("--dry-run", is_flag=True, help="Only say what would be done.")(command)
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def go_ahead(
    call: Call,
    lines: Sequence[str],
    record: Mapping[str, Any],
    *,
    yes: bool,
    dry_run: bool,
    must: bool = False,
) -> bool:
    """Say what will be done; may it be? If somebody says no, the command ends here. `must` is for what cannot be taken
    back: without somebody to ask, it needs `--yes`."""
    out = call.out
    if dry_run:
        if out.json:
            out.document({"dry_run": True, **record})
        else:
            for line in lines:
                out.text(line)
            out.say("nothing was changed (--dry-run)")
        return False
    if yes:
        return True
    if out.can_ask:
        for line in lines:
            out.say(line)
        if click.confirm("Go ahead?", err=True):
            return True
        out.say("nothing was changed")
        raise click.exceptions.Exit(exits.FINDINGS)
    if must:
        raise click.UsageError("this cannot be taken back, and nobody is here to be asked: say --yes")
    for line in lines:
        out.say(line)
    return True
