"""The saver: LangGraph's checkpointer protocol for blocking and asynchronous callers.

The blocking methods are the implementation; each asynchronous one calls its blocking counterpart in another
thread.

Invariant: a call that returned is durable; one that raised has changed nothing, unless it raised
`CommitUnknown`. An asynchronous read sees every put of its thread that was called before it: after a run was
cancelled, LangGraph lets its last puts continue.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

import holdfast
from holdfast import Holdfast, Retention, Version
from holdfast.errors import AlreadyExists, InvalidCall, NotFound, StaleVersion
from holdfast.integrations.langgraph import layout, values
from holdfast.integrations.langgraph.asynchronous_writes import AsynchronousWrites
from holdfast.integrations.langgraph.checkpoints import read_stable
from holdfast.integrations.langgraph.layout import DeltaWalk, StoredCheckpoint, build_config, build_tuple
from holdfast.integrations.langgraph.rollbacks import DELETED
from holdfast.integrations.langgraph.thread import CheckpointThread
from holdfast.off_loop import Completed, run_off_loop
from holdfast.store.process_fork import reset_in_children

#: Ids of runs. Defined here because `list` is a method in the class.
Runs = list[str]
#: How often the export of a run is tried that other writers change.
_EXPORTS = 5
#: Maximum number of runs that are cached: more than are used at once, because each put to one that is not cached reads
#: the head. One takes about 8 KB, and the state of its latest checkpoint.
_MAX_CACHED = 1_024
#: Checkpoints per batch of an asynchronous list.
_BATCH = 8


class Candidate(NamedTuple):
    """A checkpoint that a list may have."""

    checkpoint: str
    rank: int
    #: Reads the checkpoint as it was when the list was started.
    read: Callable[[], StoredCheckpoint]
    thread: CheckpointThread
    #: Thread and namespace.
    names: tuple[str, str]


def _asynchronous(method: Callable[..., Any]) -> Any:
    """Return the asynchronous counterpart of a blocking method, or of the method that a subclass has instead. It waits
    for the puts that are under way: one that came later would bring a deleted thread back."""

    @wraps(method)
    async def call(self: HoldfastSaver, *args: Any, **options: Any) -> Any:
        await self._writes.ended()
        return await run_off_loop(getattr(self, method.__name__), *args, **options)

    return call


def _asynchronous_write(method: Callable[..., Any]) -> Any:
    """As `_asynchronous`, for a method that puts something: later reads of its thread wait for it."""

    @wraps(method)
    async def call(self: HoldfastSaver, config: Any, *args: Any, **options: Any) -> Any:
        return await self._writes.run(config, getattr(self, method.__name__), *args, **options)

    return call


def _asynchronous_read(method: Callable[..., Any]) -> Any:
    """As `_asynchronous`, for a method that reads a thread."""

    @wraps(method)
    async def call(self: HoldfastSaver, config: Any, *args: Any, **options: Any) -> Any:
        await self._writes.ended(config)
        return await run_off_loop(getattr(self, method.__name__), config, *args, **options)

    return call


class HoldfastSaver(BaseCheckpointSaver[Any]):
    """Checkpointer that stores LangGraph's checkpoints in a store. Safe to use from several threads and
    tasks.

    `store` is an open `Holdfast`, or an argument for `holdfast.open`; a store that the saver opened is closed
    by `close()`. `allow` lists your own classes that channels may hold, or their names. With `single_writer`,
    a writer that does not continue from the latest checkpoint is refused with `StaleVersion`; otherwise it
    gets a new timeline. `serde` is a serializer of LangGraph by which all values are stored, such as an encrypting
    one; a channel that changes is then stored as a whole.
    """

    def __init__(
        self,
        store: Holdfast | str | os.PathLike[str],
        *,
        single_writer: bool = False,
        allow: Iterable[type | str] = (),
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        if not isinstance(single_writer, bool):
            raise InvalidCall(f"single_writer is True or False, not {single_writer!r:.60}")
        values.register_known()
        values.register_allowed(allow)
        self._owns_store = not isinstance(store, Holdfast)
        self.hf: Holdfast = store if isinstance(store, Holdfast) else holdfast.open(store)
        self._single_writer = single_writer
        #: The serializer of what is cached: an application may set `serde` at any time.
        self._cached_serde = self.serde
        self._prepare_for_process()
        reset_in_children(self)

    def _prepare_for_process(self) -> None:
        """Start without threads and calls of the process."""
        self._cached: OrderedDict[str, CheckpointThread] = OrderedDict()
        # Reentrant, as that of a thread: a signal handler may use the saver.
        self._lock = threading.RLock()
        self._writes = AsynchronousWrites()

    def reset_after_fork(self) -> None:
        """Start again in the child of a fork: a thread of the parent may have had a lock."""
        self._prepare_for_process()

    @staticmethod
    def run_id(thread_id: Any, checkpoint_ns: str = "") -> str:
        """Return the id of the run of a thread, or of one of its namespaces."""
        return layout.run_id(layout.check_thread_id(thread_id), checkpoint_ns)

    def __copy__(self) -> HoldfastSaver:
        """Return a saver of the same store with a cache of its own; it does not close the store."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, _owns_store=False)
        copied._prepare_for_process()
        reset_in_children(copied)
        return copied

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> HoldfastSaver:
        """Open a store as LangGraph's savers do: `with HoldfastSaver.from_conn_string("runs.db") as saver`, also with
        `async with`. The options are those of the class."""
        return cls(conn_string, **options)

    def setup(self) -> Completed:
        """Do nothing: a store is created or migrated when it is opened. LangGraph's savers need this call, which those
        for asynchronous graphs await."""
        return Completed()

    def close(self) -> None:
        """Close the store, if this saver opened it."""
        if self._owns_store:
            self.hf.close()

    def __enter__(self) -> HoldfastSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> HoldfastSaver:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._writes.ended()
        await run_off_loop(self.close)

    # Reading

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        target = layout.parse_config(config)
        thread = self.thread(target)
        names = (config["configurable"]["thread_id"], target.namespace or "")

        def read() -> CheckpointTuple | None:
            found = thread.read(target.checkpoint)
            return None if found is None else build_tuple(found, *names)

        return read_stable(thread.history, read)

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
        thread = self.thread(target)
        read = partial(self._read_delta_history, thread, target.checkpoint, channels)
        found = read_stable(thread.history, read)
        return {channel: DeltaWalk(channel).result() for channel in channels} if found is None else found

    def _read_delta_history(
        self, thread: CheckpointThread, checkpoint: str | None, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        stored = thread.read(checkpoint)
        found = {channel: DeltaWalk(channel) for channel in channels}
        searched = [walk for walk in found.values() if stored is not None and not walk.add_trail(stored)]
        # Checkpoints that were put again may make their own descendants their ancestors.
        seen: set[str] = set()
        while (
            searched and stored is not None and (parent := stored.parent) is not None and parent not in seen
        ):
            seen.add(parent)
            stored = thread.read(parent)
            searched = [walk for walk in searched if stored is not None and not walk.add(stored)]
        return {channel: walk.result() for channel, walk in found.items()}

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
        about = values.plain_metadata(get_checkpoint_metadata(config, metadata))
        self.thread(target).put(
            layout.NewCheckpoint(target.checkpoint, checkpoint, about, new_versions or ())
        )
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

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[Any]:
        """Register the classes of a graph's schemas, which LangGraph names in strict mode. With a `serde`, return a
        saver of the same store whose serializer allows them."""
        if self._given_serde() is not None:
            return super().with_allowlist(extra_allowlist)
        values.register_schema(extra_allowlist)
        return self

    # Deleting and copying

    def delete_thread(self, thread_id: Any) -> None:
        for run in self._runs(layout.check_thread_id(thread_id)):
            self._delete(run)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        if isinstance(run_ids, str):
            raise InvalidCall("delete_for_runs takes a list of run ids")
        deleted_runs = set(run_ids)
        if not deleted_runs:
            return
        for run in self._all_runs():
            with self._deleted_meanwhile(run):
                read_stable(self.hf.history(run), partial(self._delete_from, run, deleted_runs))

    def copy_thread(self, source_thread_id: Any, target_thread_id: Any) -> None:
        source, target = layout.check_thread_id(source_thread_id), layout.check_thread_id(target_thread_id)
        runs = self._runs(source)
        if self._runs(target):
            raise AlreadyExists(f"thread {target!r} exists already: copy to another, or delete it first")
        with contextlib.ExitStack() as stack:
            exported = [(self._names(run)[1], stack.enter_context(self._export(run))) for run in runs]
            with contextlib.ExitStack() as undo:
                for namespace, file in exported:
                    name = layout.run_id(target, namespace)
                    copy = self.hf.import_run(file, run_id=name, secrets="keep")
                    undo.callback(self._delete, name)
                    if None in layout.parse_run_id(name):
                        copy.patch({("thread",): [target, namespace]}, after=copy.head, note="copied thread")
                        self.thread(layout.ThreadConfig(target, namespace, None)).give_key()
                undo.pop_all()

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if isinstance(thread_ids, str):
            raise InvalidCall("prune takes a list of thread ids")
        if strategy not in ("keep_latest", "delete"):
            raise InvalidCall(f"strategy is 'keep_latest' or 'delete', not {strategy!r:.60}")
        for thread in thread_ids:
            runs = self._runs(layout.check_thread_id(thread))
            # Inner runs first: the versions of the runs above show which of their checkpoints are abandoned.
            for run in sorted(runs, key=lambda run: run.count("|"), reverse=True):
                if strategy == "delete":
                    self._delete(run)
                else:
                    with self._deleted_meanwhile(run):
                        read_stable(self.hf.history(run), partial(self._keep_latest, run))

    # Asynchronous counterparts

    aget_tuple = _asynchronous_read(get_tuple)

    async def alist(
        self,
        config: Any,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: Any = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        await self._writes.ended(config)
        while batch := await run_off_loop(lambda: [*islice(found, _BATCH)]):
            for item in batch:
                yield item

    aput = _asynchronous_write(put)
    aput_writes = _asynchronous_write(put_writes)

    async def aget_delta_channel_history(
        self, *, config: Any, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        await self._writes.ended(config)
        return await run_off_loop(self.get_delta_channel_history, config=config, channels=channels)

    adelete_thread = _asynchronous(delete_thread)
    adelete_for_runs = _asynchronous(delete_for_runs)
    acopy_thread = _asynchronous(copy_thread)
    aprune = _asynchronous(prune)

    # Internals

    def thread(self, target: layout.ThreadConfig) -> CheckpointThread:
        """Return the cached object for the run of a thread's namespace."""
        run = target.run
        with self._lock:
            if self.serde is not self._cached_serde:
                self._cached.clear()
                self._cached_serde = self.serde
            thread = self._cached.pop(run, None)
            if thread is None:
                names = (target.thread, target.namespace or "")
                above = {
                    outer: self.hf.history(layout.run_id(target.thread, outer))
                    for outer in layout.namespaces_above(names[1])
                }
                thread = CheckpointThread(
                    self.hf.history(run),
                    names,
                    layout.Serializer(self._given_serde()),
                    above=above,
                    single_writer=self._single_writer,
                )
            self._cached[run] = thread
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
            return thread

    def _given_serde(self) -> SerializerProtocol | None:
        """Return the serializer of the application; None if it has given none."""
        return None if self.serde is type(self).serde else self.serde

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
        for candidate in self._candidates(target, until, few=limit is not None and not wanted):
            item = _build_if_matching(candidate, wanted)
            if item is None:
                continue
            yield item
            count += 1
            if count == limit:
                return

    def _candidates(
        self, target: layout.ThreadConfig | None, until: str | None, *, few: bool
    ) -> Iterator[Candidate]:
        """Yield the checkpoints below an id that may match, the highest id first. With `few`, only the first ones are
        expected to be used."""
        if target is None:
            runs = self._all_runs()
        elif target.namespace is None:
            runs = self._runs(target.thread)
        else:
            runs = [target.run] if self._is_thread(target.run) else []

        paging = {"first": 1} if few and len(runs) > 1 else {}

        def each(number: int, run: str) -> Iterator[Candidate]:
            try:
                names = self._names(run)
            except NotFound:
                # Deleted since the runs were listed.
                return
            thread = self.thread(layout.ThreadConfig(*names, None))
            if target is None or target.checkpoint is None:
                for checkpoint, read in thread.iter_checkpoints(until, **paging):
                    yield Candidate(checkpoint, -number, read, thread, names)
            elif until is None or target.checkpoint < until:
                found = thread.read(target.checkpoint)
                if found is not None:
                    yield Candidate(target.checkpoint, -number, lambda: found, thread, names)

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
        """Return whether a run is one of a thread, by its state: the store may have other runs."""
        history = self.hf.history(run)

        def read() -> bool:
            head = history.head
            try:
                found = head.get("checkpoint")
            except NotFound as error:
                if "path" not in error.details:
                    raise
                return False
            return layout.is_checkpoint(found) or (found is None and layout.is_empty_state(head.state))

        return bool(read_stable(history, read))

    def _names(self, run: str) -> tuple[str, str]:
        """Return the thread and the namespace of a run."""
        thread, namespace = layout.parse_run_id(run)
        if thread is None or namespace is None:
            history = self.hf.history(run)
            found = read_stable(history, lambda: history.head.copy("thread"))
            if found is None:
                raise NotFound(f"run {run!r} was deleted", run=run)
            thread, namespace = found
        return thread, namespace

    def _delete(self, run: str) -> None:
        with contextlib.suppress(NotFound):
            self.hf.delete(run)
        self._clear_cache(run)

    def _keep_latest(self, run: str) -> None:
        """Prune a run to its latest checkpoint, and tagged and pinned versions; delete it if there are none. It is
        repeated while others write to the run."""
        thread = self.thread(layout.ThreadConfig(*self._names(run), None))
        while True:
            empty = thread.settle_head()
            head = thread.give_key()
            with contextlib.suppress(StaleVersion):
                kept = self.hf.history(run).prune(Retention(last=0), expected=head).kept
                break
        if empty is not None and kept == (empty,):
            self._delete(run)
        self._clear_cache(run)

    def _delete_from(self, run: str, deleted_runs: set[str]) -> None:
        """Delete the checkpoints of some LangGraph runs from a Holdfast run."""
        history = self.hf.history(run)
        thread = self.thread(layout.ThreadConfig(*self._names(run), None))
        kept: Version | None = None
        removed: list[int] = []
        for _, read in thread.iter_checkpoints():
            found = read()
            if (found.part("metadata") or {}).get("run_id") in deleted_runs:
                removed += thread.checkpoints.numbers_of(found.version)
            elif kept is None:
                kept = found.version
        if not removed:
            return
        if kept is None:
            self._delete(run)
            return
        if history.head.number in removed:
            history.rollback(kept.number, reason=DELETED)
        history.drop(removed)
        self._clear_cache(run)

    @contextlib.contextmanager
    def _export(self, run: str) -> Iterator[BinaryIO]:
        """Return a file with a whole run. An export that a concurrent pruning disturbs is repeated."""
        with tempfile.TemporaryFile() as file:
            for left in reversed(range(_EXPORTS)):
                file.seek(0)
                file.truncate()
                try:
                    self.hf.export_run(run, file)
                    break
                except StaleVersion:
                    if not left:
                        raise
            file.seek(0)
            yield file

    @contextlib.contextmanager
    def _deleted_meanwhile(self, run: str) -> Iterator[None]:
        """Ignore that a run was deleted while it was worked on."""
        try:
            yield
        except NotFound:
            if self._is_thread(run):
                raise
            self._clear_cache(run)


def _build_if_matching(candidate: Candidate, wanted: Mapping[str, Any]) -> CheckpointTuple | None:
    """Return a checkpoint if its metadata have the wanted values; None if they have not, or if it was pruned since the
    list was started."""
    thread = candidate.thread
    # If versions were removed meanwhile, the checkpoint itself may still exist.
    again: Callable[[], StoredCheckpoint | None] = partial(thread.read, candidate.checkpoint)
    reads = chain([candidate.read], repeat(again))

    def build() -> CheckpointTuple | None:
        found = next(reads)()
        if found is None:
            return None
        about = found.part("metadata") if wanted else {}
        if not all(_matches(about or {}, key, value) for key, value in wanted.items()):
            return None
        return build_tuple(found, *candidate.names)

    return read_stable(thread.history, build)


def _matches(metadata: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether metadata have a value under a key, or at a path such as `user.id`."""
    if key in metadata or "." not in key:
        return bool(metadata.get(key) == value)
    found: Any = metadata
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return bool(found == value)


def _check_filter(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidCall("filter is a dict of metadata: {'source': 'loop'}")
    return dict(given)
