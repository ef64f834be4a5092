"""The journal of a PostgreSQL store under concurrent writers, and notifications of other processes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from postgres_server import Proxy, address

from holdfast.errors import StoreUnavailable
from holdfast.store.postgres.append import SentChange
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.prepared import execute_prepared
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.protocol import Append
from holdfast.testing.samples import advanced, begin, commit, event, history, names, new_run, place

pytest_plugins = ["postgres_fixtures"]


def test_positions_become_visible_in_order_although_transactions_do_not(
    url: str, server: str, schema: str
) -> None:
    """A writer that has taken its position but not committed holds back what comes after it, and only that."""
    store = PostgresStore(url)
    early, run = history(store, 1, "early"), begin(store, "run")
    seen = store.journal_end()
    appender = store._appender
    with PostgresConnection.connect(server) as slow:
        slow.execute(f"SET search_path TO {schema}")
        change = Append(expect=early, run=advanced(early), events=[event("slow")])
        execute_prepared(slow, [appender._statement(SentChange(change, 1))])
        run = commit(store, run)
        run = store.append(Append(expect=run, run=advanced(run), events=[event("quick")]))
        assert store.journal(run=None, after=seen, limit=9) == []
        assert store.journal(run=run.key, after=seen, limit=9) == []
        assert store.journal_end() == seen
        assert names(store.journal(run=None, after=0, limit=9)) == [1]
        slow.commit()
    entries = store.journal(run=None, after=seen, limit=9)
    assert names(entries) == ["slow", 1, "quick"]
    assert store.journal_end() == place(entries[-1])
    with psycopg.connect(server) as slow:
        slow.execute(f"SET search_path TO {schema}")
        slow.execute(f"SELECT {appender._lock_positions}")
        slow.execute("SELECT nextval('journal_seq')")
        run = commit(store, run)
        assert store.journal(run=None, after=place(entries[-1]), limit=9) == []
        slow.rollback()
    assert names(store.journal(run=None, after=place(entries[-1]), limit=9)) == [2]
    store.close()


def test_reader_misses_nothing_of_many_writers(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(3)]
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        after = 0
        while True:
            last = done.is_set()
            page = stores[0].journal(run=None, after=after, limit=11)
            seen.extend(place(entry) for entry in page)
            after = seen[-1] if seen else 0
            if last and not page:
                return

    def write(number: int) -> None:
        run = new_run(f"run-{number}")
        for turn in range(40):
            run = commit(stores[number % 3], run, change={"events": [event(f"{turn}")] * (turn % 3)})

    with ThreadPoolExecutor(9) as pool:
        reader = pool.submit(follow)
        for writer in [pool.submit(write, number) for number in range(8)]:
            writer.result()
        done.set()
        reader.result()
    assert seen == [place(entry) for entry in stores[1].journal(run=None, after=0, limit=100_000)]
    assert len(seen) == 8 * (40 + sum(turn % 3 for turn in range(40)))
    for store in stores:
        store.close()


def test_commit_notifies_another_process(url: str) -> None:
    one, other = PostgresStore(url), PostgresStore(url)
    # The first notification is that of the new listener.
    assert other.wait_for_change(5)
    assert not other.wait_for_change(0.05)
    run = begin(one)
    start = time.monotonic()
    assert other.wait_for_change(60)
    assert time.monotonic() - start < 30
    while other.wait_for_change(0.2):
        pass
    commit(one, run)
    assert other.wait_for_change(5)
    one.close()
    other.close()
    with pytest.raises(StoreUnavailable):
        other.wait_for_change(5)


@pytest.mark.slow
def test_listener_reconnects(server: str, schema: str) -> None:
    with Proxy(server) as proxy:
        one, other = PostgresStore(address(server, schema)), PostgresStore(address(proxy.url, schema))
        assert other.wait_for_change(5)
        proxy.cut()
        assert other.wait_for_change(5)
        while other.wait_for_change(1.5):
            pass
        begin(one)
        assert other.wait_for_change(5)
        one.close()
        other.close()
