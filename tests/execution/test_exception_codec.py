"""An exception is described, stored, read in another process, and raised again as what it was."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import failure_cases
import pytest
from failure_cases import CardDeclined, again, caught, raised

from holdfast.errors import NotFound, StepFailed
from holdfast.execution import exception_codec
from holdfast.execution.exception_codec import describe, recorded_traceback, revive
from holdfast.tree.codec import decode_frozen, encode
from holdfast.tree.values import register


class Guarded(Exception):
    """Refuses what a revival must not need."""

    def __new__(cls, *args: Any) -> Guarded:
        if args != ("made here",):
            raise AssertionError("the application's code ran")
        return super().__new__(cls, *args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("the application's code ran")


class Batch(ExceptionGroup[Exception]):
    pass


class Stop(BaseException):
    pass


def test_exception_is_described_with_its_attributes() -> None:
    error = raised(ValueError("bad", 3))
    error.add_note("look here")
    facts = describe(error)
    text = facts.pop("traceback")
    assert facts == {
        "type": "ValueError",
        "message": "('bad', 3)",
        "args": ["bad", 3],
        "notes": ["look here"],
    }
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in call" in text
    assert text.endswith("ValueError: ('bad', 3)")


def test_exception_of_an_own_class_is_revived_without_its_init() -> None:
    error = raised(CardDeclined(card="4242", reason="limit"))
    made = CardDeclined.made
    with pytest.raises(CardDeclined, match=r"^card 4242 was declined: limit$") as found:
        raise again(error)
    assert (found.value.card, found.value.reason) == ("4242", "limit")
    assert CardDeclined.made == made


def test_exception_is_revived_without_running_code_of_its_class() -> None:
    facts = {"type": f"{__name__}.Guarded", "args": ["x"], "attributes": {"limit": 5}}
    error = revive(facts)
    assert type(error) is Guarded
    assert vars(error)["limit"] == 5


@pytest.mark.parametrize(
    "error",
    [
        KeyError("k"),
        FileNotFoundError(2, "No such file", "/x"),
        OSError(5, "I/O", "a", None, "b"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
        ImportError("no", name="mod", path="/p"),
        StopIteration(3),
        SyntaxError("bad", ("f.py", 1, 2, "x =", 1, 3)),
        NotFound("no run", run="r1"),
        StepFailed("m.E: x", type="m.E", traceback="t"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exception_is_revived_unchanged(error: Exception) -> None:
    facts = describe(raised(error))
    back = again(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    for name in ("filename", "filename2", "errno", "name", "path", "lineno", "value", "reason", "details"):
        assert getattr(back, name, None) == getattr(error, name, None)
    assert describe(back) == facts


def test_attribute_error_keeps_its_name_without_its_object() -> None:
    error = caught(lambda: {"secret": 1}.nope)  # type: ignore[attr-defined]
    back = again(error)
    assert isinstance(back, AttributeError)
    assert (back.name, back.obj) == ("nope", None)


def test_traceback_of_the_first_raise_survives_a_replay() -> None:
    facts = describe(raised(CardDeclined(card="1", reason="r")))
    error = caught(lambda: (_ for _ in ()).throw(revive(facts)))
    assert recorded_traceback(error) == facts["traceback"]
    assert not hasattr(error, "__notes__")
    assert describe(error) == facts
    assert recorded_traceback(ValueError()) is None


def test_cause_and_context_are_revived() -> None:
    direct = again(raised(ValueError("outer"), KeyError("inner")))
    assert isinstance(direct.__cause__, KeyError)

    def handling() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    in_context = again(caught(handling))
    assert in_context.__cause__ is None
    assert isinstance(in_context.__context__, KeyError)

    def hiding() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None

    hidden = again(caught(hiding))
    assert "cause" not in describe(caught(hiding))
    assert isinstance(hidden.__context__, KeyError)
    assert hidden.__suppress_context__ is True


def test_exception_group_is_revived_with_its_members() -> None:
    error = Batch("some", [CardDeclined(card="1", reason="r"), ExceptionGroup("inner", [KeyError("k")])])
    error.place = "here"  # type: ignore[attr-defined]
    back = again(raised(error))
    assert type(back) is Batch
    assert back.message == "some"
    assert back.place == "here"  # type: ignore[attr-defined]
    assert [type(each) for each in back.exceptions] == [CardDeclined, ExceptionGroup]
    assert back.subgroup(KeyError) is not None
    assert describe(back) == describe(error) | {"traceback": describe(back)["traceback"]}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), Stop("s")])
def test_exception_that_ends_a_process_is_revived_as_step_failed(error: BaseException) -> None:
    back = again(error)
    assert type(back) is StepFailed
    assert back.details["type"] == describe(error)["type"]


@pytest.mark.parametrize("error", [GeneratorExit("done"), asyncio.CancelledError("mine")])
def test_base_exceptions_of_a_step_are_revived(error: BaseException) -> None:
    back = again(error)
    assert (type(back), back.args) == (type(error), error.args)


def test_group_of_base_exceptions_is_revived_as_step_failed() -> None:
    facts = describe(BaseExceptionGroup("g", [Stop("s"), ValueError("v")]))
    assert [each["message"] for each in facts["errors"]] == ["s", "v"]
    assert type(revive(facts)) is StepFailed


def test_exception_class_that_is_not_loaded_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_module.py").write_text("class Evil(Exception): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    facts = {"type": "evil_module.Evil", "message": "boo", "traceback": "where", "attributes": {"a": 1}}
    error = revive(facts)
    assert type(error) is StepFailed
    assert str(error) == "evil_module.Evil: boo"
    assert error.code == "step_failed"
    assert error.details == {"type": "evil_module.Evil", "traceback": "where"}
    assert "evil_module" not in sys.modules


def test_exception_is_readable_in_a_process_without_its_class() -> None:
    cause = KeyError("lost")
    data = encode(describe(raised(CardDeclined(card="4242", reason="limit"), cause)))
    script = f"""
        from holdfast.execution.exception_codec import revive
        from holdfast.tree.codec import decode
        error = revive(decode({data!r}))
        print(type(error).__name__, "|", error, "|", type(error.__cause__).__name__)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    ).stdout
    assert (
        out.strip()
        == f"StepFailed | {failure_cases.__name__}.CardDeclined: card 4242 was declined: limit | KeyError"
    )


def test_exception_is_revived_as_the_newest_class_of_its_name() -> None:
    def define() -> type[Exception]:
        class Local(Exception):
            pass

        return Local

    first, second = define(), define()
    assert type(again(first("x"))) is second


def test_exception_class_name_must_match_exactly() -> None:
    for kind in (
        "CardDeclined",
        f"{failure_cases.__name__}.card_declined",
        f"{failure_cases.__name__}.CardDeclined.",
        "builtins.ValueError",
    ):
        assert type(revive({"type": kind, "message": "m"})) is StepFailed


def test_exception_class_cannot_take_the_name_of_a_builtin() -> None:
    fake = type("ValueError", (Exception,), {"__module__": "builtins", "__qualname__": "ValueError"})
    assert type(revive({"type": "ValueError"})) is ValueError is not fake


def test_traceback_shows_engine_frames_only_where_they_raised() -> None:
    here = exception_codec.ENGINE_CODE[0]
    namespace: dict[str, Any] = {}
    exec(compile("def passes(call):\n    call()\n", f"{here}machine.py", "exec"), namespace)
    exec(compile("def raises():\n    1 / 0\n", f"{here}deep.py", "exec"), namespace)

    passing = describe(caught(lambda: namespace["passes"](lambda: 1 / 0)))["traceback"]
    assert "machine.py" not in passing
    assert "test_exception_codec.py" in passing
    own = describe(caught(lambda: namespace["passes"](namespace["raises"])))["traceback"]
    assert "machine.py" in own
    assert "deep.py" in own


def test_description_does_not_change_with_the_exception() -> None:
    items = [1]
    facts = describe(ValueError(items))
    items.append(2)
    assert facts["args"] == [[1]]
    back = revive(decode_frozen(encode(facts)))
    back.args[0].append(3)
    assert type(back.args[0]) is list


def test_unreadable_attribute_does_not_hide_the_others() -> None:
    class Order:
        pass

    register(Order, "test_exception_codec.Order", split=lambda _: {}, join=lambda _: Order())
    error = CardDeclined(card="1", reason="r")
    error.order = Order()  # type: ignore[attr-defined]
    facts = decode_frozen(encode(describe(error)))

    def fail(_: Any) -> Order:
        raise TypeError("changed since")

    register(Order, "test_exception_codec.Order", split=lambda _: {}, join=fail)
    back = revive(facts)
    assert type(back) is CardDeclined
    assert vars(back).keys() >= {"card", "reason"}
    assert "order" not in vars(back)
