"""Items in a database: damaged rows are reported and never served, costs do not grow, vectors without pgvector."""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from postgres_server import address

from database import Database
from holdfast.errors import CorruptStore
from holdfast.model.records import ItemRecord
from holdfast.store import vectors
from holdfast.store.items import decode_namespace, encode_namespace
from holdfast.store.memory.items import MemoryItems
from holdfast.store.postgres.connection import TransactionAborted
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.protocol import ItemKey, ItemPut, Store
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.conformance.items import ItemVectorContract

pytest_plugins = ["postgres_fixtures"]


def _put(store: Store, namespace: tuple[str, ...], key: str, data: bytes = b"value") -> None:
    record = ItemRecord(namespace=namespace, key=key, data=data, created=1, updated=1, ttl=5, expires=6)
    store.put_items([ItemPut(record, [struct.pack("<2f", 1, 0)])])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


_DAMAGE = [
    "UPDATE item SET data = x'00' WHERE key = 'bad'",
    "UPDATE item SET data = 'text' WHERE key = 'bad'",
    "UPDATE item SET created = created + 1 WHERE key = 'bad'",
    "UPDATE item SET updated = 0 WHERE key = 'bad'",
    "UPDATE item SET ttl = NULL WHERE key = 'bad'",
    "UPDATE item SET expires = NULL WHERE key = 'bad'",
    "UPDATE item SET sum = x'00' WHERE key = 'bad'",
    "UPDATE item SET data = (SELECT data FROM item WHERE key = 'good') WHERE key = 'bad'",
]


@pytest.mark.parametrize("statement", _DAMAGE)
def test_damaged_item_is_refused_and_the_rest_is_readable(path: Path, statement: str) -> None:
    with closing(SQLiteStore(path)) as store:
        _put(store, ("a",), "bad", b"other value")
        _put(store, ("a",), "good")
    with closing(Database(path)) as database:
        database.execute(statement.replace("'bad'", "x'626164'").replace("'good'", "x'676f6f64'"))
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(CorruptStore, match=r"'bad'.*put it again"):
            store.items([ItemKey(("a",), "bad")])
        assert len(store.items([ItemKey(("a",), "good")])) == 1
        assert any("'bad'" in finding for finding in store.check())
        _put(store, ("a",), "bad")
        assert len(store.items([ItemKey(("a",), "bad")])) == 1
        assert store.check() == []


def test_cosine_of_vectors_beyond_the_squares_of_a_float_is_exact() -> None:
    keys = [ItemKey(("a",), name) for name in ("largest", "large", "small", "usual")]
    stored = [
        struct.pack("<2f", *numbers) for numbers in ((3e38, 3e38), (2e19, 2e19), (1e-30, 1e-30), (1, 0.5))
    ]
    for query in ((1, 1), (1e-30, 1e-30), (3e38, 3e38)):
        found = vectors.rank(list(zip(keys, stored, strict=True)), struct.pack("<2f", *query), "cosine", 10)
        assert {key.key: round(score, 3) for score, key in found} == {
            "largest": 1,
            "large": 1,
            "small": 1,
            "usual": 0.949,
        }


def test_damaged_vector_is_refused_and_reported(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        _put(store, ("a",), "bad")
        _put(store, ("b",), "good")
    with closing(Database(path)) as database:
        database.execute("UPDATE item_vector SET vector = zeroblob(8) WHERE key = x'626164'")
        database.execute("DELETE FROM item WHERE key = x'676f6f64'")
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(CorruptStore, match="vector of item 'bad'"):
            store.nearest_items((), struct.pack("<2f", 1, 0), "cosine", 10)
        found = store.check()
    assert len(found) == 2
    assert "vector of item 'bad'" in found[0]
    assert "belong to no item" in found[1]


def test_vector_of_another_type_is_refused_and_reported(path: Path) -> None:
    """`bytes` of a number would allocate as many zeros."""
    with closing(SQLiteStore(path)) as store:
        _put(store, ("a",), "bad")
    with closing(Database(path)) as database:
        database.execute(f"UPDATE item_vector SET vector = {1 << 62}")
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(CorruptStore):
            store.nearest_items((), struct.pack("<2f", 1, 0), "cosine", 10)
        assert store.check() != []


@pytest.mark.parametrize("deletes", [False, True])
def test_vector_without_an_item_is_replaced_or_deleted_by_its_name(path: Path, deletes: bool) -> None:
    with closing(SQLiteStore(path)) as store:
        _put(store, ("a",), "k")
    with closing(Database(path)) as database:
        database.execute("DELETE FROM item")
    with closing(SQLiteStore(path)) as store:
        assert store.check() != []
        if deletes:
            store.put_items([], [ItemKey(("a",), "k")])
        else:
            _put(store, ("a",), "k")
        assert store.check() == []


def test_missing_and_lost_terms_are_reported_and_mended_by_a_put(path: Path) -> None:
    record = ItemRecord(namespace=("a",), key="k", data=b"v", created=1, updated=1, terms=(b"1", b"2"))
    for statement, message in (
        ("DELETE FROM item_term WHERE term = x'31'", "index of item 'k'"),
        ("UPDATE item_term SET term = x'33' WHERE term = x'31'", "index of item 'k'"),
        ("UPDATE item_term SET updated = 0 WHERE term = x'31'", "belong to no item"),
        ("UPDATE item SET terms = x'90'", "'k'"),
        ("UPDATE item SET terms = x'00'", "'k'"),
        ("UPDATE item SET updated = 0", "'k'"),
    ):
        with closing(SQLiteStore(path)) as store:
            store.put_items([ItemPut(record)])
            assert store.check() == []
        with closing(Database(path)) as database:
            database.execute(statement)
        with closing(SQLiteStore(path)) as store:
            assert any(message in finding for finding in store.check()), statement
            store.put_items([ItemPut(replace(record, updated=2, terms=(b"3",)))])
            assert store.check() == [], statement


def test_namespaces_have_distinct_bytes_in_the_order_of_labels() -> None:
    labels = ["", "\0", "\0\0", "\x01", "a", "a\0", "a\0\0b", "a\x01", "b", "é", "\ud800", "\uffff", "𝄞"]
    names = sorted([(), *((one,) for one in labels), *((one, two) for one in labels for two in labels)])
    encoded = [encode_namespace(name) for name in names]
    assert encoded == sorted(set(encoded))
    assert [decode_namespace(data) for data in encoded] == names


def test_empty_store_has_no_indexes_of_items(path: Path) -> None:
    """An empty index takes a page of each file."""
    with closing(SQLiteStore(path)) as store:
        find = "SELECT name FROM sqlite_schema WHERE type = 'index' AND name LIKE 'item_%'"
        with closing(Database(path)) as database:
            assert database.execute(find).fetchall() == []
        _put(store, ("a",), "k")
        with closing(Database(path)) as database:
            assert len(database.execute(find).fetchall()) == 2


class TestWithoutNumpy(ItemVectorContract):
    """Vectors are compared in plain Python."""

    @pytest.fixture
    def store(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        monkeypatch.setattr(vectors, "_numpy", lambda: None)
        with closing(SQLiteStore(path)) as store:
            yield store


class TestPostgresWithoutPgvector(ItemVectorContract):
    """The user of the store may not create the extension in a database that lacks it."""

    @pytest.fixture
    def store(self, server: str) -> Iterator[Store]:
        name = f"test_{uuid.uuid4().hex[:16]}"
        base = psycopg.conninfo.conninfo_to_dict(server)
        own = f"postgresql://{name}@/{name}?host={base['host']}"
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {name} LOGIN")
            admin.execute(f"CREATE DATABASE {name}")
            with psycopg.connect(server, dbname=name, autocommit=True) as inside:
                inside.execute(f"CREATE SCHEMA holdfast AUTHORIZATION {name}")
            try:
                with closing(PostgresStore(address(own, "holdfast"))) as store:
                    yield store
                with psycopg.connect(server, dbname=name, autocommit=True) as inside:
                    assert (
                        inside.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone()
                        is None
                    )
            finally:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
                admin.execute(f"DROP ROLE {name}")


def test_pgvector_is_created_outside_the_schema_of_the_store(server: str, url: str, schema: str) -> None:
    with closing(PostgresStore(url)) as store:
        _put(store, ("a",), "k")
        assert len(store.nearest_items((), struct.pack("<2f", 1, 0), "cosine", 1)) == 1
    with psycopg.connect(server, autocommit=True) as connection:
        found = connection.execute(
            "SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'vector'"
        ).fetchone()
    assert found is not None
    assert found[0] != schema


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[TransactionAborted]:
    """The transactions that PostgreSQL ended, as one of a deadlock after a second, and that are repeated."""
    found: list[TransactionAborted] = []
    prepare = TransactionAborted.__init__

    def record(error: TransactionAborted, *args: Any) -> None:
        found.append(error)
        prepare(error, *args)

    monkeypatch.setattr(TransactionAborted, "__init__", record)
    return found


def test_renewals_and_puts_of_the_same_items_do_not_deadlock(
    url: str, repeated: list[TransactionAborted]
) -> None:
    """A renewal has the order of names, a put has its deletes last."""
    item = ItemRecord(namespace=("a",), key="", data=b"", created=1, updated=1, ttl=100, expires=101)
    keys = [ItemKey(("a",), key) for key in ("first", "last")]
    barrier = threading.Barrier(2, timeout=60)

    def renew() -> None:
        for _ in range(60):
            read = store.items(keys)
            barrier.wait()
            store.renew_items(read, 50)
            barrier.wait()

    with closing(PostgresStore(url)) as store:
        store.put_items([ItemPut(replace(item, key=key.key)) for key in keys])
        thread = threading.Thread(target=renew)
        thread.start()
        for _ in range(60):
            barrier.wait()
            store.put_items([ItemPut(replace(item, key="last"))], [keys[0]])
            barrier.wait()
            store.put_items([ItemPut(replace(item, key="first"))])
        thread.join()
        assert repeated == []


def test_puts_and_deletes_of_the_same_items_do_not_deadlock(
    url: str, repeated: list[TransactionAborted]
) -> None:
    writers = [("x", "y"), ("y", "x")] * 2
    barrier = threading.Barrier(len(writers))
    item = ItemRecord(namespace=("a",), key="", data=b"", created=1, updated=1, terms=(b"1",))

    def write(new: str, gone: str) -> None:
        for _ in range(25):
            barrier.wait()
            store.put_items([ItemPut(replace(item, key=new))], [ItemKey(("a",), gone)])

    with closing(PostgresStore(url)) as store:
        threads = [threading.Thread(target=write, args=names) for names in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert repeated == []
        assert len(store.recent_items(())) == 1
        assert store.check() == []


def test_sweep_skips_items_that_are_being_put(url: str, server: str, schema: str) -> None:
    """Waiting for one, it could wait for a put that waits for it."""
    item = ItemRecord(
        namespace=("a",), key="", data=b"", created=1, updated=1, ttl=5, expires=6, terms=(b"1",)
    )
    with closing(PostgresStore(url)) as store, psycopg.connect(server) as other:
        store.put_items([ItemPut(replace(item, key=key)) for key in ("locked", "free")])
        other.execute(f"SELECT 1 FROM {schema}.item WHERE key = 'locked'::bytea FOR UPDATE")
        assert store.sweep_items(10, 100) == 1
        other.rollback()
        assert store.sweep_items(10, 100) == 1
        assert store.check() == []


def test_longest_names_fit_the_indexes_of_postgresql(url: str) -> None:
    """Random bytes, which PostgreSQL cannot compress."""
    from holdfast.items import MAX_NAME

    text = "".join(chr(0x100 + int(digit, 16)) for digit in (uuid.uuid4().hex * 200))
    namespace, key = text[: (MAX_NAME - 1) // 2], text[-MAX_NAME // 2 :]
    with closing(PostgresStore(url)) as store:
        _put(store, (namespace,), key)
        assert len(store.items([ItemKey((namespace,), key)])) == 1
        assert store.namespaces((), now=0) == [(namespace,)]


def test_memory_reads_no_namespaces_before_it_has_the_lock() -> None:
    waiting: list[ItemKey] = []

    @contextmanager
    def lock() -> Iterator[None]:
        """Another thread has the lock first, and deletes."""
        if waiting:
            items.put([], [waiting.pop()])
        yield

    items = MemoryItems(lock)
    for namespace in ("a", "x"):
        record = ItemRecord(namespace=(namespace,), key="k", data=b"", created=1, updated=1)
        items.put([ItemPut(record)])
    waiting.append(ItemKey(("a",), "k"))
    assert items.namespaces(("x",), now=1) == [("x",)]
