"""Reads of whole lists, and `verify`, detect rows that are missing in the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from database import Database
from holdfast import CorruptStore, CorruptVersion, History, HoldfastError, Retention
from holdfast.history.reader import is_complete
from holdfast.model.records import RunRecord


def _run(last: int, *, epoch: int = 0, kept: int | None = None) -> RunRecord:
    return RunRecord(
        id="run", created=0, updated=0, last=last, epoch=epoch, kept=last if kept is None else kept
    )


def test_is_complete_detects_missing_numbers(subtests: pytest.Subtests) -> None:
    cases: list[tuple[RunRecord, list[int], int | None, int, bool]] = [
        (_run(3), [3, 2, 1], None, 10, True),
        (_run(3), [3, 2], None, 2, True),
        (_run(3), [3, 1], None, 2, False),
        (_run(3), [2, 1], None, 10, False),
        (_run(3), [3, 2], None, 10, False),
        (_run(3), [], None, 10, False),
        (_run(3), [], 1, 10, True),
        (_run(3), [1], 2, 10, True),
        (_run(3), [], 2, 10, False),
        # Others have committed since the run was read.
        (_run(3), [5, 4, 3, 2, 1], None, 10, True),
        (_run(3), [5, 4], None, 2, True),
        (_run(3), [5, 3], None, 2, False),
        # Of a pruned run, the number of versions is known, but not which.
        (_run(9, epoch=1, kept=3), [9, 8, 4], None, 10, True),
        (_run(9, epoch=1, kept=3), [10, 9, 8, 4], None, 10, True),
        (_run(9, epoch=1, kept=3), [9, 4], None, 10, False),
        (_run(9, epoch=1, kept=3), [9, 4], None, 2, True),
        (_run(9, epoch=1, kept=3), [9, 9, 4], None, 10, False),
    ]
    for run, numbers, before, limit, whole in cases:
        with subtests.test(last=run.last, numbers=numbers, before=before, limit=limit):
            assert is_complete(run, numbers, before=before, limit=limit) is whole


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("DELETE FROM journal WHERE number = 4", lambda log: list(log.ancestors(6))),
        ("DELETE FROM timeline WHERE number = 2", lambda log: log.timelines()),
        ("DELETE FROM timeline WHERE number = 3", lambda log: log.timelines()),
    ],
)
def test_list_that_lost_a_row_is_refused(
    tmp_path: Path, statement: str, read: Callable[[History], object]
) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        log = hf.history("run")
        for number in range(6):
            log.commit({"n": number})
        log.rollback(to=5)
        log.rollback(to=6)
        log.commit({"n": 7})
        read(log)
    with Database(path) as connection:
        assert connection.change(statement) == 1
    with holdfast.open(path) as hf:
        with pytest.raises((CorruptStore, CorruptVersion)):
            read(hf.history("run"))
        assert not hf.verify()
        assert hf.history("run").at(2).state == {"n": 1}


def test_list_of_a_pruned_run_that_lost_a_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        log = hf.history("run")
        for number in range(9):
            log.commit({"n": number})
        log.prune(Retention(last=4))
        assert [version.number for version in log.versions()] == [9, 8, 7, 6]
    with Database(path) as connection:
        connection.execute("DELETE FROM journal WHERE number = 7")
    with holdfast.open(path) as hf:
        with pytest.raises(HoldfastError):
            hf.history("run").versions()
        assert not hf.verify()


@pytest.mark.parametrize("table", ["timeline", "mark", "hold", "block", "journal"])
def test_verify_reports_rows_without_a_run(tmp_path: Path, table: str) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        log = hf.history("run")
        log.commit({f"page {n}": f"{n} " * 3000 for n in range(40)}, tags=["good"])
        log.commit({"file": holdfast.artifact(b"content")})
        log.rollback(to=1)
        assert hf.verify()
    with Database(path) as connection:
        connection.execute(f"UPDATE {table} SET run = 5")
    with holdfast.open(path) as hf:
        problems = [str(problem) for problem in hf.verify().problems]
        assert f"the store: table {table} has rows that belong to no run" in problems


def test_commit_after_a_rollback_follows_its_target(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        log = hf.history("run")
        log.commit({"count": 1})
        log.commit({"count": 2})
        log.rollback(to=1)
        version = log.commit({"count": 5})
        assert (version.parent, version.state) == (1, {"count": 5})
