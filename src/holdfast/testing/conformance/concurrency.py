"""Contracts of `append_many`, and of a store that many threads use at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

from msgspec.structs import replace

from holdfast.errors import AlreadyExists, HoldfastError, NotFound, StaleVersion
from holdfast.model.records import RunRecord, TimelineRecord
from holdfast.store.protocol import Append, JournalEntry, Prune, QueuePlace, Store
from holdfast.testing.conformance.threads import together, until_done
from holdfast.testing.samples import (
    ALL,
    HOUR,
    advanced,
    attachment,
    begin,
    belongings,
    blocks,
    change_of,
    commit,
    digest,
    event,
    everything,
    history,
    imported,
    names,
    new_run,
    numbers,
    place,
    stubs,
    upload,
    version,
    walk,
)
from holdfast.tree.pack import Upload


def _refusable(store: Store) -> dict[str, Append]:
    """Return a change of an existing run for each reason to refuse it."""
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


class AppendManyContract:
    """`append_many`."""

    def test_append_many_of_no_changes_does_nothing(self, store: Store) -> None:
        history(store, 1)
        before = everything(store)
        assert store.append_many([]) == []
        assert everything(store) == before

    def test_append_many_writes_or_refuses_each_plain_version_alone(self, store: Store) -> None:
        """Most changes are a version and nothing else; some are refused, and some runs are in a queue."""
        place = QueuePlace("q", 3)
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
            assert store.queue_place(there.key) == (place if number % 3 else None)
        entries = store.journal(run=None, after=0, limit=ALL)
        seen = [entry[1].seq for entry in entries if isinstance(entry, tuple)]
        assert seen == sorted(set(seen))
        assert len(seen) == 38

    def test_append_many_writes_all_parts_of_each_change(self, store: Store) -> None:
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
                attachments=[attachment("key", run.id)],
            )
            for run in (new_run("new"), there, new_run("other", owner="me", until=7))
        ]
        found = store.append_many(changes)
        for change, run in zip(changes, found, strict=True):
            assert isinstance(run, RunRecord)
            assert replace(run, key=change.run.key) == change.run
            assert run == store.run(run.id) == store.run_by_key(run.key)
            versions, found_blocks, timelines, marks, journal, attached = belongings(store, run)
            assert change.version is not None
            assert replace(versions[-1], seq=0) == change.version
            assert found_blocks[-1] == [b"one", b"two"]
            assert timelines == [change.timeline]
            assert [(mark.number, mark.name) for mark in marks] == [(run.head, "good")]
            assert names(journal)[-2:] == [run.head, f"of {run.id}"]
            assert attached == change.attachments
        assert store.collect(before=ALL) == (0, 0)
        assert store.stats().artifacts == 4

    def test_append_many_returns_outcomes_in_order(self, store: Store) -> None:
        runs = [begin(store, f"run-{number:03}") for number in range(300)]
        order = runs[::2] + runs[1::2][::-1]
        found = store.append_many([change_of(run, events=[event(run.id)]) for run in order])
        assert [run.id for run in found if isinstance(run, RunRecord)] == [run.id for run in order]
        listed = names(store.journal(run=None, after=0, limit=ALL))
        assert listed[::2] == [1] * 300
        assert sorted(map(str, listed[1::2])) == [run.id for run in runs]
        assert len({run.key for run in found if isinstance(run, RunRecord)}) == 300

    def test_append_many_refuses_a_change_without_affecting_others(self, store: Store) -> None:
        errors = {"stale": StaleVersion, "exists": StaleVersion, "gone": StaleVersion, "missing": NotFound}
        for reason, refused in _refusable(store).items():
            there = history(store, 1, f"there-{reason}")
            before = everything(store)
            found = store.append_many([change_of(there), refused, change_of(new_run(f"new-{reason}"))])
            assert isinstance(found[0], RunRecord)
            assert isinstance(found[1], errors[reason])
            assert isinstance(found[2], RunRecord)
            assert (found[0].last, found[2].last) == (2, 1)
            after = everything(store)
            for name in before:
                if name.startswith("run ") and name != f"run {there.key}":
                    assert after[name] == before[name]
            assert after["artifacts"] == before["artifacts"]
            assert names(after["journal"])[-2:] == [2, 1]
            assert len(after["journal"]) == len(before["journal"]) + 2

    def test_append_many_can_refuse_all_changes(self, store: Store) -> None:
        refusable = _refusable(store)
        before = everything(store)
        refused = store.append_many([refusable["stale"], refusable["gone"], refusable["missing"]])
        assert [type(error) for error in refused] == [StaleVersion, StaleVersion, NotFound]
        assert everything(store) == before

    def test_append_many_accepts_a_corrected_change(self, store: Store) -> None:
        run = history(store, 1)
        (refused,) = store.append_many([change_of(replace(run, revision=9), uploads=[upload(b"large")])])
        assert isinstance(refused, StaleVersion)
        (done,) = store.append_many([change_of(run, uploads=[upload(b"large")], holds=[digest(b"large")])])
        assert isinstance(done, RunRecord)
        assert store.collect(before=ALL) == (0, 0)

    def test_append_many_leaves_only_whole_changes_after_a_failure(self, store: Store) -> None:
        """A store may refuse such a change alone or raise for all; a change that it reports as failed is not there."""

        def breaks() -> Iterator[bytes]:
            yield b"first"
            raise OSError("the source is missing")

        run = history(store, 2)
        reasons: dict[str, dict[str, Any]] = {
            "number": {"version": version(2)},
            "changed": {"uploads": [upload(b"source", becomes=b"other")]},
            "breaks": {"uploads": [Upload(digest(b"first half"), 10, breaks)]},
        }
        for position, (name, parts) in product(range(3), reasons.items()):
            ids = [f"{name}-{position}-{number}" for number in range(2)]
            good = [change_of(new_run(run_id), events=[event(name)]) for run_id in ids]
            bad = change_of(run, **{"events": [event(name)], **parts})
            before = everything(store)
            try:
                found: Sequence[object] = store.append_many([*good[:position], bad, *good[position:]])
            except (HoldfastError, OSError):
                assert everything(store) == before
                continue
            assert isinstance(found[position], HoldfastError)
            assert store.run("run") == run
            done = [outcome for index, outcome in enumerate(found) if index != position]
            assert [store.run(change.run.id) for change in good] == done
            assert store.artifacts() == []
        assert store.append_many([change_of(run)]) == [store.run("run")]

    def test_append_many_is_visible_to_readers_at_once(self, store: Store) -> None:
        runs = [new_run(f"run-{number}") for number in range(5)]
        for turn in range(1, 11):
            found = store.append_many([change_of(run) for run in runs])
            runs = [run for run in found if isinstance(run, RunRecord)]
            assert [run.last for run in runs] == [turn] * 5
            assert store.runs() == runs[::-1]

    def test_append_many_accepts_changes_without_versions(self, store: Store) -> None:
        one, other = begin(store, "one"), begin(store, "other")
        after = advanced(one, status="suspended", due=5, detail=b"waits")
        found = store.append_many([Append(expect=one, run=after, events=[event("waits")]), change_of(other)])
        assert found[0] == after == store.run("one")
        assert names(store.journal(run=one.key, after=0, limit=9)) == ["waits"]
        assert store.runs(due=5) == [after]


class ConcurrencyContract:
    """Every method may be called from any thread."""

    def test_writers_of_one_run_take_turns(self, store: Store) -> None:
        begin(store)

        def write(index: int) -> list[int]:
            mine: list[int] = []
            while len(mine) < 20:
                run = store.run("run")
                assert run is not None
                try:
                    after = commit(store, run, step=f"writer-{index}", change={"events": [event(f"{index}")]})
                except StaleVersion:
                    continue
                mine.append(after.last)
            return mine

        written = together(8, write)
        run = store.run("run")
        assert run is not None
        assert run.last == run.kept == 160
        by_writer = {}
        for index, mine in enumerate(written):
            assert isinstance(mine, list)
            by_writer.update(dict.fromkeys(mine, f"writer-{index}"))
        versions = store.versions(run.key, limit=ALL, ascending=True)
        assert numbers(versions) == list(range(1, 161))
        assert {found.number: found.step for found in versions} == by_writer
        journal = names(store.journal(run=run.key, after=0, limit=ALL))
        assert journal[::2] == list(range(1, 161))
        assert journal[1::2] == [by_writer[number].removeprefix("writer-") for number in range(1, 161)]

    def test_writers_of_many_runs_are_independent(self, store: Store) -> None:
        def write(index: int) -> int:
            run = new_run(f"run-{index:02}")
            for turn in range(15):
                data = f"{turn}".encode()
                run = commit(
                    store,
                    run,
                    step=f"{index}/{turn}",
                    change={"blocks": [data], "uploads": [upload(data)], "holds": [digest(data)]},
                )
            return run.key

        keys = together(16, write)
        assert len(set(keys)) == 16
        assert store.run_ids("run-", 99) == [f"run-{index:02}" for index in range(16)]
        for index, key in enumerate(keys):
            assert isinstance(key, int)
            run = store.run_by_key(key)
            assert run is not None
            steps = [found.step for found in store.versions(key, ascending=True)]
            assert steps == [f"{index}/{turn}" for turn in range(15)]
            assert blocks(store, run, 15) == [b"14"]
        assert store.stats().versions == 16 * 15
        assert store.stats().artifacts == 15
        assert len(store.journal(run=None, after=0, limit=ALL)) == 16 * 15

    def test_batches_of_many_threads_are_independent(self, store: Store) -> None:
        contested = begin(store, "contested")

        def write(index: int) -> int:
            won = 0
            mine = [new_run(f"run-{index}-{number}") for number in range(6)]
            for turn in range(10):
                known = store.run("contested")
                assert known is not None
                changes = [change_of(run, events=[event(f"{index}/{turn}")]) for run in mine]
                *done, last = store.append_many([*changes, change_of(known)])
                mine = [run for run in done if isinstance(run, RunRecord)]
                assert mine == done
                assert [run.last for run in mine] == [turn + 1] * 6
                assert isinstance(last, RunRecord | StaleVersion)
                won += isinstance(last, RunRecord)
            return won

        counts = together(6, write)
        won = [count for count in counts if isinstance(count, int)]
        assert won == counts
        after = store.run("contested")
        assert after is not None
        assert after.last == sum(won) > 0
        assert numbers(store.versions(contested.key, limit=ALL)) == list(range(after.last, 0, -1))
        assert store.stats().versions == 6 * 6 * 10 + after.last
        places = [place(entry) for entry in store.journal(run=None, after=0, limit=ALL)]
        assert places == sorted(set(places))
        assert places[-1] == store.journal_end()

    def test_value_increments_of_many_threads_are_all_kept(self, store: Store) -> None:
        def count(index: int) -> int:
            refused = 0
            for _ in range(20):
                while True:
                    data, revision = store.value("count") or (b"0", 0)
                    try:
                        store.set_value("count", b"%d" % (int(data) + 1), revision)
                        break
                    except StaleVersion:
                        refused += 1
            return refused

        assert all(isinstance(refused, int) for refused in together(8, count))
        found = store.value("count")
        assert found is not None
        assert found[0] == b"160"

    def test_value_is_created_by_one_of_many_threads(self, store: Store) -> None:
        outcomes = together(8, lambda index: store.set_value("breaker", b"%d" % index, 0))
        assert sum(isinstance(outcome, StaleVersion) for outcome in outcomes) == 7
        (winner,) = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        assert store.value("breaker") == (b"%d" % winner, outcomes[winner])

    def test_renewals_and_commits_run_concurrently(self, store: Store) -> None:
        until = store.now() + HOUR
        runs = [begin(store, f"run-{number}", owner="me", until=until) for number in range(3)]

        def write() -> None:
            for turn in range(40):
                for number, run in enumerate(runs):
                    # Never stale: a renewal does not change the revision.
                    runs[number] = commit(store, run, at=turn)

        def look() -> None:
            nonlocal until
            until += 1
            store.renew([run.key for run in runs], "me", until)
            store.renew([run.key for run in runs], "another", until + HOUR)
            for run in store.runs():
                assert run.until <= until
                assert run.head == run.last == run.kept

        with ThreadPoolExecutor(1) as pool:
            until_done(pool.submit(write), look)
        assert {run.until for run in store.runs()} == {until}
        assert {run.last for run in store.runs()} == {40}

    def test_run_is_created_by_one_of_many_threads(self, store: Store) -> None:
        outcomes = together(8, lambda index: commit(store, new_run(), step=f"writer-{index}"))
        assert sum(isinstance(outcome, StaleVersion) for outcome in outcomes) == 7
        outcomes = together(8, lambda _: store.import_run(imported(5, "import")))
        assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 7
        assert sorted(store.run_ids("", 9)) == ["import", "run"]
        assert store.stats().versions == 6

    def test_reader_sees_only_whole_changes(self, store: Store) -> None:
        begin(store)

        def write() -> None:
            run = store.run("run")
            assert run is not None
            for number in range(1, 151):
                parts = {"tags": [f"tag-{number}"], "events": [event(f"{number}")], "blocks": [b"x"]}
                run = commit(store, run, change=parts)

        def look() -> None:
            run = store.run("run")
            assert run is not None
            assert run.head == run.last == run.kept
            if run.head:
                assert [found.pack for found in store.packs(run.key, [run.head])] == [version(run.head).pack]
                assert [found.name for found in store.marks(run.key, run.head, run.head)] == [
                    f"tag-{run.head}"
                ]
                assert blocks(store, run, run.head) == [b"x"]
            listed = numbers(store.versions(run.key, limit=ALL))
            assert listed == list(range(len(listed), 0, -1))
            assert len(listed) >= run.head
            for key in (run.key, None):
                journal = names(store.journal(run=key, after=0, limit=ALL))
                assert journal[::2] == list(range(1, len(journal) // 2 + 1))
                assert journal[1::2] == [str(number) for number in journal[::2]]
            stats = store.stats()
            assert stats.versions == stats.events

        with ThreadPoolExecutor(3) as pool:
            writer = pool.submit(write)
            lookers = [pool.submit(until_done, writer, look) for _ in range(2)]
            for looker in lookers:
                looker.result()

    def test_reader_that_continues_from_a_position_misses_nothing(self, store: Store) -> None:
        followed = begin(store, "followed")
        seen: dict[int | None, list[JournalEntry]] = {followed.key: [], None: []}

        def write() -> None:
            run, other = followed, begin(store, "other")
            for turn in range(100):
                run = store.append(Append(expect=run, run=advanced(run), events=[event(f"{turn}")]))
                run = commit(store, run)
                other = commit(store, other)
                if turn % 25 == 24:
                    store.delete_run(history(store, 1, "passing"))
            store.prune(Prune(expect=other, run=advanced(other), drop=[1], thin=stubs(2)))

        def look() -> None:
            for key, entries in seen.items():
                entries.extend(store.journal(run=key, after=place(entries[-1]) if entries else 0, limit=7))

        with ThreadPoolExecutor(1) as pool:
            until_done(pool.submit(write), look)
        for key, entries in seen.items():
            entries.extend(walk(store, run=key, limit=7, after=place(entries[-1])))
            places = [place(entry) for entry in entries]
            assert places == sorted(set(places))
            left = store.journal(run=key, after=0, limit=ALL)
            assert [entry for entry in entries if entry in left] == left

    def test_pruning_and_reading_run_concurrently(self, store: Store) -> None:
        run = store.import_run(imported(200))

        def write() -> None:
            now = run
            for number in range(1, 190, 2):
                after = advanced(now, kept=now.kept - 2)
                now = store.prune(Prune(expect=now, run=after, drop=[number], thin=stubs(number + 1)))

        def look() -> None:
            found = numbers(store.versions(run.key, limit=ALL))
            assert found == list(range(200, 200 - len(found), -1))
            packs = store.packs(run.key, [198, 200])
            assert sorted(numbers(packs)) == [198, 200]
            listed = names(store.journal(run=run.key, after=0, limit=ALL))
            assert listed == list(range(201 - len(listed), 201))

        with ThreadPoolExecutor(1) as pool:
            until_done(pool.submit(write), look)
        assert len(store.versions(run.key, limit=ALL)) == 10

    def test_collection_spares_artifacts_that_are_being_committed(self, store: Store) -> None:
        datas = [f"artifact {number}".encode() for number in range(10)]

        def write(index: int) -> None:
            if index == 0:
                for _ in range(60):
                    store.collect(before=ALL)
                return
            run = new_run(f"run-{index}")
            for turn in range(20):
                data = datas[(turn * index) % 10]
                run = commit(store, run, change={"uploads": [upload(data)], "holds": [digest(data)]})
                assert b"".join(store.artifact_pieces(digest(data))) == data
            store.delete_run(run)

        assert together(4, write) == [None] * 4
        store.collect(before=ALL)
        assert everything(store)["artifacts"] == []
