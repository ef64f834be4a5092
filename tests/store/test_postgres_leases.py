"""Leases on PostgreSQL: rows that are being written, and answers that are lost until the lease has expired."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from test_postgres_connection_loss import Saboteur

from holdfast.errors import LeaseExpired
from holdfast.store.postgres import queue
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.protocol import Store
from holdfast.testing.conformance.queues import claim, enqueue, ids
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


def test_run_that_is_being_renewed_counts_as_owned(store: Store, other: psycopg.Connection) -> None:
    """SKIP LOCKED skips it, but it still counts as owned."""
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


def test_claim_of_a_suspended_process_is_ended(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the transaction; the process claims again and finds the queue full."""
    monkeypatch.setattr(queue, "_IDLE", 0.5)
    stopped, go_on = threading.Event(), threading.Event()
    look = queue._read_or_remove

    def stop_first(*given: Any) -> Any:
        if not stopped.is_set():
            stopped.set()
            assert go_on.wait(PATIENCE)
        return look(*given)

    monkeypatch.setattr(queue, "_read_or_remove", stop_first)
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


def test_renewal_skips_a_row_that_is_being_written(store: Store, other: psycopg.Connection) -> None:
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
def test_lost_commit_is_refused_after_its_lease_expired(
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


def test_lost_commit_before_its_lease_expired_is_found(
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
