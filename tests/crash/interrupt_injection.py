"""Interrupt the main thread at a chosen bytecode of Holdfast's code, with a real signal whose handler raises.

CPython checks for signals only at some bytecodes: at the start of a function, after a call, at the end of a loop body.
A trace function counts those, makes the signal pending just before the chosen one, and ends tracing, so that the
interpreter itself handles the signal.
"""

from __future__ import annotations

import _thread
import dis
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import holdfast

_SIGNAL = signal.SIGUSR1
_HOME = str(Path(holdfast.__file__).parent)
#: Opcodes after which CPython checks for signals.
_LOOKS = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")


class Interrupt(KeyboardInterrupt):
    """The exception of a Ctrl-C."""


class TimeIsUp(Exception):
    """The exception of a timeout by a signal."""


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs Holdfast's code."""
    return frame.f_code.co_filename.startswith(_HOME)


class _Trip:
    """Makes the signal pending when it is dropped, at the end of a trace function. Runs no bytecode: the handler would
    run within the trace function."""

    __del__ = partial(_thread.interrupt_main, _SIGNAL)


class InterruptPoints:
    """Counts the bytecodes at which a signal can be handled, and interrupts at the given ones: the second is counted
    from the first, in its cleanup."""

    def __init__(self, error: type[BaseException], *at: int) -> None:
        self._error = error
        self._at = list(at)
        #: The files of all counted bytecodes, in order.
        self.passed: list[str] = []
        self.raised = 0
        self._count = 0
        self._looks: dict[CodeType, bytes] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count, and interrupt, within the block."""
        before = signal.signal(_SIGNAL, self._handle)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            signal.signal(_SIGNAL, before)

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        self.raised += 1
        if self._at:
            self._count = 0
            while frame is not None:
                if is_ours(frame):
                    frame.f_trace_opcodes = True
                    frame.f_trace = self._trace
                frame = frame.f_back
            sys.settrace(self._trace)
        raise self._error

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if not is_ours(frame):
            return None
        if event == "call":
            frame.f_trace_opcodes = True
        elif event != "opcode" or not self._is_look(code, frame.f_lasti):
            return self._trace
        self._count += 1
        self.passed.append(code.co_filename[len(_HOME) + 1 :])
        if self._at and self._count == self._at[0]:
            del self._at[0]
            sys.settrace(None)
            trip = _Trip()  # noqa: F841 - dropped when this returns
            return None
        return self._trace

    def _is_look(self, code: CodeType, at: int) -> bool:
        looks = self._looks.get(code)
        if looks is None:
            found = bytearray(len(code.co_code))
            for instruction in dis.get_instructions(code):
                found[instruction.offset] = instruction.opname.startswith(_LOOKS)
            looks = self._looks[code] = bytes(found)
        return bool(looks[at])
