"""Leases on PostgreSQL: rows that others are writing, and answers that are lost until the lease has run out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from test_postgres_lost import Saboteur

from holdfast.errors import LeaseExpired
from holdfast.store import postgres_queue
from holdfast.store.base import Store
from holdfast.store.postgres import PostgresStore
from holdfast.testing.conformance_queue import claim, enqueue, ids
from holdfast.testing.samples import HOUR, begin, change_of, event
from patience import PATIENCE, until

pytest_plugins = ["postgres_fixtures"]

SOON = 200_000


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = PostgresStore(url, timeout=10)
    yield opened
    opened.close()


@pytest.fixture
def saboteur(monkeypatch: pytest.MonkeyPatch) -> Saboteur:
    return Saboteur(monkeypatch)


@pytest.fixture
def other(server: str, schema: str) -> Iterator[psycopg.Connection]:
    """A connection of another process."""
    with psycopg.connect(server) as connection:
        connection.execute(f'SET search_path = "{schema}"')
        connection.commit()
        yield connection


def test_a_run_whose_row_is_being_renewed_keeps_its_place(store: Store, other: psycopg.Connection) -> None:
    """SKIP LOCKED passes over it, but its place is not free."""
    enqueue(store, "slow")
    enqueue(store, "next")
    now = store.now()
    (slow,) = claim(store, 1, now=now, until=now + SOON, most=1)
    other.execute("UPDATE run SET until = until + %s WHERE key = %s", (HOUR, slow.key))
    until(lambda: store.now() > slow.until)
    assert claim(store, 1, owner="other", now=store.now(), most=1) == []
    other.commit()
    assert claim(store, 1, owner="other", now=store.now(), most=1) == []
    assert ids(claim(store, 1, owner="other", now=store.now(), most=2)) == ["next"]


def test_a_process_that_is_stopped_in_a_claim_frees_the_queue(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its transaction; afterwards it claims again, and finds the queue full."""
    monkeypatch.setattr(postgres_queue, "_IDLE", 0.5)
    stopped, go_on = threading.Event(), threading.Event()
    look = postgres_queue._sound

    def stop_first(*given: Any) -> Any:
        if not stopped.is_set():
            stopped.set()
            assert go_on.wait(PATIENCE)
        return look(*given)

    monkeypatch.setattr(postgres_queue, "_sound", stop_first)
    enqueue(store, "one")
    enqueue(store, "two")
    with ThreadPoolExecutor() as pool:
        late = pool.submit(claim, store, 1, owner="late", now=store.now(), until=store.now() + HOUR, most=1)
        assert stopped.wait(PATIENCE)
        other = PostgresStore(url, timeout=PATIENCE)
        now = other.now()
        assert len(claim(other, 1, owner="other", now=now, until=now + HOUR, most=1)) == 1
        other.close()
        go_on.set()
        assert late.result(PATIENCE) == []


def test_a_row_that_is_being_written_keeps_no_other_lease_from_being_renewed(
    store: Store, other: psycopg.Connection
) -> None:
    soon = store.now() + HOUR
    locked, free = (
        begin(store, "locked", owner="me", until=soon),
        begin(store, "free", owner="me", until=soon),
    )
    other.execute("SELECT FROM run WHERE key = %s FOR UPDATE", (locked.key,))
    assert store.renew([locked.key, free.key], "me", soon + 5) == []
    assert store.run("free") == replace(free, until=soon + 5)
    assert store.run("locked") == locked


@pytest.mark.parametrize("alone", [True, False])
def test_a_commit_that_was_not_carried_out_before_its_lease_ran_out_is_refused(
    store: Store, saboteur: Saboteur, other: psycopg.Connection, alone: bool
) -> None:
    run = begin(store, owner="me", until=store.now() + HOUR)
    another = begin(store, "another", owner="me", until=store.now() + HOUR)

    def expire() -> None:
        other.execute("UPDATE run SET until = 1 WHERE key = %s", (run.key,))
        other.commit()

    saboteur.lose("UPDATE run", after=False, then=expire)
    change = change_of(run, leased=True, events=[event()])
    if alone:
        with pytest.raises(LeaseExpired):
            store.append(change)
    else:
        refused, written = store.append_many([change, change_of(another, leased=True)])
        assert isinstance(refused, LeaseExpired)
        assert written == store.run("another")
    assert saboteur.lost == 1
    assert store.run("run") == replace(run, until=1)
    again = store.claim_again(run.key, "me", HOUR, None, event())
    assert again is not None
    assert store.append(change_of(again, leased=True)) == store.run("run")


def test_a_commit_that_was_carried_out_before_its_lease_ran_out_is_found(
    store: Store, saboteur: Saboteur, other: psycopg.Connection
) -> None:
    run = begin(store, owner="me", until=store.now() + HOUR)

    def expire() -> None:
        other.execute("UPDATE run SET until = 1 WHERE key = %s", (run.key,))
        other.commit()

    saboteur.lose("UPDATE run", after=True, then=expire)
    written = store.append(change_of(run, leased=True))
    assert saboteur.lost == 1
    assert store.run("run") == replace(written, until=1)
