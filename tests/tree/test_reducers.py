"""Reducers: path patterns, merged values, refusals."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from holdfast.errors import InvalidCall, MergeConflict
from holdfast.tree.codec import open_box
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import reveal, thaw
from holdfast.tree.list_alignment import MISSING
from holdfast.tree.merge import Reducers, merge, reducers_of


def merged(base: Any, ours: Any, theirs: Any, declared: Any, resolve: Any = None) -> Any:
    folder = Folder(object())
    root = folder.fold(base)
    sides = folder.fold(ours, root), folder.fold(theirs, root)
    return thaw(reveal(merge(root, *sides, reducers=reducers_of(declared), resolve=resolve), open_box))


#: A reducer, the value before, mine, theirs, and what becomes of them.
CASES: list[tuple[str, Any, Any, Any, Any]] = [
    ("sum", 0, 1, 1, 2),
    ("sum", 10, 7, 15, 12),
    ("sum", MISSING, 1, 2, 3),
    ("sum", 5, MISSING, 6, 1),
    ("sum", 5, 6, MISSING, 1),
    ("sum", 0.5, 1.0, 1.5, 2.0),
    ("sum", Decimal("0.1"), Decimal("0.3"), Decimal("0.2"), Decimal("0.4")),
    ("max", 0, 3, 7, 7),
    ("max", 9, 3, 7, 7),
    ("max", "a", "c", "b", "c"),
    ("min", 9, 3, 7, 3),
    ("last", "", "mine", "theirs", "mine"),
    ("last", "", MISSING, "theirs", MISSING),
    ("equal", 0, 1, 1, 1),
    ("equal", MISSING, {"a": [1]}, {"a": [1]}, {"a": [1]}),
    ("union", {1, 2}, {1, 2, 3}, {2, 4}, {2, 3, 4}),
    ("union", MISSING, {1}, {2}, {1, 2}),
    ("union", ["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]),
    ("union", ["a", "x"], ["a", "b"], ["x", "c"], ["c", "b"]),
    ("union", [], [{"id": 1}], [{"id": 1}, {"id": 2}], [{"id": 1}, {"id": 2}]),
    ("union", {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "c": 3}, {"b": 2, "c": 3}),
    ("union", {"a": 1}, {}, {"a": 1, "b": 2}, {"b": 2}),
]


@pytest.mark.parametrize("name", sorted({case[0] for case in CASES}))
def test_named_reducer_merges_two_changes(name: str) -> None:
    for reducer, base, mine, theirs, expected in CASES:
        if reducer == name:
            sides = [{"k": 0} if value is MISSING else {"k": 0, "n": value} for value in (base, mine, theirs)]
            result = merged(sides[0], sides[1], sides[2], {"n": name})
            assert result.get("n", MISSING) == expected, (base, mine, theirs)
            assert type(result.get("n", MISSING)) is type(expected)


def test_values_that_a_reducer_cannot_merge_conflict(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Any]] = [
        ("sum", ("a", "b", "c")),
        ("sum", (False, True, 1)),
        ("sum", (0, 1.5, Decimal(1))),
        ("max", (0, 1, "a")),
        ("max", (0, 1, MISSING)),
        ("equal", (0, 1, True)),
        ("union", (0, {1}, [2])),
        ("union", ({"a": 1}, {"a": 2}, {"a": 3})),
    ]
    for name, sides in cases:
        with subtests.test(name=name, sides=sides):
            base, mine, theirs = ({} if value is MISSING else {"n": value} for value in sides)
            with pytest.raises(MergeConflict) as caught:
                merged(base, mine, theirs, {"n": name})
            assert caught.value.details["path"] == "n"


@pytest.mark.parametrize(
    ("name", "sides", "said"),
    [
        ("sum", (None, 1, 2), "NoneType and int"),
        ("sum", (0, 1, "a"), "int and str"),
        ("sum", (None, {"a": 1}, 2), "NoneType, dict and int"),
        ("max", (None, 1, "a"), "int and str"),
        ("max", (1, MISSING, 2), "a deletion and int"),
        ("equal", (None, 1, 2), "these values"),
        ("union", (None, [1], {2}), "list and set"),
    ],
)
def test_conflict_names_the_reducer_that_cannot_merge_the_values(name: str, sides: Any, said: str) -> None:
    base, mine, theirs = ({"k": 0} if value is MISSING else {"k": 0, "n": value} for value in sides)
    with pytest.raises(MergeConflict) as caught:
        merged(base, mine, theirs, {"n": name})
    assert f"the reducer {name!r} for n cannot merge {said}: " in str(caught.value)
    assert "merge={" not in str(caught.value)


def test_change_of_one_side_is_not_reduced() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    assert merged({"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 0, "b": 1}, {"*": never}) == {"a": 1, "b": 1}
    assert merged({"a": 0}, {}, {}, {"a": never}) == {}


def test_literal_pattern_is_preferred() -> None:
    base = {"s": {"a": 0, "b": 0, "*": 0}, "t": [{"n": 0}, {"n": 0}], "x": 0}
    mine = {"s": {"a": 1, "b": 1, "*": 1}, "t": [{"n": 1}, {"n": 1}], "x": 1}
    declared = {"s.*": "sum", "s.b": "equal", 's["*"]': lambda *_: "star", "t[*].n": "sum", "*": "last"}
    assert merged(base, mine, mine, declared) == {
        # The literal first segment is looked for first, then `*`, which covers what is left.
        "s": mine["s"], "t": mine["t"], "x": 1,
    }  # fmt: skip
    del declared["*"]
    declared["x"] = "sum"
    assert merged(base, mine, mine, declared) == {
        "s": {"a": 2, "b": 1, "*": "star"}, "t": [{"n": 2}, {"n": 2}], "x": 2,
    }  # fmt: skip


def test_find_distinguishes_keys_of_different_types() -> None:
    known = Reducers({"[1]": "sum", "a.b": "max", "": "last"})
    assert known.find((1,)) is not None
    assert known.find((True,)) is None
    assert known.find(("1",)) is None
    assert known.find(("a",)) is None
    assert known.find(()) is not None


def test_function_gets_base_mine_and_theirs() -> None:
    seen: list[Any] = []

    def best(*values: Any) -> Any:
        seen.append(values)
        return max(values[1:], key=lambda each: each["score"])

    assert merged({}, {"b": {"score": 2}}, {"b": {"score": 5}}, {"b": best}) == {"b": {"score": 5}}
    assert merged({}, {"b": {"score": 7}}, {"b": {"score": 5}}, {"b": best}) == {"b": {"score": 7}}
    assert seen[0] == (MISSING, {"score": 2}, {"score": 5})
    assert not seen[0][0]


def test_error_of_a_function_has_the_path() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        merged({"a": {"n": 0}}, {"a": {"n": 1}}, {"a": {"n": 2}}, {"a.n": lambda *_: 1 / 0})
    assert any("a.n" in note for note in caught.value.__notes__)


def test_resolver_is_called_before_reducers() -> None:
    base, both = {"n": 0, "l": []}, {"n": 1, "l": ["a"]}
    asked = merged(base, both, both, {"n": "sum", "l": "union"}, lambda *_: "asked")
    assert asked == {"n": "asked", "l": ["a"]}
    assert merged(base, both, both, {"n": "sum"}) == {"n": 2, "l": ["a", "a"]}


@pytest.mark.parametrize(
    "wrong", [{"n": "summ"}, {"n": None}, {"a b": "sum"}, {"a[": "sum"}, {3: "sum"}, [("n", "sum")], "sum"]
)
def test_invalid_reducer_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidCall, match="merge"):
        reducers_of(wrong)


class AsyncCall:
    async def __call__(self, base: Any, mine: Any, theirs: Any) -> Any:
        return mine


async def areduce(base: Any, mine: Any, theirs: Any) -> Any:
    return mine


def test_function_that_cannot_be_a_reducer_is_refused_where_it_is_declared(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (areduce, "asynchronous.*plain def of base, mine, theirs"),
        (AsyncCall(), "asynchronous"),
        (lambda mine, theirs: mine, "cannot be called with base, mine, theirs"),
        (lambda base, mine, theirs, more: mine, "missing a required argument: 'more'"),
        (len, "cannot be called with base, mine, theirs"),
        (sum, '"sum"'),
        (max, '"max"'),
        (min, '"min"'),
    ]
    for given, said in cases:
        with subtests.test(given=given), pytest.raises(InvalidCall, match=rf"merge\['a\.n'\].*{said}"):
            reducers_of({"a.n": given})


def test_function_of_three_arguments_is_a_reducer() -> None:
    class Call:
        def __call__(self, *sides: Any) -> Any:
            return sides[2]

    def with_default(base: Any, mine: Any, theirs: Any, weight: int = 1) -> Any:
        return theirs

    for given in (Call(), with_default, partial(lambda first, base, mine, theirs: theirs, 0)):
        assert merged({"n": 0}, {"n": 1}, {"n": 2}, {"n": given}) == {"n": 2}


def test_negative_index_in_a_pattern_is_refused() -> None:
    for pattern in ("a[-1]", "[-2].n", "a[*][-1]"):
        with pytest.raises(InvalidCall, match=r"negative index.*\[\*\]"):
            reducers_of({pattern: "sum"})


def test_two_spellings_of_one_pattern_are_refused() -> None:
    with pytest.raises(InvalidCall, match="two reducers"):
        reducers_of({"a.*": "sum", "a[*]": "max"})
    assert reducers_of({}) is None
    assert reducers_of(None) is None
