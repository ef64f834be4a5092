"""Exceptions whose code works against being recorded, and descriptions that no exception produced."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from failure_cases import stored
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import StepFailed
from holdfast.execution import exception_codec
from holdfast.execution.exception_codec import describe, revive


class _Hostile(Exception):
    def _raise(self, *_: Any) -> Any:
        raise self

    __str__ = __repr__ = __reduce__ = __hash__ = __eq__ = __bool__ = _raise
    __dict__ = property(_raise)
    __class__ = property(_raise)
    args = property(_raise)
    __cause__ = property(_raise)
    __traceback__ = property(_raise)
    __notes__ = property(_raise)


class _Exits(BaseException):
    def __str__(self) -> str:
        raise SystemExit(1)


class _Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError


class _OddMeta(type):
    @property
    def __module__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError

    def __subclasses__(cls) -> Any:
        raise RuntimeError

    def __hash__(cls) -> int:
        raise RuntimeError


class _Odd(Exception, metaclass=_OddMeta):
    pass


class _SaysText(Exception):
    def __str__(self) -> str:
        return _Text("text")


@pytest.mark.parametrize("cls", [_Hostile, _Exits, _Odd, _SaysText])
def test_hostile_exception_is_described(cls: type[BaseException]) -> None:
    facts = describe(cls("x"))
    stored(facts)
    assert all(type(facts[name]) is str for name in ("type", "message", "traceback"))
    assert isinstance(revive(facts), Exception)


def test_hostile_values_inside_an_exception_are_left_out() -> None:
    error = ValueError(_Text("x"), _Hostile("y"))
    vars(error).update(a=_Hostile("z"), b=_Text("x"), __notes__=[3, _Text("note"), "fine"])
    facts = describe(error)
    stored(facts)
    assert "attributes" not in facts
    assert facts["notes"] == ["note", "fine"]
    vars(error)["__notes__"] = _Hostile("z")
    assert "notes" not in describe(error)


@pytest.mark.parametrize(
    "facts",
    [
        None,
        3,
        {},
        [],
        {"type": 3},
        {"type": "ValueError", "message": 3},
        {"type": "ValueError", "traceback": b""},
        {"type": "ValueError", "attributes": 3},
        {"type": "UnicodeDecodeError", "args": ["one"]},
        {"type": "UnicodeDecodeError", "args": ["x", b"", -5, -4, "r"]},
        {"type": "SyntaxError", "args": ["m", [1]]},
        {"type": "ExceptionGroup", "args": ["m"], "errors": []},
        {"type": "ExceptionGroup", "args": ["m"], "errors": 3},
        {"type": "ExceptionGroup", "args": [3], "errors": [{"type": "ValueError"}]},
        {"type": "ExceptionGroup", "args": ["m"]},
        {"type": "object"},
        {"type": "open"},
        {"type": "SystemExit", "args": [0]},
        {"type": "os.system", "args": ["true"]},
        {"type": "BaseException"},
    ],
    ids=repr,
)
def test_malformed_description_is_revived_as_step_failed(facts: Any) -> None:
    assert type(revive(facts)) is StepFailed


def test_odd_parts_of_a_description_are_ignored() -> None:
    odd = {
        "type": "ValueError",
        "message": "m",
        "args": {"no": "list"},
        "attributes": {"__class__": 1, "__traceback__": 2, 3: 4, "fine": 5, "bad": object()},
        "notes": "no list",
        "cause": "no facts",
    }
    error = revive(odd)
    assert type(error) is ValueError
    assert error.args == ("m",)
    assert {name for name in vars(error) if not name.startswith("__")} == {"fine"}
    assert error.__cause__ is error.__context__ is None
    assert "ValueError: m" in "".join(traceback.format_exception(error))


def test_endless_causes_in_a_description_are_cut() -> None:
    facts: dict[str, Any] = {"type": "ValueError"}
    facts["cause"] = facts
    facts["errors"] = [facts]
    error: BaseException | None = revive(facts)
    assert type(error) is ValueError
    chain: list[BaseException] = []
    while error is not None:
        chain.append(error)
        error = error.__cause__
    assert len(chain) == exception_codec.DEEPEST + 1
    assert type(revive(facts | {"type": "ExceptionGroup", "args": ["m"]})) is ExceptionGroup


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(object),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.builds(lambda args: ValueError(*args), st.lists(inner))
        | st.sets(st.integers())
    ),
    max_leaves=15,
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(st.lists(_values), st.dictionaries(st.text(), _values))
def test_any_exception_can_be_stored_and_revived(args: list[Any], attributes: dict[str, Any]) -> None:
    error = Exception(*args)
    vars(error).update(attributes)
    facts = describe(error)
    assert type(revive(stored(facts))) is Exception


_names = st.sampled_from(
    ["type", "message", "traceback", "args", "attributes", "notes", "cause", "direct", "errors", "left_out"]
)


_kinds = st.sampled_from(
    ["ValueError", "OSError", "UnicodeDecodeError", "ExceptionGroup", "x.Y", "SyntaxError"]
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(st.dictionaries(_names, _values | _kinds), _kinds)
def test_any_description_is_revived_as_an_exception(facts: dict[str, Any], kind: str) -> None:
    for each in (facts, facts | {"type": kind}):
        error = revive(each)
        assert isinstance(error, Exception)
        str(error)
