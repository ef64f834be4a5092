"""The JSON form: its documents, and the refusal of hostile ones."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any
from uuid import UUID

import pytest
from exact_equality import exactly
from hypothesis import given
from hypothesis import strategies as st
from value_cases import Color, Point, Spot, Task

from holdfast.errors import InvalidSnapshot
from holdfast.tree import numpy_values, portable, values
from holdfast.tree.codec import MAX_DEPTH, decode_frozen, encode
from holdfast.tree.draft import draft
from holdfast.tree.portable import from_json, to_json
from holdfast.tree.values import Opaque

TAG = Spot.__module__


def test_document_has_the_documented_form(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any]] = [
        ({"a": [1, 2.5, True, None, "é"]}, {"a": [1, 2.5, True, None, "é"]}),
        ((1, 2), {"$holdfast": "tuple", "value": [1, 2]}),
        (b"ab", {"$holdfast": "bytes", "value": "YWI="}),
        (2**53 - 1, 2**53 - 1),
        (2**53, {"$holdfast": "int", "value": "9007199254740992"}),
        (-(2**53), {"$holdfast": "int", "value": "-9007199254740992"}),
        (float("-inf"), {"$holdfast": "float", "value": "-inf"}),
        ("\ud800\\", {"$holdfast": "str", "value": "\\ud800\\u005c"}),
        ({1: "a"}, {"$holdfast": "dict", "value": [[1, "a"]]}),
        ({"$holdfast": 1}, {"$holdfast": "dict", "value": [["$holdfast", 1]]}),
        ({3}, {"$holdfast": "set", "value": [3]}),
        (
            dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
            {"$holdfast": "datetime", "value": ["2024-01-01T00:00:00", 0, [[0, 0, 0], None]]},
        ),
        (UUID(int=1), {"$holdfast": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
        (Spot(1, 2), {"$holdfast": "registered", "tag": f"{TAG}.Spot", "value": {"x": 1, "y": 2}}),
        (Color.RED, {"$holdfast": "registered", "tag": f"{TAG}.Color", "value": "RED"}),
        (Opaque("gone", [1]), {"$holdfast": "registered", "tag": "gone", "value": [1]}),
    ]
    for value, doc in cases:
        with subtests.test(value=value, doc=doc):
            assert exactly(to_json(value), doc)
            assert exactly(from_json(doc), value)


def test_every_kind_has_a_name() -> None:
    named = set(portable._KINDS.values()) | {values.kind_of(UUID(int=0)).code}
    assert named == values._by_code.keys() | numpy_values.BY_CODE.keys()
    assert portable._KINDS.keys().isdisjoint((*portable._SCALARS, "dict", "registered"))


def test_frozen_trees_and_drafts_are_written_alike() -> None:
    value = {"a": [1, (2, {3})], "t": Task("x", notes=[{"n": 1}]), "p": Point([1], 2)}
    frozen = decode_frozen(encode(value))
    changed = draft(frozen)
    changed["a"].append("new")
    changed["t"].done = True
    assert to_json(frozen) == to_json(value)
    assert exactly(
        from_json(to_json(changed)),
        {"a": [1, (2, {3}), "new"], "t": Task("x", True, [{"n": 1}]), "p": Point([1], 2)},
    )


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.text(st.sampled_from('$\\u"\ud800\ude00é'), max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["$holdfast", "value", "tag", "tuple"])
)
hashables = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$holdfast", "value", "tag", "a"]), inner, max_size=4)
        | st.frozensets(hashables, max_size=3)
        | st.builds(Task, st.text(max_size=3), st.booleans(), st.lists(inner, max_size=2))
    ),
    max_leaves=15,
)


@given(trees)
def test_any_tree_comes_back_exactly(value: Any) -> None:
    assert exactly(from_json(json.loads(json.dumps(to_json(value)))), value)


json_docs = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.fixed_dictionaries(
            {"$holdfast": st.sampled_from([*portable._KINDS, *portable._SCALARS, "dict"]), "value": inner}
        )
        | st.fixed_dictionaries(
            {
                "$holdfast": st.just("registered"),
                "tag": st.sampled_from(
                    ["gone", "numpy", f"{TAG}.Spot", f"{TAG}.Perm", f"{TAG}.Model", f"{TAG}.TwoError"]
                ),
                "value": inner,
            }
        )
    ),
    max_leaves=12,
)


@given(json_docs)
def test_any_document_is_read_or_refused(doc: Any) -> None:
    try:
        value = from_json(doc)
    except InvalidSnapshot as error:
        value = error.details["path"]
    encode(value)


def _marked(name: Any, value: Any, **more: Any) -> dict[str, Any]:
    return {"$holdfast": name, "value": value, **more}


def _bytes(data: bytes) -> dict[str, Any]:
    return _marked("bytes", base64.b64encode(data).decode())


HOSTILE: dict[str, Any] = {
    "unknown name": _marked("os.system", "true"),
    "name of no type": _marked(5, 1),
    "list as name": _marked([], 1),
    "no value": {"$holdfast": "tuple"},
    "more keys": _marked("tuple", [], other=1),
    "tag without need": _marked("tuple", [], tag="x"),
    "no tag": _marked("registered", 1),
    "odd tag": _marked("registered", 1, tag=5),
    "tuple of text": _marked("tuple", "abc"),
    "set of lists": _marked("set", [[1]]),
    "int of words": _marked("int", "1_000"),
    "int of other digits": _marked("int", "٣"),
    "int of number": _marked("int", 5),
    "int without end": _marked("int", "9" * 1_000_000),
    "float of number": _marked("float", "1.5"),
    "nan of number": _marked("float", "nan:3ff0000000000000"),
    "nan of few bits": _marked("float", "nan:7ff8"),
    "odd base64": _marked("bytes", "a b="),
    "odd escape": _marked("str", "\\d"),
    "bytearray of size": _marked("bytearray", 10**12),
    "bytearray of bytearray": _marked("bytearray", _marked("bytearray", _bytes(b""))),
    "fraction of text": _marked("fraction", ["1e999999999"]),
    "fraction by zero": _marked("fraction", [1, 0]),
    "decimal of number": _marked("decimal", 5),
    "odd decimal": _marked("decimal", "abc"),
    "odd uuid": _marked("uuid", "abc"),
    "odd date": _marked("date", "2024-13-01"),
    "odd fold": _marked("time", ["00:00:00", 5, None]),
    "odd zone": _marked("timezone", "../../etc/passwd"),
    "unknown zone": _marked("timezone", "Nowhere/City"),
    "range of text": _marked("range", ["a", "b", "c"]),
    "range by zero": _marked("range", [1, 2, 0]),
    "deque of text": _marked("deque", ["abc", None]),
    "deque of less than none": _marked("deque", [[], -1]),
    "unknown error": _marked("exception", ["Popen", [], {}]),
    "no error": _marked("exception", ["print", ["x"], {}]),
    "odd error": _marked("exception", ["UnicodeDecodeError", [1], {}]),
    "artifact of path": _marked("artifact", ["/etc/passwd", 1, None]),
    "artifact of less than none": _marked("artifact", ["ab" * 32, -1, None]),
    "array of objects": _marked("array", ["O", [1], _bytes(b"\x01" * 8)]),
    "array of hidden objects": _marked("array", [[["a", "O"]], [1], _bytes(b"\x01" * 8)]),
    "array too large": _marked("array", ["f8", [10**12], _bytes(b"")]),
    "array of odd shape": _marked("array", ["f8", ["a"], _bytes(b"\0" * 8)]),
    "array of less than none": _marked("array", ["f8", [-1], _bytes(b"\0" * 8)]),
    "array with rest": _marked("array", ["u1", [1], _bytes(b"ab")]),
    "scalar of objects": _marked("scalar", ["O", _bytes(b"\x01" * 8)]),
    "scalar of size": _marked("registered", [23, ["S", 10**12]], tag="numpy"),
    "array of nothing": _marked("registered", [22, ["f8", [10**12], None]], tag="numpy"),
    "array of odd code": _marked("registered", [99, []], tag="numpy"),
    "pairs of three": _marked("dict", [[1, 2, 3]]),
    "pairs of dict": _marked("dict", {"a": 1}),
    "key that is a list": _marked("dict", [[[1], 2]]),
    "key that could change": _marked("dict", [[_marked("bytearray", _bytes(b"")), 2]]),
    "key that occurs twice": _marked("dict", [[1, 2], [True, 3]]),
    "registered of odd shape": _marked("registered", [1, 2], tag=f"{TAG}.Spot"),
    "registered of text": _marked("registered", "xy", tag=f"{TAG}.Spot"),
    "struct of list": _marked("registered", ["role"], tag=f"{TAG}.Message"),
    "enum of no member": _marked("registered", "GREEN", tag=f"{TAG}.Color"),
    "enum of method": _marked("registered", "__class__", tag=f"{TAG}.Color"),
    "model of too little": _marked("registered", [{}], tag=f"{TAG}.Model"),
    "tuple, which JSON lacks": (1, 2),
    "key that JSON lacks": {1: 2},
    "bytes, which JSON lacks": b"ab",
}


def test_hostile_document_is_refused_with_its_path(subtests: pytest.Subtests) -> None:
    for name, hostile in HOSTILE.items():
        with subtests.test(name=name):
            for doc, path in ((hostile, ""), ({"plan": [0, hostile]}, "plan[1]")):
                with pytest.raises(InvalidSnapshot) as caught:
                    from_json(doc)
                assert caught.value.details["path"].startswith(path)
                assert len(str(caught.value)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda doc: [doc],
        lambda doc: {"a": doc},
        lambda doc: _marked("tuple", doc),
        lambda doc: _marked("tuple", [doc]),
        lambda doc: _marked("dict", [[doc, 1]]),
        lambda doc: _marked("dict", [[1, doc]]),
        lambda doc: _marked("registered", doc, tag="x"),
    ],
)
def test_document_too_deep_is_refused(wrap: Any) -> None:
    doc: Any = None
    for _ in range(100_000):
        doc = wrap(doc)
    with pytest.raises(InvalidSnapshot, match=f"deeper than {MAX_DEPTH} levels"):
        from_json(doc)


def test_nothing_is_imported_or_called_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"imported {args[0]}")

    doc = [_marked("registered", ["true"], tag="os.system"), _marked("registered", "x", tag="builtins.eval")]
    monkeypatch.setattr("builtins.__import__", refuse)
    value = from_json(doc)
    monkeypatch.undo()
    assert value == [Opaque("os.system", ["true"]), Opaque("builtins.eval", "x")]
