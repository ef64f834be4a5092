"""Contracts of the store as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.errors import StoreUnavailable
from holdfast.model.records import MarkRecord, StoreStats
from holdfast.store.base import Append, Prune, Store
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

_USES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append(Append(expect=None, run=new_run("new"))),
    "append_many": lambda store: store.append_many([Append(expect=None, run=new_run("new"))]),
    "run": lambda store: store.run("run"),
    "revision": lambda store: store.revision("run"),
    "run_by_key": lambda store: store.run_by_key(1),
    "run_ids": lambda store: store.run_ids("", 9),
    "runs": lambda store: store.runs(),
    "forks_of": lambda store: store.forks_of(1),
    "delete_run": lambda store: store.delete_run(new_run()),
    "import_run": lambda store: store.import_run(imported(1, "new")),
    "versions": lambda store: store.versions(1),
    "packs": lambda store: store.packs(1, [1]),
    "block": lambda store: store.block(1, 1, 0),
    "timelines": lambda store: store.timelines(1),
    "marks": lambda store: store.marks(1),
    "set_mark": lambda store: store.set_mark(
        1, MarkRecord(number=1, name="good", at=1), on=True, event=event()
    ),
    "journal": lambda store: store.journal(run=None, after=0, limit=9),
    "journal_end": lambda store: store.journal_end(),
    "prune": lambda store: store.prune(Prune(expect=new_run(), run=new_run(), drop=[1], thin=[])),
    "put_artifact": lambda store: store.put_artifact(upload(b"large"), 1),
    "artifact": lambda store: store.artifact(digest(b"large")),
    "artifact_pieces": lambda store: list(store.artifact_pieces(digest(b"large"))),
    "artifacts": lambda store: store.artifacts(),
    "collect": lambda store: store.collect(before=1),
    "value": lambda store: store.value("breaker"),
    "set_value": lambda store: store.set_value("breaker", b"data", 0),
    "renew": lambda store: store.renew([1], "me", 9),
    "claim_again": lambda store: store.claim_again(1, "me", 9, None, event()),
    "stats": lambda store: store.stats(),
    "check": lambda store: store.check(),
    "compact": lambda store: store.compact(),
}


class WholeContract:
    """`stats`, `check`, `compact`, `close`."""

    def test_time_goes_on(self, store: Store) -> None:
        first = store.now()
        assert type(first) is int
        assert first > 1_600_000_000_000_000
        while (later := store.now()) == first:
            """It comes."""
        assert 0 < later - first < 60_000_000

    def test_stats_count_what_is_there(self, store: Store) -> None:
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

    def test_a_sound_store_passes_its_check(self, store: Store) -> None:
        assert store.check() == []
        store.import_run(imported(500))
        assert store.check() == []

    def test_compacting_changes_nothing_that_is_read(self, store: Store) -> None:
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

    @pytest.mark.parametrize("use", _USES.values(), ids=_USES)
    def test_a_closed_store_says_so(self, store: Store, use: Callable[[Store], object]) -> None:
        history(store, 1)
        store.close()
        with pytest.raises(StoreUnavailable):
            use(store)
