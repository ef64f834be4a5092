"""Parse the URL or path of a store, and open the store.

Invariant: an invalid address is refused before any file or server is accessed; no message contains a password.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import Any

from holdfast.errors import IncompatibleFormat, InvalidCall, StoreUnavailable
from holdfast.model.checks import check_seconds
from holdfast.model.names import short
from holdfast.store.postgres.url import SCHEMES, shown
from holdfast.store.protocol import Store

#: Texts that libpq takes for the address of a server, or that were meant to be one. Each of these expressions takes
#: linear time.
_LIKE_SERVER = re.compile(
    r"\s*(?:postgres\w*:|(?:host|hostaddr|port|dbname|user|password|passfile|service|servicefile|options|"
    r"application_name|connect_timeout|client_encoding|ssl\w+|channel_binding|target_session_attrs|keepalives\w*)\s*=)",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"password\s*=", re.IGNORECASE)
_FIRST_KEYWORD = re.compile(r"\s*\w+\s*=")
_NEXT_KEYWORD = re.compile(r"\s\w+\s*=")
_FORM = "Write the address of a PostgreSQL store as postgresql://user:password@host:port/database"
#: Seconds. SQLite counts milliseconds in 32 bits.
_MAX_TIMEOUT = 1_000_000


def open_store(
    where: str | os.PathLike[str],
    *,
    durability: str,
    artifacts: str | os.PathLike[str] | None,
    timeout: float,
    create: bool,
    clock: Callable[[], int] | None = None,
) -> Store:
    """Open the store at an address; create it if it does not exist and `create` is set. `clock` returns microseconds
    since 1970 and replaces the store's own clock."""
    if durability not in ("durable", "fast", "memory"):
        raise InvalidCall(f"durability is 'durable', 'fast' or 'memory', not {short(durability)}")
    check_seconds("timeout", timeout, most=_MAX_TIMEOUT)
    text = file_of(where)
    folder = None if artifacts is None else _folder(artifacts)
    if is_server(where):
        _require_driver()
        from holdfast.store.postgres.store import PostgresStore

        return PostgresStore(
            os.fspath(where),
            durability=durability,
            artifacts=folder,
            timeout=timeout,
            create=create,
            clock=clock,
        )
    if text == ":memory:":
        from holdfast.store.memory.store import MemoryStore

        return MemoryStore(clock=clock)
    if not create and not _has_content(text):
        raise StoreUnavailable(f"there is no store at {text}", store=text, missing=True)
    from holdfast.store.sqlite.store import SQLiteStore

    return SQLiteStore(text, durability=durability, artifacts=folder, timeout=timeout, clock=clock)


def formats(where: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the format of a store and the newest format that this Holdfast knows. Changes nothing."""
    if is_server(where):
        _require_driver()
        from holdfast.store.postgres.schema import formats_of

        return formats_of(os.fspath(where))
    from holdfast.store.sqlite.schema import format_of, migrations

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
    """Return whether an address is that of a server, rather than a file."""
    return isinstance(where, str) and where.startswith(SCHEMES)


def file_of(where: str | os.PathLike[str]) -> str:
    """Return the file of a store, `:memory:`, or the address of a server without its password."""
    text = _text(where)
    if not text:
        raise InvalidCall("open takes a path, 'sqlite:///path', 'postgresql://…' or ':memory:'")
    if is_server(text):
        return shown(text)
    if _PASSWORD.search(text):
        raise InvalidCall(
            f"the name of a file cannot contain 'password='. {_FORM}, not as 'host=… dbname=… password=…'"
        )
    first = _FIRST_KEYWORD.match(text)
    # `word=… word=…`: libpq has more keywords with every release.
    if _LIKE_SERVER.match(text) or (first is not None and _NEXT_KEYWORD.search(text, first.end())):
        # Do not show it: it may contain a password.
        raise InvalidCall(f"{_FORM}, not as 'host=… dbname=…'; to open a file with such a name, write ./name")
    scheme, found, rest = text.partition("://")
    if found and scheme == "sqlite":
        text = rest[1:] if rest.startswith("/") else rest
        if not text:
            raise InvalidCall(
                "'sqlite:///path' needs the name of a file: write sqlite:///runs.db, or sqlite:////absolute/runs.db"
            )
    elif found:
        raise InvalidCall(
            f"unknown kind of store {scheme}://…: open a path, 'sqlite:///path', 'postgresql://…' or ':memory:'"
        )
    return _check_path(text)


def _folder(artifacts: Any) -> str:
    text = _text(artifacts)
    if not text:
        raise InvalidCall(f"artifacts is the path of a folder, not {short(artifacts)}")
    return _check_path(text)


def _text(path: Any) -> str | None:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    return text if isinstance(text, str) else None


def _check_path(path: str) -> str:
    """Return a path; `InvalidCall` if no file system can have it."""
    if "\0" in path:
        raise InvalidCall("a path cannot contain a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidCall(
            f"the path {short(path)} contains a lone surrogate, which no file name can"
        ) from None
    return path


def _require_driver() -> None:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise StoreUnavailable(
            "a store on PostgreSQL needs the driver psycopg, which is not installed: pip install 'holdfast[postgres]'"
        )


def _has_content(path: str) -> bool:
    """Return whether there is a file that is not empty: SQLite would turn an empty one into a store. The store itself
    refuses a path that is not a file."""
    try:
        found = os.stat(path)
        return found.st_size > 0 or not stat.S_ISREG(found.st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        return True
