"""Diffs against a plain oracle: patches are applied, paths are followed, equality is checked bit by bit."""

from __future__ import annotations

import copy
import datetime as dt
import enum
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.tree import list_alignment, path
from holdfast.tree.diff import Change, changes, fields, json_patch
from holdfast.tree.draft import draft
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import FrozenDict, thaw
from holdfast.tree.values import register

Edit = Callable[[Any], object]


@register
class Colour(str, enum.Enum):  # noqa: UP042 - a member that equals its string is the point
    RED = "red"


def folded(old: Any, new: Any, *, shared: bool = True) -> tuple[Any, Any]:
    folder = Folder(object())
    tree = folder.fold(old)
    return tree, folder.fold(new, tree) if shared else folder.fold(new)


def drafted(old: Any, edit: Edit) -> tuple[Any, Any, Any]:
    """A tree, the tree that a draft of it became, and the plain value that should be."""
    folder = Folder(object())
    tree = folder.fold(old)
    part, plain = draft(tree), copy.deepcopy(old)
    edit(part)
    edit(plain)
    return tree, folder.fold(part), plain


def summaries(old: Any, new: Any) -> list[str]:
    """What a person reads; the same whether or not the trees share nodes."""
    lines = [change.summary for change in changes(*folded(old, new))]
    assert lines == [change.summary for change in changes(*folded(old, new, shared=False))]
    return lines


def exact(value: Any, *, ordered: bool = True) -> Any:
    """A form whose `==` tells apart whatever is not exactly equal."""
    if isinstance(value, dict):
        entries = [(exact(key), exact(item, ordered=ordered)) for key, item in value.items()]
        return ["dict", *(entries if ordered else sorted(entries, key=repr))]
    if isinstance(value, list):
        return ["list", *(exact(item, ordered=ordered) for item in value)]
    return type(value).__name__, repr(value)


def patched(document: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, as much of it as we write."""
    top = {"": thaw(document)}
    for operation in operations:
        steps = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
        parent: Any = top
        for part in steps[:-1]:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        key: Any = int(steps[-1]) if isinstance(parent, list) else steps[-1]
        kind = operation["op"]
        if kind == "remove":
            del parent[key]
        elif kind == "add" and isinstance(parent, list):
            assert 0 <= key <= len(parent)
            parent.insert(key, thaw(operation["value"]))
        else:
            assert kind == "add" or (kind == "replace" and (isinstance(parent, list) or key in parent))
            parent[key] = thaw(operation["value"])
    return top[""]


def check(old: Any, new: Any, expected: Any) -> None:
    """Everything that must hold of two trees and the plain value of the second."""
    assert exact(new) == exact(expected)
    found = changes(old, new)
    assert (found == []) == (exact(old) == exact(new))
    for change in found:
        if change.kind == "removed":
            assert exact(path.get(old, change.path)) == exact(change.old)
        else:
            assert exact(path.get(new, change.path)) == exact(change.new)
        if change.kind == "moved":
            assert change.source is not None
            assert exact(path.get(old, change.source)) == exact(change.old) == exact(change.new)
        if change.kind == "changed":
            assert exact(change.old) != exact(change.new)
        assert "\n" not in change.summary
    assert exact(patched(old, json_patch(old, new)), ordered=False) == exact(expected, ordered=False)


def check_edited(old: Any, edit: Edit) -> None:
    """As `check`, for trees that come from a draft, from a base, and from nothing in common."""
    tree, new, plain = drafted(old, edit)
    check(tree, new, plain)
    check(*folded(old, plain), plain)
    check(*folded(old, plain, shared=False), plain)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), 2**80]),
    st.sampled_from(["", "a", "b", "a/b", "~", "x" * 100, "\n"]),
)
keys = st.sampled_from(["", "a", "b", "c", "d", "a/b", "m~n", "0", "1", "odd key"])
trees = st.recursive(
    scalars,
    lambda below: st.lists(below, max_size=6) | st.dictionaries(keys, below, max_size=5),
    max_leaves=25,
)


def containers(value: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all dicts and lists in a plain tree."""
    if isinstance(value, dict | list):
        yield ()
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            for below in containers(item):
                yield (key, *below)


@st.composite
def edits(draw: st.DrawFn, value: Any) -> Edit:
    """Some changes to one plain tree, which can also be made to a draft of it."""
    now = copy.deepcopy(value)
    made: list[Edit] = []
    for _ in range(draw(st.integers(0, 5)) if isinstance(value, dict | list) else 0):
        place = draw(st.sampled_from(list(containers(now))))
        made.append(draw(one_edit(place, path.get(now, place))))
        made[-1](now)
    return lambda root: [edit(root) for edit in made]


@st.composite
def one_edit(draw: st.DrawFn, place: tuple[Any, ...], target: Any) -> Edit:
    item = draw(trees)
    if isinstance(target, dict):
        key = draw(keys)
        if key in target and draw(st.booleans()):
            return lambda root: path.get(root, place).pop(key)
        return lambda root: path.get(root, place).__setitem__(key, copy.deepcopy(item))
    at, to = (draw(st.integers(0, len(target))) for _ in range(2))
    what = draw(st.sampled_from(["insert", "set", "delete", "move", "twice", "reverse"]))
    if at == len(target) or what == "insert":
        return lambda root: path.get(root, place).insert(at, copy.deepcopy(item))
    if what == "set":
        return lambda root: path.get(root, place).__setitem__(at, copy.deepcopy(item))
    if what == "delete":
        return lambda root: path.get(root, place).__delitem__(at)
    if what == "move":
        return lambda root: path.get(root, place).insert(to, path.get(root, place).pop(at))
    if what == "twice":
        return lambda root: path.get(root, place).insert(to, copy.deepcopy(path.get(root, place)[at]))
    return lambda root: path.get(root, place).reverse()


@pytest.mark.slow
@settings(deadline=None)
@given(trees, trees, st.booleans())
def test_changes_of_any_two_trees(old: Any, new: Any, shared: bool) -> None:
    check(*folded(old, new, shared=shared), new)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changes_of_an_edited_tree(data: st.DataObject) -> None:
    old = data.draw(trees)
    check_edited(old, data.draw(edits(old)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_changes_of_wide_and_long_containers(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([33, 70, 1100]))
    old = {
        "wide": {f"k{number}": {"n": number} for number in range(size)},
        "long": [{"n": number % 40} if number % 3 else number for number in range(size)],
    }
    at = data.draw(st.lists(st.integers(0, size - 20), min_size=1, max_size=5))
    kinds = data.draw(st.lists(st.integers(0, 5), min_size=len(at), max_size=len(at)))

    def edit(root: Any) -> None:
        for index, kind in zip(at, kinds, strict=True):
            wide, long = root["wide"], root["long"]
            if kind == 0:
                wide[f"k{index}"] = {"n": -index}
                long[index] = {"n": -index}
            elif kind == 1:
                wide.pop(f"k{index}", None)
                del long[index]
            elif kind == 2:
                wide[f"new{index}"] = index
                long.insert(index, index)
            elif kind == 3:
                wide[f"k{index}"] = wide.pop(f"k{index}", 0)
                long.insert(size // 2, long.pop(index))
            elif kind == 4:
                long.append(index)
                long[index : index + 3] = []
            elif isinstance(long[index], dict):
                long[index]["more"] = True

    check_edited(old, edit)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_very_long_lists_are_compared_by_index(old: list[int], new: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_alignment, "_MAX_CELLS", 4)
        check(*folded(old, new), new)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=15), st.lists(st.integers(0, 4), max_size=15))
def test_longest_common_subsequence_is_longest(one: list[int], two: list[int]) -> None:
    lengths = [0] * (len(two) + 1)
    for item in one:
        above, lengths = lengths, [0]
        for index, other in enumerate(two):
            lengths.append(above[index] + 1 if item == other else max(above[index + 1], lengths[-1]))
    pairs = list_alignment._longest_common(one, two)
    assert len(pairs) == lengths[-1]
    assert all(one[was] == two[now] for was, now in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(pairs))


def test_equal_trees_have_no_changes() -> None:
    plain = {"a": [1, {"b": {2, 3}}, (4, 5)], "c": dt.date(2024, 1, 1), "n": float("nan")}
    old, new = folded(plain, copy.deepcopy(plain), shared=False)
    assert changes(old, old) == changes(old, new) == []
    assert json_patch(old, new) == []


def test_similar_values_differ(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any]] = [*itertools.permutations([0, False, 0.0, -0.0, "0", b"0", None], 2)]
    for old, new in cases:
        with subtests.test(old=old, new=new):
            for one, two in ((old, new), ({"x": old}, {"x": new}), ([9, old, 9], [9, new, 9])):
                (change,) = changes(*folded(one, two))
                assert change.kind == "changed"
                assert exact([change.old, change.new]) == exact([old, new])
                assert len(json_patch(*folded(one, two))) == 1


def test_similar_keys_differ(subtests: pytest.Subtests) -> None:
    for old, new in [(1, True), (1.0, 1), ("red", Colour.RED), (True, 1.0)]:
        for width in [1, 40, 1200]:
            with subtests.test(old=old, new=new, width=width):
                rest = {f"k{number}": number for number in range(width)}
                found = changes(*folded({old: "same", **rest}, {new: "same", **rest}))
                assert [(change.kind, change.path, type(change.path[0])) for change in found] == [
                    ("removed", (old,), type(old)),
                    ("added", (new,), type(new)),
                ]


@pytest.mark.parametrize("width", [1, 40])
def test_nan_keys_are_compared_exactly(width: int) -> None:
    rest = {f"k{number}": number for number in range(width)}
    old, same, other = ({float("nan"): number, **rest} for number in (1, 1, 2))
    assert changes(*folded(old, same)) == []
    assert json_patch(*folded(old, same)) == []
    (change,) = changes(*folded(old, other))
    assert (change.kind, change.old, change.new) == ("changed", 1, 2)
    assert [operation["path"] for operation in json_patch(*folded(old, other))] == [""]


def test_key_order_alone_is_a_change() -> None:
    assert summaries({"d": {"a": 1, "b": 2}}, {"d": {"b": 2, "a": 1}}) == ["d: key order differs"]
    assert summaries({"d": {"a": 1, "b": 2}}, {"d": {"b": 3, "a": 1}}) == ["d.b: 2 → 3"]
    assert summaries({"a": 1, "b": 2}, {"b": 2, "a": 1}) == ["the root: key order differs"]
    wide = {f"k{number}": number for number in range(1200)}
    old, new, _ = drafted(wide, lambda root: root.__setitem__("k7", root.pop("k7")))
    assert [change.summary for change in changes(old, new)] == ["the root: key order differs"]
    assert json_patch(old, new) == []


def test_summary_is_one_line() -> None:
    tasks = [{"title": "t", "done": False} for _ in range(4)]
    done = copy.deepcopy(tasks)
    done[3]["done"] = True
    lines = summaries({"plan": {"tasks": tasks}}, {"plan": {"tasks": done}})
    assert lines == ["plan.tasks[3].done: False → True"]
    assert summaries({"x": 1}, {"y": {"a": [1, None]}}) == ["- x: 1", "+ y: {'a': [1, None]}"]
    assert summaries({"x": {}}, {"x": []}) == ["x: {} → []"]
    assert summaries(1, "1") == ["the root: 1 → '1'"]
    assert summaries({}, {"too long for repr": 1 << 99_999}) == ['+ ["too long for repr"]: <int>']
    assert summaries({"odd key": {1: 2}}, {"odd key": {1: 3}}) == ['["odd key"][1]: 2 → 3']


@pytest.mark.parametrize("value", ["x" * 10**6, b"x" * 99, [*range(10**5)], {"k": ["x" * 10**6]}, (1,) * 99])
def test_summary_is_short(value: Any) -> None:
    (line,) = summaries({}, {"x": value})
    assert line.startswith("+ x: ")
    assert line.endswith("…")
    assert len(line) <= 65


def test_insertion_and_removal_do_not_change_other_items() -> None:
    old = [{"n": number} for number in range(6)]
    assert summaries(old, [old[0], {"n": 9}, *old[1:]]) == ["+ [1]: {'n': 9}"]
    assert summaries(old, [*old[:2], *old[3:]]) == ["- [2]: {'n': 2}"]
    both = summaries(old, [{"n": 9}, *old[:3], {"n": 3, "new": 1}, *old[4:]])
    assert both == ["+ [0]: {'n': 9}", "+ [4].new: 1"]


def test_path_is_that_of_the_tree_with_the_value() -> None:
    old = [{"n": 0}, {"n": 1}, {"list": [7, 8, 9], "gone": 1}, {"n": 3}]
    new = [{"n": 9}, {"n": 0}, {"n": 1}, {"list": [9, 7, 8]}, {"n": 3}]
    assert changes(*folded(old, new)) == [
        Change("added", (0,), new={"n": 9}),
        Change("moved", (3, "list", 0), 9, 9, (2, "list", 2)),
        Change("removed", (2, "gone"), old=1),
    ]


def test_moved_item_is_one_change() -> None:
    messages = [{"text": str(number)} for number in range(6)]
    other = [*messages[:2], messages[5], *messages[2:5]]
    assert summaries({"messages": messages}, {"messages": other}) == ["messages[2] ← messages[5]"]
    twins = changes(*folded(["a", "a", 1, 2, 3, 4], [1, 2, 3, 4, "a"]))
    assert sorted(change.kind for change in twins) == ["moved", "removed"]
    long = [{"n": number} for number in range(1500)]
    old, new, plain = drafted({"long": long}, lambda root: root["long"].insert(3, root["long"].pop(1400)))
    assert [change.summary for change in changes(old, new)] == ["long[3] ← long[1400]"]
    assert [change.summary for change in changes(*folded({"long": long}, plain))] == ["long[3] ← long[1400]"]


def test_swapped_items_have_moved() -> None:
    def swap(root: list[Any]) -> None:
        root[5], root[900] = root[900], root[5]

    old, new, _ = drafted([{"n": number} for number in range(1000)], swap)
    assert [change.summary for change in changes(old, new)] == ["[5] ← [900]", "[900] ← [5]"]


def test_values_of_changes_are_copies() -> None:
    old, new = folded({"s": {1}, "d": {"t": [{2}]}}, {"s": {1, 2}})
    changed, removed = changes(old, new)
    assert (changed.old, changed.new) == ({1}, {1, 2})
    assert removed.old == {"t": [{2}]}
    assert isinstance(removed.old, FrozenDict)
    assert changes(old, new)[0].new is not changed.new


def test_leaf_changes_as_a_whole() -> None:
    noon = dt.time(12, tzinfo=dt.UTC)
    old, new = {"p": (1, [2]), "t": noon}, {"p": (1, [3]), "t": noon.replace(fold=1)}
    assert [change.path for change in changes(*folded(old, new))] == [("p",), ("t",)]


def test_json_patch_has_json_values() -> None:
    old, new = folded({"when": None, "all": [1]}, {"when": dt.date(2024, 5, 6), "all": [1, {2}], "a/b~": 1.5})

    def to_json(value: Any) -> Any:
        return (
            sorted(value) if isinstance(value, set) else str(value) if isinstance(value, dt.date) else value
        )

    assert json.loads(json.dumps(json_patch(old, new, to_json=to_json))) == [
        {"op": "replace", "path": "/when", "value": "2024-05-06"},
        {"op": "add", "path": "/all/1", "value": [2]},
        {"op": "add", "path": "/a~1b~0", "value": 1.5},
    ]
    assert json_patch(*folded([1], {"a": 1})) == [{"op": "replace", "path": "", "value": {"a": 1}}]


def test_json_patch_replaces_a_dict_with_changed_odd_keys() -> None:
    old, new = folded({"d": {1: [1], "x": 1}}, {"d": {1: [2], "x": 2}})
    assert json_patch(old, new) == [{"op": "replace", "path": "/d", "value": {1: [2], "x": 2}}]
    old, new = folded({"d": {1: [1], "x": 1}}, {"d": {1: [1], "x": 2}})
    assert json_patch(old, new) == [{"op": "replace", "path": "/d/x", "value": 2}]


def test_fields_have_values_before_and_after() -> None:
    old, new = folded({"a": {"b": 1}, "gone": 2, "same": 3}, {"a": {"b": True}, "same": 3, "come": 4})
    assert exact(fields(changes(old, new))) == exact(
        {"a.b": {"from": 1, "to": True}, "gone": {"from": 2, "to": None}, "come": {"from": None, "to": 4}}
    )


def test_fields_of_shifted_items_have_values_before_and_after() -> None:
    old, new = folded(["m1", "m2", "gone", "m3"], ["new", "m1", "come", "m2", "m3"])
    assert [change.where for change in changes(old, new)] == ["[0]", "[2]", "[2]"]
    assert fields(changes(old, new)) == {
        "[0]": {"from": None, "to": "new"},
        "[2]": {"from": "gone", "to": "come"},
    }
