"""How fast versions are written, and how large the file gets: appends, plain states, documents, many runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import zstandard

import holdfast
from bench import workload
from bench.measure import Bench, Row, file_size, megabytes, note, raw_rate

VERSIONS = 1_000
DOCUMENTS = 1_000
REPLACED = 200
_RUNS = 64
_COMMITS_PER_RUN = 50
_EDGE = 100


@dataclass(frozen=True, slots=True)
class Written:
    """What a workload came to."""

    #: Versions per second.
    rate: float
    #: Bytes of the file after it was closed.
    size: int
    #: The rate of the last 100 versions ÷ that of the first 100.
    stamina: float


def append(bench: Bench) -> Iterator[Row]:
    """1,000 versions, a message appended in each, through `edit`."""
    yield from _appending(bench, f"{VERSIONS:,} messages, edit", at_least=0.75, plain=False)
    note("the same, 2,000 further versions")
    raw, ours = bench.repeat(_steady)
    yield Row(
        f"{VERSIONS:,} messages, edit", "rate, versions 1,001 to 3,000", ours / raw, "× raw",
        f"{ours:,.0f}/s, raw rows 1,001 to 3,000 {raw:,.0f}/s",
    )  # fmt: skip


def commit(bench: Bench) -> Iterator[Row]:
    """The same through `commit(plain_state)`."""
    yield from _appending(bench, f"{VERSIONS:,} messages, commit", at_least=0.3, plain=True)


def replace(bench: Bench) -> Iterator[Row]:
    """1,000 documents of 1 KB in a dict, one replaced in each of 200 versions."""
    note(f"{DOCUMENTS:,} documents, {REPLACED} replaced")
    state, changes = document_work()
    given = workload.json_size(state) + workload.json_size(changes)

    def once(folder: Path) -> tuple[float, ...]:
        raw = raw_rate(folder)
        written = write_documents(folder, state, changes)
        return raw, written.rate, written.rate / raw, written.size

    raw, ours, ratio, size = bench.repeat(once)
    work = f"{REPLACED} of {DOCUMENTS:,} documents"
    yield Row(work, "rate", ratio, "× raw", f"{ours:,.0f}/s, raw {raw:,.0f}/s", at_least=0.5)
    detail = f"{megabytes(size)} for {megabytes(given)} of state and changes"
    yield Row(work, "file ÷ (state + changes)", size / given, "×", detail, at_most=2)


def runs(bench: Bench) -> Iterator[Row]:
    """64 threads that commit to 64 runs."""
    note(f"{_RUNS} threads to {_RUNS} runs")
    said = workload.messages(_RUNS * _COMMITS_PER_RUN)

    def once(folder: Path) -> tuple[float, ...]:
        raw = raw_rate(folder)
        ours = _many_runs(folder, said)
        return raw, ours, ours / raw

    raw, ours, ratio = bench.repeat(once)
    work = f"{_RUNS} threads, {_RUNS} runs"
    yield Row(
        work, "rate of all ÷ raw of one", ratio, "× raw", f"{ours:,.0f}/s, raw {raw:,.0f}/s", at_least=3
    )


def write_messages(folder: Path, said: list[workload.Message], *, plain: bool = False) -> Written:
    """Append messages one version each, in a new file `runs.db`."""
    hf = holdfast.open(folder / "runs.db")
    log = hf.history("run")
    log.commit({"messages": []})
    state: dict[str, list[workload.Message]] = {"messages": []}
    ends = [perf_counter()]
    for message in said:
        if plain:
            state["messages"].append(message)
            log.commit(state, step="chat")
        else:
            with log.edit(step="chat") as draft:
                draft["messages"].append(message)
        ends.append(perf_counter())
    hf.close()
    first, last = ends[_EDGE] - ends[0], ends[-1] - ends[-_EDGE - 1]
    return Written(len(said) / (ends[-1] - ends[0]), file_size(folder / "runs.db"), first / last)


def document_work() -> tuple[dict[str, dict[str, workload.Document]], list[tuple[str, workload.Document]]]:
    """A state of documents, and those that replace some of them, one in each version."""
    state = {"documents": workload.documents(DOCUMENTS)}
    source = random.Random(4)
    names = source.sample(list(state["documents"]), REPLACED)
    return state, [(name, workload.document(source)) for name in names]


def write_documents(
    folder: Path, state: dict[str, dict[str, workload.Document]], changes: list[tuple[str, workload.Document]]
) -> Written:
    """Replace documents one version each, in a new file `runs.db`. The first state is not timed."""
    hf = holdfast.open(folder / "runs.db")
    log = hf.history("run")
    log.commit(state)
    start = perf_counter()
    for name, document in changes:
        with log.edit(step="revise") as draft:
            draft["documents"][name] = document
    rate = len(changes) / (perf_counter() - start)
    hf.close()
    return Written(rate, file_size(folder / "runs.db"), 1.0)


def _appending(bench: Bench, work: str, *, at_least: float, plain: bool) -> Iterator[Row]:
    note(work)
    said = workload.messages(VERSIONS)
    given = sum(workload.json_size(message) for message in said)

    def once(folder: Path) -> tuple[float, ...]:
        raw = raw_rate(folder)
        written = write_messages(folder, said, plain=plain)
        return raw, written.rate, written.rate / raw, written.size, written.stamina

    raw, ours, ratio, size, stamina = bench.repeat(once)
    packed = len(zstandard.compress("".join(map(str, said)).encode()))
    yield Row(work, "rate", ratio, "× raw", f"{ours:,.0f}/s, raw {raw:,.0f}/s", at_least=at_least)
    detail = f"{megabytes(size)} for {megabytes(given)}, which zstd alone makes {megabytes(packed)}"
    yield Row(work, "file ÷ messages", size / given, "×", detail, at_most=1.6)
    bound = None if plain else 0.85
    yield Row(work, "last 100 ÷ first 100", stamina, "×", "rate of each", at_least=bound)


def _steady(folder: Path) -> tuple[float, ...]:
    """Rates after the first 1,000: the WAL file has reached its size, and the disk is faster then."""
    raw = raw_rate(folder, 2 * VERSIONS, warm=VERSIONS)
    hf = holdfast.open(folder / "runs.db")
    log = hf.history("run")
    log.commit({"messages": []})
    start = 0.0
    for number, message in enumerate(workload.messages(3 * VERSIONS)):
        if number == VERSIONS:
            start = perf_counter()
        with log.edit(step="chat") as draft:
            draft["messages"].append(message)
    ours = 2 * VERSIONS / (perf_counter() - start)
    hf.close()
    return raw, ours


def _many_runs(folder: Path, said: list[workload.Message]) -> float:
    hf = holdfast.open(folder / "runs.db")
    logs = [hf.history(f"run-{number}") for number in range(_RUNS)]
    for log in logs:
        log.commit({"messages": []})
    gate = threading.Barrier(_RUNS + 1)
    failed: list[BaseException] = []

    def work(log: holdfast.History, mine: list[workload.Message]) -> None:
        gate.wait()
        try:
            for message in mine:
                with log.edit(step="chat") as draft:
                    draft["messages"].append(message)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(log, said[n::_RUNS])) for n, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    gate.wait()
    start = perf_counter()
    for thread in threads:
        thread.join()
    rate = len(said) / (perf_counter() - start)
    if failed:
        raise failed[0]
    hf.close()
    return rate
