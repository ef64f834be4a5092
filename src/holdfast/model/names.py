"""What may name a run, a version or a tag, and how a reference to a version is read.

`RUN@12`, `RUN@head`, `RUN~2` (two before the head), `RUN:tag`; `RUN` alone is its head. Within a run: `12`,
`head`, `~2`, `tag`, each also with its sign (`@12`, `:tag`).

Invariant: a valid id or tag can be written in a reference and read back without ambiguity, shown on a terminal,
and never means a path.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.errors import InvalidCall, InvalidReference

MAX_ID = 200
MAX_TAG = 100
MAX_STEP = 500
MAX_NOTE = 100_000

#: The highest number that a reference can hold.
_MOST = 10**18
#: Ids that need no closer look, as most.
_PLAIN = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_ID}}}")
#: What a terminal obeys instead of showing it, and what changes the direction of text.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\e"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_SUFFIX = re.compile(r"(?:@(?P<at>\d{1,18}|head)|~(?P<back>\d{1,18})|:(?P<tag>.+))", re.DOTALL)


class Reference(NamedTuple):
    """A version within a run: by number, by tag, or so many before the head."""

    number: int | None = None
    back: int = 0
    tag: str | None = None


HEAD = Reference()


def check_run_id(run_id: Any) -> str:
    """A run id that may be used, or `InvalidReference`."""
    if not isinstance(run_id, str):
        raise InvalidReference(f"a run id is a string, not {type(run_id).__name__}")
    if _PLAIN.fullmatch(run_id):
        return run_id
    problem = _problem(run_id, MAX_ID, "@~\\")
    if problem is None and any(part in (".", "..") for part in run_id.split("/")):
        problem = "looks like a path"
    if problem is not None:
        raise InvalidReference(f"{short(run_id)} cannot be a run id: it {problem}")
    return run_id


def check_tag(tag: Any) -> str:
    """A tag that may be used, or `InvalidReference`."""
    if not isinstance(tag, str):
        raise InvalidReference(f"a tag is a string, not {type(tag).__name__}")
    problem = _problem(tag, MAX_TAG, "@~:")
    if problem is None and (tag.isdigit() or tag == "head"):
        problem = "would read as a version"
    if problem is not None:
        raise InvalidReference(f"{short(tag)} cannot be a tag: it {problem}")
    return tag


def check_tags(tags: Any) -> list[str]:
    """Tags that may be used, or `InvalidCall`."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidCall(f"tags is a list of strings: write tags=[{short(tags)}]")
    return [check_tag(tag) for tag in tags]


def check_text(name: str, text: Any, limit: int) -> str | None:
    """An optional text of a version's facts, or `InvalidCall`."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidCall(f"{name} is a string, not {type(text).__name__}")
    if len(text) > limit:
        raise InvalidCall(f"{name} has {len(text)} characters; {limit} are the most")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidCall(f"{name} holds a lone surrogate, which cannot be shown") from None
    return text


def check_number(name: str, value: Any, least: int) -> int:
    """A number that a call was given, or `InvalidCall`."""
    if type(value) is not int or not least <= value <= _MOST:
        raise InvalidCall(f"{name} is a whole number, {least} or more, not {short(value)}")
    return value


def parse_local(ref: Any) -> Reference:
    """A reference within a run."""
    if isinstance(ref, bool) or not isinstance(ref, int | str):
        raise InvalidReference(f"a version is named by a number or a string, not {type(ref).__name__}")
    if isinstance(ref, int):
        if not 1 <= ref <= _MOST:
            raise InvalidReference(
                f"versions are numbered from 1; {short(ref)} is none: write '~2' for two before the head"
            )
        return Reference(number=ref)
    if ref in ("", "head"):
        return HEAD
    if ref.isdecimal() and len(ref) <= 18:
        return parse_local(int(ref))
    match = _SUFFIX.fullmatch(ref)
    return _of(match) if match else Reference(tag=check_tag(ref))


def split_reference(text: Any) -> list[tuple[str, Reference]]:
    """All ways to read a reference as a run id and a version, the likeliest first: an id may hold a `:`."""
    if not isinstance(text, str):
        raise InvalidReference(f"a reference is a string such as 'run-1@12', not {type(text).__name__}")
    how = "write RUN, RUN@12, RUN@head, RUN~2 or RUN:tag"
    if len(text) > MAX_ID + MAX_TAG + 1 or _SURROGATE.search(text):
        raise InvalidReference(f"{short(text)} is no reference, being too long or not text: {how}")
    readings = [(text, HEAD)]
    refused: InvalidReference | None = None
    for position, sign in enumerate(text):
        if sign in "@~:" and position:
            match = _SUFFIX.fullmatch(text, position)
            if match:
                try:
                    readings.append((text[:position], _of(match)))
                except InvalidReference as error:
                    refused = error
    if len(readings) == 1 and any(sign in text for sign in "@~"):
        raise refused or InvalidReference(f"{short(text)} is no reference: {how}")
    return readings


def _of(match: re.Match[str]) -> Reference:
    if match["at"]:
        return HEAD if match["at"] == "head" else parse_local(int(match["at"]))
    if match["back"]:
        return Reference(back=int(match["back"]))
    return Reference(tag=check_tag(match["tag"]))


def _problem(text: str, limit: int, forbidden: str) -> str | None:
    if not text:
        return "is empty"
    if len(text) > limit:
        return f"has {len(text)} characters; {limit} are the most"
    if text != text.strip():
        return "begins or ends with a space"
    for sign in text:
        if sign in forbidden:
            return f"holds {sign!r}"
        if unicodedata.category(sign) in ("Cc", "Cs", "Cn", "Zl", "Zp"):
            return f"holds the character {sign!r}"
    return None


def meant(text: str, known: Iterable[str]) -> str:
    """What was perhaps meant by a name that is not known, as the end of a message; empty if nothing is near."""
    from difflib import get_close_matches

    names = list(known)
    alike = [name for name in names if name.casefold() == text.casefold()]
    near = alike or get_close_matches(text, names, 1)
    return f": did you mean {near[0]!r}?" if near else ""


def printable(text: str) -> str:
    """Return a text in one line that is safe to show: control characters are escaped."""
    return CONTROL.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), text)


def short(value: Any) -> str:
    """A value in a message: enough of it to recognise it."""
    if isinstance(value, int) and abs(value) > _MOST:
        return "a number of far too many digits"
    try:
        text = repr(value[:60] if isinstance(value, str | bytes) else value)
    except Exception:
        # Nested too deep, or of a class with a fault of its own.
        text = f"{type(value).__name__} object"
    return text if len(text) <= 60 else f"{text[:57]}…"
