"""Exceptions, and functions that raise, store and revive them, for the tests of recorded exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.execution.exception_codec import describe, revive
from holdfast.tree.codec import decode, decode_frozen, encode
from holdfast.tree.fold import Folder


class CardDeclined(Exception):
    """Its `__init__` does not take what `args` holds."""

    made = 0

    def __init__(self, *, card: str, reason: str) -> None:
        type(self).made += 1
        super().__init__(f"card {card} was declined: {reason}")
        self.card = card
        self.reason = reason


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
