"""`verify` finds and names damage; damaged data is never served, and other versions stay usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from database import Database
from holdfast import Holdfast, HoldfastError, Retention, thaw
from holdfast.errors import BadData


def fill(hf: Holdfast) -> None:
    log = hf.history("run-1")
    log.commit({"messages": [], "large": "v" * 70_000, "wide": {f"k{n}": n for n in range(100)}})
    for number in range(30):
        with log.edit(step="work", result={"n": number}, note="kept") as state:
            state["messages"].append({"n": number, "text": f"{number} " * 200})
    log.rollback(to=20, reason="again")
    log.commit({"messages": [], "file": holdfast.artifact(b"content")}, tags=["good"])
    hf.fork("run-1@5", "run-2")


@pytest.fixture
def store(file: Path) -> Path:
    with holdfast.open(file) as hf:
        fill(hf)
        assert hf.verify().ok
    return file


def damage(file: Path, statement: str, *values: Any) -> None:
    with Database(file) as connection:
        assert connection.change(statement, values) > 0
    connection.close()


def everything(hf: Holdfast) -> dict[str, Any]:
    """All that can be read, piece by piece; an error stands for what is refused."""
    found: dict[str, Any] = {}

    def note(name: str, read: Any) -> Any:
        try:
            found[name] = read()
        except HoldfastError as error:
            found[name] = type(error)
        return found[name]

    for run_id in ("run-1", "run-2"):
        log = hf.history(run_id)
        for number in range(1, 33 if run_id == "run-1" else 2):
            note(f"{run_id}@{number}", lambda log=log, number=number: thaw(log.at(number).state))
            note(f"{run_id}@{number} result", lambda log=log, number=number: log.at(number).result)
            note(f"{run_id}@{number} note", lambda log=log, number=number: log.at(number).note)
        note(f"{run_id} timelines", lambda log=log: log.timelines())
        note(f"{run_id} tag", lambda log=log: log.at("good").number)
        note(f"{run_id} head", lambda log=log: log.head.number)
    note("file", lambda: hf.history("run-1").at(32).state["file"].read())  # noqa: PLW0108 - all of it may fail
    return found


def test_report_of_a_sound_store_counts_runs_and_versions(hf: Holdfast) -> None:
    fill(hf)
    report = hf.verify()
    assert (report.ok, bool(report), report.problems) == (True, True, ())
    assert (report.runs, report.versions, report.artifacts) == (2, 33, 2)
    one = hf.history("run-1").verify()
    assert (one.runs, one.versions, one.ok) == (1, 32, True)


def test_verify_reports_progress(hf: Holdfast) -> None:
    fill(hf)
    progress: list[tuple[int, int]] = []
    hf.verify(progress=lambda done, total: progress.append((done, total)))
    assert progress[-1] == (33, 33)
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)


DAMAGE = {
    "a pack": "UPDATE journal SET pack = CAST(substr(pack, 1, 20) || x'00' || substr(pack, 22) AS BLOB) "
    "WHERE run = 1 AND number = 7",
    "an empty pack": "UPDATE journal SET pack = x'' WHERE run = 1 AND number = 7",
    "another version's pack": "UPDATE journal SET pack = (SELECT pack FROM journal WHERE run = 1 AND number = 8) "
    "WHERE run = 1 AND number = 7",
    "a hash": "UPDATE journal SET seal = CAST(substr(seal, 1, 20) || x'00' || substr(seal, 22) AS BLOB) "
    "WHERE run = 1 AND number = 7",
    "a missing version": "DELETE FROM journal WHERE run = 1 AND number = 7",
    "a step": "UPDATE journal SET step = 'other' WHERE run = 1 AND number = 7",
    "a time": "UPDATE journal SET at = at + 1 WHERE run = 1 AND number = 7",
    "a parent": "UPDATE journal SET back = 2 WHERE run = 1 AND number = 7",
    "a timeline": "UPDATE journal SET timeline = 2 WHERE run = 1 AND number = 7",
    "a status": "UPDATE journal SET status = 5 WHERE run = 1 AND number = 7",
    "a detail": "UPDATE journal SET detail = x'80' WHERE run = 1 AND number = 7",
    "an event": "UPDATE journal SET detail = x'80' WHERE run = 1 AND number IS NULL",
    "a head": "UPDATE run SET head = 7 WHERE key = 1",
    "a run's status": "UPDATE run SET status = 5 WHERE key = 1",
    "a mark": "UPDATE mark SET number = 7 WHERE run = 1",
    "a timeline's start": "UPDATE timeline SET parent = 3 WHERE run = 1",
    "an artifact": "UPDATE artifact_piece SET data = CAST(x'00' || substr(data, 2) AS BLOB)",
    "an artifact that became text": "UPDATE artifact_piece SET data = CAST(data AS TEXT)",
    "a pack that became text": "UPDATE journal SET pack = CAST('text' AS TEXT) WHERE run = 1 AND number = 7",
    "a missing artifact piece": "DELETE FROM artifact_piece",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGE)
def test_verify_finds_damage_that_reads_refuse(store: Path, what: str) -> None:
    with holdfast.open(store) as hf:
        sound = everything(hf)
        assert not any(isinstance(value, type) for name, value in sound.items() if name != "run-2 tag")
    damage(store, DAMAGE[what])
    with holdfast.open(store) as hf:
        report = hf.verify()
        assert not report.ok, "it is found"
        assert all(str(problem) for problem in report.problems)
        served = everything(hf)
    wrong = {name for name, value in served.items() if not isinstance(value, type) and value != sound[name]}
    assert wrong == set(), "nothing else than what was written is served"


@pytest.mark.parametrize("what", ["a pack", "a hash", "a step"])
def test_damaged_version_leaves_the_others_usable(store: Path, what: str) -> None:
    damage(store, DAMAGE[what])
    with holdfast.open(store) as hf:
        log = hf.history("run-1")
        with pytest.raises(BadData, match=r"version 7 of run 'run-1'") as caught:
            log.at(7).state  # noqa: B018 - the reading is what is tested
        assert caught.value.details == {"run": "run-1", "version": 7}
        assert [str(problem) for problem in hf.verify().problems if problem.version == 7]
        assert len(log.at(6).state["messages"]) == 5
        assert log.head.state["messages"] == []
        assert log.commit({"n": 1}).number == 33
        assert len(hf.history("run-2").head.state["messages"]) == 4


def test_a_swapped_pair_of_versions_is_found(store: Path) -> None:
    with Database(store) as connection:
        for old, new in ((7, 1007), (8, 7), (1007, 8)):
            connection.execute("UPDATE journal SET number = ? WHERE run = 1 AND number = ?", (new, old))
    connection.close()
    with holdfast.open(store) as hf:
        for number in (7, 8):
            with pytest.raises(BadData):
                hf.history("run-1").at(number)
        assert {problem.version for problem in hf.verify().problems} >= {7, 8}


def test_version_of_another_run_is_refused(store: Path) -> None:
    damage(store, "UPDATE journal SET run = 2, number = 2 WHERE run = 1 AND number = 32")
    damage(store, "UPDATE run SET id = 'run-3' WHERE key = 2")
    with holdfast.open(store) as hf:
        with pytest.raises(BadData):
            hf.history("run-1").head  # noqa: B018 - the reading is what is tested
        with pytest.raises(BadData):
            hf.history("run-3").at(2)


def test_a_pruned_run_is_checked_too(store: Path) -> None:
    with holdfast.open(store) as hf:
        hf.history("run-1").prune(Retention(last=3))
        assert hf.verify().ok
    damage(
        store, "UPDATE journal SET pack = CAST(x'00' || substr(pack, 2) AS BLOB) WHERE run = 1 AND pruned = 1"
    )
    with holdfast.open(store) as hf:
        assert not hf.verify().ok
        with pytest.raises(BadData):
            thaw(hf.history("run-1").at(31).state)
