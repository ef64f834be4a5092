"""`holdfast serve` as a process of its own, and raw listeners that may stop reading."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from terminal import PROGRAM, environment

DEADLINE = 60.0


class Process:
    """The real program, serving."""

    def __init__(self, folder: Path, *arguments: str, **more: str) -> None:
        self.log = folder / "serve.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [*PROGRAM, "serve", "--port", "0", "--json", *arguments],
                cwd=folder,
                env=environment(**more),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.log.read_text()
        self.reported: dict[str, Any] = json.loads(line)
        self.url: str = self.reported["url"]
        self.token: str = self.reported.get("token", "")

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    @property
    def memory(self) -> int:
        """Bytes that it holds."""
        return int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def end(self, sent: int = signal.SIGTERM) -> int:
        """End it, and give its exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(sent)
        try:
            return self.popen.wait(DEADLINE)
        finally:
            self.popen.kill()
            if self.popen.stdout is not None:
                self.popen.stdout.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)


class Ears:
    """Many listeners, each a socket; one thread reads what comes on those that are not paused. `room` is how much
    may wait for the first of them in this machine's hands."""

    def __init__(self, process: Process, count: int, query: str = "", room: int | None = None) -> None:
        host, port = process.url.removeprefix("http://").split(":")
        request = (
            f"GET /api/v1/events/stream{query} HTTP/1.1\r\nhost: {host}:{port}\r\n"
            f"authorization: Bearer {process.token}\r\n\r\n"
        ).encode()
        self._selector = selectors.DefaultSelector()
        self._came = threading.Condition()
        self._ends = False
        self.cursors: list[list[int]] = [[] for _ in range(count)]
        self.ready = [False] * count
        self._rest = [b""] * count
        self.sockets = []
        for number in range(count):
            made = socket.socket()
            if room is not None and number == 0:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            made.connect((host, int(port)))
            made.sendall(request)
            self.sockets.append(made)
            self._selector.register(made, selectors.EVENT_READ, number)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def until(self, condition: Any) -> None:
        with self._came:
            assert self._came.wait_for(condition, DEADLINE), [len(found) for found in self.cursors]

    def stall(self, number: int) -> None:
        """Let one read nothing any more."""
        with self._came:
            self._selector.unregister(self.sockets[number])

    def read_on(self, number: int) -> None:
        with self._came:
            self._selector.register(self.sockets[number], selectors.EVENT_READ, number)

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        for each in self.sockets:
            each.close()

    def __enter__(self) -> Ears:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        while not self._ends:
            with self._came:
                for key, _ in self._selector.select(0):
                    self._take(key.data)
                self._came.notify_all()
            # A thread that stops one of them gets a turn.
            time.sleep(0.002)

    def _take(self, number: int) -> None:
        data = self.sockets[number].recv(1 << 18)
        if not data:
            self._selector.unregister(self.sockets[number])
            return
        *lines, self._rest[number] = (self._rest[number] + data).split(b"\n")
        for line in lines:
            if line.startswith(b'data: {"cursor": '):
                cursor = int(line[17:].partition(b",")[0].rstrip(b"}\r"))
                if b'"kind"' in line:
                    self.cursors[number].append(cursor)
                else:
                    self.ready[number] = True
