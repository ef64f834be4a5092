"""The description of an exception is bounded in size, and without values that cannot be stored."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from failure_cases import CardDeclined, again, caught, stored

from holdfast.execution import exception_codec
from holdfast.execution.exception_codec import describe, revive
from holdfast.tree.artifact import artifact
from holdfast.tree.codec import MAX_DEPTH, encode


def test_causes_are_followed_to_a_depth_and_cycles_end() -> None:
    last = before = ValueError("0")
    for number in range(1, 10_000):
        last = ValueError(str(number))
        last.__cause__ = ValueError("0") if number == 1 else before
        before = last
    facts, depth = describe(last), 0
    while "cause" in facts:
        skipped = facts.get("skipped", 0)
        facts, depth = facts["cause"], depth + 1
    assert depth == exception_codec.DEEPEST
    # The end of the chain says what it began with.
    assert (facts["message"], skipped) == ("0", 9_999 - exception_codec.DEEPEST)

    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    described = describe(one)
    assert described["cause"]["message"] == "two"
    assert "cause" not in described["cause"]


def test_members_of_a_group_are_bounded() -> None:
    facts = describe(ExceptionGroup("many", [ValueError(str(n)) for n in range(1000)]))
    assert len(facts["errors"]) == exception_codec.MOST_ERRORS - 1
    assert facts["left_out"] == 1000 - len(facts["errors"])
    whole: Exception = ValueError("leaf")
    for _ in range(30):
        whole = ExceptionGroup("deep", [whole])
    assert isinstance(again(whole), Exception)


def test_long_texts_are_cut_and_large_values_left_out() -> None:
    error = ValueError("start" + "x" * 200_000 + "end")
    error.add_note("n" * 100_000)
    error.small, error.large = 1, b"x" * 100_000  # type: ignore[attr-defined]
    facts = describe(error)
    assert len(facts["message"]) <= exception_codec.LONGEST_TEXT
    assert facts["message"].startswith("start")
    assert facts["message"].endswith("end")
    assert "args" not in facts
    assert facts["attributes"] == {"small": 1}
    error.key, error.numbers = {"k" * 70_000: 1}, [1.5] * 10_000  # type: ignore[attr-defined]
    assert describe(error)["attributes"] == {"small": 1}
    assert str(revive(facts)) == facts["message"]
    for number in range(1000):
        setattr(error, f"a{number}", "y" * 10_000)
        error.add_note("n" * 10_000)
    assert len(encode(describe(error))) < exception_codec.LARGEST_WHOLE + 200_000


def test_long_traceback_keeps_head_and_tail() -> None:
    lines = "".join(f"def f{n}(): f{n + 1}()\n" for n in range(600)) + "def f600(): 1 / 0\n"
    namespace: dict[str, Any] = {}
    exec(compile(lines, "/somewhere/long.py", "exec"), namespace)
    text = describe(caught(namespace["f0"]))["traceback"]
    assert len(text) <= exception_codec.LONGEST_TRACEBACK
    assert "in f0\n" in text
    assert "in f600\n" in text
    assert text.endswith("ZeroDivisionError: division by zero")


def test_deep_recursion_is_described() -> None:
    def forever() -> None:
        forever()

    facts = describe(caught(forever))
    assert facts["type"] == "RecursionError"
    assert "forever" in facts["traceback"]
    stored(facts)


def test_attributes_that_cannot_be_stored_are_left_out() -> None:
    error = CardDeclined(card="1", reason="r")
    loop: list[Any] = []
    loop.append(loop)
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    deep: Any = 1
    for _ in range(MAX_DEPTH - 5):
        deep = [deep]
    vars(error).update(
        handle=sys.stdout, loop=loop, bomb=bomb, deep=deep, artifact=artifact(b"x" * 10), kept=(1, {2})
    )
    vars(error)[3] = "odd name"  # type: ignore[index]
    error.args = ("text", object())
    facts = describe(error)
    assert facts["attributes"] == {"card": "1", "reason": "r", "kept": (1, {2})}
    assert "args" not in facts
    assert again(error).args == (facts["message"],)


def test_notes_attributes_and_errors_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("x")
    for number in range(1000):
        setattr(error, f"a{number}", number)
        error.add_note(str(number))
    facts = describe(error)
    assert len(facts["attributes"]) <= exception_codec.MOST_ATTRIBUTES
    assert facts["notes"] == [str(number) for number in range(exception_codec.MOST_NOTES)]

    lines = "".join(f"def f{n}(): f{n + 1}()\n" for n in range(50)) + "def f50(): 1 / 0\n"
    namespace: dict[str, Any] = {}
    exec(compile(lines, "/somewhere/long.py", "exec"), namespace)
    monkeypatch.setattr(exception_codec, "MOST_FRAMES", 10)
    text = describe(caught(namespace["f0"]))["traceback"]
    assert text.count("File ") == 10
    assert "in f3\n" in text
    assert "in f50\n" in text
    assert "in f20\n" not in text
