"""Timer threads and warnings of automatic snapshots, and a fixture that fails if a timer is left running.

A module that needs the fixture binds it: `no_timer_is_left = autosave_timers.no_timer_is_left`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.compat.autosave import active_timers
from patience import until


@pytest.fixture(autouse=True)
def no_timer_is_left() -> Iterator[None]:
    yield
    until(lambda: not timers() and not threads())


def timers() -> list[Any]:
    """Return the timers that are running."""
    return list(active_timers())


def threads() -> list[threading.Thread]:
    """Return the threads that all timers share."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-autosave")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        entry.getMessage()
        for entry in caplog.records
        if (entry.name, entry.levelno) == ("holdfast", logging.WARNING)
    ]
