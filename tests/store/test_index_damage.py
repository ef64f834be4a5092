"""Damage to the indexes of open questions and of metadata: found by `verify`, and never listed as something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import psycopg
import pytest

import holdfast
from holdfast import Breaker, CorruptStore, Holdfast

pytest_plugins = ["postgres_fixtures"]

DOWN: list[bool] = []

_B = "(SELECT key FROM run WHERE id = 'b')"
_A = "(SELECT key FROM run WHERE id = 'a')"
#: A statement that damages an index, and what `verify` then says.
_MISSING = [
    (f"DELETE FROM question WHERE run = {_B}", "its questions [1] are not in the index"),
    (f"DELETE FROM question_place WHERE run = {_B}", "its questions [1] are missing in lists"),
    (f"UPDATE question_place SET rank = 5 WHERE run = {_B}", "its questions [1] are missing in lists"),
    (f"DELETE FROM meta WHERE run = {_B}", "its metadata are not in the index"),
    (f"DELETE FROM meta_place WHERE run = {_B}", "its metadata customer, env are missing in lists"),
    (
        f"UPDATE meta SET value = '9' WHERE run = {_B} AND name = 'customer'",
        "its metadata are not in the index",
    ),
]


@holdfast.workflow(name="index_damage_flow")
def flow(assignee: str) -> str:
    return str(holdfast.ask("Go?", assignee=assignee))


@pytest.fixture(params=["sqlite", "postgres"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Holdfast, Callable[[str], None]]]:
    def on_sqlite(statement: str) -> None:
        # Through the SQLite library of the open store: another one would release its locks, and remove its log.
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        connection.execute(statement)
        connection.close()

    def on_postgres(statement: str) -> None:
        schema = request.getfixturevalue("schema")
        with psycopg.connect(request.getfixturevalue("server"), autocommit=True) as server:
            server.execute(f'SET search_path TO "{schema}"')
            server.execute(statement)

    is_file = request.param == "sqlite"
    where = tmp_path / "runs.db" if is_file else request.getfixturevalue("url")
    with holdfast.open(where) as hf:
        for number, (run_id, assignee) in enumerate((("a", "ana"), ("b", "bo"), ("c", "ana"))):
            hf.run(flow, assignee, run_id=run_id, meta={"customer": number, "env": "test"})
        hf.history("manual", meta={"customer": 7}).commit({})
        yield hf, on_sqlite if is_file else on_postgres


@pytest.mark.parametrize(("statement", "problem"), _MISSING, ids=[each[0][:40] for each in _MISSING])
def test_verify_finds_what_an_index_lacks(
    opened: tuple[Holdfast, Callable[[str], None]], statement: str, problem: str
) -> None:
    hf, damage = opened
    assert hf.verify().ok
    damage(statement)
    assert any(str(each).startswith(f"b: {problem}") for each in hf.verify().problems), hf.verify().problems


@holdfast.step(name="index_damage_step", breaker=Breaker(failures=1))
def guarded() -> str:
    if DOWN:
        raise ConnectionError("down")
    return "up"


@holdfast.workflow(name="index_damage_calls")
def calls() -> str:
    return guarded()


def test_damaged_breaker_is_found_and_closed_by_hand(
    opened: tuple[Holdfast, Callable[[str], None]],
) -> None:
    hf, execute = opened
    DOWN.append(True)
    hf.run(calls, raises=False)
    DOWN.clear()
    execute("UPDATE value SET revision = revision + 1 WHERE name = 'breaker:index_damage_step'")
    (problem,) = hf.verify().problems
    assert "'breaker:index_damage_step' is damaged" in problem.what
    for read in (hf.breakers, lambda: hf.run(calls)):
        with pytest.raises(CorruptStore, match="holdfast breakers reset"):
            read()
    assert hf.reset_breaker("index_damage_step").status == "closed"
    assert hf.run(calls).result == "up"
    assert hf.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE question SET assignee = 'zoe' WHERE run = {_B}",
        f"UPDATE question SET kind = 'x' WHERE run = {_B}",
        f"UPDATE question SET priority = 9 WHERE run = {_B}",
        f"DELETE FROM question_place WHERE run = {_B}",
    ],
)
def test_damaged_question_is_named_and_written_again_by_an_assignment(
    opened: tuple[Holdfast, Callable[[str], None]], statement: str
) -> None:
    hf, damage = opened
    damage(statement)
    assert not hf.verify().ok
    if "UPDATE question SET" in statement:
        with pytest.raises(CorruptStore, match="question 'b#1' in the index is damaged"):
            hf.inbox()
    hf.assign("b#1", assignee="carla")
    assert [each.id for each in hf.inbox()] == ["a#1", "b#1", "c#1"]
    assert [each.id for each in hf.inbox(assignee="carla", workflow="index_damage_flow")] == ["b#1"]
    assert hf.inbox(assignee="bo") == []
    assert hf.verify().ok, hf.verify().problems


def test_question_in_a_list_of_others_is_found_and_not_shown(
    opened: tuple[Holdfast, Callable[[str], None]],
) -> None:
    hf, damage = opened
    # The question of b in the lists of ana.
    damage(
        "INSERT INTO question_place (facet, rank, opened, run, number, expires) "
        f"SELECT place.facet, own.rank, own.opened, {_B}, 1, NULL FROM question_place place, question_place own "
        f"WHERE place.run = {_A} AND own.run = {_B} AND place.facet NOT IN "
        f"(SELECT facet FROM question_place WHERE run = {_B}) ON CONFLICT DO NOTHING"
    )
    with pytest.raises(CorruptStore, match="question 1 of run 'b', which has other values"):
        hf.inbox(assignee="ana")
    assert [each.id for each in hf.inbox()] == ["a#1", "b#1", "c#1"]
    assert "the index of open questions lists" in str(hf.verify().problems)


def test_run_in_a_list_of_other_metadata_is_found_and_not_shown(
    opened: tuple[Holdfast, Callable[[str], None]],
) -> None:
    hf, damage = opened
    damage(
        f"INSERT INTO meta_place (facet, run) SELECT facet, {_B} FROM meta_place WHERE run = {_A} "
        "ON CONFLICT DO NOTHING"
    )
    with pytest.raises(CorruptStore, match="lists run 'b', which has others"):
        hf.runs(meta={"customer": 0})
    assert "the index of metadata lists" in str(hf.verify().problems)
