"""LangGraph's long-term memory: `BaseStore` on the items of a store.

A batch reads first and then writes, as in LangGraph's stores: its reads do not see its puts. The blocking methods are
the implementation; the asynchronous ones embed in the event loop and do the rest in another thread.

Invariant: all operations of a batch are checked, and all texts embedded, before anything is read or written; its puts
and deletes are one commit.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

import holdfast
from holdfast import Holdfast
from holdfast.errors import HoldfastError, InvalidCall, UnsupportedValue
from holdfast.integrations.langgraph import values
from holdfast.integrations.langgraph.embedding import EmbeddingIndex, check_fields
from holdfast.integrations.langgraph.item_filter import build_filter
from holdfast.items import ItemKey, NewItem, Selection, StoredItem
from holdfast.log import warn
from holdfast.model.checks import check_integer, check_number
from holdfast.model.names import short
from holdfast.off_loop import Completed, run_off_loop

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The longest time to live, 1,900 years.
_MAX_MINUTES = 1e9
_MINUTE = 60_000_000
#: Minutes between two sweeps, unless the configuration names others.
_SWEEP_INTERVAL = 5.0
_TTL_KEYS = ("refresh_on_read", "omit_expired", "default_ttl", "sweep_interval_minutes")


class _Search(NamedTuple):
    """A checked search."""

    op: SearchOp
    prefix: tuple[str, ...]
    selection: Selection | None


class _Put(NamedTuple):
    """A checked put, and its texts to embed."""

    key: ItemKey
    data: bytes
    terms: tuple[bytes, ...]
    ttl: int | None
    texts: list[str]


class _Batch:
    """The checked operations of a batch, by their positions in it."""

    def __init__(self) -> None:
        self.size = 0
        self.gets: dict[int, tuple[ItemKey, bool]] = {}
        self.searches: dict[int, _Search] = {}
        self.lists: dict[int, ListNamespacesOp] = {}
        #: The last put of each name; None if it deletes.
        self.puts: dict[ItemKey, _Put | None] = {}

    @property
    def texts(self) -> list[str]:
        """The texts to embed, without duplicates."""
        return list(dict.fromkeys(text for put in self.puts.values() if put for text in put.texts))

    @property
    def queries(self) -> list[str]:
        """The queries to embed, without duplicates."""
        return list(dict.fromkeys(search.op.query for search in self.searches.values() if search.op.query))


class HoldfastStore(BaseStore):
    """Long-term memory of LangGraph in a store. Safe to use from several threads and tasks.

    `store` is an open `Holdfast`, or an argument for `holdfast.open`; a store that this one opened is closed by
    `close()`. `index` and `ttl` are LangGraph's: `index` has `dims`, `embed`, `fields` and `distance_type` (cosine,
    inner_product, l2), `ttl` has `default_ttl`, `refresh_on_read` and `sweep_interval_minutes`. `allow` lists your own
    classes that values may hold, or their names.
    """

    supports_ttl = True

    def __init__(
        self,
        store: Holdfast | str | os.PathLike[str],
        *,
        index: IndexConfig | Mapping[str, Any] | None = None,
        ttl: TTLConfig | Mapping[str, Any] | None = None,
        allow: Iterable[type | str] = (),
    ) -> None:
        values.register_known()
        values.register_allowed(allow)
        self._index = None if index is None else EmbeddingIndex(index)
        #: As given, for LangGraph.
        self.index_config = None if index is None else {**index}
        self.embeddings = None if self._index is None else self._index.embeddings
        self.ttl_config = None if ttl is None else _check_ttl_config(ttl)
        self._sweeper: _Sweeper | None = None
        self._owns_store = not isinstance(store, Holdfast)
        self.hf: Holdfast = store if isinstance(store, Holdfast) else holdfast.open(store)

    def setup(self) -> Completed:
        """Do nothing: a store is set up when it is opened. LangGraph's stores need this call, which the asynchronous
        ones await."""
        return Completed()

    def close(self) -> None:
        """Stop the sweeper, and close the store if this one opened it."""
        self.stop_ttl_sweeper()
        if self._owns_store:
            self.hf.close()

    def __enter__(self) -> HoldfastStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # LangGraph's operations

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        if type(ops) is list and len(ops) == 1 and type(ops[0]) is GetOp:
            # The most frequent call, which needs no batch.
            return [self._get(ops[0])]
        batch = self._check(ops)
        vectors = [] if self._index is None else list(self._index.embed(batch.texts, batch.queries))
        return self._execute(batch, vectors)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        batch = self._check(ops)
        vectors = [] if self._index is None else await self._index.aembed(batch.texts, batch.queries)
        return await run_off_loop(self._execute, batch, vectors)

    # Expiry

    def sweep_ttl(self) -> int:
        """Delete the items that have expired; return their number. Reads omit them before that, too."""
        return self.hf.items.sweep()

    def start_ttl_sweeper(
        self, sweep_interval_minutes: float | None = None
    ) -> concurrent.futures.Future[None]:
        """Delete expired items every few minutes, in a thread, until `stop_ttl_sweeper` is called or the future that
        is returned is cancelled. Does nothing without `ttl`."""
        if self.ttl_config is None:
            done: concurrent.futures.Future[None] = concurrent.futures.Future()
            done.set_result(None)
            return done
        minutes = sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or _SWEEP_INTERVAL
        check_number("sweep_interval_minutes", minutes, above_zero=True, most=_MAX_MINUTES)
        if self._sweeper is None or self._sweeper.stopped.is_set() or not self._sweeper.is_alive():
            self._sweeper = _Sweeper(self, minutes * 60)
            self._sweeper.start()
        return self._sweeper.done

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper; return whether it has stopped within `timeout` seconds."""
        sweeper = self._sweeper
        if sweeper is None:
            return True
        sweeper.stopped.set()
        sweeper.join(timeout)
        return not sweeper.is_alive()

    # Before anything is read or written

    def _check(self, ops: Iterable[Op]) -> _Batch:
        # A list: the code of an iterator runs outside of the context.
        given = list(ops)
        with values.adapted():
            return self._check_adapted(given)

    def _check_adapted(self, ops: list[Op]) -> _Batch:
        batch = _Batch()
        for position, op in enumerate(ops):
            batch.size += 1
            if isinstance(op, GetOp):
                key = _check_key(op)
                batch.gets[position] = key, bool(op.refresh_ttl)
            elif isinstance(op, PutOp):
                key = _check_key(op)
                # The last put of a name counts, in its place.
                batch.puts.pop(key, None)
                batch.puts[key] = None if op.value is None else self._check_put(key, op)
            elif isinstance(op, SearchOp):
                batch.searches[position] = _check_search(op)
            elif isinstance(op, ListNamespacesOp):
                batch.lists[position] = _check_list(op)
            else:
                raise InvalidCall(f"a batch consists of LangGraph's operations, not of {short(op)}")
        return batch

    def _check_put(self, key: ItemKey, op: PutOp) -> _Put:
        if not isinstance(op.value, Mapping):
            raise InvalidCall(f"the value of item {key.key!r:.60} is a dict, not {type(op.value).__name__}")
        if op.index is not None and op.index is not False:
            check_fields("index", op.index)
        try:
            encoded = self.hf.items.encode(dict(op.value))
        except UnsupportedValue as error:
            error.add_note(f"in the value of item {key.key!r:.60} in namespace {key.namespace!r:.120}")
            raise
        texts: list[str] = []
        if self._index is not None and op.index is not False:
            texts = self._index.texts(encoded.value, op.index)
        return _Put(key, encoded.data, encoded.terms, _microseconds(op.ttl), texts)

    def _get(self, op: GetOp) -> Item | None:
        key = _check_key(op)
        with values.adapted():
            item = self.hf.items.find(key)
        if item is None:
            return None
        if op.refresh_ttl and item.record.ttl is not None:
            self._renew([item])
        return Item(**_fields(item))

    def _renew(self, items: list[StoredItem]) -> None:
        """Postpone the expiry of items that were read. If that fails, the read does not: it has its values."""
        try:
            self.hf.items.renew(items)
        except HoldfastError as error:
            warn("items were read, but their expiry could not be postponed: %s", error)

    # In a thread

    def _execute(self, batch: _Batch, vectors: Sequence[bytes]) -> list[Result]:
        with values.adapted():
            return self._execute_adapted(batch, vectors)

    def _execute_adapted(self, batch: _Batch, vectors: Sequence[bytes]) -> list[Result]:
        results: list[Any] = [None] * batch.size
        documents: dict[str, bytes] = {}
        queries: dict[str, bytes] = {}
        if vectors:
            documents = dict(zip(batch.texts, vectors, strict=False))
            queries = dict(zip(batch.queries, vectors[len(documents) :], strict=True))
        used: list[StoredItem] = []
        if batch.gets:
            found = self.hf.items.get(list({key for key, _ in batch.gets.values()}))
            for position, (key, refresh) in batch.gets.items():
                item = found.get(key)
                if item is not None:
                    results[position] = Item(**_fields(item))
                    if refresh and item.record.ttl is not None:
                        used.append(item)
        for position, search in batch.searches.items():
            scored = list(self._search(search, queries.get(search.op.query or "")))
            results[position] = [SearchItem(**_fields(item), score=score) for score, item in scored]
            if search.op.refresh_ttl:
                used += [item for _, item in scored if item.record.ttl is not None]
        for position, op in batch.lists.items():
            results[position] = self._list(op)
        if used:
            self._renew(list({id(item.record): item for item in used}.values()))
        if batch.puts:
            self.hf.items.put(
                [
                    NewItem(put.key, put.data, put.ttl, [documents[text] for text in put.texts], put.terms)
                    for put in batch.puts.values()
                    if put is not None
                ],
                [key for key, put in batch.puts.items() if put is None],
            )
        return results

    def _search(self, search: _Search, vector: bytes | None) -> Iterator[tuple[float | None, StoredItem]]:
        op = search.op
        if self._index is None or vector is None:
            recent = self.hf.items.recent(search.prefix, op.limit, search.selection, op.offset)
            return ((None, item) for item in islice(recent, op.limit))
        end = min(op.offset + op.limit, sys.maxsize)
        ranked = self._ranked(search, vector, self._index.metric, end)
        return islice(ranked, op.offset, end)

    def _ranked(
        self, search: _Search, vector: bytes, metric: str, want: int
    ) -> Iterator[tuple[float | None, StoredItem]]:
        """Yield the selected items with a score, best first, then those that have no vector, newest first."""
        scored: set[ItemKey] = set()
        for score, item in self.hf.items.nearest(search.prefix, vector, metric, want, search.selection):
            scored.add(ItemKey(item.record.namespace, item.record.key))
            yield score, item
        for item in self.hf.items.recent(search.prefix, want, search.selection):
            if ItemKey(item.record.namespace, item.record.key) not in scored:
                yield None, item

    def _list(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        prefixes = [_exact(each.path) for each in conditions if each.match_type == "prefix"]

        def matches(namespace: tuple[str, ...]) -> bool:
            return all(_does_match(each.path, each.match_type, namespace) for each in conditions)

        end = min(op.offset + op.limit, sys.maxsize)
        namespaces = self.hf.items.namespaces(max(prefixes, key=len, default=()), op.max_depth, matches, end)
        return list(islice(namespaces, op.offset, end))


class _Sweeper(threading.Thread):
    """Deletes expired items, as long as the store is in use."""

    def __init__(self, store: HoldfastStore, seconds: float) -> None:
        super().__init__(name="holdfast-ttl-sweeper", daemon=True)
        self.stopped = threading.Event()
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.done.add_done_callback(lambda _: self.stopped.set())
        self._store = weakref.ref(store)
        self._seconds = seconds

    def run(self) -> None:
        while not self.stopped.wait(self._seconds):
            store = self._store()
            if store is None:
                break
            try:
                store.sweep_ttl()
            except HoldfastError as error:
                warn("expired items could not be deleted, which will be tried again: %s", error)
            del store
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(None)


def _check_key(op: GetOp | PutOp) -> ItemKey:
    _refuse_text(op.namespace)
    validate_op_namespace(op)
    if not isinstance(op.key, str):
        raise InvalidCall(f"the key of an item is a string, not {short(op.key)}")
    return ItemKey(_plain_labels(op.namespace), str.__str__(op.key))


def _check_search(op: SearchOp) -> _Search:
    _refuse_text(op.namespace_prefix)
    validate_op_namespace(op)
    check_integer("limit", op.limit, 0, sys.maxsize)
    check_integer("offset", op.offset, 0, sys.maxsize)
    if op.query is not None and not isinstance(op.query, str):
        raise InvalidCall(f"query is a string, not {short(op.query)}")
    return _Search(op, _plain_labels(op.namespace_prefix), build_filter(op.filter))


def _check_list(op: ListNamespacesOp) -> ListNamespacesOp:
    conditions = op.match_conditions or ()
    if not isinstance(conditions, tuple | list):
        raise InvalidCall(f"match_conditions is a tuple of MatchCondition, not {short(conditions)}")
    for condition in conditions:
        if not isinstance(condition, MatchCondition):
            raise InvalidCall(f"match_conditions has MatchCondition objects, not {short(condition)}")
        _refuse_text(condition.path)
        if condition.match_type not in ("prefix", "suffix"):
            raise InvalidCall(f"match_type is 'prefix' or 'suffix', not {short(condition.match_type)}")
    validate_op_namespace(op)
    check_integer("limit", op.limit, 0, sys.maxsize)
    check_integer("offset", op.offset, 0, sys.maxsize)
    if op.max_depth is not None:
        check_integer("max_depth", op.max_depth, 1)
    plain = (MatchCondition(each.match_type, _plain_labels(each.path)) for each in conditions)
    return op._replace(match_conditions=tuple(plain))


def _plain_labels(labels: Any) -> tuple[str, ...]:
    """Return the texts of labels: a member of an enum of strings has the hash of its name, and may print as that."""
    return tuple(map(str.__str__, labels))


def _refuse_text(namespace: Any) -> None:
    """Refuse a text, whose characters would be taken for labels."""
    if not isinstance(namespace, tuple | list):
        raise InvalidCall(
            f'a namespace is a tuple of strings, such as ("memories", "ana"), not {short(namespace)}'
        )


def _check_ttl_config(config: Any) -> TTLConfig:
    if not isinstance(config, Mapping):
        raise InvalidCall(f'ttl is a dict, such as {{"default_ttl": 60}}, not {short(config)}')
    for key in config:
        if key not in _TTL_KEYS:
            raise InvalidCall(f"ttl has the key {short(key)}; there are {', '.join(_TTL_KEYS)}")
    for key in ("refresh_on_read", "omit_expired"):
        if not isinstance(config.get(key, True), bool):
            raise InvalidCall(f"ttl[{key!r}] is True or False, not {short(config[key])}")
    for key in ("default_ttl", "sweep_interval_minutes"):
        if config.get(key) is not None:
            check_number(f"ttl[{key!r}]", config[key], above_zero=True, most=_MAX_MINUTES, unit=" of minutes")
    found: Any = {**config}
    return found  # type: ignore[no-any-return]


def _microseconds(minutes: Any) -> int | None:
    if minutes is None:
        return None
    check_number("ttl", minutes, above_zero=True, most=_MAX_MINUTES, unit=" of minutes")
    return max(1, round(float(minutes) * _MINUTE))


def _fields(item: StoredItem) -> dict[str, Any]:
    record = item.record
    created = updated = _EPOCH + timedelta(0, 0, record.created)
    if record.updated != record.created:
        updated = _EPOCH + timedelta(0, 0, record.updated)
    return {
        "value": item.value,
        "key": record.key,
        "namespace": record.namespace,
        "created_at": created,
        "updated_at": updated,
    }


def _exact(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels of a path before its first wildcard."""
    return path[: path.index("*")] if "*" in path else path


def _does_match(path: tuple[str, ...], match_type: str, namespace: tuple[str, ...]) -> bool:
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
