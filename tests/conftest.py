"""For all tests: programs that they start can be interrupted, even where the tests themselves cannot; and a test that
fails is told of, whatever those before it left behind."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator

import pytest

# A shell that starts something in the background has it, and all below it, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Before 3.11.8 and 3.12.2, Python gives up parsing (here: the source of what failed) if what it collects meanwhile
    parses, too, as a forgotten task does when it tells its traceback. The whole run would end by that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
