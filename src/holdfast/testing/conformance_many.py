"""Contracts of changes of many runs that are carried out together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import HoldfastError, NotFound, StaleVersion
from holdfast.model.records import RunRecord, TimelineRecord
from holdfast.store.base import Append, Place, Store
from holdfast.testing.samples import (
    ALL,
    advanced,
    begin,
    belongings,
    change_of,
    digest,
    event,
    everything,
    history,
    names,
    new_run,
    upload,
    version,
)
from holdfast.tree.pack import Upload


def _spoilt(store: Store) -> dict[str, Append]:
    """A change that must be refused, for each reason there is, of runs that are there already."""
    made = {name: history(store, 2, name) for name in ("stale", "missing")}
    parts: dict[str, Any] = {
        "events": [event("refused")],
        "uploads": [upload(b"refused")],
        "tags": ["refused"],
    }
    return {
        "stale": change_of(replace(made["stale"], revision=1), **parts),
        "exists": change_of(new_run("stale"), **parts),
        "gone": change_of(new_run("gone", key=1_000), **parts),
        "missing": change_of(made["missing"], **(parts | {"holds": [digest(b"missing")]})),
    }


class ManyContract:
    """`append_many`."""

    def test_nothing_is_done_for_no_changes(self, store: Store) -> None:
        history(store, 1)
        before = everything(store)
        assert store.append_many([]) == []
        assert everything(store) == before

    def test_plain_versions_of_many_runs_each_by_itself(self, store: Store) -> None:
        """Most changes are a version and nothing else; some are refused, and some runs are in a queue."""
        place = Place("q", 3)
        made = [
            store.append(
                Append(
                    expect=None,
                    run=new_run(f"run {number}", workflow="flow", last=1, head=1, revision=1),
                    version=version(1),
                    queue=place if number % 3 else None,
                )
            )
            for number in range(20)
        ]
        changes = []
        for number, run in enumerate(made):
            ended = (
                {"status": "completed", "detail": b"x" * number}
                if number % 2
                else {"step": None, "due": number}
            )
            after = replace(run, revision=2, last=2, head=2, size=number, **ended)
            written = version(2, detail=b"d" * number, step=None if number % 4 else f"step {number}")
            changes.append(Append(expect=run, run=after, version=written))
        stale = {3, 8}
        for number in stale:
            changes[number] = replace(changes[number], expect=replace(made[number], revision=9))
        found = store.append_many([*changes, changes[5]])
        assert isinstance(found.pop(), StaleVersion)
        for number, (change, outcome) in enumerate(zip(changes, found, strict=True)):
            there = store.run(change.run.id)
            assert there is not None
            if number in stale:
                assert isinstance(outcome, StaleVersion)
                assert there == made[number]
                assert len(store.versions(there.key)) == 1
                continue
            assert there == outcome == change.run
            (read,) = store.packs(there.key, [2])
            assert replace(read, seq=0) == change.version
            assert store.place(there.key) == (place if number % 3 else None)
        entries = store.journal(run=None, after=0, limit=ALL)
        seen = [entry[1].seq for entry in entries if isinstance(entry, tuple)]
        assert seen == sorted(set(seen))
        assert len(seen) == 38

    def test_each_change_is_written_with_all_its_parts(self, store: Store) -> None:
        there = history(store, 2, "there")
        changes = [
            change_of(
                run,
                blocks=[b"one", b"two"],
                tags=["good"],
                timeline=TimelineRecord(number=2, parent=1, at=5, reason="because"),
                events=[event(f"of {run.id}")],
                uploads=[upload(run.id.encode()), upload(b"all")],
                holds=[digest(run.id.encode()), digest(b"all")],
            )
            for run in (new_run("new"), there, new_run("other", owner="me", until=7))
        ]
        found = store.append_many(changes)
        for change, run in zip(changes, found, strict=True):
            assert isinstance(run, RunRecord)
            assert replace(run, key=change.run.key) == change.run
            assert run == store.run(run.id) == store.run_by_key(run.key)
            versions, found_blocks, timelines, marks, journal = belongings(store, run)
            assert change.version is not None
            assert replace(versions[-1], seq=0) == change.version
            assert found_blocks[-1] == [b"one", b"two"]
            assert timelines == [change.timeline]
            assert [(mark.number, mark.name) for mark in marks] == [(run.head, "good")]
            assert names(journal)[-2:] == [run.head, f"of {run.id}"]
        assert store.collect(before=ALL) == (0, 0)
        assert store.stats().artifacts == 4

    def test_the_outcomes_come_in_the_order_of_the_changes(self, store: Store) -> None:
        runs = [begin(store, f"run-{number:03}") for number in range(300)]
        order = runs[::2] + runs[1::2][::-1]
        found = store.append_many([change_of(run, events=[event(run.id)]) for run in order])
        assert [run.id for run in found if isinstance(run, RunRecord)] == [run.id for run in order]
        told = names(store.journal(run=None, after=0, limit=ALL))
        assert told[::2] == [1] * 300
        assert sorted(map(str, told[1::2])) == [run.id for run in runs]
        assert len({run.key for run in found if isinstance(run, RunRecord)}) == 300

    @pytest.mark.parametrize(
        ("reason", "error"),
        [("stale", StaleVersion), ("exists", StaleVersion), ("gone", StaleVersion), ("missing", NotFound)],
    )
    def test_a_change_that_is_refused_harms_no_other(
        self, store: Store, reason: str, error: type[HoldfastError]
    ) -> None:
        spoilt = _spoilt(store)[reason]
        there = history(store, 1, "there")
        before = everything(store)
        found = store.append_many([change_of(there), spoilt, change_of(new_run("new"))])
        assert isinstance(found[0], RunRecord)
        assert isinstance(found[1], error)
        assert isinstance(found[2], RunRecord)
        assert (found[0].last, found[2].last) == (2, 1)
        after = everything(store)
        for name in before:
            if name.startswith("run ") and name != f"run {there.key}":
                assert after[name] == before[name]
        assert after["artifacts"] == before["artifacts"]
        assert names(after["journal"])[-2:] == [2, 1]
        assert len(after["journal"]) == len(before["journal"]) + 2

    def test_all_may_be_refused(self, store: Store) -> None:
        spoilt = _spoilt(store)
        before = everything(store)
        refused = store.append_many([spoilt["stale"], spoilt["gone"], spoilt["missing"]])
        assert [type(error) for error in refused] == [StaleVersion, StaleVersion, NotFound]
        assert everything(store) == before

    def test_a_refused_change_can_be_made_anew(self, store: Store) -> None:
        run = history(store, 1)
        (refused,) = store.append_many([change_of(replace(run, revision=9), uploads=[upload(b"large")])])
        assert isinstance(refused, StaleVersion)
        (done,) = store.append_many([change_of(run, uploads=[upload(b"large")], holds=[digest(b"large")])])
        assert isinstance(done, RunRecord)
        assert store.collect(before=ALL) == (0, 0)

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_what_cannot_be_written_at_all_leaves_whole_changes_only(self, store: Store, place: int) -> None:
        """A store may refuse such a change alone or raise for all; what it says it has not written is not there."""

        def breaks() -> Iterator[bytes]:
            yield b"first"
            raise OSError("the source is gone")

        run = history(store, 2)
        reasons: dict[str, dict[str, Any]] = {
            "number": {"version": version(2)},
            "changed": {"uploads": [upload(b"source", becomes=b"other")]},
            "breaks": {"uploads": [Upload(digest(b"first half"), 10, breaks)]},
        }
        for name, parts in reasons.items():
            good = [change_of(new_run(f"{name}-{number}"), events=[event(name)]) for number in range(2)]
            bad = change_of(run, **{"events": [event(name)], **parts})
            before = everything(store)
            try:
                found: Sequence[object] = store.append_many([*good[:place], bad, *good[place:]])
            except (HoldfastError, OSError):
                assert everything(store) == before
                continue
            assert isinstance(found[place], HoldfastError)
            assert store.run("run") == run
            done = [outcome for index, outcome in enumerate(found) if index != place]
            assert [store.run(change.run.id) for change in good] == done
            assert store.artifacts() == []
        assert store.append_many([change_of(run)]) == [store.run("run")]

    def test_a_change_of_many_shows_at_once_to_readers(self, store: Store) -> None:
        runs = [new_run(f"run-{number}") for number in range(5)]
        for turn in range(1, 11):
            found = store.append_many([change_of(run) for run in runs])
            runs = [run for run in found if isinstance(run, RunRecord)]
            assert [run.last for run in runs] == [turn] * 5
            assert store.runs() == runs[::-1]

    def test_changes_without_versions_go_with_others(self, store: Store) -> None:
        one, other = begin(store, "one"), begin(store, "other")
        after = advanced(one, status="suspended", due=5, detail=b"waits")
        found = store.append_many([Append(expect=one, run=after, events=[event("waits")]), change_of(other)])
        assert found[0] == after == store.run("one")
        assert names(store.journal(run=one.key, after=0, limit=9)) == ["waits"]
        assert store.runs(due=5) == [after]
