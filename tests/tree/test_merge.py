"""Three-way merge: each rule by example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from merge_helpers import check, exactly, trees

from growth import growth
from holdfast.errors import MergeConflict
from holdfast.tree import list_alignment as alignment_module
from holdfast.tree import merge as merge_module
from holdfast.tree.codec import encode
from holdfast.tree.containers import build_list, changed_keys
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import aux_of, thaw
from holdfast.tree.list_alignment import MISSING
from holdfast.tree.merge import Reducers, merge

Sides = tuple[Any, Any, Any, Any]
ABC = {"a": 1, "b": 2, "c": 3}
ODD = {1.5: "a", (1, "x"): "b", None: "c"}
CAB = {"c": 3, "a": 1, "b": 2}
TASK = {"id": 1, "done": False, "by": None}
DONE = {"id": 1, "done": 1, "by": 5}
NAN = float("nan")


def merged(base: Any, ours: Any, theirs: Any, **how: Any) -> Any:
    result = merge(*trees(base, ours, theirs), **how)
    check(result)
    return thaw(result)


def conflict(base: Any, ours: Any, theirs: Any) -> MergeConflict:
    with pytest.raises(MergeConflict) as caught:
        merge(*trees(base, ours, theirs))
    return caught.value


def test_single_changed_side_is_the_result() -> None:
    base, ours, theirs = trees({"a": [1]}, {"a": [2]}, {"a": [3]})
    assert merge(base, base, theirs) is theirs
    assert merge(base, ours, base) is ours
    copy = Folder(object()).fold({"a": [1]})
    assert merge(base, copy, theirs) is theirs
    assert merge(base, ours, copy) is ours
    sides = trees({"a": 1}, {"a": 2, "b": [3]}, {"a": 2, "b": [3], "c": 1})
    assert merge(*sides, agree=True) is sides[2]


def test_missing_value_merges_on_any_side() -> None:
    assert (merge(MISSING, MISSING, 1), merge(MISSING, 1, MISSING)) == (1, 1)
    assert merge(1, MISSING, 1) is merge(1, 1, MISSING) is merge(1, MISSING, MISSING, agree=True) is MISSING


MERGES: dict[str, Sides] = {
    "different keys": (ABC, {**ABC, "a": 9}, {**ABC, "b": 8}, {"a": 9, "b": 8, "c": 3}),
    "deep": ({"p": {"q": ABC}}, {"p": {"q": CAB}}, {"p": {"q": ABC, "t": 8}}, {"p": {"q": CAB, "t": 8}}),
    "types": ({"a": 0, "b": 0}, {"a": 0.0, "b": 0}, {"a": 0, "b": False}, {"a": 0.0, "b": False}),
    "bits": ({"n": 0.0}, {"n": -0.0}, {"n": 0.0, "t": NAN}, {"n": -0.0, "t": NAN}),
    "new keys": ({}, {"y": 0, "x": 0}, {"t": 0, "s": 0}, {"t": 0, "s": 0, "y": 0, "x": 0}),
    "we delete": (ABC, {"b": 2, "c": 3}, {**ABC, "d": 4}, {"b": 2, "c": 3, "d": 4}),
    "they delete": (ABC, {**ABC, "d": 4}, {"b": 2, "c": 3}, {"b": 2, "c": 3, "d": 4}),
    "both delete others": (ABC, {"b": 2, "c": 3}, {"a": 1, "c": 3}, {"c": 3}),
    "both add a dict": ({}, {"r": {"o": [1]}}, {"r": {"t": [2]}}, {"r": {"t": [2], "o": [1]}}),
    "both add a list": ({}, {"r": ["o"]}, {"r": ["t"]}, {"r": ["t", "o"]}),
    "our order": (ABC, CAB, {**ABC, "b": 9}, {**CAB, "b": 9}),
    "our order, their key": (ABC, CAB, {**ABC, "t": 0}, {**CAB, "t": 0}),
    "our key between": (ABC, {"o": 0, **ABC}, {**ABC, "c": 9}, {"o": 0, **ABC, "c": 9}),
    "their order": (ABC, {**ABC, "o": 0}, CAB, {**CAB, "o": 0}),
    "two orders": (ABC, {"b": 2, "a": 1, "c": 3}, CAB, CAB),
    "odd keys": (ODD, {**ODD, 1.5: "o"}, {**ODD, None: "t"}, {**ODD, 1.5: "o", None: "t"}),
    "boxes": ({"s": {1}, "t": {2}}, {"s": {3}, "t": {2}}, {"s": {1}, "t": {4}}, {"s": {3}, "t": {4}}),
    "our first box": ({"a": 1, "b": 1}, {"a": {1}, "b": 1}, {"a": 1, "b": 2}, {"a": {1}, "b": 2}),
    "box in a list": ([{1}, "b"], [{1, 2}, "b"], [{1}, "b", 4], [{1, 2}, "b", 4]),
    "types in a list": ([1, 2, 3, 4], [1.0, 2, 3, 4], [1, 2, 3, True], [1.0, 2, 3, True]),
    "edits of one item": ([TASK, 2], [{**TASK, "done": 1}, 2], [0, {**TASK, "by": 5}, 2], [0, DONE, 2]),
    "edit and append": ([TASK], [{**TASK, "done": 1}, "o"], [{**TASK, "by": 5}, "t"], [DONE, "t", "o"]),
    "edit and insert": ([TASK], ["o", {**TASK, "done": 1}], ["t", {**TASK, "by": 5}], ["t", "o", DONE]),
}


def test_values_merge(subtests: pytest.Subtests) -> None:
    for name, (base, ours, theirs, expected) in MERGES.items():
        with subtests.test(name=name):
            assert exactly(merge(*trees(base, ours, theirs)), expected)
            assert exactly(merge(*(Folder(object()).fold(side) for side in (base, ours, theirs))), expected)


CONFLICTS: dict[str, Sides] = {
    "root": (0, 1, 2, [""]),
    "same keys": (ABC, {**ABC, "a": 8, "b": 8}, {**ABC, "a": 9, "b": 9}, ["a", "b"]),
    "deleted and changed": (ABC, {"b": 2, "c": 3}, {**ABC, "a": 9}, ["a"]),
    "changed and deleted": (ABC, {**ABC, "a": 9}, {"b": 2, "c": 3}, ["a"]),
    "both deleted": (ABC, {"c": 3}, {"b": 2}, ["a"]),
    "both popped": ([1, 2, 3], [2, 3], [2, 3], ["[0]"]),
    "added": ({}, {"a": 1}, {"a": 2}, ["a"]),
    "added containers": ({}, {"a": {}}, {"a": []}, ["a"]),
    "type clash": ({"a": {"x": 1}}, {"a": {"x": 2}}, {"a": [1]}, ["a"]),
    "a scalar became dicts": ({"a": None}, {"a": {"x": 2}}, {"a": {"y": 2}}, ["a"]),
    "types": ({"a": 0}, {"a": 1}, {"a": True}, ["a"]),
    "boxes": ({"s": {0}}, {"s": {1}}, {"s": {2}}, ["s"]),
    "equal keys of other types": ({1: "a"}, {True: "a"}, {1: "a", 2: "b"}, [""]),
    "equal tuples as keys": ({"d": {}}, {"d": {(1,): 0}}, {"d": {(1.0,): 0, "x": 1}}, ["d"]),
    "place in the head": ([TASK, "c"], [{**TASK, "id": 2}, "c"], ["n", {**TASK, "id": 3}, "c"], ["[1].id"]),
}


def test_values_conflict(subtests: pytest.Subtests) -> None:
    for name, (base, ours, theirs, paths) in CONFLICTS.items():
        with subtests.test(name=name):
            assert conflict(base, ours, theirs).details["paths"] == paths


# Two changes of the letters abcdef: insertions, changes, deletions, rewritten stretches, a move; conflicts.
LETTERS = """
    abcdefxy+abcdefz=abcdefzxy  Xabcdef+abcdefZ=XabcdefZ  abXYcdef+abZcdef=abZXYcdef  aXbcdef+abcdYef=aXbcdYef
    aXcdef+abcdYf=aXcdYf  aXcdef+abYdef=aXYdef  Xbcdfg+abcdefh=Xbcdfhg
    abef+abcdefZ=abefZ  abcdefZ+abef=abefZ  +abcdefZ=Z  abcdefZ+=Z  cdef+abcd=cd  aef+abcf=![3]  af+abcXdef=aXf
    S+abcdefZ=SZ  abcdefZ+S=SZ  aXYcdef+abcdeQf=aXYcdeQf  fabcde+abXdef=fabXde
    aXcdef+aYcdef=![1]  acdef+aYcdef=![1]  aYcdef+acdef=![1]  aXcYef+TaPcQef=![2],[4]
    aXXcdef+aYcdef=!  aXYcdef+aXYcdefg=!  abcXYf+aPbcXYf=![4],[5]  aXef+abcXYef=!
    aXef+abZcdef=!  XXZdYf+ZabYYdQf=!  bcdefa+bcdefaZ=!
"""


def test_lists_merge(subtests: pytest.Subtests) -> None:
    for case in LETTERS.split():
        with subtests.test(case=case):
            ours, theirs, expected = case.replace("=", "+").split("+")
            try:
                found = "".join(merged(list("abcdef"), list(ours), list(theirs)))
            except MergeConflict as error:
                found = "!" + ",".join(error.details["paths"])
            assert found == expected


def test_repetitive_lists_merge() -> None:
    base = [0] * 3000
    assert merged(base, [1, *base[1:-1], 1], [0, 2, *base[2:]]) == [1, 2, *base[2:-1], 1]
    assert conflict(base, [7, 8, *base[1:], 9], [5, *base[1:], 6, 6]).details["paths"] == [""]


@pytest.mark.parametrize("size", [5, 40, 1500])
def test_dicts_share_with_the_head(size: int) -> None:
    base = {f"k{number}": {"n": number} for number in range(size)}
    plain = {**base, "k4": {"n": -4}, "t": 2}
    root, ours, theirs = trees(base, {**base, "k3": {"n": -3}, "o": 1}, plain)
    result = merge(root, ours, theirs)
    assert exactly(result, {**plain, "k3": {"n": -3}, "o": 1})
    assert result["k4"] is theirs["k4"]
    assert result["k3"] is ours["k3"]
    touched = changed_keys(theirs, result)
    assert touched is None if size < 32 else len(list(touched or base)) <= 64


def test_wide_dicts_shrink_grow_and_change_order() -> None:
    base = {number: str(number) for number in range(1200)}
    theirs = {**base, 8: "t", 5000: "t"}
    ours = {number: base[number] for number in reversed(base) if number % 7}
    expected = {**{number: theirs[number] for number in ours}, 5000: "t"}
    assert exactly(merge(*trees(base, ours, theirs)), expected)
    ours = {number: base[number] for number in base if number % 7}
    expected = {number: item for number, item in theirs.items() if number in ours or number == 5000}
    assert exactly(merge(*trees(base, ours, theirs)), expected)
    few, left, right = (dict.fromkeys(span, 0) for span in (range(40), range(10, 40), range(30)))
    assert exactly(merge(*trees(few, left, right)), dict.fromkeys(range(10, 30), 0))
    more: Any = {**right, "t": 1, "u": 1}
    assert exactly(merge(*trees(right, {**right, "o": 1}, more)), {**more, "o": 1})


@pytest.mark.parametrize("size", [5, 40, 1500, 10_000])
def test_appends_do_not_compare_shared_items(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    base = [{"role": "user", "n": number} for number in range(size)]
    root, ours, theirs = trees(base, [*base, "o"], [*base, "t"])
    spy = Mock(wraps=same)
    for module in (merge_module, alignment_module):
        monkeypatch.delattr(module, "encode")
        monkeypatch.setattr(module, "same", spy)
    result = merge(root, ours, theirs)
    assert spy.call_count <= 3
    assert exactly(result, [*base, "t", "o"])
    assert result[0] is theirs[0]
    assert size < 33 or aux_of(result).levels[0][0] is aux_of(theirs).levels[0][0]


def test_separate_edits_of_a_long_list_are_not_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[Any] = [{"n": number} for number in range(1500)]
    root, theirs, _ = trees(plain, [*plain[:900], {"n": "t"}, *plain[901:], "t"], plain)
    monkeypatch.delattr(alignment_module, "encode")
    result = merge(root, build_list(["summary", *root[200:]], root), theirs)
    assert exactly(result, ["summary", *plain[200:900], {"n": "t"}, *plain[901:], "t"])


def test_conflict_has_paths_values_and_remedy() -> None:
    base, theirs = {"p": {"title": "x", "n": 0}, "gone": 1}, {"p": {"title": "z", "n": 2}, "gone": 2}
    error = conflict(base, {"p": {"title": "y" * 100, "n": 1}}, theirs)
    for part in (
        "p.title (and 2 more)",
        "'" + "y" * 58 + "…",
        "the head has 'z'",
        "merge={'p.title': ",
        "history.update",
    ):
        assert part in str(error)
    values = {"base": "x", "ours": "y" * 100, "theirs": "z"}
    assert error.details == {"path": "p.title", "paths": ["p.title", "p.n", "gone"], **values}
    assert "two concurrent changes of a: ours deletes it, the head has 2;" in str(
        conflict({"a": 1}, {}, {"a": 2})
    )
    assert "two concurrent changes of the root: ours has 1, the head has 2;" in str(conflict(0, 1, 2))
    assert conflict({"s": {1}}, {"s": {2}}, {"s": {3}}).details["ours"] == {2}


def test_conflict_suggests_a_reducer_that_merges_the_values(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, Any, str, str]] = [
        ({"n": 0}, {"n": 1}, {"n": 2}, "n", "sum"),
        ({"n": 0}, {}, {}, "n", "equal"),
        ({"n": [1, 2]}, {"n": [1]}, {"n": [1]}, "n[*]", "equal"),
        ({"n": [1, {"a": 0}]}, {"n": [1, {"a": 1}]}, {"n": [1, {"a": 2}]}, "n[*].a", "sum"),
        ({"n": "a"}, {"n": "b"}, {"n": "c"}, "n", "last"),
        ({"n": 1}, {}, {"n": 2}, "n", "last"),
        ({"n": {1}}, {"n": {2}}, {"n": {3}}, "n", "union"),
        ({"n": [3, 1, 2]}, {"n": [1, 2, 3]}, {"n": [2, 1, 3]}, "n", "union"),
    ]
    for base, ours, theirs, pattern, name in cases:
        with subtests.test(base=base, ours=ours, theirs=theirs, pattern=pattern, name=name):
            assert f'such as merge={{{pattern!r}: "{name}"}} ' in str(conflict(base, ours, theirs))
            merged(base, ours, theirs, reducers=Reducers({pattern: name}))


def test_resolver_gets_new_objects_instead_of_boxes() -> None:
    def resolve(path: Any, base: Any, ours: Any, theirs: Any) -> Any:
        assert (path, base, ours, theirs) == (("p",), {"s": {1}}, 0, {"s": {3}})
        theirs["s"].add(9)
        return theirs

    root, ours, theirs = trees({"p": {"s": {1}}}, {"p": 0}, {"p": {"s": {3}}})
    assert exactly(merge(root, ours, theirs, resolve=resolve), {"p": {"s": {3, 9}}})
    assert exactly(theirs, {"p": {"s": {3}}})


def test_resolver_is_called_for_each_conflict() -> None:
    answers: dict[Any, Callable[..., Any]] = {
        ("n",): lambda base, ours, theirs: ours + theirs - base,
        ("l", 0): lambda *values: ["both"],
        ("l", 2): lambda *values: MISSING,
        ("x",): lambda *values: MISSING,
        ("y",): lambda base, ours, theirs: base if ours is MISSING else ours,
    }
    base = {"n": 1, "l": ["a", "b", "c"], "x": 0, "y": 0}
    ours = {"n": 5, "l": ["A", "b", "C"], "x": 1}
    theirs = {"n": 7, "l": ["Ä", "b", "Ç"], "x": 2, "y": 1, "t": 0}
    result = merged(base, ours, theirs, resolve=lambda path, *values: answers[path](*values))
    assert result == {"n": 11, "l": [["both"], "b"], "y": 0, "t": 0}
    assert merge(1, 2, 3, resolve=lambda *_: MISSING) is MISSING


def test_resolver_can_choose_a_side() -> None:
    root, ours, theirs = trees({"a": {"x": 1}, "l": [1, 2]}, {"a": [2], "l": [1]}, {"a": 3, "l": [1, 5]})
    result = merge(root, ours, theirs, resolve=lambda *values: values[2])
    assert exactly(result, {"a": [2], "l": [1]})
    assert result["a"] is ours["a"]
    assert exactly(merge(root, theirs, ours, resolve=lambda *values: values[2]), {"a": 3, "l": [1, 5]})
    assert merge(root, ours, theirs, resolve=lambda *values: values[3]) is theirs
    assert merge(root, ours, theirs, resolve=lambda path, *_: 3 if path == ("a",) else 5) is theirs


def test_result_of_a_resolver_is_folded() -> None:
    fold = Mock(wraps=Folder(None).fold)
    sides = trees({"a": 1}, {"a": 2}, {"a": 3})
    result = merge(*sides, resolve=lambda *_: {"s": {1}}, fold=fold)
    fold.assert_called_once_with({"s": {1}})
    assert exactly(result, {"a": {"s": {1}}})


def test_equal_appends_are_both_kept() -> None:
    assert encode(merge(*trees(["a"], ["a", "ok"], ["a", "ok"]))) == encode(["a", "ok", "ok"])


def test_conflict_of_integers_that_python_cannot_write_is_named() -> None:
    with pytest.raises(MergeConflict, match="concurrent changes of n"):
        merged({"n": 0}, {"n": 10**5000}, {"n": 10**5001})


def test_merge_of_many_edits_takes_time_in_proportion_to_their_number() -> None:
    def sides(size: int) -> tuple[Any, Any, Any]:
        base = [f"b{n}" for n in range(size)]
        ours, theirs = (
            [
                item
                for n, was in enumerate(base)
                for item in ([f"{name}{n}", was[1:]] if n % 4 == at else [was])
            ]
            for name, at in (("o", 0), ("t", 2))
        )
        return trees(base, ours, theirs)

    assert growth(lambda given: merge(*given), sides, 1000) < 30
