"""Contracts of artifacts: contents are kept whole or not at all, and for as long as a version holds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.errors import CorruptStore, NotFound
from holdfast.model.records import ArtifactRecord
from holdfast.store.base import Append, Store
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
    new_run,
    numbers,
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

    @pytest.mark.parametrize("size", [0, 1, 100_000, _MIB, _MIB + 1, 3 * _MIB])
    def test_a_content_reads_back(self, store: Store, size: int) -> None:
        data = content("artifact", size)
        assert store.artifact(digest(data)) is None
        assert store.put_artifact(upload(data), 5)
        assert store.artifact(digest(data)) == ArtifactRecord(digest=digest(data), size=size, at=5)
        assert _read(store, data) == data
        assert _read(store, data) == data

    def test_a_large_content_comes_in_pieces(self, store: Store) -> None:
        data = content("artifact", 3 * _MIB + 7)
        store.put_artifact(upload(data), 5)
        pieces = list(store.artifact_pieces(digest(data)))
        assert len(pieces) >= 3
        assert b"".join(pieces) == data

    def test_a_content_may_come_in_pieces_of_any_size(self, store: Store) -> None:
        data = content("artifact", 100_000)
        sizes = [1, 70_000, 1, 29_998]
        pieces = [data[sum(sizes[:index]) : sum(sizes[: index + 1])] for index in range(len(sizes))]
        store.put_artifact(Upload(digest(data), len(data), lambda: pieces), 5)
        assert _read(store, data) == data

    def test_two_readers_of_one_content_do_not_disturb_each_other(self, store: Store) -> None:
        data = content("artifact", 3 * _MIB)
        store.put_artifact(upload(data), 5)
        pairs = list(
            zip(store.artifact_pieces(digest(data)), store.artifact_pieces(digest(data)), strict=True)
        )
        assert b"".join(one for one, _ in pairs) == b"".join(other for _, other in pairs) == data

    def test_a_content_is_kept_once(self, store: Store) -> None:
        assert store.put_artifact(upload(b"large"), 5)
        assert not store.put_artifact(upload(b"large"), 9)
        assert not store.put_artifact(upload(b"large"), 7)
        assert store.artifacts() == [ArtifactRecord(digest=digest(b"large"), size=5, at=9)]
        for name in ("one", "other"):
            commit(store, new_run(name), change={"uploads": [upload(b"large")], "holds": [digest(b"large")]})
        assert store.stats().artifacts == 1
        assert store.stats().artifact_bytes == 5
        assert _read(store, b"large") == b"large"

    def test_a_content_that_is_not_there_is_not_found(self, store: Store) -> None:
        store.put_artifact(upload(b"large"), 5)
        with pytest.raises(NotFound):
            _read(store, b"other")
        assert store.artifact(digest(b"other")) is None

    @pytest.mark.parametrize(
        "becomes",
        [b"", b"anothe", b"another one", content("x", 3 * _MIB)],
        ids=["gone", "short", "long", "large"],
    )
    def test_a_source_that_changed_is_refused_with_nothing_written(
        self, store: Store, becomes: bytes
    ) -> None:
        changed = upload(b"another", becomes=becomes)
        run = history(store, 1)
        before = everything(store)
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

    def test_a_source_that_fails_leaves_nothing(self, store: Store) -> None:
        run = history(store, 1)
        before = everything(store)
        fails = Upload(digest(b"large"), 5, _breaks_off)
        with pytest.raises(Exception, match=r".+"):
            store.put_artifact(fails, 5)
        with pytest.raises(Exception, match=r".+"):
            commit(store, run, change={"uploads": [fails], "holds": [fails.digest]})
        assert everything(store) == before
        assert store.put_artifact(upload(b"large"), 5)

    def test_a_source_may_be_the_store_itself(self, store: Store) -> None:
        data = content("artifact", 2 * _MIB)
        store.put_artifact(upload(data), 5)
        again = Upload(digest(data), len(data), lambda: store.artifact_pieces(digest(data)))
        run = commit(store, new_run(), change={"uploads": [again], "holds": [digest(data)]})
        assert _read(store, data) == data
        assert run.last == 1

    def test_an_artifact_that_is_there_can_be_held_without_its_content(self, store: Store) -> None:
        store.put_artifact(upload(b"large"), 5)
        run = commit(store, new_run(), change={"holds": [digest(b"large"), digest(b"large")]})
        assert store.collect(before=ALL) == (0, 0)
        store.delete_run(run)
        assert store.collect(before=ALL) == (1, 5)

    def test_artifacts_are_listed_by_digest(self, store: Store) -> None:
        datas = sorted((f"artifact {number}".encode() for number in range(9)), key=digest)
        for data in datas[::2] + datas[1::2]:
            store.put_artifact(upload(data), 5)
        listed = [ArtifactRecord(digest=digest(data), size=len(data), at=5) for data in datas]
        assert store.artifacts() == listed
        assert store.artifacts(limit=4) == listed[:4]
        assert store.artifacts(after=listed[3].digest, limit=4) == listed[4:8]
        assert store.artifacts(after=listed[-1].digest) == []

    def test_what_nobody_holds_is_collected_when_it_is_old_enough(self, store: Store) -> None:
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

    def test_what_two_runs_hold_stays_until_both_let_go(self, store: Store) -> None:
        parts = {"uploads": [upload(b"large")], "holds": [digest(b"large")]}
        one = commit(store, new_run("one"), change=parts)
        other = commit(store, new_run("other"), change=parts)
        store.delete_run(one)
        assert store.collect(before=ALL) == (0, 0)
        assert _read(store, b"large") == b"large"
        store.delete_run(other)
        assert store.collect(before=ALL) == (1, 5)

    def test_what_was_brought_but_not_held_can_be_collected(self, store: Store) -> None:
        run = begin(store)
        store.append(Append(expect=run, run=advanced(run, updated=50), uploads=[upload(b"large")]))
        assert _read(store, b"large") == b"large"
        assert store.collect(before=50) == (0, 0)
        assert store.collect(before=51) == (1, 5)
