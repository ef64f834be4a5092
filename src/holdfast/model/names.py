"""Names of runs and tags, references to versions, and safe texts of values in messages.

References are `RUN@12`, `RUN@head`, `RUN~2` (two before the head), `RUN:tag`; `RUN` alone is its head. Within a run:
`12`, `head`, `~2`, `tag`, each also with its sign (`@12`, `:tag`).

Invariant: a reference with a valid id or tag is unambiguous, can be shown on a terminal, and is never a path.
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
#: Bytes in UTF-8 of a version's key, and of the name of an attachment: an entry of a PostgreSQL index, which has both,
#: holds at most 2704.
MAX_KEY = 1_000
#: Precedes the number of a timeline in the key of attachments that were made after a rollback.
AFTER_ROLLBACK = " ~"
#: The largest integer that a reference or an argument can hold.
MAX_INTEGER = 10**18
#: Most ids; they need no further check.
_PLAIN = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_ID}}}")
#: Control characters of terminals, and characters that change the direction of text.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\e"}
_SURROGATE = re.compile("[\ud800-\udfff]")
#: The end of the key of attachments that were made after a rollback.
_ROLLBACK = re.compile(rf"(?<!^){AFTER_ROLLBACK}([1-9][0-9]{{0,9}})\Z")
#: Bytes of the key of an attachment, with that end.
MAX_ATTACHMENT_KEY = MAX_KEY + len(AFTER_ROLLBACK) + 10
_SUFFIX = re.compile(r"(?:@(?P<at>\d{1,18}|head)|~(?P<back>\d{1,18})|:(?P<tag>.+))", re.DOTALL)


class Reference(NamedTuple):
    """A version within a run: by number, by tag, or by distance from the head."""

    number: int | None = None
    back: int = 0
    tag: str | None = None


HEAD = Reference()


def check_run_id(run_id: Any) -> str:
    """Return a valid run id, or raise `InvalidReference`."""
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
    """Return a valid tag, or raise `InvalidReference`."""
    if not isinstance(tag, str):
        raise InvalidReference(f"a tag is a string, not {type(tag).__name__}")
    problem = _problem(tag, MAX_TAG, "@~:")
    if problem is None and (tag.isdigit() or tag == "head"):
        problem = "would read as a version"
    if problem is not None:
        raise InvalidReference(f"{short(tag)} cannot be a tag: it {problem}")
    return tag


def check_version_key(key: Any) -> str:
    """Return a valid key of a version, or raise `InvalidReference`."""
    found = check_attachment_key(key)
    if rollback_of(found) is not None:
        raise InvalidReference(
            f"{short(key)} cannot be a key: keys that end with {AFTER_ROLLBACK!r} and a number belong to attachments "
            "that are made after a rollback"
        )
    return found


def check_attachment_key(key: Any) -> str:
    """Return a valid key of an attachment, or raise `InvalidReference`: that of a version, perhaps with a suffix for a
    rollback."""
    if not isinstance(key, str):
        raise InvalidReference(f"a key is a string, not {type(key).__name__}")
    if CONTROL.search(key) or not _has_key_length(_ROLLBACK.sub("", key)):
        raise InvalidReference(
            f"{short(key)} cannot be a key: a key has 1 to {MAX_KEY} bytes in UTF-8 and no control characters"
        )
    return str.__str__(key)


def rollback_of(key: str) -> int | None:
    """Return the timeline in the key of attachments that were made after a rollback; None if it has none."""
    found = _ROLLBACK.search(key)
    return None if found is None else int(found[1])


def check_attachment_name(name: Any) -> str:
    """Return a valid name of an attachment, or raise `InvalidCall`."""
    if not isinstance(name, str) or "\0" in name or not _has_key_length(name):
        raise InvalidCall(
            f"{short(name)} cannot be the name of an attachment: a name is a text of 1 to {MAX_KEY} bytes in UTF-8 "
            "without NUL"
        )
    return str.__str__(name)


def _has_key_length(text: str) -> bool:
    """Return whether a text has a length that keys and names may have; False if it has a lone surrogate."""
    try:
        # The number of characters first: a long text is not encoded.
        return 0 < len(text) <= MAX_KEY and len(str.encode(text)) <= MAX_KEY
    except UnicodeEncodeError:
        return False


def check_tags(tags: Any) -> list[str]:
    """Return a list of valid tags, or raise `InvalidCall`."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidCall(f"tags is a list of strings: write tags=[{short(tags)}]")
    return [check_tag(tag) for tag in tags]


def parse_local(ref: Any) -> Reference:
    """Return a reference within a run."""
    if isinstance(ref, bool) or not isinstance(ref, int | str):
        raise InvalidReference(f"a version is a number or a string, not {type(ref).__name__}")
    if isinstance(ref, int):
        if not 1 <= ref <= MAX_INTEGER:
            raise InvalidReference(
                f"versions are numbered from 1, not {short(ref)}: write '~2' for two before the head"
            )
        return Reference(number=ref)
    if ref in ("", "head"):
        return HEAD
    if ref.isdecimal() and len(ref) <= 18:
        return parse_local(int(ref))
    match = _SUFFIX.fullmatch(ref)
    return _parse_suffix(match) if match else Reference(tag=check_tag(ref))


def split_reference(text: Any) -> list[tuple[str, Reference]]:
    """Return all readings of a reference as a run id and a version, the likeliest first: an id may contain a `:`."""
    if not isinstance(text, str):
        raise InvalidReference(f"a reference is a string such as 'run-1@12', not {type(text).__name__}")
    how = "write RUN, RUN@12, RUN@head, RUN~2 or RUN:tag"
    if len(text) > MAX_ID + MAX_TAG + 1 or _SURROGATE.search(text):
        raise InvalidReference(f"{short(text)} is not a reference, being too long or not text: {how}")
    readings = [(text, HEAD)]
    refused: InvalidReference | None = None
    for position, sign in enumerate(text):
        if sign in "@~:" and position:
            match = _SUFFIX.fullmatch(text, position)
            if match:
                try:
                    readings.append((text[:position], _parse_suffix(match)))
                except InvalidReference as error:
                    refused = error
    if len(readings) == 1 and any(sign in text for sign in "@~"):
        raise refused or InvalidReference(f"{short(text)} is not a reference: {how}")
    return readings


def _parse_suffix(match: re.Match[str]) -> Reference:
    if match["at"]:
        return HEAD if match["at"] == "head" else parse_local(int(match["at"]))
    if match["back"]:
        return Reference(back=int(match["back"]))
    return Reference(tag=check_tag(match["tag"]))


def _problem(text: str, limit: int, forbidden: str) -> str | None:
    if not text:
        return "is empty"
    if len(text) > limit:
        return f"has {len(text)} characters; the maximum is {limit}"
    if text != text.strip():
        return "starts or ends with a space"
    for sign in text:
        if sign in forbidden:
            return f"contains {sign!r}"
        if unicodedata.category(sign) in ("Cc", "Cs", "Cn", "Zl", "Zp"):
            return f"contains the character {sign!r}"
    return None


def suggest(text: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests a similar known name; empty if there is none."""
    from difflib import get_close_matches

    names = list(known)
    alike = [name for name in names if name.casefold() == text.casefold()]
    near = alike or get_close_matches(text, names, 1)
    return f": did you mean {near[0]!r}?" if near else ""


def printable(text: str) -> str:
    """Return a text in one line with escaped control characters."""
    return CONTROL.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), text)


def short(value: Any) -> str:
    """Return a short `repr` of a value for a message."""
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return "a number of far too many digits"
    try:
        text = repr(value[:60] if isinstance(value, str | bytes) else value)
    except Exception:
        # Nested too deep, or of a class whose `__repr__` fails.
        text = f"{type(value).__name__} object"
    return text if len(text) <= 60 else f"{text[:57]}…"
