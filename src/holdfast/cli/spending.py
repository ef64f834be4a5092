"""The option that limits what a run may spend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.errors import InvalidCall
from holdfast.runtime.limits import Limits

F = TypeVar("F", bound=Callable[..., Any])

_KINDS: dict[str, type[int] | type[float]] = {"cost": float, "tokens": int, "steps": int, "seconds": float}


def limited(command: F) -> F:
    """The option `--limit`, which gives `limits` to a command: `Limits`, or None."""
    return click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=NUMBER",
        callback=_limits,
        help="What it may spend, its children included: cost, tokens, steps or seconds. Repeatable.",
    )(command)


def _limits(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> Limits | None:
    found: dict[str, Any] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in _KINDS:
            raise click.BadParameter(f"{text!r:.80}: write cost=, tokens=, steps= or seconds= and a number")
        try:
            found[name] = _KINDS[name](number)
        except ValueError:
            raise click.BadParameter(f"{text!r:.80}: {name} is a number") from None
    try:
        return Limits(**found) if found else None
    except InvalidCall as error:
        raise click.BadParameter(str(error)) from None
