"""Layout of checkpoints and pending writes in a state, and the run ids of threads and namespaces.

A state has these parts:

- `channel_values`: unchanged;
- `checkpoint`: its other fields, and `parent_id`, the checkpoint that it follows;
- `metadata`;
- `pending_writes`: by task its `path` and its `writes`, by LangGraph's index a channel and a value;
- `trail`: by delta channel, the writes since the last checkpoint that has the channel in full;
- `snapshots`: names of delta channels that this checkpoint has in full. Their values are stored among the
  others, so that they are shared in the same way;
- `ahead`: writes by checkpoint that arrived before it; `rivals`: writes of a second writer to tasks that have
  others; `late`: writes by checkpoint that arrived after it was continued; `left`: whether the pending writes
  include some that arrived much later; `thread`: thread and namespace, if the run's id does not contain them.

Data that changes together is one part, so that a version which only adds writes refers to all the rest.

A run id is the thread's id, then `|` and the namespace if there is one. A character that is not allowed in a
run id is written as `%` and two digits for each byte; a text that is too long, as `%%` and a hash.

Invariant: the result of `tuple_of` equals the checkpoint that was put, in types and values. Two threads or
namespaces never share a run; an id never becomes a path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from uuid import UUID

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, PendingWrite, writes_sort_key
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from holdfast import Version
from holdfast.errors import InvalidCall, NotFound
from holdfast.integrations.langgraph.lookup import Found, part

#: Characters besides letters and digits that are not escaped.
_PLAIN = frozenset("_-.:/,+=()[]!*$&';")
_MOST = 96
_HASHED = "%%"
#: Maximum characters of a checkpoint id, for a version's note and LangGraph's own tables.
_LONGEST = 1_000


class Place(NamedTuple):
    """The target of a config: a thread, optionally a namespace and a checkpoint."""

    thread: str
    namespace: str | None
    checkpoint: str | None

    @property
    def run(self) -> str:
        """Return the id of the run of this thread and namespace."""
        return run_id(self.thread, self.namespace or "")


def place_of(config: Any) -> Place:
    """Return the target of a config, or raise `InvalidCall`."""
    chosen = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(chosen, Mapping) or "thread_id" not in chosen:
        raise InvalidCall('a config names a thread: {"configurable": {"thread_id": "1"}}')
    namespace = chosen.get("checkpoint_ns")
    if namespace is not None and not isinstance(namespace, str):
        raise InvalidCall(f"checkpoint_ns is a string, not {type(namespace).__name__}")
    return Place(thread_of(chosen["thread_id"]), namespace, checkpoint_of(config))


def checkpoint_of(config: Any) -> str | None:
    """Return the checkpoint id in a config; None if it has none."""
    chosen = config.get("configurable") if isinstance(config, Mapping) else None
    found = chosen.get("checkpoint_id") if isinstance(chosen, Mapping) else None
    return check_id(found) if found else None


def check_id(checkpoint_id: Any) -> str:
    """Return a valid checkpoint id, or raise `InvalidCall`."""
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
    """Return a thread's id as text, or raise `InvalidCall`."""
    if isinstance(thread_id, bool) or not isinstance(thread_id, str | int | UUID):
        raise InvalidCall(f"thread_id is a string, not {type(thread_id).__name__}")
    if not str(thread_id):
        raise InvalidCall("thread_id is empty: give the thread a name")
    return str(thread_id)


def run_id(thread: str, namespace: str = "") -> str:
    """Return the id of the run of a thread's namespace."""
    beginning = _written(thread, _PLAIN)
    return f"{beginning}|{_written(namespace, _PLAIN | {'|'})}" if namespace else beginning


def beginning(thread: str) -> str:
    """Return the common prefix of the run ids of a thread's named namespaces."""
    return f"{_written(thread, _PLAIN)}|"


def names_of(run: str) -> tuple[str | None, str | None]:
    """Return the thread and the namespace of a run id; None for one that is hashed."""
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
    # Letters of other scripts are not escaped; only escaped characters are bytes.
    return unquote_to_bytes(written.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


#: A task's path and, by index, channels and values.
Task = dict[str, Any]
Writes = dict[str, Task]


class Given(NamedTuple):
    """A checkpoint as the caller passed it, and its parent."""

    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the checkpoint's id."""
        name: str = self.checkpoint["id"]
        return name


def state_of(given: Given, *, writes: Writes, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a checkpoint. Empty parts of `more` are left out."""
    if "parent_id" in given.checkpoint:
        raise InvalidCall("a checkpoint cannot have the key 'parent_id', which has a meaning here")
    values = given.checkpoint["channel_values"]
    whole = [name for name, value in values.items() if type(value) is _DeltaSnapshot]
    if whole:
        values = {name: value.value if name in whole else value for name, value in values.items()}
    fields = {key: value for key, value in given.checkpoint.items() if key != "channel_values"}
    return {
        "channel_values": values,
        "checkpoint": {**fields, "parent_id": given.parent},
        "metadata": given.metadata,
        "pending_writes": writes,
        **({"snapshots": whole} if whole else {}),
        **{key: value for key, value in more.items() if value},
    }


def tuple_of(found: Found, thread: Any, namespace: str) -> CheckpointTuple:
    """Return a checkpoint in LangGraph's form."""
    version = found.version
    state = version.copy()
    if not isinstance(state, dict) or not {"checkpoint", "channel_values", "metadata"} <= state.keys():
        raise no_thread(version.run)
    values = state["channel_values"]
    for name in state.get("snapshots", ()):
        values[name] = _DeltaSnapshot(values[name])
    checkpoint = state["checkpoint"]
    parent = checkpoint.pop("parent_id")
    checkpoint["channel_values"] = values
    for late in found.late:
        for task, made in (part(late, "late", checkpoint["id"]) or {}).items():
            state["pending_writes"].setdefault(task, made)
    return CheckpointTuple(
        config=config_of(thread, namespace, checkpoint["id"]),
        checkpoint=checkpoint,
        metadata=state["metadata"],
        parent_config=config_of(thread, namespace, parent) if parent else None,
        pending_writes=list(in_order(state["pending_writes"])),
    )


def config_of(thread: str, namespace: str, checkpoint: str) -> Any:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


def rows_of(writes: Sequence[tuple[str, Any]]) -> dict[int, list[Any]]:
    """Return writes by their index: LangGraph's own channels have fixed ones."""
    if not isinstance(writes, Sequence) or isinstance(writes, str | bytes):
        raise InvalidCall(f"writes is a list of channels and values, not {type(writes).__name__}")
    rows: dict[int, list[Any]] = {}
    for index, write in enumerate(writes):
        if len(write) != 2 or not isinstance(write[0], str):
            raise InvalidCall(f"a write is a channel and a value, not {write!r:.60}")
        rows[WRITES_IDX_MAP.get(write[0], index)] = [*write]
    return rows


def in_order(writes: Writes) -> Iterator[PendingWrite]:
    """Yield pending writes in the order in which a run applies them."""
    rows = [
        (writes_sort_key(task["path"], name, index), (name, channel, value))
        for name, task in writes.items()
        for index, (channel, value) in task["writes"].items()
    ]
    for _, write in sorted(rows, key=lambda row: row[0]):
        yield write


def trail_of(given: Given, parent: Version | None, came: Writes) -> dict[str, Any]:
    """Return the trails of delta channels that a checkpoint does not have in full: the trails of its parent,
    and the writes made since. A channel whose trail is unknown is left out: LangGraph searches the
    ancestors for it."""
    counters = given.metadata.get("counters_since_delta_snapshot") or {}
    trails: dict[str, Any] = {}
    for channel in counters:
        if channel in given.checkpoint["channel_values"] or parent is None:
            continue
        trail = _trail_at(parent, channel)
        if trail is not None:
            trail["writes"] += [[task, value] for task, name, value in in_order(came) if name == channel]
            trails[channel] = trail
    return trails


def _trail_at(parent: Version, channel: str) -> dict[str, Any] | None:
    """Return the start of a child's trail of a channel; None if it is unknown."""
    found = part(parent, "trail", channel)
    if found is not None:
        return dict(found)
    try:
        seed = parent.copy(("channel_values", channel))
    except NotFound:
        return {"writes": []} if part(parent, "checkpoint", "parent_id") is None else None
    whole = channel in (part(parent, "snapshots") or ())
    return {"seed": seed, "whole": whole, "writes": []}


def history_of(trail: Mapping[str, Any], channel: str) -> Any:
    """Return a trail in LangGraph's form."""
    found: dict[str, Any] = {"writes": [(task, channel, value) for task, value in trail["writes"]]}
    if "seed" in trail:
        found["seed"] = _DeltaSnapshot(trail["seed"]) if trail["whole"] else trail["seed"]
    return found


def no_thread(run: str) -> InvalidCall:
    """Return the error for a run that is not a thread."""
    return InvalidCall(
        f"run {run!r} is no thread of LangGraph: choose another thread_id, or another store", run=run
    )
