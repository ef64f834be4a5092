"""Layout of checkpoints and pending writes in a state, the run ids of threads and namespaces, and stored classes.

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

The classes in checkpoints are registered under stable tags: messages, documents and LangGraph's own channel
values here, those of an application by the application, or by the saver's `allow`.

Invariant: the result of `build_tuple` equals the checkpoint that was put, in types and values. Two threads or
namespaces never share a run; an id never becomes a path. A class is used only if this program has registered
it, never because data names it.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from uuid import UUID

from langchain_core import messages
from langchain_core.documents import Document
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, PendingWrite, writes_sort_key
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, PregelTask, Send, StateSnapshot, TimeoutPolicy

import holdfast
from holdfast import Version
from holdfast.errors import InvalidCall, NotFound
from holdfast.integrations.langgraph.checkpoint_index import StoredCheckpoint, read_part

#: Characters besides letters and digits that are not escaped.
_UNESCAPED = frozenset("_-.:/,+=()[]!*$&';")
#: Maximum characters of an escaped thread or namespace; a longer one is hashed.
_MAX_NAME = 96
_HASHED = "%%"
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
    """Return a thread's id as text, or raise `InvalidCall`."""
    if isinstance(thread_id, bool) or not isinstance(thread_id, str | int | UUID):
        raise InvalidCall(f"thread_id is a string, not {type(thread_id).__name__}")
    if not str(thread_id):
        raise InvalidCall("thread_id is empty: give the thread a name")
    return str(thread_id)


def run_id(thread: str, namespace: str = "") -> str:
    """Return the id of the run of a thread's namespace."""
    written = _escape(thread, _UNESCAPED)
    return f"{written}|{_escape(namespace, _UNESCAPED | {'|'})}" if namespace else written


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


#: A task's path and, by index, channels and values.
Task = dict[str, Any]
Writes = dict[str, Task]


class NewCheckpoint(NamedTuple):
    """A checkpoint as the caller passed it, and its parent."""

    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Return the checkpoint's id."""
        return str(self.checkpoint["id"])

    @property
    def delta_channels(self) -> Iterable[str]:
        """Return the delta channels of the graph."""
        return self.metadata.get("counters_since_delta_snapshot") or ()


def build_state(new: NewCheckpoint, *, writes: Writes, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a checkpoint. Empty parts of `more` are left out."""
    if "parent_id" in new.checkpoint:
        raise InvalidCall("a checkpoint cannot have the key 'parent_id', which has a meaning here")
    values = new.checkpoint["channel_values"]
    whole = [name for name, value in values.items() if type(value) is _DeltaSnapshot]
    if whole:
        values = {name: value.value if name in whole else value for name, value in values.items()}
    fields = {key: value for key, value in new.checkpoint.items() if key != "channel_values"}
    return {
        "channel_values": values,
        "checkpoint": {**fields, "parent_id": new.parent},
        "metadata": new.metadata,
        "pending_writes": writes,
        **({"snapshots": whole} if whole else {}),
        **{key: value for key, value in more.items() if value},
    }


def build_tuple(found: StoredCheckpoint, thread: Any, namespace: str) -> CheckpointTuple:
    """Return a checkpoint in LangGraph's form."""
    version = found.version
    state = version.copy()
    if not isinstance(state, dict) or not {"checkpoint", "channel_values", "metadata"} <= state.keys():
        raise not_a_thread(version.run)
    values = state["channel_values"]
    for name in state.get("snapshots", ()):
        values[name] = _DeltaSnapshot(values[name])
    checkpoint = state["checkpoint"]
    parent = checkpoint.pop("parent_id")
    checkpoint["channel_values"] = values
    for late in found.late:
        for task, made in (read_part(late, "late", checkpoint["id"]) or {}).items():
            state["pending_writes"].setdefault(task, made)
    return CheckpointTuple(
        config=build_config(thread, namespace, checkpoint["id"]),
        checkpoint=checkpoint,
        metadata=state["metadata"],
        parent_config=build_config(thread, namespace, parent) if parent else None,
        pending_writes=list(sort_writes(state["pending_writes"])),
    )


def build_config(thread: str, namespace: str, checkpoint: str) -> Any:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


def index_writes(writes: Sequence[tuple[str, Any]]) -> dict[int, list[Any]]:
    """Return writes by their index: LangGraph's own channels have fixed ones."""
    if not isinstance(writes, Sequence) or isinstance(writes, str | bytes):
        raise InvalidCall(f"writes is a list of channels and values, not {type(writes).__name__}")
    rows: dict[int, list[Any]] = {}
    for index, write in enumerate(writes):
        if len(write) != 2 or not isinstance(write[0], str):
            raise InvalidCall(f"a write is a channel and a value, not {write!r:.60}")
        rows[WRITES_IDX_MAP.get(write[0], index)] = [*write]
    return rows


def sort_writes(writes: Writes) -> Iterator[PendingWrite]:
    """Yield pending writes in the order in which a run applies them."""
    rows = [
        (writes_sort_key(task["path"], name, index), (name, channel, value))
        for name, task in writes.items()
        for index, (channel, value) in task["writes"].items()
    ]
    for _, write in sorted(rows, key=lambda row: row[0]):
        yield write


def build_trails(new: NewCheckpoint, parent: Version, made: Writes) -> dict[str, Any]:
    """Return the trails of delta channels that a checkpoint does not have in full: the trails of its parent,
    and the writes that were made there. A channel whose trail is unknown is left out: LangGraph searches the
    ancestors for it."""
    trails: dict[str, Any] = {}
    for channel in new.delta_channels:
        if channel in new.checkpoint["channel_values"]:
            continue
        trail = _start_trail(parent, channel)
        if trail is not None:
            trail["writes"] += [[task, value] for task, name, value in sort_writes(made) if name == channel]
            trails[channel] = trail
    return trails


def _start_trail(parent: Version, channel: str) -> dict[str, Any] | None:
    """Return the start of a child's trail of a channel; None if it is unknown."""
    found = read_part(parent, "trail", channel)
    if found is not None:
        return dict(found)
    try:
        seed = parent.copy(("channel_values", channel))
    except NotFound:
        return {"writes": []} if read_part(parent, "checkpoint", "parent_id") is None else None
    whole = channel in (read_part(parent, "snapshots") or ())
    return {"seed": seed, "whole": whole, "writes": []}


def build_delta_history(trail: Mapping[str, Any], channel: str) -> Any:
    """Return a trail in LangGraph's form."""
    found: dict[str, Any] = {"writes": [(task, channel, value) for task, value in trail["writes"]]}
    if "seed" in trail:
        found["seed"] = _DeltaSnapshot(trail["seed"]) if trail["whole"] else trail["seed"]
    return found


def not_a_thread(run: str) -> InvalidCall:
    """Return the error for a run that is not a thread."""
    return InvalidCall(
        f"run {run!r} is not a thread of LangGraph: choose another thread_id, or another store", run=run
    )


_MESSAGES = (
    messages.AIMessage,
    messages.AIMessageChunk,
    messages.ChatMessage,
    messages.ChatMessageChunk,
    messages.FunctionMessage,
    messages.FunctionMessageChunk,
    messages.HumanMessage,
    messages.HumanMessageChunk,
    messages.RemoveMessage,
    messages.SystemMessage,
    messages.SystemMessageChunk,
    messages.ToolMessage,
    messages.ToolMessageChunk,
    Document,
)
_ADDRESSES = (
    ipaddress.IPv4Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Address,
    ipaddress.IPv6Interface,
    ipaddress.IPv6Network,
)


def register_known() -> None:
    """Make the classes of LangChain and LangGraph storable. Idempotent."""
    for message in _MESSAGES:
        holdfast.register(message, f"langchain.{message.__name__}")
    for record in (Command, Interrupt, Overwrite, PregelTask, StateSnapshot, TimeoutPolicy):
        holdfast.register(record, f"langgraph.{record.__name__}")
    holdfast.register(
        Send,
        "langgraph.Send",
        split=lambda send: [send.node, send.arg, send.timeout],
        join=lambda parts: Send(parts[0], parts[1], timeout=parts[2]),
    )
    holdfast.register(Item, "langgraph.Item", split=_item_parts, join=lambda parts: Item(**parts))
    for address in _ADDRESSES:
        holdfast.register(address, f"ipaddress.{address.__name__}", split=str, join=address)
    holdfast.register(
        re.Pattern,
        "re.Pattern",
        split=lambda pattern: [pattern.pattern, pattern.flags],
        join=lambda parts: re.compile(*parts),
    )


def register_allowed(allow: Any) -> None:
    """Make classes of the application storable, given as classes or by their names in modules that are
    already imported."""
    if isinstance(allow, str | type) or not isinstance(allow, Iterable):
        raise InvalidCall(
            "allow takes a list of classes, or of their names: allow=[Order, 'shop.models.Cart']"
        )
    for item in allow:
        cls = _imported_class(item) if isinstance(item, str) else item
        if not isinstance(cls, type):
            raise InvalidCall(f"allow takes classes, or their names, not {item!r:.60}")
        holdfast.register(cls)


def register_schema(names: Iterable[tuple[str, ...]]) -> None:
    """Make the classes of a graph's schemas storable, as LangGraph lists them: module and name. Classes that
    are not records (a TypedDict, a built-in type) need no registration."""
    for module, *name in names:
        found: Any = sys.modules.get(module)
        for part in name:
            found = getattr(found, part, None)
        if isinstance(found, type):
            try:
                holdfast.register(found)
            except InvalidCall:
                continue


def _imported_class(name: str) -> type:
    module, _, inner = name.rpartition(".")
    while module:
        found: Any = sys.modules.get(module)
        if found is not None:
            for part in inner.split("."):
                found = getattr(found, part, None)
            if isinstance(found, type):
                return found
        module, _, outer = module.rpartition(".")
        inner = f"{outer}.{inner}"
    raise InvalidCall(f"allow names {name!r}, which is not a class of an imported module: import it first")


def _item_parts(item: Item) -> dict[str, Any]:
    return {name: getattr(item, name) for name in ("value", "key", "namespace", "created_at", "updated_at")}
