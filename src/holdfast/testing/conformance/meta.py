"""Contracts of the metadata of runs and their index."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from holdfast.errors import StaleVersion
from holdfast.model.meta import MetaRow, meta_rows
from holdfast.model.records import RunRecord
from holdfast.store.protocol import Append, Store
from holdfast.testing.samples import advanced, imported, new_run

#: Values that are equal in Python, or look alike, and hostile texts.
_VALUES = (
    7,
    7.0,
    "7",
    True,
    1,
    1.0,
    "true",
    None,
    "null",
    "",
    "Grüße 🪸",
    "a\0b",
    "'; DROP TABLE run; --",
    "x" * 500,
)


def _begin(store: Store, run_id: str, rows: tuple[MetaRow, ...], **fields: object) -> RunRecord:
    return store.append(Append(expect=None, run=new_run(run_id, **fields), meta=rows))


def _ids(runs: list[RunRecord]) -> list[str]:
    return [run.id for run in runs]


class MetaContract:
    """Metadata are changed with the run, and runs are found by all of some metadata."""

    def test_runs_are_found_by_the_exact_value(self, store: Store) -> None:
        for number, value in enumerate(_VALUES):
            _begin(store, f"run-{number}", meta_rows({"value": value}))
        _begin(store, "other", meta_rows({"other": 7}))
        _begin(store, "none", ())
        for number, value in enumerate(_VALUES):
            assert _ids(store.runs(meta=meta_rows({"value": value}))) == [f"run-{number}"]

    def test_runs_are_found_by_all_of_several_names(self, store: Store) -> None:
        random = Random(5)
        names = ("a", "b", "c", "d", "e")
        made = []
        for number in range(80):
            rows = meta_rows({name: random.randrange(2) for name in names if random.random() < 0.8})
            made.append((_begin(store, f"run-{number}", rows).id, set(rows)))
        for count in range(1, 6):
            for some in list(combinations(names, count))[:6]:
                wanted = meta_rows({name: random.randrange(2) for name in some})
                expected = [run_id for run_id, rows in reversed(made) if rows.issuperset(wanted)]
                assert _ids(store.runs(meta=wanted)) == expected

    def test_pages_of_a_value_are_in_order_and_complete(self, store: Store) -> None:
        rows = meta_rows({"customer": 7})
        for number in range(25):
            _begin(store, f"run-{number}", rows if number % 2 else ())
        found: list[str] = []
        before = None
        while page := store.runs(meta=rows, limit=4, before=before):
            found += _ids(page)
            before = page[-1].key
        assert found == [f"run-{number}" for number in range(23, 0, -2)]

    def test_other_filters_apply_too(self, store: Store) -> None:
        rows = meta_rows({"customer": 7, "env": "test"})
        for number in range(6):
            status = "failed" if number % 2 else "running"
            _begin(store, f"run-{number}", rows, status=status, workflow=f"flow-{number % 3}")
        assert _ids(store.runs(meta=rows, statuses=["failed"])) == ["run-5", "run-3", "run-1"]
        assert _ids(store.runs(meta=rows, workflow="flow-0")) == ["run-3", "run-0"]
        assert _ids(store.runs(meta=rows, prefix="run-4")) == ["run-4"]
        assert _ids(store.runs(meta=rows, tags=["good"])) == []

    def test_metadata_are_replaced_with_the_record_or_not_at_all(self, store: Store) -> None:
        run = _begin(store, "run", meta_rows({"a": 1, "b": 2, "c": 3}))
        after = meta_rows({"b": 2, "c": 4, "d": 5})
        changed = store.append(Append(expect=run, run=advanced(run), meta=after))
        assert store.meta_of(run.key) == list(after)
        for name, value, is_found in [
            ("a", 1, False),
            ("b", 2, True),
            ("c", 3, False),
            ("c", 4, True),
            ("d", 5, True),
        ]:
            assert _ids(store.runs(meta=meta_rows({name: value}))) == (["run"] if is_found else [])
        with pytest.raises(StaleVersion):
            store.append(Append(expect=run, run=advanced(run), meta=meta_rows({"a": 1})))
        assert store.meta_of(run.key) == list(after)
        kept = store.append(Append(expect=changed, run=advanced(changed)))
        assert store.meta_of(run.key) == list(after)
        store.append(Append(expect=kept, run=advanced(kept), meta=()))
        assert store.meta_of(run.key) == []
        assert store.runs(meta=after) == []

    def test_metadata_are_deleted_with_the_run(self, store: Store) -> None:
        rows = meta_rows({"customer": 7, "env": "test"})
        run = _begin(store, "run", rows)
        _begin(store, "other", rows)
        store.delete_run(run)
        assert _ids(store.runs(meta=rows)) == ["other"]
        assert store.meta_of(run.key) == []
        _begin(store, "run", ())
        assert _ids(store.runs(meta=rows)) == ["other"]
        assert store.check() == []

    def test_metadata_are_imported(self, store: Store) -> None:
        rows = meta_rows({"customer": 7, "env": "test"})
        run = store.import_run(imported(3, "copy", meta=rows))
        assert store.meta_of(run.key) == list(rows)
        assert _ids(store.runs(meta=rows)) == ["copy"]
        assert store.meta_of(999_999) == []
