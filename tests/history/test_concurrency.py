"""Concurrent writers: threads, processes and asyncio tasks, on one run and on many.

Every acknowledged version is there, numbers have no holes, one writer wins each number, and nothing that was
appended is lost or doubled.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import committing_process
import pytest
from committing_process import HOW

import holdfast
from holdfast import History, Holdfast, HoldfastError, MergeConflict, NotFound, Retention, StaleVersion, thaw

WORKERS = 8
ROUNDS = 12
START: dict[str, Any] = {"list": [], "by": {}, "owner": ""}
SCRIPT = Path(committing_process.__file__)


def together(work: Callable[[int], None], workers: int = WORKERS) -> None:
    """Run in so many threads that start at once; what one of them raises is raised here."""
    gate = threading.Barrier(workers)
    failed: list[BaseException] = []

    def run(me: int) -> None:
        try:
            gate.wait()
            work(me)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(me,)) for me in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    """A store that processes have written to, all at once; and what was acknowledged to them, by run."""
    file = tmp_path_factory.mktemp("processes") / "runs.db"
    runs = {run for me in range(WORKERS) for _, run in committing_process.jobs(me)}
    with holdfast.open(file, durability="fast") as hf:
        for run in sorted(runs):
            hf.history(run).commit(START)
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(file), str(me), str(ROUNDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(WORKERS)
    ]
    pipes = [(process.stdin, process.stdout) for process in started if process.stdin and process.stdout]
    assert [out.readline() for _, out in pipes] == ["ready\n"] * WORKERS
    acknowledged: dict[str, list[int]] = {run: [] for run in runs}
    for together in zip(*(committing_process.jobs(me) for me in range(WORKERS)), strict=True):
        for into, _ in pipes:
            into.write("go\n")
            into.flush()
        for (_, run), (_, out) in zip(together, pipes, strict=True):
            acknowledged[run] += map(int, out.readline().split())
    for process in started:
        process.communicate()
        assert process.returncode == 0
    return file, acknowledged


def check(hf: Holdfast, log: History, acknowledged: list[int], how: str) -> None:
    """One version for each acknowledgement, and all that was done is there once."""
    versions = log.versions(limit=10_000)[::-1]
    assert [version.number for version in versions] == list(range(1, WORKERS * ROUNDS + 2))
    assert [version.parent for version in versions] == [None, *range(1, WORKERS * ROUNDS + 1)]
    assert Counter(version.step for version in versions[1:]) == {
        f"worker-{me}": ROUNDS for me in range(WORKERS)
    }
    if how != "append":
        assert sorted(acknowledged) == list(range(2, WORKERS * ROUNDS + 2)), "no number was won twice"
    state = thaw(log.head.state)
    if how != "conflict":
        done = [f"{me}.{round_}" for me in range(WORKERS) for round_ in range(ROUNDS)]
        assert Counter(state["list"]) == Counter(done)
        for me in range(WORKERS):
            mine = [item for item in state["list"] if item.startswith(f"{me}.")]
            assert mine == [f"{me}.{round_}" for round_ in range(ROUNDS)], "in the order in which it was done"
    if how == "plain":
        assert state["by"] == {str(me): ROUNDS - 1 for me in range(WORKERS)}
    assert hf.verify().ok


@pytest.mark.parametrize("how", HOW)
def test_writes_of_threads_on_one_run_are_all_stored(hf: Holdfast, log: History, how: str) -> None:
    log.commit(START)
    acknowledged: list[int] = []
    together(lambda me: acknowledged.extend(HOW[how](log, me, round_) for round_ in range(ROUNDS)))
    check(hf, log, acknowledged, how)


@pytest.mark.parametrize("how", HOW)
def test_writes_of_threads_with_separate_stores_are_all_stored(file: Path, how: str) -> None:
    with holdfast.open(file, durability="fast") as hf:
        log = hf.history("run-1")
        log.commit(START)
        acknowledged: list[int] = []

        def work(me: int) -> None:
            with holdfast.open(file, durability="fast") as mine:
                own = mine.history("run-1")
                acknowledged.extend(HOW[how](own, me, round_) for round_ in range(ROUNDS))

        together(work)
        check(hf, log, acknowledged, how)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_writes_of_processes_on_one_run_are_all_stored(
    written: tuple[Path, dict[str, list[int]]], how: str
) -> None:
    file, acknowledged = written
    with holdfast.open(file) as hf:
        check(hf, hf.history(f"shared-{how}"), acknowledged[f"shared-{how}"], how)


@pytest.mark.slow
def test_writes_of_processes_on_many_runs_are_all_stored(written: tuple[Path, dict[str, list[int]]]) -> None:
    file, acknowledged = written
    with holdfast.open(file) as hf:
        for me in range(WORKERS):
            assert acknowledged[f"own-{me}"] == list(range(2, ROUNDS + 2))
            assert hf.version(f"own-{me}").state["list"] == [f"{me}.{round_}" for round_ in range(ROUNDS)]
        saved = Counter(event.run for event in hf.events(limit=10_000) if event.kind == "version.saved")
        assert saved == {run: len(numbers) + 1 for run, numbers in acknowledged.items()}


def test_writes_of_threads_on_own_and_shared_runs_are_all_stored(hf: Holdfast) -> None:
    shared = hf.history("shared")
    shared.commit(START)

    def work(me: int) -> None:
        own = hf.history(f"own-{me}")
        own.commit(START)
        for round_ in range(ROUNDS):
            committing_process.append(own, me, round_)
            committing_process.append(shared, me, round_)
            assert own.head.number == round_ + 2, "one reads one's own writes"

    together(work)
    for me in range(WORKERS):
        assert hf.version(f"own-{me}").state["list"] == [f"{me}.{round_}" for round_ in range(ROUNDS)]
    check(hf, shared, [], "append")


def test_commit_with_expected_succeeds_for_one_writer_per_number(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0})
    won: list[int] = []
    lost: list[int] = []

    def work(me: int) -> None:
        for number in range(1, ROUNDS + 1):
            try:
                won.append(log.commit({"n": number, "by": me}, expected=number).number)
            except StaleVersion as error:
                lost.append(error.details["expected"])

    together(work)
    assert sorted(won) == sorted(set(won)), "no number twice"
    assert won, "someone wins"
    assert Counter(won) + Counter(number + 1 for number in lost) == dict.fromkeys(
        range(2, ROUNDS + 2), WORKERS
    )
    assert [version.number for version in log.versions(limit=1000)] == list(range(len(won) + 1, 0, -1))


def test_concurrent_first_commits_create_the_run_once(hf: Holdfast) -> None:
    made: list[int] = []

    def work(me: int) -> None:
        try:
            made.append(hf.history("new").commit({"by": me}, expected=0).number)
        except StaleVersion:
            return

    together(work)
    assert made == [1]
    assert hf.history("new").head.number == 1


def test_first_commits_without_an_expectation_are_stored_or_refused(hf: Holdfast) -> None:
    def work(me: int) -> None:
        stored = False
        while not stored:
            # Two that replace the same version both delete its key.
            with contextlib.suppress(MergeConflict):
                hf.history("new").commit({f"by-{me}": me})
                stored = True

    together(work)
    log = hf.history("new")
    numbers = [version.number for version in log.versions()]
    assert numbers == list(range(WORKERS, 0, -1))
    seen = {key for version in log.versions() for key in version.state}
    assert seen == {f"by-{me}" for me in range(WORKERS)}


def test_conflict_names_the_path_and_keeps_the_first_commit(hf: Holdfast, log: History) -> None:
    log.commit({"owner": None, "other": 1})
    conflicts: list[HoldfastError] = []
    gate = threading.Barrier(WORKERS)

    def work(me: int) -> None:
        state = thaw(log.head.state)
        gate.wait()
        state["owner"] = me
        try:
            log.commit(state)
        except MergeConflict as error:
            conflicts.append(error)

    together(work)
    assert len(conflicts) == WORKERS - 1
    assert {error.details["path"] for error in conflicts} == {"owner"}
    assert log.head.number == 2
    assert all(error.details["theirs"] == log.head.state["owner"] for error in conflicts)


def test_tasks_that_read_and_then_commit_lose_no_update(log: History) -> None:
    log.commit({"list": [], "by": {}})

    async def work(me: int) -> None:
        for round_ in range(ROUNDS):
            state = thaw(log.head.state)
            await asyncio.sleep(0)
            state["list"].append(f"{me}.{round_}")
            await asyncio.sleep(0)
            state["by"][str(me)] = round_
            log.commit(state)

    async def main() -> None:
        await asyncio.gather(*(work(me) for me in range(WORKERS)))

    asyncio.run(main())
    state = log.head.state
    assert Counter(state["list"]) == Counter(f"{me}.{r}" for me in range(WORKERS) for r in range(ROUNDS))
    assert state["by"] == {str(me): ROUNDS - 1 for me in range(WORKERS)}
    assert log.head.number == WORKERS * ROUNDS + 1


def test_threads_that_share_a_state_continue_from_each_other(log: History) -> None:
    state: dict[str, Any] = {"list": []}
    pools = [ThreadPoolExecutor(1) for _ in range(3)]

    def work(round_: int) -> None:
        state["list"].append(round_)
        log.commit(state)

    for round_ in range(12):
        pools[round_ * 7 % 3].submit(work, round_).result()
    for pool in pools:
        pool.shutdown()
    assert log.head.state == {"list": list(range(12))}


def test_task_that_commits_in_worker_threads_continues_from_its_commits(log: History) -> None:
    async def main() -> None:
        state: dict[str, Any] = {"list": []}
        for round_ in range(12):
            state["list"].append(round_)
            # Two at a time, so that several threads of the pool take part.
            await asyncio.gather(asyncio.to_thread(log.commit, state), asyncio.to_thread(log.timelines))

    log.commit({"list": []})
    asyncio.run(main())
    assert log.head.state == {"list": list(range(12))}


def test_concurrent_edits_of_tasks_are_all_stored(log: History) -> None:
    log.commit({"list": []})

    async def work(me: int) -> None:
        for round_ in range(ROUNDS):
            with log.edit() as state:
                await asyncio.sleep(0)
                state["list"].append((me, round_))
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(work(me) for me in range(WORKERS)))

    asyncio.run(main())
    assert Counter(log.head.state["list"]) == Counter((me, r) for me in range(WORKERS) for r in range(ROUNDS))


def test_reads_rollbacks_marks_and_prunes_work_with_concurrent_writers(hf: Holdfast, log: History) -> None:
    log.commit(START)
    done = threading.Event()

    def work(me: int) -> None:
        if me < 4:
            try:
                for round_ in range(ROUNDS):
                    committing_process.append(log, me, round_)
            finally:
                done.set()
        while not done.is_set():
            if me == 4:
                for version in log.versions(limit=5):
                    # Others may have pruned it since the list was read.
                    with contextlib.suppress(NotFound):
                        assert version.state["owner"] == ""
            elif me == 5:
                # A head that others have left behind and pruned meanwhile cannot be pinned.
                with contextlib.suppress(NotFound):
                    log.pin("head")
            elif me == 6:
                assert hf.verify().ok
            else:
                try:
                    log.prune(Retention(last=20))
                except StaleVersion:
                    continue

    together(work)
    assert Counter(log.head.state["list"]) == Counter(f"{me}.{r}" for me in range(4) for r in range(ROUNDS))
    assert log.head.number == 4 * ROUNDS + 1
    assert hf.verify().ok


@pytest.mark.parametrize("how", ["head", "edit"])
def test_head_that_is_replaced_and_pruned_while_it_is_read_is_read_again(
    hf: Holdfast, log: History, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    log.commit({"list": []})
    store, writer = log.context.store, log
    log = hf.history(log.id)
    read = store.run

    def moved(run_id: str) -> Any:
        found = read(run_id)
        monkeypatch.undo()
        with writer.edit() as state:
            state["list"].append("theirs")
        assert writer.prune(Retention(last=1)).versions == (1,)
        return found

    log.context.drop_reader(log.id)
    monkeypatch.setattr(store, "run", moved)
    if how == "head":
        assert (log.head.number, log.head.state["list"]) == (2, ["theirs"])
    else:
        with log.edit() as state:
            state["list"].append("ours")
        assert (log.head.number, log.head.state["list"]) == (3, ["theirs", "ours"])


def test_fork_of_a_version_that_is_pruned_meanwhile_is_complete_or_refused(
    hf: Holdfast, log: History
) -> None:
    log.commit({"text": "x" * 600, "n": 0})
    for number in range(40):
        with log.edit() as state:
            state["n"] = number
            state[f"k{number % 5}"] = {"text": f"{number} " * 300}
    made: list[str] = []
    refused: set[str] = set()

    def work(me: int) -> None:
        for number in range(1, 41, 4):
            try:
                if me % 2:
                    made.append(hf.fork(f"run-1@{number}", f"fork-{me}-{number}").id)
                else:
                    log.prune(Retention(last=41 - number))
            except HoldfastError as error:
                refused.add(error.code)

    together(work)
    assert refused <= {"not_found", "stale_version"}
    for run in made:
        assert hf.version(run).state["text"] == "x" * 600
    assert {run.id for run in hf.runs(limit=1000)} == {"run-1", *made}
    assert hf.verify().ok
