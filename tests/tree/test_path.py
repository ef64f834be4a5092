"""Paths: parsing, showing, refusals."""

from __future__ import annotations

import datetime as dt
import enum
from fractions import Fraction
from typing import Any

import pytest
from exact_equality import exactly
from hypothesis import example, given
from hypothesis import strategies as st

from growth import growth
from holdfast.errors import InvalidReference, NotFound
from holdfast.tree.path import get, parse, pointer, show

texts = st.text(st.characters(), max_size=8) | st.text(
    st.sampled_from("ab_-1.[]\"'\\ \n\t\ud800é"), max_size=8
)
scalars = (
    texts
    | st.integers()
    | st.booleans()
    | st.none()
    | st.binary(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
)
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@pytest.mark.slow
@given(st.lists(keys, max_size=5))
@example(["'", '"', "'\"", "\\", "]", '"]', "a]b", "[", ""])
@example([("]", ("'",), '"]"'), -0.0, 1e300, b"]'", True, None, ()])
@example(["a-b", "-a", "1a", "é", "a b", "a.b"])
def test_shown_path_can_be_parsed(segments: list[Any]) -> None:
    assert exactly(parse(show(segments)), segments)


@given(texts)
def test_any_text_is_a_path_or_refused(text: str) -> None:
    try:
        segments = parse(text)
    except InvalidReference as error:
        segments = [str(error)]
    assert exactly(parse(show(segments)), segments)


def test_path_is_parsed(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[Any]]] = [
        ("", []),
        ("plan", ["plan"]),
        (".plan", ["plan"]),
        ("plan.tasks[3].title", ["plan", "tasks", 3, "title"]),
        ('["odd key"]', ["odd key"]),
        ("['a']['b']", ["a", "b"]),
        ("[(1, 2)]", [(1, 2)]),
        ("a[-1]", ["a", -1]),
        ("a[ 1 ]", ["a", 1]),
        ("a[True]", ["a", True]),
        ("a-b.c_d", ["a-b", "c_d"]),
        ("größe.名", ["größe", "名"]),
    ]
    for text, segments in cases:
        with subtests.test(text=text, segments=segments):
            assert exactly(parse(text), segments)


def test_path_is_shown(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Any], str]] = [
        ([], ""),
        (["plan", "tasks", 3, "title"], "plan.tasks[3].title"),
        ([0, "a"], "[0].a"),
        (["odd key"], '["odd key"]'),
        (["it's"], '["it\'s"]'),
        ([""], '[""]'),
        ([(1, "a")], "[(1, 'a')]"),
        ([1.5, None, True, b"x"], "[1.5][None][True][b'x']"),
    ]
    for segments, text in cases:
        with subtests.test(segments=segments, text=text):
            assert show(segments) == text


BAD = [
    *("a..b", "a.", ".", "a b", "1a", "a[", "a[]", "a[b]", "a[1", "a]", "[1]b", 'a["b]', "a.[1]"),
    *("a[[1]]", "a[{1: 2}]", "a[{[]: 1}]", "a[{1}]", "a[print(1)]", "a[__import__('os')]", "a[1+1]"),
    *("a\n", "a[" + "(" * 5000 + "]", "a[" + "9" * 10_000 + "]", "a[\x00]", "-a", "a/b", "[]" * 3),
]


def test_invalid_path_is_refused(subtests: pytest.Subtests) -> None:
    for text in BAD:
        with subtests.test(text=text), pytest.raises(InvalidReference, match="path"):
            parse(text)


def test_segments_are_accepted() -> None:
    day = dt.date(2024, 1, 1)
    assert parse(["a", day, 0]) == ["a", day, 0]
    assert parse(()) == []


def test_other_types_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [5, None, 1.5, b"a", {"a": 1}, {"a"}, iter("a"), ["a", [1]], [{}], [{1}]]
    for path in cases:
        with subtests.test(path=path), pytest.raises(InvalidReference, match="path"):
            parse(path)


class Name(str, enum.Enum):  # noqa: UP042 - which formats otherwise than a StrEnum
    PLAN = "plan"


class Nasty:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_any_key_can_be_shown() -> None:
    assert show([dt.date(2024, 1, 1)]) == "[datetime.date(2024, 1, 1)]"
    assert show(["a", Nasty()]) == "a[<Nasty>]"
    assert show([10**5000]) == "[<int>]"
    assert show([Name.PLAN, "a"]) == "plan.a"
    assert show([float("nan"), float("inf")]) == "[nan][inf]"


def test_pointer_escapes_special_characters() -> None:
    assert pointer([]) == ""
    assert pointer(["a/b", "~", 3, ""]) == "/a~1b/~0/3/"


def test_get_returns_the_value_or_names_the_missing_part() -> None:
    tree = {"plan": {"tasks": [{"title": "x"}], (1, 2): 3}, "t": (4, [5])}
    assert get(tree, "plan.tasks[0].title") == "x"
    assert get(tree, ["plan", (1, 2)]) == 3
    assert get(tree, "t[1][-1]") == 5
    assert get(tree, "") is tree
    for path, where in (
        ("plan.goal.x", "plan.goal"),
        ("plan.tasks[7]", "plan.tasks[7]"),
        ("plan.tasks.x", "plan.tasks.x"),
        ("t[0].x.y", "t[0].x"),
        ('plan["tasks"][0]["title"]["x"]', "plan.tasks[0].title.x"),
    ):
        with pytest.raises(NotFound) as caught:
            get(tree, path)
        assert caught.value.details["path"] == where


@pytest.mark.parametrize(
    "piece", ["]", "[0]", "[1.5]", '["]"]', "[(", '["', "['\\\\'", ".a", '["a"].b[0]'], ids=repr
)
def test_path_takes_linear_time(piece: str) -> None:
    """Eight times the length costs about eight times; a quadratic scan would cost 64 times."""
    assert growth(parse, lambda size: ("[" + piece * size)[:90_000], 10_000 // len(piece)) < 30


def test_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidReference, match="100,000 characters"):
        parse("a" * 100_001)
    assert parse(["a" * 100_001]) == ["a" * 100_001]


@pytest.mark.parametrize(
    "key", [10**5000, -(10**5000), (10**5000, 1), Fraction(10**5000, 3)], ids=lambda key: type(key).__name__
)
def test_key_that_python_cannot_write_is_shown_by_its_type(key: Any) -> None:
    """Python refuses to write integers of more than 4,300 digits."""
    name = type(key).__name__
    assert show(["a", key]) == f"a[<{name}>]"
    assert pointer(["a", key]) == f"/a/<{name}>"
    with pytest.raises(NotFound, match=f"<{name}>"):
        get({"a": {}}, ["a", key])
