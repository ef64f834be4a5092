"""Settings for all tests.

Started programs can be interrupted, a failing or hanging test is reported, and the definitions of a test end with it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.testing import isolated_definitions

# A shell that starts something in the background has it, and all below it, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without cached bytecode, each test process compiles all tests, and each program that a test starts all of Holdfast.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How fast the machine is says nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_HERE = Path(__file__).parent
#: Files and folders of tests that start programs, servers or a browser, or try something thousands of times. In other
#: files, tests that take a third of a second of CPU or more are marked one by one.
_SLOW = (
    "cli", "compat/loop_engine", "crash", "fleet", "fuzz", "integrations", "property", "web", "test_demo.py",
    "test_docs.py", "test_examples.py", "test_hatch_build.py", "test_packaging.py", "test_site.py", "test_store_url.py",
)  # fmt: skip
#: Files in those folders that are quick.
_QUICK = ("cli/test_help.py", "cli/test_runs.py", "cli/test_settings.py")


@cache
def _is_slow(path: Path) -> bool:
    """Return whether all tests of a file or folder are slow."""
    return any(path.is_relative_to(_HERE / slow) for slow in _SLOW) and not any(
        (_HERE / quick).is_relative_to(path) for quick in _QUICK
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of slow modules in `make test-quick`: it takes longer than many tests."""
    if config.getoption("markexpr") != "not slow":
        return None
    return True if _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests by where they are, and those that need a PostgreSQL server."""
    for item in items:
        if _is_slow(item.path) or "postgres" in item.nodeid.lower():
            item.add_marker("slow")


_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep a copy of the real stderr, which pytest replaces while tests run."""
    assert sys.__stderr__ is not None
    config.stash[_stderr] = os.dup(sys.__stderr__.fileno())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """End a test process whose test hangs in its fixtures."""
    return (yield from _limit(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """End a test process whose test hangs."""
    return (yield from _limit(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """End a test process whose test hangs in the clean-up of its fixtures."""
    return (yield from _limit(item))


def _limit(item: pytest.Item) -> Generator[None]:
    """Print the stacks of all threads and end the process if a phase of a test takes far longer than its timeout.

    pytest-timeout raises an exception once, in the main thread. Code that swallows it (a task of asyncio does), or a
    clean-up that hangs after it, would block the run for good. pytest-xdist reports the test of a process that ended as
    failed and continues with the next one.
    """
    timeout = item.config.getoption("timeout")
    limit = 1.25 * float(item.config.getini("timeout") or 0 if timeout is None else timeout)
    if limit:
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect no garbage while a failure is formatted.

    Before 3.11.8 and 3.12.2, parsing source text fails if a finalizer parses source text, too, as that of a pending
    task does when it logs its traceback. The error would end the whole test run.
    """
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
