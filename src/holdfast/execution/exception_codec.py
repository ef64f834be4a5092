"""Errors as data that can be stored, and the data as errors that can be raised again.

`describe` returns the message, the origin and the attributes of an exception; `revive` makes an exception of that data,
so that `except MyError` catches on replay what it caught at first. A class is looked up only among those that this
process has loaded: nothing is imported by a name found in data, and no code of the application (`__init__`, `__new__`,
`__setattr__`) runs.

Invariant: neither function raises, whatever the exception or the data. The result of `describe` can be stored and is
bounded in size; `describe(revive(facts)) == facts` where the class is loaded and nothing was left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, StepFailed
from holdfast.tree.artifact import Artifact
from holdfast.tree.class_names import type_name
from holdfast.tree.codec import decode, decode_frozen, encode, leaf_ext
from holdfast.tree.fold import Folder, Redactor
from holdfast.tree.values import BUILTIN_ERRORS, NATIVE, join_error, kind_of, parts_of, split_error

T = TypeVar("T")

LONGEST_TEXT, LONGEST_TRACEBACK = 16_000, 20_000
#: Bytes of all arguments, or of one attribute; and of all of them together, those of causes included.
LARGEST_VALUE, LARGEST_WHOLE = 64 * 1024, 256 * 1024
#: Causes of causes, and members of groups of groups, are followed this far; so many are described in all. The end
#: of a longer chain is described too.
DEEPEST, MOST_ERRORS = 20, 30
MOST_NOTES, MOST_ATTRIBUTES, MOST_FRAMES = 20, 100, 1_000

_CONTAINERS = (dict, list, tuple, set, frozenset)
_LONGEST_NAME = 500
#: Levels of nesting that are left to whatever the facts are stored in.
_LEVELS_ABOVE = 60
#: Where a revived exception keeps the text of its first traceback.
_RECORDED = "__holdfast_traceback__"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Prefixes of the files through which Holdfast calls user code: tracebacks leave their frames out.
ENGINE_CODE = (
    *(os.path.join(_PACKAGE, name, "") for name in ("execution", "workflow")),
    os.path.join(_PACKAGE, "engine.py"),
)
#: Errors that a step fails with; those that end a process are never made from data.
_BUILTIN: dict[str, type[BaseException]] = {
    name: cls for name, cls in BUILTIN_ERRORS.items() if issubclass(cls, Exception) or cls is GeneratorExit
}
_CANCELLED = "asyncio.exceptions.CancelledError"


def describe(error: BaseException) -> dict[str, Any]:
    """`type`, `message`, `traceback`, and, where there are any, `args`, `attributes`, `notes`, the `errors` of a group
    and how many of them were `left_out`, the `cause` (`raise … from`), the `context`, whether that is `suppressed`, and
    how many causes were `skipped` before the one described. An error described before is `{"same_as": number}`.

    Facts from before contexts were recorded have one `cause`, which is the context if `direct` is False."""
    return _Description().describe(error, 0)


def pack(error: BaseException, redact: Redactor | None = None) -> bytes:
    """Return the description of an exception, encoded, without secrets among its attributes."""
    facts = describe(error)
    return encode(facts if redact is None else Folder(None, redact).fold(facts))


def unpack(data: bytes) -> Any:
    """Return a decoded description, frozen; empty if it cannot be read."""
    try:
        return decode_frozen(data) if data else {}
    except HoldfastError:
        return {}


def revive(facts: Mapping[str, Any]) -> BaseException:
    """Return the exception that `facts` describe; `StepFailed` where its class is not loaded here, ends a process
    (`SystemExit`, …), or does not fit the data."""
    return _Reviving().revive(facts, 0)


def recorded_traceback(error: BaseException) -> str | None:
    """Return the text of the traceback with which a revived exception was raised at first."""
    return _attempt(lambda: _exact(_own(error, "__dict__").get(_RECORDED), str), None)


class _Description:
    """One call of `describe`: the errors described so far, and the room that is left."""

    def __init__(self) -> None:
        self._room = LARGEST_WHOLE
        #: The facts of each error by its id, and the ids of those around the one being described.
        self._described: dict[int, dict[str, Any]] = {}
        self._around: set[int] = set()

    def describe(self, error: BaseException, depth: int) -> dict[str, Any]:
        name = _attempt(lambda: _name(type(error))[:_LONGEST_NAME], "unknown")
        message = _attempt(lambda: _text(str(error)), "")
        title = f"{name}: {message}" if message else name
        text = recorded_traceback(error) or _attempt(lambda: _traceback(error, title), "")
        facts: dict[str, Any] = {"type": name, "message": message}
        facts["traceback"] = _text(text, LONGEST_TRACEBACK)
        self._described[id(error)] = facts
        self._around.add(id(error))
        for add in (self._describe_value, self._describe_members, self._describe_causes):
            with suppress(BaseException):
                add(error, depth, facts)
        self._around.discard(id(error))
        return facts

    def _describe_value(self, error: BaseException, _: int, facts: dict[str, Any]) -> None:
        args, found = split_error(error)
        notes = found.pop("__notes__", ())
        with suppress(BaseException):
            facts["args"] = self._copy(args[:1] if isinstance(error, BaseExceptionGroup) else args)
        for name in islice(found, MOST_ATTRIBUTES):
            if type(name) is str and len(name) <= _LONGEST_NAME and not _is_dunder(name):
                with suppress(BaseException):
                    facts["attributes"] = facts.get("attributes", {}) | {name: self._copy(found[name])}
        if isinstance(notes, list) and notes:
            facts["notes"] = [_text(note, 1_000) for note in notes[:MOST_NOTES] if isinstance(note, str)]

    def _copy(self, value: Any) -> Any:
        """A plain copy, or an exception if it cannot be stored exactly or takes too much room."""
        room = min(LARGEST_VALUE, self._room)
        _refuse_large(value, room)
        data = bytes(leaf_ext((value,), depth=_LEVELS_ABOVE).data)
        _refuse_large(data, room)
        self._room -= len(data)
        return decode(data)[0]

    def _describe_causes(self, error: BaseException, depth: int, facts: dict[str, Any]) -> None:
        cause, context = _own(error, "__cause__"), _own(error, "__context__")
        if _own(error, "__suppress_context__") is not (cause is not None):
            facts["suppressed"] = cause is None
        for name, next_one in (("cause", cause), ("context", context)):
            if next_one is not None:
                other, skipped = _end_of(next_one) if depth + 1 == DEEPEST else (next_one, 0)
                found = self._link(other, depth)
                if found is not None:
                    facts |= {name: found, "skipped": skipped} if skipped else {name: found}

    def _describe_members(self, error: BaseException, depth: int, facts: dict[str, Any]) -> None:
        if isinstance(error, BaseExceptionGroup):
            members = vars(BaseExceptionGroup)["exceptions"].__get__(error)
            kept = [found for each in members if (found := self._link(each, depth)) is not None]
            facts |= {"errors": kept, "left_out": len(members) - len(kept)}

    def _link(self, error: BaseException, depth: int) -> dict[str, Any] | None:
        """An error that belongs to another: its facts, or its number if it was described before; None if it is one
        of those around that other, or beyond the limit."""
        if id(error) in self._around:
            return None
        if id(error) in self._described:
            numbers = list(self._described)
            self._described[id(error)]["number"] = number = numbers.index(id(error))
            return {"same_as": number}
        return (
            self.describe(error, depth + 1)
            if depth < DEEPEST and len(self._described) < MOST_ERRORS
            else None
        )


def _end_of(error: BaseException) -> tuple[BaseException, int]:
    """The last of the causes of an error, and how many others come before it."""
    seen = {id(error)}
    while True:
        cause = _own(error, "__cause__") or _own(error, "__context__")
        if cause is None or id(cause) in seen:
            return error, len(seen) - 1
        error = cause
        seen.add(id(error))


def _refuse_large(value: Any, room: int) -> None:
    """Before it is encoded: a few shared lists can make up a tree of astronomic size."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        kind = type(item)
        base: Any = next((each for each in _CONTAINERS if issubclass(kind, each)), None)
        room -= len(item) if kind in (str, bytes) else 1
        # The bytes of an artifact would have to be stored as well.
        if kind is Artifact or room < (base.__len__(item) if base else 0):
            raise ValueError("too large")
        if base:
            waiting += dict.values(item) if base is dict else base.__iter__(item)
        elif kind not in NATIVE:
            waiting.append(parts_of(kind_of(item), item))


def _attempt(read: Callable[[], T], otherwise: T) -> T:
    # Not only an Exception: a `__str__` may well raise the very error that it is asked about.
    with suppress(BaseException):
        return read()
    return otherwise


def _own(error: BaseException, name: str) -> Any:
    """An attribute as Python keeps it, whatever the class has put in front of it."""
    return vars(BaseException)[name].__get__(error)


def _name(cls: type) -> str:
    return _text(cls.__qualname__ if cls.__module__ == "builtins" else type_name(cls))


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _text(text: str, longest: int = LONGEST_TEXT) -> str:
    """An exact `str`, cut in the middle where it is too long."""
    text = str.__str__(text)
    half = longest // 2 - 20
    return text if len(text) <= longest else f"{text[:half]}\n… something left out …\n{text[-half:]}"


def _traceback(error: BaseException, title: str) -> str:
    import traceback

    frames = list(traceback.walk_tb(_own(error, "__traceback__")))
    ours = [frame.f_code.co_filename.startswith(ENGINE_CODE) for frame, _ in frames]
    last = max((index for index, own in enumerate(ours) if not own), default=-1)
    frames = [frame for index, frame in enumerate(frames) if index > last or not ours[index]]
    del frames[MOST_FRAMES // 2 : max(len(frames) - MOST_FRAMES // 2, MOST_FRAMES // 2)]
    lines = traceback.StackSummary.extract(iter(frames)).format()
    return "".join(["Traceback (most recent call last):\n", *lines, title] if lines else [title])


class _Reviving:
    """One call of `revive`: the errors made so far, by number, and how many more may be made."""

    def __init__(self) -> None:
        self._left = MOST_ERRORS
        self._made: dict[int, BaseException] = {}

    def revive(self, facts: Any, depth: int) -> BaseException:
        self._left -= 1
        try:
            kind, message, text = (
                _exact(facts.get(key, ""), str) for key in ("type", "message", "traceback")
            )
        except Exception:
            return StepFailed("the record of an error cannot be read", type="unknown", traceback="")
        error: BaseException
        try:
            error = self._make(_BUILTIN.get(kind) or _loaded(kind), facts, message, depth)
        except Exception:
            error = StepFailed(f"{kind}: {message}" if message else kind, type=kind, traceback=text)
        with suppress(Exception):
            self._complete(error, facts, text, depth)
        return error

    def _make(
        self, cls: type[BaseException], facts: Mapping[str, Any], message: str, depth: int
    ) -> BaseException:
        args = _plain(facts.get("args"), list, [message] if message else [])
        attributes = {}
        for name, value in facts.get("attributes", {}).items():
            with suppress(Exception):
                attributes.update({} if _is_dunder(name) else {name: decode(encode(value))})
        if issubclass(cls, ExceptionGroup):
            found = [self._linked(each, depth) for each in facts["errors"]]
            members = [each for each in found if isinstance(each, Exception)]
            error = ExceptionGroup.__new__(cls, _exact(args[0], str), members)
            _own(error, "__dict__").update(attributes)
            return error
        if issubclass(cls, UnicodeError) and any(type(arg) is int and arg < 0 for arg in args):
            raise ValueError("Python reads before the text where such an error is shown")
        return _exact(join_error(cls, args, attributes), cls)

    def _complete(self, error: BaseException, facts: Mapping[str, Any], text: str, depth: int) -> None:
        notes = [note for note in _plain(facts.get("notes"), list, []) if type(note) is str]
        _own(error, "__dict__").update(({"__notes__": notes} if notes else {}) | {_RECORDED: text})
        if type(number := facts.get("number")) is int:
            self._made[number] = error
        first = "__context__" if facts.get("direct") is False else "__cause__"
        for name, slot in (("cause", first), ("context", "__context__")):
            cause = self._linked(facts.get(name), depth)
            if cause is not None:
                vars(BaseException)[slot].__set__(error, cause)
        if type(hidden := facts.get("suppressed")) is bool:
            vars(BaseException)["__suppress_context__"].__set__(error, hidden)

    def _linked(self, facts: Any, depth: int) -> BaseException | None:
        if not isinstance(facts, Mapping) or depth >= DEEPEST or self._left <= 0:
            return None
        if "same_as" in facts:
            return self._made.get(facts["same_as"])
        return self.revive(facts, depth + 1)


def _loaded(kind: str) -> type[BaseException]:
    """The class of this name; if it was defined again, the newest, which is the one in use."""
    if kind == _CANCELLED and "asyncio" in sys.modules:
        cancelled: type[BaseException] = sys.modules["asyncio"].CancelledError
        return cancelled
    found = []
    waiting: list[type[Exception]] = [Exception]
    seen: set[int] = set()
    while waiting:
        cls = waiting.pop()
        if id(cls) not in seen:
            seen.add(id(cls))
            # Oldest first, each before what was derived from it.
            waiting += reversed(type.__subclasses__(cls))
            with suppress(Exception):
                found += [cls] if _name(cls) == kind else []
    return found[-1]


def _plain(value: Any, kind: type[T], otherwise: T) -> T:
    """A fresh plain copy of a stored value, if it is there, can be read and is of this kind."""
    if isinstance(value, kind):
        with suppress(Exception):
            return _exact(decode(encode(value)), kind)
    return otherwise


def _exact(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"a {kind.__name__} was expected")
    return value
