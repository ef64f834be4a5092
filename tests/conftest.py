"""For all tests: programs that they start can be interrupted, even where the tests themselves cannot; a test that fails
is reported, whatever those before it left behind; and a test's definitions end with it."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.testing import isolated_definitions

# A shell that starts something in the background has it, and all below it, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast the machine is says nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

#: Tests that start programs, servers or a browser, or try something thousands of times.
_SLOW = (
    "cli", "crash", "fleet", "fuzz", "integrations", "loops", "property", "web", "test_demo.py", "test_docs.py",
    "test_examples.py", "test_hatch_build.py", "test_site.py", "test_store_url.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests by where they are; `make test-quick` leaves them out."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in _SLOW:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Before 3.11.8 and 3.12.2, Python gives up parsing (here: the source of what failed) if what it collects meanwhile
    parses, too, as a forgotten task does when it tells its traceback. The whole run would end by that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def _definitions() -> Iterator[None]:
    """Forget the steps and workflows that a test defines in its own functions."""
    with isolated_definitions():
        yield
