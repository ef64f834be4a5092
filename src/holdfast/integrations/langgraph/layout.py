"""Layout of checkpoints and pending writes in a run, and the run ids of threads and namespaces.

A checkpoint is a version whose key is the checkpoint's id. Its state has these parts:

- `channel_values`: unchanged;
- `checkpoint`: its other fields, and `parent_id`, the checkpoint that it follows;
- `metadata`;
- `trail`: by delta channel, the writes since the last checkpoint that has the channel in full;
- `snapshots`: names of delta channels that this checkpoint has in full. Their values are stored among the
  others, so that they are shared in the same way;
- `rollbacks`: by namespace, the newest rollback of a run above (the timeline that it started), if there was one;
- `thread`: thread and namespace, if the run's id does not contain them.

Pending writes are attachments of the checkpoint's id: they may arrive before it, or after the next one.

With a serializer of the application, values are `SealedValue`s: what the serializer returned for them.

A run id is the thread's id, then `|` and the namespace if there is one. A character that is not allowed in a
run id is written as `%` and two digits for each byte; a text that is too long, as `%%` and a hash.

Invariant: the result of `build_tuple` equals the checkpoint that was put, in types and values, besides snapshots that
it inherits. Two threads or namespaces never share a run; an id never becomes a path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from uuid import UUID

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, PendingWrite, writes_sort_key
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import holdfast
from holdfast import Version
from holdfast.errors import InvalidCall, NotFound, UnsupportedValue
from holdfast.integrations.langgraph.values import adapted
from holdfast.model.names import MAX_STEP
from holdfast.tree.codec import encode
from holdfast.tree.fold import UNCHANGED

#: Characters besides letters and digits that are not escaped.
_UNESCAPED = frozenset("_-.:/,+=()[]!*$&';")
#: Maximum characters of an escaped thread or namespace; a longer one is hashed.
_MAX_NAME = 96
_HASHED = "%%"
#: LangGraph's sources of a checkpoint.
_SOURCES = {"input", "loop", "update", "fork"}
#: Maximum characters of a checkpoint id, for a version's note and LangGraph's own tables.
_MAX_CHECKPOINT_ID = 1_000


class ThreadConfig(NamedTuple):
    """The target of a config: a thread, optionally a namespace and a checkpoint."""

    thread: str
    namespace: str | None
    checkpoint: str | None

    @property
    def run(self) -> str:
        """Return the id of the run of this thread and namespace."""
        return run_id(self.thread, self.namespace or "")


def parse_config(config: Any) -> ThreadConfig:
    """Return the target of a config, or raise `InvalidCall`."""
    chosen = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(chosen, Mapping) or "thread_id" not in chosen:
        raise InvalidCall('a config names a thread: {"configurable": {"thread_id": "1"}}')
    namespace = chosen.get("checkpoint_ns")
    if namespace is not None and not isinstance(namespace, str):
        raise InvalidCall(f"checkpoint_ns is a string, not {type(namespace).__name__}")
    return ThreadConfig(check_thread_id(chosen["thread_id"]), namespace, checkpoint_id_of(config))


def checkpoint_id_of(config: Any) -> str | None:
    """Return the checkpoint id in a config; None if it has none."""
    chosen = config.get("configurable") if isinstance(config, Mapping) else None
    found = chosen.get("checkpoint_id") if isinstance(chosen, Mapping) else None
    return check_checkpoint_id(found) if found else None


def check_checkpoint_id(checkpoint_id: Any) -> str:
    """Return a valid checkpoint id, or raise `InvalidCall`."""
    found = str(checkpoint_id) if isinstance(checkpoint_id, UUID) else checkpoint_id
    if (
        not isinstance(found, str)
        or not 0 < len(found) <= _MAX_CHECKPOINT_ID
        or not found.isprintable()
        or found.split() != [found]
    ):
        raise InvalidCall(f"a checkpoint id is a printable word, not {found!r:.60}")
    return found


def check_thread_id(thread_id: Any) -> str:
    """Return a thread's id as text, as LangGraph does for numbers and UUIDs, or raise `InvalidCall`."""
    if not isinstance(thread_id, str | int | float | UUID):
        raise InvalidCall(f"thread_id is a string, not {type(thread_id).__name__}")
    if not str(thread_id):
        raise InvalidCall("thread_id is empty: give the thread a name")
    return str(thread_id)


def run_id(thread: str, namespace: str = "") -> str:
    """Return the id of the run of a thread's namespace."""
    written = _escape(thread, _UNESCAPED)
    return f"{written}|{_escape(namespace, _UNESCAPED | {'|'})}" if namespace else written


def namespaces_above(namespace: str) -> list[str]:
    """Return the namespaces that contain one: the root, which is empty, and those of outer subgraphs."""
    parts = namespace.split("|") if namespace else []
    return ["|".join(parts[:count]) for count in range(len(parts))]


def namespace_prefix(thread: str) -> str:
    """Return the common prefix of the run ids of a thread's named namespaces."""
    return f"{_escape(thread, _UNESCAPED)}|"


def parse_run_id(run: str) -> tuple[str | None, str | None]:
    """Return the thread and the namespace of a run id; None for one that is hashed."""
    thread, _, namespace = run.partition("|")
    return _unescape(thread), _unescape(namespace)


def _escape(text: str, unescaped: frozenset[str]) -> str:
    if not all(part.strip(".") or not part for part in text.split("/")):
        # Its dots could be read as a path.
        unescaped = frozenset()
    written = "".join(
        char
        if char.isalnum() or char in unescaped
        else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )
    if len(written) <= _MAX_NAME:
        return written
    return _HASHED + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _unescape(written: str) -> str | None:
    if written.startswith(_HASHED):
        return None
    # Letters of other scripts are not escaped; only escaped characters are bytes.
    return unquote_to_bytes(written.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


#: The parts of the state of a thread without a checkpoint.
_EMPTY_PARTS = {"checkpoint", "thread", "rollbacks"}


class SealedValue(NamedTuple):
    """A value as a serializer of the application returned it."""

    kind: str
    data: bytes


holdfast.register(SealedValue, "langgraph.SealedValue")

Seal = Callable[[Any], Any]


class Serializer:
    """Converts values for the store and back, by LangGraph's `serde`; without one, values are stored as they are."""

    def __init__(self, serde: Any = None) -> None:
        self._serde = serde

    @property
    def is_given(self) -> bool:
        """Whether the application has given a serializer."""
        return self._serde is not None

    def seal(self, value: Any) -> Any:
        """Return a value as it is stored."""
        return value if self._serde is None else SealedValue(*self._serde.dumps_typed(value))

    def unseal(self, value: Any) -> Any:
        """Return the value of a stored one."""
        if not isinstance(value, SealedValue):
            return value
        if self._serde is None:
            raise InvalidCall(
                "this thread was stored with a serializer of the application: pass the same to HoldfastSaver(serde=…)"
            )
        return self._serde.loads_typed(tuple(value))


def is_checkpoint(stored: Any) -> bool:
    """Return whether a part of a state is a stored checkpoint, without its channels."""
    if isinstance(stored, dict):
        return isinstance(stored.get("id"), str) and "parent_id" in stored
    return isinstance(stored, SealedValue)


def is_empty_state(state: Any) -> bool:
    """Return whether a state is that of a thread without a checkpoint."""
    return isinstance(state, dict) and "checkpoint" in state and state.keys() <= _EMPTY_PARTS


def is_delta_snapshot(value: Any) -> bool:
    """Return whether a value is LangGraph's mark for the whole value of a delta channel."""
    return type(value) is _DeltaSnapshot


class StoredCheckpoint(NamedTuple):
    """A checkpoint: its version, and the writes that were made to it."""

    version: Version
    writes: Writes
    unseal: Seal
    #: Whether its trails are valid: they are not if one of its ancestors may have been put again.
    has_trails: bool = True

    def part(self, *path: str, default: Any = None) -> Any:
        """Return a private copy of a part of the state, or the default if the state has no such part. `NotFound` if
        the version was pruned, or an artifact is missing."""
        if path[0] == "trail" and not self.has_trails:
            return default
        try:
            with adapted():
                return self.unseal(self.version.copy(path))
        except NotFound as error:
            if "path" not in error.details:
                raise
            return default

    @property
    def parent(self) -> str | None:
        """Return the id of the checkpoint that it follows; None if it is the first."""
        found: str | None = (self.part("checkpoint") or {}).get("parent_id")
        return found


class PendingValue(NamedTuple):
    """A write of a task that is not yet applied. One task may have several paths: LangGraph's `update_state` writes on
    behalf of a task that has failed."""

    path: str
    channel: str
    value: Any


#: Writes by task and index.
Writes = dict[str, dict[int, PendingValue]]


class NewCheckpoint(NamedTuple):
    """A checkpoint as the caller passed it, and its parent."""

    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    #: The channels that changed since the parent, according to LangGraph.
    changed: Collection[str] = ()

    @property
    def id(self) -> str:
        """Return the checkpoint's id."""
        return str(self.checkpoint["id"])

    @property
    def delta_channels(self) -> Iterable[str]:
        """Return the delta channels of the graph."""
        return self.metadata.get("counters_since_delta_snapshot") or ()

    @property
    def names_changes(self) -> bool:
        """Whether `changed` has all channels that changed: a caller that names none may not know, besides LangGraph
        when it continues from an old checkpoint."""
        return bool(self.changed) or self.metadata.get("source") == "fork"

    @property
    def versions(self) -> Mapping[str, Any]:
        """Return the versions of channels."""
        return self.checkpoint.get("channel_versions") or {}

    @property
    def seen(self) -> Mapping[str, Any]:
        """Return, by node, the versions of channels that it has seen."""
        return self.checkpoint.get("versions_seen") or {}

    def step_after(self, before: Mapping[str, Any]) -> str:
        """Return the step name for a list of versions: the nodes that ran since the parent, which has seen `before`."""
        source = self.metadata.get("source")
        if source == "loop":
            ran = [
                name
                for name, seen in self.seen.items()
                if not name.startswith("__") and seen != before.get(name)
            ]
            if ran:
                return ", ".join(sorted(ran))[:MAX_STEP]
        return source if source in _SOURCES else "checkpoint"


def are_stored_alike(one: Any, other: Any) -> bool:
    """Return whether two values are stored in the same way."""
    try:
        with adapted():
            return encode(one) == encode(other)
    except UnsupportedValue:
        # Only a serializer of the application can store it.
        return bool(one == other)


def build_state(
    new: NewCheckpoint, values: Mapping[str, Any], *, seal: Seal, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the state of a checkpoint with these channel values. Empty parts of `more` are left out."""
    if "parent_id" in new.checkpoint:
        raise InvalidCall("a checkpoint cannot have the key 'parent_id', which has a meaning here")
    whole = [name for name, value in values.items() if is_delta_snapshot(value)]
    if whole:
        values = {name: value.value if name in whole else value for name, value in values.items()}
    fields = {key: value for key, value in new.checkpoint.items() if key != "channel_values"}
    return {
        "channel_values": {
            name: value if value is UNCHANGED else seal(value) for name, value in values.items()
        },
        "checkpoint": seal({**fields, "parent_id": new.parent}),
        "metadata": seal(new.metadata),
        **({"snapshots": whole} if whole else {}),
        **{key: value for key, value in more.items() if value},
    }


def build_tuple(
    found: StoredCheckpoint, thread: Any, namespace: str, *, inherit: bool = True
) -> CheckpointTuple:
    """Return a checkpoint in LangGraph's form. With `inherit`, it also has the snapshots of delta channels that were
    not written since."""
    with adapted():
        state = found.version.copy()
    if not isinstance(state, dict) or not {"checkpoint", "channel_values", "metadata"} <= state.keys():
        raise not_a_thread(found.version.run)
    unseal = found.unseal
    values = {name: unseal(value) for name, value in state["channel_values"].items()}
    for name in state.get("snapshots", ()):
        values[name] = _DeltaSnapshot(values[name])
    for name, sealed in state.get("trail", {}).items():
        trail = unseal(sealed) if inherit and found.has_trails else {}
        if trail.get("whole") and not trail["writes"]:
            values[name] = _DeltaSnapshot(trail["seed"])
    checkpoint = unseal(state["checkpoint"])
    parent = checkpoint.pop("parent_id")
    checkpoint["channel_values"] = values
    writes = {**_writes_in_state(state.get("pending_writes")), **found.writes}
    return CheckpointTuple(
        config=build_config(thread, namespace, checkpoint["id"]),
        checkpoint=checkpoint,
        metadata=unseal(state["metadata"]),
        parent_config=build_config(thread, namespace, parent) if parent else None,
        pending_writes=list(sort_writes(writes)),
    )


def build_config(thread: str, namespace: str, checkpoint: str) -> Any:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


# Pending writes. Those of one call are one attachment, named by the task; a write to one of LangGraph's own channels,
# which a later one replaces, is an attachment of its own.


def index_writes(writes: Sequence[tuple[str, Any]]) -> dict[int, list[Any]]:
    """Return writes by their index. LangGraph's own channels have fixed ones; of several writes to one of them, the
    last counts if there are no others, else the first."""
    if not isinstance(writes, Sequence) or isinstance(writes, str | bytes):
        raise InvalidCall(f"writes is a list of channels and values, not {type(writes).__name__}")
    for write in writes:
        if not isinstance(write, tuple | list) or len(write) != 2 or not isinstance(write[0], str):
            raise InvalidCall(f"a write is a channel and a value, not {write!r:.60}")
    rows: dict[int, list[Any]] = {}
    replaces = all(channel in WRITES_IDX_MAP for channel, _ in writes)
    for number, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, number)
        if replaces or index not in rows:
            rows[index] = [channel, value]
    return rows


def attachment_name(task: str, index: int | str = "") -> str:
    """Return the name of the attachment for the writes of a task."""
    return f"{task}|{index}"


def collect_writes(attached: Mapping[str, Any], unseal: Seal) -> Writes:
    """Return the writes of attachments by task."""
    found: Writes = {}
    # The writes of a task that were stored first are in the attachment without an index, which is the first by name.
    for name, stored in sorted(attached.items()):
        task = found.setdefault(name.rpartition("|")[0], {})
        for index, (channel, value) in stored["writes"].items():
            if index not in task:
                task[index] = PendingValue(stored["path"], channel, unseal(value))
    return found


def _writes_in_state(stored: Mapping[str, Any] | None) -> Writes:
    """Return the writes that earlier development versions stored in the state."""
    return {
        name: {index: PendingValue(task["path"], *write) for index, write in task["writes"].items()}
        for name, task in (stored or {}).items()
    }


def sort_writes(writes: Writes) -> Iterator[PendingWrite]:
    """Yield pending writes in the order in which a run applies them."""
    rows = [
        (writes_sort_key(write.path, name, index), (name, write.channel, write.value))
        for name, task in writes.items()
        for index, write in task.items()
    ]
    for _, write in sorted(rows, key=lambda row: row[0]):
        yield write


# Delta channels


def build_trails(new: NewCheckpoint, parent: StoredCheckpoint) -> dict[str, Any]:
    """Return the trails of delta channels that a checkpoint does not have in full: the trails of its parent,
    and the writes that were made there. A channel whose trail is unknown is left out: LangGraph searches the
    ancestors for it."""
    trails: dict[str, Any] = {}
    for channel in new.delta_channels:
        if channel in new.checkpoint["channel_values"]:
            continue
        trail = _start_trail(parent, channel)
        if trail is not None:
            made = sort_writes(parent.writes)
            trail["writes"] += [[task, value] for task, name, value in made if name == channel]
            trails[channel] = trail
    return trails


def _start_trail(parent: StoredCheckpoint, channel: str) -> dict[str, Any] | None:
    """Return the start of a child's trail of a channel; None if it is unknown."""
    found = parent.part("trail", channel)
    if found is not None:
        return dict(found)
    seed = parent.part("channel_values", channel, default=_MISSING)
    if seed is _MISSING:
        return {"writes": []} if parent.parent is None else None
    return {"seed": seed, "whole": channel in (parent.part("snapshots") or ()), "writes": []}


_MISSING: Any = object()


class DeltaWalk:
    """The search for the value of a delta channel, from a checkpoint to its ancestors."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        #: The writes of each checkpoint, the newest first.
        self._writes: list[list[Any]] = []
        self._seed: dict[str, Any] = {}

    def add_trail(self, stored: StoredCheckpoint) -> bool:
        """Add the trail of a checkpoint; return False if it has none."""
        trail = stored.part("trail", self._channel)
        if trail is None:
            return False
        self._writes.append([(task, self._channel, value) for task, value in trail["writes"]])
        if "seed" in trail:
            self._add_seed(trail["seed"], trail["whole"])
        return True

    def add(self, stored: StoredCheckpoint) -> bool:
        """Add an ancestor; return whether the search has ended."""
        writes = {**_writes_in_state(stored.part("pending_writes")), **stored.writes}
        self._writes.append([write for write in sort_writes(writes) if write[1] == self._channel])
        value = stored.part("channel_values", self._channel, default=_MISSING)
        if value is _MISSING:
            return self.add_trail(stored)
        self._add_seed(value, self._channel in (stored.part("snapshots") or ()))
        return True

    def result(self) -> Any:
        """Return the writes, the oldest first, and the value before them, in LangGraph's form."""
        return {"writes": [write for made in reversed(self._writes) for write in made], **self._seed}

    def _add_seed(self, value: Any, is_snapshot: bool) -> None:
        self._seed = {"seed": _DeltaSnapshot(value) if is_snapshot else value}


def not_a_thread(run: str) -> InvalidCall:
    """Return the error for a run that is not a thread."""
    return InvalidCall(
        f"run {run!r} is not a thread of LangGraph: choose another thread_id, or another store", run=run
    )
