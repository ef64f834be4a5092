"""An exception is written down, read elsewhere, and raised again as what it was."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import NotFound, StepFailed
from holdfast.runtime import failure
from holdfast.runtime.failure import describe, recorded_traceback, revive
from holdfast.tree.artifact import artifact
from holdfast.tree.codec import MAX_DEPTH, decode, decode_frozen, encode
from holdfast.tree.fold import Folder
from holdfast.tree.values import register


class CardDeclined(Exception):
    """Its `__init__` does not take what `args` holds."""

    made = 0

    def __init__(self, *, card: str, reason: str) -> None:
        type(self).made += 1
        super().__init__(f"card {card} was declined: {reason}")
        self.card = card
        self.reason = reason


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


def caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    def call() -> None:
        if cause is None:
            raise error
        raise error from cause

    return caught(call)


def stored(facts: dict[str, Any]) -> Any:
    """The facts as a version holds them."""
    assert encode(decode(encode(facts))) == encode(facts)
    Folder(object()).fold({"a": [{"b": facts}]})
    return decode_frozen(encode(facts))


def again(error: BaseException) -> BaseException:
    return revive(stored(describe(error)))


def test_facts_of_an_exception() -> None:
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


def test_own_class_comes_back_without_its_init() -> None:
    error = raised(CardDeclined(card="4242", reason="limit"))
    made = CardDeclined.made
    with pytest.raises(CardDeclined, match=r"^card 4242 was declined: limit$") as found:
        raise again(error)
    assert (found.value.card, found.value.reason) == ("4242", "limit")
    assert CardDeclined.made == made


def test_no_code_of_the_class_runs() -> None:
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
def test_comes_back_the_same(error: Exception) -> None:
    facts = describe(raised(error))
    back = again(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    for name in ("filename", "filename2", "errno", "name", "path", "lineno", "value", "reason", "details"):
        assert getattr(back, name, None) == getattr(error, name, None)
    assert describe(back) == facts


def test_missing_attribute_keeps_its_name_not_its_object() -> None:
    error = caught(lambda: {"secret": 1}.nope)  # type: ignore[attr-defined]
    back = again(error)
    assert isinstance(back, AttributeError)
    assert (back.name, back.obj) == ("nope", None)


def test_first_traceback_is_kept_through_a_replay() -> None:
    facts = describe(raised(CardDeclined(card="1", reason="r")))
    error = caught(lambda: (_ for _ in ()).throw(revive(facts)))
    assert recorded_traceback(error) == facts["traceback"]
    assert not hasattr(error, "__notes__")
    assert describe(error) == facts
    assert recorded_traceback(ValueError()) is None


def test_cause_and_context_come_back_as_such() -> None:
    direct = again(raised(ValueError("outer"), KeyError("inner")))
    assert isinstance(direct.__cause__, KeyError)

    def handling() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    beside = again(caught(handling))
    assert beside.__cause__ is None
    assert isinstance(beside.__context__, KeyError)

    def hiding() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None

    assert "cause" not in describe(caught(hiding))


def test_causes_are_followed_only_so_far_and_cycles_end() -> None:
    last: BaseException = ValueError("0")
    for number in range(1, 20):
        last = raised(ValueError(str(number)), last)
    facts, depth = describe(last), 0
    while "cause" in facts:
        facts, depth = facts["cause"], depth + 1
    assert depth == failure.DEEPEST

    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    told = describe(one)
    assert told["cause"]["message"] == "two"
    assert "cause" not in told["cause"]


def test_group_comes_back_with_its_members() -> None:
    error = Batch("some", [CardDeclined(card="1", reason="r"), ExceptionGroup("inner", [KeyError("k")])])
    error.place = "here"  # type: ignore[attr-defined]
    back = again(raised(error))
    assert type(back) is Batch
    assert back.message == "some"
    assert back.place == "here"  # type: ignore[attr-defined]
    assert [type(each) for each in back.exceptions] == [CardDeclined, ExceptionGroup]
    assert back.subgroup(KeyError) is not None
    assert describe(back) == describe(error) | {"traceback": describe(back)["traceback"]}


def test_members_of_a_group_are_bounded() -> None:
    facts = describe(ExceptionGroup("many", [ValueError(str(n)) for n in range(1000)]))
    assert len(facts["errors"]) == failure.MOST_ERRORS - 1
    assert facts["left_out"] == 1000 - len(facts["errors"])
    whole: Exception = ValueError("leaf")
    for _ in range(30):
        whole = ExceptionGroup("deep", [whole])
    assert isinstance(again(whole), Exception)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), Stop("s")])
def test_only_exceptions_are_revived_as_themselves(error: BaseException) -> None:
    back = again(error)
    assert type(back) is StepFailed
    assert back.details["type"] == describe(error)["type"]


def test_group_of_base_exceptions_stands_as_step_failed() -> None:
    facts = describe(BaseExceptionGroup("g", [Stop("s"), ValueError("v")]))
    assert [each["message"] for each in facts["errors"]] == ["s", "v"]
    assert type(revive(facts)) is StepFailed


def test_unknown_class_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_module.py").write_text("class Evil(Exception): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    facts = {"type": "evil_module.Evil", "message": "boo", "traceback": "where", "attributes": {"a": 1}}
    error = revive(facts)
    assert type(error) is StepFailed
    assert str(error) == "evil_module.Evil: boo"
    assert error.code == "step_failed"
    assert error.details == {"type": "evil_module.Evil", "traceback": "where"}
    assert "evil_module" not in sys.modules


def test_is_read_in_a_process_without_the_class() -> None:
    cause = KeyError("lost")
    data = encode(describe(raised(CardDeclined(card="4242", reason="limit"), cause)))
    script = f"""
        from holdfast.runtime.failure import revive
        from holdfast.tree.codec import decode
        error = revive(decode({data!r}))
        print(type(error).__name__, "|", error, "|", type(error.__cause__).__name__)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == f"StepFailed | {__name__}.CardDeclined: card 4242 was declined: limit | KeyError"


def test_newest_of_two_classes_of_one_name() -> None:
    def define() -> type[Exception]:
        class Local(Exception):
            pass

        return Local

    first, second = define(), define()
    assert type(again(first("x"))) is second


def test_name_must_be_exact() -> None:
    for kind in (
        "CardDeclined",
        f"{__name__}.card_declined",
        f"{__name__}.CardDeclined.",
        "builtins.ValueError",
    ):
        assert type(revive({"type": kind, "message": "m"})) is StepFailed


def test_nobody_takes_the_name_of_a_builtin() -> None:
    fake = type("ValueError", (Exception,), {"__module__": "builtins", "__qualname__": "ValueError"})
    assert type(revive({"type": "ValueError"})) is ValueError is not fake


def test_frames_of_the_runtime_only_where_they_raised() -> None:
    here = failure._HERE
    namespace: dict[str, Any] = {}
    exec(compile("def passes(call):\n    call()\n", f"{here}machine.py", "exec"), namespace)
    exec(compile("def raises():\n    1 / 0\n", f"{here}deep.py", "exec"), namespace)

    passing = describe(caught(lambda: namespace["passes"](lambda: 1 / 0)))["traceback"]
    assert "machine.py" not in passing
    assert "test_failure.py" in passing
    own = describe(caught(lambda: namespace["passes"](namespace["raises"])))["traceback"]
    assert "machine.py" in own
    assert "deep.py" in own


def test_long_texts_are_cut_and_large_values_left_out() -> None:
    error = ValueError("start" + "x" * 200_000 + "end")
    error.add_note("n" * 100_000)
    error.small, error.large = 1, b"x" * 100_000  # type: ignore[attr-defined]
    facts = describe(error)
    assert len(facts["message"]) <= failure.LONGEST_TEXT
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
    assert len(encode(describe(error))) < failure.LARGEST_WHOLE + 200_000


def test_long_traceback_keeps_head_and_tail() -> None:
    lines = "".join(f"def f{n}(): f{n + 1}()\n" for n in range(600)) + "def f600(): 1 / 0\n"
    namespace: dict[str, Any] = {}
    exec(compile(lines, "/somewhere/long.py", "exec"), namespace)
    text = describe(caught(namespace["f0"]))["traceback"]
    assert len(text) <= failure.LONGEST_TRACEBACK
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


def test_what_cannot_be_stored_is_left_out() -> None:
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


def test_facts_do_not_change_with_the_error() -> None:
    items = [1]
    facts = describe(ValueError(items))
    items.append(2)
    assert facts["args"] == [[1]]
    back = revive(decode_frozen(encode(facts)))
    back.args[0].append(3)
    assert type(back.args[0]) is list


def test_one_unreadable_attribute_does_not_take_the_others() -> None:
    class Order:
        pass

    register(Order, "test_failure.Order", split=lambda _: {}, join=lambda _: Order())
    error = CardDeclined(card="1", reason="r")
    error.order = Order()  # type: ignore[attr-defined]
    facts = decode_frozen(encode(describe(error)))

    def fail(_: Any) -> Order:
        raise TypeError("changed since")

    register(Order, "test_failure.Order", split=lambda _: {}, join=fail)
    back = revive(facts)
    assert type(back) is CardDeclined
    assert vars(back).keys() >= {"card", "reason"}
    assert "order" not in vars(back)


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


def test_hostile_values_inside_an_exception() -> None:
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
def test_malformed_facts_give_step_failed(facts: Any) -> None:
    assert type(revive(facts)) is StepFailed


def test_odd_parts_are_passed_over() -> None:
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


def test_endless_causes_in_facts_end() -> None:
    facts: dict[str, Any] = {"type": "ValueError"}
    facts["cause"] = facts
    facts["errors"] = [facts]
    error: BaseException | None = revive(facts)
    assert type(error) is ValueError
    chain: list[BaseException] = []
    while error is not None:
        chain.append(error)
        error = error.__context__
    assert len(chain) == failure.DEEPEST + 1
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


@settings(deadline=None, derandomize=True)
@given(st.lists(_values), st.dictionaries(st.text(), _values))
def test_whatever_an_error_holds_can_be_stored_and_revived(
    args: list[Any], attributes: dict[str, Any]
) -> None:
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


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(_names, _values | _kinds), _kinds)
def test_whatever_the_facts_are_there_is_an_exception(facts: dict[str, Any], kind: str) -> None:
    for each in (facts, facts | {"type": kind}):
        error = revive(each)
        assert isinstance(error, Exception)
        str(error)


def test_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("x")
    for number in range(1000):
        setattr(error, f"a{number}", number)
        error.add_note(str(number))
    facts = describe(error)
    assert len(facts["attributes"]) <= failure.MOST_ATTRIBUTES
    assert facts["notes"] == [str(number) for number in range(failure.MOST_NOTES)]

    lines = "".join(f"def f{n}(): f{n + 1}()\n" for n in range(50)) + "def f50(): 1 / 0\n"
    namespace: dict[str, Any] = {}
    exec(compile(lines, "/somewhere/long.py", "exec"), namespace)
    monkeypatch.setattr(failure, "MOST_FRAMES", 10)
    text = describe(caught(namespace["f0"]))["traceback"]
    assert text.count("File ") == 10
    assert "in f3\n" in text
    assert "in f50\n" in text
    assert "in f20\n" not in text
