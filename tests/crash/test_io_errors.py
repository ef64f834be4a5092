"""A disk that fails at the nth call of every kind of work: a typed error, nothing lost, and the store stays usable.

`HOLDFAST_FAULTS` sets how many faults are tried for each kind of work and of fault (default 3).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from acknowledged_work import Check, Fact, Work, reopened

import holdfast
from disk import Call, Disk, Short
from holdfast import Holdfast, HoldfastError

pytestmark = [
    pytest.mark.slow,
    # SQLite may meet a second error while it handles the first, which is the one that is raised.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FAULTS = int(os.environ.get("HOLDFAST_FAULTS", "3"))

#: What fails, by name: given the call, the error; None where such an error cannot be.
_ERRORS: dict[str, Callable[[Call], OSError | None]] = {
    "EIO": lambda call: OSError(errno.EIO, os.strerror(errno.EIO)),
    "ENOSPC": lambda call: (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if call.kind in ("write", "create", "mkdir")
        else None
    ),
    "short": lambda call: Short(len(call.data) // 2) if call.kind == "write" else None,
}


class Fault:
    """Makes a number of system calls fail, starting with the nth that can fail, and counts those that can."""

    def __init__(self, error: str) -> None:
        self._error = _ERRORS[error]
        self.after = 0
        self.left = 0
        self.count = 0
        self.hit: list[str] = []

    def __call__(self, call: Call) -> None:
        error = self._error(call)
        if error is None:
            return
        self.count += 1
        if self.left and self.count > self.after:
            self.left -= 1
            self.hit.append(f"{call.kind} {os.path.basename(call.path)}")
            raise error


def _works(work: Work) -> dict[str, Callable[[], None]]:
    kinds = (work.commit, work.rollback, work.tag, work.prune, work.gc, work.compact, work.delete)
    return {kind.__name__: kind for kind in (*kinds, work.export, work.bring_in, work.backup, work.flow)}


def _start(folder: Path, fault: Fault, facts: list[Fact], in_folder: bool) -> tuple[Holdfast, Work]:
    hf = holdfast.open(folder / "runs.db", artifacts=folder / "artifacts" if in_folder else None)
    work = Work(hf, folder, facts.append, random.Random(7))
    work.commit(count=6, large=1.0)
    work.prune()
    work.commit(count=3)
    fault.count = 0
    return hf, work


def _assert_kept(hf: Holdfast, folder: Path, facts: list[Fact], what: str) -> None:
    check = Check(hf, folder, facts)
    assert not check.lost + check.torn, f"{what}: {check.lost + check.torn}"
    assert hf.history("after").commit({"still": "usable"}).number > 0


def inject(folder: Path, kind: str, error: str, after: int, length: int, *, in_folder: bool) -> int:
    """Make the disk fail during some work; return how many calls could have failed."""
    folder.mkdir()
    fault = Fault(error)
    facts: list[Fact] = []
    with Disk(folder, fault):
        hf, work = _start(folder, fault, facts, in_folder)
        with hf:
            fault.after, fault.left = after, length
            raised: Exception | None = None
            try:
                _works(work)[kind]()
            except Exception as error_of_work:
                raised = error_of_work
            what = f"{kind} {error} {after} {length} {fault.hit} {raised!r}"
            # A file that the caller has named is the caller's: its error is Python's own.
            allowed = (HoldfastError, OSError) if kind in ("export", "bring_in") else HoldfastError
            assert raised is None or isinstance(raised, allowed), what
            count, fault.left = fault.count, 0
            _assert_kept(hf, folder, facts, what)
        with reopened(folder) as hf:
            _assert_kept(hf, folder, facts, what)
    return count


@pytest.mark.parametrize("in_folder", [True, False], ids=["artifacts in a folder", "artifacts in the file"])
@pytest.mark.parametrize("kind", _works(Work.__new__(Work)))
def test_disk_error_fails_only_the_current_call(tmp_path: Path, kind: str, in_folder: bool) -> None:
    rng = random.Random(f"{kind} {in_folder}")
    for error in _ERRORS:
        count = inject(tmp_path / error, kind, error, 0, 0, in_folder=in_folder)
        assert count > 0
        for place in sorted(rng.sample(range(count), min(FAULTS, count))):
            length = rng.choice((1, 1, 2, 3, 10_000))
            inject(tmp_path / f"{error} {place}", kind, error, place, length, in_folder=in_folder)


@pytest.mark.parametrize("error", _ERRORS)
def test_disk_error_while_a_store_is_opened_fails_only_that_call(tmp_path: Path, error: str) -> None:
    fault = Fault(error)
    path = tmp_path / "runs.db"
    for after in range(1_000):
        fault.count, fault.after, fault.left = 0, after, 1
        with Disk(tmp_path, fault):
            try:
                holdfast.open(path).close()
            except HoldfastError:
                assert fault.left == 0
            is_over = fault.left == 1
            fault.left = 0
            with holdfast.open(path) as hf:
                assert hf.history("run").commit({"after": after}).number == 1
        for file in tmp_path.iterdir():
            file.unlink()
        if is_over:
            break
    assert after > 5
