"""Contracts of items: names, order, expiry, vectors."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import InvalidCall
from holdfast.model.records import ItemRecord
from holdfast.store.protocol import ItemKey, ItemPut, Namespace, Store
from holdfast.tree.terms import TermQuery, TermRange

#: Labels that databases, encodings and separators treat in a special way, in the order of their code points.
_LABELS = (
    "",
    "\0",
    "\0\0",
    " ",
    "%",
    "*",
    ".",
    "/",
    "A",
    "a",
    "a\0",
    "a\0b",
    "a.b",
    "aa",
    "é",
    "\udc80",
    "\uffff",
    "𝄞",
)


def _record(namespace: Namespace, key: str, data: bytes = b"value", at: int = 10, **more: Any) -> ItemRecord:
    return ItemRecord(namespace=namespace, key=key, data=data, created=at, updated=at, **more)


def _name(record: ItemRecord) -> ItemKey:
    return ItemKey(record.namespace, record.key)


def _put(store: Store, *records: ItemRecord) -> None:
    store.put_items(list(map(ItemPut, records)))


def _vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _recent(store: Store, prefix: Namespace, terms: TermQuery | None = None) -> list[ItemKey]:
    """Return the names of all items with a prefix."""
    return store.recent_items(prefix, limit=10_000, terms=terms)


def _newest_first(records: Iterable[ItemRecord]) -> list[ItemKey]:
    """Return the names of records in the order in which a store lists them."""
    found = sorted(((each.updated, each.namespace, each.key) for each in records), reverse=True)
    return [ItemKey(namespace, key) for _, namespace, key in found]


def _terms(number: int) -> tuple[bytes, ...]:
    """Return the terms of the item with a number: some have none, some the empty one."""
    if number % 10 == 0:
        return () if number % 20 else (b"",)
    return (b"a%d" % (number % 3), b"b%02d" % number)


_ANY = TermRange(b"", b"")
_QUERIES = [
    TermQuery(((TermRange(b"a1", b"a1"),),)),
    TermQuery(((TermRange(b"a1", b"a1"), TermRange(b"b40", b"b40"), _ANY),)),
    TermQuery(((TermRange(b"b10", b"b30"), _ANY),)),
    TermQuery(((TermRange(b"a1", b"a1"), _ANY), (TermRange(b"b10", b"b30"), _ANY))),
    TermQuery(((TermRange(b"b10", b"b40"),),), (TermRange(b"a1", b"a1"),)),
    TermQuery((), (TermRange(b"a1", b"a1"), TermRange(b"b05", b"b25"))),
    TermQuery(((TermRange(b"c", b"c"),),)),
    TermQuery((), (TermRange(b"", b"\xff"),)),
    TermQuery(),
]


def _keys(found: Sequence[ItemKey]) -> list[str]:
    return [each.key for each in found]


class ItemContract:
    """`put_items`, `items`, `recent_items`, `live_items`, `item_names`, `namespaces`, `renew_items`, `sweep_items`."""

    def test_item_reads_back(self, store: Store) -> None:
        for size in (0, 1, 1000, 1100, 5000, 1 << 20):
            record = _record(
                ("a", "b"), f"of {size}", bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            )
            _put(store, record)
            assert store.items([ItemKey(("a", "b"), record.key)]) == [record]
        full = _record(("a",), "full", ttl=7, expires=17)
        _put(store, full)
        assert store.items([ItemKey(("a",), "full")]) == [full]

    def test_missing_items_are_omitted(self, store: Store) -> None:
        one, other = _record(("a",), "one"), _record(("b",), "other")
        _put(store, one, other)
        wanted = [
            ItemKey(("a",), "other"),
            ItemKey(("b",), "other"),
            ItemKey(("a",), "one"),
            ItemKey((), "one"),
        ]
        assert sorted(store.items(wanted), key=lambda record: record.key) == [one, other]
        assert store.items([]) == []
        assert store.items([ItemKey(("a" * 10_000,), "k" * 10_000)]) == []

    def test_names_never_collide(self, store: Store) -> None:
        namespaces = [
            (),
            *((label,) for label in _LABELS),
            *((one, two) for one in _LABELS for two in _LABELS),
        ]
        keys = ("", "k", "\0", "\udc80")
        records = [
            _record(namespace, key, f"{namespace} {key}".encode("utf-8", "surrogatepass"))
            for namespace in namespaces
            for key in keys
        ]
        _put(store, *records)
        names = [ItemKey(record.namespace, record.key) for record in records]
        found = {(record.namespace, record.key): record for record in store.items(names)}
        assert found == {(record.namespace, record.key): record for record in records}
        assert store.namespaces((), limit=10_000, now=0) == sorted(namespaces)
        for prefix in namespaces:
            below = {each for each in namespaces if each[: len(prefix)] == prefix}
            assert {each.namespace for each in _recent(store, prefix)} == below
            assert store.namespaces(prefix, limit=10_000, now=0) == sorted(below)

    def test_last_put_wins_and_keeps_the_creation(self, store: Store) -> None:
        _put(store, _record(("a",), "k", b"first", 10))
        _put(store, _record(("a",), "k", b"second", 20))
        (found,) = store.items([ItemKey(("a",), "k")])
        assert found == replace(_record(("a",), "k", b"second", 20), created=10)

    def test_expired_item_is_created_again(self, store: Store) -> None:
        _put(store, _record(("a",), "k", b"first", 10, ttl=5, expires=15))
        second = _record(("a",), "k", b"second", 15)
        _put(store, second)
        assert store.items([ItemKey(("a",), "k")]) == [second]

    def test_puts_and_deletes_are_one_change(self, store: Store) -> None:
        _put(store, _record(("a",), "old"), _record(("a",), "kept"))
        store.put_items(
            [ItemPut(_record(("a",), "new"))], [ItemKey(("a",), "old"), ItemKey(("b",), "missing")]
        )
        assert sorted(_keys(_recent(store, ("a",)))) == ["kept", "new"]
        store.put_items([], [ItemKey(("a",), "kept"), ItemKey(("a",), "new")])
        assert store.namespaces((), now=0) == []

    def test_recent_items_are_newest_first(self, store: Store) -> None:
        times = [5, 1, 9, 3, 7, 9]
        for number, at in enumerate(times):
            _put(store, _record(("a", str(number % 2)), str(number), at=at))
        assert _keys(_recent(store, ("a", "0"))) == ["2", "4", "0"]
        assert _keys(_recent(store, ("a",))) == ["5", "2", "4", "0", "3", "1"]
        _put(store, _record(("a", "0"), "0", at=11))
        assert _keys(_recent(store, ("a", "0"))) == ["0", "2", "4"]
        assert _keys(store.recent_items((), limit=2)) == ["0", "5"]
        assert store.recent_items(("b",)) == []

    def test_fewer_recent_items_are_the_newest(self, store: Store) -> None:
        for names in (["n"], ["n", "m", "o"]):
            _put(store, *(_record(("p", names[n % len(names)]), f"{n:03}", at=n // 7) for n in range(50)))
            whole = _recent(store, ("p",))
            assert len(whole) == 50 if names == ["n"] else len(whole) > 50
            assert whole == _newest_first(store.items(whole))
            for limit in (0, 1, 7, 50):
                assert store.recent_items(("p",), limit=limit) == whole[:limit]

    def test_live_items_are_the_recent_ones_without_the_expired(self, store: Store) -> None:
        for names in (["n"], ["n", "m", "o"]):
            records = [
                _record(("l", names[n % len(names)]), f"{n:03}", at=n // 7, ttl=9, expires=n % 9 or None)
                for n in range(50)
            ]
            _put(store, *records)
            stored = store.items(_recent(store, ("l",)))
            for now in (0, 1, 5, 8):
                live = [each for each in stored if each.expires is None or each.expires > now]
                assert store.live_items(("l",), now=now) == _newest_first(live)
                for skip, limit in ((0, 3), (3, 3), (20, 0), (20, 9), (len(live), 3), (1 << 62, 3)):
                    found = store.live_items(("l",), now=now, skip=skip, limit=limit)
                    assert found == _newest_first(live)[skip : skip + limit]
        assert store.live_items(("m",), now=0, skip=1) == []

    def test_item_names_are_in_order_page_by_page(self, store: Store) -> None:
        names = [ItemKey(("p", *labels), key) for labels in ((), ("a",), ("a\0", "b")) for key in _LABELS]
        _put(store, *(_record(name.namespace, name.key, at=n % 5) for n, name in enumerate(names)))
        _put(store, _record((), ""), _record(("o",), "k"), _record(("p\0",), "k"), _record(("pp",), "k"))
        assert store.item_names(("p",)) == names
        assert store.item_names(("p", "a")) == store.item_names(("p", "a"), after=ItemKey((), ""))
        assert store.item_names(("p", "a")) == [name for name in names if name.namespace == ("p", "a")]
        assert store.item_names(("q",)) == []
        for limit in (1, 7, len(names)):
            for number, name in enumerate(names, 1):
                assert store.item_names(("p",), after=name, limit=limit) == names[number : number + limit]
        assert store.item_names(("p",), after=ItemKey(("p",), "x" * 9)) == names[_LABELS.index("é") :]

    def test_terms_select_items(self, store: Store) -> None:
        for names in (["n"], ["n", "m", "o"]):
            records = [
                _record(("t", names[n % len(names)]), f"{n:03}", at=n // 7, terms=_terms(n))
                for n in range(60)
            ]
            _put(store, *records)
            every = store.items(_recent(store, ("t",)))
            assert len(every) >= 60
            for query in _QUERIES:
                expected = _newest_first(record for record in every if query.selects(record.terms))
                found = _recent(store, ("t",), query)
                assert found == _newest_first(record for record in every if _name(record) in found)
                assert [name for name in found if name in expected] == expected
                if len(query.having) + len(query.lacking) == 1:
                    assert found == expected
                    for limit in (1, 7):
                        assert store.recent_items(("t",), limit=limit, terms=query) == expected[:limit]
            assert _recent(store, ("t",), _QUERIES[0])
            assert _recent(store, ("u",), _QUERIES[0]) == []

    def test_terms_are_replaced_and_deleted_with_their_item(self, store: Store) -> None:
        _put(store, _record(("a",), "k", terms=(b"1", b"2")))
        _put(store, _record(("a",), "k", at=11, terms=(b"2", b"3"), ttl=1, expires=12))
        found = {
            term: len(_recent(store, ("a",), TermQuery(((TermRange(term, term),),))))
            for term in (b"1", b"2", b"3")
        }
        assert found == {b"1": 0, b"2": 1, b"3": 1}
        assert store.check() == []
        for delete in ("delete", "sweep"):
            _put(store, _record(("a",), "k", terms=(b"1",), ttl=1, expires=12))
            if delete == "delete":
                store.put_items([], [ItemKey(("a",), "k")])
            else:
                assert store.sweep_items(20, 10) == 1
            assert _recent(store, ("a",), TermQuery(((TermRange(b"", b"\xff"),),))) == []
            assert store.check() == []

    def test_namespaces_are_listed_by_pages(self, store: Store) -> None:
        names = [("n", f"{n:03}", label) for n in range(30) for label in ("x", "y")]
        _put(store, *(_record(name, key) for name in names for key in ("1", "2")))
        found: list[Namespace] = []
        while more := store.namespaces(("n",), after=found[-1] if found else None, limit=7, now=0):
            found += more
        assert found == names
        assert store.namespaces(("n",), after=("n", "000"), skip=True, limit=1, now=0) == [("n", "001", "x")]
        assert store.namespaces(("n",), after=("n",), skip=True, now=0) == []
        assert store.namespaces(("n", "002"), after=("n", "000"), now=0) == [
            ("n", "002", "x"),
            ("n", "002", "y"),
        ]

    def test_few_namespaces_are_listed_in_order(self, store: Store) -> None:
        names = [("t", "d", "public"), ("t", "d", "private"), ("t", "i", "public"), ("p", "d", "public")]
        for name in names:
            _put(store, _record(name, "k"))
        assert store.namespaces((), now=0) == sorted(names)

    def test_expired_items_are_returned_but_their_namespaces_are_not(self, store: Store) -> None:
        _put(store, _record(("a",), "k", ttl=5, expires=15), _record(("b",), "k"))
        assert store.namespaces((), now=14) == [("a",), ("b",)]
        assert store.namespaces((), now=15) == [("b",)]
        assert len(store.items([ItemKey(("a",), "k")])) == 1

    def test_sweep_deletes_expired_items(self, store: Store) -> None:
        _put(
            store,
            *(_record(("a",), f"{n}", ttl=n, expires=10 + n) for n in range(1, 8)),
            _record(("a",), "kept"),
        )
        assert store.sweep_items(10, 100) == 0
        assert store.sweep_items(14, 3) == 3
        assert store.sweep_items(14, 3) == 1
        assert store.sweep_items(14, 3) == 0
        assert sorted(_keys(_recent(store, ()))) == ["5", "6", "7", "kept"]

    def test_puts_of_items_that_expire_delete_expired_ones(self, store: Store) -> None:
        old = _record(("old",), "", at=1, ttl=5, expires=6, terms=(b"1",))
        for number in range(10):
            _put(store, replace(old, key=f"{number}", expires=6 + number))
        _put(store, _record(("a",), "forever", at=100))
        assert len(_recent(store, ())) == 11, "only puts with a time to live delete"
        store.renew_items(store.items([ItemKey(("old",), "0")]), 101)
        for number in range(1, 4):
            _put(store, _record(("new",), f"{number}", at=100, ttl=5, expires=105))
            assert sorted(_keys(_recent(store, ("old",)))) == ["0", *map(str, range(2 * number + 1, 10))]
        _put(
            store,
            _record(("new",), "4", at=100, ttl=5, expires=105),
            _record(("new",), "forever", at=100),
        )
        assert sorted(_keys(_recent(store, ()))) == ["0", "1", "2", "3", "4", "forever", "forever"]
        assert store.sweep_items(105, 10) == 4
        assert store.sweep_items(106, 10) == 1
        assert store.check() == []

    def test_renewed_item_expires_later(self, store: Store) -> None:
        records = [_record(("a",), "k", ttl=5, expires=15), _record(("a",), "forever")]
        _put(store, *records)
        store.renew_items(records, 14)
        assert store.sweep_items(18, 10) == 0
        (found,) = store.items([ItemKey(("a",), "k")])
        assert found == replace(records[0], expires=19)
        assert store.items([ItemKey(("a",), "forever")]) == [records[1]]
        assert store.sweep_items(19, 10) == 1

    def test_changed_item_is_not_renewed(self, store: Store) -> None:
        old = _record(("a",), "k", b"old", ttl=5, expires=15)
        new = _record(("a",), "k", b"new", ttl=1, expires=11)
        _put(store, old)
        _put(store, new)
        store.renew_items([old], 14)
        assert store.items([ItemKey(("a",), "k")]) == [new]
        store.put_items([], [ItemKey(("a",), "k")])
        store.renew_items([new], 14)
        assert store.items([ItemKey(("a",), "k")]) == []

    def test_items_do_not_affect_runs_or_values(self, store: Store) -> None:
        _put(store, _record(("a",), "k"))
        assert store.runs() == []
        assert store.value_names("") == []
        assert store.check() == []

    def test_concurrent_puts_of_one_item_leave_one_of_them(self, store: Store) -> None:
        writers, rounds = 4, 10
        barrier = threading.Barrier(writers)

        def write(writer: int) -> None:
            barrier.wait()
            for number in range(rounds):
                puts = [
                    ItemPut(
                        _record(("a",), key, f"{writer} {number}".encode(), terms=(b"%d" % writer, b"x")),
                        [_vector(writer, number)] * 2,
                    )
                    for key in (("x", "y") if writer % 2 else ("y", "x"))
                ]
                store.put_items(puts)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = store.items([ItemKey(("a",), "x"), ItemKey(("a",), "y")])
        last = {record.data for record in found}
        assert len(found) == 2
        assert last <= {f"{writer} {rounds - 1}".encode() for writer in range(writers)}
        assert len(last) == 1, "a batch is one change"
        writer = int(next(iter(last)).split()[0])
        exact = store.nearest_items(("a",), _vector(writer, rounds - 1), "l2", 10)
        assert [(score, key.key) for score, key in exact] == [(0.0, "x"), (0.0, "y")]
        assert store.check() == []


class ItemVectorContract:
    """`nearest_items`, and the vectors of `put_items`."""

    def test_nearest_items_are_best_first(self, store: Store) -> None:
        vectors = {"east": (1, 0), "north": (0, 1), "far": (3, 3), "zero": (0, 0), "west": (-1, 0)}
        for name, vector in vectors.items():
            store.put_items([ItemPut(_record(("a", name[0]), name), [_vector(*vector)])])
        expected: dict[str, dict[str, float]] = {
            "cosine": {"east": 1, "far": 0.5**0.5, "north": 0, "zero": 0, "west": -1},
            "inner_product": {"far": 3, "east": 1, "north": 0, "zero": 0, "west": -1},
            "l2": {"east": 0, "zero": -1, "north": -(2**0.5), "west": -2, "far": -(13**0.5)},
        }
        for metric, scores in expected.items():
            found = store.nearest_items(("a",), _vector(1, 0), metric, 10)
            assert {key.key: score for score, key in found} == pytest.approx(scores, abs=1e-6)
            assert [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)
            assert store.nearest_items(("a",), _vector(1, 0), metric, 2) == found[:2]
        assert [key.key for _, key in store.nearest_items(("a", "w"), _vector(1, 0), "cosine", 9)] == ["west"]
        assert store.nearest_items(("b",), _vector(1, 0), "cosine", 10) == []

    def test_scores_are_numbers(self, store: Store) -> None:
        vectors = {"zero": (0.0, 0.0), "large": (3e38, 3e38), "usual": (1.0, 0.5), "other": (-1.0, 0.0)}
        for key, numbers in vectors.items():
            store.put_items([ItemPut(_record(("v",), key), [_vector(*numbers)])])
        for metric in ("cosine", "inner_product", "l2"):
            for query in ((1.0, 1.0), (0.0, 0.0)):
                found = store.nearest_items((), _vector(*query), metric, 10)
                assert sorted(key.key for _, key in found) == sorted(vectors)
                assert not any(math.isnan(score) for score, _ in found), f"{metric} of {query}"

    def test_best_vector_of_an_item_counts_once(self, store: Store) -> None:
        store.put_items([ItemPut(_record(("a",), "both"), [_vector(1, 0), _vector(0, 1)])])
        store.put_items([ItemPut(_record(("a",), "one"), [_vector(1, 1)])])
        store.put_items([ItemPut(_record(("a",), "none"))])
        found = store.nearest_items(("a",), _vector(0, 2), "cosine", 10)
        assert [key.key for _, key in found] == ["both", "one"]
        assert [score for score, _ in found] == pytest.approx([1, 0.5**0.5])

    def test_vectors_are_replaced_and_deleted_with_their_item(self, store: Store) -> None:
        store.put_items([ItemPut(_record(("a",), "k"), [_vector(1, 0), _vector(0, 1)])])
        store.put_items([ItemPut(_record(("a",), "k", ttl=1, expires=11), [_vector(-1, 0)])])
        ((score, _),) = store.nearest_items(("a",), _vector(1, 0), "cosine", 10)
        assert score == pytest.approx(-1)
        _put(store, _record(("a",), "k"))
        assert store.nearest_items(("a",), _vector(1, 0), "cosine", 10) == []
        for delete in ("delete", "sweep"):
            record = _record(("a",), "k", ttl=1, expires=11)
            store.put_items([ItemPut(record, [_vector(1, 0)])])
            if delete == "delete":
                store.put_items([], [ItemKey(("a",), "k")])
            else:
                store.sweep_items(20, 10)
            assert store.nearest_items(("a",), _vector(1, 0), "cosine", 10) == []
            assert store.check() == []

    def test_vector_of_another_length_is_refused(self, store: Store) -> None:
        store.put_items([ItemPut(_record(("a",), "old"), [_vector(1, 0, 0)])])
        store.put_items([ItemPut(_record(("b",), "new"), [_vector(1, 0)])])
        with pytest.raises(InvalidCall, match="'old'"):
            store.nearest_items((), _vector(1, 0), "cosine", 10)
        assert len(store.nearest_items(("b",), _vector(1, 0), "cosine", 10)) == 1

    def test_many_vectors_are_compared(self, store: Store) -> None:
        numbers = range(700)
        store.put_items([ItemPut(_record(("a",), f"{n:03}"), [_vector(n, *[1.0] * 1535)]) for n in numbers])
        found = store.nearest_items(("a",), _vector(500, *[1.0] * 1535), "l2", 3)
        assert found[0] == (0.0, ItemKey(("a",), "500"))
        assert {key.key for _, key in found[1:]} == {"499", "501"}
