"""Contracts of a store that many threads use at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from holdfast.errors import AlreadyExists, StaleVersion
from holdfast.model.records import RunRecord
from holdfast.store.base import Append, Prune, Store
from holdfast.testing.samples import (
    ALL,
    HOUR,
    Entry,
    advanced,
    begin,
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

T = TypeVar("T")


def _together(count: int, work: Callable[[int], T]) -> list[T | BaseException]:
    """Run a piece of work in so many threads that start at the same time; gives what each gave or raised."""
    barrier = threading.Barrier(count)

    def start(index: int) -> T:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(start, index) for index in range(count)]
    return [future.exception() or future.result() for future in futures]


def _until(writer: Future[None], look: Callable[[], None]) -> None:
    """Look again and again while a writer is at work, and once after."""
    while not writer.done():
        look()
    look()
    writer.result()


class ThreadContract:
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

        written = _together(8, write)
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

    def test_writers_of_many_runs_do_not_disturb_each_other(self, store: Store) -> None:
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

        keys = _together(16, write)
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

    def test_batches_of_many_threads_do_not_disturb_each_other(self, store: Store) -> None:
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

        counts = _together(6, write)
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

    def test_no_change_of_a_value_is_lost(self, store: Store) -> None:
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

        assert all(isinstance(refused, int) for refused in _together(8, count))
        found = store.value("count")
        assert found is not None
        assert found[0] == b"160"

    def test_one_of_many_makes_a_value(self, store: Store) -> None:
        outcomes = _together(8, lambda index: store.set_value("breaker", b"%d" % index, 0))
        assert sum(isinstance(outcome, StaleVersion) for outcome in outcomes) == 7
        (winner,) = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        assert store.value("breaker") == (b"%d" % winner, outcomes[winner])

    def test_renewing_goes_on_beside_commits(self, store: Store) -> None:
        until = store.now() + HOUR
        runs = [begin(store, f"run-{number}", owner="me", until=until) for number in range(3)]

        def write() -> None:
            for turn in range(40):
                for number, run in enumerate(runs):
                    # Never stale: a renewal is no change.
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
            _until(pool.submit(write), look)
        assert {run.until for run in store.runs()} == {until}
        assert {run.last for run in store.runs()} == {40}

    def test_one_of_many_makes_a_run(self, store: Store) -> None:
        outcomes = _together(8, lambda index: commit(store, new_run(), step=f"writer-{index}"))
        assert sum(isinstance(outcome, StaleVersion) for outcome in outcomes) == 7
        outcomes = _together(8, lambda _: store.import_run(imported(5, "import")))
        assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 7
        assert sorted(store.run_ids("", 9)) == ["import", "run"]
        assert store.stats().versions == 6

    def test_a_reader_sees_whole_changes_only(self, store: Store) -> None:
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
            lookers = [pool.submit(_until, writer, look) for _ in range(2)]
            for looker in lookers:
                looker.result()

    def test_a_reader_that_goes_on_from_its_place_misses_nothing(self, store: Store) -> None:
        followed = begin(store, "followed")
        seen: dict[int | None, list[Entry]] = {followed.key: [], None: []}

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
            _until(pool.submit(write), look)
        for key, entries in seen.items():
            entries.extend(walk(store, run=key, limit=7, after=place(entries[-1])))
            places = [place(entry) for entry in entries]
            assert places == sorted(set(places))
            left = store.journal(run=key, after=0, limit=ALL)
            assert [entry for entry in entries if entry in left] == left

    def test_pruning_and_reading_go_together(self, store: Store) -> None:
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
            told = names(store.journal(run=run.key, after=0, limit=ALL))
            assert told == list(range(201 - len(told), 201))

        with ThreadPoolExecutor(1) as pool:
            _until(pool.submit(write), look)
        assert len(store.versions(run.key, limit=ALL)) == 10

    def test_collecting_spares_what_is_being_committed(self, store: Store) -> None:
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

        assert _together(4, write) == [None] * 4
        store.collect(before=ALL)
        assert everything(store)["artifacts"] == []
