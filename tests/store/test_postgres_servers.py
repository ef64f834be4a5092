"""Settings of PostgreSQL servers: schema names, encodings, limits, connection pools; and a full disk."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterator

import psycopg
import pytest
from postgres_server import address
from psycopg import sql
from transaction_pool import TransactionPool

import holdfast
from holdfast import InvalidCall, StoreBusy, StoreUnavailable, step, workflow
from holdfast.store_url import formats

pytest_plugins = ["postgres_fixtures"]


def test_schema_may_have_any_name(server: str) -> None:
    for name in ("Agent", 'agent"s "x" ', '" ', "a b ", "it's ", "Ünï ", "a%b ", "a\\b "):
        schema = f"{name}{uuid.uuid4().hex[:8]}"
        where = address(server, schema)
        try:
            with holdfast.open(where) as hf:
                hf.history("r").commit({"large": b"x" * 200_000})
                assert hf.stats().runs == 1
                assert hf.verify().ok
                hf._store.compact()
            assert formats(where)[0] >= 1
            with holdfast.open(where, create=False) as hf:
                assert [run.id for run in hf.runs()] == ["r"]
        finally:
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def test_statement_timeout_of_the_server_is_named(server: str, schema: str) -> None:
    where = address(f"{server}&options=-cstatement_timeout%3D300", schema)
    with holdfast.open(where, timeout=5) as hf:
        history = hf.history("r")
        history.commit({})
        with psycopg.connect(server) as other:
            other.execute(sql.SQL("LOCK TABLE {}.run").format(sql.Identifier(schema)))
            with pytest.raises(StoreBusy, match="statement_timeout"):
                hf.runs()
            with pytest.raises(StoreBusy, match="statement_timeout"):
                history.commit({"a": 1})
        history.commit({"a": 2})
        assert history.head.number == 2


@pytest.fixture
def latin(server: str) -> Iterator[str]:
    """Yield the address of a database whose encoding has few characters."""
    name = f"latin_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        yield server.replace("/postgres?", f"/{name}?")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_text_outside_the_database_encoding_is_refused(latin: str) -> None:
    @step(name="流")
    def flow() -> str:
        return "流"

    @workflow(name="ps_flowing")
    def flowing() -> str:
        return flow()

    with holdfast.open(address(latin, "x")) as hf:
        history = hf.history("é")
        history.commit({"流": "流"})
        for refused in (
            lambda: hf.history("流").commit({}),
            lambda: history.commit({}, step="流"),
            lambda: history.tag(1, "流"),
            lambda: hf.get("流"),
            lambda: hf.run(flowing, run_id="run"),
        ):
            with pytest.raises(InvalidCall, match="encoding of the database"):
                refused()
        assert {run.id: run.status for run in hf.runs()} == {"é": "running", "run": "failed"}
        assert history.head.state == {"流": "流"}
        assert hf.verify().ok
    with pytest.raises(InvalidCall, match="encoding of the database"):
        holdfast.open(address(latin, "流"))


@pytest.fixture
def guest(server: str) -> Iterator[str]:
    """Yield the address of the server for a user who may open two connections."""
    name = f"guest_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 2")
        connection.execute(f"GRANT ALL ON DATABASE postgres TO {name}")
        yield server.replace("postgres:@", f"{name}:@").replace("postgres@", f"{name}@")
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def test_free_connection_is_waited_for_when_a_store_is_opened(guest: str) -> None:
    taken = [psycopg.connect(guest) for _ in range(2)]
    try:
        with pytest.raises(StoreBusy, match="no free connection"):
            holdfast.open(address(guest, "full"), timeout=0.3)
        leaving = threading.Timer(0.3, lambda: deque(map(psycopg.Connection.close, taken)))
        leaving.start()
        with holdfast.open(address(guest, "full", pool=1), timeout=30) as hf:
            hf.history("r").commit({})
        leaving.join()
    finally:
        for each in taken:
            each.close()


def test_pool_in_transaction_mode_is_refused(server: str, schema: str) -> None:
    with (
        TransactionPool(server) as pool,
        pytest.raises(StoreUnavailable, match=r"transaction mode.*session mode"),
    ):
        holdfast.open(address(f"{pool.url}?sslmode=disable&gssencmode=disable", schema))


def test_pool_in_session_mode_works(server: str, schema: str) -> None:
    with TransactionPool(server, mode="session") as pool:
        where = address(f"{pool.url}?sslmode=disable&gssencmode=disable", schema)
        with holdfast.open(where) as hf:
            for number in range(20):
                hf.history("r").commit({"n": number})
            assert hf.history("r").head.number == 20


def test_full_disk_of_the_server_is_named(server: str, schema: str) -> None:
    with holdfast.open(address(server, schema)) as hf, psycopg.connect(server, autocommit=True) as other:
        history = hf.history("r")
        history.commit({})
        other.execute(f"""
            SET search_path = {schema};
            CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                RAISE EXCEPTION 'could not extend file "base/5/16392": No space left on device'
                    USING ERRCODE = '53100';
            END $$;
            CREATE TRIGGER full_disk BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION full_disk()""")
        with pytest.raises(StoreUnavailable, match=r"the disk of .* is full .*No space left on device"):
            history.commit({"a": 1})
        with pytest.raises(StoreUnavailable, match="is full"):
            history.commit({"a": b"x" * 100_000})
        other.execute("DROP TRIGGER full_disk ON journal")
        history.commit({"a": 2})
        assert history.head.number == 2
        assert hf.verify().ok
