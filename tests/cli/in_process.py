"""The program within the test's process: as a new process would run it, in a pipe or on a terminal, but at once.

What only a process shows (signals, the locale, shutdown) is tested with `terminal`.
"""

from __future__ import annotations

import fcntl
import importlib
import io
import os
import pty
import struct
import sys
import termios
import threading
import traceback
from collections import ChainMap
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyte
from terminal import COLUMNS, END_OF_OUTPUT, LINES, Done, environment

from holdfast.cli import app
from holdfast.workflow import definition


def call(*arguments: str, cwd: Path, stdin: str = "", **more: str) -> Done:
    """Return how a call of the program in a pipe ends."""
    streams = [io.TextIOWrapper(io.BytesIO(text), encoding="utf-8") for text in (stdin.encode(), b"", b"")]
    code = _run(arguments, cwd, streams, more)
    texts = []
    for stream in streams[1:]:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return Done(code, *texts)


class Screen:
    """A terminal on which a program that asks nothing ran to its end."""

    def __init__(self, *arguments: str, cwd: Path, columns: int = COLUMNS, **more: str) -> None:
        self.raw = b""
        self._display = pyte.Screen(columns, LINES)
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        reader = threading.Thread(target=self._read, args=[master])
        reader.start()
        try:
            with ExitStack() as opened:
                # Rich and Click ask the process's own terminal for its size, which this is not.
                size = {"COLUMNS": str(columns), "LINES": str(LINES)}
                streams = [
                    opened.enter_context(open(os.dup(slave), mode, encoding="utf-8"))
                    for mode in ("r", "w", "w")
                ]
                self.code = _run(arguments, cwd, streams, {**size, **more})
        finally:
            os.write(slave, END_OF_OUTPUT)
            reader.join()
            os.close(slave)
            os.close(master)

    @property
    def text(self) -> str:
        """The lines on the screen, without the blanks at their ends."""
        return "\n".join(line.rstrip() for line in self._display.display).rstrip()

    def _read(self, master: int) -> None:
        stream = pyte.ByteStream(self._display)
        while not self.raw.endswith(END_OF_OUTPUT):
            data = os.read(master, 65536)
            self.raw += data
            stream.feed(data.removesuffix(END_OF_OUTPUT))
        self.raw = self.raw.removesuffix(END_OF_OUTPUT)


def _run(arguments: tuple[str, ...], cwd: Path, streams: list[Any], more: dict[str, str]) -> int:
    with ExitStack() as held:
        held.enter_context(chdir(cwd))
        held.enter_context(mock.patch.dict(os.environ, environment(**more), clear=True))
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            held.enter_context(mock.patch.object(sys, name, stream))
        held.enter_context(_no_code_loaded(cwd))
        try:
            return app.run(list(arguments))
        except KeyboardInterrupt:
            return 130
        except Exception:
            traceback.print_exc()
            return 1


@contextmanager
def _no_code_loaded(cwd: Path) -> Iterator[None]:
    """Hide the definitions of this process, and the modules that the program would find in its folder."""
    names = {path.stem for path in cwd.glob("*.py")}
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    before = set(sys.modules) - set(hidden)
    for name in hidden:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        with (
            mock.patch.object(definition, "_workflows", ChainMap()),
            mock.patch.object(definition, "_steps", ChainMap()),
            mock.patch.object(sys, "path", list(sys.path)),
            # Two texts of one length, written within a second, would be taken for the same.
            mock.patch.object(sys, "dont_write_bytecode", True),
        ):
            yield
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).is_relative_to(cwd):
                del sys.modules[name]
        sys.modules.update(hidden)
