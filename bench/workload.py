"""What is stored: chat messages and documents that look like language.

The words are made up, but they follow Zipf's law as real ones do, so that the text is about as compressible
as real text is. Everything is seeded: each run of the benchmark stores the same bytes.
"""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import accumulate
from typing import Any

Message = dict[str, Any]
Document = dict[str, Any]

_ROLES = ("user", "assistant", "assistant", "tool")
_ONSETS = [*"bcdfghjlmnprstvw", "br", "ch", "cl", "dr", "gr", "pl", "pr", "sh", "st", "str", "th", "tr"]
_VOWELS = [*"aeiou", "ai", "ea", "ee", "io", "ou"]
_CODAS = ["", "", "", "", *"nrstlmd", "nd", "ng", "rt", "st", "ck"]
_VOCABULARY = 4_000


def messages(count: int, *, seed: int = 1, size: int = 500) -> list[Message]:
    """Chat messages of about `size` bytes each, as JSON."""
    source = random.Random(seed)
    return [_message(source, source.randint(size * 4 // 5, size * 6 // 5)) for _ in range(count)]


def documents(count: int, *, seed: int = 2, size: int = 1024) -> dict[str, Document]:
    """Documents of about `size` bytes each, as JSON, by name."""
    source = random.Random(seed)
    return {f"doc-{number:06}": document(source, size) for number in range(count)}


def document(source: random.Random, size: int = 1024) -> Document:
    """One document of about `size` bytes, as JSON."""
    found: Document = {
        "title": text(source, 40),
        "text": "",
        "score": round(source.random(), 4),
        "pages": source.randint(1, 90),
        "seen": False,
    }
    found["text"] = text(source, size - json_size(found))
    return found


def text(source: random.Random, length: int) -> str:
    """Sentences of so many characters."""
    words, weights = _words()
    parts: list[str] = []
    written = 0
    while written < length:
        sentence = source.choices(words, cum_weights=weights, k=source.randint(5, 18))
        sentence[source.randrange(len(sentence))] += ","
        line = " ".join(sentence).rstrip(",").capitalize() + ". "
        parts.append(line)
        written += len(line)
    return "".join(parts)[:length]


def json_size(value: Any) -> int:
    """Bytes of a value as compact JSON."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def _message(source: random.Random, size: int) -> Message:
    message = {"role": source.choice(_ROLES), "content": ""}
    message["content"] = text(source, size - json_size(message))
    return message


@cache
def _words() -> tuple[list[str], list[float]]:
    """The vocabulary, frequent words first, and their cumulated weights."""
    source = random.Random(0)
    found: dict[str, None] = {}
    while len(found) < _VOCABULARY:
        # Frequent words are short: the number of syllables grows with the rank.
        syllables = source.choice((1, 1, 2)) if len(found) < 200 else source.choice((1, 2, 2, 3, 4))
        found["".join(_syllable(source) for _ in range(syllables))] = None
    return list(found), list(accumulate(1 / (rank + 2.7) for rank in range(_VOCABULARY)))


def _syllable(source: random.Random) -> str:
    return "".join(source.choice(sounds) for sounds in (_ONSETS, _VOWELS, _CODAS))
