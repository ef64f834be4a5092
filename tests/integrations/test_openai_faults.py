"""Conversations of the OpenAI Agents SDK whose writes fail, or whose tasks are cancelled, in the middle of a call.

The SDK's tests of these cases break the connections of its own classes (see `peers/openai_agents_plugin.py`), so
they are repeated here with faults in Holdfast's database.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents import Agent, OpenAIResponsesCompactionSession, Runner
from agents.extensions.memory import EncryptedSession
from openai_conversations import QUIET, Scripted, said, text, words

import holdfast
from database import Database
from holdfast import Holdfast
from holdfast.integrations.openai_agents import HoldfastSession

SUMMARY: Any = {"type": "message", "role": "assistant", "content": "summary"}


@contextmanager
def broken(path: Path) -> Iterator[None]:
    """Make the database refuse new versions."""
    with Database(path) as database:
        database.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON journal BEGIN SELECT RAISE(ABORT, 'no versions today'); END"
        )
        try:
            yield
        finally:
            database.execute("DROP TRIGGER broken")


class Gate:
    """Stops the changes of a session, in their thread, before or after their commit."""

    def __init__(
        self, session: HoldfastSession, monkeypatch: pytest.MonkeyPatch, *, step: str = "", after: bool = True
    ) -> None:
        self._change, self._step, self._after = session._change, step, after
        self._reached, self._released = threading.Event(), threading.Event()
        monkeypatch.setattr(session, "_change", self._stopped)

    def _stopped(self, step: str, *args: Any, **options: Any) -> Any:
        stops = not self._step or step == self._step
        if stops and not self._after:
            self._stop()
        done = self._change(step, *args, **options)
        if stops and self._after:
            self._stop()
        return done

    def _stop(self) -> None:
        self._reached.set()
        assert self._released.wait(30)

    async def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task twice when it has reached the gate, and let it pass."""
        assert await asyncio.to_thread(self._reached.wait, 30)
        for message in ("first", "second"):
            task.cancel(message)
            await asyncio.sleep(0)
        assert not task.done()
        self._released.set()
        with pytest.raises(asyncio.CancelledError, match="first"):
            await task
        self._reached.clear()
        self._released.clear()


def compacting(
    session: Any, calls: list[Any] | None = None, **options: Any
) -> OpenAIResponsesCompactionSession:
    async def compact(**given: Any) -> Any:
        if calls is not None:
            calls.append(given)
        return SimpleNamespace(output=[SUMMARY], usage=None)

    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    options = {"compaction_mode": "input", "should_trigger_compaction": lambda _: True, **options}
    return OpenAIResponsesCompactionSession(session.session_id, session, client=client, **options)


def test_failed_call_changes_nothing_and_the_session_stays_usable(hf: Holdfast, path: Path) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said("a"), said("b")])
        calls: list[Any] = [
            lambda: session.add_items([said("c")]),
            session.pop_item,
            session.clear_session,
            lambda: compacting(session).run_compaction({"force": True}),
            lambda: HoldfastSession("new", hf).add_items([said("c")]),
        ]
        for call in calls:
            with broken(path), pytest.raises(holdfast.HoldfastError, match="no versions today"):
                await call()
            assert words(await session.get_items()) == ["a", "b"]
            assert await HoldfastSession("new", hf).get_items() == []
        await session.add_items([said("c")])
        assert await session.pop_item() == said("c")
        assert len(await session.versions()) == 3

    asyncio.run(talk())
    assert hf.verify()


@pytest.mark.parametrize("encrypted", [False, True])
def test_failed_automatic_compaction_leaves_the_conversation(
    hf: Holdfast, path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    async def talk() -> None:
        backend = HoldfastSession("s", hf)
        inner: Any = EncryptedSession("s", cast(Any, backend), "key") if encrypted else backend
        await inner.add_items([said("a"), said("b")])
        session = compacting(inner)
        saved: list[Any] = []
        change = backend._change

        def break_compaction(step: str, *args: Any, **options: Any) -> Any:
            if step != "compact":
                return change(step, *args, **options)
            saved.extend(backend._read(None)[1])
            with broken(path):
                return change(step, *args, **options)

        monkeypatch.setattr(backend, "_change", break_compaction)
        agent = Agent(name="guide", model=Scripted(text("done")))
        with pytest.raises(holdfast.HoldfastError, match="no versions today"):
            await Runner.run(agent, "c", session=session, run_config=QUIET)
        assert len(saved) == 4
        assert await backend.get_items() == saved

    asyncio.run(talk())


def test_cancelled_call_ends_after_its_commit(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said("a"), said("b")])
        gate = Gate(session, monkeypatch)
        left = []
        for call in (session.add_items([said("c")]), session.pop_item(), session.clear_session()):
            await gate.cancel(asyncio.create_task(call))
            left.append(words(await session.get_items()))
        assert left == [["a", "b", "c"], ["a", "b"], []]
        assert len(await session.versions()) == 4

    asyncio.run(talk())


def test_cancelled_call_that_fails_is_cancelled(
    hf: Holdfast, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        session = HoldfastSession("s", hf)
        await session.add_items([said("a")])
        gate = Gate(session, monkeypatch, after=False)
        with broken(path):
            for call in (session.add_items([said("c")]), session.pop_item(), session.clear_session()):
                caplog.clear()
                await gate.cancel(asyncio.create_task(call))
                assert "no versions today" in caplog.text
        assert words(await session.get_items()) == ["a"]

    asyncio.run(talk())


def test_cancelled_clear_or_pop_forgets_the_response_to_compact(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(name: str) -> None:
        calls: list[Any] = []
        backend = HoldfastSession(name, hf)
        await backend.add_items([said("a"), said("b")])
        session = compacting(backend, calls, compaction_mode="previous_response_id")
        session.should_trigger_compaction = lambda _: False
        await session.run_compaction({"response_id": "old", "store": False})
        gate = Gate(backend, monkeypatch)
        await gate.cancel(asyncio.create_task(getattr(session, name)()))
        monkeypatch.undo()
        with pytest.raises(ValueError, match="requires a response_id"):
            await session.run_compaction({"force": True})
        await session.add_items([said("c")])
        left = ["c"] if name == "clear_session" else ["a", "c"]
        assert words(await session.get_items()) == left
        await session.run_compaction({"response_id": "new", "force": True})
        assert [call["previous_response_id"] for call in calls] == ["new"]

    asyncio.run(talk("clear_session"))
    asyncio.run(talk("pop_item"))


def test_conversation_continues_after_a_turn_is_cancelled_in_its_compaction(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk() -> None:
        backend = HoldfastSession("s", hf)
        calls: list[Any] = []
        session = compacting(backend, calls, should_trigger_compaction=lambda _: not calls)
        gate = Gate(backend, monkeypatch, step="compact", after=False)
        model = Scripted(text("one"), text("two"))
        agent = Agent(name="guide", model=model)
        await gate.cancel(asyncio.create_task(Runner.run(agent, "a", session=session, run_config=QUIET)))
        assert await session.get_items() == [SUMMARY]
        result = await Runner.run(agent, "b", session=session, run_config=QUIET)
        assert result.final_output == "two"
        assert model.asked[1] == [SUMMARY, said("b")]
        kept = await session.get_items()
        assert kept[:2] == [SUMMARY, said("b")]
        assert len(kept) == 3
        assert len(calls) == 1

    asyncio.run(talk())
