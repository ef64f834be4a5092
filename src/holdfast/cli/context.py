"""Parts that commands share: their context, their options and arguments, and the confirmation of a change.

Invariant: the store is opened once, when it is first needed, and closed at the end; only commands whose job it is
create a store.
Invariant: with `--dry-run` nothing is changed; on a terminal nothing is changed before the user confirms.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click
from click.shell_completion import CompletionItem

from holdfast import atomic_file
from holdfast.cli import exit_codes
from holdfast.cli.output import Output
from holdfast.cli.settings import DEFAULT_SOURCE, StoreLocation, find_app, find_store, load_app
from holdfast.engine import Holdfast
from holdfast.engine import open as open_store
from holdfast.errors import AlreadyExists, HoldfastError, InvalidCall, StoreUnavailable
from holdfast.execution.limits import Limits
from holdfast.execution.preview import Preview
from holdfast.operator_view.actions import require_code
from holdfast.operator_view.text import parse_duration, plain
from holdfast.store_url import file_of

if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    # Generic only in newer releases of Click.
    _ParamType = click.ParamType

#: Seconds that a command waits for a locked store, unless HOLDFAST_PATIENCE is set.
LOCK_TIMEOUT = 5.0
#: Runs that are offered to complete an argument.
_COMPLETIONS = 50
_LIMIT_TYPES: dict[str, type[int] | type[float]] = {
    "cost": float,
    "tokens": int,
    "steps": int,
    "seconds": float,
}

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class CommandContext:
    """One invocation of the program: its options, its store, its output."""

    def __init__(self) -> None:
        self.store: str | None = None
        self.app: str | None = None
        self.debug = False
        self.out = Output()
        self._engine: Holdfast | None = None

    @property
    def location(self) -> StoreLocation:
        """The store that the command works on."""
        return find_store(self.store)

    @property
    def hf(self) -> Holdfast:
        """The open store."""
        return self._open(create=False)

    def create_store(self) -> Holdfast:
        """Return the open store; create it if it does not exist."""
        return self._open(create=True)

    def open_with_app(self, *, explicit: bool = False) -> Holdfast:
        """Import the application, if one is named, and return the open store. With `explicit`, an application that only
        a `pyproject.toml` names is not imported."""
        name = find_app(self.app, explicit=explicit)
        if name is not None:
            engine = load_app(name)
            if engine is not None and self._engine is None and self._uses_store_of(engine):
                self._engine = engine
        return self.hf

    def require_code(self, preview: Preview, action: str) -> None:
        """Raise `InvalidCall` if the code of a run's workflow is not loaded."""
        name = find_app(self.app)
        advice = (
            'name the module that defines it with --app module, or in pyproject.toml: [tool.holdfast] app = "module"'
            if name is None
            else f"the app {name!r} does not define it"
        )
        require_code(preview, action, f": {advice}")

    def explain_missing_store(self, opening: Callable[[], T]) -> T:
        """Call a function that opens the store; if the store does not exist, raise an error that says what to do."""
        try:
            return opening()
        except StoreUnavailable as error:
            if not error.details.get("missing"):
                raise
            location = self.location
            raise StoreUnavailable(
                f"{error} ({location.source}): name one with --store or HOLDFAST_STORE, create one with `holdfast "
                "init`, or see `holdfast demo`",
                store=location.public,
            ) from None

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _open(self, *, create: bool) -> Holdfast:
        if self._engine is None:
            self._engine = self.explain_missing_store(
                lambda: open_store(self.location.where, timeout=_lock_timeout(), create=create)
            )
        return self._engine

    def _uses_store_of(self, engine: Holdfast) -> bool:
        """Return whether to use the application's open store: not if another store was named explicitly."""
        location = self.location
        if location.source == DEFAULT_SOURCE or engine.where is None:
            return location.source == DEFAULT_SOURCE
        return os.path.realpath(engine.where) == os.path.realpath(file_of(location.where))


def _lock_timeout() -> float:
    text = os.environ.get("HOLDFAST_PATIENCE")
    try:
        seconds = LOCK_TIMEOUT if not text else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise InvalidCall(f"HOLDFAST_PATIENCE must be a number of seconds, not {text!r:.60}")
    return seconds


# Declaring commands


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command of `holdfast`. Its function receives the `CommandContext` first."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        make: Callable[..., click.Command] = click.command(name, **settings)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return function(click.get_current_context().ensure_object(CommandContext), *args, **kwargs)

        # Its own options come first in its help. Click counts from the end.
        own = called.__dict__.pop("__click_params__", [])
        shared_options(called).__dict__["__click_params__"].extend(own)
        return make(called)

    return decorate


def shared_options(command: F) -> F:
    """Add the options that every command has; they are accepted before and after its name."""
    for names, settings in (
        (("--debug",), {"is_flag": True, "help": "Show tracebacks."}),
        (("--json", "json_"), {"is_flag": True, "help": "Print JSON."}),
        (("--app",), {"metavar": "MODULE[:HF]", "help": "The module with the workflows' code."}),
        (("--store",), {"metavar": "WHERE", "help": "The store to work on."}),
    ):
        command = click.option(*names, expose_value=False, callback=_set_option, **settings)(command)
    return command


def _set_option(click_context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx = click_context.ensure_object(CommandContext)
        if parameter.name == "json_":
            ctx.out.json = True
        else:
            setattr(ctx, str(parameter.name), value)


# Arguments


class _RunArgument(_ParamType):
    """A run, or a reference to one of its versions, which a shell can complete."""

    def __init__(self, name: str) -> None:
        self.name = name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = ctx.ensure_object(CommandContext).hf.runs(prefix=incomplete, limit=_COMPLETIONS)
        except HoldfastError:
            return []
        return [CompletionItem(run.id, help=plain(f"{run.status} {run.step or ''}")) for run in found]


RUN = _RunArgument("run")
REF = _RunArgument("ref")


# Options


def _parse_delay(_context: click.Context, _option: click.Parameter, given: str | None) -> float:
    return 0.0 if given is None else parse_duration(given).total_seconds()


def limit_option(command: F) -> F:
    """Add the option `--limit`, which passes `limits` to a command: `Limits`, or None."""
    return click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=NUMBER",
        callback=_parse_limits,
        help="A budget of the run, children included: cost, tokens, steps or seconds. Repeatable.",
    )(command)


def _parse_limits(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> Limits | None:
    found: dict[str, Any] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in _LIMIT_TYPES:
            raise click.BadParameter(f"{text!r:.80}: write cost=, tokens=, steps= or seconds= and a number")
        try:
            found[name] = _LIMIT_TYPES[name](number)
        except ValueError:
            raise click.BadParameter(f"{text!r:.80}: {name} must be a number") from None
    try:
        return Limits(**found) if found else None
    except InvalidCall as error:
        raise click.BadParameter(str(error)) from None


def number_option(default: int, what: str) -> Callable[[F], F]:
    """Return the option `-n`, which limits how many items a command lists."""
    return click.option(
        "-n", "--limit", default=default, show_default=True, type=click.IntRange(1), metavar="N", help=what
    )


#: Options of commands that change a run.
actor_option = click.option("--actor", metavar="NAME", help="Your name, recorded with the change.")
reason_option = click.option("--reason", metavar="TEXT", help="The reason, recorded with the change.")
changed_option = click.option(
    "--changed",
    type=click.Choice(["warn", "refuse", "allow"]),
    help="What to do if the workflow's code has changed since the run started.",
)
delay_option = click.option(
    "--delay", metavar="TIME", callback=_parse_delay, help="Start after this time, as in 90s or 2h."
)


def confirm_options(command: F) -> F:
    """Add the options of a command that announces a change before making it."""
    command = click.option("--dry-run", is_flag=True, help="Only describe the change.")(command)
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(
    ctx: CommandContext,
    lines: Sequence[str],
    record: Mapping[str, Any],
    *,
    yes: bool,
    dry_run: bool,
    irreversible: bool = False,
) -> bool:
    """Announce a change and return whether to make it; exit if the user declines. An irreversible change needs
    `--yes` where the user cannot be asked."""
    out = ctx.out
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
    if irreversible and not out.can_ask:
        raise click.UsageError("this cannot be undone: confirm it with --yes")
    for line in lines:
        out.say(line)
    if not out.can_ask or click.confirm("Go ahead?", err=True):
        return True
    out.say("nothing was changed")
    raise click.exceptions.Exit(exit_codes.FINDINGS)


# Files


@contextmanager
def open_output_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a file that replaces the one at `path` when it is complete; `AlreadyExists` if there is one and it must not
    be overwritten."""
    try:
        with atomic_file.write_atomically(path, overwrite=overwrite) as file:
            yield file
    except FileExistsError:
        raise file_exists_error(path) from None


def file_exists_error(path: Path) -> AlreadyExists:
    return AlreadyExists(f"{path} exists: overwrite it with --force, or choose another name", file=str(path))
