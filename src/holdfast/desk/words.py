"""Values as people read them: times, sizes, durations, states in a line; and times as people write them.

Invariant: what comes from a store can never steer the terminal: control characters are shown, not sent.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.errors import InvalidCall, InvalidSnapshot, UnsupportedValue
from holdfast.model.names import CONTROL, printable
from holdfast.tree.artifact import Artifact
from holdfast.tree.path import safe_repr
from holdfast.tree.portable import from_json, to_json

_SPAN = re.compile(r"(\d{1,9})\s*(s|m|min|h|d|w|y)")
#: Seconds of 1000 years.
_LONGEST = 31_536_000_000
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


def plain(text: str) -> str:
    """A text in one line, that is safe to show."""
    return printable(text)


def plain_lines(text: str) -> str:
    """A text of several lines, each safe to show."""
    return "\n".join(plain(line.removesuffix("\r").replace("\t", "    ")) for line in text.split("\n"))


def age(at: datetime, now: datetime | None = None) -> str:
    """How long ago something was."""
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    if seconds < 0:
        return f"in {span(-seconds)}"
    return f"{span(seconds)} ago" if seconds >= 1 else "just now"


def span(seconds: float) -> str:
    """A length of time in one unit."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length, least in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 172800)):
        if seconds < least:
            return f"{seconds / length:.0f} {unit}" if length > 1 or seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 86400:.0f} days"


def size(count: int) -> str:
    """A number of bytes."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def count(number: int, what: str) -> str:
    """So many of something: `1 version`, `2 versions`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def brief(value: Any, width: int = 60) -> str:
    """A value in a line of at most so many places."""
    # Of a large value, its beginning is enough.
    return cut(_start(value, width), width)


def cut(text: str, width: int) -> str:
    """The beginning of a text, with a sign where it was cut."""
    if places(text) <= width:
        return text
    room = max(1, width) - 1
    end = 0
    while end < len(text) and (room := room - places(text[end])) >= 0:
        end += 1
    return text[:end].rstrip("…") + "…"


def places(text: str) -> int:
    """How many places a text takes on a terminal: some signs take two, some none."""
    if text.isascii():
        return len(text)
    return sum(_places(sign) for sign in text)


def as_json(value: Any) -> Any:
    """A value in the portable form; as a text where it has none."""
    try:
        return to_json(value)
    except UnsupportedValue:
        return safe_repr(value)


def details_as_json(details: Mapping[str, Any]) -> dict[str, Any]:
    """What an error tells beside its message: lists are lists, and values of a state are in the portable form."""
    return {
        name: as_json(list(value) if isinstance(value, tuple) else value) for name, value in details.items()
    }


def parsed(text: str, what: str) -> Any:
    """A value that was given as JSON."""
    try:
        return from_json(json.loads(text))
    except InvalidSnapshot as error:
        raise InvalidCall(f"{what}: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidCall(
            f"{what}: {text!r:.80} is no JSON; write a text in double quotes, inside single ones: '\"like this\"'"
        ) from None


def dumps(document: Any, *, indent: int | None = None) -> str:
    """A document as JSON, which any terminal and any tool can take."""
    text = json.dumps(document, ensure_ascii=False, indent=indent, default=_other)
    return CONTROL.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def moment(text: str) -> datetime:
    """A time as people write it: `2h`, `3d` (ago), `2026-11-15`, `2026-11-15T08:30`."""
    try:
        if _SPAN.fullmatch(text.strip()):
            return datetime.now(UTC) - length(text)
        found = datetime.fromisoformat(text.strip())
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError):
        raise InvalidCall(
            f"{plain(text)!r} is no time: write 2h or 3d for so long ago, or 2026-11-15, or 2026-11-15T08:30"
        ) from None


def length(text: str) -> timedelta:
    """A length of time as people write it: `90s`, `30min`, `12h`, `7d`, `4w`."""
    match = _SPAN.fullmatch(text.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not match or seconds > _LONGEST:
        what = "too long a time" if match else "no length of time"
        raise InvalidCall(f"{plain(text)!r} is {what}: write 90s, 30min, 12h, 7d, 4w or 1y")
    return timedelta(seconds=seconds)


def _start(value: Any, width: int) -> str:
    """The whole of a value in a line if that fits; else more of its beginning than fits."""
    if isinstance(value, str):
        return plain(json.dumps(value[: max(0, width) + 8], ensure_ascii=False))
    if isinstance(value, dict):
        named = ((f"{plain(key if isinstance(key, str) else safe_repr(key))}: ", value[key]) for key in value)
        return "{" + _listed(named, width - 2) + "}"
    if isinstance(value, list):
        return "[" + _listed((("", item) for item in value), width - 2) + "]"
    if isinstance(value, Artifact):
        name = f" {value.name}" if value.name else ""
        return plain(f"<artifact {value.digest[:12]}{name}, {size(value.size)}>")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return plain(safe_repr(value)[: max(0, width) + 8])


def _listed(items: Iterable[tuple[str, Any]], width: int) -> str:
    """Items of a line, until it is full. Whatever is deeper than a line is long is not looked at."""
    parts = []
    for name, item in items:
        parts.append(name + (_start(item, width - len(name)) if width > 0 else "…"))
        width -= len(parts[-1]) + 2
        if width < -2:
            break
    return ", ".join(parts)


def _places(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _other(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
