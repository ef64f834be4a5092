"""The command line: `holdfast`.

A command parses, calls the engine and prints; it has no logic of its own.

Invariant: a mistake of the user's is one line on stderr and an exit code that says of which kind, never a traceback.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from _thread import interrupt_main


def main() -> None:
    """The program, as it is installed."""
    try:
        sys.unraisablehook = _unheard
        from holdfast.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    # What is left to do is Python's own; who interrupts that wants to be gone.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code or 130))
    # Nor is anything left that is worth looking for among all objects, which would take a sixth of the whole time.
    gc.freeze()
    sys.exit(code)


def _unheard(error: sys.UnraisableHookArgs) -> None:
    """An interrupt that came within a callback of Python's own, from which nothing goes up, comes once more."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        # Not at once: it must not come while this is still at work, where it would be lost again.
        threading.Timer(0.1, interrupt_main).start()
    else:
        sys.__unraisablehook__(error)
