"""Three-way merge: each rule by example, and disjoint edits against an oracle of plain deep copies."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import MergeConflict, UnsupportedValue
from holdfast.tree import merge as merge_module
from holdfast.tree.codec import encode
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import (
    BOXED,
    DICTS,
    LISTS,
    BoxedDict,
    BoxedList,
    FrozenDict,
    FrozenList,
    aux_of,
    thaw,
)
from holdfast.tree.merge import MISSING, merge
from holdfast.tree.spine import Trie, Vector, assemble_dict, assemble_list, build_list, changed_keys


def trees(base: Any, ours: Any, theirs: Any) -> tuple[Any, Any, Any]:
    """Three plain trees frozen as a run would: both sides share with the base what they kept of it."""
    folder = Folder(object())
    frozen = folder.fold(base)
    return frozen, folder.fold(ours, frozen), folder.fold(theirs, frozen)


def exactly(tree: Any, plain: Any) -> bool:
    """Is the tree well-formed and exactly equal to a plain one?"""
    check_spines(tree)
    return encode(tree) == encode(plain)


def check_spines(tree: Any) -> None:
    """The spines of wide and long containers must say what the containers hold."""
    spine = aux_of(tree)
    if type(tree) in DICTS:
        assert type(spine) is Trie or len(tree) <= 32
        if type(spine) is Trie:
            assert encode(assemble_dict(spine)) == encode(tree)
        children = list(tree.values())
    elif type(tree) in LISTS:
        assert type(spine) is Vector or len(tree) <= 32
        if type(spine) is Vector:
            assert encode(assemble_list(spine)) == encode(tree)
        children = list(tree)
    else:
        return
    boxed = any(type(child) in BOXED for child in children)
    assert type(tree) is (
        (BoxedDict if boxed else FrozenDict)
        if isinstance(tree, dict)
        else (BoxedList if boxed else FrozenList)
    )
    for child in children:
        check_spines(child)


def merged(base: Any, ours: Any, theirs: Any, **how: Any) -> Any:
    result = merge(*trees(base, ours, theirs), **how)
    check_spines(result)
    return thaw(result)


def conflicts(base: Any, ours: Any, theirs: Any) -> list[str]:
    with pytest.raises(MergeConflict) as caught:
        merge(*trees(base, ours, theirs))
    paths: list[str] = caught.value.details["paths"]
    return paths


class TestOneSide:
    def test_unchanged_ours_gives_the_very_head(self) -> None:
        base, same_as_base, theirs = trees({"a": [1]}, {"a": [1]}, {"a": [2]})
        assert same_as_base is base
        assert merge(base, base, theirs) is theirs

    def test_unchanged_theirs_gives_our_very_tree(self) -> None:
        base, ours, _ = trees({"a": [1]}, {"a": [2]}, {"a": [1]})
        assert merge(base, ours, base) is ours

    def test_equality_is_enough_without_identity(self) -> None:
        plain = {"a": [1, {"b": "c"}]}
        other = Folder(object()).fold({"a": [2]})
        assert merge(Folder(1).fold(plain), Folder(2).fold(plain), other) is other
        assert merge(Folder(1).fold(plain), other, Folder(2).fold(plain)) is other

    def test_the_same_change_on_both_sides_is_one_change(self) -> None:
        base, ours, theirs = trees({"a": 1}, {"a": 2, "b": [3]}, {"a": 2, "b": [3]})
        assert merge(base, ours, theirs) is theirs

    @pytest.mark.parametrize("value", [1, 1.0, True, -0.0, None, "x"])
    def test_values_of_other_types_are_changes(self, value: Any) -> None:
        result = merge(*trees({"a": 0, "b": 0.0}, {"a": value, "b": 0.0}, {"a": 0, "b": 1.0}))
        assert exactly(result, {"a": value, "b": 1.0})

    def test_nan_is_unchanged(self) -> None:
        nan = float("nan")
        base, ours, theirs = (
            Folder(1).fold({"n": nan}),
            Folder(1).fold({"n": -float("-nan")}),
            Folder(1).fold({}),
        )
        assert merge(base, ours, theirs) == {}

    def test_missing_on_any_side(self) -> None:
        assert merge(MISSING, MISSING, 1) == 1
        assert merge(MISSING, 1, MISSING) == 1
        assert merge(1, MISSING, 1) is MISSING
        assert merge(1, 1, MISSING) is MISSING
        assert merge(1, MISSING, MISSING) is MISSING
        assert repr(MISSING) == "MISSING"


class TestDicts:
    def test_different_keys_merge(self) -> None:
        assert merged({"a": 1, "b": 2}, {"a": 9, "b": 2}, {"a": 1, "b": 8}) == {"a": 9, "b": 8}

    def test_deep_changes_merge(self) -> None:
        base: Any = {"plan": {"tasks": {"x": {"done": False, "by": None}}}}
        ours, theirs = deepcopy(base), deepcopy(base)
        ours["plan"]["tasks"]["x"]["done"] = True
        theirs["plan"]["tasks"]["x"]["by"] = "me"
        assert merged(base, ours, theirs) == {"plan": {"tasks": {"x": {"done": True, "by": "me"}}}}

    def test_new_keys_stand_theirs_first(self) -> None:
        result = merged({"a": 1}, {"a": 1, "o2": 0, "o1": 0}, {"a": 1, "t2": 0, "t1": 0})
        assert list(result) == ["a", "t2", "t1", "o2", "o1"]

    @pytest.mark.parametrize(
        ("ours", "theirs"), [({"b": 2}, {"a": 1, "b": 2, "c": 3}), ({"a": 1, "b": 2, "c": 3}, {"b": 2})]
    )
    def test_a_key_deleted_on_one_side_is_gone(self, ours: Any, theirs: Any) -> None:
        assert merged({"a": 1, "b": 2}, ours, theirs) == {"b": 2, "c": 3}

    def test_deleted_on_both_sides(self) -> None:
        assert merged({"a": 1, "b": 2, "c": 3}, {"c": 3}, {"b": 2}) == {}

    def test_deleted_here_and_changed_there_is_a_conflict(self) -> None:
        assert conflicts({"a": 1, "b": 2}, {"b": 2}, {"a": 9, "b": 2}) == ["a"]
        assert conflicts({"a": 1, "b": 2}, {"a": 9, "b": 2}, {"b": 2}) == ["a"]

    def test_containers_added_on_both_sides_merge(self) -> None:
        assert merged({}, {"r": {"o": [1]}}, {"r": {"t": [2]}}) == {"r": {"t": [2], "o": [1]}}
        assert merged({}, {"r": ["o"]}, {"r": ["t"]}) == {"r": ["t", "o"]}

    def test_added_differently_is_a_conflict(self) -> None:
        assert conflicts({}, {"a": 1}, {"a": 2}) == ["a"]
        assert conflicts({}, {"a": {}}, {"a": []}) == ["a"]

    def test_type_clash_is_a_conflict(self) -> None:
        assert conflicts({"a": {"x": 1}}, {"a": {"x": 2}}, {"a": [1]}) == ["a"]
        assert conflicts({"a": None}, {"a": {"x": 2}}, {"a": {"y": 2}}) == ["a"]
        assert conflicts({"a": 0}, {"a": 1}, {"a": True}) == ["a"]

    def test_our_order_is_kept_if_only_we_changed_it(self) -> None:
        base = {"a": 1, "b": 2, "c": 3}
        assert list(merged(base, {"c": 3, "a": 1, "b": 2}, {"a": 1, "b": 9, "c": 3})) == ["c", "a", "b"]
        assert list(merged(base, {"c": 3, "b": 2, "a": 1}, {**base, "t": 0})) == ["c", "b", "a", "t"]
        assert list(merged(base, {"c": 3, "a": 1, "o": 0}, {"b": 2, "c": 3, "t": 0})) == ["c", "t", "o"]
        assert list(merged(base, {"a": 1, "o": 0, "b": 2, "c": 3}, {**base, "c": 9})) == ["a", "o", "b", "c"]

    def test_their_order_is_kept_if_they_changed_it(self) -> None:
        base = {"a": 1, "b": 2, "c": 3}
        theirs = {"c": 3, "a": 1, "b": 2}
        assert list(merged(base, {**base, "o": 0}, theirs)) == ["c", "a", "b", "o"]
        assert list(merged(base, {"b": 2, "a": 1, "c": 3}, theirs)) == ["c", "a", "b"]

    def test_keys_that_are_equal_but_not_the_same_never_stand_for_each_other(self) -> None:
        assert conflicts({1: "a"}, {True: "a"}, {1: "a", 2: "b"}) == [""]
        assert conflicts({"d": {}}, {"d": {(1,): 0}}, {"d": {(1.0,): 0, "x": 1}}) == ["d"]
        mixed = {1.5: "a", (1, "x"): "b", None: "c"}
        assert merged(mixed, {**mixed, 1.5: "o"}, {**mixed, (1, "x"): "t"}) == {
            1.5: "o",
            (1, "x"): "t",
            None: "c",
        }

    def test_boxes_are_single_values(self) -> None:
        base = {"s": {1, 2}, "t": {3}, "n": 1}
        result = merge(*trees(base, {**base, "s": {1}}, {**base, "t": {4}}))
        assert type(result) is BoxedDict
        assert exactly(result, {"s": {1}, "t": {4}, "n": 1})
        assert conflicts(base, {**base, "s": {1}}, {**base, "s": {2}}) == ["s"]

    def test_a_box_from_our_side_makes_the_dict_boxed(self) -> None:
        result = merge(*trees({"a": 1, "b": 1}, {"a": {1}, "b": 1}, {"a": 1, "b": 2}))
        assert exactly(result, {"a": {1}, "b": 2})


class TestLists:
    base = tuple("abcdef")

    def merge(self, ours: str, theirs: str, base: str = "abcdef") -> str:
        return "".join(merged(list(base), list(ours), list(theirs)))

    @pytest.mark.parametrize(
        ("ours", "theirs", "expected"),
        [
            pytest.param("abcdefxy", "abcdefz", "abcdefzxy", id="both append"),
            pytest.param("Xabcdef", "abcdefZ", "XabcdefZ", id="both ends"),
            pytest.param("abXYcdef", "abZcdef", "abZXYcdef", id="insert in one inner place"),
            pytest.param("aXbcdef", "abcdYef", "aXbcdYef", id="insert in two places"),
            pytest.param("aXcdef", "abcdYf", "aXcdYf", id="change two items"),
            pytest.param("aXcdef", "abYdef", "aXYdef", id="change neighbours"),
            pytest.param("abef", "abcdefZ", "abefZ", id="delete and append"),
            pytest.param("abcdefZ", "abef", "abefZ", id="append and delete"),
            pytest.param("", "abcdefZ", "Z", id="clear and append"),
            pytest.param("abcdefZ", "", "Z", id="append and clear"),
            pytest.param("S", "abcdefZ", "SZ", id="summary and append"),
            pytest.param("abcdefZ", "S", "SZ", id="append and summary"),
            pytest.param("cdef", "abcd", "cd", id="trim both ends"),
            pytest.param("aef", "abcf", "af", id="overlapping deletions"),
            pytest.param("af", "abcXdef", "aXf", id="delete around an insertion"),
            pytest.param("aXYcdef", "abcdeQf", "aXYcdeQf", id="one into two"),
            pytest.param("aXYcdef", "aXYcdefg", "aXYcdefg", id="same block, and append"),
            pytest.param("aXYdef", "aXYdef", "aXYdef", id="same everything"),
            pytest.param("abcXYf", "aPbcXYf", "aPbcXYf", id="same changes, and an insertion"),
            pytest.param("fabcde", "abXdef", "fabXde", id="move and change of another"),
        ],
    )
    def test_merges(self, ours: str, theirs: str, expected: str) -> None:
        assert self.merge(ours, theirs) == expected

    @pytest.mark.parametrize(
        ("ours", "theirs", "paths"),
        [
            pytest.param("aXcdef", "aYcdef", ["[1]"], id="same item"),
            pytest.param("acdef", "aYcdef", ["[1]"], id="deleted and changed"),
            pytest.param("aYcdef", "acdef", ["[1]"], id="changed and deleted"),
            pytest.param("aXXcdef", "aYcdef", [""], id="one item into two, and changed"),
            pytest.param("aXef", "abcXYef", [""], id="overlapping blocks"),
            pytest.param("aXef", "abZcdef", [""], id="insertion within a block"),
            pytest.param("XXZdYf", "ZabYYdQf", [""], id="many, one of them inseparable"),
            pytest.param("aXcYef", "TaPcQef", ["[2]", "[4]"], id="index of the head"),
            pytest.param("bcdefa", "bcdefaZ", [""], id="both moved an item"),
        ],
    )
    def test_conflicts(self, ours: str, theirs: str, paths: list[str]) -> None:
        assert conflicts(list("abcdef"), list(ours), list(theirs)) == paths

    def test_edits_of_one_item_go_into_it(self) -> None:
        base: Any = [{"id": number, "done": False, "by": None} for number in range(5)]
        ours, theirs = deepcopy(base), deepcopy(base)
        ours[2]["done"] = True
        theirs[2]["by"] = "me"
        theirs.insert(0, {"id": 9, "done": True, "by": None})
        expected = deepcopy(theirs)
        expected[3]["done"] = True
        assert merged(base, ours, theirs) == expected

    def test_edit_of_the_last_item_and_append_on_both_sides(self) -> None:
        base = [{"id": 1, "done": False, "by": None}]
        ours = [{"id": 1, "done": True, "by": None}, "o"]
        theirs = [{"id": 1, "done": False, "by": "me"}, "t"]
        assert merged(base, ours, theirs) == [{"id": 1, "done": True, "by": "me"}, "t", "o"]
        assert merged(base, ours[::-1], theirs[::-1]) == ["t", "o", {"id": 1, "done": True, "by": "me"}]

    def test_conflict_inside_of_an_item_names_the_place_in_the_head(self) -> None:
        base = {"l": ["a", {"x": 1, "y": 0}, "c"]}
        ours = {"l": ["a", {"x": 2, "y": 0}, "c"]}
        theirs = {"l": ["n", "a", {"x": 3, "y": 0}, "c"]}
        assert conflicts(base, ours, theirs) == ["l[2].x"]

    def test_items_of_other_types_are_changes(self) -> None:
        result = merge(*trees([1, 2, 3, 4], [1.0, 2, 3, 4], [1, 2, 3, True]))
        assert exactly(result, [1.0, 2, 3, True])

    def test_lists_that_share_nothing_by_identity(self) -> None:
        plain = [{"n": number, "text": "x" * number} for number in range(50)]
        sides = [Folder(object()).fold(side) for side in (plain, [*plain, "o"], ["t", *plain, "t"])]
        assert exactly(merge(*sides), ["t", *plain, "t", "o"])

    def test_boxes_in_lists(self) -> None:
        base: list[Any] = [{1}, "b", {3}]
        result = merge(*trees(base, [{1, 2}, "b", {3}], [{1}, "b", {3}, 4]))
        assert type(result) is BoxedList
        assert exactly(result, [{1, 2}, "b", {3}, 4])

    def test_repetitive_lists_are_aligned_in_reasonable_time(self) -> None:
        base = [0] * 3000
        ours = [7, 8, *base[1:], 9]
        with pytest.raises(MergeConflict):
            merge(*trees(base, ours, [5, *base, 6, 6]))
        assert merged(base, [1, *base[1:-1], 1], [0, 2, *base[2:]]) == [1, 2, *base[2:-1], 1]


class TestSharing:
    @pytest.mark.parametrize("size", [5, 40, 1500])
    def test_dicts_share_with_the_head(self, size: int) -> None:
        base = {f"k{number}": {"n": number} for number in range(size)}
        folder = Folder(object())
        frozen = folder.fold(base)
        ours = folder.fold({**base, "k3": {"n": -3}, "new": 1}, frozen)
        plain = {**base, "k4": {"n": -4}, "other": 2}
        theirs = folder.fold(plain, frozen)
        result = merge(frozen, ours, theirs)
        assert exactly(result, {**plain, "k3": {"n": -3}, "new": 1})
        assert result["k4"] is theirs["k4"]
        assert result["k3"] is ours["k3"]
        if size > 32:
            touched = changed_keys(theirs, result)
            assert touched is not None
            assert len(list(touched)) <= 64

    def test_deleting_and_reordering_in_wide_dicts(self) -> None:
        base = {number: str(number) for number in range(1200)}
        ours = {number: base[number] for number in reversed(base) if number % 7}
        theirs = {**base, 8: "t", 5000: "t"}
        expected = {**{number: theirs[number] for number in ours}, 5000: "t"}
        assert exactly(merge(*trees(base, ours, theirs)), expected)
        ours = {number: base[number] for number in base if number % 7}
        expected = {number: value for number, value in theirs.items() if number in ours or number == 5000}
        assert exactly(merge(*trees(base, ours, theirs)), expected)

    def test_growing_beyond_a_trie_and_shrinking_below(self) -> None:
        base = {f"k{number}": number for number in range(30)}
        more = merge(*trees(base, {**base, "o1": 1, "o2": 2}, {**base, "t1": 1, "t2": 2}))
        assert exactly(more, {**base, "t1": 1, "t2": 2, "o1": 1, "o2": 2})
        wide = {f"k{number}": number for number in range(40)}
        ours = {key: wide[key] for key in list(wide)[10:]}
        theirs = {key: wide[key] for key in list(wide)[:30]}
        assert exactly(merge(*trees(wide, ours, theirs)), {key: wide[key] for key in list(wide)[10:30]})

    @pytest.mark.parametrize("size", [5, 40, 1500, 10_000])
    def test_appends_look_at_no_item_of_the_shared_prefix(
        self, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = [{"role": "user", "n": number} for number in range(size)]
        sides = trees(base, [*base, "o"], [*base, "t"])
        seen: list[Any] = []

        def encode_and_tell(value: Any) -> bytes:
            seen.append(value)
            return encode(value)

        def same_and_tell(one: Any, other: Any) -> bool:
            seen.append(one)
            return real_same(one, other)

        real_same = merge_module.same  # type: ignore[attr-defined]
        monkeypatch.setattr(merge_module, "encode", encode_and_tell)
        monkeypatch.setattr(merge_module, "same", same_and_tell)
        result = merge(*sides)
        assert len(seen) <= 3
        assert exactly(result, [*base, "t", "o"])
        assert result[0] is sides[2][0]
        if size > 32:
            assert aux_of(result).levels[0][0] is aux_of(sides[2]).levels[0][0]

    def test_separate_edits_of_a_long_list_are_not_aligned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain: list[Any] = [{"n": number} for number in range(1500)]
        folder = Folder(object())
        base = folder.fold(plain)
        ours = build_list(["summary", *base[200:]], base)
        theirs = folder.fold([*plain[:900], {"n": "t"}, *plain[901:], "t"], base)
        monkeypatch.delattr(merge_module, "encode")
        result = merge(base, ours, theirs)
        assert exactly(result, ["summary", *plain[200:900], {"n": "t"}, *plain[901:], "t"])

    def test_nothing_new_from_us_gives_the_very_head(self) -> None:
        base = {"a": [1, 2], "b": {"c": 1}}
        theirs = {"a": [1, 2, 3], "b": {"c": 2}, "d": 1}
        frozen, ours, head = trees(base, {"a": [1, 2], "b": {"c": 2}}, theirs)
        assert merge(frozen, ours, head) is head


class TestConflicts:
    def test_the_error_names_places_values_and_the_next_step(self) -> None:
        base = {"plan": {"title": "x", "n": 0}, "gone": 1}
        ours = {"plan": {"title": "y" * 100, "n": 1}}
        theirs = {"plan": {"title": "z", "n": 2}, "gone": 2}
        with pytest.raises(MergeConflict) as caught:
            merge(*trees(base, ours, theirs))
        message, details = str(caught.value), caught.value.details
        assert "plan.title (and 2 more)" in message
        assert "'" + "y" * 58 + "…" in message
        assert "y" * 59 not in message
        assert "the head has 'z'" in message
        assert "resolver" in message
        assert "expected=" in message
        assert details["paths"] == ["plan.title", "plan.n", "gone"]
        assert (details["path"], details["base"], details["ours"], details["theirs"]) == (
            "plan.title",
            "x",
            "y" * 100,
            "z",
        )

    def test_the_error_tells_of_deletion_and_of_the_root(self) -> None:
        with pytest.raises(MergeConflict, match=r"two changes of a: ours deletes it, the head has 2"):
            merge(*trees({"a": 1}, {}, {"a": 2}))
        with pytest.raises(MergeConflict, match="two changes of the root: ours has 1, the head has 2"):
            merge(0, 1, 2)

    def test_callers_see_fresh_objects_never_boxes(self) -> None:
        with pytest.raises(MergeConflict) as caught:
            merge(*trees({"s": {1}}, {"s": {2}}, {"s": {3}}))
        assert caught.value.details["ours"] == {2}
        seen: list[Any] = []

        def resolve(path: Any, base: Any, ours: Any, theirs: Any) -> Any:
            seen.append((path, base, ours, theirs))
            theirs["s"].add(9)
            return theirs

        base, ours, theirs = trees({"p": {"s": {1}}}, {"p": 0}, {"p": {"s": {3}}})
        result = merge(base, ours, theirs, resolve=resolve)
        assert seen == [(("p",), {"s": {1}}, 0, {"s": {3, 9}})]
        assert exactly(result, {"p": {"s": {3, 9}}})
        assert exactly(theirs, {"p": {"s": {3}}})

    def test_a_resolver_decides_each_place(self) -> None:
        base = {"n": 1, "l": ["a", "b"], "x": 0}
        ours = {"n": 5, "l": ["A", "b"], "x": 1}
        theirs = {"n": 7, "l": ["Ä", "b"], "x": 2, "t": 0}
        answers: dict[Any, Callable[..., Any]] = {
            ("n",): lambda base, ours, theirs: ours + theirs - base,
            ("l", 0): lambda *_: ["both"],
            ("x",): max,
        }

        def resolve(path: Any, *values: Any) -> Any:
            return answers[path](*values)

        assert merged(base, ours, theirs, resolve=resolve) == {"n": 11, "l": [["both"], "b"], "x": 2, "t": 0}

    def test_a_resolver_may_delete(self) -> None:
        def resolve(path: Any, *values: Any) -> Any:
            return MISSING

        base = {"a": 1, "l": [1, 2, 3]}
        assert merged(base, {"a": 2, "l": [1, 5, 3]}, {"a": 3, "l": [1, 6, 3]}, resolve=resolve) == {
            "l": [1, 3]
        }
        assert merge(1, 2, 3, resolve=resolve) is MISSING

    def test_a_resolver_sees_deletion_and_may_keep_it_or_not(self) -> None:
        def ours_wins(path: Any, base: Any, ours: Any, theirs: Any) -> Any:
            assert ours is MISSING or theirs is MISSING
            return ours

        base = {"a": 1, "b": 1, "c": 1}
        assert merged(base, {"b": 2, "c": 1}, {"a": 2, "c": 1}, resolve=ours_wins) == {"c": 1, "b": 2}
        assert merged([1, 2, 3], [1, 3], [1, 5, 3], resolve=ours_wins) == [1, 3]
        assert merged([1, 2, 3], [1, 5, 3], [1, 3], resolve=ours_wins) == [1, 5, 3]

    def test_choosing_a_side_shares_with_it(self) -> None:
        base, ours, theirs = trees({"a": {"x": 1}}, {"a": [2]}, {"a": 3, "b": 1})
        assert merge(base, ours, theirs, resolve=lambda path, base, ours, theirs: ours)["a"] is ours["a"]
        assert merge(base, ours, theirs, resolve=lambda path, base, ours, theirs: theirs) is theirs
        assert merge(base, ours, theirs, resolve=lambda path, base, ours, theirs: 3) is theirs

    def test_what_a_resolver_returns_is_folded_by_the_callers_folder(self) -> None:
        folded: list[Any] = []

        def fold(value: Any) -> Any:
            folded.append(value)
            return Folder(None).fold(value)

        result = merge(*trees({"a": 1}, {"a": 2}, {"a": 3}), resolve=lambda *_: {"s": {1}}, fold=fold)
        assert folded == [{"s": {1}}]
        assert exactly(result, {"a": {"s": {1}}})
        with pytest.raises(UnsupportedValue):
            merge(*trees({"a": 1}, {"a": 2}, {"a": 3}), resolve=lambda *_: object())


# Property tests. Items of lists are unique, since an oracle by position cannot know which of two equal items
# an edit was meant for.

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, float("nan")]),
    st.text(max_size=3),
)
keys = st.one_of(st.text("abc", min_size=1, max_size=3), st.integers(2, 60))
plain_trees = st.recursive(
    st.one_of(scalars, st.sets(st.integers(0, 3), max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(keys, inner, max_size=6)),
    max_leaves=25,
)


class Maker:
    """Draws a base and disjoint edits of it on two sides, and keeps the tree that they should merge to."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self._count = 0

    def fresh(self) -> Any:
        """A value that stands nowhere else."""
        self._count += 1
        return self._data.draw(st.sampled_from([f"v{self._count}", [f"v{self._count}"], {"v": self._count}]))

    def pick(self, *choices: str) -> str:
        return self._data.draw(st.sampled_from(choices))

    def tree(self, depth: int) -> tuple[Any, Any, Any, Any]:
        """Base, ours, theirs, expected."""
        kind = self.pick("leaf", "dict", "list") if depth else self.pick("dict", "list")
        if kind == "dict" and depth < 4:
            return self.dict(depth)
        if kind == "list" and depth < 4:
            return self.list(depth)
        base = self.fresh()
        match self.pick("leave", "ours", "theirs"):
            case "ours":
                new = self.fresh()
                return base, new, base, new
            case "theirs":
                new = self.fresh()
                return base, base, new, new
        return base, base, base, base

    def size(self, depth: int) -> int:
        """How many untouched entries stand in one place."""
        return self._data.draw(st.sampled_from([0, 1, 2, 33, 400 >> depth * 2]))

    def dict(self, depth: int) -> tuple[Any, Any, Any, Any]:
        base: dict[Any, Any] = {}
        # Few keys that are edited among many that are not, so that wide dicts stay cheap to draw.
        for number in range(self.size(depth) * 3):
            base[f"k{number}"] = number
        ours, theirs, expected = dict(base), dict(base), dict(base)
        for number in range(self._data.draw(st.integers(0, 4))):
            key = f"e{number}"
            base[key], ours[key], theirs[key], expected[key] = self.tree(depth + 1)
            match self.pick("keep", "keep", "ours deletes", "theirs deletes"):
                case "ours deletes":
                    theirs[key] = base[key]
                    del ours[key], expected[key]
                case "theirs deletes":
                    ours[key] = base[key]
                    del theirs[key], expected[key]
        for number in range(self._data.draw(st.integers(0, 2))):
            theirs[f"t{number}"] = expected[f"t{number}"] = self.fresh()
        for number in range(self._data.draw(st.integers(0, 2))):
            ours[f"o{number}"] = expected[f"o{number}"] = self.fresh()
        return base, ours, theirs, expected

    def list(self, depth: int) -> tuple[Any, Any, Any, Any]:
        # Every edited item is followed by one that nobody touches: the place of an insertion is then certain.
        base: list[Any] = []
        ours: list[Any] = []
        theirs: list[Any] = []
        expected: list[Any] = []
        sides = (base, ours, theirs, expected)
        for _ in range(self._data.draw(st.integers(0, 4))):
            match self.pick("edit", "ours deletes", "theirs deletes", "both insert"):
                case "edit":
                    for side, item in zip(sides, self.tree(depth + 1), strict=True):
                        side.append(item)
                case "ours deletes":
                    item = self.fresh()
                    for side in (base, theirs):
                        side.append(item)
                case "theirs deletes":
                    item = self.fresh()
                    for side in (base, ours):
                        side.append(item)
                case "both insert":
                    head, mine = self.fresh(), self.fresh()
                    theirs.append(head)
                    ours.append(mine)
                    expected += [head, mine]
            run = self.size(depth)
            self._count += run + 1
            for side in sides:
                side += [self._count - number for number in range(run + 1)]
        self._count += 1
        for side in (theirs, expected):
            side.extend([f"t{self._count}"] * (self._count % 3))
        for side in (ours, expected):
            side.extend([f"o{self._count}"] * (self._count % 2))
        return base, ours, theirs, expected


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_disjoint_edits_merge_to_the_oracle(data: st.DataObject) -> None:
    base, ours, theirs, expected = Maker(data).tree(0)
    frozen = trees(deepcopy(base), deepcopy(ours), deepcopy(theirs))
    assert exactly(merge(*frozen), expected)
    for tree, plain in zip(frozen, (base, ours, theirs), strict=True):
        assert encode(tree) == encode(plain)
    apart = [Folder(object()).fold(side) for side in (base, ours, theirs)]
    assert exactly(merge(*apart), expected)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_disjoint_edits_of_dicts_are_symmetrical_in_content(data: st.DataObject) -> None:
    base = {f"k{number}": number for number in range(data.draw(st.sampled_from([3, 30, 40, 1100])))}
    names = st.sampled_from([*list(base)[:8], "n1", "n2", "n3", "n4"])
    edits = data.draw(
        st.dictionaries(names, st.tuples(st.booleans(), st.one_of(st.just(MISSING), plain_trees)))
    )

    def edited(side: bool) -> dict[str, Any]:
        out: dict[str, Any] = dict(base)
        for key, (whose, value) in edits.items():
            if whose is side and value is not MISSING:
                out[key] = value
            elif whose is side:
                out.pop(key, None)
        return out

    frozen, ours, theirs = trees(base, edited(True), edited(False))
    one, two = merge(frozen, ours, theirs), merge(frozen, theirs, ours)
    assert {key: encode(value) for key, value in one.items()} == {
        key: encode(value) for key, value in two.items()
    }
    check_spines(one)
    check_spines(two)


def edits_of(side: str) -> st.SearchStrategy[list[tuple[str, int, str]]]:
    names = st.integers(0, 9).map(lambda number: f"{side}{number}")
    return st.lists(
        st.tuples(st.sampled_from(["insert", "delete", "put"]), st.integers(0, 99), names), max_size=6
    )


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 12), edits_of("o"), edits_of("t"))
def test_no_edit_of_a_list_is_lost(size: int, ours: Any, theirs: Any) -> None:
    base = [f"b{number}" for number in range(size)]
    sides = []
    for edits in (ours, theirs):
        side = list(base)
        for what, where, item in edits:
            at = where % (len(side) + 1)
            side[at : at + (what != "insert")] = [] if what == "delete" else [item]
        sides.append(side)
    expected = {item for side in sides for item in side if item[0] != "b"} | set(base).intersection(*sides)
    try:
        result = merge(*trees(base, *sides))
    except MergeConflict:
        return
    assert set(result) == expected
    assert [item for item in result if item in base] == [item for item in base if item in expected]
    for side in sides:
        if len(set(side)) == len(side):
            mine = [item for item in side if item in expected]
            assert [item for item in result if item in side] == mine


@settings(max_examples=200, deadline=None)
@given(plain_trees, plain_trees, plain_trees)
def test_any_three_trees(base: Any, ours: Any, theirs: Any) -> None:
    one, two, three = trees(base, ours, theirs)
    assert merge(one, one, three) is three
    assert merge(one, two, one) is two
    assert merge(one, two, two) is two
    assert clash(one, two, three) == clash(one, three, two)
    for side, winner in enumerate((two, three)):
        kept = merge(one, two, three, resolve=lambda path, base, *sides, side=side: sides[side])
        check_spines(kept)
        if all(type(tree) in DICTS for tree in (one, winner, kept)):
            changed = [key for key in winner if encode(winner[key]) != encode(one.get(key))]
            assert all(key in kept for key in changed)


def clash(base: Any, ours: Any, theirs: Any) -> bool:
    try:
        check_spines(merge(base, ours, theirs))
    except MergeConflict:
        return True
    return False
