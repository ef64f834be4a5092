"""Values as people read them, and times as people write them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidCall
from holdfast.operator_view.text import (
    age,
    as_json,
    brief,
    count,
    cut,
    display_width,
    dumps,
    parse_duration,
    parse_time,
    plain,
    printable_lines,
    size,
    span,
)  # fmt: skip
from holdfast.tree.values import Opaque

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

texts = st.text(st.characters(exclude_categories=()), max_size=60)
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.binary(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)


@given(texts)
def test_plain_removes_control_characters(text: str) -> None:
    assert not CONTROL.search(plain(text))
    assert not CONTROL.search(printable_lines(text).replace("\n", ""))


@given(values, st.integers(1, 100))
def test_brief_fits_the_width(value: Any, width: int) -> None:
    line = brief(value, width)
    assert display_width(line) <= width
    assert not CONTROL.search(line)


def test_brief_shows_the_fields_of_an_opaque_value() -> None:
    assert brief(Opaque("shop.Offer", {"price": 30})) == "shop.Offer {price: 30}"
    model = Opaque("shop.Model", [{"price": 30}, {"price"}, None, None])
    assert brief([model]) == "[shop.Model {price: 30}]"
    assert brief(Opaque("shop.Colour", "RED")) == 'shop.Colour "RED"'


@given(values)
def test_brief_shows_a_short_value_completely(value: Any) -> None:
    line = brief(value, 10_000)
    assert brief(value, display_width(line)) == line
    assert display_width(line) == 1 or brief(value, display_width(line) - 1).endswith("…")


@given(values)
def test_dumps_escapes_control_characters(value: Any) -> None:
    text = dumps(as_json(value), indent=2)
    assert not CONTROL.search(text.replace("\n", ""))
    assert _same(json.loads(text), json.loads(json.dumps(as_json(value))))


@pytest.mark.parametrize(
    ("value", "width", "shown"),
    [
        ("a\nb\x1b[31m", 60, '"a\\nb\\u001b[31m"'),
        ('say "no"', 60, '"say \\"no\\""'),
        ([1, 2, 3], 9, "[1, 2, 3]"),
        ([1, 2, 3], 8, "[1, 2, …"),
        ({"a": {"b": [True, None]}}, 60, "{a: {b: [true, null]}}"),
        ([{"n": 1}, {"n": 2}], 16, "[{n: 1}, {n: 2}]"),
        ([{"n": 1}, {"n": 2}], 15, "[{n: 1}, {n: 2…"),
        ("海" * 10, 10, '"海海海海…'),
        ([], 60, "[]"),
        ({}, 60, "{}"),
    ],
)
def test_brief_of_each_type(value: Any, width: int, shown: str) -> None:
    assert brief(value, width) == shown


def test_brief_reads_only_what_it_shows() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = {"a": deep}
    assert len(brief(deep)) == 60
    assert brief(range(3)) == "range(0, 3)"
    assert brief([[1] * 1_000_000] * 1_000_000, 20) == "[[1, 1, 1, 1, 1, 1,…"


def test_display_width_counts_columns() -> None:
    assert [display_width(text) for text in ("abc", "海", "e\u0301", "🙂", "")] == [3, 2, 1, 2, 0]
    assert cut("海海海", 5) == "海海…"
    assert cut("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.000025, "25 µs"), (0.002, "2 ms"), (0.25, "250 ms"), (2.345, "2.3 s"), (59, "59 s"), (61, "1 min"),
        (7200, "2 h"), (86400 * 3, "3 days"),
    ],
)  # fmt: skip
def test_span_formats_durations(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_age_formats_times() -> None:
    now = datetime.now(UTC)
    assert age(now, now) == "just now"
    assert age(now - timedelta(minutes=5), now) == "5 min ago"
    assert age(now + timedelta(minutes=5), now) == "in 5 min"


def test_size_and_count_format_numbers() -> None:
    found = [size(number) for number in (0, 999, 1500, 250_000, 3_400_000, 10**9, 10**13)]
    assert found == ["0 B", "999 B", "1.5 kB", "250 kB", "3.4 MB", "1.0 GB", "10.0 TB"]
    assert [count(number, "run") for number in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]


def test_parse_time_accepts_durations_and_dates() -> None:
    now = datetime.now(UTC)
    assert abs(now - parse_time("2h") - timedelta(hours=2)) < timedelta(seconds=5)
    assert parse_time("2026-11-15T08:30:00+00:00") == datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
    assert parse_time("2026-11-15").tzinfo is not None
    assert parse_duration("90s") == timedelta(seconds=90)
    assert parse_duration(" 4w ") == timedelta(weeks=4)
    assert parse_duration("30min") == parse_duration("30m") == timedelta(minutes=30)


@given(st.text(max_size=12) | st.from_regex(r"\d{1,9}(s|m|min|h|d|w|y)", fullmatch=True))
def test_parse_time_refuses_other_texts(text: str) -> None:
    for read in (parse_time, parse_duration):
        with suppress(InvalidCall):
            assert isinstance(read(text), datetime | timedelta)


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)
