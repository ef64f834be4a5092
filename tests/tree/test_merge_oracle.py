"""Three-way merge: disjoint edits against an oracle of plain copies, and properties of any three trees."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merge_helpers import check, exactly, trees

from holdfast.errors import MergeConflict
from holdfast.tree.codec import encode
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import DICTS, LISTS
from holdfast.tree.merge import merge

Sides = tuple[Any, Any, Any, Any]
NAN = float("nan")


class Maker:
    """Draws a base, disjoint edits of it on two sides, and the tree to which they should merge."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw
        self._count = 0

    def fresh(self) -> Any:
        """A value that stands nowhere else."""
        self._count += 1
        return self._draw(st.sampled_from([f"v{self._count}", [f"v{self._count}"], {"v": self._count}]))

    def tree(self, depth: int) -> Sides:
        kind = self._draw(st.sampled_from(["leaf", "dict", "list"])) if 0 < depth < 4 else "dict"
        if depth < 4 and kind != "leaf":
            return self.dict(depth) if kind == "dict" else self.list(depth)
        old, new = self.fresh(), self.fresh()
        ours, theirs = self._draw(st.sampled_from([(old, old), (old, new), (new, old)]))
        return old, ours, theirs, new if new in (ours, theirs) else old

    def some(self, depth: int) -> range:
        """How many untouched entries stand in one place."""
        return range(self._draw(st.sampled_from([0, 1, 33, 1100 >> depth * 3])))

    def dict(self, depth: int) -> Sides:
        base: dict[Any, Any] = {f"k{number}": number for number in self.some(depth)}
        ours, theirs, expected = dict(base), dict(base), dict(base)
        for number in range(self._draw(st.integers(0, 4))):
            key = f"e{number}"
            base[key], ours[key], theirs[key], expected[key] = self.tree(depth + 1)
            for deleting, other in self._draw(st.sampled_from([[], [(ours, theirs)], [(theirs, ours)]])):
                other[key] = base[key]
                del deleting[key], expected[key]
        for name, side in (("t", theirs), ("o", ours)):
            for number in range(self._draw(st.integers(0, 2))):
                side[f"{name}{number}"] = expected[f"{name}{number}"] = self.fresh()
        return base, ours, theirs, expected

    def list(self, depth: int) -> Sides:
        base, ours, theirs, expected = sides = ([], [], [], [])  # type: Sides
        for _ in range(self._draw(st.integers(0, 4))):
            what = self._draw(st.sampled_from(["edit", "ours", "theirs", "insert"]))
            if what == "edit":
                for side, item in zip(sides, self.tree(depth + 1), strict=True):
                    side.append(item)
            elif what == "insert":
                theirs.append(self.fresh())
                ours.append(self.fresh())
                expected += [theirs[-1], ours[-1]]
            else:
                base.append(self.fresh())
                (theirs if what == "ours" else ours).append(base[-1])
            # An oracle by position cannot tell equal items apart, nor where in a rewritten stretch to insert.
            untouched = [f"u{self._count}.{number}" for number in (-1, *self.some(depth))]
            self._count += 1
            for side in sides:
                side.extend(untouched)
        for side in (theirs, ours):
            added = [self.fresh() for _ in range(self._draw(st.integers(0, 2)))]
            side.extend(added)
            expected += added
        return sides


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_disjoint_edits_merge_to_the_oracle(data: st.DataObject) -> None:
    base, ours, theirs, expected = Maker(data).tree(0)
    sides = trees(*deepcopy((base, ours, theirs)))
    assert exactly(merge(*sides), expected)
    assert all(map(exactly, sides, (base, ours, theirs)))
    assert exactly(merge(*(Folder(object()).fold(side) for side in (base, ours, theirs))), expected)
    assert content(merge(sides[0], sides[2], sides[1])) == content(merge(*sides))


def content(tree: Any) -> str:
    """A tree without the order of its keys, and of the items of its lists."""
    if type(tree) in DICTS:
        return str(sorted((repr(key), content(item)) for key, item in tree.items()))
    return str(sorted(map(content, tree))) if type(tree) in LISTS else repr(encode(tree))


def attempt(base: Any, ours: Any, theirs: Any) -> Any:
    """The merged tree; None if there is a conflict."""
    try:
        return merge(base, ours, theirs)
    except MergeConflict:
        return None


edits = st.lists(st.tuples(st.sampled_from(["insert", "delete", "put"]), st.integers(0, 99)), max_size=6)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 12), edits, edits)
def test_no_edit_of_a_list_is_lost(size: int, ours: Any, theirs: Any) -> None:
    base = [f"b{number}" for number in range(size)]
    sides = [list(base), list(base)]
    for name, side, steps in zip("ot", sides, (ours, theirs), strict=True):
        for what, where in steps:
            at = where % (len(side) + 1)
            side[at : at + (what != "insert")] = [] if what == "delete" else [f"{name}{where}"]
    expected = {item for side in sides for item in side if item[0] != "b"} | set(base).intersection(*sides)
    result = attempt(*trees(base, *sides))
    assert result is None or set(result) == expected
    for side in (base, *sides):
        if result is not None and len(set(side)) == len(side):
            assert [item for item in result if item in side] == [item for item in side if item in expected]


keys = st.one_of(st.text("abc", min_size=1, max_size=3), st.integers(0, 5), st.booleans())
anything = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 0.0, -0.0, 1.0, NAN, "", "x", {1}, {1, 2}]),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(keys, inner, max_size=6)),
    max_leaves=25,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(anything, anything, anything)
def test_merge_of_any_three_trees(base: Any, ours: Any, theirs: Any) -> None:
    one, two, three = trees([base], [ours], [theirs])
    assert merge(one, one, three) is three
    assert merge(one, two, one) is two
    assert (attempt(one, two, three) is None) == (attempt(one, three, two) is None)
    for side in (0, 1):
        check(merge(one, two, three, resolve=lambda path, base, *sides, side=side: sides[side]))
