"""For all tests: programs that they start can be interrupted, even where the tests themselves cannot."""

from __future__ import annotations

import signal

# A shell that starts something in the background has it, and all below it, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
