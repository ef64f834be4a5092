"""Checks of arguments: integers, numbers, durations and texts.

Invariant: a check returns the value that it was given (a duration as a float) or raises `InvalidCall` with the name of
the argument, the values that it accepts, and the value that it was given.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidCall
from holdfast.model.names import MAX_INTEGER, short

#: The longest duration, 285 years: a lock cannot wait much longer.
MAX_SECONDS = 9e9


def check_integer(name: str, value: Any, least: int, most: int = MAX_INTEGER) -> int:
    """Return an integer from `least` to `most`; a bool is not one."""
    if type(value) is not int or not least <= value <= most:
        bounds = f", {least} or more" if most == MAX_INTEGER else f" from {least:,} to {most:,}"
        raise InvalidCall(f"{name} is a whole number{bounds}, not {short(value)}", field=name)
    return value


def check_number(
    name: str,
    value: Any,
    *,
    least: float = 0,
    most: float = 1e12,
    above_zero: bool = False,
    unit: str = "",
) -> float:
    """Return a number from `least` to `most`; a bool and NaN are not one."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= most
        or (above_zero and value == 0)
    ):
        is_too_large = isinstance(value, int | float) and value > most
        if most < MAX_SECONDS or is_too_large:
            bounds = f" above 0, up to {most:,}" if above_zero else f" from {least:,} to {most:,}"
        else:
            bounds = " above 0" if above_zero else f", {least:,} or more"
        raise InvalidCall(f"{name} is a number{unit}{bounds}, not {short(value)}", field=name)
    return value


def check_seconds(
    name: str, value: Any, *, least: float = 0, most: float = MAX_SECONDS, above_zero: bool = False
) -> float:
    """Return a duration in seconds from `least` to `most`."""
    return float(check_number(name, value, least=least, most=most, above_zero=above_zero, unit=" of seconds"))


def check_text(name: str, text: Any, limit: int) -> str | None:
    """Return a text of at most `limit` characters that can be encoded, or None."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidCall(f"{name} is a string, not {type(text).__name__}")
    if len(text) > limit:
        raise InvalidCall(f"{name} has {len(text)} characters; the maximum is {limit}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidCall(f"{name} contains a lone surrogate, which cannot be encoded") from None
    return text
