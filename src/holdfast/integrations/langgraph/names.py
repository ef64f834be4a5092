"""Which run a thread and a namespace are, and what a config asks for.

A run id is the thread's id, then `|` and the namespace if there is one. What cannot stand in a run id is written as
`%` and two digits for each byte; what is too long, as `%%` and a hash.

Invariant: two threads or namespaces never share a run; whatever stands in an id, it never becomes a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from uuid import UUID

from holdfast.errors import InvalidCall

#: Signs beside letters and digits that stand for themselves.
_PLAIN = frozenset("_-.:/,+=()[]!*$&';")
_MOST = 96
_HASHED = "%%"
#: What a version's note and LangGraph's own tables can hold.
_LONGEST = 1_000


class Place(NamedTuple):
    """What a config names: a thread, perhaps a namespace, perhaps a checkpoint."""

    thread: str
    namespace: str | None
    checkpoint: str | None

    @property
    def run(self) -> str:
        """The id of the run of this thread and namespace."""
        return run_id(self.thread, self.namespace or "")


def place_of(config: Any) -> Place:
    """What a config names, or `InvalidCall`."""
    chosen = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(chosen, Mapping) or "thread_id" not in chosen:
        raise InvalidCall('a config names a thread: {"configurable": {"thread_id": "1"}}')
    namespace = chosen.get("checkpoint_ns")
    if namespace is not None and not isinstance(namespace, str):
        raise InvalidCall(f"checkpoint_ns is a string, not {type(namespace).__name__}")
    return Place(thread_of(chosen["thread_id"]), namespace, checkpoint_of(config))


def checkpoint_of(config: Any) -> str | None:
    """The checkpoint that a config names, if it names one."""
    chosen = config.get("configurable") if isinstance(config, Mapping) else None
    found = chosen.get("checkpoint_id") if isinstance(chosen, Mapping) else None
    return check_id(found) if found else None


def check_id(checkpoint_id: Any) -> str:
    """A checkpoint id that may be used, or `InvalidCall`."""
    found = str(checkpoint_id) if isinstance(checkpoint_id, UUID) else checkpoint_id
    if (
        not isinstance(found, str)
        or not 0 < len(found) <= _LONGEST
        or not found.isprintable()
        or found.split() != [found]
    ):
        raise InvalidCall(f"a checkpoint id is a printable word, not {found!r:.60}")
    return found


def thread_of(thread_id: Any) -> str:
    """A thread's id as text, or `InvalidCall`."""
    if isinstance(thread_id, bool) or not isinstance(thread_id, str | int | UUID):
        raise InvalidCall(f"thread_id is a string, not {type(thread_id).__name__}")
    if not str(thread_id):
        raise InvalidCall("thread_id is empty: give the thread a name")
    return str(thread_id)


def run_id(thread: str, namespace: str = "") -> str:
    """The id of the run that a thread's namespace is."""
    beginning = _written(thread, _PLAIN)
    return f"{beginning}|{_written(namespace, _PLAIN | {'|'})}" if namespace else beginning


def beginning(thread: str) -> str:
    """How the ids of the runs of all further namespaces of a thread begin."""
    return f"{_written(thread, _PLAIN)}|"


def names_of(run: str) -> tuple[str | None, str | None]:
    """The thread and the namespace of a run id; None for one that is too long to be read from it."""
    thread, _, namespace = run.partition("|")
    return _read(thread), _read(namespace)


def _written(text: str, plain: frozenset[str]) -> str:
    if all(part.strip(".") or not part for part in text.split("/")):
        written = "".join(sign if sign.isalnum() or sign in plain else _escaped(sign) for sign in text)
    else:
        written = "".join(sign if sign.isalnum() else _escaped(sign) for sign in text)
    if len(written) <= _MOST:
        return written
    return _HASHED + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _escaped(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode("utf-8", "surrogatepass"))


def _read(written: str) -> str | None:
    if written.startswith(_HASHED):
        return None
    # Letters of other scripts stand for themselves; only what was escaped is bytes.
    return unquote_to_bytes(written.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
