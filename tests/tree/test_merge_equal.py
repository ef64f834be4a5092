"""Equal changes of both sides: they conflict unless a reducer, a resolver or `agree` decides."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import MergeConflict
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import thaw
from holdfast.tree.list_alignment import MISSING
from holdfast.tree.merge import merge


def merged(base: Any, ours: Any, theirs: Any, resolve: Any = None, agree: bool = False) -> Any:
    folder = Folder(object())
    root = folder.fold(base)
    return thaw(merge(root, folder.fold(ours, root), folder.fold(theirs, root), resolve=resolve, agree=agree))


def summed(path: Any, base: Any, ours: Any, theirs: Any) -> Any:
    base = 0 if base is MISSING else base
    return ours + theirs - base


def test_equal_changes_are_a_conflict_unless_they_agree_or_are_resolved(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, Any, Any]] = [
        ({"n": 0}, {"n": 1}, {"n": 1}, {"n": 2}),
        ({}, {"n": 1}, {"n": 1}, {"n": 2}),
        ({"n": 10**6}, {"n": 10**6 + 7}, {"n": 10**6 + 7}, {"n": 10**6 + 14}),
        ({"deep": {"n": 0}}, {"deep": {"n": 1}}, {"deep": {"n": 1}}, {"deep": {"n": 2}}),
        ({}, {"deep": {"n": 1}}, {"deep": {"n": 1}}, {"deep": {"n": 2}}),
        ({"l": [0, 5]}, {"l": [1, 5]}, {"l": [1, 5]}, {"l": [2, 5]}),
        ({"l": [5, 0]}, {"l": [5, 1]}, {"l": [5, 1]}, {"l": [5, 2]}),
        ({"t": "a"}, {"t": 3}, {"t": 3}, None),
        # What both appended is there twice.
        ({"l": [1]}, {"l": [1, 2]}, {"l": [1, 2, 2]}, {"l": [1, 2, 2]}),
    ]
    for base, both, agreed, asked in cases:
        with subtests.test(base=base, both=both, agreed=agreed, asked=asked):
            assert merged(base, both, both, agree=True) == agreed
            if asked == agreed:
                assert merged(base, both, both) == agreed
            else:
                with pytest.raises(MergeConflict, match="two concurrent changes"):
                    merged(base, both, both)
            if asked is None:
                assert merged(base, both, both, lambda path, was, *sides: (path, was, *sides)) == {
                    "t": (("t",), "a", 3, 3)
                }
            else:
                assert merged(base, both, both, summed) == asked


@pytest.mark.parametrize(
    ("base", "both"), [({"n": 0, "m": 1}, {"m": 1}), ({"l": [1, 2]}, {"l": [2]}), ({"l": [1, 2]}, {"l": [1]})]
)
def test_deletions_of_one_place_are_a_conflict_unless_they_agree_or_are_resolved(
    base: Any, both: Any
) -> None:
    with pytest.raises(MergeConflict, match="deletes it"):
        merged(base, both, both)
    assert merged(base, both, both, agree=True) == both
    assert merged(base, both, both, summed) == both


def test_list_replaced_equally_is_one_conflict() -> None:
    asked: list[Any] = []

    def resolve(*values: Any) -> Any:
        asked.append(values)
        return values[3]

    base, both = {"l": [1, 2, 3, 4]}, {"l": [7, 8]}
    assert merged(base, both, both, resolve) == both
    assert asked == [(("l",), [1, 2, 3, 4], [7, 8], [7, 8])]


def test_change_of_one_side_is_not_resolved() -> None:
    assert merged({"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 0, "b": 1}, summed) == {"a": 1, "b": 1}
    assert merged({"a": 0, "l": [1]}, {"a": 0, "l": [1]}, {"a": 5, "l": [2]}, summed) == {"a": 5, "l": [2]}
