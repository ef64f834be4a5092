"""The command line: `holdfast`.

A command parses, calls the engine and prints; it has no logic of its own.

Invariant: a user error is one line on stderr and an exit code that names its kind, never a traceback.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from _thread import interrupt_main


def main() -> None:
    """Run the installed program."""
    try:
        sys.unraisablehook = _repeat_interrupt
        from holdfast.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    # Only Python's own shutdown is left: an interrupt ends it at once.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code or 130))
    # The final garbage collection would take a sixth of the total time and find nothing.
    gc.freeze()
    sys.exit(code)


def _repeat_interrupt(error: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that was raised, and lost, in a callback of Python's own."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        # Delayed: raised during this hook it would be lost again.
        threading.Timer(0.1, interrupt_main).start()
    else:
        sys.__unraisablehook__(error)
