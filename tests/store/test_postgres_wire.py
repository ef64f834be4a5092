"""Statements that are sent without a cursor: the same values arrive, and what is sent together is one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres_link import Connection
from holdfast.store.postgres_wire import Statement, carry_out
from holdfast.testing.samples import commit, history

pytest_plugins = ["postgres_fixtures"]

_KEPT = "INSERT INTO kept SELECT %s::bigint, %s::text, %s::bytea RETURNING n"
_ALL_KEPT = "INSERT INTO kept SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bytea[]) RETURNING n"


@pytest.fixture
def connection(server: str) -> Iterator[Connection]:
    with Connection.connect(server, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE kept (n BIGINT, words TEXT, data BYTEA)")
        yield connection


def kept(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT * FROM kept").fetchall()


NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
ROWS = st.tuples(NUMBERS, TEXTS, st.none() | st.binary())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ROWS, max_size=5))
def test_values_arrive_as_they_are(connection: Connection, rows: list[tuple[Any, ...]]) -> None:
    connection.execute("TRUNCATE kept")
    for row in rows:
        assert carry_out(connection, [Statement(_KEPT, row)]) == [[row[0] or 0]]
    carry_out(connection, [Statement(_ALL_KEPT, list(zip(*rows, strict=True)) or [(), (), ()])])
    assert kept(connection) == rows * 2


def test_those_that_go_together_are_carried_out_together(connection: Connection) -> None:
    found = carry_out(connection, [Statement(_KEPT, (number, None, None)) for number in range(1, 4)])
    assert found == [[1], [2], [3]]
    broken = Statement("INSERT INTO kept SELECT 1 / %s::bigint RETURNING n", (0,))
    with pytest.raises(psycopg.errors.DivisionByZero):
        carry_out(connection, [Statement(_KEPT, (4, None, None)), broken, Statement(_KEPT, (5, None, None))])
    # Nothing of it was written, and the connection goes on.
    assert [row[0] for row in kept(connection)] == [1, 2, 3]
    assert carry_out(connection, [Statement(_KEPT, (6, None, None))] * 2) == [[6], [6]]


def test_within_a_transaction_they_are_part_of_it(connection: Connection) -> None:
    connection.execute("BEGIN")
    carry_out(connection, [Statement(_KEPT, (number, None, None)) for number in range(3)])
    connection.execute("ROLLBACK")
    assert kept(connection) == []


def test_a_statement_that_cannot_be_prepared(connection: Connection) -> None:
    for statements in (["SELECT nothing"], [_KEPT, "SELECT nothing"]):
        with pytest.raises(psycopg.errors.UndefinedColumn):
            carry_out(
                connection, [Statement(text, (1, None, None) if "%" in text else ()) for text in statements]
            )
    assert kept(connection) == []


def test_more_than_buffers_hold(connection: Connection) -> None:
    """Both sides have much to say at once: neither waits for the other."""
    many = "SELECT generate_series(1, %s::bigint) WHERE length(%s::bytea) > 0"
    found = carry_out(connection, [Statement(many, (20_000, bytes(300_000)))] * 50)
    assert [len(numbers) for numbers in found] == [20_000] * 50


def test_a_connection_that_is_lost(connection: Connection, server: str) -> None:
    carry_out(connection, [Statement(_KEPT, (1, None, None))])
    with psycopg.connect(server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        carry_out(connection, [Statement(_KEPT, (2, None, None))] * 2)
    assert connection.closed


def test_an_answer_that_does_not_come_in_time(connection: Connection) -> None:
    connection.limit = 0.2
    with pytest.raises(psycopg.OperationalError):
        carry_out(connection, [Statement("SELECT 1 FROM pg_sleep(%s::bigint)", (5,))])
    connection.close()


def test_each_is_prepared_once_a_connection(connection: Connection) -> None:
    for number in range(3):
        carry_out(connection, [Statement(_KEPT, (number, None, None))] * 2)
    connection.roll_back()
    carry_out(connection, [Statement(_KEPT, (4, None, None))])
    names = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'holdfast%'")
    assert names.fetchone() == (1,)


def test_a_server_that_forgets(url: str) -> None:
    """As it seems where something between us and the server gives us another connection of its own."""
    store = PostgresStore(url)
    run = history(store, 2)
    store._link.read(lambda connection: connection.execute("DEALLOCATE ALL", prepare=False))
    run = commit(store, run)
    assert (run.last, store.run("run")) == (3, run)
    store.close()
