"""Looking over a store for what could become a problem: what `holdfast doctor` says.

`verify` proves that nothing stored has changed; this looks at all around it: runs that nobody goes on with, space, the
SQLite that is linked, the clock.

Invariant: a checkup changes nothing, and a check that cannot be made is itself a finding.
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
from holdfast.opening import file_of, formats, is_server

#: A log of this size that is not written back tells of a reader that never ends.
_LONG_LOG = 64 << 20
#: Free space below which a store is in danger.
_LEAST_FREE = 256 << 20
_PATIENCE = timedelta(days=1)


class Finding(msgspec.Struct, frozen=True):
    """What a check found."""

    check: str
    #: Is it as it should be?
    ok: bool
    what: str
    #: What to do about it; empty where nothing is to be done.
    advice: str = ""


def checkup(hf: Holdfast, where: str) -> list[Finding]:
    """All checks of an open store, in the order in which a person would want to know."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "format": lambda: _format(where),
        "sqlite": _sqlite,
        "space": lambda: _space(where),
        "size": lambda: _size(hf),
        "log": lambda: _log(where),
        "runs": lambda: _runs(hf),
        "prompts": lambda: _prompts(hf),
    }
    if is_server(where):
        for name in ("sqlite", "space", "log"):
            del checks[name]
    found = []
    for name, check in checks.items():
        try:
            found += list(check())
        except (HoldfastError, OSError) as error:
            found.append(Finding(name, False, str(error), "run `holdfast verify`"))
    return found


def _format(where: str) -> Iterator[Finding]:
    ours, newest = formats(where)
    yield Finding(
        "format", ours == newest, f"format {ours} of {newest}", "" if ours == newest else "holdfast migrate"
    )


def _sqlite() -> Iterator[Finding]:
    yield Finding("sqlite", True, f"SQLite {apsw.sqlite_lib_version()}")


def _space(where: str) -> Iterator[Finding]:
    free = shutil.disk_usage(Path(file_of(where)).absolute().parent).free
    ok = free >= _LEAST_FREE
    yield Finding(
        "space", ok, f"{free / 1e9:.1f} GB free", "" if ok else "free some space, or forget old versions"
    )


def _size(hf: Holdfast) -> Iterator[Finding]:
    stats = hf.stats()
    held = stats.pack_bytes + stats.artifact_bytes
    wasted = (stats.file_bytes or 0) - 3 * held
    ok = wasted < (64 << 20)
    megabytes = (stats.file_bytes or held) / 1e6
    what = f"{_count(stats.runs, 'run')}, {_count(stats.versions, 'version')}, {megabytes:.1f} MB"
    yield Finding("size", ok, what, "" if ok else "holdfast gc --compact gives the free space back")


def _log(where: str) -> Iterator[Finding]:
    log = Path(f"{file_of(where)}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _LONG_LOG:
        yield Finding(
            "log",
            False,
            f"the write-ahead log has {size / 1e6:.0f} MB",
            "end programs that hold the store open",
        )


def _runs(hf: Holdfast) -> Iterator[Finding]:
    found: dict[str, list[str]] = {
        "interrupted": [],
        "frozen": [],
        "failed": [],
        "failed before": [],
        "future": [],
    }
    now = datetime.now(UTC)
    for run in hf.iter_runs():
        if run.status == "running" and run.workflow is not None and not run.alive:
            found["interrupted"].append(run.id)
        if run.status == "frozen":
            found["frozen"].append(run.id)
        if run.status == "failed":
            found["failed" if now - run.updated < _PATIENCE else "failed before"].append(run.id)
        if run.updated > now + timedelta(minutes=5):
            found["future"].append(run.id)
    yield _of_runs("interrupted", found["interrupted"], "interrupted", "holdfast resume RUN")
    yield _of_runs("frozen", found["frozen"], "frozen", "holdfast prompts, then holdfast answer RUN")
    yield _failed(found["failed"], found["failed before"])
    if found["future"]:
        yield _of_runs("clock", found["future"], "changed in the future", "check this machine's clock")


def _failed(lately: list[str], before: list[str]) -> Finding:
    """Those of the last day are to be looked at; of older ones somebody has heard."""
    advice = "holdfast show RUN, then holdfast resume RUN"
    if lately or not before:
        return _of_runs("failed", lately, "failed", advice)
    what = f"no run failed within a day, {_count(len(before), 'run')} before: {_names(before)}"
    return Finding("failed", True, what, advice)


def _prompts(hf: Holdfast) -> Iterator[Finding]:
    old = [prompt.id for prompt in hf.prompts() if datetime.now(UTC) - prompt.opened > _PATIENCE]
    what = (
        f"{_count(len(old), 'question')} unanswered for more than a day: {_names(old)}"
        if old
        else "no question waits for long"
    )
    yield Finding("prompts", not old, what, "holdfast prompts" if old else "")


def _of_runs(check: str, runs: list[str], what: str, advice: str) -> Finding:
    if not runs:
        return Finding(check, True, f"no run {what}")
    return Finding(check, False, f"{_count(len(runs), 'run')} {what}: {_names(runs)}", advice)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _names(found: list[str]) -> str:
    return ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
