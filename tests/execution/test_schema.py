"""The schema of an answer, the check of an answer against it, and the value that the workflow gets."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from typing import Annotated, Any, Literal, NoReturn, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidAnswer, InvalidCall
from holdfast.tree.codec import encode
from holdfast.tree.fold import Folder
from holdfast.workflow.schema import check_answer, to_schema, to_type


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Place:
    city: str
    floor: int = 0


class Trip(TypedDict):
    place: Place
    days: int


class Plan(msgspec.Struct):
    trips: list[Trip]
    color: Color | None = None


class Seat(pydantic.BaseModel):
    row: int


class Booking(pydantic.BaseModel):
    seat: Seat
    price: Annotated[float, pydantic.Field(gt=0)] = 1.0

    @pydantic.field_validator("price")
    @classmethod
    def _round(cls, value: float) -> float:
        if value > 1000:
            raise ValueError("that is too much")
        return value


TRIP = {"place": {"city": "Rome", "floor": 2}, "days": 3}

CASES: list[tuple[Any, Any, Any, Any]] = [
    # wanted, a good answer, what the workflow gets, a bad answer
    (bool, True, True, 1),
    (int, 3, 3, "3"),
    (int, 3, 3, True),
    (int, 3.0, 3, 3.5),
    (float, 2, 2.0, "2"),
    (str, "x", "x", None),
    (Literal["yes", "no"], "yes", "yes", "maybe"),
    (Color, "red", Color.RED, "green"),
    (list[str], ["a"], ["a"], ["a", 1]),
    (list[int], [1.0, 2], [1, 2], [1.5]),
    (int | None, None, None, "x"),
    (type(None), None, None, 0),
    (dict[str, int], {"a": 1}, {"a": 1}, {"a": "1"}),
    (dt.date, "2026-01-31", dt.date(2026, 1, 31), 3),
    (Place, {"city": "Rome"}, Place("Rome"), {"floor": 1}),
    (Trip, TRIP, {"place": Place("Rome", 2), "days": 3}, {"place": {}, "days": 1}),
    (Plan, {"trips": [], "color": "blue"}, Plan([], Color.BLUE), {"trips": [TRIP, {}]}),
    (Seat, {"row": 3}, Seat(row=3), {"row": "three"}),
    (Booking, {"seat": {"row": 3}}, Booking(seat=Seat(row=3)), {"seat": {"row": 3}, "price": 0}),
    (list[Booking], [{"seat": {"row": 3}}], [Booking(seat=Seat(row=3))], [{"seat": {}}]),
]


@pytest.mark.parametrize(("wanted", "good", "gets", "bad"), CASES, ids=lambda part: str(part)[:40])
def test_schema_is_derived_from_python_types(wanted: Any, good: Any, gets: Any, bad: Any) -> None:
    schema = to_schema(wanted)
    assert schema is not None
    stored = Folder(object()).fold(schema)
    for each in (schema, stored):
        check_answer(good, each)
        check_answer(Folder(object()).fold(good), each)
        with pytest.raises(InvalidAnswer):
            check_answer(bad, each)
    found = to_type(good, wanted)
    assert found == gets
    assert type(found) is type(gets)
    assert to_type(Folder(object()).fold(good), wanted) == gets


def test_whole_numbers_become_integers_where_the_type_requires() -> None:
    assert [type(item) for item in to_type([1.0, 2], list[int])] == [int, int]
    assert type(to_type(3.0, int | float)) is float


def test_json_schema_is_used_unchanged() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    made = to_schema(schema)
    assert made == schema
    schema["properties"]["n"]["minimum"] = 5  # type: ignore[index]
    check_answer({"n": 1}, made)
    with pytest.raises(InvalidAnswer):
        check_answer({"n": 0}, made)
    answer = {"n": 1}
    assert to_type(answer, schema) is answer
    encode(made)


def test_answer_without_a_schema_may_be_anything() -> None:
    assert to_schema(None) is None
    check_answer(object(), None)
    value = object()
    assert to_type(value, None) is value
    check_answer(3, to_schema(Any))


def test_refused_answer_error_names_place_and_reason() -> None:
    schema = to_schema(Plan)
    with pytest.raises(InvalidAnswer) as found:
        check_answer({"trips": [TRIP, {**TRIP, "days": "many"}]}, schema)
    assert str(found.value) == "The answer does not fit at trips[1].days: 'many' is not of type 'integer'."
    assert found.value.details == {"path": "trips[1].days", "reason": "'many' is not of type 'integer'"}
    assert found.value.code == "invalid_answer"
    with pytest.raises(InvalidAnswer, match=r"^The answer does not fit: 3 is not of type 'string'\.$"):
        check_answer(3, {"type": "string"})
    with pytest.raises(InvalidAnswer) as long:
        check_answer("x" * 10_000, {"type": "integer"})
    assert len(str(long.value)) < 600


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, {"type": "integer"}),
        (True, {"type": "number"}),
        (True, {"const": 1}),
        (1, {"const": True}),
        (0, {"enum": [False]}),
        ([True], {"enum": [[1]]}),
    ],
)
def test_bool_is_not_accepted_as_a_number(value: Any, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswer):
        check_answer(value, schema)


def test_schema_formats_are_not_checked() -> None:
    check_answer("no mail", {"type": "string", "format": "email"})
    check_answer("no date", {"type": "string", "format": "date"})
    with pytest.raises(InvalidAnswer):
        to_type("no date", dt.date)


@pytest.mark.parametrize(
    ("value", "wanted", "said"),
    [
        ("3", int, "Expected `int`, got `str`"),
        ({"seat": {}}, Booking, "at seat.row: Field required"),
        ({"seat": {"row": 1}, "price": 2000}, Booking, "at price: Value error, that is too much"),
        ([{"seat": {}}], list[Booking], "seat.row: Field required"),
        (object(), Place, "Expected `object`"),
        (3, complex, ""),
        (3, "no type", ""),
    ],
)
def test_answer_that_cannot_become_the_type_is_refused(value: Any, wanted: Any, said: str) -> None:
    with pytest.raises(InvalidAnswer) as found:
        to_type(value, wanted)
    assert said in str(found.value)
    assert "https://" not in str(found.value)


class _Hostile:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "strnig"},
        {"type": "object", "properties": 3},
        {"pattern": "("},
        {"minimum": "1"},
        {"required": "name"},
        {"items": {"items": {"enum": "x"}}},
        {"$ref": "#"},
        {"$ref": "#/$defs/missing"},
        {"items": {"$ref": "other.json"}},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$schema": 3},
        {"$id": "http://[bad", "$ref": "x"},
        {"default": object()},
        "int",
        3,
        True,
        complex,
        object(),
        [int],
        _Hostile(),
    ],
    ids=lambda wanted: type(wanted).__name__,
)
def test_invalid_schema_is_refused_at_once(wanted: Any) -> None:
    with pytest.raises(InvalidCall) as found:
        to_schema(wanted)
    assert not isinstance(found.value, InvalidAnswer)


def test_invalid_schema_error_names_the_place() -> None:
    with pytest.raises(InvalidCall, match=r"at properties\.age\.type: 'number of years'"):
        to_schema({"properties": {"age": {"type": "number of years"}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"$ref": {"type": "string"}}},
        {"const": {"$ref": "http://nowhere.invalid/"}},
        {"$defs": {"a": {"$id": "urn:a", "type": "integer"}}, "$ref": "urn:a"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {}},
            "$ref": "#/definitions/a",
        },
        {"type": "array", "items": {"$ref": "#"}},
        {"$schema": "urn:my-dialect", "type": "integer"},
        {"enum": ("a", "b")},
        {},
    ],
    ids=str,
)
def test_unusual_schemas_are_accepted(schema: dict[str, Any]) -> None:
    made = to_schema(schema)
    assert made is not None
    assert made == {key: list(item) if isinstance(item, tuple) else item for key, item in schema.items()}


def test_schema_references_are_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def fetch(*args: Any, **_: Any) -> NoReturn:
        tried.append(args)
        raise OSError

    monkeypatch.setattr(urllib.request, "urlopen", fetch)
    monkeypatch.setattr(socket, "create_connection", fetch)
    for reference in (
        "http://127.0.0.1:9/x.json",
        "https://example.com/s",
        "file:///etc/passwd",
        "ftp://x/y",
    ):
        for schema in (
            {"$ref": reference},
            {"$id": reference, "items": {"$ref": "deeper"}},
            {"$schema": reference},
        ):
            with suppress(InvalidCall):
                check_answer([1], schema)
            with suppress(InvalidCall):
                to_schema(schema)
    with pytest.raises(InvalidCall, match="nothing is fetched"):
        to_schema({"properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}})
    assert tried == []


def _nested(levels: int, key: str | None = None) -> Any:
    value: Any = {} if key else 1
    for _ in range(levels):
        value = {key: value} if key else [value]
    return value


@pytest.mark.slow
def test_schema_or_answer_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidCall):
        to_schema(_nested(100_000, "items"))
    with pytest.raises(InvalidAnswer, match="nested too deep"):
        check_answer(_nested(100_000), {"items": {"$ref": "#"}})
    with pytest.raises(InvalidAnswer):
        check_answer(_nested(100_000), {"type": "string"})
    with pytest.raises(InvalidCall):
        check_answer(_nested(1_000), _nested(1_000, "items"))
    with pytest.raises(InvalidAnswer):
        to_type(_nested(100_000), list[int])


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({1: 2}, {"patternProperties": {"a": {}}}),
        (10**5000, {"type": "string"}),
        (float("inf"), {"multipleOf": 0.1}),
        (float("nan"), {"multipleOf": 3}),
        (object(), {"type": "object"}),
        (_Hostile(), {"type": "string"}),
    ],
    ids=lambda part: type(part).__name__,
)
def test_answers_that_break_the_check_are_refused(value: Any, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswer):
        check_answer(value, schema)


@pytest.mark.parametrize(
    "schema", [{"type": "foo"}, {"pattern": "("}, {"$ref": "#"}, {"$ref": "#/a"}, {"anyOf": 3}]
)
def test_invalid_stored_schema_is_distinguished_from_an_invalid_answer(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall) as found:
        check_answer("x", schema)
    assert not isinstance(found.value, InvalidAnswer)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_words = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "$ref",
        "enum",
        "const",
        "anyOf",
        "not",
        "pattern",
        "required",
        "minimum",
        "$id",
    ]
)
_parts = st.sampled_from(["string", "integer", "object", "array", "#", "#/items", "(", "urn:x"])
_schemas = st.recursive(
    st.dictionaries(_words, _parts | _json, max_size=3),
    lambda inner: st.dictionaries(_words, inner | st.lists(inner, max_size=2) | _parts, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(_schemas, _json)
def test_schema_and_answer_of_any_kind_raise_only_holdfast_errors(schema: dict[str, Any], value: Any) -> None:
    made = None
    with suppress(InvalidCall):
        made = to_schema(schema)
    with suppress(InvalidCall if made is None else InvalidAnswer):
        check_answer(value, schema)


def test_jsonschema_is_loaded_only_when_used() -> None:
    script = (
        "import sys, holdfast.workflow.schema; print('jsonschema' in sys.modules, 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
