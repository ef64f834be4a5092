"""Compaction of conversations by the OpenAI Agents SDK, while other writers change them."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents import Agent, OpenAIResponsesCompactionSession, RunConfig, Runner
from agents.items import TResponseInputItem
from openai_conversations import QUIET, Scripted, said, text, words

import holdfast
from database import Database
from holdfast import Holdfast, Retention, StaleVersion
from holdfast.integrations.openai_agents import HoldfastSession

pytest_plugins = ["postgres_fixtures"]

#: What another writer does while the compaction waits for its summary.
Meanwhile = Callable[[], Awaitable[Any]]


class Summarizer:
    """Stands in for the client of the OpenAI API: a summary holds the contents of all items, in order."""

    def __init__(self, meanwhile: Meanwhile | None = None) -> None:
        self.meanwhile = meanwhile
        self.calls = 0
        self.responses = self

    async def compact(self, *, model: str, input: list[Any]) -> Any:  # noqa: A002 - the API's name
        self.calls += 1
        if self.meanwhile is not None:
            await self.meanwhile()
        return SimpleNamespace(output=[summary(*map(_text_of, input))], usage=None)


def summary(*contents: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": " ".join(contents)}


def _text_of(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def flat(items: list[TResponseInputItem]) -> list[str]:
    """Return the contents of all items, including the items that were compacted."""
    return " ".join(map(_text_of, items)).split()


def compacting(
    session: HoldfastSession, meanwhile: Meanwhile | None = None
) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession(
        session.session_id,
        session,
        client=cast(Any, Summarizer(meanwhile)),
        compaction_mode="input",
        should_trigger_compaction=lambda _: True,
    )


def _check_compaction_by_hand(one: Holdfast, two: Holdfast) -> None:
    async def talk() -> None:
        other = HoldfastSession("s", two)
        session = HoldfastSession("s", one)
        wrapper = compacting(session, lambda: other.add_items([said("c"), said("d")]))
        await wrapper.add_items([said("a"), said("b")])
        await wrapper.run_compaction({"force": True})
        assert await wrapper.get_items() == [summary("a", "b"), said("c"), said("d")]
        versions = await session.versions()
        assert [version.step for version in versions] == ["compact", "add_items", "add_items"]
        assert words(versions[1].state["items"]) == list("abcd")
        wrapper = compacting(session)
        await wrapper.run_compaction({"force": True})
        assert await other.get_items() == [summary("a", "b", "c", "d")]

    asyncio.run(talk())


def test_compaction_by_hand_keeps_a_concurrent_append(hf: Holdfast, path: Path) -> None:
    _check_compaction_by_hand(hf, hf)
    assert hf.verify()
    with holdfast.open(":memory:") as memory:
        _check_compaction_by_hand(memory, memory)


def test_compaction_by_hand_keeps_a_concurrent_append_on_postgres(url: str) -> None:
    with holdfast.open(url) as one, holdfast.open(url) as two:
        _check_compaction_by_hand(one, two)


def test_compaction_by_hand_reads_items_of_other_writers(hf: Holdfast) -> None:
    """The SDK's wrapper remembers the items that it has seen; another writer may have added more since."""

    async def talk() -> None:
        session = HoldfastSession("s", hf)
        wrapper = compacting(session)
        wrapper.should_trigger_compaction = lambda _: False
        await wrapper.add_items([said("a")])
        await wrapper.run_compaction()
        await HoldfastSession("s", hf).add_items([said("b")])
        await wrapper.run_compaction({"force": True})
        assert await session.get_items() == [summary("a", "b")]

    asyncio.run(talk())


def _check_automatic_compaction(one: Holdfast, two: Holdfast) -> None:
    async def talk() -> None:
        session, other = HoldfastSession("s", one), HoldfastSession("s", two)
        wrapper = compacting(session, lambda: other.add_items([said("c")]))
        agent = Agent(name="guide", model=Scripted(text("b"), text("e")))
        await Runner.run(agent, "a", session=wrapper, run_config=QUIET)
        assert flat(await session.get_items()) == list("abc")
        assert [version.step for version in await session.versions()] == ["add_items"] * 3
        await Runner.run(agent, "d", session=compacting(session), run_config=QUIET)
        assert await other.get_items() == [summary(*"abcde")]

    asyncio.run(talk())


def test_automatic_compaction_is_skipped_after_a_concurrent_append(hf: Holdfast) -> None:
    """The SDK asks this of a session: it compacts again at the next turn."""
    _check_automatic_compaction(hf, hf)
    assert hf.verify()


def test_automatic_compaction_is_skipped_after_a_concurrent_append_on_postgres(url: str) -> None:
    with holdfast.open(url) as one, holdfast.open(url) as two:
        _check_automatic_compaction(one, two)


def test_automatic_compaction_replaces_only_items_that_the_model_has_seen(hf: Holdfast, path: Path) -> None:
    limited = RunConfig(tracing_disabled=True, session_settings=cast(Any, {"limit": 2}))

    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said(f"w{number}-{'x' * 50}") for number in range(2000)])
        earlier = await session.get_items()
        agent = Agent(name="guide", model=Scripted(text("b")))
        await Runner.run(agent, "a", session=compacting(session), run_config=limited)
        items = await session.get_items()
        assert items[:-1] == earlier[:-2]
        assert flat(items) == [*flat(earlier), "a", "b"]

    asyncio.run(talk())
    with Database(path) as database:
        packs = "SELECT number, length(pack) AS size FROM journal"
        blocks = "SELECT number, length(data) AS size FROM block"
        query = f"SELECT sum(size) FROM ({packs} UNION ALL {blocks}) GROUP BY number ORDER BY number"
        sizes = [size for (size,) in database.execute(query)]
    # A compaction writes the part of the list that it changes, not the conversation.
    assert len(sizes) == 4
    assert max(sizes[1:]) < sizes[0] / 10


def test_compaction_by_hand_is_refused_if_items_were_removed(hf: Holdfast) -> None:
    async def talk() -> None:
        removals: list[Callable[[HoldfastSession], Awaitable[Any]]] = [
            lambda other: other.pop_item(),
            lambda other: other.clear_session(),
            lambda other: other.rollback(to=1),
            lambda other: compacting(other).run_compaction({"force": True}),
        ]
        for number, remove in enumerate(removals):
            session = HoldfastSession(f"s-{number}", hf)
            other = HoldfastSession(session.session_id, hf)
            await session.add_items([said("a")])
            await session.add_items([said("b")])

            async def change(
                remove: Callable[[HoldfastSession], Awaitable[Any]] = remove, other: HoldfastSession = other
            ) -> None:
                # In a task of its own, as another writer is.
                await asyncio.ensure_future(remove(other))
                await other.add_items([said("c")])

            with pytest.raises(StaleVersion, match=r"removed while it was compacted.*run_compaction again"):
                await compacting(session, change).run_compaction({"force": True})
            assert flat(await session.get_items())[-1] == "c"
            assert summary("a", "b", "c") not in await session.get_items()

    asyncio.run(talk())


def test_compaction_by_hand_is_refused_if_the_version_that_it_has_read_was_removed(hf: Holdfast) -> None:
    async def talk() -> None:
        async def delete(other: HoldfastSession) -> None:
            await asyncio.to_thread(hf.delete, other.session_id)

        async def create_again(other: HoldfastSession) -> None:
            await delete(other)
            # As many versions as the deleted conversation had.
            await other.add_items([said("x")])
            await other.add_items([said("y")])

        async def create_shorter(other: HoldfastSession) -> None:
            await delete(other)
            await other.add_items([said("x")])

        async def prune(other: HoldfastSession) -> None:
            await other.add_items([said("c")])
            await asyncio.to_thread(other.history.prune, Retention(last=1))

        cases: dict[Callable[[HoldfastSession], Awaitable[Any]], list[str]] = {
            delete: [],
            create_again: ["x", "y"],
            create_shorter: ["x"],
            prune: ["a", "b", "c"],
        }
        for number, (remove, left) in enumerate(cases.items()):
            session = HoldfastSession(f"s-{number}", hf)
            other = HoldfastSession(session.session_id, hf)
            await session.add_items([said("a")])
            await session.add_items([said("b")])
            wrapper = compacting(session, partial(remove, other))
            with pytest.raises(StaleVersion, match=r"versions of .* were removed .*run_compaction again"):
                await wrapper.run_compaction({"force": True})
            assert words(await session.get_items()) == left
            assert "compact" not in [version.step for version in await session.versions()]

    asyncio.run(talk())


def test_automatic_compaction_is_skipped_if_the_conversation_was_created_again(hf: Holdfast) -> None:
    async def talk() -> None:
        session, other = HoldfastSession("s", hf), HoldfastSession("s", hf)

        async def create_again() -> None:
            count = len(await other.versions())
            await asyncio.to_thread(hf.delete, "s")
            for number in range(count):
                await other.add_items([said(str(number))])

        agent = Agent(name="guide", model=Scripted(text("b")))
        await Runner.run(agent, "a", session=compacting(session, create_again), run_config=QUIET)
        versions = await session.versions()
        assert [version.step for version in versions] == ["add_items"] * len(versions)
        assert words(await session.get_items()) == [str(number) for number in range(len(versions))]

    asyncio.run(talk())


def test_compactions_of_two_tasks_replace_what_each_has_read(hf: Holdfast) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said("a")])
        started, later_started, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def append_and_wait() -> None:
            started.set()
            await later_started.wait()

        async def wait() -> None:
            later_started.set()
            await done.wait()

        first = asyncio.create_task(compacting(session, append_and_wait).run_compaction({"force": True}))
        await started.wait()
        await session.add_items([said("b")])
        second = asyncio.create_task(compacting(session, wait).run_compaction({"force": True}))
        await first
        assert await session.get_items() == [summary("a"), said("b")]
        done.set()
        with pytest.raises(StaleVersion):
            await second
        assert await session.get_items() == [summary("a"), said("b")]

    asyncio.run(talk())


def test_cancelled_compaction_is_complete_before_the_next_append(
    hf: Holdfast, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said("a"), said("b")])
        is_replacing = threading.Event()
        replace = session._replace

        def observed(*args: Any) -> None:
            is_replacing.set()
            replace(*args)

        monkeypatch.setattr(session, "_replace", observed)
        other = Database(path)

        async def lock() -> None:
            other.execute("BEGIN IMMEDIATE")

        wrapper = compacting(session, lock)
        work = asyncio.create_task(wrapper.run_compaction({"force": True}))
        while not is_replacing.is_set():
            await asyncio.sleep(0)
        append = asyncio.create_task(wrapper.add_items([said("c")]))
        for _ in range(3):
            work.cancel()
            await session.get_items()
        assert not work.done()
        assert not append.done()
        other.execute("ROLLBACK")
        other.close()
        outcome, _ = await asyncio.gather(work, append, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        assert await session.get_items() == [summary("a", "b"), said("c")]

    asyncio.run(talk())


class Shouting(HoldfastSession):
    """A subclass that changes items: a compaction must call its methods."""

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        await super().add_items([cast(Any, {**item, "content": _text_of(item).upper()}) for item in items])


def test_compaction_calls_the_methods_of_a_subclass(hf: Holdfast) -> None:
    async def talk() -> None:
        by_hand, automatic = Shouting("s", hf), Shouting("auto", hf)
        wrapper = compacting(by_hand)
        await wrapper.add_items([said("a")])
        await wrapper.run_compaction({"force": True})
        assert await by_hand.get_items() == [summary("A")]
        agent = Agent(name="guide", model=Scripted(text("B")))
        await Runner.run(agent, "A", session=compacting(automatic), run_config=QUIET)
        assert flat(await automatic.get_items()) == ["A", "B"]

    asyncio.run(talk())


_EACH = 25


def _append(hf: Holdfast, number: int) -> Awaitable[None]:
    async def append() -> None:
        session = HoldfastSession("s", hf)
        for count in range(_EACH):
            await session.add_items([said(f"{number}.{count}")])

    return append()


async def _compact(hf: Holdfast, is_done: Callable[[], bool]) -> None:
    """Compact at least once, until the others are done, by hand and as the SDK does automatically."""
    session = HoldfastSession("s", hf)
    wrapper = compacting(session)
    while True:
        was_done = is_done()
        with contextlib.suppress(StaleVersion):  # another compaction was first
            await wrapper.run_compaction({"force": True})
        snapshot = await session._get_compaction_snapshot(3)
        assert snapshot is not None
        await snapshot.replace_suffix(0, [cast(Any, summary(*map(_text_of, snapshot.items)))])
        if was_done:
            return


def _check_all(items: list[TResponseInputItem], writers: int) -> None:
    kept = flat(items)
    assert len(kept) == len(set(kept)) == writers * _EACH
    for number in range(writers):
        own = [word for word in kept if word.startswith(f"{number}.")]
        assert own == [f"{number}.{count}" for count in range(_EACH)]


def _append_in_a_process(store: str, number: int) -> None:
    with holdfast.open(store, durability="fast", timeout=60) as hf:
        asyncio.run(cast(Any, _append(hf, number)))


def _compact_in_a_process(store: str, done: Any) -> None:
    with holdfast.open(store, durability="fast", timeout=60) as hf:
        asyncio.run(_compact(hf, done.is_set))


def _check_processes(store: str) -> None:
    # Forked, since importing the SDK takes longer than all the rest.
    context = multiprocessing.get_context("fork")
    done = context.Event()
    writers = [context.Process(target=_append_in_a_process, args=(store, number)) for number in range(2)]
    compactors = [context.Process(target=_compact_in_a_process, args=(store, done)) for _ in range(2)]
    for process in writers + compactors:
        process.start()
    for process in writers:
        process.join()
    done.set()
    for process in compactors:
        process.join()
    assert [process.exitcode for process in writers + compactors] == [0] * 4
    with holdfast.open(store) as hf:
        session = HoldfastSession("s", hf)
        _check_all(asyncio.run(session.get_items()), 2)
        assert any(version.step == "compact" for version in asyncio.run(session.versions()))
        assert hf.verify()


def test_compactions_and_appends_of_processes_lose_no_item(path: Path) -> None:
    _check_processes(str(path))


def test_compactions_and_appends_of_processes_lose_no_item_on_postgres(url: str) -> None:
    _check_processes(url)


def test_compactions_and_appends_of_tasks_lose_no_item(hf: Holdfast) -> None:
    async def talk() -> None:
        appends = [asyncio.ensure_future(_append(hf, number)) for number in range(3)]

        def is_done() -> bool:
            return all(append.done() for append in appends)

        await asyncio.gather(*appends, _compact(hf, is_done), _compact(hf, is_done))
        _check_all(await HoldfastSession("s", hf).get_items(), 3)

    asyncio.run(talk())
