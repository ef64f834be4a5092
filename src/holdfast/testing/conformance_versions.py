"""Contracts of versions: their records, pages and packs; timelines; marks."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import NotFound
from holdfast.model.records import KINDS, PIN, STATUSES, MarkRecord, TimelineRecord
from holdfast.store.base import Append, Prune, Store
from holdfast.testing.samples import (
    ALL,
    advanced,
    begin,
    blocks,
    commit,
    content,
    event,
    everything,
    history,
    imported,
    mark,
    names,
    new_run,
    numbers,
    stubs,
    version,
)

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

    @pytest.mark.parametrize("fields", _VERSIONS, ids=lambda fields: ",".join(fields) or "plain")
    def test_a_version_reads_back_as_it_was_written(self, store: Store, fields: dict[str, Any]) -> None:
        written = version(1, **fields)
        run = commit(store, new_run(), **fields)
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

    def test_packs_of_many_runs_at_once(self, store: Store) -> None:
        one, other = history(store, 3), commit(store, new_run("other"), pack=content("large", 300_000))
        (stub,) = stubs(1)
        pruned = store.append(Append(expect=None, run=new_run("pruned", last=1), version=stub[0]))
        wanted = [(one.key, 3), (other.key, 1), (one.key, 1), (pruned.key, 1)]
        found = store.packs_of([*wanted, (one.key, 4), (other.key, 0), (other.key + 99, 1), wanted[0]])
        assert found == {(key, number): store.packs(key, [number])[0] for key, number in wanted}
        assert found[other.key, 1].pack == content("large", 300_000)
        assert found[pruned.key, 1].pruned
        assert store.packs_of([]) == {}

    def test_further_blocks_are_kept_in_order(self, store: Store) -> None:
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

    def test_stubs_show_only_to_those_who_ask(self, store: Store) -> None:
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

    def test_a_mark_is_set_once_and_removed_once_each_with_its_event(self, store: Store) -> None:
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

    def test_a_version_that_is_not_there_cannot_be_marked(self, store: Store) -> None:
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
