"""Clients that send half of a request, or read nothing: they are dropped in time, and do not block others."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from serve_process import Process
from web_server import DEADLINE, RUNS, Listener, Served, connect, request, serving

import holdfast
from holdfast import Holdfast
from holdfast.web.connection import Deadlines, HTTPConnection
from holdfast.web.operation import Role
from holdfast.web.page import PageFiles
from holdfast.web.security import MAX_HEADER_BYTES, SECURITY_HEADERS
from patience import until

#: None of them matters to a test, unless it sets it.
PATIENT = {"first_byte": 300.0, "headers": 300.0, "body": 300.0, "answer": 300.0}


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open(":memory:") as opened:
        opened.history("first").commit({})
        yield opened


@pytest.fixture
def asset(tmp_path: Path) -> PageFiles:
    """A page with a file of 50 kB."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "large.js").write_bytes(b"x" * 50_000)
    return PageFiles(tmp_path)


def get_asset(served: Served) -> bytes:
    return f"GET /assets/large.js HTTP/1.1\r\nhost: {served.url[7:]}\r\n\r\n".encode()


def stalled(served: Served) -> int:
    """Return how many connections have an answer of which no more can be written."""
    connections = cast(set[HTTPConnection], served.server.server_state.connections)
    return sum(each.flow.write_paused for each in list(connections))


def answer(made: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    try:
        while data := made.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


def read(made: socket.socket, size: int) -> None:
    """Read so many bytes."""
    while size > 0:
        data = made.recv(min(size, 1 << 16))
        assert data, "the other side has closed"
        size -= len(data)


def drip(made: socket.socket, piece: bytes) -> None:
    """Send a piece now and then until the other side closes."""
    made.settimeout(0.02)

    def is_closed() -> bool:
        try:
            made.sendall(piece)
            return not made.recv(1 << 16)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    until(is_closed, "the end of the connection")


@contextmanager
def deadlines(hf: Holdfast, **seconds: float) -> Iterator[Served]:
    with serving(hf, deadlines=Deadlines(**{**PATIENT, **seconds})) as served:
        yield served


def test_connection_without_a_first_byte_is_closed(hf: Holdfast) -> None:
    with deadlines(hf, first_byte=0.05) as served:
        assert answer(connect(served.url)) == b""
        # Also after an answer.
        again = connect(served.url, request(served))
        assert answer(again).count(b"HTTP/1.1 200") == 1


def test_half_sent_headers_are_refused(hf: Holdfast) -> None:
    with deadlines(hf, headers=0.05) as served:
        for sent in (b"G", b"GET / HTTP/1.1\r\n", request(served)[:-2], request(served) + b"GET / HTTP/1.1"):
            found = answer(connect(served.url, sent))
            assert b"HTTP/1.1 408 " in found
            assert b"connection: close" in found.lower()


def test_slow_headers_do_not_extend_the_deadline(hf: Holdfast) -> None:
    with deadlines(hf, headers=0.3) as served:
        made = connect(served.url, b"GET / HTTP/1.1\r\n")
        drip(made, b"x: y\r\n")


def test_half_sent_body_is_dropped(hf: Holdfast) -> None:
    with deadlines(hf, body=0.05) as served:
        length = ("content-type: application/json", "content-length: 100")
        assert answer(connect(served.url, request(served, "POST", *length) + b"{")) == b""
        assert (
            answer(connect(served.url, request(served, "POST", length[0], "transfer-encoding: chunked")))
            == b""
        )


def test_body_that_keeps_arriving_extends_its_deadline(hf: Holdfast) -> None:
    with deadlines(hf, body=0.05, rate=1) as served:
        body = b'{"role": "viewer"' + b" " * 500
        headers = ("content-type: application/json", f"content-length: {len(body) + 1}", "connection: close")
        made = connect(served.url, request(served, "POST", *headers) + body)
        # Its deadline is 500 seconds away; that of a connection that sends nothing more has passed.
        assert answer(connect(served.url, request(served, "POST", *headers))) == b""
        made.sendall(b"}")
        assert b"HTTP/1.1 200" in answer(made)


def test_body_after_its_response_is_not_awaited(hf: Holdfast) -> None:
    """A caller that is refused before its body came cannot keep the connection by sending on."""
    with deadlines(hf, first_byte=0.2) as served:
        sent = request(served, "POST", "content-length: 100000000").replace(b"Bearer", b"Wrong")
        made = connect(served.url, sent)
        drip(made, b"x")


def test_client_that_reads_nothing_is_dropped(hf: Holdfast) -> None:
    hf.history("large").commit({"text": "x" * 5_000_000})
    with deadlines(hf, answer=0.05) as served:
        sent = request(served).replace(RUNS.encode(), RUNS.encode() + b"/large/versions/1/snapshot")
        made = connect(served.url, sent.replace(b"host", b"connection: close\r\nhost"), room=4096)
        until(lambda: served.server.server_state.total_requests == 1, "the answer")
        until(lambda: not served.server.server_state.connections, "the end of the connection")
        found = answer(made)
        assert found.startswith(b"HTTP/1.1 200 ")
        assert len(found) < 5_000_000


def test_client_that_reads_slowly_gets_the_whole_response(hf: Holdfast) -> None:
    """Reading extends the deadline; that of a client that reads nothing expires meanwhile."""
    hf.history("large").commit({"text": "x" * 20_000_000})
    with deadlines(hf, answer=2, rate=200_000) as served:
        sent = request(served).replace(RUNS.encode(), RUNS.encode() + b"/large/versions/1/snapshot")
        made = connect(served.url, sent)
        read(made, 12_000_000)
        other = connect(served.url, sent, room=4096)
        until(lambda: served.server.server_state.total_requests == 2, "the other answer")
        port = other.getsockname()[1]

        def has_ended() -> bool:
            # By its port: uvicorn may close the first connection, too, a few seconds after its response.
            left: set[Any] = {*served.server.server_state.connections}
            return all(each.client is None or each.client[1] != port for each in left)

        until(has_ended, "the end of the other connection")
        assert len(answer(other)) < 20_000_000
        read(made, 8_000_000)
        made.close()


def test_client_that_reads_a_little_now_and_then_is_dropped(hf: Holdfast, asset: PageFiles) -> None:
    """Though it never leaves an answer unread for long."""
    with serving(hf, page=asset, deadlines=Deadlines(**{**PATIENT, "answer": 1.0}, rate=1e12)) as served:
        made = connect(served.url, get_asset(served) * 2000)
        assert len(answer(made)) < 100_000_000


def test_unread_responses_do_not_block_clients(hf: Holdfast, asset: PageFiles) -> None:
    """Of whole requests, too, a new connection takes the place of the one whose answer is unread for longest."""
    with serving(hf, page=asset, streams=10, connections=10, deadlines=Deadlines(**PATIENT)) as served:
        lazy = []
        for _ in range(20):
            lazy.append(connect(served.url, get_asset(served) * 100, room=4096))
            until(lambda: stalled(served) == len(lazy), "a full buffer")
        for _ in range(3):
            with served.client() as client:
                assert client.get(RUNS).status_code == 200
        assert stalled(served) == 19
        # Rather than that of one whose body may still arrive.
        halves = []
        for _ in range(3):
            sent = request(served, "POST", "content-length: 100", "expect: 100-continue")
            halves.append(connect(served.url, sent))
            assert halves[-1].recv(1000).startswith(b"HTTP/1.1 100 ")
        until(lambda: stalled(served) == 17, "the end of two connections")
        assert len(served.server.server_state.connections) == 20
        for each in lazy + halves:
            each.close()


def test_idle_connections_do_not_block_clients(hf: Holdfast) -> None:
    """With all places taken by connections without a request, a new one takes the place of the oldest."""
    with serving(hf, streams=10, connections=10, deadlines=Deadlines(**PATIENT)) as served:
        idle = [connect(served.url, sent) for sent in (b"", b"GET / HTTP/1.1\r\nx: y") for _ in range(30)]
        for _ in range(3):
            assert served.client().get(RUNS).status_code == 200
        assert len(served.server.server_state.connections) <= 21
        assert answer(idle[0]) == b""
        for each in idle:
            each.close()


def test_half_sent_bodies_do_not_block_clients(hf: Holdfast) -> None:
    with serving(hf, streams=10, connections=10, deadlines=Deadlines(**PATIENT)) as served:
        sent = request(served, "POST", "content-type: application/json", "content-length: 100")
        halves = [connect(served.url, sent) for _ in range(40)]
        assert served.client().get(RUNS).status_code == 200
        for each in halves:
            each.close()


def test_full_server_refuses_with_all_headers(hf: Holdfast) -> None:
    """Only whole requests, here streams, take places for long."""
    with serving(hf, streams=4, connections=0) as served:
        for role in (Role.OPERATOR, Role.OPERATOR, Role.ADMIN, Role.ADMIN):
            listener = Listener(served.client(role))
            listener.until(listener.is_ready)
        found = served.client().get(RUNS)
        assert (found.status_code, found.json()["code"]) == (503, "too_many_connections")
        assert found.headers["connection"] == "close"
        assert "retry-after" in found.headers
        assert {name: found.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_malformed_http_is_refused_with_all_headers(hf: Holdfast) -> None:
    with serving(hf) as served:
        found = answer(connect(served.url, b"\x16\x03\x01 hello\r\n\r\n")).decode()
        assert found.startswith("HTTP/1.1 400 ")
        for name, value in SECURITY_HEADERS.items():
            assert f"{name}: {value}\r\n" in found


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("line", ["cookie: a={}", "x: y\r\nz: {}"])
def test_headers_that_are_too_large_are_refused(hf: Holdfast, line: str, is_whole: bool) -> None:
    """Whether they arrive in one piece or never end. No more is sent than it takes: what the server does not read could
    cost the client the answer."""
    with serving(hf) as served:
        start = request(served, "GET", line.format("x" * 60_000))
        assert answer(connect(served.url, start.replace(b"host", b"connection: close\r\nhost"))).startswith(
            b"HTTP/1.1 200 "
        )
        sent = request(served, "GET", line.format("x" * (MAX_HEADER_BYTES + 100 - len(start) + 60_000)))
        made = connect(served.url, sent if is_whole else b"")
        for at in range(0, 0 if is_whole else len(sent) - 4, 2000):
            made.sendall(sent[at : min(at + 2000, len(sent) - 4)])
        found = answer(made)
        assert found.startswith(b"HTTP/1.1 431 ")
        assert b"x-frame-options: DENY" in found


def test_thousand_idle_sockets_do_not_block_clients(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "holdfast.db", durability="memory") as hf:
        hf.history("first").commit({})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    idle = []
    try:
        with Process(tmp_path) as process:
            idle = [connect(process.url, b"GET / HTTP/1.1\r\n" if n % 2 else b"") for n in range(1200)]
            with httpx.Client(base_url=process.url, headers=process.headers, timeout=DEADLINE) as client:
                for _ in range(5):
                    assert client.get(RUNS).status_code == 200
            assert process.end() == 0
    finally:
        for each in idle:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
