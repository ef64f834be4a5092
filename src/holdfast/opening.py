"""Which store an address means, and opening it.

Invariant: what cannot be an address is refused before anything is touched; no message shows a password.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import Any

from holdfast.errors import IncompatibleFormat, InvalidCall, StoreUnavailable
from holdfast.model.names import short
from holdfast.store.base import Store
from holdfast.store.postgres_url import SCHEMES, shown

#: What libpq would take for the address of a server, and what was meant to be one. The time that each of these
#: expressions takes grows with the length of the text, not faster.
_ALMOST = re.compile(
    r"\s*(?:postgres\w*:|(?:host|hostaddr|port|dbname|user|password|passfile|service|servicefile|options|"
    r"application_name|connect_timeout|client_encoding|ssl\w+|channel_binding|target_session_attrs|keepalives\w*)\s*=)",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"password\s*=", re.IGNORECASE)
_FIRST = re.compile(r"\s*\w+\s*=")
_OTHER = re.compile(r"\s\w+\s*=")
_WRITTEN = "The address of a PostgreSQL store is written postgresql://user:password@host:port/database"
#: Seconds; SQLite counts them in milliseconds, of which there are not many more.
_LONGEST = 1_000_000


def open_store(
    where: str | os.PathLike[str],
    *,
    durability: str,
    artifacts: str | os.PathLike[str] | None,
    timeout: float,
    create: bool,
    clock: Callable[[], int] | None = None,
) -> Store:
    """The store at an address; what is not there is made, if it may be. `clock` gives microseconds since 1970, instead
    of the store's own clock."""
    if durability not in ("durable", "fast", "memory"):
        raise InvalidCall(f"durability is 'durable', 'fast' or 'memory', not {short(durability)}")
    if not isinstance(timeout, int | float) or not 0 <= timeout <= _LONGEST:
        raise InvalidCall(f"timeout is a number of seconds, 0 or more, not {short(timeout)}")
    text = file_of(where)
    folder = None if artifacts is None else _folder(artifacts)
    if is_server(where):
        _need_driver()
        from holdfast.store.postgres import PostgresStore

        return PostgresStore(
            os.fspath(where),
            durability=durability,
            artifacts=folder,
            timeout=timeout,
            create=create,
            clock=clock,
        )
    if text == ":memory:":
        from holdfast.store.memory import MemoryStore

        return MemoryStore(clock=clock)
    if not create and not _holds_something(text):
        raise StoreUnavailable(f"there is no store at {text}", store=text, missing=True)
    from holdfast.store.sqlite import SQLiteStore

    return SQLiteStore(text, durability=durability, artifacts=folder, timeout=timeout, clock=clock)


def formats(where: str | os.PathLike[str]) -> tuple[int, int]:
    """The format of the store in a file, and the newest that this Holdfast knows. Changes nothing."""
    if is_server(where):
        _need_driver()
        from holdfast.store.postgres_format import formats_of

        return formats_of(os.fspath(where))
    from holdfast.store.sqlite_format import format_of, migrations

    path = file_of(where)
    if not os.path.lexists(path):
        raise StoreUnavailable(f"there is no store at {path}", store=path, missing=True)
    found, newest = format_of(path), len(migrations())
    if found > newest:
        raise IncompatibleFormat(
            f"{path} has format {found}, this Holdfast knows up to {newest}: upgrade Holdfast"
        )
    return found, newest


def is_server(where: str | os.PathLike[str]) -> bool:
    """Is it the address of a server, rather than a file?"""
    return isinstance(where, str) and where.startswith(SCHEMES)


def file_of(where: str | os.PathLike[str]) -> str:
    """The file of a store, `:memory:`, or the address of a server without its password."""
    text = _text(where)
    if not text:
        raise InvalidCall("open takes a path, 'sqlite:///path', 'postgresql://…' or ':memory:'")
    if is_server(text):
        return shown(text)
    if _PASSWORD.search(text):
        raise InvalidCall(
            f"the name of a file cannot hold 'password='. {_WRITTEN}, not as 'host=… dbname=… password=…'"
        )
    if _ALMOST.match(text) or _is_keyword_string(text):
        # It may hold a password.
        raise InvalidCall(
            f"{_WRITTEN}, not as 'host=… dbname=…'; a file whose name looks like this is opened by ./name"
        )
    scheme, found, rest = text.partition("://")
    if found and scheme == "sqlite":
        text = rest[1:] if rest.startswith("/") else rest
        if not text:
            raise InvalidCall(
                "'sqlite:///path' names no file: write sqlite:///runs.db, or sqlite:////absolute/runs.db"
            )
    elif found:
        raise InvalidCall(
            f"no store for {scheme}://…: open a path, 'sqlite:///path', 'postgresql://…' or ':memory:'"
        )
    return _possible(text)


def _is_keyword_string(text: str) -> bool:
    """Is it `word=… word=…`? libpq knows more keywords with every release."""
    first = _FIRST.match(text)
    return first is not None and _OTHER.search(text, first.end()) is not None


def _folder(artifacts: Any) -> str:
    text = _text(artifacts)
    if not text:
        raise InvalidCall(f"artifacts is the path of a folder, not {short(artifacts)}")
    return _possible(text)


def _text(path: Any) -> str | None:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    return text if isinstance(text, str) else None


def _possible(path: str) -> str:
    """A path that a file system can be asked for, or `InvalidCall`."""
    if "\0" in path:
        raise InvalidCall("a path cannot hold a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidCall(f"the path {short(path)} holds a lone surrogate, which no file name can") from None
    return path


def _need_driver() -> None:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise StoreUnavailable(
            "a store on PostgreSQL needs the driver psycopg, which is not installed: pip install 'holdfast[postgres]'"
        )


def _holds_something(path: str) -> bool:
    """Is there a file that is not empty? SQLite would make a store of an empty one. What is not a file, the store
    refuses."""
    try:
        found = os.stat(path)
        return found.st_size > 0 or not stat.S_ISREG(found.st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        return True
