"""Arguments that a shell can complete: runs and references to their versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from holdfast.cli.call import Call
from holdfast.desk.words import plain
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    _Kind = click.ParamType[str]
else:
    # Older Clicks have no type here.
    _Kind = click.ParamType

#: Runs that are offered.
_MOST = 50


class _Run(_Kind):
    """A run, or a reference to one of its versions."""

    def __init__(self, name: str) -> None:
        self.name = name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        call = ctx.ensure_object(Call)
        try:
            found = call.hf.runs(prefix=incomplete, limit=_MOST)
        except HoldfastError:
            return []
        return [CompletionItem(run.id, help=plain(f"{run.status} {run.step or ''}")) for run in found]


RUN = _Run("run")
REF = _Run("ref")
