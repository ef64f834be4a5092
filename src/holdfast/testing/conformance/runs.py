"""Contracts of runs: appending, finding, deleting and importing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import AlreadyExists, HoldfastError, InvalidSnapshot, NotFound, StaleVersion
from holdfast.model.records import LIVE, STATUSES, MarkRecord, RunRecord, TimelineRecord
from holdfast.store.protocol import Append, Store, VersionParts
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
    mark,
    names,
    new_run,
    next_version,
    numbers,
    stub,
    upload,
    version,
)


class RunListContract:
    """`run_ids`, `runs`, `forks_of`."""

    def test_run_ids_are_found_by_prefix(self, store: Store) -> None:
        ids = ["a", "a%", "a%b", "a_", "a_b", "ab", "abc", "B", "é", "é1", "\U0001f40b", "\U0001f40b2", "~"]
        for run_id in reversed(ids):
            begin(store, run_id)
        for prefix in [
            "",
            "a",
            "a%",
            "a_",
            "ab",
            "b",
            "B",
            "é",
            "\U0001f40b",
            "\U0001f40b2",
            "zz",
            "~",
            "a%bc",
        ]:
            expected = sorted(run_id for run_id in ids if run_id.startswith(prefix))
            assert store.run_ids(prefix, 100) == expected
            assert store.run_ids(prefix, 2) == expected[:2]
            assert sorted(run.id for run in store.runs(prefix=prefix)) == expected

    def test_runs_are_listed_newest_first_and_paged(self, store: Store) -> None:
        made = [begin(store, f"run-{number}") for number in range(7)][::-1]
        assert store.runs() == made
        assert store.runs(limit=3) == made[:3]
        assert store.runs(limit=3, before=made[2].key) == made[3:6]
        assert store.runs(before=made[-1].key) == []

    def test_runs_are_filtered(self, store: Store) -> None:
        made = {}
        for number, status in enumerate(["running", "completed", "failed", "completed"]):
            workflow = "plan" if number % 2 else None
            run = new_run(f"run-{number}", status=status, workflow=workflow)
            run = commit(store, run, at=number * 10, change={"tags": ["all", f"tag-{number}"]})
            made[number] = commit(store, run, at=number * 10, change={"tags": ["late"] if number > 1 else []})

        def found(**filters: Any) -> list[int]:
            return [int(run.id[-1]) for run in store.runs(**filters)]

        assert found(statuses=["completed"]) == [3, 1]
        assert found(statuses=["failed", "running"]) == [2, 0]
        assert found(statuses=[]) == found(statuses=["stalled"]) == []
        assert found(workflow="plan") == [3, 1]
        assert found(workflow="none") == []
        assert found(tags=["all"]) == [3, 2, 1, 0]
        assert found(tags=["late", "tag-2"]) == [2]
        assert found(prefix="run-", statuses=["completed"], before=made[3].key) == [1]
        assert found(prefix="run-2") == [2]
        assert found(tags=["tag-1", "tag-2"]) == []
        assert found(tags=["late", "all", "late", "tag-2", "all"]) == [2]
        assert found(since=10) == [3, 2, 1]
        assert found(since=31) == []
        assert found(statuses=["completed"], workflow="plan", tags=["all"], since=10, limit=1) == [3]
        assert found(statuses=["completed"], before=made[3].key) == [1]
        mark(store, made[2], 2, "late", on=False)
        assert found(tags=["late"]) == [3]

    def test_runs_are_filtered_by_many_tags(self, store: Store) -> None:
        names = [f"tag-{number} 流'\"" for number in range(2000)]
        run = commit(store, new_run("all"), change={"tags": names[:1000]})
        run = commit(store, run, change={"tags": names[500:]})
        other = commit(store, new_run("few"), change={"tags": names[1:]})
        assert store.runs(tags=names) == [run]
        assert store.runs(tags=names * 2, limit=1) == [run]
        assert store.runs(tags=names[1:]) == [other, run]
        assert store.runs(tags=[*names, "missing"]) == []

    def test_live_runs_are_found(self, store: Store) -> None:
        made = {
            status: begin(store, status, status=status, workflow="plan", due=number)
            for number, status in enumerate(STATUSES)
        }
        by_hand = begin(store, "by hand", status="running")

        def found(**filters: Any) -> list[str]:
            return [run.id for run in store.runs(live=True, **filters)]

        live = [status for status in reversed(STATUSES) if status in LIVE]
        assert found() == live
        assert found(statuses=["running"]) == ["running"]
        assert found(statuses=["running", "queued"]) == ["running", "queued"]
        assert found(statuses=["completed"]) == found(statuses=[]) == []
        assert found(due=1) == ["running", "queued"]
        assert found(statuses=["queued"], due=0) == ["queued"]
        assert found(before=made["stalled"].key, limit=2) == live[1:3]
        # It follows every kind of change.
        run = store.append(Append(made["running"], advanced(made["running"], status="completed")))
        assert "running" not in found()
        run = store.append(Append(run, advanced(run, status="queued", due=1)))
        assert found(statuses=["queued"], due=1) == ["running", "queued"]
        run = store.append(Append(run, advanced(run, head=1, last=1, step="plan")))
        assert store.runs(live=True, statuses=["queued"], due=1, limit=1) == [run]
        run = store.append(Append(run, advanced(run, due=None)))
        assert found(statuses=["queued"], due=1) == ["queued"]
        store.append(Append(by_hand, advanced(by_hand, workflow="plan")))
        assert found(statuses=["running"]) == ["by hand"]
        store.delete_run(run)
        assert found(statuses=["queued"]) == ["queued"]
        assert store.check() == []

    def test_due_runs_are_found(self, store: Store) -> None:
        made = [begin(store, f"run-{due}", due=due, status="suspended") for due in (None, 30, 10, 20, 0)]

        def found(**filters: Any) -> list[int | None]:
            return [run.due for run in store.runs(**filters)]

        assert found(due=100) == [0, 20, 10, 30]
        assert found(due=20) == [0, 20, 10]
        assert found(due=0) == [0]
        assert found(due=-1) == []
        assert found(due=100, limit=2) == [0, 20]
        assert found(due=100, limit=2, before=made[3].key) == [10, 30]
        assert found(due=100, statuses=["running"]) == []
        assert found() == [0, 20, 10, 30, None]
        store.append(Append(expect=made[3], run=advanced(made[3], due=None)))
        store.append(Append(expect=made[0], run=advanced(made[0], due=15)))
        store.delete_run(made[4])
        assert found(due=20) == [10, 15]

    def test_children_of_a_run_are_found(self, store: Store) -> None:
        parent, other = begin(store, "parent"), begin(store, "other")
        parts = [begin(store, f"part-{n}", parent=parent.key, due=n, status=STATUSES[n]) for n in range(4)]
        of_part = begin(store, "part of part", parent=parts[0].key)
        assert store.runs(parent=parent.key) == parts[::-1]
        assert store.runs(parent=parts[0].key) == [of_part]
        assert store.runs(parent=other.key) == store.runs(parent=0) == []
        assert store.runs(parent=parent.key, statuses=[STATUSES[1], STATUSES[3]], due=2) == [parts[1]]
        assert store.runs(parent=parent.key, limit=1, before=parts[2].key) == [parts[1]]
        store.append(Append(expect=parts[1], run=advanced(parts[1], parent=other.key)))
        assert [run.id for run in store.runs(parent=other.key)] == ["part-1"]
        store.delete_run(parent)
        assert [run.id for run in store.runs(parent=parent.key)] == ["part-3", "part-2", "part-0"]

    def test_forks_are_found_by_their_origin(self, store: Store) -> None:
        origin = history(store, 2, "origin")
        forks = [begin(store, f"fork-{number}", origin=(origin.key, number)) for number in (1, 2)]
        begin(store, "other", origin=(origin.key + 1_000, 1))
        assert sorted(store.forks_of(origin.key), key=lambda run: run.key) == forks
        store.append(Append(expect=forks[0], run=advanced(forks[0], origin=None)))
        assert store.forks_of(origin.key) == forks[1:]


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
    """Return every part that a change can have apart from its run and version."""
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

    def test_run_reads_back_as_it_was_written(self, store: Store) -> None:
        for number, fields in enumerate(_RUNS):
            written = new_run(**({"run_id": f"run {number}"} | fields))
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
            cleared = advanced(changed, parent=None, due=None, owner=None, until=0, detail=b"")
            assert store.append(Append(expect=changed, run=cleared)) == cleared
            assert store.run(written.id) == store.run_by_key(made.key) == cleared
            assert store.revision(written.id) == (made.key, 4)

    def test_missing_records_read_as_nothing(self, store: Store) -> None:
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

    def test_change_is_written_with_all_its_parts(self, store: Store) -> None:
        run = commit(store, new_run(), change=_all_parts())
        versions, (found_blocks,), timelines, marks, journal, _ = belongings(store, run)
        assert [replace(found, seq=0) for found in versions] == [version(1)]
        assert found_blocks == [b"one", b"two"]
        assert timelines == [_all_parts()["timeline"]]
        assert [(found.number, found.name) for found in marks] == [(1, "good"), (1, "gut")]
        assert names(journal) == [1, "first", "second"]
        assert b"".join(store.artifact_pieces(digest(b"large"))) == b"large"
        assert store.collect(before=ALL) == (0, 0)

    def test_change_needs_no_version(self, store: Store) -> None:
        run = begin(store)
        after = advanced(run, status="paused")
        line = TimelineRecord(number=2, parent=0, at=5)
        store.append(Append(expect=run, run=after, timeline=line, events=[event("paused")]))
        assert store.run("run") == after
        assert store.timelines(run.key) == [line]
        assert names(store.journal(run=run.key, after=0, limit=9)) == ["paused"]

    def test_existing_run_is_not_created_again(self, store: Store) -> None:
        history(store, 2)
        before = everything(store)
        with pytest.raises(StaleVersion):
            commit(store, new_run(), change=_all_parts())
        with pytest.raises(StaleVersion):
            begin(store)
        assert everything(store) == before

    def test_change_of_another_revision_is_refused_with_nothing_written(self, store: Store) -> None:
        run = history(store, 3)
        before = everything(store)
        for behind in (-1, 1):
            with pytest.raises(StaleVersion):
                commit(store, replace(run, revision=run.revision - behind), change=_all_parts())
            assert everything(store) == before

    def test_change_of_a_deleted_run_is_refused(self, store: Store) -> None:
        run = history(store, 1)
        store.delete_run(run)
        with pytest.raises(StaleVersion):
            commit(store, run, change=_all_parts())
        assert store.runs() == []
        assert store.journal(run=None, after=0, limit=9) == []
        assert store.artifacts() == []

    def test_record_of_a_deleted_run_matches_no_other(self, store: Store) -> None:
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

    def test_number_or_timeline_is_written_once(self, store: Store) -> None:
        run = commit(store, new_run(), change={"timeline": TimelineRecord(number=1, parent=0, at=5)})
        before = everything(store)
        with pytest.raises(HoldfastError):
            store.append(Append(expect=run, run=advanced(run), version=version(1), events=[event()]))
        line = TimelineRecord(number=1, parent=0, at=6)
        with pytest.raises(HoldfastError):
            store.append(Append(expect=run, run=advanced(run), timeline=line, events=[event()]))
        assert everything(store) == before
        assert commit(store, run).last == 2

    def test_missing_artifact_is_refused_with_nothing_written(self, store: Store) -> None:
        parts = _all_parts() | {"holds": [digest(b"large"), digest(b"missing")]}
        with pytest.raises(NotFound):
            commit(store, new_run(), change=parts)
        run = history(store, 1)
        before = everything(store)
        with pytest.raises(NotFound):
            commit(store, run, change=parts)
        assert everything(store) == before
        assert store.artifacts() == []

    def test_deleted_run_leaves_nothing_and_affects_no_other(self, store: Store) -> None:
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

    def test_changed_run_is_not_deleted(self, store: Store) -> None:
        run = history(store, 1)
        commit(store, run, change=_all_parts())
        before = everything(store)
        with pytest.raises(StaleVersion):
            store.delete_run(run)
        assert everything(store) == before

    def test_imported_run_reads_back(self, store: Store) -> None:
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
        packs, found_blocks, found_lines, found_marks, journal, _ = belongings(store, run)
        assert [replace(found, seq=0) for found in packs] == [
            replace(made, pack=made.pack or b"") for made in [*left, *versions]
        ]
        assert found_blocks == [[b"block"] * number for number in (0, 0, 1, 2, 3)]
        assert found_lines == lines
        assert found_marks == marks
        assert names(journal) == [1, 2, 3, "one", "two"]
        assert store.collect(before=ALL) == (1, 0)
        assert commit(store, run).last == 4

    def test_import_overwrites_nothing(self, store: Store) -> None:
        history(store, 2)
        before = everything(store)
        with pytest.raises(AlreadyExists):
            store.import_run(imported(5, events=[event()], uploads=iter([upload(b"large")])))
        assert everything(store) == before

    def test_import_that_fails_halfway_leaves_nothing(self, store: Store) -> None:
        def breaks_off() -> Iterator[VersionParts]:
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

    def test_change_is_visible_to_readers_at_once(self, store: Store) -> None:
        run: RunRecord = new_run()
        for number in range(1, 21):
            _, after = next_version(run)
            run = commit(store, run)
            assert store.run("run") == run == replace(after, key=run.key)
            assert numbers(store.versions(run.key, limit=1)) == [number]
