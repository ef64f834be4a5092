"""Live events: every entry of the journal once and in order, to every client, however slow or often disconnected."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from fnmatch import translate
from pathlib import Path

import httpx
import pytest
from serve_process import Ears, Process
from web_server import DEADLINE, TOKENS, Listener, Served, serving

import holdfast
from holdfast import Holdfast
from holdfast.web import live as live_module
from holdfast.web.auth import Token
from holdfast.web.operation import Role

STREAM = "/api/v1/events/stream"
#: Commits to a store that another process serves.
WRITER = """
import sys, holdfast
hf = holdfast.open(sys.argv[1], durability="memory")
log = hf.history(sys.argv[2])
for number in range(int(sys.argv[3])):
    log.commit({"n": number}, step="count")
    print(number, flush=True)
"""


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "holdfast.db", durability="memory") as found:
        found.history("first").commit({}, step="begin")
        yield found


@pytest.fixture
def live(hf: Holdfast) -> Iterator[Served]:
    with serving(hf, heartbeat=0.05) as found:
        yield found


def count(hf: Holdfast, run: str, number: int) -> None:
    for _ in range(number):
        hf.history(run).commit({}, step="count")


def cursors(listener: Listener) -> list[int]:
    return [message["cursor"] for message in listener.messages]


def test_stream_sends_events_as_they_happen(hf: Holdfast, live: Served) -> None:
    listener = Listener(live.client())
    listener.until(lambda: listener.named)
    assert listener.named == [("ready", {"cursor": 1})]
    assert listener.ids == [1], "a client that is disconnected before the first event continues from here"
    hf.history("second").commit({"a": 1}, step="plan", note="x")
    listener.until(lambda: listener.messages)
    event = hf.events(after=1)[0]
    assert listener.messages == live.get("/events", after=1)["events"]
    assert (listener.messages[0]["cursor"], listener.ids[-1]) == (event.cursor, event.cursor)


def test_stream_starts_at_a_cursor(hf: Holdfast, live: Served) -> None:
    count(hf, "one", 300)
    whole = Listener(live.client(), params={"after": 0})
    part = Listener(live.client(), params={"after": 0}, headers={"last-event-id": "250"})
    whole.until(lambda: len(whole.messages) >= 301)
    assert cursors(whole) == list(range(1, 302))
    part.until(lambda: len(part.messages) >= 51)
    assert cursors(part) == list(range(251, 302))


def test_stream_continues_after_a_reconnect(hf: Holdfast, live: Served) -> None:
    got: list[int] = []
    last = {"last-event-id": "1"}
    writer = threading.Thread(target=count, args=[hf, "one", 400])
    writer.start()
    while len(got) < 400:
        # A connection that is lost after a few entries, again and again.
        with live.client().stream("GET", STREAM, headers=last) as response:
            for line in response.iter_lines():
                if line.startswith('data: {"cursor"') and '"kind"' in line:
                    got.append(int(line[17:].partition(",")[0]))
                    last["last-event-id"] = str(got[-1])
                    if len(got) % 37 == 0 or len(got) == 400:
                        break
    writer.join()
    assert got == list(range(2, 402))


def test_stream_is_filtered_by_run_and_kind(hf: Holdfast, live: Served) -> None:
    one = Listener(live.client(), params={"run": "one", "after": 0})
    one.until(one.over.is_set)
    assert one.status == 404, "a run that is not there is reported at once"
    count(hf, "one", 1)
    listeners = [
        Listener(live.client(), params={"run": "one", "after": 0}),
        Listener(live.client(), params={"kind": ["version.*", "none"], "after": 0}),
        Listener(live.client(), params={"kind": "run.*", "after": 0}),
    ]
    for listener in listeners:
        listener.until(listener.is_quiet)
    count(hf, "two", 2)
    count(hf, "one", 1)
    listeners[1].until(lambda: len(listeners[1].messages) == 5)
    listeners[0].until(lambda: len(listeners[0].messages) == 2)
    assert [message["run"] for message in listeners[0].messages] == ["one", "one"]
    assert listeners[2].messages == []


def test_patterns_are_compiled_outside_the_event_loop(live: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def translated(pattern: str) -> str:
        threads.append(threading.current_thread().name)
        return translate(pattern)

    monkeypatch.setattr(live_module, "translate", translated)
    listener = Listener(live.client(), params={"kind": ["version.*", "run.*"], "after": 0})
    listener.until(lambda: listener.messages)
    assert len(threads) == 2
    assert "server" not in threads


@pytest.mark.parametrize("path", [STREAM, "/api/v1/events"])
def test_patterns_are_limited_in_length(live: Served, path: str) -> None:
    found = live.client().get(path, params={"kind": ["x" * 900, "[a-z]*" * 20]})
    assert (found.status_code, found.json()["code"]) == (422, "invalid")
    assert "1,000 characters" in found.json()["detail"]
    kinds = ["v?rsion.*", "[!v]*", "no", "x*" * 200]
    assert live.client().get("/api/v1/events", params={"kind": kinds}).json()["events"]
    assert not live.client().get("/api/v1/events", params={"kind": ["VERSION.*", "version"]}).json()["events"]


def test_stream_sends_keep_alive_comments(live: Served) -> None:
    listener = Listener(live.client())
    listener.until(lambda: len(listener.comments) >= 3)
    assert set(listener.comments) == {": keep-alive"}


def test_stream_sends_unstored_events_to_connected_clients(hf: Holdfast, live: Served) -> None:
    @holdfast.step(name="web_slow")
    def slow() -> None:
        holdfast.progress(0.5, "half")

    @holdfast.workflow(name="web_passing")
    def flow() -> None:
        slow()

    listener = Listener(live.client())
    listener.until(lambda: listener.named)
    hf.run(flow, run_id="flow-1")
    listener.until(lambda: any(each["kind"] == "run.completed" for each in listener.messages))
    passing = [each["kind"] for each in listener.messages if each["cursor"] == 0]
    assert "step.started" in passing
    kept = cursors(listener)
    assert [each for each in kept if each] == sorted({each for each in kept if each})


def test_stream_resets_a_cursor_of_another_store(hf: Holdfast, live: Served) -> None:
    listener = Listener(live.client(), headers={"last-event-id": "999999"})
    listener.until(lambda: len(listener.named) == 2)
    assert listener.named == [("reset", {"cursor": 1}), ("ready", {"cursor": 1})]
    count(hf, "one", 1)
    listener.until(lambda: listener.messages)
    assert cursors(listener) == [2]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30, "１"])
def test_stream_refuses_an_invalid_cursor(live: Served, last: str) -> None:
    found = live.client().get(STREAM, headers={b"last-event-id": last.encode()})
    assert found.status_code == 422


def test_stream_ends_with_its_session(live: Served) -> None:
    browser = live.browser()
    listener = Listener(browser)
    listener.until(lambda: listener.named)
    other = live.client(
        None, cookie=f"{next(iter(browser.cookies.jar)).name}={next(iter(browser.cookies.jar)).value}"
    )
    assert other.delete("/api/v1/session", headers={"sec-fetch-site": "same-origin"}).status_code == 204
    assert listener.over.wait(DEADLINE)


def test_stream_answers_head_requests(live: Served) -> None:
    found = live.client().head(STREAM)
    assert (found.status_code, found.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


def test_streams_are_limited(hf: Holdfast) -> None:
    with serving(hf, streams=2, heartbeat=0.02) as served:
        opened = [Listener(served.client(role)) for role in (Role.ADMIN, Role.OPERATOR)]
        for listener in opened:
            listener.until(listener.is_ready)
        found = served.client().get(STREAM)
        assert (found.status_code, found.json()["code"]) == (503, "too_many_streams")
        assert "retry-after" in found.headers
        opened[0].close()
        assert opened[0].over.wait(DEADLINE)
        # The server hears of it when it next sends.
        while not (again := _once(served)).named:
            assert again.status == 503


def test_one_viewer_cannot_take_all_streams(hf: Holdfast) -> None:
    with serving(hf, streams=20, tokens=[Token(TOKENS[role], role) for role in TOKENS]) as served:
        viewer = served.client(Role.VIEWER)
        made = viewer.post("/api/v1/codes", json={}).json()["url"]
        session = served.client(None, **{"sec-fetch-site": "same-origin"})
        assert session.get(made).status_code == 303
        opened = [Listener(client) for client in [viewer, session] * 5]
        for listener in opened:
            listener.until(listener.is_ready)
        for client in (viewer, session):
            found = client.get(STREAM)
            assert (found.status_code, found.json()["code"]) == (503, "too_many_streams")
            assert "'viewer'" in found.json()["detail"]
        other = Listener(served.client(Role.OPERATOR))
        other.until(other.is_ready)


def test_viewers_leave_streams_to_higher_roles(hf: Holdfast) -> None:
    tokens = [Token(TOKENS[Role.ADMIN], Role.ADMIN)]
    viewers = [f"viewer-{number}-0123456789-0123456789" for number in range(3)]
    tokens += [Token(secret, Role.VIEWER) for secret in viewers]
    with serving(hf, streams=10, tokens=tokens) as served:
        clients = [served.client(None, authorization=f"Bearer {secret}") for secret in viewers]
        opened = [Listener(client) for client in clients for _ in range(3)]
        for listener in opened:
            listener.until(listener.is_ready)
        assert clients[0].get(STREAM).status_code == 503
        last = Listener(served.client())
        last.until(last.is_ready)


def _once(served: Served) -> Listener:
    """Return a client that listens, or is refused."""
    listener = Listener(served.client())
    listener.until(lambda: listener.named or listener.over.is_set())
    return listener


def test_stream_serves_two_hundred_clients_one_of_them_blocked(tmp_path: Path) -> None:
    """No client misses an event, the blocked one delays no other, and the server grows by a few buffers only."""
    with holdfast.open(tmp_path / "holdfast.db", durability="memory") as hf:
        hf.history("first").commit({})
        with Process(tmp_path) as process, Ears(process, 200, room=4096) as ears:
            ears.until(lambda: all(ears.ready))
            ears.stall(0)
            before = process.memory
            for _ in range(1000):
                hf.history("one").commit({}, step="x" * 400)
            ears.until(lambda: all(len(found) == 1000 for found in ears.cursors[1:]))
            assert all(found == list(range(2, 1002)) for found in ears.cursors[1:])
            assert len(ears.cursors[0]) < 1000
            grown = process.memory - before
            assert grown < 48 << 20, f"{grown:,}"
            ears.read_on(0)
            ears.until(lambda: len(ears.cursors[0]) == 1000)
            assert ears.cursors[0] == list(range(2, 1002))


def test_stream_to_a_blocked_client_uses_no_memory(tmp_path: Path) -> None:
    """A hundred and seventy megabytes go by while one reads nothing; then it reads on, and has missed nothing."""
    with holdfast.open(tmp_path / "holdfast.db", durability="memory") as hf:
        log = hf.history("first")
        log.commit({})
        with Process(tmp_path) as process, Ears(process, 2) as ears:
            ears.until(lambda: all(ears.ready))
            ears.stall(0)
            before = process.memory
            for _ in range(2800):
                log.add_event("app.said", {"text": "x" * 60_000})
            ears.until(lambda: len(ears.cursors[1]) == 2800)
            grown = process.memory - before
            # One page of the journal, as it is read, is the most that is held at once.
            assert grown < 64 << 20, f"{grown:,}"
            ears.read_on(0)
            ears.until(lambda: len(ears.cursors[0]) == 2800)
            assert ears.cursors[0] == ears.cursors[1] == list(range(2, 2802))


def test_stream_survives_killed_writers_and_lost_clients(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    with holdfast.open(path, durability="memory") as hf:
        hf.history("first").commit({})
    with Process(tmp_path) as process, Ears(process, 20) as ears:
        ears.until(lambda: all(ears.ready))
        for turn in range(3):
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), f"run-{turn}", "100000"], stdout=subprocess.PIPE
            )
            assert writer.stdout is not None
            for _ in range(50):
                writer.stdout.readline()
            # In the middle of what they are being reported, without a word.
            gone = ears.sockets[turn]
            ears.stall(turn)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            gone.close()
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
        with holdfast.open(path) as hf:
            written = [event.cursor for event in hf.events(after=1, limit=1_000_000)]
        ears.until(lambda: all(len(found) == len(written) for found in ears.cursors[3:]))
        assert all(found == written for found in ears.cursors[3:])
        assert httpx.get(f"{process.url}/api/v1/session", headers=process.headers).status_code == 200
        assert process.log.read_text() == ""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_server_with_open_streams_stops_at_once(tmp_path: Path, sent: int) -> None:
    with holdfast.open(tmp_path / "holdfast.db", durability="memory") as hf:
        hf.history("first").commit({})
    with Process(tmp_path) as process, Ears(process, 20, room=4096) as ears:
        ears.until(lambda: all(ears.ready))
        ears.stall(0)
        os.kill(process.popen.pid, sent)
        # Without an end of its own a stream would hold it until the grace is over, and then be cut off.
        assert process.popen.wait(4) == 0
        assert process.log.read_text() == ""
