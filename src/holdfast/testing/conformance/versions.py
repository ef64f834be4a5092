"""Contracts of versions, timelines, marks and the journal, and of pruning, which leaves the journal readable."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import NotFound, StaleVersion
from holdfast.model.records import KINDS, PIN, STATUSES, EventRecord, MarkRecord, TimelineRecord
from holdfast.store.protocol import Append, Prune, Store, VersionParts
from holdfast.testing.samples import (
    ALL,
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
    version,
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

    def test_event_reads_back_as_it_was_written(self, store: Store) -> None:
        run = begin(store)
        for fields in _EVENTS:
            end = store.journal_end()
            run = store.append(Append(expect=run, run=advanced(run), events=[event(**fields)]))
            (found,) = store.journal(run=None, after=end, limit=9)
            assert isinstance(found, EventRecord)
            assert found.seq > 0
            assert found == replace(event(**fields), seq=found.seq, run=run.key)

    def test_journal_lists_entries_in_order(self, store: Store) -> None:
        runs = {name: new_run(name) for name in "abc"}
        expected: list[tuple[str, str | int]] = []
        for turn in range(12):
            name = "abc"[turn * turn % 3]
            run = runs[name]
            if turn % 4 == 3 and run.key:
                kind = f"event-{turn}"
                runs[name] = store.append(Append(expect=run, run=advanced(run), events=[event(kind)]))
                expected.append((name, kind))
            else:
                runs[name] = commit(store, run, change={"events": [event(f"with-{turn}")]})
                expected += [(name, runs[name].last), (name, f"with-{turn}")]
        entries = store.journal(run=None, after=0, limit=ALL)
        assert names(entries) == [what for _, what in expected]
        keys = [entry.run if isinstance(entry, EventRecord) else entry[0] for entry in entries]
        assert keys == [runs[name].key for name, _ in expected]
        places = [place(entry) for entry in entries]
        assert places == sorted(set(places))
        for name, run in runs.items():
            own = [entry for entry, (whose, _) in zip(entries, expected, strict=True) if whose == name]
            assert store.journal(run=run.key, after=0, limit=ALL) == own
            for index, entry in enumerate(own):
                assert store.journal(run=run.key, after=place(entry), limit=2) == own[index + 1 : index + 3]
        for index, entry in enumerate(entries):
            assert store.journal(run=None, after=place(entry), limit=2) == entries[index + 1 : index + 3]

    def test_long_journal_is_read_from_any_position(self, store: Store) -> None:
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

    def test_journal_positions_are_not_reused(self, store: Store) -> None:
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

    def test_later_entries_are_beyond_the_journal_end(self, store: Store) -> None:
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

    def test_pruning_is_refused_after_a_version_was_marked(self, store: Store) -> None:
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

    def test_pruning_releases_artifacts(self, store: Store) -> None:
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
        thin: list[VersionParts] = [(stub(number, parent=number), [b"block"], ()) for number in (-7, -1, 0)]
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

    def test_pruning_missing_versions_has_no_effect(self, store: Store) -> None:
        run = history(store, 2)
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[9, -9], thin=[]))
        assert numbers(store.versions(run.key, pruned=True)) == [2, 1]

    def test_stale_pruning_is_refused_with_nothing_written(self, store: Store) -> None:
        run = history(store, 4)
        moved = commit(store, run, change={"tags": ["good"]})
        before = everything(store)
        thin: list[VersionParts] = [(stub(2), [b"left"], ()), *stubs(0)]
        plan = Prune(expect=run, run=advanced(run, epoch=1), drop=[1, 3], thin=thin, events=[event("pruned")])
        with pytest.raises(StaleVersion):
            store.prune(plan)
        assert everything(store) == before
        store.delete_run(moved)
        with pytest.raises(StaleVersion):
            store.prune(plan._replace(expect=moved))
        assert store.runs() == []


_LARGE = (1 << 62) + 1
_VERSIONS: list[dict[str, Any]] = [
    {},
    {"step": None, "parent": 0, "steps": 0, "at": 0, "pack": b"", "size": 0},
    {"step": "", "detail": b"\0", "timeline": 0},
    {"step": "plän/流#2 \U0001f40b", "detail": bytes(range(256)), "at": -1},
    {"at": _LARGE, "steps": _LARGE, "timeline": _LARGE, "size": _LARGE},
    {"pack": content("a large pack", 300_000), "detail": content("a large detail", 100_000)},
    {"prev": bytes(8), "pack_hash": bytes(16), "hash": b"\xff" * 16},
    *({"kind": kind} for kind in KINDS),
    *({"status": status} for status in STATUSES),
]


class VersionContract:
    """`versions`, `packs`, `block`, `timelines`, `marks`, `set_mark`."""

    def test_version_reads_back_as_it_was_written(self, store: Store) -> None:
        for index, fields in enumerate(_VERSIONS):
            written = version(1, **fields)
            run = commit(store, new_run(f"run {index}"), **fields)
            (listed,) = store.versions(run.key)
            assert listed.seq > 0
            assert replace(listed, seq=0) == replace(written, pack=None)
            assert store.packs(run.key, [1]) == [replace(listed, pack=written.pack)]
            assert store.journal(run=run.key, after=0, limit=9) == [(run.key, listed)]

    def test_numbers_and_parents_may_be_far_apart(self, store: Store) -> None:
        run = begin(store)
        last = 1 << 40
        run = store.append(Append(expect=run, run=advanced(run, last=last), version=version(last, parent=3)))
        run = commit(store, run, parent=last)
        assert [(found.number, found.parent) for found in store.versions(run.key)] == [
            (last + 1, last),
            (last, 3),
        ]

    def test_packs_of_many_runs_are_read_at_once(self, store: Store) -> None:
        one, other = history(store, 3), commit(store, new_run("other"), pack=content("large", 300_000))
        (stub,) = stubs(1)
        pruned = store.append(Append(expect=None, run=new_run("pruned", last=1), version=stub[0]))
        wanted = [(one.key, 3), (other.key, 1), (one.key, 1), (pruned.key, 1)]
        found = store.packs_of([*wanted, (one.key, 4), (other.key, 0), (other.key + 99, 1), wanted[0]])
        assert found == {(key, number): store.packs(key, [number])[0] for key, number in wanted}
        assert found[other.key, 1].pack == content("large", 300_000)
        assert found[pruned.key, 1].pruned
        assert store.packs_of([]) == {}

    def test_blocks_are_stored_in_order(self, store: Store) -> None:
        run = new_run()
        written = [[], [b"only"], [content(f"block {index}", 70_000) for index in range(30)], [b"", b"x"]]
        for some in written:
            run = commit(store, run, change={"blocks": some})
        assert [blocks(store, run, number) for number in range(1, 5)] == written
        assert store.block(run.key, 3, 30) is None
        assert store.block(run.key, 5, 0) is None
        assert store.block(run.key + 1, 3, 0) is None

    def test_versions_are_paged_by_number(self, store: Store) -> None:
        run = history(store, 12)
        every = list(range(1, 13))
        assert numbers(store.versions(run.key)) == every[::-1]
        assert numbers(store.versions(run.key, ascending=True)) == every
        bounds = [None, -5, 0, 1, 2, 6, 11, 12, 13, 99]
        for after, before, limit, ascending in product(bounds, bounds, [1, 4, 100], [True, False]):
            expected = [
                number
                for number in (every if ascending else every[::-1])
                if (after is None or number > after) and (before is None or number < before)
            ]
            found = store.versions(run.key, after=after, before=before, limit=limit, ascending=ascending)
            assert numbers(found) == expected[:limit]

    def test_versions_are_filtered(self, store: Store) -> None:
        run = new_run()
        for number in range(1, 41):
            run = commit(
                store,
                run,
                timeline=1 + number // 20,
                step="plan" if number % 2 else None,
                kind="merge" if number % 3 == 0 else "step",
                change={"tags": ["five"] if number % 5 == 0 else ["other"]},
            )
        for timeline, step, kind, tag in product(
            [None, 1, 2, 9], [None, "plan", "none"], [None, "merge", "final"], [None, "five", "x"]
        ):
            expected = [
                number
                for number in range(40, 0, -1)
                if (timeline is None or 1 + number // 20 == timeline)
                and (step is None or (step == "plan" and number % 2))
                and (kind is None or (kind == "merge" and number % 3 == 0))
                and (tag is None or (tag == "five" and number % 5 == 0))
            ]
            found = store.versions(run.key, timeline=timeline, step=step, kind=kind, tag=tag)
            assert numbers(found) == expected
            page = store.versions(
                run.key,
                timeline=timeline,
                step=step,
                kind=kind,
                tag=tag,
                after=4,
                before=36,
                limit=3,
                ascending=True,
            )
            assert numbers(page) == [number for number in expected[::-1] if 4 < number < 36][:3]

    def test_stubs_are_listed_only_on_request(self, store: Store) -> None:
        run = history(store, 6)
        run = store.prune(Prune(expect=run, run=advanced(run, kept=4), drop=[], thin=stubs(2, 3, -4, 0)))
        assert numbers(store.versions(run.key)) == [6, 5, 4, 1]
        assert numbers(store.versions(run.key, limit=2, before=5)) == [4, 1]
        assert numbers(store.versions(run.key, pruned=True)) == [6, 5, 4, 3, 2, 1, 0, -4]
        assert numbers(store.versions(run.key, pruned=True, ascending=True, after=-9, limit=3)) == [-4, 0, 1]
        assert [found.pruned for found in store.versions(run.key, pruned=True, before=4)] == [
            True,
            True,
            False,
            True,
            True,
        ]
        assert {found.number: found.pack for found in store.packs(run.key, [-4, 2, 6])} == {
            -4: b"stub",
            2: b"stub",
            6: version(6).pack,
        }

    def test_many_packs_are_read_at_once(self, store: Store) -> None:
        run = store.import_run(imported(2_500))
        other = store.import_run(imported(10, "other"))
        wanted = list(range(2_600, 0, -1))
        found = store.packs(run.key, wanted)
        assert sorted(numbers(found)) == list(range(1, 2_501))
        assert {record.number: record.pack for record in found} == {
            number: version(number).pack for number in range(1, 2_501)
        }
        assert store.packs(run.key, []) == store.packs(run.key, [0, -1, 9_999]) == []
        assert sorted(numbers(store.packs(other.key, wanted))) == list(range(1, 11))

    def test_timelines_are_listed_oldest_first(self, store: Store) -> None:
        lines = [
            TimelineRecord(number=1, parent=0, at=0),
            TimelineRecord(number=2, parent=_LARGE, at=-1, reason="", actor=""),
            TimelineRecord(number=3, parent=2, at=_LARGE, reason="weil→\U0001f40b", actor=None),
        ]
        run = begin(store)
        other = history(store, 1, "other")
        for line in lines:
            run = store.append(Append(expect=run, run=advanced(run, timeline=line.number), timeline=line))
        assert store.timelines(run.key) == lines
        assert store.timelines(run.key, after=1) == lines[1:]
        assert store.timelines(run.key, after=3) == []
        assert store.timelines(other.key) == []

    def test_marks_are_listed_by_number_and_name(self, store: Store) -> None:
        run = new_run()
        for number in range(1, 6):
            tags = ["b", "a", "ä\U0001f40b"] if number % 2 else []
            run = commit(store, run, at=number, change={"tags": [*tags, *tags]})
        mark(store, run, 2, PIN)
        mark(store, run, 3, PIN)

        def expected(first: int, last: int) -> list[MarkRecord]:
            tags = {1: ["a", "b", "ä\U0001f40b"], 2: [PIN], 3: [PIN, "a", "b", "ä\U0001f40b"]}
            tags[5] = tags[1]
            return [
                MarkRecord(number=number, name=name, at=7 if name == PIN else number)
                for number in range(first, last + 1)
                for name in tags.get(number, [])
            ]

        assert store.marks(run.key) == expected(1, 5)
        assert store.marks(run.key, 2) == expected(2, 5)
        assert store.marks(run.key, None, 3) == expected(1, 3)
        assert store.marks(run.key, 3, 3) == expected(3, 3)
        assert store.marks(run.key, 4, 4) == store.marks(run.key, 5, 1) == store.marks(run.key + 1) == []

    def test_mark_is_set_and_removed_once_with_an_event(self, store: Store) -> None:
        run = history(store, 2)
        history(store, 2, "other")
        assert mark(store, run, 1, "good")
        assert names(store.journal(run=run.key, after=0, limit=9)) == [1, 2, "marked"]
        before = everything(store)
        assert not mark(store, run, 1, "good")
        assert not mark(store, run, 1, "bad", on=False)
        assert not mark(store, run, 9, "bad", on=False)
        assert everything(store) == before
        assert numbers(store.versions(run.key, tag="good")) == [1]
        assert mark(store, run, 2, "good")
        assert mark(store, run, 1, "good", on=False)
        assert not mark(store, run, 1, "good", on=False)
        assert [found.number for found in store.marks(run.key)] == [2]
        assert names(store.journal(run=run.key, after=0, limit=9)) == [1, 2, "marked", "marked", "marked"]
        assert store.run("run") == run

    def test_missing_version_cannot_be_marked(self, store: Store) -> None:
        run = history(store, 3)
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[1], thin=stubs(2)))
        before = everything(store)
        for number in (1, 2, 4):
            with pytest.raises(NotFound):
                mark(store, run, number, "good")
        store.delete_run(history(store, 1, "gone"))
        with pytest.raises(NotFound):
            store.set_mark(run.key + 1, MarkRecord(number=1, name="good", at=7), on=True, event=event())
        assert everything(store) == before

    def test_many_versions_are_paged_through(self, store: Store) -> None:
        run = store.import_run(imported(3_000))
        found: list[int] = []
        while page := store.versions(run.key, before=found[-1] if found else None, limit=700):
            found += numbers(page)
        assert found == list(range(3_000, 0, -1))
        assert len(store.versions(run.key, limit=ALL)) == 3_000
