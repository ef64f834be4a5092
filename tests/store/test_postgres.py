"""Opening a PostgreSQL store, and the errors if it cannot be opened or used."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from postgres_server import Server, address

import holdfast
from holdfast.errors import IncompatibleFormat, InvalidCall, StoreBusy, StoreUnavailable
from holdfast.store.postgres import connection_pool
from holdfast.store.postgres.connection import RetryDeadline
from holdfast.store.postgres.schema import migrations
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.url import parse, shown
from holdfast.store_url import formats
from holdfast.testing.samples import content, digest, history, upload
from holdfast.tree.pack import Upload
from patience import PATIENCE, until

pytest_plugins = ["postgres_fixtures"]

#: Forks before anything is opened: the children start at the same moment.
_OPEN_IN_CHILDREN = """
import os, sys, holdfast, holdfast.store.postgres.store
children = []
for number in range(8):
    child = os.fork()
    if child == 0:
        with holdfast.open(sys.argv[1]) as hf:
            hf.history(f"run-{number}").commit({"n": 1})
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


def test_many_processes_open_a_new_store_at_once(url: str) -> None:
    subprocess.run([sys.executable, "-c", _OPEN_IN_CHILDREN, url], check=True, timeout=50)
    with holdfast.open(url) as hf:
        assert len(hf.runs()) == 8
        assert hf.verify().problems == ()


def test_stores_of_two_schemas_are_independent(server: str, schema: str) -> None:
    with (
        holdfast.open(address(server, schema)) as one,
        holdfast.open(address(server, schema[:-1] + "'\"")) as other,
    ):
        one.history("run").commit({"n": 1})
        assert other.runs() == []
        assert other.events() == []
        assert one.stats().file_bytes
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema[:-1]}\'""" CASCADE')


def test_both_url_schemes_are_accepted(url: str) -> None:
    with holdfast.open(url.replace("postgresql://", "postgres://")) as hf:
        hf.history("run").commit({"n": 1})
        assert hf.where == shown(url)
    with holdfast.open(url) as hf:
        assert hf.version("run").state == {"n": 1}
    assert formats(url) == (len(migrations()),) * 2


def test_missing_store_is_created_only_on_request(url: str, server: str, schema: str) -> None:
    with pytest.raises(StoreUnavailable, match="there is no store at") as refused:
        holdfast.open(url, create=False)
    assert refused.value.details["missing"]
    with pytest.raises(StoreUnavailable, match="there is no store at"):
        formats(url)
    with psycopg.connect(server) as connection:
        assert connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,)
    holdfast.open(url).close()
    holdfast.open(url, create=False).close()


def test_newer_format_is_refused_and_unchanged(url: str, server: str, schema: str) -> None:
    holdfast.open(url).close()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.format SET version = 99")
    with pytest.raises(IncompatibleFormat, match=r"has format 99.* upgrade Holdfast"):
        holdfast.open(url)
    with pytest.raises(IncompatibleFormat, match="has format 99"):
        formats(url)


def test_first_format_is_migrated_with_its_data(url: str, server: str, schema: str) -> None:
    """The tables of the first format, filled with the rows of a store, which has further columns."""
    with holdfast.open(url) as hf:
        for number in range(3):
            log = hf.history(f"run-{number}")
            for turn in range(5):
                log.commit({"n": turn, "text": f"{turn}" * 9_000}, tags=["third"] if turn == 2 else [])
            log.rollback(to=3)
        log.prune(holdfast.Retention(last=2))
        hf.fork("run-0", "fork")
        before = {run.id: [v.state for v in hf.history(run.id).versions()] for run in hf.runs()}
        events = [(event.run, event.cursor, event.kind) for event in hf.events()]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"ALTER SCHEMA {schema} RENAME TO {schema}_new; CREATE SCHEMA {schema}")
        connection.execute(f"SET search_path = {schema}")
        connection.execute("CREATE TABLE format (version BIGINT NOT NULL); INSERT INTO format VALUES (1)")
        connection.execute(migrations()[0])
        for (table,) in connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'format'", (schema,)
        ).fetchall():
            found = connection.execute(f"SELECT * FROM {table} LIMIT 0").description or []
            columns = ", ".join(column.name for column in found)
            connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {schema}_new.{table}")
        for sequence in ("run_key", "journal_seq"):
            connection.execute(
                f"SELECT setval('{sequence}', (SELECT last_value FROM {schema}_new.{sequence}))"
            )
        connection.execute(f"DROP SCHEMA {schema}_new CASCADE")
    assert formats(url) == (1, len(migrations()))
    with holdfast.open(url) as hf:
        assert {run.id: [v.state for v in hf.history(run.id).versions()] for run in hf.runs()} == before
        assert [(event.run, event.cursor, event.kind) for event in hf.events()] == events
        log = hf.history("run-0")
        version = log.commit({"n": 9}, key="nine")
        assert log.attach("nine", {"a": 1}) == ["a"]
        found_version = log.find("nine")
        assert found_version is not None
        assert (found_version.number, found_version.attachments) == (version.number, {"a": 1})
        assert log.find("ten") is None
        assert hf.verify().problems == ()
    assert formats(url) == (len(migrations()),) * 2


def test_foreign_schema_is_refused_and_unchanged(url: str, server: str, schema: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.run (id INT)")
        with pytest.raises(IncompatibleFormat, match=r"that are not Holdfast's.*schema="):
            holdfast.open(url)
        found = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = %s", (schema,)
        ).fetchone()
        assert found == (1,)


def test_empty_schema_is_used(url: str, server: str, schema: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    holdfast.open(url).close()
    assert formats(url) == (len(migrations()),) * 2


def test_durability_reaches_the_sessions_of_the_server(url: str) -> None:
    for durability, expected in (("durable", "on"), ("fast", "off")):
        with closing(PostgresStore(url, durability=durability)) as store:
            assert store._pool.rows("SHOW synchronous_commit") == [(expected,)]


def test_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "server_version", lambda _: 120022)
    with pytest.raises(StoreUnavailable, match="PostgreSQL 12: Holdfast needs 13 or newer"):
        holdfast.open(url)


def test_server_that_is_down_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}.*cannot be reached"):
        holdfast.open(f"postgresql://me:hush@127.0.0.1:{port}/db")
    assert time.monotonic() - start < 3


@pytest.mark.slow
def test_silent_server_is_reported_within_five_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            holdfast.open(f"postgresql://me:hush@127.0.0.1:{silent.getsockname()[1]}/db")
        assert time.monotonic() - start < 30


def test_errors_in_an_address_are_reported(server: str) -> None:
    for change, words in (
        ({"user": "no-such-user"}, "no-such-user"),
        ({"dbname": "no-such-database"}, "no-such-database"),
        ({"sslmode": "sometimes"}, "cannot be reached"),
    ):
        with pytest.raises(StoreUnavailable, match=words):
            holdfast.open(address(server, "unused", **change))


def test_invalid_address_is_refused_without_its_password() -> None:
    for end in (
        "hush%zz@host/db",
        "hush@[host/db",
        "hush@host/db?nonsense=1",
        "hush@host/db?pool=many",
        "hush@host/db?pool=0",
        "hush@host/db?schema=",
        "hush@host/db?schema=pg_mine",
        f"hush@host/db?schema={'x' * 64}",
    ):
        with pytest.raises(InvalidCall) as refused:
            holdfast.open(f"postgresql://me:{end}")
        assert "hush" not in "".join(traceback.format_exception(refused.value)[-1:])
        assert refused.value.__cause__ is None


def test_address_is_parsed() -> None:
    found = parse("postgres://me:hush%40@host:77/db?schema=own&pool=3&sslmode=require&password=other")
    assert (found.schema, found.connections) == ("own", 3)
    assert found.libpq["sslmode"] == "require"
    assert found.libpq["tcp_user_timeout"] == "4000"
    assert found.shown == "postgresql://me@host:77/db?schema=own"
    assert parse("postgresql://host/db?keepalives_idle=60").libpq["keepalives_idle"] == "60"
    assert shown("postgresql://me:hush@[host/db") == "postgresql://…"


@pytest.fixture
def guarded(own_server: Server) -> tuple[str, str]:
    """Yield the addresses of a server that requires a password: with the right one, and with a wrong one."""
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE me LOGIN PASSWORD 'hush-right'")
        connection.execute("CREATE SCHEMA guarded AUTHORIZATION me")
    Path(own_server.folder, "pg_hba.conf").write_text("local all me scram-sha-256\nlocal all all trust\n")
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
    place = f"/postgres?host={own_server.folder}&schema=guarded"
    return f"postgresql://me:hush-right@{place}", f"postgresql://me:hush-wrong@{place}"


@pytest.mark.slow
def test_password_is_never_shown(guarded: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    right, wrong = guarded
    with pytest.raises(StoreUnavailable, match="rejects the user or the password") as refused:
        holdfast.open(wrong)
    assert "hush" not in "".join(traceback.format_exception(refused.value, chain=True)).replace(wrong, "")
    with holdfast.open(right) as hf:
        hf.history("run").commit({"n": 1})
        assert hf.where is not None
        assert "hush" not in hf.where
        with psycopg.connect(right.partition("&")[0], autocommit=True) as connection:
            connection.execute("ALTER TABLE guarded.run RENAME TO gone")
            with pytest.raises(holdfast.HoldfastError) as failed:
                hf.history("run").commit({"n": 2})
            connection.execute("ALTER TABLE guarded.gone RENAME TO run")
        assert "hush" not in "".join(map(str, (failed.value, failed.value.__cause__, failed.value.details)))
        assert hf.version("run").state == {"n": 1}
    assert "hush" not in caplog.text


@pytest.mark.slow
def test_restarted_server_is_waited_for(own_server: Server) -> None:
    url = address(own_server.url, "stopped")
    with holdfast.open(url) as hf:
        log = hf.history("run")
        log.commit({"n": 1})
        own_server.stop()
        back = threading.Timer(0.5, own_server.again)
        back.start()
        log.commit({"n": 2})
        back.join()
        assert log.head.state == {"n": 2}
        own_server.stop()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        holdfast.open(url)
    own_server.again()


@pytest.mark.slow
def test_server_that_does_not_return_is_reported(own_server: Server) -> None:
    with holdfast.open(address(own_server.url, "away"), timeout=2) as hf:
        log = hf.history("run")
        log.commit({"n": 1})
        own_server.stop()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            hf.runs()
        with pytest.raises((StoreUnavailable, holdfast.CommitUnknown)):
            log.commit({"n": 2})
        own_server.again()
        assert log.head.state == {"n": 1}
        log.commit({"n": 3})
        assert log.head.number == 2


def test_pool_without_free_connection_is_busy_after_the_timeout(url: str) -> None:
    store = PostgresStore(f"{url}&pool=1")
    history(store, 1)
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store._pool.lend(RetryDeadline(1)):
            taken.set()
            done.wait(10)

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(hold)
        taken.wait(10)
        patient, store._pool.timeout = store._pool.timeout, 0.3
        with pytest.raises(StoreBusy, match=r"all 1 connections to .* were in use for 0.3 s.*pool="):
            store.run("run")
        store._pool.timeout = patient
        waiter = threading.Timer(0.1, done.set)
        waiter.start()
        assert store.run("run") is not None
        holder.result()
    store.close()


@pytest.mark.slow
def test_server_without_a_free_connection_is_busy(own_server: Server) -> None:
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
        connection.execute("CREATE SCHEMA few AUTHORIZATION few")
    url = address(own_server.url.replace("postgres:@", "few@"), "few")
    with holdfast.open(url), pytest.raises(StoreBusy, match="no free connection"):
        holdfast.open(url, timeout=0.5)


def test_text_with_nul_is_refused_with_nothing_written(url: str) -> None:
    with holdfast.open(url) as hf:
        log = hf.history("run")
        log.commit({"n": 1})
        with pytest.raises(InvalidCall, match="NUL"):
            log.commit({"n": 2}, step="a\0b")
        with pytest.raises(holdfast.NotFound):
            hf.version("run\0")
        assert hf.runs(workflow="a\0") == []
        log.commit({"n": "a\0b"})
        assert [version.state for version in log.versions()] == [{"n": "a\0b"}, {"n": 1}]


def test_content_that_two_writers_bring_at_once_is_stored_once(url: str, server: str, tmp_path: Path) -> None:
    data = content("two writers", 1000)
    started, may_continue = threading.Event(), threading.Event()

    def slow_pieces() -> Iterator[bytes]:
        started.set()
        assert may_continue.wait(PATIENCE)
        yield data

    # With a record that is newer than the uploads, and a content that is not in the database.
    with closing(PostgresStore(url, artifacts=tmp_path)) as store:
        store.put_artifact(upload(data), 1000)
    with closing(PostgresStore(url)) as store, ThreadPoolExecutor() as threads:
        first = threads.submit(store.put_artifact, Upload(digest(data), len(data), slow_pieces), 500)
        assert started.wait(PATIENCE)
        second = threads.submit(store.put_artifact, upload(data), 500)
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '% artifact %'"
        with psycopg.connect(server, autocommit=True) as connection:
            until(lambda: second.done() or connection.execute(waits).fetchone(), "the second writer's wait")
        may_continue.set()
        assert [first.result(PATIENCE), second.result(PATIENCE)] == [False, False]
        assert b"".join(store.artifact_pieces(digest(data))) == data


def test_forked_child_uses_its_own_connections(url: str) -> None:
    program = (
        "import os, sys, holdfast\n"
        "hf = holdfast.open(sys.argv[1])\n"
        "hf.history('run').commit({'n': 0})\n"
        "child = os.fork()\n"
        "for n in range(20): hf.history(f'run-{bool(child)}').commit({'n': n})\n"
        "hf.close()\n"
        "if child: sys.exit(os.waitpid(child, 0)[1])\n"
    )
    subprocess.run([sys.executable, "-c", program, url], check=True, timeout=50)
    with holdfast.open(url) as hf:
        assert [hf.version(f"run-{side}").number for side in (True, False)] == [20, 20]


def test_command_line_shows_no_password(url: str) -> None:
    secret = f"{url}&password=hush"
    holdfast.open(url).close()
    for command in (["init", "--yes"], ["stats"], ["doctor"], ["migrate"], ["show", "nothing"]):
        program = [str(Path(sys.executable).with_name("holdfast")), *command, "--store", secret]
        done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=50)
        assert "Traceback" not in done.stderr
        assert done.returncode == (3 if command[0] == "show" else 0), done.stderr
        assert "hush" not in done.stdout + done.stderr


def test_open_questions_are_in_the_inbox_after_a_migration(url: str, server: str, schema: str) -> None:
    @holdfast.workflow(name="pg_migrated")
    def migrated(number: int) -> object:
        return holdfast.ask(f"question {number}?", timeout=3600 if number == 2 else None)

    with holdfast.open(url) as hf:
        for number in range(4):
            hf.run(migrated, number, run_id=f"run-{number}")
        hf.cancel("run-3")
        before = hf.inbox()
    assert len(before) == 3
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}")
        # As a store of format 2 is.
        connection.execute("DROP TABLE question, question_place, meta, meta_place CASCADE")
        connection.execute("DROP VIEW holdfast_views, holdfast_runs, holdfast_versions, holdfast_events")
        connection.execute("DROP VIEW holdfast_timelines, holdfast_tags; UPDATE format SET version = 2")
    with holdfast.open(url) as hf:
        assert hf.inbox() == before
        assert hf.verify().ok
        assert hf.answer("run-1#1", "yes").result == "yes"
