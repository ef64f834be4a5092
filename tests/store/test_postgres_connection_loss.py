"""Lost answers: written changes are found, others are written, and unknown outcomes are reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from postgres_server import Proxy, address

from holdfast.errors import CommitUnknown, NotFound, StaleVersion, StoreBusy, StoreUnavailable
from holdfast.model.records import MarkRecord, RunRecord, TimelineRecord
from holdfast.store.memory.store import MemoryStore
from holdfast.store.postgres import append, attachments, prepared
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.prepared import PreparedStatement
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.protocol import Append, Prune, Store
from holdfast.testing.samples import (
    HOUR,
    advanced,
    attachment,
    begin,
    change_of,
    commit,
    digest,
    event,
    everything,
    history,
    imported,
    names,
    new_run,
    next_version,
    numbers,
    stubs,
    upload,
)

pytest_plugins = ["postgres_fixtures"]


class Saboteur:
    """Loses the answer to the next statement that contains a text, before or after it was carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: str | None = None
        self.after = True
        self.then: Callable[[], object] = lambda: None
        self.lost = 0
        execute, carry_out = PostgresConnection.execute, prepared.execute_prepared

        def executed(connection: PostgresConnection, statement: Any, *args: Any, **options: Any) -> Any:
            return self._sent(connection, statement, lambda: execute(connection, statement, *args, **options))

        def carried_out(
            connection: PostgresConnection, statements: Sequence[PreparedStatement]
        ) -> list[list[int]]:
            texts = " ".join(statement.text for statement in statements)
            found: list[list[int]] = self._sent(connection, texts, lambda: carry_out(connection, statements))
            return found

        monkeypatch.setattr(PostgresConnection, "execute", executed)
        monkeypatch.setattr(append, "execute_prepared", carried_out)
        monkeypatch.setattr(attachments, "execute_prepared", carried_out)

    def _sent(self, connection: PostgresConnection, text: str, send: Callable[[], Any]) -> Any:
        if self.words is None or self.words not in text:
            return send()
        self.words = None
        self.lost += 1
        if self.after:
            send()
        connection.pgconn.finish()
        self.then()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def lose(self, words: str, *, after: bool, then: Callable[[], object] = lambda: None) -> None:
        self.words, self.after, self.then = words, after, then


@pytest.fixture
def saboteur(monkeypatch: pytest.MonkeyPatch) -> Saboteur:
    return Saboteur(monkeypatch)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url, timeout=2)
    yield store
    store.close()


@pytest.fixture
def other(url: str, store: PostgresStore) -> Iterator[PostgresStore]:
    other = PostgresStore(url)
    yield other
    other.close()


both = pytest.mark.parametrize("after", [True, False], ids=["written", "not written"])


@both
def test_version_is_written_once(store: PostgresStore, saboteur: Saboteur, after: bool) -> None:
    run = history(store, 2)
    saboteur.lose("UPDATE run", after=after)
    run = commit(store, run, change={"tags": ["good"], "events": [event("one")], "blocks": [b"block"]})
    assert saboteur.lost == 1
    assert (run.last, store.run("run")) == (3, run)
    assert names(store.journal(run=run.key, after=0, limit=9)) == [1, 2, 3, "one"]
    assert commit(store, run).last == 4


@both
def test_run_is_created_once(store: PostgresStore, saboteur: Saboteur, after: bool) -> None:
    saboteur.lose("INSERT INTO run", after=after)
    run = commit(store, new_run())
    assert saboteur.lost == 1
    assert store.runs() == [run]
    assert names(store.journal(run=run.key, after=0, limit=9)) == [1]


@both
def test_change_without_a_version_is_written_once(
    store: PostgresStore, saboteur: Saboteur, after: bool
) -> None:
    run = begin(store)
    saboteur.lose("UPDATE run", after=after)
    changed = store.append(Append(expect=run, run=advanced(run, status="paused"), events=[event("paused")]))
    assert saboteur.lost == 1
    assert store.run("run") == changed
    assert names(store.journal(run=run.key, after=0, limit=9)) == ["paused"]


@both
def test_batch_is_written_once(store: PostgresStore, saboteur: Saboteur, after: bool) -> None:
    runs = [history(store, 1, f"run-{number}") for number in range(3)]
    saboteur.lose("UPDATE run", after=after)
    found = store.append_many(
        [*map(change_of, runs), change_of(new_run("new")), change_of(replace(runs[0], revision=9))]
    )
    assert saboteur.lost == 1
    assert [run.last for run in found if isinstance(run, RunRecord)] == [2, 2, 2, 1]
    assert isinstance(found[-1], StaleVersion)
    assert sorted(names(store.journal(run=None, after=0, limit=99))) == [1, 1, 1, 1, 2, 2, 2]


@both
def test_commit_of_a_faster_writer_is_recognized(
    store: PostgresStore, other: PostgresStore, saboteur: Saboteur, after: bool
) -> None:
    """A change that was written before another writer continued is kept; one that was not is refused."""
    run = history(store, 1)

    def overtake() -> None:
        now = other.run("run")
        assert now is not None
        commit(other, now, step="of another")

    saboteur.lose("UPDATE run", after=after, then=overtake)
    if after:
        assert commit(store, run, step="ours").last == 2
        assert [record.step for record in store.versions(run.key)] == ["of another", "ours", "step-1"]
    else:
        with pytest.raises(StaleVersion):
            commit(store, run, step="ours")
        assert [record.step for record in store.versions(run.key)] == ["of another", "step-1"]


def test_run_of_another_writer_is_recognized(
    store: PostgresStore, other: PostgresStore, saboteur: Saboteur
) -> None:
    saboteur.lose("INSERT INTO run", after=False, then=lambda: begin(other, "run"))
    with pytest.raises(StaleVersion):
        begin(store, "run")
    assert len(store.runs()) == 1


@both
def test_version_with_a_key_is_written_once(store: PostgresStore, saboteur: Saboteur, after: bool) -> None:
    """A version that was written does not take its own key for that of another."""
    run = commit(store, new_run(), key="one")
    saboteur.lose("UPDATE run", after=after)
    made = [attachment("two")]
    run = commit(store, run, key="two", change={"attachments": made})
    assert saboteur.lost == 1
    assert [record.key for record in store.keyed_versions(run.key)] == ["two", "one"]
    assert store.attachments(run.key) == made
    saboteur.lose("UPDATE run", after=after)
    with pytest.raises(StaleVersion):
        commit(store, run, key="one")
    assert saboteur.lost == 2
    assert store.run("run") == run


@both
def test_batch_with_keys_is_written_once(store: PostgresStore, saboteur: Saboteur, after: bool) -> None:
    """Six changes share a statement. A key that is taken is refused, and not taken for an expired lease."""
    until = store.now() + HOUR
    runs = [commit(store, new_run(f"run-{number}", owner="me", until=until), key="a") for number in range(6)]
    changes = []
    for number, run in enumerate(runs):
        made, then = next_version(run, key="a" if number == 4 else "b")
        changes.append(Append(expect=run, run=then, version=made, leased=True))
    saboteur.lose("UPDATE run", after=after)
    found = store.append_many(changes)
    assert saboteur.lost == 1
    for number, (run, outcome) in enumerate(zip(runs, found, strict=True)):
        keys = [record.key for record in store.keyed_versions(run.key)]
        if number == 4:
            assert isinstance(outcome, StaleVersion)
            assert (store.run(run.id), keys) == (run, ["a"])
        else:
            assert (store.run(run.id), keys) == (outcome, ["b", "a"])


@both
def test_key_of_a_faster_writer_is_recognized(
    store: PostgresStore, other: PostgresStore, saboteur: Saboteur, after: bool
) -> None:
    """Another writer takes the key before the change is sent again."""
    run = history(store, 1)

    def overtake() -> None:
        now = other.run("run")
        assert now is not None
        commit(other, now, key="theirs" if after else "ours")

    saboteur.lose("UPDATE run", after=after, then=overtake)
    if after:
        assert commit(store, run, key="ours").last == 2
        assert [record.key for record in store.versions(run.key)] == ["theirs", "ours", None]
    else:
        with pytest.raises(StaleVersion):
            commit(store, run, key="ours")
        assert [record.key for record in store.versions(run.key)] == ["ours", None]


@both
def test_attachments_are_stored_once(store: PostgresStore, saboteur: Saboteur, after: bool) -> None:
    """The names that were stored are reported, although the second try finds them stored."""
    run = history(store, 1)
    taken = attachment("key", "b", data=b"taken")
    store.attach(run.key, [taken], replace=False)
    made = [attachment("key", name) for name in "abc"]
    saboteur.lose("INTO attachment", after=after)
    assert store.attach(run.key, made, replace=False) == [True, False, True]
    assert saboteur.lost == 1
    assert store.attachments(run.key) == [made[0], taken, made[2]]
    saboteur.lose("INTO attachment", after=after)
    assert store.attach(run.key, made, replace=True) == [True, True, True]
    assert store.attachments(run.key) == made


def test_attachments_of_a_run_that_is_deleted_meanwhile_are_refused(
    store: PostgresStore, other: PostgresStore, saboteur: Saboteur
) -> None:
    run = history(store, 1)
    saboteur.lose("INTO attachment", after=True, then=lambda: other.delete_run(run))
    with pytest.raises(NotFound):
        store.attach(run.key, [attachment("key")], replace=True)
    assert store.attachments(run.key) == []
    assert store.check() == []


@pytest.mark.slow
def test_attaching_without_an_answer_is_unknown_only_if_it_was_sent(
    url: str, saboteur: Saboteur, monkeypatch: Any
) -> None:
    store = PostgresStore(f"{url}&pool=1", timeout=2)
    run = history(store, 1)

    def refuse(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("connection refused")

    saboteur.lose(
        "INTO attachment",
        after=True,
        then=lambda: monkeypatch.setattr(PostgresConnection, "connect", refuse),
    )
    with pytest.raises(CommitUnknown, match="'key'") as unknown:
        store.attach(run.key, [attachment("key")], replace=True)
    assert unknown.value.details["keys"] == ["key"]
    with pytest.raises(StoreUnavailable):
        store.attach(run.key, [attachment("key")], replace=True)
    store.close()
    with pytest.raises(StoreUnavailable):
        store.attach(run.key, [attachment("key")], replace=True)


def test_indistinguishable_outcome_is_unknown(
    store: PostgresStore, other: PostgresStore, saboteur: Saboteur
) -> None:
    """A change that leaves no trace of its own, followed by one of another writer."""
    run = begin(store)

    def overtake() -> None:
        for _ in range(2):
            now = other.run("run")
            assert now is not None
            other.append(Append(expect=now, run=advanced(now, status="paused")))

    saboteur.lose("UPDATE run", after=False, then=overtake)
    with pytest.raises(CommitUnknown, match="'run'") as unknown:
        store.append(Append(expect=run, run=advanced(run, status="paused")))
    assert unknown.value.details == {"run": "run", "revision": 2}
    assert unknown.value.code == "commit_unknown"


@pytest.mark.slow
def test_commit_without_an_answer_is_unknown(url: str, saboteur: Saboteur, monkeypatch: Any) -> None:
    # A second connection, which the notifier may have opened, could still ask.
    store = PostgresStore(f"{url}&pool=1", timeout=2)
    run = history(store, 1)

    def gone() -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise psycopg.OperationalError("connection refused")

        monkeypatch.setattr(PostgresConnection, "connect", refuse)

    saboteur.lose("UPDATE run", after=True, then=gone)
    with pytest.raises(CommitUnknown):
        commit(store, run)
    with pytest.raises(StoreUnavailable):
        store.run("run")
    store.close()


_SEVERAL: dict[str, Callable[[Store, RunRecord], object]] = {
    "mark": lambda store, run: store.set_mark(
        run.key, MarkRecord(number=1, name="good", at=7), on=True, event=event("marked")
    ),
    "value": lambda store, run: store.set_value("breaker", b"data", 0),
    "prune": lambda store, run: store.prune(
        Prune(
            expect=run,
            run=advanced(run),
            drop=[1],
            thin=stubs(2),
            keys=["key"],
            events=[event("pruned")],
        )
    ),
    "delete": lambda store, run: store.delete_run(run),
    "artifact": lambda store, run: store.put_artifact(upload(b"large"), 5),
    "held": lambda store, run: commit(
        store, run, change={"uploads": [upload(b"large")], "holds": [digest(b"large")]}
    ),
    "collect": lambda store, run: store.collect(before=10),
    "timeline": lambda store, run: store.append(
        Append(
            expect=run,
            run=advanced(run),
            timeline=TimelineRecord(number=2, parent=1, at=5),
            uploads=[upload(b"x")],
        )
    ),
    "import": lambda store, run: store.import_run(imported(3, "imported", attachments=[attachment("key")])),
}


@pytest.mark.parametrize("use", _SEVERAL.values(), ids=_SEVERAL)
def test_transaction_whose_commit_is_not_answered_is_resolved(
    store: PostgresStore, saboteur: Saboteur, use: Callable[[Store, RunRecord], object]
) -> None:
    """The store equals one in which no answer was lost."""
    reference = MemoryStore()
    runs = [history(each, 3) for each in (store, reference)]
    for each in (store, reference):
        each.put_artifact(upload(b"old"), 3)
        each.attach(runs[0].key, [attachment("key"), attachment("other")], replace=True)
    saboteur.lose("COMMIT", after=True)
    assert use(store, runs[0]) == use(reference, runs[1])
    assert saboteur.lost == 1
    ours, theirs = everything(store), everything(reference)
    assert ours["stats"] == theirs["stats"]
    assert ours["artifacts"] == theirs["artifacts"]
    assert names(ours["journal"]) == names(theirs["journal"])
    assert store.value("breaker") == reference.value("breaker")
    for run in reference.runs():
        assert store.attachments(run.key) == reference.attachments(run.key)


@pytest.mark.parametrize("use", _SEVERAL.values(), ids=_SEVERAL)
def test_transaction_lost_before_its_commit_is_repeated(
    store: PostgresStore, saboteur: Saboteur, use: Callable[[Store, RunRecord], object]
) -> None:
    run = history(store, 3)
    before = everything(store)
    saboteur.lose("COMMIT", after=False)
    try:
        use(store, run)
    except StoreUnavailable:
        # The source of an import cannot be read again.
        assert everything(store) == before
    assert saboteur.lost == 1
    assert store.check() == []


@pytest.mark.slow
def test_stalled_connection_is_replaced_within_six_seconds(server: str, schema: str) -> None:
    with Proxy(server) as proxy:
        store = PostgresStore(address(proxy.url, schema))
        run = history(store, 1)
        # Until the connection is dropped: the time that the server then takes depends on the machine.
        asks: list[Callable[[], bool]] = [
            lambda: store.run("run") == run,
            lambda: commit(store, run).last == 2,
        ]
        for ask in asks:
            proxy.stall()
            known, start = len(proxy.accepted), time.monotonic()
            assert ask()
            assert proxy.accepted[known] - start < 6.5
        store.close()


@pytest.mark.slow
def test_stalled_connection_after_a_broken_one_leaves_time_for_another(server: str, schema: str) -> None:
    with Proxy(server) as proxy:
        store = PostgresStore(address(proxy.url, schema), timeout=20)
        faults = iter((proxy.cut, proxy.stall))

        def work(connection: PostgresConnection) -> Any:
            fault = next(faults, None)
            if fault is not None:
                fault()
            return connection.execute("SELECT 7").fetchone()

        assert store._pool.read(work) == (7,)
        assert next(faults, None) is None
        store.close()


def test_threads_share_a_transaction(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    send = store._appender._send

    def counted(connection: PostgresConnection, batch: Any) -> None:
        sizes.append(len(batch))
        time.sleep(0.01)
        send(connection, batch)

    monkeypatch.setattr(store._appender, "_send", counted)

    def write(number: int) -> None:
        run = new_run(f"run-{number}")
        for _ in range(5):
            run = commit(store, run)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(sizes) == 80
    assert max(sizes) > 8
    assert numbers(store.versions(store.runs()[0].key)) == [5, 4, 3, 2, 1]


def test_locked_run_is_busy_after_the_timeout(url: str, server: str, schema: str) -> None:
    """The server reports the lock: no outcome is unknown."""
    store, patient = PostgresStore(url, timeout=1), PostgresStore(url)
    run = history(store, 1)
    with psycopg.connect(server) as locker:
        locker.execute(f"SELECT FROM {schema}.run WHERE key = %s FOR UPDATE", (run.key,))
        for write in (
            lambda: commit(store, run),
            lambda: store.append_many([change_of(run), change_of(new_run("x"))]),
            lambda: store.attach(run.key, [attachment("key")], replace=True),
        ):
            with pytest.raises(StoreBusy, match="locked by another writer"):
                write()
        waiting = threading.Timer(0.2, locker.rollback)
        waiting.start()
        assert commit(patient, run).last == 2
        waiting.join()
    assert store.run("x") is None
    store.close()
    patient.close()


@pytest.mark.parametrize("count", [1, 2, 6], ids=["alone", "pipeline", "one statement"])
def test_backend_that_ends_between_a_statement_and_its_commit_loses_nothing(
    store: PostgresStore, server: str, schema: str, count: int
) -> None:
    """The statements have returned their results; only the commit fails."""
    runs = [history(store, 1, f"run-{number}") for number in range(count)]
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'SET search_path = "{schema}"')
        admin.execute("CREATE SEQUENCE commits")
        admin.execute(
            f"""CREATE FUNCTION die_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('"{schema}".commits') = 1 THEN
                    PERFORM pg_terminate_backend(pg_backend_pid());
                    PERFORM pg_sleep(10);
                END IF;
                RETURN NULL;
            END $$"""
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON journal DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION die_once()"
        )
        found = store.append_many([change_of(run) for run in runs])
        tried = admin.execute("SELECT last_value FROM commits").fetchone()
    assert tried == (count + 1,), "the first commit failed, the second did not"
    for run, written in zip(runs, found, strict=True):
        assert store.run(run.id) == written
        assert names(store.journal(run=run.key, after=0, limit=9)) == [1, 2]
