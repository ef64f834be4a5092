"""Find the store and the workflows' code.

The store: `--store`, `HOLDFAST_STORE`, `[tool.holdfast] store` in the nearest `pyproject.toml`, else `./holdfast.db`.
The code: `--app`, `HOLDFAST_APP`, `[tool.holdfast] app`.

Invariant: only a module that the user names in one of these ways is ever imported.
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
from holdfast.store_url import file_of, is_server

DEFAULT_STORE = "holdfast.db"
#: The `source` of a store that was not named.
DEFAULT_SOURCE = "the default"


class StoreLocation(NamedTuple):
    """A store, and the setting that named it."""

    where: str
    source: str

    @property
    def public(self) -> str:
        """The location without a password."""
        return file_of(self.where) if is_server(self.where) else self.where


class ProjectConfig(NamedTuple):
    """The `[tool.holdfast]` table of the nearest `pyproject.toml` that has one."""

    folder: Path
    table: dict[str, Any]

    @property
    def file(self) -> Path:
        return self.folder / "pyproject.toml"

    def text(self, key: str) -> str | None:
        """Return a setting; None if there is none."""
        value = self.table.get(key)
        if key in self.table and (not isinstance(value, str) or not value):
            raise InvalidCall(f"{key} in [tool.holdfast] of {self.file} must be a text")
        return value


def find_store(given: str | None) -> StoreLocation:
    """Return the store that a command works on."""
    if given:
        return StoreLocation(given, "--store")
    if named := os.environ.get("HOLDFAST_STORE"):
        return StoreLocation(named, "HOLDFAST_STORE")
    config = find_project_config()
    where = None if config is None else config.text("store")
    if config is None or where is None:
        return StoreLocation(DEFAULT_STORE, DEFAULT_SOURCE)
    if "://" not in where and where != ":memory:":
        where = relative_path(config.folder / where)
    return StoreLocation(where, str(config.file))


def relative_path(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def find_app(given: str | None, *, explicit: bool = False) -> str | None:
    """Return the application with the workflows' code, as `module` or `module:name`; with `explicit`, not one that only
    a `pyproject.toml` names."""
    if named := given or os.environ.get("HOLDFAST_APP"):
        return named
    config = None if explicit else find_project_config()
    return None if config is None else config.text("app")


def find_project_config() -> ProjectConfig | None:
    """Return the nearest `[tool.holdfast]` table, searching from the current folder upwards."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
            # Imported only where there is a file: it is slow to load.
            import tomllib

            document = tomllib.loads(text)
        except OSError:
            continue
        except ValueError as error:
            why = str(error).splitlines()[0]
            raise InvalidCall(
                f"{path} cannot be read ({why}): correct it, or name the store with --store and the app with --app"
            ) from None
        tools = document.get("tool")
        table = tools.get("holdfast") if isinstance(tools, dict) else None
        if table is not None:
            if not isinstance(table, dict):
                raise InvalidCall(f"[tool.holdfast] in {path} must be a table")
            return ProjectConfig(folder, table)
    return None


def load_app(name: str) -> Holdfast | None:
    """Import an application, which registers its workflows; return its open store, if the name includes one."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        raise InvalidCall(
            f"the app {name!r:.80} is not the name of a module: write it as in an import, such as flows or "
            "package.flows, not as a file"
        )
    for folder in _import_folders():
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        # Its output is not part of the command's result.
        with redirect_stdout(sys.stderr):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise _import_error(name, error) from error
        raise InvalidCall(
            f"the app {name!r} cannot be found: there is no module {error.name!r} in this folder or installed"
        ) from None
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error
    if not attribute:
        return None
    engine = getattr(module, attribute, None)
    if not isinstance(engine, Holdfast):
        problem = "does not exist" if engine is None else f"is {type(engine).__name__}, not an open store"
        raise InvalidCall(
            f"the app {name!r} names {attribute!r}, which {problem}: name a module, or module:hf with "
            "hf = holdfast.open(…)"
        )
    return engine


def _import_folders() -> list[str]:
    """Return the folders that may hold an application: the current one, and that of the project's configuration."""
    found = []
    with suppress(OSError):
        found.append(str(Path.cwd()))
    # An unreadable configuration did not name the application.
    with suppress(InvalidCall):
        config = find_project_config()
        if config is not None:
            found.append(str(config.folder))
    return found


def _import_error(name: str, error: BaseException) -> InvalidCall:
    text = str(error).splitlines()
    why = f"{type(error).__name__}{': ' + text[0] if text else ''}"
    advice = "--debug shows the traceback"
    if isinstance(error, HoldfastError | SystemExit):
        advice = 'put code that starts the program below `if __name__ == "__main__":`'
    return InvalidCall(f"the app {name!r} cannot be imported: {why} ({advice})", app=name)
