"""A world, and workers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fleet_flows as flows

from process_suspension import suspend_process

PATIENCE = 80.0


def wait_until(condition: Callable[[], Any], what: str = "", patience: float = PATIENCE) -> Any:
    """Wait for a condition; gives what made it true."""
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, f"{what or condition} did not come in {patience:g} s"
        time.sleep(0.01)
    return found


class World:
    """What steps have done, and what they wait for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self) -> list[tuple[str, int, float]]:
        path = self.folder / "world.txt"
        rows = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
        return [(row[0], int(row[1]), float(row[2])) for row in rows]

    def told(self, *beginnings: str) -> list[str]:
        """What was done, in order, of those that begin so."""
        return [text for text, _, _ in self.lines() if text.startswith(beginnings or ("",))]

    def until(self, text: str, times: int = 1) -> World:
        wait_until(lambda: self.told().count(text) >= times, f"{text!r} {times} times")
        return self

    def open(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()


class Member:
    """A worker in a process of its own."""

    def __init__(self, world: World, where: str, options: dict[str, Any]) -> None:
        self.where = where
        given = json.dumps({"where": where, **options})
        environment = {**os.environ, "WORLD": str(world.folder)}
        program = [sys.executable, str(Path(flows.__file__)), given]
        with (world.folder / "stderr.txt").open("a") as file:
            self.process = subprocess.Popen(program, env=environment, stderr=file)

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop it until a SIGCONT, outside of transactions."""
        suspend_process(self.pid, self.where)

    def end(self, timeout: float = PATIENCE) -> int:
        return self.process.wait(timeout)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.end()


class Crew:
    """Workers of one store."""

    def __init__(self, world: World, where: str) -> None:
        self.world = world
        self.where = where
        self.members: list[Member] = []

    def hire(self, count: int = 1, *, wait: bool = True, **options: Any) -> list[Member]:
        hired = [Member(self.world, self.where, options) for _ in range(count)]
        self.members += hired
        if wait:
            pids = {member.pid for member in hired}
            begun = lambda: pids <= {pid for text, pid, _ in self.world.lines() if text == "worker"}  # noqa: E731
            wait_until(begun, "the workers")
        return hired

    def close(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
