"""Checks of a store's surroundings: interrupted runs, disk space, the write-ahead log, old questions, the clock.

`verify` checks the stored data; `holdfast doctor` runs these checks.

Invariant: nothing is written, and a check that fails with an error is itself a finding.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import msgspec

from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError
from holdfast.store_url import file_of, formats, is_server

#: A write-ahead log of this size suggests a reader that never ends.
_LARGE_LOG = 64 << 20
#: Free disk space below which commits may soon fail.
_MIN_FREE = 256 << 20
_RECENT = timedelta(days=1)


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    #: Whether there is nothing to do.
    ok: bool
    what: str
    #: A command or action that helps; empty if there is nothing to do.
    advice: str = ""


def run_checks(hf: Holdfast, where: str) -> list[CheckResult]:
    """Run all checks of an open store."""
    checks: dict[str, Callable[[], Iterator[CheckResult]]] = {
        "format": lambda: _format(where),
        "sqlite": _sqlite,
        "space": lambda: _space(where),
        "size": lambda: _size(hf),
        "log": lambda: _log(where),
        "runs": lambda: _runs(hf),
        "questions": lambda: _questions(hf),
    }
    if is_server(where):
        for name in ("sqlite", "space", "log"):
            del checks[name]
    found = []
    for name, check in checks.items():
        try:
            found += list(check())
        except (HoldfastError, OSError) as error:
            found.append(CheckResult(name, False, str(error), "run `holdfast verify`"))
    return found


def _format(where: str) -> Iterator[CheckResult]:
    ours, newest = formats(where)
    yield CheckResult(
        "format", ours == newest, f"format {ours} of {newest}", "" if ours == newest else "holdfast migrate"
    )


def _sqlite() -> Iterator[CheckResult]:
    yield CheckResult("sqlite", True, f"SQLite {apsw.sqlite_lib_version()}")


def _space(where: str) -> Iterator[CheckResult]:
    free = shutil.disk_usage(Path(file_of(where)).absolute().parent).free
    ok = free >= _MIN_FREE
    yield CheckResult(
        "space", ok, f"{free / 1e9:.1f} GB free", "" if ok else "free some space, or prune old versions"
    )


def _size(hf: Holdfast) -> Iterator[CheckResult]:
    stats = hf.stats()
    held = stats.pack_bytes + stats.artifact_bytes
    wasted = (stats.file_bytes or 0) - 3 * held
    ok = wasted < (64 << 20)
    megabytes = (stats.file_bytes or held) / 1e6
    what = f"{_count(stats.runs, 'run')}, {_count(stats.versions, 'version')}, {megabytes:.1f} MB"
    yield CheckResult("size", ok, what, "" if ok else "holdfast gc --compact returns the free space")


def _log(where: str) -> Iterator[CheckResult]:
    log = Path(f"{file_of(where)}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _LARGE_LOG:
        yield CheckResult(
            "log",
            False,
            f"the write-ahead log has {size / 1e6:.0f} MB",
            "stop programs that keep the store open",
        )


def _runs(hf: Holdfast) -> Iterator[CheckResult]:
    found: dict[str, list[str]] = {
        "interrupted": [],
        "stalled": [],
        "failed": [],
        "failed earlier": [],
        "future": [],
    }
    now = datetime.now(UTC)
    for run in hf.iter_runs():
        if run.status == "running" and run.workflow is not None and not run.alive:
            found["interrupted"].append(run.id)
        if run.status == "stalled":
            found["stalled"].append(run.id)
        if run.status == "failed":
            found["failed" if now - run.updated < _RECENT else "failed earlier"].append(run.id)
        if run.updated > now + timedelta(minutes=5):
            found["future"].append(run.id)
    yield _of_runs("interrupted", found["interrupted"], "interrupted", "holdfast resume RUN")
    yield _of_runs("stalled", found["stalled"], "stalled", "holdfast inbox, then holdfast answer RUN")
    yield _failed(found["failed"], found["failed earlier"])
    if found["future"]:
        yield _of_runs("clock", found["future"], "changed in the future", "check this machine's clock")


def _failed(recent: list[str], earlier: list[str]) -> CheckResult:
    """Return a finding for runs that failed within a day; older failures are mentioned only."""
    advice = "holdfast show RUN, then holdfast resume RUN"
    if recent or not earlier:
        return _of_runs("failed", recent, "failed", advice)
    what = f"no run failed within a day, {_count(len(earlier), 'run')} earlier: {_names(earlier)}"
    return CheckResult("failed", True, what, advice)


def _questions(hf: Holdfast) -> Iterator[CheckResult]:
    old = [question.id for question in hf.inbox() if datetime.now(UTC) - question.opened > _RECENT]
    what = (
        f"{_count(len(old), 'question')} open for more than a day: {_names(old)}"
        if old
        else "no question open for more than a day"
    )
    yield CheckResult("questions", not old, what, "holdfast inbox" if old else "")


def _of_runs(check: str, runs: list[str], what: str, advice: str) -> CheckResult:
    if not runs:
        return CheckResult(check, True, f"no run {what}")
    return CheckResult(check, False, f"{_count(len(runs), 'run')} {what}: {_names(runs)}", advice)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _names(found: list[str]) -> str:
    return ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
