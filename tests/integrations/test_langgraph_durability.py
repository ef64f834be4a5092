"""Threads outlive their processes and share a file: kill -9, many threads and tasks, two processes, an import."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from langgraph_graphs import asking, config, delta, put, talk

import holdfast
from holdfast import Holdfast
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph.import_sqlite import import_sqlite

STEPS = 400
KILLS = 3
CROWD = 50
_PROGRAM = Path(__file__).with_name("langgraph_process.py")


class GraphProcess:
    """A process that runs a graph, and its reports."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reports: list[dict[str, Any]] = []

    def read_until(self, kind: str, count: int = 1) -> None:
        """Read reports until so many are of a kind."""
        assert self._process.stdout is not None
        while count:
            line = self._process.stdout.readline()
            assert line, f"it ended after {len(self.reports)} reports: {self.close()}"
            self.reports.append(json.loads(line))
            count -= kind in self.reports[-1]

    def open_gate(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None

    def kill(self) -> None:
        """Kill the process; reports that it made before are still read."""
        self._process.send_signal(signal.SIGKILL)
        self.read_to_death()

    def read_to_death(self) -> None:
        """Read reports until the process is killed."""
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        self.reports += [json.loads(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        assert self._process.wait() == -signal.SIGKILL

    def of(self, kind: str) -> list[Any]:
        return [report[kind] for report in self.reports if kind in report]

    def close(self) -> str:
        """Wait for the end; return the errors that it printed."""
        _, errors = self._process.communicate()
        return str(errors)


@contextmanager
def started(*arguments: object) -> Iterator[GraphProcess]:
    process = GraphProcess(*arguments)
    try:
        yield process
    finally:
        process._process.kill()
        process.close()


def _messages(found: Any) -> Any:
    """The messages of a checkpoint; the one of the input has none yet."""
    return found.checkpoint["channel_values"].get("messages", [])


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_killed_graph_continues_from_what_was_acknowledged(path: Path, durability: str) -> None:
    chance = random.Random(durability)
    acknowledged: dict[str, int] = {}
    ran: list[str] = []
    finished: set[str] = set()
    for _ in range(KILLS):
        with started(path, "t", durability, STEPS) as process:
            process.read_until("put", chance.randrange(1, STEPS // KILLS))
            process.kill()
        if durability == "sync":
            _check_nothing_ran_again(process, ran, finished, max(acknowledged.values(), default=0))
        acknowledged |= {report["put"]: report["count"] for report in process.reports if "put" in report}
        with HoldfastSaver(path) as saver:
            assert saver.hf.verify().ok
            for checkpoint, count in acknowledged.items():
                found = saver.get_tuple(config(checkpoint_id=checkpoint))
                assert found is not None, f"checkpoint {checkpoint} of {count} messages is lost"
                assert _messages(found) == [str(n) for n in range(count)]
            assert len(_messages(saver.get_tuple(config()))) >= max(acknowledged.values())
    with started(path, "t", durability, STEPS) as process:
        process.read_until("end")
    if durability == "sync":
        _check_nothing_ran_again(process, ran, finished, max(acknowledged.values()))
    assert process.of("end") == [[str(n) for n in range(STEPS)]]
    with holdfast.open(path) as hf:
        assert len(hf.history("t").timelines()) == 1
        assert hf.verify().ok


def _check_nothing_ran_again(process: GraphProcess, ran: list[str], finished: set[str], reached: int) -> None:
    """Check that a process started after the last acknowledged step, and ran no finished task."""
    again = [text for text in process.of("ran") if text in finished or int(text) < reached]
    assert again == []
    ran += process.of("ran")
    finished.update(process.of("writes"))
    assert len(ran) - len(set(ran)) <= KILLS, "only what was under way at a kill runs again"


def test_task_with_acknowledged_writes_does_not_run_again(path: Path) -> None:
    finished: list[str] = []
    for last in (1, 100, 200):
        with started(path, "t", "sync", STEPS, "--die", last) as process:
            process.read_to_death()
        assert int(process.of("writes")[-1]) >= last
        assert not set(process.of("ran")) & set(finished)
        finished += process.of("writes")
    with started(path, "t", "sync", STEPS) as process:
        process.read_until("end")
    assert not set(process.of("ran")) & set(finished)
    assert process.of("end") == [[str(n) for n in range(STEPS)]]


def test_two_processes_run_threads_of_one_file(path: Path) -> None:
    with started(path, "a", "async", 60) as one, started(path, "b", "sync", 60) as other:
        for process in (one, other):
            process.read_until("end")
            assert process.of("end") == [[str(n) for n in range(60)]]
    with holdfast.open(path) as hf:
        assert hf.verify().ok
        for thread in ("a", "b"):
            assert len(hf.history(thread).timelines()) == 1


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_two_processes_that_continue_one_thread_lose_nothing(path: Path, durability: str) -> None:
    with started(path, "t", durability, 3) as base:
        base.read_until("end")
    with (
        started(path, "t", durability, 23, "--gate") as one,
        started(path, "t", durability, 23, "--gate") as other,
    ):
        for process in (one, other):
            process.read_until("read")
        assert one.of("read") == other.of("read")
        for process in (one, other):
            process.open_gate()
        for process in (one, other):
            process.read_until("end")
    with HoldfastSaver(path) as saver:
        for process in (one, other):
            (said,) = process.of("end")
            assert len(said) == 23
            assert said == ["0", "1", "2", *process.of("ran")]
            _check_branch(saver, process)
        assert len(saver.hf.history("t").timelines()) == 2
        assert _messages(saver.get_tuple(config())) in (one.of("end")[0], other.of("end")[0])
        assert saver.hf.verify().ok


def _check_branch(saver: HoldfastSaver, process: GraphProcess) -> None:
    """Check that the ancestors of the last checkpoint of a process are those that it put, then those that it read."""
    (said,) = process.of("end")
    chain = []
    at: Any = saver.get_tuple(config(checkpoint_id=process.of("put")[-1]))
    while at is not None:
        messages = _messages(at)
        assert messages == said[: len(messages)]
        chain.append(at.config["configurable"]["checkpoint_id"])
        at = saver.get_tuple(at.parent_config) if at.parent_config else None
    own = process.of("put")[::-1]
    assert chain[: len(own)] == own
    assert chain[len(own)] == process.of("read")[0]


def check_crowd(hf: Holdfast, saver: HoldfastSaver) -> None:
    graph = talk(saver)
    for n in range(CROWD):
        assert graph.get_state(config(f"t{n}")).values["messages"] == [f"t{n}", "m0", "m1", "m2"]
        assert len(list(graph.get_state_history(config(f"t{n}")))) == 5
        assert len(hf.history(f"t{n}").timelines()) == 1
    assert hf.verify().ok


def test_saver_serves_many_tasks(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)

    async def run() -> None:
        graph = talk(saver)
        await asyncio.gather(
            *(graph.ainvoke({"messages": [f"t{n}"], "turns": 0}, config(f"t{n}")) for n in range(CROWD))
        )

    asyncio.run(run())
    check_crowd(hf, saver)


def test_saver_serves_many_event_loops(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    graph = talk(saver)
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            asyncio.run(graph.ainvoke({"messages": [f"t{n}"], "turns": 0}, config(f"t{n}")))
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(CROWD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    check_crowd(hf, saver)


def test_set_that_changes_during_a_put_is_stored(hf: Holdfast) -> None:
    """In LangGraph's default mode, a put runs while the next step adds to the set of an edge from several nodes."""
    live: set[Any] = set()

    @dataclass(frozen=True)
    class Growing:
        n: int

        def __getattribute__(self, name: str) -> Any:
            if name in ("n", "__dict__"):
                live.add(f"more-{len(live)}")
            return object.__getattribute__(self, name)

    live.update((Growing(1), Growing(2)))
    saver = HoldfastSaver(hf, allow=[Growing])
    put(saver, config(), {"join": live})
    found = saver.get_tuple(config())
    assert found is not None
    assert len(live) > 2
    assert len(found.checkpoint["channel_values"]["join"]) >= 2


def test_file_of_the_sqlite_saver_in_default_mode_is_imported(hf: Holdfast, tmp_path: Path) -> None:
    old = tmp_path / "old.sqlite"
    saver = HoldfastSaver(hf)
    with SqliteSaver.from_conn_string(str(old)) as peer:
        for turn in range(2):
            talk(peer).invoke({"messages": ["hi"], "turns": 3 * turn}, config("talk"))
            delta(peer).invoke({"items": ["in"], "turns": 3 * turn}, config("delta"))
        asking(peer, []).invoke({"messages": [], "turns": 0}, config("asking"))
        copied = import_sqlite(old, saver)
        assert (copied.threads, copied.refused) == (3, ())
        for thread in ("talk", "delta", "asking"):
            expected, found = list(peer.list(config(thread))), list(saver.list(config(thread)))
            assert len(expected) > 1
            assert [(item.metadata, item.pending_writes) for item in found] == [
                (item.metadata, item.pending_writes) for item in expected
            ]
            for mine, its in zip(found, expected, strict=True):
                # A snapshot of a delta channel belongs to later checkpoints, too, until the channel is written.
                values, known = mine.checkpoint["channel_values"], its.checkpoint["channel_values"]
                assert {name: values[name] for name in known} == known
                assert values.keys() - known.keys() <= {"items"}
                assert {**mine.checkpoint, "channel_values": known} == its.checkpoint
        again = import_sqlite(old, saver)
        assert again == copied
    assert len(delta(saver).get_state(config("delta")).values["items"]) == 2 + 12
    ran: list[str] = []
    answered = asking(saver, ran).invoke(Command(resume="yes"), config("asking"))
    assert sorted(answered["messages"]) == ["sure", "yes"]
    assert ran == ["unsure"]
    talk(saver).invoke({"messages": ["more"], "turns": 0}, config("talk"))
    assert talk(saver).get_state(config("talk")).values["messages"][-4:] == ["more", "m0", "m1", "m2"]
    assert len(hf.history("talk").timelines()) == 1
    assert hf.verify().ok
