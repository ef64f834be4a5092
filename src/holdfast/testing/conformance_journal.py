"""Contracts of the journal, and of pruning, which must leave it readable."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import StaleVersion
from holdfast.model.records import EventRecord
from holdfast.store.base import Append, Prune, Store
from holdfast.testing.samples import (
    ALL,
    Part,
    advanced,
    begin,
    belongings,
    blocks,
    change_of,
    commit,
    content,
    digest,
    event,
    everything,
    history,
    imported,
    mark,
    names,
    new_run,
    numbers,
    place,
    stub,
    stubs,
    upload,
    walk,
)

_EVENTS: list[dict[str, Any]] = [
    {},
    {"kind": "", "at": 0, "data": b""},
    {"kind": "lauf→\U0001f40b", "at": -1, "data": bytes(range(256))},
    {"kind": "large", "at": (1 << 62) + 1, "data": content("an event", 200_000)},
]


class JournalContract:
    """`journal`, `prune`."""

    @pytest.mark.parametrize("fields", _EVENTS, ids=lambda fields: fields.get("kind", "plain"))
    def test_an_event_reads_back_as_it_was_written(self, store: Store, fields: dict[str, Any]) -> None:
        run = begin(store)
        store.append(Append(expect=run, run=advanced(run), events=[event(**fields)]))
        (found,) = store.journal(run=None, after=0, limit=9)
        assert isinstance(found, EventRecord)
        assert found.seq > 0
        assert found == replace(event(**fields), seq=found.seq, run=run.key)

    def test_the_journal_tells_what_happened_in_its_order(self, store: Store) -> None:
        runs = {name: new_run(name) for name in "abc"}
        told: list[tuple[str, str | int]] = []
        for turn in range(12):
            name = "abc"[turn * turn % 3]
            run = runs[name]
            if turn % 4 == 3 and run.key:
                kind = f"event-{turn}"
                runs[name] = store.append(Append(expect=run, run=advanced(run), events=[event(kind)]))
                told.append((name, kind))
            else:
                runs[name] = commit(store, run, change={"events": [event(f"with-{turn}")]})
                told += [(name, runs[name].last), (name, f"with-{turn}")]
        entries = store.journal(run=None, after=0, limit=ALL)
        assert names(entries) == [what for _, what in told]
        keys = [entry.run if isinstance(entry, EventRecord) else entry[0] for entry in entries]
        assert keys == [runs[name].key for name, _ in told]
        places = [place(entry) for entry in entries]
        assert places == sorted(set(places))
        for name, run in runs.items():
            own = [entry for entry, (whose, _) in zip(entries, told, strict=True) if whose == name]
            assert store.journal(run=run.key, after=0, limit=ALL) == own
            for index, entry in enumerate(own):
                assert store.journal(run=run.key, after=place(entry), limit=2) == own[index + 1 : index + 3]
        for index, entry in enumerate(entries):
            assert store.journal(run=None, after=place(entry), limit=2) == entries[index + 1 : index + 3]

    def test_a_long_journal_is_read_from_anywhere(self, store: Store) -> None:
        run = store.import_run(imported(2_000, events=[event("imported")]))
        other = store.import_run(imported(300, "other"))
        for turn in range(60):
            run = commit(store, run, change={"events": [event(f"event-{turn}")] if turn % 3 else []})
            other = commit(store, other)
        drop = [number for number in range(1, 1_900) if number % 7 > 2]
        thin = stubs(*range(2, 1_900, 7))
        run = store.prune(
            Prune(expect=run, run=advanced(run), drop=drop, thin=thin, events=[event("pruned")])
        )
        rng = random.Random("journal")
        for key in (run.key, other.key, None):
            whole = store.journal(run=key, after=0, limit=ALL)
            places = [place(entry) for entry in whole]
            assert places == sorted(set(places))
            assert list(walk(store, run=key, limit=97)) == whole
            for _ in range(60):
                after, limit = rng.randrange(places[-1] + 3), rng.choice([1, 5, 100])
                later = [entry for entry in whole if place(entry) > after][:limit]
                assert store.journal(run=key, after=after, limit=limit) == later

    def test_pruned_versions_leave_no_empty_page(self, store: Store) -> None:
        run = history(store, 30)
        thin = stubs(*range(2, 30), *range(-40, 1))
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[], thin=thin, events=[event("pruned")]))
        run = commit(store, run)
        for key in (run.key, None):
            assert names(list(walk(store, run=key, limit=3))) == [1, 30, "pruned", 31]
            assert names(store.journal(run=key, after=0, limit=3)) == [1, 30, "pruned"]

    def test_positions_are_never_given_again(self, store: Store) -> None:
        kept = history(store, 1, "kept")
        gone = commit(store, history(store, 3, "gone"), change={"events": [event("last")]})
        seen = place(store.journal(run=None, after=0, limit=ALL)[-1])
        store.delete_run(gone)
        kept = commit(store, kept)
        assert names(store.journal(run=None, after=seen, limit=ALL)) == [2]
        kept = commit(store, commit(store, kept, timeline=2), timeline=1)
        seen = place(store.journal(run=None, after=0, limit=ALL)[-1])
        kept = store.prune(
            Prune(expect=kept, run=advanced(kept), drop=[3, 4], thin=[], events=[event("pruned")])
        )
        assert names(store.journal(run=kept.key, after=seen, limit=ALL)) == ["pruned"]
        store.delete_run(kept)
        again = history(store, 1, "again")
        assert names(store.journal(run=None, after=seen + 1, limit=ALL)) == [1]
        assert store.journal(run=None, after=0, limit=ALL) == store.journal(run=again.key, after=0, limit=ALL)
        assert store.stats().events == 0

    def test_what_comes_later_is_beyond_the_end(self, store: Store) -> None:
        assert store.journal_end() == 0
        kept = history(store, 2, "kept")
        gone = commit(store, new_run("gone"), change={"events": [event("last")]})
        seen = store.journal_end()
        assert seen == place(store.journal(run=None, after=0, limit=ALL)[-1])
        assert store.journal(run=None, after=seen, limit=9) == []
        mark(store, kept, 1, "good")
        assert names(store.journal(run=None, after=seen, limit=9)) == ["marked"]
        seen = store.journal_end()
        store.delete_run(gone)
        assert store.journal_end() >= seen
        seen = store.journal_end()
        kept = commit(store, kept)
        assert names(store.journal(run=None, after=seen, limit=9)) == [3]
        seen = store.journal_end()
        kept = store.prune(Prune(expect=kept, run=advanced(kept), drop=[2, 3], thin=[]))
        assert store.journal_end() >= seen
        seen = store.journal_end()
        store.delete_run(kept)
        assert store.journal_end() >= seen
        seen = store.journal_end()
        store.set_value("breaker", b"data", 0)
        assert store.journal_end() == seen
        store.append_many([change_of(new_run(name), events=[event(name)]) for name in ("one", "other")])
        assert len(store.journal(run=None, after=seen, limit=9)) == 4
        assert store.journal_end() == place(store.journal(run=None, after=0, limit=ALL)[-1])

    def test_pruning_drops_and_thins(self, store: Store) -> None:
        run = new_run()
        for number in range(1, 8):
            parts = {
                "blocks": [b"a", b"b"],
                "tags": [f"tag-{number}", "all"],
                "events": [event(f"e{number}")],
            }
            run = commit(store, run, change=parts)
        for number in (1, 2, 3, 5):
            for name in (f"tag-{number}", "all"):
                mark(store, run, number, name, on=False)
        other = commit(store, new_run("other"), change={"blocks": [b"x"], "tags": ["all"]})
        others = belongings(store, other)
        was = {record.number: record for record in store.packs(run.key, range(1, 8))}
        plan = Prune(
            expect=run,
            run=advanced(run, epoch=1, kept=4, size=9),
            drop=[1, 2],
            thin=[(stub(3), [b"left"], []), *stubs(5)],
            events=[event("pruned")],
        )
        after = store.prune(plan)
        assert after == store.run("run") == plan.run
        assert numbers(store.versions(run.key, pruned=True)) == [7, 6, 5, 4, 3]
        assert blocks(store, run, 3) == [b"left"]
        assert blocks(store, run, 5) == blocks(store, run, 1) == []
        assert blocks(store, run, 4) == [b"a", b"b"]
        now = {record.number: record for record in store.packs(run.key, range(1, 8))}
        assert [now[number] for number in (4, 6, 7)] == [was[number] for number in (4, 6, 7)]
        assert [now[number] for number in (3, 5)] == [
            replace(stub(number), seq=was[number].seq) for number in (3, 5)
        ]
        assert {found.number for found in store.marks(run.key)} == {4, 6, 7}
        assert numbers(store.versions(run.key, tag="all")) == [7, 6, 4]
        journal = names(store.journal(run=run.key, after=0, limit=ALL))
        assert [name for name in journal if name != "marked"] == [
            "e1", "e2", "e3", 4, "e4", "e5", 6, "e6", 7, "e7", "pruned"
        ]  # fmt: skip
        assert belongings(store, other) == others
        assert commit(store, after).last == 8

    def test_a_mark_that_came_after_the_plan_keeps_its_version(self, store: Store) -> None:
        run = history(store, 3)
        for plan in (
            Prune(expect=run, run=advanced(run), drop=[2], thin=[]),
            Prune(expect=run, run=advanced(run), drop=[], thin=stubs(2)),
        ):
            mark(store, run, 2, "good")
            with pytest.raises(StaleVersion):
                store.prune(plan)
            assert numbers(store.versions(run.key)) == [3, 2, 1]
            assert store.run("run") == run
            mark(store, run, 2, "good", on=False)
        assert store.prune(plan) == plan.run

    def test_what_was_pruned_lets_go_of_its_artifacts(self, store: Store) -> None:
        run = new_run()
        for number in range(1, 5):
            own = f"artifact {number}".encode()
            run = commit(
                store,
                run,
                change={"uploads": [upload(own), upload(b"all")], "holds": [digest(own), digest(b"all")]},
            )
        still = digest(b"artifact 2")
        plan = Prune(
            expect=run,
            run=advanced(run),
            drop=[1],
            thin=[(stub(2), [], [still]), (stub(3), [], []), (stub(-1), [], [still])],
        )
        run = store.prune(plan)
        assert store.collect(before=ALL) == (2, 20)
        kept = {digest(b"all"), digest(b"artifact 4"), still}
        assert {record.digest for record in store.artifacts()} == kept
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[2], thin=[]))
        assert store.collect(before=ALL) == (0, 0)
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[-1], thin=[]))
        assert store.collect(before=ALL) == (1, 10)

    def test_stubs_can_be_added_below_the_first_version(self, store: Store) -> None:
        run = history(store, 3)
        thin: list[Part] = [(stub(number, parent=number), [b"block"], ()) for number in (-7, -1, 0)]
        run = store.prune(Prune(expect=run, run=advanced(run, origin=None), drop=[], thin=thin))
        assert numbers(store.versions(run.key, pruned=True, ascending=True)) == [-7, -1, 0, 1, 2, 3]
        found = {record.number: record for record in store.packs(run.key, [-7, -1, 0])}
        assert [replace(found[number], seq=0) for number in (-7, -1, 0)] == [made for made, _, _ in thin]
        assert blocks(store, run, -7) == [b"block"]
        run = commit(store, run)
        assert names(store.journal(run=run.key, after=0, limit=ALL)) == [1, 2, 3, 4]
        seqs = [record.seq for record in store.versions(run.key, pruned=True)]
        assert len(set(seqs)) == 7
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[-7, 0], thin=stubs(-1)))
        assert numbers(store.versions(run.key, pruned=True)) == [4, 3, 2, 1, -1]

    def test_pruning_what_is_not_there_is_harmless(self, store: Store) -> None:
        run = history(store, 2)
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[9, -9], thin=[]))
        assert numbers(store.versions(run.key, pruned=True)) == [2, 1]

    def test_a_stale_pruning_is_refused_with_nothing_written(self, store: Store) -> None:
        run = history(store, 4)
        moved = commit(store, run, change={"tags": ["good"]})
        before = everything(store)
        thin: list[Part] = [(stub(2), [b"left"], ()), *stubs(0)]
        plan = Prune(expect=run, run=advanced(run, epoch=1), drop=[1, 3], thin=thin, events=[event("pruned")])
        with pytest.raises(StaleVersion):
            store.prune(plan)
        assert everything(store) == before
        store.delete_run(moved)
        with pytest.raises(StaleVersion):
            store.prune(plan._replace(expect=moved))
        assert store.runs() == []
