"""Warnings of a monitor: a cause is told once for each run, however often it is met.

Invariant: what is remembered is no more than the runs that have trouble now.
"""

from __future__ import annotations

from collections.abc import Container

from holdfast.errors import HoldfastError
from holdfast.runtime.log import warn


class Told:
    """What was warned of last, by run."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}

    def warn(self, run_id: str, what: str, error: BaseException) -> None:
        """Warn of an error, unless it is what was told of this run last. Only a fault of the program has a trace."""
        cause = f"{what} {type(error).__name__}: {error}"
        if self._causes.get(run_id) == cause:
            return
        self._causes[run_id] = cause
        warn("run %s %s: %s", run_id, what, error, trace=not isinstance(error, HoldfastError))

    def say(self, run_id: str, what: str) -> None:
        """Warn of something that is no error, unless it is what was told of this run last."""
        if self._causes.get(run_id) != what:
            self._causes[run_id] = what
            warn("run %s %s", run_id, what)

    def forget(self, but: Container[str]) -> None:
        """Forget all runs but some: what befalls another later is news."""
        for run_id in list(self._causes):
            if run_id not in but:
                self._causes.pop(run_id, None)
