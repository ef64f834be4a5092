"""Contracts of the store as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.errors import StoreUnavailable
from holdfast.model.records import MarkRecord, StoreStats
from holdfast.store.protocol import Append, Prune, Store
from holdfast.testing.samples import (
    advanced,
    begin,
    commit,
    content,
    digest,
    event,
    everything,
    history,
    imported,
    mark,
    new_run,
    stubs,
    upload,
)

_USES: list[Callable[[Store], object]] = [
    lambda store: store.append(Append(expect=None, run=new_run("new"))),
    lambda store: store.append_many([Append(expect=None, run=new_run("new"))]),
    lambda store: store.run("run"),
    lambda store: store.revision("run"),
    lambda store: store.run_by_key(1),
    lambda store: store.run_ids("", 9),
    lambda store: store.runs(),
    lambda store: store.forks_of(1),
    lambda store: store.delete_run(new_run()),
    lambda store: store.import_run(imported(1, "new")),
    lambda store: store.versions(1),
    lambda store: store.packs(1, [1]),
    lambda store: store.block(1, 1, 0),
    lambda store: store.timelines(1),
    lambda store: store.marks(1),
    lambda store: store.set_mark(1, MarkRecord(number=1, name="good", at=1), on=True, event=event()),
    lambda store: store.journal(run=None, after=0, limit=9),
    lambda store: store.journal_end(),
    lambda store: store.prune(Prune(expect=new_run(), run=new_run(), drop=[1], thin=[])),
    lambda store: store.put_artifact(upload(b"large"), 1),
    lambda store: store.artifact(digest(b"large")),
    lambda store: list(store.artifact_pieces(digest(b"large"))),
    lambda store: store.artifacts(),
    lambda store: store.collect(before=1),
    lambda store: store.value("breaker"),
    lambda store: store.set_value("breaker", b"data", 0),
    lambda store: store.renew([1], "me", 9),
    lambda store: store.claim_again(1, "me", 9, None, event()),
    lambda store: store.stats(),
    lambda store: store.check(),
    lambda store: store.compact(),
]


class WholeContract:
    """`stats`, `check`, `compact`, `close`."""

    def test_now_advances(self, store: Store) -> None:
        first = store.now()
        assert type(first) is int
        assert first > 1_600_000_000_000_000
        while (later := store.now()) == first:
            pass
        assert 0 < later - first < 60_000_000

    def test_stats_count_stored_records(self, store: Store) -> None:
        empty = StoreStats(runs=0, versions=0, events=0, artifacts=0, artifact_bytes=0, pack_bytes=0)
        assert replace(store.stats(), file_bytes=None) == empty
        run = commit(store, history(store, 4), change={"events": [event(), event()]})
        mark(store, run, 1, "good")
        store.put_artifact(upload(b"large"), 1)
        store.put_artifact(upload(b"larger"), 1)
        begin(store, "other", size=1_000)
        expected = StoreStats(runs=2, versions=5, events=3, artifacts=2, artifact_bytes=11, pack_bytes=1_200)
        assert replace(store.stats(), file_bytes=None) == expected
        after = advanced(run, kept=3, size=120)
        run = store.prune(Prune(expect=run, run=after, drop=[2], thin=stubs(3)))
        assert replace(store.stats(), file_bytes=None) == replace(expected, versions=3, pack_bytes=1_120)
        store.delete_run(run)
        assert store.stats().runs == 1
        assert store.stats().events == 0

    def test_intact_store_passes_its_check(self, store: Store) -> None:
        assert store.check() == []
        store.import_run(imported(500))
        assert store.check() == []

    def test_compacting_changes_no_data(self, store: Store) -> None:
        store.compact()
        data = content("artifact", 500_000)
        run = commit(store, history(store, 20), change={"uploads": [upload(data)], "holds": [digest(data)]})
        gone = store.import_run(imported(500, "gone"))
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[2, 3], thin=stubs(4)))
        store.delete_run(gone)
        before = everything(store)
        store.compact()
        assert everything(store) == before
        assert commit(store, run).last == 22
        assert store.check() == []

    def test_closing_twice_is_harmless(self, store: Store) -> None:
        history(store, 1)
        store.close()
        store.close()

    def test_closed_store_refuses_every_method(self, store: Store) -> None:
        history(store, 1)
        store.close()
        for use in _USES:
            with pytest.raises(StoreUnavailable):
                use(store)
