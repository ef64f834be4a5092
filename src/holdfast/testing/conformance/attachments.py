"""Contracts of the keys of versions, and of attachments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import HoldfastError, LeaseExpired, NotFound, StaleVersion
from holdfast.model.names import MAX_KEY
from holdfast.model.records import AttachmentRecord, RunRecord, VersionRecord
from holdfast.store.protocol import Append, Prune, QueuePlace, Store, iter_attachments
from holdfast.testing.conformance.threads import together, until_done
from holdfast.testing.samples import (
    ALL,
    HOUR,
    advanced,
    attachment,
    begin,
    commit,
    content,
    digest,
    event,
    everything,
    history,
    imported,
    new_run,
    next_version,
    numbers,
    stub,
    upload,
    version,
)

#: In the order of their bytes in UTF-8, which is not the order of any language.
_TEXTS = [
    " ",
    "!",
    "%_'\"\\",
    "-1",
    "10",
    "9",
    "A",
    "Z",
    "[1]",
    "a",
    "a b",
    "aa",
    "null",
    "ä",
    "é",
    "\u2009",
    "\ufb00",
    "\uffef",
    "\U0001f40b",
    "\U0001f40b" * (MAX_KEY // 4),
]


def _keyed(store: Store, *keys: str, run_id: str = "run") -> RunRecord:
    """Store a run with a version for each key."""
    run = new_run(run_id)
    for key in keys:
        run = commit(store, run, key=key)
    return run


def _change(run: RunRecord, key: str, **parts: Any) -> Append:
    """Return the change that appends the next version of a run with a key."""
    made, after = next_version(run, key=key)
    return Append(**{"expect": run if run.key else None, "run": after, "version": made, **parts})


def _keys(records: list[VersionRecord]) -> list[str | None]:
    return [record.key for record in records]


def _places(records: list[AttachmentRecord]) -> list[tuple[str, str]]:
    return [(record.key, record.name) for record in records]


class KeyContract:
    """`version_by_key`, `keyed_versions`, and `append` of versions with keys."""

    def test_key_reads_back_with_its_version(self, store: Store) -> None:
        run = _keyed(store, *_TEXTS)
        run = commit(store, run)
        for number, key in enumerate(_TEXTS, 1):
            found = store.version_by_key(run.key, key)
            assert found is not None
            assert replace(found, seq=0) == version(number, key=key, pack=None, size=40)
            (read,) = store.packs(run.key, [number])
            assert replace(read, seq=0) == version(number, key=key)
        assert _keys(store.versions(run.key, ascending=True, limit=ALL)) == [*_TEXTS, None]
        journal = store.journal(run=run.key, after=0, limit=ALL)
        assert [entry[1].key for entry in journal if isinstance(entry, tuple)] == [*_TEXTS, None]

    def test_unknown_key_has_no_version(self, store: Store) -> None:
        run = _keyed(store, "key")
        other = _keyed(store, "other", run_id="other")
        for key in ("other", "ke", "KEY", "key ", "key%", ""):
            assert store.version_by_key(run.key, key) is None
        assert store.version_by_key(other.key, "key") is None
        assert store.version_by_key(1_000, "key") is None
        assert store.keyed_versions(1_000) == []

    def test_keyed_versions_are_in_descending_binary_order(self, store: Store) -> None:
        run = new_run()
        for number, key in enumerate(sorted(_TEXTS, key=lambda key: digest(key.encode()))):
            run = commit(store, run, key=key)
            if number % 3 == 0:
                run = commit(store, run)
        _keyed(store, "b", run_id="other")
        order = sorted(_TEXTS, key=str.encode, reverse=True)
        assert order == _TEXTS[::-1]
        assert _keys(store.keyed_versions(run.key)) == order
        for limit in (1, 3, 7):
            pages = store.keyed_versions(run.key, limit=limit)
            while page := store.keyed_versions(run.key, before=pages[-1].key, limit=limit):
                pages += page
            assert _keys(pages) == order
        for before in (*_TEXTS, "", "b", "\U0010ffff"):
            expected = [key for key in order if key.encode() < before.encode()]
            assert _keys(store.keyed_versions(run.key, before=before)) == expected

    def test_taken_key_is_stale_and_writes_nothing(self, store: Store) -> None:
        run = _keyed(store, "one", "two")
        parts: dict[str, Any] = {"events": [event()], "tags": ["tag"], "blocks": [b"block"]}
        before = everything(store)
        for more in (
            {},
            parts,
            {"attachments": [attachment("one")]},
            {"uploads": [upload(b"large")], "holds": [digest(b"large")]},
            {"queue": QueuePlace("queue")},
        ):
            with pytest.raises(StaleVersion):
                store.append(_change(run, "one", **more))
            assert everything(store) == before
            assert store.queue_place(run.key) is None
        assert commit(store, run, key="three").last == 3

    def test_taken_key_is_not_an_expired_lease(self, store: Store) -> None:
        """The owner of the lease is refused because of the key, and keeps its run."""
        first = begin(store, owner="me", until=store.now() + HOUR)
        run = store.append(_change(first, "key", leased=True))
        for parts in ({}, {"uploads": [upload(b"large")]}):
            with pytest.raises(StaleVersion) as refused:
                store.append(_change(run, "key", leased=True, **parts))
            assert not isinstance(refused.value, LeaseExpired)
        assert store.append(_change(run, "other", leased=True)).last == 2

    def test_key_is_free_in_other_runs_and_after_a_refusal(self, store: Store) -> None:
        run = _keyed(store, "key")
        assert _keyed(store, "key", run_id="other").last == 1
        with pytest.raises(StaleVersion):
            store.append(_change(replace(run, revision=9), "later"))
        assert store.version_by_key(run.key, "later") is None
        assert commit(store, run, key="later").last == 2

    def test_append_many_refuses_a_taken_key_alone(self, store: Store) -> None:
        """Many versions of existing runs at once, which a store may write with one statement."""
        until = store.now() + HOUR
        for leased, count in product((False, True), (2, 40)):
            runs = [
                store.append(_change(new_run(f"{leased} {count} {n}", owner="me", until=until), "first"))
                for n in range(count)
            ]
            taken = {number for number in range(count) if number % 3 == 1}
            changes = [
                _change(run, "first" if number in taken else f"key {number}", leased=leased)
                for number, run in enumerate(runs)
            ]
            found = store.append_many(changes)
            for number, (run, outcome) in enumerate(zip(runs, found, strict=True)):
                if number in taken:
                    assert isinstance(outcome, StaleVersion)
                    assert not isinstance(outcome, LeaseExpired)
                    assert store.run(run.id) == run
                    assert _keys(store.keyed_versions(run.key)) == ["first"]
                else:
                    assert outcome == store.run(run.id) == changes[number].run
                    assert _keys(store.keyed_versions(run.key)) == [f"key {number}", "first"]

    def test_append_many_mixes_versions_with_and_without_keys(self, store: Store) -> None:
        runs = [_keyed(store, "first", run_id=f"run {number}") for number in range(20)]
        changes = []
        for number, run in enumerate(runs):
            made, after = next_version(run, key="second" if number % 2 else None)
            changes.append(Append(expect=run, run=after, version=made))
        assert all(isinstance(outcome, RunRecord) for outcome in store.append_many(changes))
        for number, run in enumerate(runs):
            assert _keys(store.versions(run.key)) == ["second" if number % 2 else None, "first"]

    def test_pruning_frees_keys(self, store: Store) -> None:
        run = _keyed(store, "one", "two", "three")
        plan = Prune(expect=run, run=advanced(run), drop=[1], thin=[(stub(2), (), ())], keys=["one", "two"])
        run = store.prune(plan)
        assert _keys(store.keyed_versions(run.key)) == ["three"]
        assert store.version_by_key(run.key, "one") is store.version_by_key(run.key, "two") is None
        run = commit(store, commit(store, run, key="one"), key="two")
        assert _keys(store.keyed_versions(run.key)) == ["two", "three", "one"]

    def test_import_has_keys(self, store: Store) -> None:
        versions = [(version(n, key=f"key {n}" if n % 2 else None), (), ()) for n in range(1, 8)]
        run = store.import_run(imported(7, versions=iter(versions)))
        assert _keys(store.keyed_versions(run.key)) == ["key 7", "key 5", "key 3", "key 1"]
        with pytest.raises(StaleVersion):
            store.append(_change(run, "key 3"))

    def test_one_of_many_writers_gets_a_key(self, store: Store) -> None:
        """Writers that read the run again after each refusal, as `history` does."""
        begin(store)

        def write(index: int) -> bool:
            while True:
                run = store.run("run")
                assert run is not None
                try:
                    commit(store, run, key="key", step=f"writer-{index}")
                except StaleVersion:
                    if store.version_by_key(run.key, "key") is not None:
                        return False
                    continue
                return True

        outcomes = together(8, write)
        assert sorted(outcomes, key=bool) == [False] * 7 + [True]
        run = store.run("run")
        assert run is not None
        found = store.version_by_key(run.key, "key")
        assert found is not None
        assert found.step == f"writer-{outcomes.index(True)}"
        assert run.last == 1


class AttachmentContract:
    """`attach`, `attachments_of`, `attachment_names`, `attachments`, `attachment_keys`, and attachments of other
    changes."""

    def test_attachment_reads_back_as_it_was_written(self, store: Store) -> None:
        run = begin(store)
        datas = [b"", b"\0", bytes(range(256)), content("attachment", 3_000_000)]
        made = [
            attachment(key, name, data=datas[number % 3], at=at)
            for number, (key, name) in enumerate(product(_TEXTS, _TEXTS))
            for at in ([-1, 0, 1 << 62][number % 3],)
        ]
        made.append(attachment("zzz", "large", data=datas[3]))
        before = store.run("run")
        for start in range(0, len(made), 50):
            part = made[start : start + 50]
            assert store.attach(run.key, part, replace=False) == [True] * len(part)
        expected = sorted(made, key=lambda each: (each.key.encode(), each.name.encode()))
        assert store.attachments(run.key, limit=ALL) == expected
        assert list(iter_attachments(store, run.key)) == expected
        assert store.attachments_of(run.key, [*_TEXTS, "zzz"]) == expected
        # Neither the run nor its journal has changed.
        assert store.run("run") == before
        assert store.journal(run=None, after=0, limit=9) == []
        assert commit(store, run).last == 1

    def test_names_may_have_control_characters(self, store: Store) -> None:
        run = begin(store)
        names = ["\x01", "\t", "\n", "\x1b[2J", "\x7f", "\u202e"]
        made = [attachment("key", name) for name in names]
        assert store.attach(run.key, made, replace=True) == [True] * 6
        assert store.attachments_of(run.key, ["key"]) == made
        assert store.attachments(run.key, after=("key", "\n"), limit=2) == made[3:5]

    def test_attachments_of_some_keys_are_in_order(self, store: Store) -> None:
        run, other = begin(store), begin(store, "other")
        for key, name in [("b", "2"), ("a", "ä"), ("b", "10"), ("a", "z"), ("c", "x"), ("B", "x")]:
            store.attach(run.key, [attachment(key, name)], replace=True)
        store.attach(other.key, [attachment("a", "other")], replace=True)
        assert _places(store.attachments_of(run.key, ["a"])) == [("a", "z"), ("a", "ä")]
        assert _places(store.attachments_of(run.key, ["b", "a", "missing", "b"])) == [
            ("a", "z"),
            ("a", "ä"),
            ("b", "10"),
            ("b", "2"),
        ]
        assert store.attachments_of(run.key, []) == store.attachments_of(run.key, ["missing"]) == []
        assert store.attachment_names(run.key, "a") == ["z", "ä"]
        assert store.attachment_names(run.key, "missing") == store.attachment_names(1_000, "a") == []
        assert store.attachments_of(1_000, ["a"]) == store.attachments_of(1_000, ["a", "b"]) == []
        many = [*(f"key {number}" for number in range(5_000)), "c"]
        assert _places(store.attachments_of(run.key, many)) == [("c", "x")]

    def test_attachments_are_read_page_by_page(self, store: Store) -> None:
        run = begin(store)
        places = [(f"key {key}", f"name {name}") for key in range(7) for name in range(key)]
        for key, name in reversed(places):
            store.attach(run.key, [attachment(key, name)], replace=True)
        for limit in (1, 2, 5, 100):
            found = store.attachments(run.key, limit=limit)
            while page := store.attachments(run.key, after=_places(found)[-1], limit=limit):
                found += page
            assert _places(found) == places
        assert _places(store.attachments(run.key, after=("key 3", "name 1x"), limit=2)) == [
            ("key 3", "name 2"),
            ("key 4", "name 0"),
        ]
        assert store.attachments(run.key, after=("key 9", "")) == store.attachments(1_000) == []

    def test_taken_place_is_replaced_on_request_only(self, store: Store) -> None:
        run = begin(store)
        old, new = attachment("key", "a", data=b"old", at=1), attachment("key", "a", data=b"new", at=2)
        added = attachment("key", "b")
        assert store.attach(run.key, [old], replace=False) == [True]
        assert store.attach(run.key, [old], replace=False) == [False]
        assert store.attach(run.key, [added, new], replace=False) == [True, False]
        assert store.attachments(run.key) == [old, added]
        assert store.attach(run.key, [new, added], replace=True) == [True, True]
        assert store.attachments(run.key) == [new, added]
        assert store.attach(run.key, [], replace=True) == []

    def test_attaching_needs_a_run(self, store: Store) -> None:
        run = commit(store, begin(store), key="key")
        store.attach(run.key, [attachment("key")], replace=True)
        store.delete_run(run)
        again = begin(store)
        for key in (run.key, 1_000):
            with pytest.raises(NotFound):
                store.attach(key, [attachment("key")], replace=True)
            assert store.attachments(key) == store.attachments_of(key, ["key"]) == []
        assert store.attachments(again.key) == []
        assert store.check() == []

    def test_append_stores_attachments(self, store: Store) -> None:
        old, new = attachment("key", "a", data=b"old"), attachment("key", "a", data=b"new")
        other = attachment("later", "b")
        run = store.append(_change(new_run(), "key", attachments=[old, other]))
        assert store.attachments(run.key) == [old, other]
        run = commit(store, run, change={"attachments": [new]})
        assert store.attachments(run.key) == [new, other]
        changes: dict[str, Any] = {"uploads": [upload(b"large")], "holds": [digest(b"large")]}
        run = commit(store, run, change={"attachments": [old], **changes})
        assert store.attachments(run.key) == [old, other]
        runs = [begin(store, f"run {number}") for number in range(6)]
        store.append_many([_change(each, "key", attachments=[attachment("key", each.id)]) for each in runs])
        for each in runs:
            assert _places(store.attachments(each.key)) == [("key", each.id)]

    def test_pruning_removes_the_attachments_of_its_keys(self, store: Store) -> None:
        run = _keyed(store, "one", "two", "three")
        other = _keyed(store, "one", run_id="other")
        for key, name in product(("one", "two", "three", "early"), ("a", "b")):
            store.attach(run.key, [attachment(key, name)], replace=True)
        store.attach(other.key, [attachment("one")], replace=True)
        plan = Prune(expect=run, run=advanced(run), drop=[1], thin=[(stub(2), (), ())], keys=["one", "two"])
        with pytest.raises(StaleVersion):
            store.prune(plan._replace(expect=replace(run, revision=9)))
        assert len(store.attachments(run.key)) == 8
        run = store.prune(plan)
        assert {key for key, _ in _places(store.attachments(run.key))} == {"early", "three"}
        assert _places(store.attachments(other.key)) == [("one", "name")]
        assert store.attachments_of(run.key, ["one", "two"]) == store.attachments_of(run.key, ["one"]) == []
        assert store.attach(run.key, [attachment("one")], replace=False) == [True]

    def test_keys_of_old_attachments_are_listed(self, store: Store) -> None:
        run, other = _keyed(store, "one"), _keyed(store, "one", run_id="other")
        for key, name, at in (("one", "a", 1), ("two", "a", 5), ("two", "b", 9), ("three", "a", 5)):
            store.attach(run.key, [attachment(key, name, at=at)], replace=True)
        store.attach(other.key, [attachment("four", at=1)], replace=True)
        assert store.attachment_keys(run.key, before=1) == []
        assert store.attachment_keys(run.key, before=6) == ["one", "three"]
        assert store.attachment_keys(run.key, before=10) == ["one", "three", "two"]
        assert store.attachment_keys(1_000, before=10) == []

    def test_prune_removes_old_attachments_of_unused_keys(self, store: Store) -> None:
        run = _keyed(store, "one")
        for key, name, at in (("one", "a", 1), ("two", "a", 5), ("two", "b", 9), ("three", "a", 5)):
            store.attach(run.key, [attachment(key, name, at=at)], replace=True)
        plan = Prune(expect=run, run=advanced(run), drop=[], thin=[], unused=["two", "four"], before=6)
        run = store.prune(plan)
        assert _places(store.attachments(run.key)) == [("one", "a"), ("three", "a"), ("two", "b")]

    def test_import_has_attachments(self, store: Store) -> None:
        made = [
            attachment(f"key {n:04}", data=content(f"{n}", 100 if n else 1_000_000)) for n in range(1_200)
        ]
        run = store.import_run(imported(2, attachments=made))
        assert list(iter_attachments(store, run.key)) == made
        before = everything(store)
        with pytest.raises(HoldfastError):
            store.import_run(imported(2, attachments=made))
        assert everything(store) == before

    def test_deleting_a_run_deletes_its_attachments_alone(self, store: Store) -> None:
        run, other = _keyed(store, "key"), _keyed(store, "key", run_id="other")
        for each in (run, other):
            store.attach(each.key, [attachment("key"), attachment("early")], replace=True)
        store.delete_run(run)
        assert store.attachments(run.key) == []
        assert _places(store.attachments(other.key)) == [("early", "name"), ("key", "name")]

    def test_one_of_many_threads_fills_a_place(self, store: Store) -> None:
        """Each thread attaches the same places in another order."""
        run = begin(store)
        places = [(f"key {number % 3}", f"name {number}") for number in range(12)]

        def write(index: int) -> set[tuple[str, str]]:
            won: set[tuple[str, str]] = set()
            for turn in range(0, 12, 4):
                mine = sorted(places[turn : turn + 4], reverse=bool(index % 2))
                records = [attachment(*place, data=b"%d" % index) for place in mine]
                stored = store.attach(run.key, records, replace=False)
                won |= {place for place, is_stored in zip(mine, stored, strict=True) if is_stored}
            return won

        winners: dict[tuple[str, str], bytes] = {}
        for index, won in enumerate(together(8, write)):
            assert isinstance(won, set)
            assert not won & winners.keys()
            winners |= dict.fromkeys(won, b"%d" % index)
        found = store.attachments(run.key)
        assert {(each.key, each.name): each.data for each in found} == winners
        assert winners.keys() == set(places)

    def test_replacing_threads_do_not_block_each_other(self, store: Store) -> None:
        run = begin(store)
        names = [f"name {number}" for number in range(20)]

        def write(index: int) -> None:
            for turn in range(15):
                order = names if (index + turn) % 2 else names[::-1]
                records = [attachment("key", name, data=b"%d" % index) for name in order]
                assert store.attach(run.key, records, replace=True) == [True] * 20

        assert together(6, write) == [None] * 6
        found = store.attachments(run.key)
        assert [each.name for each in found] == sorted(names)
        # Stored together, so all are of the same thread.
        assert len({each.data for each in found}) == 1

    def test_attaching_and_committing_run_concurrently(self, store: Store) -> None:
        """An attachment does not make a writer's run stale, whether it comes before or after its version."""
        run = begin(store)

        def write() -> None:
            now = run
            for number in range(60):
                now = commit(store, now, key=f"key {number:02}")

        attached = 0

        def look() -> None:
            nonlocal attached
            if attached < 60:
                made = [attachment(f"key {attached:02}", name) for name in "ab"]
                assert store.attach(run.key, made, replace=False) == [True, True]
                attached += 1
            assert len(store.attachments(run.key, limit=ALL)) == 2 * attached

        with ThreadPoolExecutor(1) as pool:
            until_done(pool.submit(write), look)
        assert len(store.keyed_versions(run.key)) == 60

    def test_attaching_and_deleting_run_concurrently(self, store: Store) -> None:
        """A run that is deleted leaves no attachment, and refuses later ones."""
        runs = [_keyed(store, "key", run_id=f"run {number}") for number in range(20)]

        def write(index: int) -> int:
            if index == 0:
                for run in runs:
                    store.delete_run(run)
                return 0
            refused = 0
            for run in runs:
                try:
                    while store.attach(run.key, [attachment("key", f"{index}")], replace=True):
                        pass
                except NotFound:
                    refused += 1
            return refused

        assert together(4, write) == [0, 20, 20, 20]
        assert not any(store.attachments(run.key) for run in runs)
        assert store.check() == []

    def test_attaching_and_pruning_run_concurrently(self, store: Store) -> None:
        """A pruning removes what was attached before it, and does not hinder what is attached meanwhile."""
        keys = [f"key {number:02}" for number in range(40)]
        run = _keyed(store, *keys, "last")
        for key in keys:
            store.attach(run.key, [attachment(key, "before")], replace=True)

        def write() -> None:
            now = run
            for number, key in enumerate(keys, 1):
                plan = Prune(expect=now, run=advanced(now), drop=[number], thin=[], keys=[key])
                now = store.prune(plan)

        turn = 0

        def look() -> None:
            nonlocal turn
            turn += 1
            made = [attachment(keys[turn % 40], "meanwhile"), attachment("last", f"{turn}")]
            assert store.attach(run.key, made, replace=True) == [True, True]

        with ThreadPoolExecutor(1) as pool:
            until_done(pool.submit(write), look)
        found = _places(store.attachments(run.key, limit=ALL))
        assert {name for key, name in found if key != "last"} <= {"meanwhile"}
        assert len([name for key, name in found if key == "last"]) == turn
        assert numbers(store.versions(run.key)) == [41]

    def test_attaching_and_importing_run_concurrently(self, store: Store) -> None:
        """The attachments of an import are there when its run is."""
        run = history(store, 1, "other")
        made = [attachment(f"key {number}") for number in range(50)]

        def write() -> None:
            for number in range(10):
                store.import_run(imported(3, f"import {number}", attachments=made))

        turn = 0

        def look() -> None:
            nonlocal turn
            turn += 1
            assert store.attach(run.key, [attachment("key 1", f"{turn % 9}")], replace=True) == [True]
            for found in store.runs(prefix="import"):
                assert len(store.attachments(found.key)) == 50
                assert store.attach(found.key, [attachment("key 1")], replace=False) == [False]

        with ThreadPoolExecutor(1) as pool:
            until_done(pool.submit(write), look)
        assert len(store.attachments(run.key)) == min(turn, 9)
