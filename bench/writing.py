"""How fast versions are written, and how large the file gets: appends, plain states, documents, many runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import zstandard

import holdfast
from bench import workload
from bench.measure import TURN, Bench, Rates, Raw, Row, Turns, file_size, megabytes, note, rate

VERSIONS = 1_000
DOCUMENTS = 1_000
REPLACED = 200
_RUNS = 64
_ROUNDS = 10
_COMMITS_PER_ROUND = 5
_EDGE = 100 // TURN

State = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """What a workload came to."""

    rates: Rates
    #: Bytes of the file after it was closed.
    size: int
    #: The rate of the last 100 versions ÷ that of the first 100.
    stamina: float = 1.0


def append(bench: Bench) -> Iterator[Row]:
    """1,000 versions, a message appended in each, through `edit`."""
    work = f"{VERSIONS:,} messages, edit"
    yield from _appending(bench, work, edit_messages, at_least=0.75, stamina=0.85)
    note("the same, 2,000 further versions")
    said = workload.messages(3 * VERSIONS)

    found = bench.repeat(lambda folder: _speed(edit_messages(folder, said, skip=VERSIONS).rates))
    yield _rate_row(work, "rate, versions 1,001 to 3,000", found)


def commit(bench: Bench) -> Iterator[Row]:
    """The same through `commit(plain_state)`."""
    yield from _appending(bench, f"{VERSIONS:,} messages, commit", commit_messages, at_least=0.3)


def replace(bench: Bench) -> Iterator[Row]:
    """1,000 documents of 1 KB in a dict, one replaced in each of 200 versions."""
    work = f"{REPLACED} of {DOCUMENTS:,} documents"
    note(work)
    state, changes = document_work()
    given = workload.json_size(state) + sum(workload.json_size(document) for _, document in changes)

    def once(folder: Path) -> tuple[float, ...]:
        written = edit_documents(folder, state, changes)
        return written.size, *_speed(written.rates)

    size, *speed = bench.repeat(once)
    yield _rate_row(work, "rate", speed, at_least=0.5)
    detail = f"{megabytes(size)} for {megabytes(given)} of state and changes"
    yield Row(work, "file ÷ (state + changes)", size / given, "×", detail, at_most=2)


def runs(bench: Bench) -> Iterator[Row]:
    """64 threads that commit to 64 runs."""
    work = f"{_RUNS} threads, {_RUNS} runs"
    note(work)
    said = workload.messages(_COMMITS_PER_ROUND)

    def once(folder: Path) -> tuple[float, ...]:
        with closing(Raw(folder)) as raw, holdfast.open(folder / "runs.db") as hf:
            logs = [hf.history(f"run-{number}") for number in range(_RUNS)]
            for log in logs:
                log.commit({"messages": []})
            turns = Turns(raw)
            for _ in range(_ROUNDS):
                turns.take(_crowd(logs, said), _RUNS * _COMMITS_PER_ROUND, raw=100)
            return _speed(turns.result())

    yield _rate_row(work, "rate of all ÷ raw of one", bench.repeat(once), at_least=3)


def edit_messages(folder: Path, said: list[workload.Message], *, skip: int = 0) -> Written:
    """Append messages one version each, in a new file `runs.db`; rates are those after the first `skip`."""

    def work(log: holdfast.History, message: workload.Message) -> None:
        with log.edit(step="chat") as draft:
            draft["messages"].append(message)

    return _write(folder, {"messages": []}, said, work, skip=skip)


def commit_messages(folder: Path, said: list[workload.Message]) -> Written:
    """The same with a plain state that grows."""
    state: State = {"messages": []}

    def work(log: holdfast.History, message: workload.Message) -> None:
        state["messages"].append(message)
        log.commit(state, step="chat")

    return _write(folder, {"messages": []}, said, work)


def document_work() -> tuple[State, list[tuple[str, workload.Document]]]:
    """A state of documents, and those that replace some of them, one in each version."""
    state = {"documents": workload.documents(DOCUMENTS)}
    source = random.Random(4)
    names = source.sample(list(state["documents"]), REPLACED)
    return state, [(name, workload.document(source)) for name in names]


def edit_documents(folder: Path, state: State, changes: list[tuple[str, workload.Document]]) -> Written:
    """Replace documents one version each, in a new file `runs.db`."""

    def work(log: holdfast.History, change: tuple[str, workload.Document]) -> None:
        with log.edit(step="revise") as draft:
            draft["documents"][change[0]] = change[1]

    return _write(folder, state, changes, work)


def in_turns(items: Sequence[T], work: Callable[[T], object]) -> Iterator[tuple[Callable[[], None], int]]:
    """The work cut into turns."""
    for start in range(0, len(items), TURN):
        piece = items[start : start + TURN]

        def turn(piece: Sequence[T] = piece) -> None:
            for item in piece:
                work(item)

        yield turn, len(piece)


def _write(
    folder: Path,
    state: State,
    items: Sequence[T],
    work: Callable[[holdfast.History, T], object],
    *,
    skip: int = 0,
) -> Written:
    """Commit a state, untimed, and then a version for each item, in turns with the raw limit."""
    with closing(Raw(folder)) as raw:
        hf = holdfast.open(folder / "runs.db")
        log = hf.history("run")
        log.commit(state)
        before, turns = Turns(raw), Turns(raw)
        done = 0
        for turn, commits in in_turns(items, lambda item: work(log, item)):
            (before if done < skip else turns).take(turn, commits)
            done += commits
        hf.close()
    stamina = rate(turns.ours[-_EDGE:]) / rate(turns.ours[:_EDGE])
    return Written(turns.result(), file_size(folder / "runs.db"), stamina)


def _appending(
    bench: Bench,
    work: str,
    write: Callable[[Path, list[workload.Message]], Written],
    *,
    at_least: float,
    stamina: float | None = None,
) -> Iterator[Row]:
    note(work)
    said = workload.messages(VERSIONS)
    given = sum(workload.json_size(message) for message in said)

    def once(folder: Path) -> tuple[float, ...]:
        written = write(folder, said)
        return written.size, written.stamina, *_speed(written.rates)

    size, lasting, *speed = bench.repeat(once)
    packed = len(zstandard.compress("".join(map(str, said)).encode()))
    yield _rate_row(work, "rate", speed, at_least=at_least)
    detail = f"{megabytes(size)} for {megabytes(given)}, which zstd alone makes {megabytes(packed)}"
    yield Row(work, "file ÷ messages", size / given, "×", detail, at_most=1.6)
    yield Row(work, "last 100 ÷ first 100", lasting, "×", "rate of each", at_least=stamina)


def _crowd(logs: list[holdfast.History], said: list[workload.Message]) -> Callable[[], None]:
    """Threads that wait at a gate; the gate opens when this is called, and all have ended when it returns."""
    gate = threading.Barrier(len(logs) + 1)
    failed: list[BaseException] = []

    def work(log: holdfast.History) -> None:
        gate.wait()
        try:
            for message in said:
                with log.edit(step="chat") as draft:
                    draft["messages"].append(message)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()

    def open_gate() -> None:
        gate.wait()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    return open_gate


def _speed(rates: Rates) -> tuple[float, ...]:
    """Rates as numbers of which medians can be taken."""
    return rates.ratio, *rates


def _rate_row(work: str, measure: str, speed: Sequence[float], *, at_least: float | None = None) -> Row:
    ratio, *rates = speed
    return Row(work, measure, ratio, "× raw", str(Rates(*rates)), at_least=at_least)
