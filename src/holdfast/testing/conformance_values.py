"""Contracts of small values that belong to no run, and of leases."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import StaleVersion
from holdfast.model.records import RunRecord
from holdfast.store.base import Append, Store
from holdfast.testing.samples import HOUR, advanced, begin, commit, content, everything, history

_NAMES = ["", "breaker", "breaker/plan#2", "Ünï→流\U0001f40b", "a%_'\"", "n" * 300]
_DATA = [b"", b"\0", b"\xff\xfe", b'{"state": "open"}', content("value", 1 << 20)]


def _now(store: Store, run: RunRecord) -> RunRecord:
    found = store.run_by_key(run.key)
    assert found is not None
    return found


class ValueContract:
    """`value`, `set_value`, `drop_value`, `value_names`, `renew`."""

    def test_a_value_that_is_not_there_reads_as_nothing(self, store: Store) -> None:
        assert store.value("breaker") is None

    @pytest.mark.parametrize("name", _NAMES, ids=lambda name: name[:12] or "empty")
    def test_a_value_has_any_name(self, store: Store, name: str) -> None:
        assert store.set_value(name, b"data", 0) > 0
        assert store.set_value(name + " ", b"other", 0) > 0
        found, other = store.value(name), store.value(name + " ")
        assert found is not None
        assert other is not None
        assert (found[0], other[0]) == (b"data", b"other")

    @pytest.mark.parametrize("data", _DATA, ids=lambda data: f"{len(data)} bytes")
    def test_a_value_reads_back_as_it_was_written(self, store: Store, data: bytes) -> None:
        revision = store.set_value("breaker", data, 0)
        assert store.value("breaker") == (data, revision)
        after = store.set_value("breaker", data[::-1], revision)
        assert after != revision
        assert store.value("breaker") == (data[::-1], after)

    def test_revisions_never_come_again(self, store: Store) -> None:
        revisions = [0]
        for turn in range(20):
            # The same data is a change like any other.
            revisions.append(store.set_value("breaker", b"%d" % (turn // 3), revisions[-1]))
        assert revisions == sorted(set(revisions))

    def test_a_value_that_another_has_changed_is_not_replaced(self, store: Store) -> None:
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

    def test_a_value_is_removed_by_who_has_seen_it(self, store: Store) -> None:
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

    def test_names_are_found_by_how_they_begin(self, store: Store) -> None:
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

    def test_values_and_runs_leave_each_other_alone(self, store: Store) -> None:
        run = history(store, 3, "breaker")
        before = everything(store)
        revision = store.set_value("breaker", b"data", 0)
        assert everything(store) == before
        store.delete_run(run)
        store.compact()
        assert store.value("breaker") == (b"data", revision)
        assert store.check() == []

    def test_a_lease_is_prolonged_and_nothing_else_changes(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon, due=5, detail=b"waits", parent=3)
        before = everything(store)
        assert store.renew([run.key], "me", soon + 40) == []
        renewed = replace(run, until=soon + 40)
        assert store.run("run") == store.run_by_key(run.key) == renewed
        assert store.runs() == store.runs(due=5) == store.runs(parent=3) == [renewed]
        assert store.revision("run") == (run.key, run.revision)
        after = everything(store)
        assert after.pop(f"run {run.key}")[0] == renewed
        del before[f"run {run.key}"]
        assert after == before
        assert store.check() == []

    def test_who_renews_does_not_disturb_who_commits(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon)
        for turn in range(1, 6):
            store.renew([run.key], "me", soon + 100 * turn)
            assert _now(store, run) == replace(run, until=soon + 100 * turn)
            # The writer's record is from before the renewal.
            run = commit(store, run)
            assert _now(store, run) == run
        store.renew([run.key], "me", soon + 1_000)
        store.delete_run(run)
        assert store.runs() == []

    def test_only_the_owner_prolongs(self, store: Store) -> None:
        soon = store.now() + HOUR
        mine, others, free = (
            begin(store, "mine", owner="me", until=soon),
            begin(store, "others", owner="another", until=soon),
            begin(store, "free"),
        )
        blank = begin(store, "blank", owner="", until=soon)
        assert store.renew([others.key, mine.key, free.key, blank.key, 1_000], "me", soon + 50) == []
        assert _now(store, mine).until == soon + 50
        assert [_now(store, run) for run in (others, free, blank)] == [others, free, blank]
        for owner in ("ME", "me ", "m", "m%"):
            store.renew([mine.key], owner, soon + 90)
        assert _now(store, mine).until == soon + 50

    def test_who_was_taken_over_renews_no_more(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon)
        taken = store.append(Append(expect=run, run=advanced(run, owner="another", until=soon + 20)))
        assert store.renew([run.key], "me", soon + 90) == []
        assert _now(store, run) == taken
        left = store.append(Append(expect=taken, run=advanced(taken, owner=None, until=0)))
        assert store.renew([run.key], "another", soon + 90) == []
        assert _now(store, run) == left

    def test_a_lease_is_never_shortened_by_renewing(self, store: Store) -> None:
        soon = store.now() + HOUR
        run = begin(store, owner="me", until=soon)
        for until in (soon - 1, soon, 0, -1):
            store.renew([run.key], "me", until)
            assert _now(store, run) == run

    def test_many_leases_are_prolonged_at_once(self, store: Store) -> None:
        soon = store.now() + HOUR
        runs = [begin(store, f"run-{number}", owner="me", until=soon + number) for number in range(300)]
        store.renew([run.key for run in runs[::2]], "me", soon + 10_000)
        assert [run.until - soon for run in store.runs(limit=400)][::-1] == [
            10_000 if number % 2 == 0 else number for number in range(300)
        ]
        assert store.renew([], "me", soon + 20_000) == []
        assert max(run.until for run in store.runs(limit=400)) == soon + 10_000
