"""Contracts of what belongs to no single run: artifacts, small values, and the store as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from holdfast.errors import CorruptStore, NotFound, StaleVersion, StoreUnavailable
from holdfast.model.records import ArtifactRecord, MarkRecord, StoreStats
from holdfast.store.protocol import Append, Prune, Store
from holdfast.testing.samples import (
    ALL,
    advanced,
    begin,
    commit,
    content,
    digest,
    event,
    everything,
    history,
    imported,
    mark,
    new_run,
    numbers,
    stubs,
    upload,
)
from holdfast.tree.pack import Upload

_MIB = 1 << 20


def _read(store: Store, data: bytes) -> bytes:
    return b"".join(store.artifact_pieces(digest(data)))


def _breaks_off() -> Iterator[bytes]:
    yield b"the first part"
    raise OSError("the source is gone")


class ArtifactContract:
    """`put_artifact`, `artifact`, `artifact_pieces`, `artifacts`, `collect`, and what `append` brings."""

    def test_artifact_reads_back(self, store: Store) -> None:
        for size in (0, 1, 100_000, _MIB, _MIB + 1, 3 * _MIB):
            data = content("artifact", size)
            assert store.artifact(digest(data)) is None
            assert store.put_artifact(upload(data), 5)
            assert store.artifact(digest(data)) == ArtifactRecord(digest=digest(data), size=size, at=5)
            assert _read(store, data) == data
            assert _read(store, data) == data

    def test_large_artifact_is_read_in_pieces(self, store: Store) -> None:
        data = content("artifact", 3 * _MIB + 7)
        store.put_artifact(upload(data), 5)
        pieces = list(store.artifact_pieces(digest(data)))
        assert len(pieces) >= 3
        assert b"".join(pieces) == data

    def test_artifact_may_be_written_in_pieces_of_any_size(self, store: Store) -> None:
        data = content("artifact", 100_000)
        sizes = [1, 70_000, 1, 29_998]
        pieces = [data[sum(sizes[:index]) : sum(sizes[: index + 1])] for index in range(len(sizes))]
        store.put_artifact(Upload(digest(data), len(data), lambda: pieces), 5)
        assert _read(store, data) == data

    def test_readers_of_one_artifact_are_independent(self, store: Store) -> None:
        data = content("artifact", 3 * _MIB)
        store.put_artifact(upload(data), 5)
        pairs = list(
            zip(store.artifact_pieces(digest(data)), store.artifact_pieces(digest(data)), strict=True)
        )
        assert b"".join(one for one, _ in pairs) == b"".join(other for _, other in pairs) == data

    def test_artifact_is_stored_once(self, store: Store) -> None:
        assert store.put_artifact(upload(b"large"), 5)
        assert not store.put_artifact(upload(b"large"), 9)
        assert not store.put_artifact(upload(b"large"), 7)
        assert store.artifacts() == [ArtifactRecord(digest=digest(b"large"), size=5, at=9)]
        for name in ("one", "other"):
            commit(store, new_run(name), change={"uploads": [upload(b"large")], "holds": [digest(b"large")]})
        assert store.stats().artifacts == 1
        assert store.stats().artifact_bytes == 5
        assert _read(store, b"large") == b"large"

    def test_missing_artifact_is_not_found(self, store: Store) -> None:
        store.put_artifact(upload(b"large"), 5)
        with pytest.raises(NotFound):
            _read(store, b"other")
        assert store.artifact(digest(b"other")) is None

    def test_changed_source_is_refused_with_nothing_written(self, store: Store) -> None:
        run = history(store, 1)
        before = everything(store)
        for becomes in (b"", b"anothe", b"another one", content("x", 3 * _MIB)):
            changed = upload(b"another", becomes=becomes)
            parts = {
                "blocks": [b"block"],
                "tags": ["good"],
                "events": [event()],
                "uploads": [upload(b"large"), changed],
                "holds": [digest(b"large"), changed.digest],
            }
            with pytest.raises(CorruptStore):
                store.put_artifact(changed, 5)
            with pytest.raises(CorruptStore):
                commit(store, run, change=parts)
            with pytest.raises(CorruptStore):
                commit(store, new_run("new"), change=parts)
            assert everything(store) == before
        run = commit(store, run, change=parts | {"uploads": [upload(b"large"), upload(b"another")]})
        assert numbers(store.versions(run.key, tag="good")) == [2]
        assert _read(store, b"another") == b"another"

    def test_failing_source_leaves_nothing(self, store: Store) -> None:
        run = history(store, 1)
        before = everything(store)
        fails = Upload(digest(b"large"), 5, _breaks_off)
        with pytest.raises(Exception, match=r".+"):
            store.put_artifact(fails, 5)
        with pytest.raises(Exception, match=r".+"):
            commit(store, run, change={"uploads": [fails], "holds": [fails.digest]})
        assert everything(store) == before
        assert store.put_artifact(upload(b"large"), 5)

    def test_source_may_be_the_store_itself(self, store: Store) -> None:
        data = content("artifact", 2 * _MIB)
        store.put_artifact(upload(data), 5)
        again = Upload(digest(data), len(data), lambda: store.artifact_pieces(digest(data)))
        run = commit(store, new_run(), change={"uploads": [again], "holds": [digest(data)]})
        assert _read(store, data) == data
        assert run.last == 1

    def test_stored_artifact_can_be_held_without_its_content(self, store: Store) -> None:
        store.put_artifact(upload(b"large"), 5)
        run = commit(store, new_run(), change={"holds": [digest(b"large"), digest(b"large")]})
        assert store.collect(before=ALL) == (0, 0)
        store.delete_run(run)
        assert store.collect(before=ALL) == (1, 5)

    def test_released_artifacts_are_deleted_unless_held(self, store: Store) -> None:
        for data in (b"held", b"free", b"other"):
            store.put_artifact(upload(data), 5)
        run = commit(store, new_run(), change={"holds": [digest(b"held")]})
        assert store.release([]) == (0, 0)
        wanted = [digest(b"held"), digest(b"free"), digest(b"free"), digest(b"unknown")]
        assert store.release(wanted) == (1, 4)
        assert [record.digest for record in store.artifacts()] == sorted([digest(b"held"), digest(b"other")])
        with pytest.raises(NotFound):
            _read(store, b"free")
        store.delete_run(run)
        assert store.release(wanted) == (1, 4)
        assert store.release(wanted) == (0, 0)

    def test_artifacts_are_listed_by_digest(self, store: Store) -> None:
        datas = sorted((f"artifact {number}".encode() for number in range(9)), key=digest)
        for data in datas[::2] + datas[1::2]:
            store.put_artifact(upload(data), 5)
        listed = [ArtifactRecord(digest=digest(data), size=len(data), at=5) for data in datas]
        assert store.artifacts() == listed
        assert store.artifacts(limit=4) == listed[:4]
        assert store.artifacts(after=listed[3].digest, limit=4) == listed[4:8]
        assert store.artifacts(after=listed[-1].digest) == []

    def test_unheld_artifact_is_collected_when_old_enough(self, store: Store) -> None:
        store.put_artifact(upload(b"old"), 5)
        store.put_artifact(upload(b"young"), 6)
        assert store.collect(before=5) == (0, 0)
        assert store.collect(before=6) == (1, 3)
        assert store.artifact(digest(b"old")) is None
        with pytest.raises(NotFound):
            _read(store, b"old")
        assert _read(store, b"young") == b"young"
        store.put_artifact(upload(b"young"), 9)
        assert store.collect(before=9) == (0, 0)
        assert store.put_artifact(upload(b"old"), 5)
        assert _read(store, b"old") == b"old"
        assert store.collect(before=ALL) == (2, 8)
        assert store.artifacts() == []

    def test_artifact_of_two_runs_stays_until_both_are_deleted(self, store: Store) -> None:
        parts = {"uploads": [upload(b"large")], "holds": [digest(b"large")]}
        one = commit(store, new_run("one"), change=parts)
        other = commit(store, new_run("other"), change=parts)
        store.delete_run(one)
        assert store.collect(before=ALL) == (0, 0)
        assert _read(store, b"large") == b"large"
        store.delete_run(other)
        assert store.collect(before=ALL) == (1, 5)

    def test_uploaded_artifact_that_is_not_held_is_collected(self, store: Store) -> None:
        run = begin(store)
        store.append(Append(expect=run, run=advanced(run, updated=50), uploads=[upload(b"large")]))
        assert _read(store, b"large") == b"large"
        assert store.collect(before=50) == (0, 0)
        assert store.collect(before=51) == (1, 5)


class ValueContract:
    """`value`, `set_value`, `drop_value`, `value_names`."""

    def test_missing_value_reads_as_nothing(self, store: Store) -> None:
        assert store.value("breaker") is None

    def test_value_accepts_any_name(self, store: Store) -> None:
        for name in ("", "breaker", "breaker/plan#2", "Ünï→流\U0001f40b", "a%_'\"", "n" * 300):
            assert store.set_value(name, b"data", 0) > 0
            assert store.set_value(name + " ", b"other", 0) > 0
            found, other = store.value(name), store.value(name + " ")
            assert found is not None
            assert other is not None
            assert (found[0], other[0]) == (b"data", b"other")

    def test_value_reads_back_as_it_was_written(self, store: Store) -> None:
        for data in (b"", b"\0", b"\xff\xfe", b'{"state": "open"}', content("value", 1 << 20)):
            name = f"{len(data)} bytes"
            revision = store.set_value(name, data, 0)
            assert store.value(name) == (data, revision)
            after = store.set_value(name, data[::-1], revision)
            assert after != revision
            assert store.value(name) == (data[::-1], after)

    def test_value_revisions_are_not_reused(self, store: Store) -> None:
        revisions = [0]
        for turn in range(20):
            # The same data is a change like any other.
            revisions.append(store.set_value("breaker", b"%d" % (turn // 3), revisions[-1]))
        assert revisions == sorted(set(revisions))

    def test_value_with_another_revision_is_not_replaced(self, store: Store) -> None:
        first = store.set_value("breaker", b"first", 0)
        second = store.set_value("breaker", b"second", first)
        for expect in (0, first, second + 1, -1):
            with pytest.raises(StaleVersion):
                store.set_value("breaker", b"late", expect)
        assert store.value("breaker") == (b"second", second)
        for expect in (1, second, -1):
            with pytest.raises(StaleVersion):
                store.set_value("other", b"early", expect)
        assert store.value("other") is None

    def test_value_is_dropped_only_with_its_revision(self, store: Store) -> None:
        first = store.set_value("pulse", b"first", 0)
        second = store.set_value("pulse", b"second", first)
        store.set_value("pulse ", b"other", 0)
        for expect in (0, first, second + 1, -1):
            with pytest.raises(StaleVersion):
                store.drop_value("pulse", expect)
        assert store.value("pulse") == (b"second", second)
        store.drop_value("pulse", second)
        assert store.value("pulse") is None
        assert store.value("pulse ") is not None
        for expect in (0, 1, second):
            with pytest.raises(StaleVersion):
                store.drop_value("pulse", expect)
        with pytest.raises(StaleVersion):
            store.set_value("pulse", b"late", second)
        assert store.value("pulse") is None
        revision = store.set_value("pulse", b"again", 0)
        assert store.value("pulse") == (b"again", revision)
        assert store.check() == []

    def test_value_names_are_found_by_prefix(self, store: Store) -> None:
        names = sorted(
            [
                "",
                "a",
                "pulse",
                "pulse/",
                "pulse/1",
                "pulse/%",
                "pulse/_",
                "pulse/Ü",
                "pulse/\U0001f40b",
                "pulsf",
            ]
        )
        for name in reversed(names):
            store.set_value(name, b"", 0)
        assert store.value_names("") == names[1:]
        inside = [name for name in names if name.startswith("pulse/")]
        assert store.value_names("pulse/") == inside
        assert store.value_names("pulse/", limit=2) == inside[:2]
        assert store.value_names("pulse/", after=inside[1], limit=2) == inside[2:4]
        assert store.value_names("pulse/", after=inside[-1]) == []
        assert store.value_names("pulse/%") == ["pulse/%"]
        assert store.value_names("nothing") == []

    def test_values_and_runs_are_independent(self, store: Store) -> None:
        run = history(store, 3, "breaker")
        before = everything(store)
        revision = store.set_value("breaker", b"data", 0)
        assert everything(store) == before
        store.delete_run(run)
        store.compact()
        assert store.value("breaker") == (b"data", revision)
        assert store.check() == []


_CALLS: list[Callable[[Store], object]] = [
    lambda store: store.append(Append(expect=None, run=new_run("new"))),
    lambda store: store.append_many([Append(expect=None, run=new_run("new"))]),
    lambda store: store.run("run"),
    lambda store: store.revision("run"),
    lambda store: store.run_by_key(1),
    lambda store: store.run_ids("", 9),
    lambda store: store.runs(),
    lambda store: store.forks_of(1),
    lambda store: store.delete_run(new_run()),
    lambda store: store.import_run(imported(1, "new")),
    lambda store: store.versions(1),
    lambda store: store.packs(1, [1]),
    lambda store: store.block(1, 1, 0),
    lambda store: store.timelines(1),
    lambda store: store.marks(1),
    lambda store: store.set_mark(1, MarkRecord(number=1, name="good", at=1), on=True, event=event()),
    lambda store: store.journal(run=None, after=0, limit=9),
    lambda store: store.journal_end(),
    lambda store: store.prune(Prune(expect=new_run(), run=new_run(), drop=[1], thin=[])),
    lambda store: store.put_artifact(upload(b"large"), 1),
    lambda store: store.artifact(digest(b"large")),
    lambda store: list(store.artifact_pieces(digest(b"large"))),
    lambda store: store.artifacts(),
    lambda store: store.collect(before=1),
    lambda store: store.value("breaker"),
    lambda store: store.set_value("breaker", b"data", 0),
    lambda store: store.renew([1], "me", 9),
    lambda store: store.claim_again(1, "me", 9, None, event()),
    lambda store: store.open_questions(now=1),
    lambda store: store.questions_of(1),
    lambda store: store.waking_questions(1, 9),
    lambda store: store.stats(),
    lambda store: store.check(),
    lambda store: store.compact(),
]


class WholeStoreContract:
    """`stats`, `check`, `compact`, `close`."""

    def test_now_advances(self, store: Store) -> None:
        first = store.now()
        assert type(first) is int
        assert first > 1_600_000_000_000_000
        while (later := store.now()) == first:
            pass
        assert 0 < later - first < 60_000_000

    def test_stats_count_stored_records(self, store: Store) -> None:
        empty = StoreStats(runs=0, versions=0, events=0, artifacts=0, artifact_bytes=0, pack_bytes=0)
        assert replace(store.stats(), file_bytes=None) == empty
        run = commit(store, history(store, 4), change={"events": [event(), event()]})
        mark(store, run, 1, "good")
        store.put_artifact(upload(b"large"), 1)
        store.put_artifact(upload(b"larger"), 1)
        begin(store, "other", size=1_000)
        expected = StoreStats(runs=2, versions=5, events=3, artifacts=2, artifact_bytes=11, pack_bytes=1_200)
        assert replace(store.stats(), file_bytes=None) == expected
        after = advanced(run, kept=3, size=120)
        run = store.prune(Prune(expect=run, run=after, drop=[2], thin=stubs(3)))
        assert replace(store.stats(), file_bytes=None) == replace(expected, versions=3, pack_bytes=1_120)
        store.delete_run(run)
        assert store.stats().runs == 1
        assert store.stats().events == 0

    def test_intact_store_passes_its_check(self, store: Store) -> None:
        assert store.check() == []
        store.import_run(imported(500))
        assert store.check() == []

    def test_compacting_changes_no_data(self, store: Store) -> None:
        store.compact()
        data = content("artifact", 500_000)
        run = commit(store, history(store, 20), change={"uploads": [upload(data)], "holds": [digest(data)]})
        gone = store.import_run(imported(500, "gone"))
        run = store.prune(Prune(expect=run, run=advanced(run), drop=[2, 3], thin=stubs(4)))
        store.delete_run(gone)
        before = everything(store)
        store.compact()
        assert everything(store) == before
        assert commit(store, run).last == 22
        assert store.check() == []

    def test_closing_twice_is_harmless(self, store: Store) -> None:
        history(store, 1)
        store.close()
        store.close()

    def test_closed_store_refuses_every_method(self, store: Store) -> None:
        history(store, 1)
        store.close()
        for call in _CALLS:
            with pytest.raises(StoreUnavailable):
                call(store)
