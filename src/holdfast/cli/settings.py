"""Where the store is, and where the workflows' code is.

The store: `--store`, `HOLDFAST_STORE`, `[tool.holdfast] store` in the nearest `pyproject.toml`, else `./holdfast.db`.
The code: `--app`, `HOLDFAST_APP`, `[tool.holdfast] app`. Only what the user names here is ever imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError, InvalidCall
from holdfast.opening import file_of, is_server

DEFAULT = "holdfast.db"
#: What named a store that nobody named.
DEFAULTED = "the default"


class Place(NamedTuple):
    """A store, and what named it."""

    where: str
    source: str

    @property
    def shown(self) -> str:
        """The store as it may be shown: an address without its password."""
        return file_of(self.where) if is_server(self.where) else self.where


class Project(NamedTuple):
    """The nearest `pyproject.toml` with a `[tool.holdfast]` table."""

    folder: Path
    table: dict[str, Any]


def find_store(given: str | None) -> Place:
    """The store that a command works on."""
    if given:
        return Place(given, "--store")
    named = os.environ.get("HOLDFAST_STORE")
    if named:
        return Place(named, "HOLDFAST_STORE")
    found = project()
    if found is not None and "store" in found.table:
        where = _text(found, "store")
        if "://" not in where and where != ":memory:":
            where = near(found.folder / where)
        return Place(where, str(found.folder / "pyproject.toml"))
    return Place(DEFAULT, DEFAULTED)


def near(path: Path) -> str:
    """A path as one would write it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def find_app(given: str | None, *, asked: bool = False) -> str | None:
    """The application that a command needs for running workflows, as `module` or `module:name`; with `asked`, only one
    that the caller named, not a file in this folder."""
    if given:
        return given
    named = os.environ.get("HOLDFAST_APP")
    if named:
        return named
    found = None if asked else project()
    return _text(found, "app") if found is not None and "app" in found.table else None


def project() -> Project | None:
    """The nearest `pyproject.toml` from here upwards that speaks of Holdfast."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
            # Only where there is something to read: it takes a while to load.
            import tomllib

            document = tomllib.loads(text)
        except OSError:
            continue
        except ValueError as error:
            why = str(error).splitlines()[0]
            raise InvalidCall(
                f"{path} cannot be read ({why}): mend it, or name the store with --store and the app with --app"
            ) from None
        tools = document.get("tool")
        table = tools.get("holdfast") if isinstance(tools, dict) else None
        if table is not None:
            if not isinstance(table, dict):
                raise InvalidCall(f"[tool.holdfast] in {path} is no table")
            return Project(folder, table)
    return None


def load_app(name: str) -> Holdfast | None:
    """Import an application, which makes its workflows known; its engine, if the name says which."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        raise InvalidCall(
            f"the app {name!r:.80} names no module: write it as in an import, such as flows or package.flows, and not "
            "as a file"
        )
    for folder in _folders():
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        # What it prints is no result of a command.
        with redirect_stdout(sys.stderr):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise _broken(name, error) from error
        raise InvalidCall(
            f"the app {name!r} cannot be found: there is no module {error.name!r} here or among what is installed"
        ) from None
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error
    if not attribute:
        return None
    engine = getattr(module, attribute, None)
    if not isinstance(engine, Holdfast):
        what = "has no such name" if engine is None else f"is {type(engine).__name__}, not an open store"
        raise InvalidCall(
            f"the app {name!r} names {attribute!r}, which {what}: name a module, or module:hf with "
            "hf = holdfast.open(…)"
        )
    return engine


def _folders() -> list[str]:
    """Where an application may be: here, and beside the `pyproject.toml` that speaks of Holdfast."""
    found = []
    with suppress(OSError):
        found.append(str(Path.cwd()))
    # One that cannot be read named no application.
    with suppress(InvalidCall):
        there = project()
        if there is not None:
            found.append(str(there.folder))
    return found


def _broken(name: str, error: BaseException) -> InvalidCall:
    text = str(error).splitlines()
    why = f"{type(error).__name__}{': ' + text[0] if text else ''}"
    advice = "--debug shows where"
    if isinstance(error, HoldfastError | SystemExit):
        advice = 'what a program does when it is started stands below `if __name__ == "__main__":`'
    return InvalidCall(f"the app {name!r} cannot be imported: {why} ({advice})", app=name)


def _text(found: Project, key: str) -> str:
    value = found.table[key]
    if not isinstance(value, str) or not value:
        raise InvalidCall(f"{key} in [tool.holdfast] of {found.folder / 'pyproject.toml'} is no text")
    return value
