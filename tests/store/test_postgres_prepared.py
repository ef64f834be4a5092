"""Statements that are sent without a cursor: values arrive unchanged, and a batch is one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import Proxy

from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.prepared import PreparedStatement, execute_prepared
from holdfast.store.postgres.store import PostgresStore
from holdfast.testing.samples import commit, history

pytest_plugins = ["postgres_fixtures"]

_KEPT = "INSERT INTO kept SELECT %s::bigint, %s::text, %s::bytea RETURNING n"
_ALL_KEPT = "INSERT INTO kept SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bytea[]) RETURNING n"


@pytest.fixture
def connection(server: str) -> Iterator[PostgresConnection]:
    with PostgresConnection.connect(server, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE kept (n BIGINT, words TEXT, data BYTEA)")
        yield connection


def kept(connection: PostgresConnection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT * FROM kept").fetchall()


NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
ROWS = st.tuples(NUMBERS, TEXTS, st.none() | st.binary())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ROWS, max_size=5))
def test_values_are_sent_unchanged(connection: PostgresConnection, rows: list[tuple[Any, ...]]) -> None:
    connection.execute("TRUNCATE kept")
    for row in rows:
        assert execute_prepared(connection, [PreparedStatement(_KEPT, row)]) == [[row[0] or 0]]
    execute_prepared(
        connection, [PreparedStatement(_ALL_KEPT, list(zip(*rows, strict=True)) or [(), (), ()])]
    )
    assert kept(connection) == rows * 2


def test_statements_sent_together_are_one_message_of_the_network(server: str) -> None:
    """Between two of them a suspended client, or a network that stalls, would leave a transaction open on the server,
    with its locks: neither a time limit for statements nor one for idle transactions ends it."""
    with (
        Proxy(server) as proxy,
        PostgresConnection.connect(proxy.url, autocommit=True) as connection,
    ):
        statement = PreparedStatement("SELECT %s::bigint", (1,))
        execute_prepared(connection, [statement])
        for count in (2, 5):
            proxy.received.clear()
            assert execute_prepared(connection, [statement] * count) == [[1]] * count
            assert len(proxy.received) == 1
        proxy.received.clear()
        large = PreparedStatement("SELECT length(%s::bytea)", (b"x" * 3_000_000,))
        assert execute_prepared(connection, [large] * 5) == [[3_000_000]] * 5
        assert sum(map(len, proxy.received)) > 15_000_000


def test_statements_sent_together_are_atomic(connection: PostgresConnection) -> None:
    found = execute_prepared(
        connection, [PreparedStatement(_KEPT, (number, None, None)) for number in range(1, 4)]
    )
    assert found == [[1], [2], [3]]
    broken = PreparedStatement("INSERT INTO kept SELECT 1 / %s::bigint RETURNING n", (0,))
    with pytest.raises(psycopg.errors.DivisionByZero):
        execute_prepared(
            connection,
            [PreparedStatement(_KEPT, (4, None, None)), broken, PreparedStatement(_KEPT, (5, None, None))],
        )
    # Nothing was written, and the connection is usable.
    assert [row[0] for row in kept(connection)] == [1, 2, 3]
    assert execute_prepared(connection, [PreparedStatement(_KEPT, (6, None, None))] * 2) == [[6], [6]]


def test_statements_join_an_open_transaction(connection: PostgresConnection) -> None:
    connection.execute("BEGIN")
    execute_prepared(connection, [PreparedStatement(_KEPT, (number, None, None)) for number in range(3)])
    connection.execute("ROLLBACK")
    assert kept(connection) == []


def test_invalid_statement_raises_and_leaves_the_connection_usable(connection: PostgresConnection) -> None:
    for statements in (["SELECT nothing"], [_KEPT, "SELECT nothing"]):
        with pytest.raises(psycopg.errors.UndefinedColumn):
            execute_prepared(
                connection,
                [PreparedStatement(text, (1, None, None) if "%" in text else ()) for text in statements],
            )
    assert kept(connection) == []


def test_statements_larger_than_the_buffers_are_sent(connection: PostgresConnection) -> None:
    """Both sides send much data at once, without a deadlock."""
    many = "SELECT generate_series(1, %s::bigint) WHERE length(%s::bytea) > 0"
    found = execute_prepared(connection, [PreparedStatement(many, (20_000, bytes(300_000)))] * 50)
    assert [len(numbers) for numbers in found] == [20_000] * 50


def test_lost_connection_raises(connection: PostgresConnection, server: str) -> None:
    execute_prepared(connection, [PreparedStatement(_KEPT, (1, None, None))])
    with psycopg.connect(server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        execute_prepared(connection, [PreparedStatement(_KEPT, (2, None, None))] * 2)
    assert connection.closed


def test_late_answer_raises(connection: PostgresConnection) -> None:
    connection.limit = 0.2
    with pytest.raises(psycopg.OperationalError):
        execute_prepared(connection, [PreparedStatement("SELECT 1 FROM pg_sleep(%s::bigint)", (5,))])
    connection.close()


def test_statement_is_prepared_once_per_connection(connection: PostgresConnection) -> None:
    for number in range(3):
        execute_prepared(connection, [PreparedStatement(_KEPT, (number, None, None))] * 2)
    connection.roll_back()
    execute_prepared(connection, [PreparedStatement(_KEPT, (4, None, None))])
    names = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'holdfast%'")
    assert names.fetchone() == (1,)


def test_deallocated_statement_is_prepared_again(url: str) -> None:
    """As if a pool in front of the server had switched to another session."""
    store = PostgresStore(url)
    run = history(store, 2)
    store._pool.read(lambda connection: connection.execute("DEALLOCATE ALL", prepare=False))
    run = commit(store, run)
    assert (run.last, store.run("run")) == (3, run)
    store.close()
