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
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
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
from holdfast.integrations.histories import off_loop
from holdfast.integrations.langgraph import layout, types
from holdfast.integrations.langgraph.layout import config_of, history_of, tuple_of
from holdfast.integrations.langgraph.lookup import Found, part, said, stream, versions
from holdfast.integrations.langgraph.thread import Strand

#: Ids of runs. Defined here because `list` is a method in the class.
Runs = list[str]
#: A checkpoint's id, the rank of its run, the checkpoint, its thread and namespace.
Candidate = tuple[str, int, Found, tuple[str, str]]
#: Maximum number of runs that are cached.
_STRANDS = 256
#: Checkpoints per batch of an asynchronous list.
_BATCH = 8


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
        types.register_known()
        types.register_allowed(allow)
        self._own = not isinstance(store, Holdfast)
        self.hf: Holdfast = store if isinstance(store, Holdfast) else holdfast.open(store)
        self._single = single_writer
        self._strands: OrderedDict[str, Strand] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def run_id(thread_id: Any, checkpoint_ns: str = "") -> str:
        """Return the id of the run of a thread, or of one of its namespaces."""
        return layout.run_id(layout.thread_of(thread_id), checkpoint_ns)

    def close(self) -> None:
        """Close the store, if this saver opened it."""
        if self._own:
            self.hf.close()

    def __enter__(self) -> HoldfastSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        place = layout.place_of(config)
        while True:
            found = self.strand(place).read(place.checkpoint)
            if found is None:
                return None
            try:
                return tuple_of(found, config["configurable"]["thread_id"], place.namespace or "")
            except NotFound:
                # Pruned between the two reads.
                self.strand(place).forget()

    def list(
        self,
        config: Any,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: Any = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        wanted = _wanted(filter)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidCall(f"limit is a number, not {limit!r:.60}")
        place = None if config is None else layout.place_of(config)
        until = None if before is None else layout.checkpoint_of(before)
        return self._listed(place, wanted, until, limit)

    def get_delta_channel_history(
        self, *, config: Any, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        place = layout.place_of(config)
        version = self.strand(place).find(place.checkpoint)
        found: dict[str, Any] = {}
        for channel in channels:
            trail = None if version is None else part(version, "trail", channel)
            if trail is not None:
                found[channel] = history_of(trail, channel)
        rest = [channel for channel in channels if channel not in found]
        if rest:
            found.update(super().get_delta_channel_history(config=config, channels=rest))
        return {channel: found[channel] for channel in channels}

    # Writing

    def put(
        self, config: Any, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Any:
        place = layout.place_of(config)
        if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("channel_values"), Mapping):
            raise InvalidCall("put takes a checkpoint: a dict with an id and channel_values")
        name = layout.check_id(checkpoint.get("id"))
        if not isinstance(metadata, Mapping):
            raise InvalidCall(f"metadata is a dict, not {type(metadata).__name__}")
        about = get_checkpoint_metadata(config, metadata)
        self.strand(place).put(place.checkpoint, checkpoint, about)
        return config_of(config["configurable"]["thread_id"], place.namespace or "", name)

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        place = layout.place_of(config)
        if place.checkpoint is None:
            raise InvalidCall("put_writes needs a config that names a checkpoint: put one first")
        for name, text in (("task_id", task_id), ("task_path", task_path)):
            if not isinstance(text, str):
                raise InvalidCall(f"{name} is a string, not {type(text).__name__}")
        self.strand(place).put_writes(place.checkpoint, writes, task_id, task_path)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next whole number; if another saver started the thread, a text that sorts after its
        texts."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> HoldfastSaver:
        """Register the classes of a graph's schemas, which LangGraph names in strict mode."""
        types.register_schema(extra_allowlist)
        return self

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        for run in self._runs(layout.thread_of(thread_id)):
            self._delete(run)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        if isinstance(run_ids, str):
            raise InvalidCall("delete_for_runs takes a list of run ids")
        doomed = set(run_ids)
        if not doomed:
            return
        for run in self._threads():
            self._delete_from(run, doomed)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = layout.thread_of(source_thread_id), layout.thread_of(target_thread_id)
        runs = self._runs(source)
        if self._runs(target):
            raise AlreadyExists(f"thread {target!r} is there already: copy to another, or delete it first")
        for run in runs:
            self._copy(run, target)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if isinstance(thread_ids, str):
            raise InvalidCall("prune takes a list of thread ids")
        if strategy not in ("keep_latest", "delete"):
            raise InvalidCall(f"strategy is 'keep_latest' or 'delete', not {strategy!r:.60}")
        for thread in thread_ids:
            for run in self._runs(layout.thread_of(thread)):
                if strategy == "delete":
                    self._delete(run)
                else:
                    self.hf.history(run).prune(Retention(last=0))
                    self._forget(run)

    # Asynchronous counterparts

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return await off_loop(self.get_tuple, config)

    async def alist(
        self,
        config: Any,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: Any = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while batch := await off_loop(_next, found):
            for item in batch:
                yield item

    async def aput(
        self, config: Any, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Any:
        return await off_loop(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await off_loop(self.put_writes, config, writes, task_id, task_path)

    async def aget_delta_channel_history(
        self, *, config: Any, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await off_loop(self.get_delta_channel_history, config=config, channels=channels)

    async def adelete_thread(self, thread_id: str) -> None:
        await off_loop(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await off_loop(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await off_loop(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await off_loop(self.prune, thread_ids, strategy=strategy)

    # Internals

    def strand(self, place: layout.Place) -> Strand:
        """Return the cached object for the run of a thread's namespace."""
        run = place.run
        with self._lock:
            strand = self._strands.pop(run, None)
            if strand is None:
                long = None in layout.names_of(run)
                whose = (place.thread, place.namespace or "")
                strand = Strand(self.hf.history(run), whose, long=long, single_writer=self._single)
            self._strands[run] = strand
            if len(self._strands) > _STRANDS:
                self._strands.popitem(last=False)
            return strand

    def _forget(self, run: str) -> None:
        with self._lock:
            strand = self._strands.pop(run, None)
        if strand is not None:
            strand.forget()

    def _listed(
        self, place: layout.Place | None, wanted: dict[str, Any], until: str | None, limit: int | None
    ) -> Iterator[CheckpointTuple]:
        if limit is not None and limit <= 0:
            return
        count = 0
        for checkpoint, _, found, whose in self._candidates(place):
            if until is not None and checkpoint >= until:
                continue
            try:
                about = part(found.version, "metadata") if wanted else {}
                if any((about or {}).get(key) != value for key, value in wanted.items()):
                    continue
                item = tuple_of(found, *whose)
            except NotFound:
                # Pruned since the list was started.
                continue
            yield item
            count += 1
            if count == limit:
                return

    def _candidates(self, place: layout.Place | None) -> Iterator[Candidate]:
        """Yield the checkpoints that may match, the highest id first."""
        if place is not None and place.checkpoint is not None and place.namespace is not None:
            found = self.strand(place).read(place.checkpoint)
            if found is not None:
                yield place.checkpoint, 0, found, (place.thread, place.namespace)
            return
        if place is None:
            runs = self._threads()
        elif place.namespace is None:
            runs = self._runs(place.thread)
        else:
            runs = [place.run] if self._is_thread(place.run) else []

        def each(number: int, run: str) -> Iterator[Candidate]:
            whose = self._whose(run)
            for checkpoint, found in stream(self.hf.history(run)):
                if place is None or place.checkpoint in (None, checkpoint):
                    yield checkpoint, -number, found, whose

        yield from heapq.merge(
            *(each(number, run) for number, run in enumerate(runs)), key=itemgetter(0, 1), reverse=True
        )

    def _runs(self, thread: str) -> Runs:
        """Return the runs of a thread."""
        found = [
            layout.run_id(thread),
            *(run.id for run in self.hf.iter_runs(prefix=layout.beginning(thread))),
        ]
        return [run for run in found if self._is_thread(run)]

    def _threads(self) -> Runs:
        """Return the runs of all threads."""
        return [run.id for run in self.hf.iter_runs() if self._is_thread(run.id)]

    def _is_thread(self, run: str) -> bool:
        try:
            head = self.hf.history(run).head
        except NotFound:
            return False
        if said(head).growing:
            return True
        return part(head, "channel_values") is not None or part(head, "ahead") is not None

    def _whose(self, run: str) -> tuple[str, str]:
        """Return the thread and the namespace of a run."""
        thread, namespace = layout.names_of(run)
        if thread is None or namespace is None:
            thread, namespace = self.hf.history(run).head.copy("thread")
        return thread, namespace

    def _delete(self, run: str) -> None:
        with contextlib.suppress(NotFound):
            self.hf.delete(run)
        self._forget(run)

    def _delete_from(self, run: str, doomed: set[str]) -> None:
        """Delete the checkpoints of some LangGraph runs from a Holdfast run."""
        history = self.hf.history(run)
        about: dict[str | None, bool] = {}
        gone: list[int] = []
        kept: list[int] = []
        for version in versions(history):
            checkpoint = said(version).checkpoint
            if checkpoint not in about:
                about[checkpoint] = (part(version, "metadata") or {}).get("run_id") in doomed
            (gone if about[checkpoint] else kept).append(version.number)
        if not gone:
            return
        if not kept:
            self._delete(run)
            return
        if history.head.number in gone:
            history.rollback(max(kept), reason="its checkpoints were deleted")
        history.drop(gone)
        self._forget(run)

    def _copy(self, run: str, target: str) -> None:
        _, namespace = self._whose(run)
        name = layout.run_id(target, namespace)
        with tempfile.TemporaryFile() as file:
            self.hf.export_run(run, file)
            file.seek(0)
            copy = self.hf.import_run(file, run_id=name, secrets="keep")
        if None in layout.names_of(name):
            copy.patch({("thread",): [target, namespace]}, after=copy.head, note=copy.head.note)


def _wanted(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidCall("filter is a dict of metadata: {'source': 'loop'}")
    return dict(given)


def _next(found: Iterator[CheckpointTuple]) -> list[CheckpointTuple]:
    batch: list[CheckpointTuple] = []
    for item in found:
        batch.append(item)
        if len(batch) == _BATCH:
            break
    return batch
