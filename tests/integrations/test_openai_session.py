"""Conversations of the OpenAI Agents SDK as runs: the real Runner on a model that needs no network."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from agents import Agent, Runner, SQLiteSession, function_tool
from agents.extensions.memory import EncryptedSession
from agents.memory import Session, SessionSettings
from cryptography.fernet import InvalidToken
from openai.types.responses import ResponseFunctionToolCall
from openai_conversations import QUIET, Scripted, said, text, words
from pydantic import BaseModel

import holdfast
from database import Database
from holdfast import (
    AlreadyExists,
    CorruptVersion,
    Holdfast,
    InvalidCall,
    InvalidReference,
    NotFound,
    UnsupportedValue,
)
from holdfast.integrations.openai_agents import HoldfastSession, SessionClosed, UnsupportedItem

pytest_plugins = ["postgres_fixtures"]


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def hf(path: Path) -> Iterator[Holdfast]:
    with holdfast.open(path, durability="fast", timeout=10) as hf:
        yield hf


def test_runner_continues_the_conversation_of_another_process(path: Path) -> None:
    call = ResponseFunctionToolCall(
        arguments='{"city": "Oslo"}', call_id="c1", name="weather", type="function_call"
    )
    first = Scripted(call, text("Take an umbrella."))
    with holdfast.open(path) as hf:
        session = HoldfastSession("user-1", hf)
        protocol: Session = session
        assert isinstance(protocol, Session)
        agent = Agent(name="guide", model=first, tools=[weather])
        result = asyncio.run(Runner.run(agent, "Oslo tomorrow?", session=session, run_config=QUIET))
        assert result.final_output == "Take an umbrella."
    second = Scripted(text("No, it stays dry there."))
    with holdfast.open(path) as hf:
        session = HoldfastSession("user-1", hf)
        agent = Agent(name="guide", model=second)
        asyncio.run(Runner.run(agent, "And Rome?", session=session, run_config=QUIET))
        kinds = [
            cast(Any, item).get("type") or cast(Any, item)["role"]
            for item in asyncio.run(session.get_items())
        ]
        assert hf.verify()
    assert kinds == ["user", "function_call", "function_call_output", "message", "user", "message"]
    asked = second.asked[0]
    assert [item.get("output", item.get("content")) for item in asked[::2]] == [
        "Oslo tomorrow?",
        "rain in Oslo",
        "And Rome?",
    ]
    assert all(type(item) is dict for item in asked)


def test_every_change_is_a_version_and_items_stay_in_history(hf: Holdfast) -> None:
    async def talk(session: HoldfastSession) -> None:
        assert (await session.get_items(), await session.pop_item(), await session.versions()) == (
            [],
            None,
            [],
        )
        await session.clear_session()
        await session.add_items([said("a"), said("b")])
        await session.add_items([])
        await session.add_items([said("c")])
        assert await session.pop_item() == said("c")
        await session.clear_session()
        assert await session.pop_item() is None
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items([said("d")])
        versions = await session.versions()
        assert [version.step for version in versions][::-1] == [
            "add_items",
            "add_items",
            "pop_item",
            "clear_session",
            "add_items",
        ]
        assert [len(version.state["items"]) for version in versions][::-1] == [2, 3, 2, 0, 1]
        assert [version.number for version in await session.versions(limit=2, before=4)] == [3, 2]
        assert session.history.diff(1, 2).changes[0].new == said("c")

    asyncio.run(talk(HoldfastSession("s", hf)))
    with holdfast.open(":memory:") as memory:
        asyncio.run(talk(HoldfastSession("s", memory)))


def test_session_is_rolled_back_and_forked(hf: Holdfast) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf, session_settings={"limit": 9})
        for word in "abc":
            await session.add_items([said(word)])
        other = await session.fork("s2", at=2, note="another tone")
        await other.add_items([said("x")])
        assert words(await other.get_items()) == ["a", "b", "x"]
        assert other.session_settings == session.session_settings
        version = await session.rollback(to=1, reason="went astray")
        assert version.number == 1
        await session.add_items([said("y")])
        assert words(await session.get_items()) == ["a", "y"]
        assert words(session.history.at(3).state["items"]) == ["a", "b", "c"]
        assert [line.reason for line in session.history.timelines()] == [None, "went astray"]
        assert words(await other.get_items()) == ["a", "b", "x"]
        assert (await session.fork()).session_id.startswith("s-fork-")
        with pytest.raises(AlreadyExists):
            await session.fork("s2")
        with pytest.raises(NotFound):
            await session.rollback(to=99)
        assert len(await session.versions()) == 4

    asyncio.run(talk())
    assert hf.verify()


def test_open_sessions_follow_a_rollback_to_an_abandoned_timeline(hf: Holdfast) -> None:
    async def talk() -> None:
        one, two = HoldfastSession("s", hf), HoldfastSession("s", hf)
        await one.add_items([said("a")])
        await two.add_items([said("b")])
        await one.rollback(to=1)
        await two.add_items([said("x")])
        assert words(await one.get_items()) == ["a", "x"]
        await one.rollback(to=2)
        await two.add_items([said("c")])
        assert words(await one.get_items()) == ["a", "b", "c"]
        assert [line.parent for line in one.history.timelines()] == [None, 1, 2]
        assert [version.number for version in one.history.ancestors()] == [4, 2, 1]

    asyncio.run(talk())


def test_get_items_returns_the_latest_up_to_the_limit(hf: Holdfast) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf, session_settings=SessionSettings(limit=2))
        await session.add_items([said(word) for word in "abcde"])
        assert words(await session.get_items()) == ["d", "e"]
        assert words(await session.get_items(3)) == ["c", "d", "e"]
        assert words(await session.get_items(limit=99)) == list("abcde")
        assert await session.get_items(0) == []
        assert words(await session.get_items(-1)) == list("abcde")
        for limit in ("3", True, 1.5):
            with pytest.raises(InvalidCall, match="limit"):
                await session.get_items(cast(int, limit))
        items = await session.get_items()
        cast(Any, items[0])["content"] = "changed"
        assert words(await session.get_items()) == ["d", "e"]

    asyncio.run(talk())


def test_concurrent_tasks_and_sessions_lose_no_item(hf: Holdfast) -> None:
    async def talk() -> None:
        sessions = [HoldfastSession("s", hf) for _ in range(4)]

        async def writer(number: int) -> None:
            for count in range(5):
                await sessions[number % 4].add_items(
                    [said(f"{number}.{count}.0"), said(f"{number}.{count}.1")]
                )

        await asyncio.gather(*(writer(number) for number in range(8)))
        _whole(words(await sessions[0].get_items()), 8, 5)

    asyncio.run(talk())


def _whole(kept: list[str], writers: int, each: int) -> None:
    """Check that no item is missing, each call is in one piece, and each writer's calls are in order."""
    assert len(kept) == len(set(kept)) == writers * each * 2
    for one, two in zip(kept[::2], kept[1::2], strict=True):
        assert (one[-1], two[-1], one[:-1]) == ("0", "1", two[:-1])
    for number in range(writers):
        own = [int(word.split(".")[1]) for word in kept[::2] if word.startswith(f"{number}.")]
        assert own == list(range(each))


def _write_in_a_process(path: Path, number: int, ready: Any) -> None:
    async def writer(hf: Holdfast) -> None:
        session = HoldfastSession("s", hf)
        ready.wait()
        for count in range(20):
            await session.add_items([said(f"{number}.{count}.0"), said(f"{number}.{count}.1")])

    with holdfast.open(path, durability="fast") as hf:
        asyncio.run(writer(hf))


def test_concurrent_processes_lose_no_item(path: Path) -> None:
    # Forked, since importing the SDK takes longer than all the rest.
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(3)
    writers = [context.Process(target=_write_in_a_process, args=(path, number, ready)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with holdfast.open(path) as hf:
        _whole(words(asyncio.run(HoldfastSession("s", hf).get_items())), 3, 20)
        assert hf.verify()


def test_concurrent_pops_return_each_item_once(hf: Holdfast) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said(str(number)) for number in range(12)])
        popped = await asyncio.gather(*(session.pop_item() for _ in range(15)))
        assert sorted(words([item for item in popped if item]), key=int) == [str(n) for n in range(12)]
        assert await session.get_items() == []

    asyncio.run(talk())


def test_removal_from_a_conversation_that_was_emptied_meanwhile_commits_nothing(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk() -> None:
        for number, name in enumerate(("pop_item", "clear_session")):
            session = HoldfastSession(f"s-{number}", hf)
            other = HoldfastSession(session.session_id, hf)
            await session.add_items([said("a")])
            change = session._change

            def change_late(
                *args: Any, change: Any = change, other: HoldfastSession = other, **options: Any
            ) -> Any:
                monkeypatch.undo()
                asyncio.run(other.clear_session())
                return change(*args, **options)

            monkeypatch.setattr(session, "_change", change_late)
            assert await getattr(session, name)() is None
            assert [version.step for version in await session.versions()] == ["clear_session", "add_items"]

    asyncio.run(talk())


def test_waiting_write_does_not_block_the_loop_and_ends_despite_cancellation(
    hf: Holdfast, path: Path
) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said("a")])
        other = Database(path)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(session.add_items([said("b")]))
        await asyncio.sleep(0)
        assert words(await session.get_items()) == ["a"]
        writing.cancel()
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.sleep(0)
        assert not writing.done()
        other.execute("ROLLBACK")
        other.close()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert words(await session.get_items()) == ["a", "b"]

    asyncio.run(talk())


class _Converted(BaseModel):
    """A model that converts itself, as the SDK's run items do."""

    def to_input_item(self) -> dict[str, Any]:
        return self.model_dump()


def test_invalid_item_is_refused_and_writes_nothing(hf: Holdfast) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        for items in (None, "text", {"role": "user"}, [said("a"), "text"], [3]):
            with pytest.raises(InvalidCall, match="add_items takes"):
                await session.add_items(cast(Any, items))
        for wrong, message in (
            (set(), "not builtins.set"),
            ([said("a"), 3], "item 1 is of type builtins.int"),
            (
                [said("a"), said("b"), text("c")],
                r"item 2 .*ResponseOutputMessage: .* item.model_dump\(exclude_unset=True\)",
            ),
            ([_Converted()], r"item 0 .*_Converted: add item.to_input_item\(\)"),
        ):
            with pytest.raises(UnsupportedItem, match=message):
                await session.add_items(cast(Any, wrong))
        with pytest.raises(UnsupportedValue, match=r"items\[1\]\.content"):
            await session.add_items([said("a"), cast(Any, {"role": "user", "content": object()})])
        with pytest.raises(TypeError, match=r"items\[0\]\.content") as refused:
            await session.add_items([cast(Any, {"role": "user", "content": object()})])
        assert type(refused.value) is UnsupportedItem
        assert refused.value.details["path"] == "items[0].content"
        cyclic: dict[str, Any] = {"role": "user"}
        cyclic["content"] = cyclic
        with pytest.raises(UnsupportedValue):
            await session.add_items([cast(Any, cyclic)])
        assert await session.versions() == []
        odd = cast(Any, {"content": "\ud800 \0", "n": 2**200, "f": float("inf"), "t": ("a", 1), "empty": {}})
        big = said("x" * 3_000_000)
        await session.add_items([odd, big])
        assert await session.get_items() == [odd, big]

    asyncio.run(talk())


class Tone(StrEnum):
    CALM = "calm"


class Size(IntEnum):
    BIG = 3


class Text(str):
    __slots__ = ()


class Place(NamedTuple):
    x: int
    y: int


def test_subclasses_of_plain_types_are_stored_as_the_sdk_stores_them(hf: Holdfast) -> None:
    class Weight(float):
        pass

    values: dict[Any, Any] = {"tone": Tone.CALM, "size": Size.BIG, "weight": Weight(-0.0), "text": Text("x")}
    values |= {"counts": Counter("aab"), "lists": defaultdict(list, a=[Text("y")]), Tone.CALM: [Place(1, 2)]}
    values["nested"] = {"tone": (Tone.CALM,), Text("key"): {"deep": Counter(Text("a"))}}

    async def talk() -> None:
        ours, theirs = HoldfastSession("s", hf), SQLiteSession("s")
        for session in (ours, theirs):
            await session.add_items([said("a")])
            await session.add_items([cast(Any, OrderedDict(role="user", content="b")), cast(Any, values)])
        found, expected = await ours.get_items(), await theirs.get_items()
        theirs.close()
        # A tuple stays one.
        cast(Any, expected[2])["nested"]["tone"] = ("calm",)
        assert found == expected
        assert repr(found[2]) == repr(expected[2])

    asyncio.run(talk())


def test_closed_session_refuses_calls_and_leaves_the_store_open(hf: Holdfast) -> None:
    async def talk() -> None:
        session, other = HoldfastSession("s", hf), HoldfastSession("s", hf)
        await session.add_items([said("a")])
        session.close()
        session.close()
        calls: list[Any] = [session.get_items(), session.add_items([]), session.add_items([said("b")])]
        calls += [session.pop_item(), session.clear_session(), session.versions()]
        calls += [session.rollback(to=1), session.fork("s2"), session._get_compaction_snapshot(9)]
        for call in calls:
            with pytest.raises(
                SessionClosed, match=r"HoldfastSession is closed: .* session_id 's'"
            ) as refused:
                await call
            assert isinstance(refused.value, RuntimeError)
        assert words(await other.get_items()) == ["a"]
        assert words(await HoldfastSession("s", hf).get_items()) == ["a"]

    asyncio.run(talk())


def test_close_does_not_interrupt_a_call_that_waits_for_a_thread(hf: Holdfast) -> None:
    calls: dict[str, Callable[[HoldfastSession], Coroutine[Any, Any, Any]]] = {
        "get": lambda session: session.get_items(),
        "add": lambda session: session.add_items([said("c")]),
        "pop": lambda session: session.pop_item(),
        "clear": lambda session: session.clear_session(),
        "versions": lambda session: session.versions(),
        "rollback": lambda session: session.rollback(to=1),
        "fork": lambda session: session.fork("copy"),
        "snapshot": lambda session: session._get_compaction_snapshot(9),
        "read": lambda session: session._read_to_compact(None),
        "replace": lambda session: session._atomic_replace_items([said("x")]),
    }

    async def talk(executor: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(executor)
        done = {}
        for name, call in calls.items():
            session = HoldfastSession(name, hf)
            await session.add_items([said("a"), said("b")])
            is_free = threading.Event()
            busy = loop.run_in_executor(None, is_free.wait)
            task = asyncio.create_task(call(session))
            # The task runs until it waits for the thread.
            await asyncio.sleep(0)
            session.close()
            is_free.set()
            done[name] = await task
            await busy
            with pytest.raises(SessionClosed):
                await call(session)
        assert words(done["get"]) == ["a", "b"]
        assert done["pop"] == said("b")
        assert [version.number for version in done["versions"]] == [1]
        assert (done["rollback"].number, done["fork"].session_id) == (1, "copy")
        assert words(done["snapshot"].items) == words(done["read"][0]) == ["a", "b"]
        left = {name: words(await HoldfastSession(name, hf).get_items()) for name in calls}
        assert left.pop("add") == ["a", "b", "c"]
        assert left.pop("pop") == ["a"]
        assert left.pop("clear") == []
        assert left.pop("replace") == ["x"]
        assert all(items == ["a", "b"] for items in left.values())
        with pytest.raises(SessionClosed):
            await done["snapshot"].replace_suffix(0, [said("x")])

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(talk(executor))


def test_close_does_not_interrupt_a_write(hf: Holdfast, path: Path) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said("a")])
        with Database(path) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.create_task(session.add_items([said("b")]))
            await asyncio.sleep(0)
            session.close()
            other.execute("ROLLBACK")
        await writing
        assert words(await HoldfastSession("s", hf).get_items()) == ["a", "b"]

    asyncio.run(talk())


def test_wrong_key_removes_no_encrypted_item(hf: Holdfast) -> None:
    class Subclass(HoldfastSession):
        pass

    async def talk(session: HoldfastSession) -> None:
        right, wrong = (EncryptedSession("e", cast(Any, session), key) for key in ("right", "wrong"))
        await right.add_items([said("a"), said("b")])
        await wrong.add_items([said("c")])
        assert await wrong.pop_item() == said("c")
        for _ in range(2):
            with pytest.raises(InvalidToken):
                await wrong.pop_item()
        assert await right.get_items() == [said("a"), said("b")]
        assert [await right.pop_item() for _ in range(3)] == [said("b"), said("a"), None]
        steps = [version.step for version in await session.versions()]
        assert steps == [*["pop_item"] * 3, *["add_items"] * 2]

    asyncio.run(talk(HoldfastSession("s", hf)))
    asyncio.run(talk(Subclass("s2", hf)))


def test_invalid_session_id_is_refused(hf: Holdfast) -> None:
    for name in ("", "a@b", "../x", "x\0", " x", "x" * 201, "~", None, 7):
        with pytest.raises(InvalidReference):
            HoldfastSession(cast(Any, name), hf)
    with pytest.raises(InvalidCall, match="open store"):
        HoldfastSession("s", cast(Any, "runs.db"))


def test_run_that_is_not_a_conversation_is_refused_and_unchanged(hf: Holdfast) -> None:
    async def talk() -> None:
        for number, state in enumerate(({"plan": 1}, [1], {"items": 3})):
            hf.history(f"run-{number}").commit(state)
            session = HoldfastSession(f"run-{number}", hf)
            for call in (session.get_items(), session.add_items([said("a")]), session.pop_item()):
                with pytest.raises(InvalidCall, match="not a conversation"):
                    await call
            assert len(await session.versions()) == 1

    asyncio.run(talk())


def test_run_of_a_workflow_is_refused_and_unchanged(hf: Holdfast) -> None:
    @holdfast.workflow
    def shopping() -> None:
        holdfast.ask("What else?")

    async def talk() -> None:
        early = HoldfastSession("cart", hf)
        assert await early.get_items() == []
        await hf.arun(shopping, run_id="cart", state={"items": [said("kelp")]})
        for session in (early, HoldfastSession("cart", hf)):
            for call in (session.get_items(), session.add_items([said("a")]), session.pop_item()):
                with pytest.raises(InvalidCall, match="is one of workflow 'shopping'"):
                    await call
        assert len(await early.versions()) == 1

    asyncio.run(talk())


def test_session_id_may_be_the_prefix_of_other_runs(hf: Holdfast) -> None:
    @holdfast.workflow
    def shopping() -> None:
        return None

    hf.run(shopping, run_id="chat-42")

    async def main() -> None:
        for session_id in ("chat", "user-10", "user-11", "user-1"):
            session = HoldfastSession(session_id, hf)
            await session.add_items([{"role": "user", "content": session_id}])
            assert await session.get_items() == [{"role": "user", "content": session_id}]

    asyncio.run(main())


def test_corrupt_conversation_is_refused(path: Path) -> None:
    with holdfast.open(path) as hf:
        asyncio.run(HoldfastSession("s", hf).add_items([said("a secret thought")]))
    with Database(path) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 1")
    with holdfast.open(path) as hf:
        session = HoldfastSession("s", hf)
        for call in (session.get_items(), session.add_items([said("b")]), session.pop_item()):
            with pytest.raises(CorruptVersion, match="s"):
                asyncio.run(call)


def test_session_works_on_postgres(url: str) -> None:
    async def talk(hf: Holdfast) -> None:
        session = HoldfastSession("s", hf)
        agent = Agent(name="guide", model=Scripted(text("one"), text("two")))
        await Runner.run(agent, "first", session=session, run_config=QUIET)
        await session.rollback(to=1)
        await Runner.run(agent, "second", session=session, run_config=QUIET)
        assert [item for item in words(await session.get_items()) if isinstance(item, str)] == [
            "first",
            "second",
        ]
        assert await session.pop_item() is not None
        writers = [HoldfastSession("many", hf).add_items([said(f"0.{n}.0")]) for n in range(6)]
        await asyncio.gather(*writers)
        assert len(await HoldfastSession("many", hf).get_items()) == 6

    with holdfast.open(url) as hf:
        asyncio.run(talk(hf))
        assert hf.verify()
