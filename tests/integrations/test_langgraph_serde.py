"""Threads stored by a serializer of LangGraph: values are hidden from the store, and read back unchanged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_graphs import Talk, config, delta, ids, put, talk

import holdfast
from holdfast import Holdfast, InvalidCall, StaleVersion
from holdfast.integrations.langgraph import HoldfastSaver


class Cipher(CipherProtocol):
    """A stream cipher from a hash: each value gets another stream, as with a real one."""

    def __init__(self, key: bytes = b"key") -> None:
        self._key = key

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = os.urandom(16)
        return "hash", nonce + self._xor(nonce, plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "hash"
        return self._xor(ciphertext[:16], ciphertext[16:])

    def _xor(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(self._key + nonce).digest(len(data))
        return bytes(one ^ other for one, other in zip(data, stream, strict=True))


def encrypted(store: Any, **options: Any) -> HoldfastSaver:
    return HoldfastSaver(store, serde=EncryptedSerializer(Cipher()), **options)


@pytest.fixture
def saver(hf: Holdfast) -> Iterator[HoldfastSaver]:
    yield encrypted(hf)
    assert hf.verify().ok


def secretive(saver: Any, failures: list[str]) -> Any:
    """A graph whose nodes have secrets in values, errors, interrupts and answers."""

    def say(state: Talk) -> Any:
        return {"messages": ["secret-value"], "turns": 1}

    def fail(state: Talk) -> Any:
        if failures:
            raise ValueError(failures.pop())
        return {"messages": ["secret-write"]}

    def ask(state: Talk) -> Any:
        return {"messages": [interrupt("secret-question")]}

    graph = StateGraph(Talk)
    graph.add_node("say", say)
    graph.add_node("fail", fail)
    graph.add_node("ask", ask)
    graph.add_edge(START, "say")
    graph.add_edge("say", "fail")
    graph.add_edge("say", "ask")
    return graph.compile(checkpointer=saver)


def run_secretive(saver: Any, durability: Any) -> Any:
    """Run it: an error, then an interrupt, then the answer. Return the graph."""
    graph = secretive(saver, ["secret-error"])
    where = {**config(), "metadata": {"user": "secret-metadata"}}
    with pytest.raises(ValueError, match="secret-error"):
        graph.invoke({"messages": ["secret-input"], "turns": 0}, where, durability=durability)
    graph.invoke(None, where, durability=durability)
    graph.invoke(Command(resume="secret-answer"), where, durability=durability)
    return graph


SECRETS = {
    f"secret-{part}" for part in ("value", "write", "error", "question", "answer", "metadata", "input")
}


def readable(hf: Holdfast) -> str:
    """Everything that the store shows of its runs: states, attachments, notes, events."""
    found: list[Any] = []
    for run in hf.iter_runs():
        log = hf.history(run.id)
        for version in log.iter_versions():
            attached = log.attachments(str(version.key))
            found.append((version.copy(), version.step, version.note, version.result, attached))
        found.append(list(log.events()))
    return repr(found)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_store_shows_nothing_that_a_serializer_encrypts(path: Path, durability: Any) -> None:
    with holdfast.open(path, durability="fast") as hf:
        graph = run_secretive(encrypted(hf), durability)
        assert graph.get_state(config()).values["messages"][:2] == ["secret-input", "secret-value"]
        shown = readable(hf)
        assert {secret for secret in SECRETS if secret in shown} == set()
        files = [file.read_bytes() for file in path.parent.glob(f"{path.name}*")]
        assert sum(map(len, files)) > 10_000
        for secret in (*SECRETS, "secret-"):
            assert not any(secret.encode() in data for data in files), secret
        # Names and ids stay readable.
        assert all(
            name in shown for name in ("messages", "turns", "'say'" if durability != "exit" else "turns")
        )
        assert hf.verify().ok


def test_store_shows_these_values_without_a_serializer(hf: Holdfast) -> None:
    run_secretive(HoldfastSaver(hf), "sync")
    shown = readable(hf)
    assert {secret for secret in SECRETS if secret in shown} == SECRETS


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_encrypted_thread_is_read_by_another_saver(path: Path, durability: Any) -> None:
    memory = InMemorySaver()
    expected = run_secretive(memory, durability)
    with encrypted(path) as saver:
        run_secretive(saver, durability)
    with encrypted(path) as saver:
        graph = secretive(saver, [])
        seen, wanted = (
            [(state.values, state.next, len(state.tasks)) for state in each.get_state_history(config())]
            for each in (graph, expected)
        )
        assert seen == wanted
        found, known = list(saver.list(config())), list(memory.list(config()))
        assert [_writes(item) for item in found] == [_writes(item) for item in known]
        assert {dict(item.metadata)["user"] for item in found} == {"secret-metadata"}


def _writes(item: Any) -> Any:
    """Pending writes, without the ids of tasks, and errors as texts."""
    return [
        (channel, repr(value) if channel == "__error__" else value)
        for _, channel, value in item.pending_writes
        if channel != "__interrupt__"
    ]


def test_encrypted_thread_needs_its_serializer(hf: Holdfast) -> None:
    known = encrypted(hf)
    end = put(known, put(known, config(), {"x": 1}), {"x": 2})
    other = HoldfastSaver(hf)
    count = len(hf.history("t").versions())
    for call in (
        lambda: other.get_tuple(config()),
        lambda: other.get_tuple(end),
        lambda: list(other.list(config())),
        lambda: list(other.list(None)),
        lambda: list(other.list(config(), filter={"step": 1})),
        lambda: put(other, end, {"x": 3}),
        lambda: other.put_writes(end, [("x", 3)], "task"),
        lambda: other.delete_for_runs(["none"]),
    ):
        with pytest.raises(InvalidCall, match=r"pass the same to HoldfastSaver\(serde="):
            call()
    assert len(hf.history("t").versions()) == count
    other.delete_thread("t")
    assert known.get_tuple(config()) is None


def test_encrypted_writes_need_their_serializer(hf: Holdfast) -> None:
    plain = HoldfastSaver(hf)
    start = put(plain, config(), {"x": 1})
    encrypted(hf).put_writes(start, [("x", "secret")], "task")
    with pytest.raises(InvalidCall, match="serde="):
        plain.get_tuple(start)
    found = encrypted(hf).get_tuple(start)
    assert found is not None
    assert found.pending_writes == [("task", "x", "secret")]


def test_plain_thread_is_continued_with_a_serializer(hf: Holdfast) -> None:
    plain = HoldfastSaver(hf)
    talk(plain).invoke({"messages": ["hi"], "turns": 0}, config())
    before = list(plain.list(config()))
    saver = encrypted(hf)
    assert list(saver.list(config())) == before
    graph = talk(saver)
    graph.invoke({"messages": ["secret"], "turns": 0}, config())
    assert graph.get_state(config()).values["messages"] == [
        "hi",
        "m0",
        "m1",
        "m2",
        "secret",
        "m0",
        "m1",
        "m2",
    ]
    assert list(saver.list(config()))[-len(before) :] == before
    newest = next(saver.list(config())).config["configurable"]["checkpoint_id"]
    assert "secret" not in repr(hf.history("t").head.copy())
    # The latest is sealed; those before are not.
    with pytest.raises(InvalidCall, match="serde="):
        plain.get_tuple(config(checkpoint_id=newest))
    assert [plain.get_tuple(item.config) for item in before[1:]] == before[1:]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_delta_channels_work_with_a_serializer(saver: HoldfastSaver, hf: Holdfast, durability: Any) -> None:
    seen = []
    for each in (saver, InMemorySaver()):
        graph = delta(each, "secret-")
        for turn in range(2):
            graph.invoke({"items": [f"secret-{turn}"], "turns": 3 * turn}, config(), durability=durability)
        seen.append([state.values for state in graph.get_state_history(config())])
    assert seen[0] == seen[1]
    assert "secret-" not in readable(hf)
    saver.copy_thread("t", "copy")
    saver.prune(["t"])
    for thread in ("t", "copy"):
        assert delta(saver).get_state(config(thread)).values == seen[1][0]


def test_serializer_that_is_set_on_an_open_saver_is_used(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    plain = put(saver, config(), {"x": "public"})
    saver.serde = EncryptedSerializer(Cipher())
    hidden = put(saver, plain, {"x": "secret-value"})
    saver.put_writes(hidden, [("x", "secret-write")], "task")
    assert "secret" not in readable(hf)
    for where, value in ((plain, "public"), (hidden, "secret-value")):
        found = saver.get_tuple(where)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": value}


@dataclass
class Ticket:
    number: int


def test_allowlist_of_a_graph_holds_for_its_own_saver_only(hf: Holdfast) -> None:
    for serde in (
        JsonPlusSerializer(allowed_msgpack_modules=None),
        EncryptedSerializer(Cipher(), JsonPlusSerializer(allowed_msgpack_modules=None)),
    ):
        saver = HoldfastSaver(hf, serde=serde)
        allowing = saver.with_allowlist([(__name__, "Ticket")])
        thread = type(serde).__name__
        where = put(allowing, config(thread), {"x": Ticket(1)})
        for reader, expected in ((allowing, Ticket(1)), (saver, {"number": 1}), (allowing, Ticket(1))):
            found = reader.get_tuple(where)
            assert found is not None
            assert found.checkpoint["channel_values"] == {"x": expected}
        put(allowing, where, {"x": Ticket(2)})
        saver.delete_thread(thread)
        assert allowing.get_tuple(config(thread)) is None
        put(allowing, config(thread), {"x": Ticket(3)})
        assert len(list(saver.list(config(thread)))) == 1


def test_list_filters_encrypted_metadata(saver: HoldfastSaver) -> None:
    where = config()
    for n in range(70):
        where = put(saver, where, {"n": n}, step=n, user={"id": f"u{n % 7}"})
    assert [item.metadata["step"] for item in saver.list(config(), filter={"step": 7})] == [7]
    found = list(saver.list(config(), filter={"user.id": "u3"}, limit=4))
    assert [item.checkpoint["channel_values"]["n"] for item in found] == [66, 59, 52, 45]
    assert ids(found) == sorted(ids(found), reverse=True)
    assert list(saver.list(config(), filter={"user": "u3"})) == []


def test_writers_with_a_serializer_are_compared_by_value(hf: Holdfast) -> None:
    """The same value is other bytes each time."""
    one, other = encrypted(hf, single_writer=True), encrypted(hf, single_writer=True)
    start = put(one, config(), {"x": [1]})
    for each in (one, other, one):
        each.put_writes(start, [("x", "same")], "task")
    found: Any = one.get_tuple(start)
    assert found.pending_writes == [("task", "x", "same")]
    with pytest.raises(StaleVersion):
        other.put_writes(start, [("x", "different")], "task")
    count = len(hf.history("t").versions())
    where = config(checkpoint_ns="")
    one.put(where, found.checkpoint, found.metadata, {})
    assert len(hf.history("t").versions()) == count, "the same once more is nothing new"


def test_channel_that_did_not_change_is_not_encrypted_again(saver: HoldfastSaver, hf: Holdfast) -> None:
    class Two(Talk):
        large: str

    graph = StateGraph(Two)
    graph.add_node("say", lambda state: {"turns": state["turns"] + 1})
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", lambda state: "say" if state["turns"] < 3 else "__end__")
    graph.compile(checkpointer=saver).invoke(
        {"messages": [], "turns": 0, "large": "x" * 5_000}, config(), durability="sync"
    )
    stored = {
        version.copy(("channel_values", "large")).data
        for version in hf.history("t").iter_versions()
        if version.step == "say"
    }
    assert len(stored) == 1
