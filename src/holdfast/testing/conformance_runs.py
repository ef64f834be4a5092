"""Contracts of runs: the one way of changing them, deleting and importing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import AlreadyExists, HoldfastError, InvalidSnapshot, NotFound, StaleVersion
from holdfast.model.records import STATUSES, MarkRecord, RunRecord, TimelineRecord, VersionRecord
from holdfast.store.base import Append, Store
from holdfast.testing.samples import (
    ALL,
    advanced,
    begin,
    belongings,
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
    stub,
    upload,
    version,
)

_LARGE = (1 << 62) + 1
_RUNS: list[dict[str, Any]] = [
    {},
    {"workflow": "", "step": "", "created": 0, "updated": 0, "revision": 0},
    {"workflow": "Wörk→流\U0001f40b", "step": "plan/search#2", "origin": (0, 0)},
    {"id": "ünï/☃\U0001f40b %_'\"", "created": -1, "updated": _LARGE, "origin": (_LARGE, _LARGE)},
    {"head": _LARGE, "last": _LARGE, "timeline": _LARGE, "revision": _LARGE, "epoch": _LARGE},
    {"size": _LARGE, "kept": _LARGE},
    {"parent": 0, "due": 0, "owner": "", "until": -1, "detail": b"\0"},
    {
        "parent": _LARGE,
        "due": _LARGE,
        "owner": "Öwner|→流\U0001f40b",
        "until": _LARGE,
        "detail": b"\xff\0",
    },
    {"parent": 7},
    {"due": -1},
    {"owner": "me"},
    {"until": 5},
    {"detail": b"waits"},
    *({"status": status} for status in STATUSES),
]


def _all_parts() -> dict[str, Any]:
    """Every part that a change can have beside its run and version."""
    return {
        "blocks": [b"one", b"two"],
        "tags": ["good", "gut"],
        "timeline": TimelineRecord(number=2, parent=1, at=5, reason="because", actor="me"),
        "events": [event("first"), event("second")],
        "uploads": [upload(b"large")],
        "holds": [digest(b"large")],
    }


class RunContract:
    """`append`, `run`, `revision`, `run_by_key`, `delete_run`, `import_run`."""

    @pytest.mark.parametrize("fields", _RUNS, ids=str)
    def test_a_run_reads_back_as_it_was_written(self, store: Store, fields: dict[str, Any]) -> None:
        written = new_run(**fields)
        made = store.append(Append(expect=None, run=written))
        assert made.key > 0
        assert replace(made, key=0) == written
        assert store.run(written.id) == store.run_by_key(made.key) == made
        assert store.revision(written.id) == (made.key, written.revision)
        changed = replace(
            made, revision=3, workflow="other", step=None, origin=None, size=1, owner="other", due=9
        )
        assert store.append(Append(expect=made, run=changed)) == changed
        assert store.run(written.id) == store.run_by_key(made.key) == changed
        made = changed
        changed = advanced(made, parent=None, due=None, owner=None, until=0, detail=b"")
        assert store.append(Append(expect=made, run=changed)) == changed
        assert store.run(written.id) == store.run_by_key(made.key) == changed
        assert store.revision(written.id) == (made.key, 4)

    def test_what_is_not_there_reads_as_nothing(self, store: Store) -> None:
        assert store.run("run") is None
        assert store.revision("run") is None
        assert store.run_by_key(1) is None
        assert store.run_ids("", 10) == []
        assert store.runs() == store.forks_of(1) == []
        assert store.versions(1) == store.packs(1, [1]) == []
        assert store.block(1, 1, 0) is None
        assert store.timelines(1) == []
        assert store.marks(1) == []
        assert store.artifacts() == []
        assert store.journal(run=None, after=0, limit=9) == store.journal(run=1, after=0, limit=9) == []

    def test_a_change_is_written_with_all_its_parts(self, store: Store) -> None:
        run = commit(store, new_run(), change=_all_parts())
        versions, (found_blocks,), timelines, marks, journal = belongings(store, run)
        assert [replace(found, seq=0) for found in versions] == [version(1)]
        assert found_blocks == [b"one", b"two"]
        assert timelines == [_all_parts()["timeline"]]
        assert [(found.number, found.name) for found in marks] == [(1, "good"), (1, "gut")]
        assert names(journal) == [1, "first", "second"]
        assert b"".join(store.artifact_pieces(digest(b"large"))) == b"large"
        assert store.collect(before=ALL) == (0, 0)

    def test_a_change_needs_no_version(self, store: Store) -> None:
        run = begin(store)
        after = advanced(run, status="paused")
        line = TimelineRecord(number=2, parent=0, at=5)
        store.append(Append(expect=run, run=after, timeline=line, events=[event("paused")]))
        assert store.run("run") == after
        assert store.timelines(run.key) == [line]
        assert names(store.journal(run=run.key, after=0, limit=9)) == ["paused"]

    def test_a_run_that_is_there_is_not_made_again(self, store: Store) -> None:
        history(store, 2)
        before = everything(store)
        with pytest.raises(StaleVersion):
            commit(store, new_run(), change=_all_parts())
        with pytest.raises(StaleVersion):
            begin(store)
        assert everything(store) == before

    @pytest.mark.parametrize("behind", [-1, 1])
    def test_a_change_of_another_revision_is_refused_with_nothing_written(
        self, store: Store, behind: int
    ) -> None:
        run = history(store, 3)
        before = everything(store)
        with pytest.raises(StaleVersion):
            commit(store, replace(run, revision=run.revision - behind), change=_all_parts())
        assert everything(store) == before

    def test_a_change_of_a_run_that_is_gone_is_refused(self, store: Store) -> None:
        run = history(store, 1)
        store.delete_run(run)
        with pytest.raises(StaleVersion):
            commit(store, run, change=_all_parts())
        assert store.runs() == []
        assert store.journal(run=None, after=0, limit=9) == []
        assert store.artifacts() == []

    def test_the_record_of_a_deleted_run_fits_no_other(self, store: Store) -> None:
        gone = history(store, 2, "gone")
        store.delete_run(gone)
        other = history(store, 2, "other")
        again = history(store, 2, "gone")
        assert len({gone.key, other.key, again.key}) == 3
        before = everything(store)
        for stale in (gone, replace(gone, id="other")):
            with pytest.raises(StaleVersion):
                commit(store, stale)
            with pytest.raises(StaleVersion):
                store.delete_run(stale)
        assert everything(store) == before

    def test_a_number_or_timeline_is_written_once(self, store: Store) -> None:
        run = commit(store, new_run(), change={"timeline": TimelineRecord(number=1, parent=0, at=5)})
        before = everything(store)
        with pytest.raises(HoldfastError):
            store.append(Append(expect=run, run=advanced(run), version=version(1), events=[event()]))
        line = TimelineRecord(number=1, parent=0, at=6)
        with pytest.raises(HoldfastError):
            store.append(Append(expect=run, run=advanced(run), timeline=line, events=[event()]))
        assert everything(store) == before
        assert commit(store, run).last == 2

    def test_a_missing_artifact_is_refused_with_nothing_written(self, store: Store) -> None:
        parts = _all_parts() | {"holds": [digest(b"large"), digest(b"missing")]}
        with pytest.raises(NotFound):
            commit(store, new_run(), change=parts)
        run = history(store, 1)
        before = everything(store)
        with pytest.raises(NotFound):
            commit(store, run, change=parts)
        assert everything(store) == before
        assert store.artifacts() == []

    def test_a_deleted_run_leaves_nothing_and_others_alone(self, store: Store) -> None:
        other = commit(store, new_run("other"), change=_all_parts())
        before = everything(store)
        run = commit(store, new_run(), change=_all_parts() | {"uploads": [upload(b"mine"), upload(b"large")]})
        run = commit(store, run, change={"holds": [digest(b"mine")], "tags": ["good"]})
        store.delete_run(run)
        after = everything(store)
        assert store.run("run") is None
        assert store.revision("run") is None
        assert store.run_by_key(run.key) is None
        assert not any(belongings(store, run))
        assert store.collect(before=ALL) == (1, 4)
        assert store.artifact(digest(b"large")) is not None
        for name in ("journal", f"run {other.key}"):
            assert after[name] == before[name]

    def test_a_run_that_changed_is_not_deleted(self, store: Store) -> None:
        run = history(store, 1)
        commit(store, run, change=_all_parts())
        before = everything(store)
        with pytest.raises(StaleVersion):
            store.delete_run(run)
        assert everything(store) == before

    def test_an_imported_run_reads_back(self, store: Store) -> None:
        begin(store, "other")
        left = [stub(-1), stub(0)]
        versions = [version(1), version(2, pack=None), version(3, at=-5, detail=b"\0\xff")]
        lines = [
            TimelineRecord(number=1, parent=0, at=1),
            TimelineRecord(number=2, parent=1, at=2, reason=""),
        ]
        marks = [MarkRecord(number=1, name="", at=9), MarkRecord(number=3, name="good", at=8)]
        parts = [(made, [b"block"] * made.number, [digest(b"large")]) for made in [*left, *versions]]
        whole = imported(
            3,
            versions=iter(parts),
            timelines=lines,
            marks=marks,
            events=[event("one"), event("two", data=b"\0")],
            uploads=iter([upload(b"large"), upload(b"")]),
        )
        run = store.import_run(whole)
        assert replace(run, key=0) == whole.run
        assert store.run("run") == run
        packs, found_blocks, found_lines, found_marks, journal = belongings(store, run)
        assert [replace(found, seq=0) for found in packs] == [
            replace(made, pack=made.pack or b"") for made in [*left, *versions]
        ]
        assert found_blocks == [[b"block"] * number for number in (0, 0, 1, 2, 3)]
        assert found_lines == lines
        assert found_marks == marks
        assert names(journal) == [1, 2, 3, "one", "two"]
        assert store.collect(before=ALL) == (1, 0)
        assert commit(store, run).last == 4

    def test_an_import_overwrites_nothing(self, store: Store) -> None:
        history(store, 2)
        before = everything(store)
        with pytest.raises(AlreadyExists):
            store.import_run(imported(5, events=[event()], uploads=iter([upload(b"large")])))
        assert everything(store) == before

    def test_an_import_that_fails_halfway_leaves_nothing(self, store: Store) -> None:
        def breaks_off() -> Iterator[tuple[VersionRecord, Sequence[bytes], Sequence[bytes]]]:
            yield version(1), [b"block"], []
            raise InvalidSnapshot("the rest is missing")

        history(store, 1, "other")
        before = everything(store)
        holds = iter([(version(1), (), ()), (version(2), (), [digest(b"missing")])])
        twice = iter([(version(1), (), ()), (version(1), (), ())])
        changed = iter([upload(b"source", becomes=b"another")])
        for parts, error in (
            ({"versions": breaks_off()}, InvalidSnapshot),
            ({"versions": holds}, NotFound),
            ({"versions": twice}, HoldfastError),
            ({"uploads": changed}, HoldfastError),
        ):
            with pytest.raises(error):
                store.import_run(
                    imported(2, uploads=iter([upload(b"large")]), events=[event()])._replace(**parts)
                )
            assert everything(store) == before
        assert store.import_run(imported(2)).last == 2

    def test_a_change_shows_at_once_to_readers(self, store: Store) -> None:
        run: RunRecord = new_run()
        for number in range(1, 21):
            _, after = next_version(run)
            run = commit(store, run)
            assert store.run("run") == run == replace(after, key=run.key)
            assert numbers(store.versions(run.key, limit=1)) == [number]
