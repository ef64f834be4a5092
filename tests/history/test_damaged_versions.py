"""Damaged rows of versions: listed as damaged, and never served."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import apsw
import psycopg
import pytest

import holdfast
from database import Database
from holdfast import CorruptVersion

pytest_plugins = ["postgres_fixtures"]

#: Damage to the row of version 4, of all kinds: facts, types, links, the row itself.
DAMAGE = [
    "UPDATE journal SET step = 'other' WHERE number = 4",
    "UPDATE journal SET kind = 99 WHERE number = 4",
    "UPDATE journal SET status = 99 WHERE number = 4",
    "UPDATE journal SET back = 2 WHERE number = 4",
    "UPDATE journal SET detail = NULL WHERE number = 4",
    "UPDATE journal SET seal = substr(seal, 2) WHERE number = 4",
    "UPDATE journal SET pruned = 1 WHERE number = 4",
    "DELETE FROM journal WHERE number = 4",
]


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("url"))


def fill(where: str) -> None:
    with holdfast.open(where) as hf:
        log = hf.history("run")
        for number in range(1, 8):
            log.commit({"n": number}, step=f"step-{number}", note="seen")


def damage(where: str, statement: str) -> None:
    if "://" not in where:
        with Database(where) as connection:
            assert connection.change(statement) == 1
        return
    server, _, schema = where.partition("&schema=")
    with psycopg.connect(server, options=f"-csearch_path={schema}") as own:
        assert own.execute(statement).rowcount == 1


@pytest.mark.parametrize("statement", DAMAGE)
def test_list_marks_the_damaged_version_and_has_all_others(where: str, statement: str) -> None:
    fill(where)
    damage(where, statement)
    with holdfast.open(where) as hf:
        log = hf.history("run")
        for found in (log.versions(), list(log.iter_versions())):
            assert [version.number for version in found] == [7, 6, 5, 4, 3, 2, 1]
            assert [version.is_damaged for version in found] == [number == 4 for number in range(7, 0, -1)]
        assert [version.number for version in log.versions(limit=2, before=6)] == [5, 4]
        damaged = found[3]
        assert (damaged.kind, damaged.status, damaged.step, damaged.note) == (
            "damaged",
            "damaged",
            None,
            None,
        )
        assert "damaged" in repr(damaged)
        reads: list[Callable[[], object]] = [
            lambda: damaged.state,
            lambda: damaged.result,
            lambda: damaged.error,
            lambda: damaged.annotations,
            lambda: damaged.get("n"),
            damaged.copy,
            lambda: damaged.completed_steps,
            lambda: log.at(5).completed_steps,
            lambda: list(log.ancestors()),
        ]
        for read in reads:
            with pytest.raises(CorruptVersion) as raised:
                read()
            assert raised.value.details["version"] == 4
        assert [version.state["n"] for version in found if not version.is_damaged] == [7, 6, 5, 3, 2, 1]
        assert not hf.verify()


def test_damaged_head_is_listed(where: str) -> None:
    fill(where)
    damage(where, "UPDATE journal SET step = 'other' WHERE number = 7")
    with holdfast.open(where) as hf:
        newest, *others = hf.history("run").versions()
        assert newest.is_damaged
        assert not any(version.is_damaged for version in others)
        with pytest.raises(CorruptVersion):
            hf.history("run").head.state  # noqa: B018 - the reading is what is tested


def test_filtered_list_has_all_readable_versions(where: str) -> None:
    fill(where)
    damage(where, "UPDATE journal SET kind = 99 WHERE number = 4")
    with holdfast.open(where) as hf:
        log = hf.history("run")
        assert [version.number for version in log.versions(step="step-3")] == [3]
        (found,) = log.versions(step="step-4")
        assert found.is_damaged
        assert [each.number for each in log.versions(timeline=1) if not each.is_damaged] == [7, 6, 5, 3, 2, 1]


def test_damage_on_another_timeline_does_not_affect_ancestors_of_the_head(where: str) -> None:
    with holdfast.open(where) as hf:
        log = hf.history("run")
        for number in range(1, 5):
            log.commit({"n": number}, step=f"step-{number}")
        log.rollback(to=2)
        log.commit({"n": 5}, step="step-5")
    damage(where, "UPDATE journal SET at = at + 1 WHERE number = 4")
    with holdfast.open(where) as hf:
        log = hf.history("run")
        assert [version.is_damaged for version in log.versions()] == [False, True, False, False, False]
        assert log.head.completed_steps == ["step-1", "step-2", "step-5"]


#: Values that a column of version 4 cannot have, where the database lets them be stored.
ODD = ["NULL", "99", "-1", "'text'", "x'00'", "2.5", "9223372036854775807"]
COLUMNS = ["back", "timeline", "kind", "status", "steps", "pruned", "extra", "at", "detail", "seal", "pack"]


def _refuse_version_4(hf: holdfast.Holdfast) -> None:
    log = hf.history("run")
    reads: list[Callable[[], object]] = [
        lambda: log.at(4),
        lambda: hf.version("run@4"),
        lambda: log.at(4).state,
        lambda: log.at(4).result,
        lambda: log.at(4).get("n"),
        lambda: log.export(4),
        lambda: log.diff(3, 4),
        lambda: log.rollback(4),
        lambda: hf.fork("run@4"),
    ]
    for read in reads:
        with pytest.raises(CorruptVersion, match="run verify") as raised:
            read()
        assert (raised.value.details["run"], raised.value.details["version"]) == ("run", 4)
    assert log.at(5).state["n"] == 5


@pytest.mark.parametrize("column", COLUMNS)
def test_read_by_number_names_the_damaged_version(tmp_path: Path, column: str) -> None:
    path = tmp_path / "runs.db"
    fill(str(path))
    content = path.read_bytes()
    tried = 0
    for number, value in enumerate(ODD):
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(content)
        with Database(copy) as connection:
            try:
                connection.execute(f"UPDATE journal SET {column} = {value} WHERE number = 4")
            except apsw.ConstraintError:
                continue
        tried += 1
        with holdfast.open(copy) as hf:
            _refuse_version_4(hf)
    assert tried


@pytest.mark.parametrize("statement", ["kind = 99", "status = 99", "pruned = 1", "steps = 99", "back = 2"])
def test_read_by_number_names_the_damaged_version_in_every_store(where: str, statement: str) -> None:
    fill(where)
    damage(where, f"UPDATE journal SET {statement} WHERE number = 4")
    with holdfast.open(where) as hf:
        _refuse_version_4(hf)


def test_blocks_that_are_not_bytes_are_damage_of_their_version(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    noise = random.Random(1)
    with holdfast.open(path) as hf:
        hf.history("run").commit({f"k{number}": noise.randbytes(300).hex() for number in range(600)})
    content = path.read_bytes()
    for which in ("n = 0", "n = -1"):
        for value in ("'text'", "5", "NULL", "x'00'"):
            path.write_bytes(content)
            with Database(path) as connection:
                try:
                    assert connection.change(f"UPDATE block SET data = {value} WHERE {which}") == 1
                except apsw.ConstraintError:
                    continue
            with holdfast.open(path) as hf, pytest.raises(CorruptVersion) as raised:
                hf.history("run").at(1).state  # noqa: B018 - the reading is what is tested
            assert raised.value.details["version"] == 1
