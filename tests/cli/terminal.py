"""The program in a process of its own: on a real terminal, and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyte

COLUMNS, LINES = 120, 50
#: Marks the end of a terminal's output, written when the program has ended. Its last close is not that mark: Linux may
#: report it before the text that was written last (seen twice in 80,000 programs).
END_OF_OUTPUT = b"\x04"
PROGRAM = [sys.executable, "-m", "holdfast"]


class Done(NamedTuple):
    """The end of a call of the program."""

    code: int
    out: str
    err: str


#: Variables that would change the program under test; without compiled modules it would start slowly.
_LEFT_OUT = ("HOLDFAST", "NO_COLOR", "COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


def call(*arguments: str, cwd: Path, stdin: str = "", timeout: float = 60, **more: str) -> Done:
    """Call the program in a pipe."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        input=stdin,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Terminal:
    """The program on a terminal: its screen and its keyboard."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        columns: int = COLUMNS,
        program: list[str] | None = None,
        **more: str,
    ) -> None:
        self.screen = pyte.Screen(columns, LINES)
        self.raw = b""
        self._typed = ""
        self._stream = pyte.ByteStream(self.screen)
        self._ended = False
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        self._process = subprocess.Popen(
            [*(program or PROGRAM), *arguments],
            cwd=cwd,
            env=environment(**more),
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,  # noqa: PLW1509
        )

    @property
    def text(self) -> str:
        """The lines on the screen, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def until(self, text: str, timeout: float = 60) -> Terminal:
        """Wait until a text is on the screen."""
        end = time.monotonic() + timeout
        while text not in self.text:
            if time.monotonic() > end or not self._read(end):
                raise AssertionError(f"{text!r} did not appear; the screen shows:\n{self.text}")
        return self

    def type(self, text: str) -> Terminal:
        self._typed = text
        os.write(self._master, text.encode())
        return self

    def interrupt(self) -> Terminal:
        """Ctrl-C."""
        return self.type("\x03")

    def end(self, timeout: float = 60) -> int:
        """Wait for the end and return the exit code."""
        end = time.monotonic() + timeout
        again = time.monotonic() + 2
        while self._read(end):
            if self._typed == "\x03" and time.monotonic() > again:
                # Python may miss an interrupt that arrives as it starts to read: press it again, as people do.
                again = time.monotonic() + 2
                os.write(self._master, b"\x03")
            if time.monotonic() > end:
                os.killpg(self._process.pid, signal.SIGKILL)
                raise AssertionError(f"it did not end; the screen shows:\n{self.text}")
        os.close(self._slave)
        os.close(self._master)
        return self._process.wait(timeout=10)

    def _read(self, until: float) -> bool:
        """Read output; return False when the program has ended and all of its output is read."""
        if not self._ended and self._process.poll() is not None:
            self._ended = True
            os.write(self._slave, END_OF_OUTPUT)
        ready, _, _ = select.select([self._master], [], [], max(0.0, min(0.05, until - time.monotonic())))
        if not ready:
            return True
        data = os.read(self._master, 65536)
        complete = self._ended and data.endswith(END_OF_OUTPUT)
        if complete:
            data = data.removesuffix(END_OF_OUTPUT)
        self.raw += data
        self._stream.feed(data)
        return not complete


def seen(*arguments: str, cwd: Path, columns: int = COLUMNS, **more: Any) -> tuple[int, str]:
    """The program in a terminal, to its end: the exit code, and what is on the screen."""
    terminal = Terminal(*arguments, cwd=cwd, columns=columns, **more)
    code = terminal.end()
    return code, terminal.text
