"""Mutations that know the structure of an input: of a msgpack document, of JSON, of text; and of any bytes.

A document is taken apart as far as it can be, extensions included, changed in a few places, and put together again.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.msgpack import Ext

_NUMBERS = [
    0,
    1,
    -1,
    2,
    31,
    32,
    33,
    127,
    128,
    255,
    256,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 53,
    (1 << 63) - 1,
    -(1 << 63),
]
_SCALARS: list[Any] = [
    *_NUMBERS,
    None,
    True,
    False,
    0.0,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "\0",
    b"",
    "../x",
]
_DEPTHS = [1, 2, 50, 199, 200, 201, 300, 500]
_CODES = [*range(1, 30), *range(32, 42), 99, -1]

Document = Any


class Part:
    """An extension whose data is a document of its own."""

    def __init__(self, code: int, inner: Document) -> None:
        self.code = code
        self.inner = inner


class Mutator:
    """Mutates inputs of one target; `seeds` give values to put in."""

    def __init__(self, seeds: list[bytes]) -> None:
        self._pool: list[Any] = []
        for seed in seeds:
            for load in (load_msgpack, load_json):
                document = load(seed)
                if document is not None:
                    self._pool += [value for _, _, value in _places([document])]
        self._pool = self._pool or [seed.decode("latin-1") for seed in seeds]

    def mutate(
        self, data: bytes, most: int, rng: random.Random, other: Callable[[bytes, int], bytes]
    ) -> bytes:
        """Return another input of at most so many bytes; `other` mutates bytes of which nothing is known."""
        turn = rng.random()
        if turn < 0.1:
            return _repeat(data, most, rng)
        for load, dump in ((load_msgpack, dump_msgpack), (load_json, dump_json)):
            with suppress(RecursionError):
                document = load(data) if turn < 0.65 else None
                if document is None:
                    continue
                root = [document]
                for _ in range(rng.choice((1, 1, 1, 2, 4))):
                    self._change(root, rng)
                made = dump(root[0])
                if made is not None and len(made) <= most and made != data:
                    return made
        return other(data, most)

    def _change(self, root: list[Document], rng: random.Random) -> None:
        places = list(_places(root))
        holder, key, value = rng.choice(places)
        turn = rng.randrange(9)
        if turn == 0:
            _put(holder, key, rng.choice(_SCALARS))
        elif turn == 1:
            _put(holder, key, copy.deepcopy(rng.choice(self._pool)))
        elif turn == 2:
            _put(holder, key, copy.deepcopy(rng.choice(places)[2]))
        elif turn == 3 and isinstance(value, list) and value:
            at = rng.randrange(len(value))
            value[at : at + rng.randint(1, 3)] = rng.choice(
                (
                    [],
                    copy.deepcopy(value[at : at + 1]) + value[at : at + 1],
                    [copy.deepcopy(rng.choice(self._pool))],
                    value[::-1],
                )
            )
        elif turn == 3 and isinstance(value, dict) and value:
            name = rng.choice(list(value))
            found = value.pop(name)
            if rng.random() < 0.5 and _is_key(found):
                value[found] = name
        elif turn == 4:
            for _ in range(rng.choice(_DEPTHS)):
                value = [value]
            _put(holder, key, value)
        elif turn == 5:
            _put(holder, key, Part(rng.choice(_CODES), value))
        elif turn == 6 and isinstance(value, Part):
            value.code = rng.choice(_CODES)
        else:
            _put(holder, key, _tweak(value, rng))


def _tweak(value: Any, rng: random.Random) -> Any:
    """A value that is nearly the same."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return rng.choice(
            (
                value + 1,
                value - 1,
                -value,
                value * 2,
                value ^ (1 << rng.randrange(63)),
                float(value) if abs(value) < 1e300 else 0.5,
                str(value),
            )
        )
    if isinstance(value, float):
        return rng.choice((value + 1, -value, int(value) if abs(value) < 1e15 else 0, str(value)))
    if isinstance(value, str | bytes) and value:
        at = rng.randrange(len(value))
        texts = ("\0", "é", "'", "[", "{", "$", "\ud800", " ")
        more: Any = rng.choice(texts) if isinstance(value, str) else rng.randbytes(1)
        start: Any = value[:at]
        return rng.choice(
            (start, value[at:], start + value, start + value[at + 1 :], start + more + value[at:])
        )
    return [value] if not isinstance(value, list) else {"a": value}


def _repeat(data: bytes, most: int, rng: random.Random) -> bytes:
    """A piece of it many times over: what costs more than linear time shows."""
    start = rng.randint(0, len(data))
    end = rng.randint(start, min(len(data), start + 64))
    room = (most - len(data)) // max(1, end - start)
    return data[:end] + data[start:end] * rng.randint(0, max(0, room)) + data[end:]


def _places(root: Any) -> Iterator[tuple[Any, Any, Any]]:
    """All values below a container, each with what holds it and where."""
    waiting = [root]
    while waiting:
        holder = waiting.pop()
        items: Any = enumerate(holder) if isinstance(holder, list) else ()
        if isinstance(holder, dict):
            items = holder.items()
        elif isinstance(holder, Part):
            items = [("inner", holder.inner)]
        for key, value in items:
            yield holder, key, value
            if isinstance(value, list | dict | Part):
                waiting.append(value)


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, Part):
        holder.inner = value
    else:
        holder[key] = value


def _is_key(value: Any) -> bool:
    return isinstance(value, str | int | float | bytes | None)


def load_msgpack(data: bytes) -> Document | None:
    """The document of msgpack bytes that hold more than a number; None for others."""
    try:
        found = msgspec.msgpack.decode(data)
    except (ValueError, RecursionError):
        return None
    return _apart(found) if isinstance(found, list | dict | Ext) else None


def _apart(value: Any) -> Document:
    if isinstance(value, Ext):
        data = bytes(value.data)
        try:
            inner = _apart(msgspec.msgpack.decode(data))
        except (ValueError, RecursionError):
            inner = data
        return Part(value.code, data if inner is None or isinstance(inner, int) else inner)
    if isinstance(value, list):
        return [_apart(item) for item in value]
    return {key: _apart(item) for key, item in value.items()} if isinstance(value, dict) else value


def dump_msgpack(document: Document) -> bytes | None:
    """The bytes of a document; None if there are none."""
    try:
        return msgspec.msgpack.encode(_together(document))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _together(value: Document) -> Any:
    if isinstance(value, Part):
        inner = _together(value.inner)
        return Ext(value.code, inner if isinstance(inner, bytes) else msgspec.msgpack.encode(inner))
    if isinstance(value, list):
        return [_together(item) for item in value]
    return {key: _together(item) for key, item in value.items()} if isinstance(value, dict) else value


def load_json(data: bytes) -> Document | None:
    """The document of JSON text; None for others."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None


def dump_json(document: Document) -> bytes | None:
    """The text of a document; None if there is none."""
    try:
        return json.dumps(document, default=lambda part: [getattr(part, "code", 0), str(part)[:20]]).encode()
    except (ValueError, TypeError, RecursionError):
        return None
