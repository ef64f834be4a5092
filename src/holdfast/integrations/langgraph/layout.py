"""How a checkpoint lies in a state, and how its pending writes do.

- `channel_values`: as they are;
- `checkpoint`: its other fields, and `parent_id`, the checkpoint that it followed;
- `metadata`;
- `pending_writes`: by task its `path` and its `writes`, by LangGraph's index a channel and a value;
- `trail`: by delta channel, the writes that lead here from the last checkpoint that has it whole;
- `snapshots`: names of delta channels that this checkpoint has whole. Their values stand among the others as they
  are, so that they are shared like those;
- `ahead`: writes by checkpoint that came before it; `rivals`: writes of a second writer to tasks that have others;
  `late`: writes by checkpoint that came after it was continued; `left`: do the pending writes hold such that came
  much later? `thread`: whose it is, if the run's id cannot say so.

What belongs together is one part, so that a version which only adds writes refers to all the rest.

Invariant: what `tuple_of` gives equals what was put, in types and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointTuple,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from holdfast import Version
from holdfast.errors import InvalidCall, NotFound
from holdfast.integrations.langgraph.places import Found, part

#: A task's path and, by index, channels and values.
Task = dict[str, Any]
Writes = dict[str, Task]


class Given(NamedTuple):
    """A checkpoint as it was handed in, and the checkpoint that it follows."""

    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The checkpoint's id."""
        name: str = self.checkpoint["id"]
        return name


def state_of(given: Given, *, writes: Writes, more: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a checkpoint. Of `more`, what is empty is left out."""
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
    """A checkpoint as LangGraph knows it."""
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
    """The config that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


def rows_of(writes: Sequence[tuple[str, Any]]) -> dict[int, list[Any]]:
    """Writes by their index: LangGraph's own channels have fixed ones."""
    if not isinstance(writes, Sequence) or isinstance(writes, str | bytes):
        raise InvalidCall(f"writes is a list of channels and values, not {type(writes).__name__}")
    rows: dict[int, list[Any]] = {}
    for index, write in enumerate(writes):
        if len(write) != 2 or not isinstance(write[0], str):
            raise InvalidCall(f"a write is a channel and a value, not {write!r:.60}")
        rows[WRITES_IDX_MAP.get(write[0], index)] = [*write]
    return rows


def in_order(writes: Writes) -> Iterator[PendingWrite]:
    """Pending writes in the order in which a run applies them."""
    rows = [
        (writes_sort_key(task["path"], name, index), (name, channel, value))
        for name, task in writes.items()
        for index, (channel, value) in task["writes"].items()
    ]
    for _, write in sorted(rows, key=lambda row: row[0]):
        yield write


def trail_of(given: Given, parent: Version | None, came: Writes) -> dict[str, Any]:
    """The trails of delta channels that a checkpoint does not have whole: those of its parent, and the writes that came
    from there. A channel whose trail is not known is left out: it is looked for among the ancestors."""
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
    """What a child's trail of a channel begins with."""
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
    """A trail as LangGraph asks for it."""
    found: dict[str, Any] = {"writes": [(task, channel, value) for task, value in trail["writes"]]}
    if "seed" in trail:
        found["seed"] = _DeltaSnapshot(trail["seed"]) if trail["whole"] else trail["seed"]
    return found


def no_thread(run: str) -> InvalidCall:
    """The refusal to take any run for a thread."""
    return InvalidCall(
        f"run {run!r} is no thread of LangGraph: choose another thread_id, or another store", run=run
    )
