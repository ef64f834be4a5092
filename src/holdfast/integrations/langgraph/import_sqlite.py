"""Import of the threads of a LangGraph `SqliteSaver` database into a store.

The file is only read. Each checkpoint is put as its thread put it, with its writes, and is then read back and
compared. Checkpoints that an interrupted import already copied are only compared, so an import can be
repeated.

Invariant: nothing in the file makes this program import or construct a class that the caller has not named;
unreadable data is refused, and the checkpoints before it stay.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.errors import HoldfastError, IncompatibleFormat, InvalidCall, NotFound, StoreBusy
from holdfast.integrations.langgraph.layout import (
    NewCheckpoint,
    PendingValue,
    Writes,
    build_tuple,
    parse_config,
    sort_writes,
)
from holdfast.integrations.langgraph.saver import HoldfastSaver
from holdfast.integrations.langgraph.thread import CheckpointThread

#: Called with the number of copied checkpoints and the total.
Progress = Callable[[int, int], None]
#: The log in which LangGraph reports a value that it does not decode.
_LOG = "langgraph.checkpoint.serde.jsonplus"


class Copied(NamedTuple):
    """Result of an import."""

    threads: int
    checkpoints: int
    writes: int
    #: Thread, namespace, and the error that ended its copy.
    refused: tuple[tuple[str, str, HoldfastError], ...] = ()


def import_sqlite(
    file: str | os.PathLike[str],
    saver: HoldfastSaver,
    *,
    allow: Iterable[type] = (),
    progress: Progress | None = None,
) -> Copied:
    """Copy all threads of a `SqliteSaver` database. `allow` lists the classes in it, in addition to those of
    LangGraph and LangChain."""
    known = [(cls.__module__, cls.__name__) for cls in allow]
    serde = JsonPlusSerializer(allowed_msgpack_modules=known or None)
    checkpoints = writes = done = 0
    threads: set[str] = set()
    refused: list[tuple[str, str, HoldfastError]] = []
    with open_database(file) as (db, total):
        has_path = any(row[1] == "task_path" for row in db.execute("PRAGMA table_info(writes)"))
        places = db.execute("SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY 1, 2")
        for thread, namespace in places.fetchall():
            threads.add(thread)
            try:
                for count in _copy(db, serde, saver, thread, namespace, has_path):
                    checkpoints, writes, done = checkpoints + 1, writes + count, done + 1
                    if progress is not None:
                        progress(done, total)
            except HoldfastError as error:
                refused.append((thread, namespace, error))
            except sqlite3.DatabaseError as error:
                refused.append((thread, namespace, _unreadable(os.fspath(file), error)))
    return Copied(len(threads), checkpoints, writes, tuple(refused))


@contextmanager
def open_database(file: str | os.PathLike[str]) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Open a `SqliteSaver` database read-only; yield it and its number of checkpoints."""
    path = os.fspath(file)
    if not os.path.isfile(path):
        raise NotFound(f"there is no file {path}: name a database of LangGraph's SqliteSaver")
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as db:
            db.execute("SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints LIMIT 1")
            yield db, db.execute("SELECT count(*) FROM checkpoints").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: sqlite3.DatabaseError) -> HoldfastError:
    """Return the error for an unreadable file, with a remedy."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"{path} is being written by another program: try again when that has finished")
    if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB):
        return InvalidCall(f"{path} is not a database of LangGraph's SqliteSaver: {error}")
    return IncompatibleFormat(f"{path} is damaged: {error}; import a copy made by the .recover of sqlite3")


def _copy(
    db: sqlite3.Connection,
    serde: JsonPlusSerializer,
    saver: HoldfastSaver,
    thread: str,
    namespace: str,
    has_path: bool,
) -> Iterator[int]:
    """Copy a namespace, oldest checkpoint first; yield the number of writes of each copied and compared
    checkpoint."""
    where: dict[str, Any] = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
    copy = saver.thread(parse_config(where))
    found = db.execute(
        "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
        "WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id",
        (thread, namespace),
    )
    for name, parent, kind, data, about in found:
        checkpoint = _decode(serde, kind, data, f"checkpoint {name}")
        if (
            not isinstance(checkpoint, dict)
            or checkpoint.get("id") != name
            or not isinstance(checkpoint.get("channel_values"), dict)
        ):
            raise IncompatibleFormat(
                f"checkpoint {name} of thread {thread!r} has another id or no channel values"
            )
        metadata = _parse_metadata(about, f"checkpoint {name} of thread {thread!r}")
        copy.put(NewCheckpoint(parent, checkpoint, metadata))
        tasks = _read_writes(db, serde, (thread, namespace, name), has_path)
        expected = list(sort_writes(tasks))
        if _read(copy, name).pending_writes != expected:
            for task, made in tasks.items():
                for path in dict.fromkeys(write.path for write in made.values()):
                    rows = {
                        index: [write.channel, write.value]
                        for index, write in made.items()
                        if write.path == path
                    }
                    copy.put_writes(name, task, path, rows)
        back = _read(copy, name)
        if (back.checkpoint, back.metadata, back.pending_writes) != (checkpoint, metadata, expected):
            raise IncompatibleFormat(f"checkpoint {name} of thread {thread!r} differs from its copy")
        yield len(expected)


def _parse_metadata(data: Any, owner: str) -> dict[str, Any]:
    try:
        found = {} if data is None else json.loads(data)
    except (ValueError, TypeError) as error:
        raise IncompatibleFormat(f"the metadata of {owner} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise IncompatibleFormat(f"the metadata of {owner} is a {type(found).__name__}, not a dict")
    return found


def _read(thread: CheckpointThread, name: str) -> CheckpointTuple:
    found = thread.read(name)
    if found is None:
        raise NotFound(f"checkpoint {name} was removed meanwhile")
    return build_tuple(found, "", "", inherit=False)


def _read_writes(
    db: sqlite3.Connection, serde: JsonPlusSerializer, where: tuple[str, str, str], has_path: bool
) -> Writes:
    path = "task_path" if has_path else "''"
    rows = db.execute(
        f"SELECT task_id, {path}, idx, channel, type, value FROM writes "  # noqa: S608 - one of two constants
        "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_id, idx",
        where,
    )
    tasks: Writes = {}
    for task, path, index, channel, kind, data in rows:
        value = _decode(serde, kind, data, f"a write of checkpoint {where[2]}")
        tasks.setdefault(task, {})[index] = PendingValue(path or "", channel, value)
    return tasks


def _decode(serde: JsonPlusSerializer, kind: str, data: bytes, what: str) -> Any:
    """Return a value that LangGraph wrote; refuse a class that was not allowed."""
    if kind not in ("msgpack", "null", "bytes", "bytearray"):
        raise IncompatibleFormat(f"{what} is written as {kind!r}, which an older LangGraph reads")
    with _collect_refused() as refused:
        try:
            value = serde.loads_typed((kind, data))
        except Exception as error:
            raise IncompatibleFormat(f"{what} cannot be read: {error!r}") from error
    if refused:
        raise IncompatibleFormat(f"{what} holds {refused[0]}: allow it by its name, if it is yours")
    return value


class _CollectingHandler(logging.Handler):
    """Log handler that collects messages."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())


@contextmanager
def _collect_refused() -> Iterator[list[str]]:
    """Yield a list that collects the values that LangGraph refused to read, or read as something else."""
    found: list[str] = []
    handler = _CollectingHandler(found)
    log = logging.getLogger(_LOG)
    propagate = log.propagate
    stop = register_serde_event_listener(lambda event: found.append(f"{event['module']}.{event['name']}"))
    log.addHandler(handler)
    log.propagate = False
    try:
        yield found
    finally:
        log.propagate = propagate
        log.removeHandler(handler)
        stop()
