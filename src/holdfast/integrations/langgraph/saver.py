"""The saver: LangGraph's checkpointer protocol for blocking and asynchronous callers.

The blocking methods are the implementation; each asynchronous one calls its blocking counterpart in another
thread.

Invariant: a call that returned is durable; one that raised has changed nothing, unless it raised
`CommitUnknown`.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from operator import itemgetter
from typing import Any

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)

import holdfast
from holdfast import Holdfast, Retention
from holdfast.errors import AlreadyExists, InvalidCall, NotFound
from holdfast.integrations.histories import run_off_loop
from holdfast.integrations.langgraph import layout
from holdfast.integrations.langgraph.checkpoint_index import (
    StoredCheckpoint,
    iter_checkpoints,
    iter_versions,
    parse_note,
    read_part,
)
from holdfast.integrations.langgraph.layout import build_config, build_delta_history, build_tuple
from holdfast.integrations.langgraph.thread import CheckpointThread

#: Ids of runs. Defined here because `list` is a method in the class.
Runs = list[str]
#: A checkpoint's id, the rank of its run, the checkpoint, its thread and namespace.
Candidate = tuple[str, int, StoredCheckpoint, tuple[str, str]]
#: Maximum number of runs that are cached.
_MAX_CACHED = 256
#: Checkpoints per batch of an asynchronous list.
_BATCH = 8


def _asynchronous(method: Callable[..., Any]) -> Any:
    """Return the asynchronous counterpart of a blocking method, or of the method that a subclass has instead."""

    @wraps(method)
    async def call(self: HoldfastSaver, *args: Any, **options: Any) -> Any:
        return await run_off_loop(getattr(self, method.__name__), *args, **options)

    return call


class HoldfastSaver(BaseCheckpointSaver[Any]):
    """Checkpointer that stores LangGraph's checkpoints in a store. Safe to use from several threads and
    tasks.

    `store` is an open `Holdfast`, or an argument for `holdfast.open`; a store that the saver opened is closed
    by `close()`. `allow` lists your own classes that channels may hold, or their names. With `single_writer`,
    a writer that does not continue from the latest checkpoint is refused with `StaleVersion`; otherwise it
    gets a new timeline.
    """

    def __init__(
        self,
        store: Holdfast | str | os.PathLike[str],
        *,
        single_writer: bool = False,
        allow: Iterable[type | str] = (),
    ) -> None:
        super().__init__()
        if not isinstance(single_writer, bool):
            raise InvalidCall(f"single_writer is True or False, not {single_writer!r:.60}")
        layout.register_known()
        layout.register_allowed(allow)
        self._owns_store = not isinstance(store, Holdfast)
        self.hf: Holdfast = store if isinstance(store, Holdfast) else holdfast.open(store)
        self._single_writer = single_writer
        self._cached: OrderedDict[str, CheckpointThread] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def run_id(thread_id: Any, checkpoint_ns: str = "") -> str:
        """Return the id of the run of a thread, or of one of its namespaces."""
        return layout.run_id(layout.check_thread_id(thread_id), checkpoint_ns)

    def close(self) -> None:
        """Close the store, if this saver opened it."""
        if self._owns_store:
            self.hf.close()

    def __enter__(self) -> HoldfastSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        target = layout.parse_config(config)
        while True:
            found = self.thread(target).read(target.checkpoint)
            if found is None:
                return None
            try:
                return build_tuple(found, config["configurable"]["thread_id"], target.namespace or "")
            except NotFound:
                # Pruned between the two reads.
                self.thread(target).clear_cache()

    def list(
        self,
        config: Any,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: Any = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        wanted = _check_filter(filter)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidCall(f"limit is a number, not {limit!r:.60}")
        target = None if config is None else layout.parse_config(config)
        until = None if before is None else layout.checkpoint_id_of(before)
        return self._iter_tuples(target, wanted, until, limit)

    def get_delta_channel_history(
        self, *, config: Any, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        target = layout.parse_config(config)
        stored = self.thread(target).read(target.checkpoint)
        found: dict[str, Any] = {}
        for channel in channels:
            trail = None if stored is None else read_part(stored.version, "trail", channel)
            if trail is not None:
                found[channel] = build_delta_history(trail, channel)
        rest = [channel for channel in channels if channel not in found]
        if rest:
            found.update(super().get_delta_channel_history(config=config, channels=rest))
        return {channel: found[channel] for channel in channels}

    # Writing

    def put(
        self, config: Any, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Any:
        target = layout.parse_config(config)
        if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("channel_values"), Mapping):
            raise InvalidCall("put takes a checkpoint: a dict with an id and channel_values")
        name = layout.check_checkpoint_id(checkpoint.get("id"))
        if not isinstance(metadata, Mapping):
            raise InvalidCall(f"metadata is a dict, not {type(metadata).__name__}")
        about = get_checkpoint_metadata(config, metadata)
        self.thread(target).put(layout.NewCheckpoint(target.checkpoint, checkpoint, about))
        return build_config(config["configurable"]["thread_id"], target.namespace or "", name)

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        target = layout.parse_config(config)
        if target.checkpoint is None:
            raise InvalidCall("put_writes needs a config that names a checkpoint: put one first")
        for name, text in (("task_id", task_id), ("task_path", task_path)):
            if not isinstance(text, str):
                raise InvalidCall(f"{name} is a string, not {type(text).__name__}")
        self.thread(target).put_writes(target.checkpoint, task_id, task_path, layout.index_writes(writes))

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next whole number; if another saver started the thread, a text that sorts after its
        texts."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> HoldfastSaver:
        """Register the classes of a graph's schemas, which LangGraph names in strict mode."""
        layout.register_schema(extra_allowlist)
        return self

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        for run in self._runs(layout.check_thread_id(thread_id)):
            self._delete(run)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        if isinstance(run_ids, str):
            raise InvalidCall("delete_for_runs takes a list of run ids")
        deleted_runs = set(run_ids)
        if not deleted_runs:
            return
        for run in self._all_runs():
            self._delete_from(run, deleted_runs)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = layout.check_thread_id(source_thread_id), layout.check_thread_id(target_thread_id)
        runs = self._runs(source)
        if self._runs(target):
            raise AlreadyExists(f"thread {target!r} exists already: copy to another, or delete it first")
        for run in runs:
            self._copy(run, target)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if isinstance(thread_ids, str):
            raise InvalidCall("prune takes a list of thread ids")
        if strategy not in ("keep_latest", "delete"):
            raise InvalidCall(f"strategy is 'keep_latest' or 'delete', not {strategy!r:.60}")
        for thread in thread_ids:
            for run in self._runs(layout.check_thread_id(thread)):
                if strategy == "delete":
                    self._delete(run)
                else:
                    self.hf.history(run).prune(Retention(last=0))
                    self._clear_cache(run)

    # Asynchronous counterparts

    aget_tuple = _asynchronous(get_tuple)

    async def alist(
        self,
        config: Any,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: Any = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while batch := await run_off_loop(lambda: [*islice(found, _BATCH)]):
            for item in batch:
                yield item

    aput = _asynchronous(put)
    aput_writes = _asynchronous(put_writes)
    aget_delta_channel_history = _asynchronous(get_delta_channel_history)
    adelete_thread = _asynchronous(delete_thread)
    adelete_for_runs = _asynchronous(delete_for_runs)
    acopy_thread = _asynchronous(copy_thread)
    aprune = _asynchronous(prune)

    # Internals

    def thread(self, target: layout.ThreadConfig) -> CheckpointThread:
        """Return the cached object for the run of a thread's namespace."""
        run = target.run
        with self._lock:
            thread = self._cached.pop(run, None)
            if thread is None:
                names = (target.thread, target.namespace or "")
                thread = CheckpointThread(self.hf.history(run), names, single_writer=self._single_writer)
            self._cached[run] = thread
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
            return thread

    def _clear_cache(self, run: str) -> None:
        with self._lock:
            thread = self._cached.pop(run, None)
        if thread is not None:
            thread.clear_cache()

    def _iter_tuples(
        self, target: layout.ThreadConfig | None, wanted: dict[str, Any], until: str | None, limit: int | None
    ) -> Iterator[CheckpointTuple]:
        if limit is not None and limit <= 0:
            return
        count = 0
        for checkpoint, _, found, names in self._candidates(target):
            if until is not None and checkpoint >= until:
                continue
            try:
                about = read_part(found.version, "metadata") if wanted else {}
                if any((about or {}).get(key) != value for key, value in wanted.items()):
                    continue
                item = build_tuple(found, *names)
            except NotFound:
                # Pruned since the list was started.
                continue
            yield item
            count += 1
            if count == limit:
                return

    def _candidates(self, target: layout.ThreadConfig | None) -> Iterator[Candidate]:
        """Yield the checkpoints that may match, the highest id first."""
        if target is not None and target.checkpoint is not None and target.namespace is not None:
            found = self.thread(target).read(target.checkpoint)
            if found is not None:
                yield target.checkpoint, 0, found, (target.thread, target.namespace)
            return
        if target is None:
            runs = self._all_runs()
        elif target.namespace is None:
            runs = self._runs(target.thread)
        else:
            runs = [target.run] if self._is_thread(target.run) else []

        def each(number: int, run: str) -> Iterator[Candidate]:
            names = self._names(run)
            for checkpoint, found in iter_checkpoints(self.hf.history(run)):
                if target is None or target.checkpoint in (None, checkpoint):
                    yield checkpoint, -number, found, names

        yield from heapq.merge(
            *(each(number, run) for number, run in enumerate(runs)), key=itemgetter(0, 1), reverse=True
        )

    def _runs(self, thread: str) -> Runs:
        """Return the runs of a thread."""
        found = [
            layout.run_id(thread),
            *(run.id for run in self.hf.iter_runs(prefix=layout.namespace_prefix(thread))),
        ]
        return [run for run in found if self._is_thread(run)]

    def _all_runs(self) -> Runs:
        """Return the runs of all threads."""
        return [run.id for run in self.hf.iter_runs() if self._is_thread(run.id)]

    def _is_thread(self, run: str) -> bool:
        try:
            head = self.hf.history(run).head
        except NotFound:
            return False
        if parse_note(head).ids_increase:
            return True
        return read_part(head, "channel_values") is not None or read_part(head, "ahead") is not None

    def _names(self, run: str) -> tuple[str, str]:
        """Return the thread and the namespace of a run."""
        thread, namespace = layout.parse_run_id(run)
        if thread is None or namespace is None:
            thread, namespace = self.hf.history(run).head.copy("thread")
        return thread, namespace

    def _delete(self, run: str) -> None:
        with contextlib.suppress(NotFound):
            self.hf.delete(run)
        self._clear_cache(run)

    def _delete_from(self, run: str, deleted_runs: set[str]) -> None:
        """Delete the checkpoints of some LangGraph runs from a Holdfast run."""
        history = self.hf.history(run)
        is_removed: dict[str | None, bool] = {}
        # The newest version of each checkpoint.
        newest: dict[str | None, int] = {}
        removed: list[int] = []
        for version in iter_versions(history):
            checkpoint = parse_note(version).checkpoint
            if checkpoint not in newest:
                newest[checkpoint] = version.number
                is_removed[checkpoint] = (read_part(version, "metadata") or {}).get("run_id") in deleted_runs
            if is_removed[checkpoint]:
                removed.append(version.number)
        if not removed:
            return
        latest = max((name for name in newest if name is not None and not is_removed[name]), default=None)
        if latest is None:
            self._delete(run)
            return
        if history.head.number in removed:
            # Not the newest version: that may hold writes to an older checkpoint.
            history.rollback(newest[latest], reason="its checkpoints were deleted")
        history.drop(removed)
        self._clear_cache(run)

    def _copy(self, run: str, target: str) -> None:
        _, namespace = self._names(run)
        name = layout.run_id(target, namespace)
        with tempfile.TemporaryFile() as file:
            self.hf.export_run(run, file)
            file.seek(0)
            copy = self.hf.import_run(file, run_id=name, secrets="keep")
        if None in layout.parse_run_id(name):
            copy.patch({("thread",): [target, namespace]}, after=copy.head, note=copy.head.note)


def _check_filter(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidCall("filter is a dict of metadata: {'source': 'loop'}")
    return dict(given)
