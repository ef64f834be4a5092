"""One call of the program: its options, its store, its output.

Invariant: the store is opened once, when it is first needed, and closed at the end; no command makes one, but those
whose job that is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from holdfast.cli.output import Output
from holdfast.cli.settings import DEFAULTED, Place, find_app, find_store, load_app
from holdfast.engine import Holdfast
from holdfast.engine import open as open_store
from holdfast.errors import InvalidCall, StoreUnavailable
from holdfast.opening import file_of
from holdfast.runtime.preview import Preview

#: Seconds that a command waits for a store that somebody else has locked, unless HOLDFAST_PATIENCE says otherwise.
PATIENCE = 5.0

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Call:
    """What all commands share."""

    def __init__(self) -> None:
        self.store: str | None = None
        self.app: str | None = None
        self.debug = False
        self.out = Output()
        self._engine: Holdfast | None = None

    @property
    def place(self) -> Place:
        """The store that is meant."""
        return find_store(self.store)

    @property
    def hf(self) -> Holdfast:
        """The open store."""
        if self._engine is None:
            self._engine = self._open(create=False)
        return self._engine

    def make(self) -> Holdfast:
        """The open store, which is made if it is not there."""
        if self._engine is None:
            self._engine = self._open(create=True)
        return self._engine

    def with_code(self, *, asked: bool = False) -> Holdfast:
        """The open store, and the workflows of the application, if one is named; with `asked`, by the caller and not by
        a file in this folder only."""
        name = find_app(self.app, asked=asked)
        if name is not None:
            engine = load_app(name)
            if engine is not None and self._engine is None and self._meant(engine):
                self._engine = engine
        return self.hf

    def _meant(self, engine: Holdfast) -> bool:
        """Is the application's store the one to work on? One that is named elsewhere, and is another, comes first."""
        place = self.place
        if place.source == DEFAULTED or engine.where is None:
            return place.source == DEFAULTED
        return os.path.realpath(engine.where) == os.path.realpath(file_of(place.where))

    def need_code(self, preview: Preview, what: str) -> None:
        """Refuse to go on without the code of a run's workflow."""
        if preview.workflow is None or preview.known:
            return
        name = find_app(self.app)
        missing = (
            'name the module that defines it with --app module, or in pyproject.toml: [tool.holdfast] app = "module"'
            if name is None
            else f"the app {name!r} does not define it"
        )
        raise InvalidCall(
            f"{what} needs the code of workflow {preview.workflow!r}: {missing}", workflow=preview.workflow
        )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _open(self, *, create: bool) -> Holdfast:
        return self.checked(lambda: open_store(self.place.where, timeout=_patience(), create=create))

    def checked(self, opening: Callable[[], T]) -> T:
        """Open a store in some way; one that is not there is told with what to do."""
        try:
            return opening()
        except StoreUnavailable as error:
            if not error.details.get("missing"):
                raise
            place = self.place
            raise StoreUnavailable(
                f"{error} ({place.source}): name one with --store or HOLDFAST_STORE, make one with `holdfast init`, "
                "or see `holdfast demo`",
                store=place.shown,
            ) from None


def _patience() -> float:
    text = os.environ.get("HOLDFAST_PATIENCE")
    try:
        found = PATIENCE if not text else float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e6:
        raise InvalidCall(f"HOLDFAST_PATIENCE is a number of seconds, not {text!r:.60}")
    return found


def _with_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the `Call` to a command's function."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(click.get_current_context().ensure_object(Call), *args, **kwargs)

    return called


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def put(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            call = context.ensure_object(Call)
            if name == "json":
                call.out.json = True
            else:
                setattr(call, name, value)

    return put


def shared(command: F) -> F:
    """The options that every command has, before and after its name."""
    for option in (
        click.option(
            "--debug", is_flag=True, expose_value=False, callback=_set("debug"), help="Show tracebacks."
        ),
        click.option(
            "--json", "json_", is_flag=True, expose_value=False, callback=_set("json"), help="Print JSON."
        ),
        click.option(
            "--app",
            metavar="MODULE[:HF]",
            expose_value=False,
            callback=_set("app"),
            help="The module with the workflows' code.",
        ),
        click.option(
            "--store",
            metavar="WHERE",
            expose_value=False,
            callback=_set("store"),
            help="The store to work on.",
        ),
    ):
        command = option(command)
    return command


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of `holdfast`. Its function gets the `Call` first."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        make: Callable[..., click.Command] = click.command(name, **settings)
        called = _with_call(function)
        # The options of its own come first in its help. Click counts from the end.
        own = called.__dict__.pop("__click_params__", [])
        shared(called).__dict__["__click_params__"].extend(own)
        return make(called)

    return decorate
