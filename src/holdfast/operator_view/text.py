"""Format values, times, sizes and recorded errors for people; parse times and JSON that people write.

Invariant: stored text cannot control the terminal: control characters are escaped.
Invariant: every recorded error can be formatted, whatever its content.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.errors import InvalidCall, InvalidSnapshot, UnsupportedValue
from holdfast.model.names import CONTROL, printable
from holdfast.tree.artifact import Artifact
from holdfast.tree.path import safe_repr
from holdfast.tree.portable import from_json, to_json
from holdfast.tree.values import Opaque, fields_of_opaque

_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
#: The longest chain of causes that is followed; records are shorter.
_MAX_DEPTH = 50


def full_traceback(error: Any) -> str:
    """Return the traceback of a recorded error with its causes, notes and members, as Python prints it."""
    return "\n".join(_traceback_lines(error, 0))


def _traceback_lines(error: Any, depth: int) -> Iterator[str]:
    if not isinstance(error, Mapping) or depth > _MAX_DEPTH:
        return
    link = _first_cause(error)
    if link is not None:
        yield from _traceback_lines(link[1], depth + 1)
        if error.get("skipped"):
            yield f"\n… {error['skipped']:,} further causes …"
        yield f"\n{link[0]}\n"
    text = str(error.get("traceback") or f"{error.get('type', 'error')}: {error.get('message', '')}")
    yield from text.rstrip().split("\n")
    yield from _as_list(error.get("notes"))
    members = _as_list(error.get("errors"))
    for number, member in enumerate(members, 1):
        yield f"  +---------------- {number} of {len(members) + (error.get('left_out') or 0)}"
        for line in _traceback_lines(member, depth + 1):
            yield from (f"  | {each}" for each in line.split("\n"))


def _first_cause(error: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return the error that Python prints first, and the line between the two; None if there is no cause."""
    if not isinstance(error, Mapping):
        return None
    cause, context = error.get("cause"), error.get("context")
    if isinstance(cause, Mapping) and "same_as" not in cause:
        return (_CONTEXT if error.get("direct") is False else _CAUSE), cause
    if cause is None and isinstance(context, Mapping) and not error.get("suppressed"):
        return None if "same_as" in context else (_CONTEXT, context)
    return None


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []


_DURATION = re.compile(r"(\d{1,9})\s*(s|m|min|h|d|w|y)")
#: Seconds of 1000 years.
_MAX_SECONDS = 31_536_000_000
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


def plain(text: str) -> str:
    """Return a text as one line without control characters."""
    return printable(text)


def printable_lines(text: str) -> str:
    """Return a text of several lines without control characters."""
    return "\n".join(plain(line.removesuffix("\r").replace("\t", "    ")) for line in text.split("\n"))


def age(at: datetime, now: datetime | None = None) -> str:
    """Return how long ago a time was."""
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    if seconds < 0:
        return f"in {span(-seconds)}"
    return f"{span(seconds)} ago" if seconds >= 1 else "just now"


def span(seconds: float) -> str:
    """Return a duration in one unit."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length, least in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 172800)):
        if seconds < least:
            return f"{seconds / length:.0f} {unit}" if length > 1 or seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 86400:.0f} days"


def size(count: int) -> str:
    """Return a number of bytes in one unit."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def count(number: int, what: str) -> str:
    """Return a number with its noun: `1 version`, `2 versions`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def brief(value: Any, width: int = 60) -> str:
    """Return a value as one line of at most `width` columns."""
    return cut(_one_line(value, width), width)


def cut(text: str, width: int) -> str:
    """Return a text, cut to a width with an ellipsis."""
    if display_width(text) <= width:
        return text
    room = max(1, width) - 1
    end = 0
    while end < len(text) and (room := room - display_width(text[end])) >= 0:
        end += 1
    return text[:end].rstrip("…") + "…"


def display_width(text: str) -> int:
    """Return the columns that a text takes on a terminal; a character may take two or none."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def as_json(value: Any) -> Any:
    """Return a value in its portable JSON form; its repr if it has none."""
    try:
        return to_json(value)
    except UnsupportedValue:
        return safe_repr(value)


def details_as_json(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of an error as JSON: tuples as lists, values in their portable form."""
    return {
        name: as_json(list(value) if isinstance(value, tuple) else value) for name, value in details.items()
    }


def parse_json(text: str, what: str) -> Any:
    """Parse a value that a person wrote as JSON; `what` names it in the error."""
    try:
        return from_json(json.loads(text))
    except InvalidSnapshot as error:
        raise InvalidCall(f"{what}: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidCall(
            f"{what}: {text!r:.80} is not JSON; write a text in double quotes inside single quotes: '\"like this\"'"
        ) from None


def dumps(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON without control characters."""
    text = json.dumps(document, ensure_ascii=False, indent=indent, default=_encode_other)
    return CONTROL.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def parse_time(text: str) -> datetime:
    """Parse a time: `2h`, `3d` (ago), `2026-11-15`, `2026-11-15T08:30`."""
    try:
        if _DURATION.fullmatch(text.strip()):
            return datetime.now(UTC) - parse_duration(text)
        found = datetime.fromisoformat(text.strip())
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError):
        raise InvalidCall(
            f"{plain(text)!r} is not a time: write 2h or 3d for a time ago, or 2026-11-15, or 2026-11-15T08:30"
        ) from None


def parse_duration(text: str) -> timedelta:
    """Parse a duration: `90s`, `30min`, `12h`, `7d`, `4w`."""
    match = _DURATION.fullmatch(text.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not match or seconds > _MAX_SECONDS:
        problem = "too long" if match else "not a duration"
        raise InvalidCall(f"{plain(text)!r} is {problem}: write 90s, 30min, 12h, 7d, 4w or 1y")
    return timedelta(seconds=seconds)


def _one_line(value: Any, width: int) -> str:
    """Return a value as one line, or a part of it that is longer than `width`."""
    if isinstance(value, str):
        return plain(json.dumps(value[: max(0, width) + 8], ensure_ascii=False))
    if isinstance(value, dict):
        named = ((f"{plain(key if isinstance(key, str) else safe_repr(key))}: ", value[key]) for key in value)
        return "{" + _join_items(named, width - 2) + "}"
    if isinstance(value, list):
        return "[" + _join_items((("", item) for item in value), width - 2) + "]"
    if isinstance(value, Artifact):
        name = f" {value.name}" if value.name else ""
        return plain(f"<artifact {value.digest[:12]}{name}, {size(value.size)}>")
    if isinstance(value, Opaque):
        tag = plain(value.tag)
        return f"{tag} {_one_line(fields_of_opaque(value), width - len(tag) - 1)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return plain(safe_repr(value)[: max(0, width) + 8])


def _join_items(items: Iterable[tuple[str, Any]], width: int) -> str:
    """Join items until the line is full; deeper values are not read."""
    parts = []
    for name, item in items:
        parts.append(name + (_one_line(item, width - len(name)) if width > 0 else "…"))
        width -= len(parts[-1]) + 2
        if width < -2:
            break
    return ", ".join(parts)


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _encode_other(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
