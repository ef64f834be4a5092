"""Keys of one hash: a document that is full of them is refused before it costs much."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import islice, product
from typing import Any

import pytest
from msgspec.msgpack import Ext

from growth import growth
from holdfast.errors import IncompatibleFormat, InvalidSnapshot, UnsupportedValue
from holdfast.tree.codec import (
    MAX_ALIKE,
    decode,
    decode_frozen,
    encode,
    leaf_ext,
    odd_dict,
    open_box,
    prepare_key,
    to_bytes,
)
from holdfast.tree.portable import from_json, to_json
from holdfast.tree.values import Opaque

#: Numbers that differ by a multiple of this have one hash.
MODULUS = (1 << 61) - 1
SET, FROZENSET = 4, 5


def ints(size: int) -> list[Any]:
    return [index * MODULUS + (1 << 70) for index in range(size)]


def tuples(size: int) -> list[Any]:
    """The hash of -1 is that of -2."""
    return list(islice(product((-1, -2), repeat=17), size))


def fractions(size: int) -> list[Any]:
    return [Fraction(number, 1) for number in ints(size)]


def mixed(size: int) -> list[Any]:
    return [*map(str, range(size)), *ints(size)]


MAKERS = [ints, tuples, fractions, mixed]
makers = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
Make = Callable[[int], list[Any]]


def documents(keys: list[Any]) -> list[Any]:
    """Documents that hold keys in each kind of container."""
    pairs = {"$holdfast": "dict", "value": [[to_json(key), 0] for key in keys]}
    items = list(map(to_json, keys))
    return [
        pairs,
        {"$holdfast": "ordereddict", "value": pairs},
        {"$holdfast": "set", "value": items},
        {"$holdfast": "tuple", "value": [{"$holdfast": "frozenset", "value": items}]},
    ]


def stored(keys: list[Any]) -> list[bytes]:
    """The same as bytes, as `encode` would write them."""
    prepared = [prepare_key(key) for key in keys]
    return [
        to_bytes([odd_dict([part for key in prepared for part in (key, 0)])]),
        *(to_bytes([Ext(code, to_bytes(prepared))]) for code in (SET, FROZENSET)),
    ]


def opened(data: bytes) -> Any:
    """What a version holds, with its boxes opened."""
    (found,) = decode_frozen(data)
    return open_box(found) if not isinstance(found, dict | frozenset) else found


@makers
def test_document_with_many_keys_of_one_hash_is_refused(make: Make) -> None:
    for document in documents(make(MAX_ALIKE)):
        assert to_json(from_json(document))
    for document in documents(make(MAX_ALIKE + 1)):
        with pytest.raises(InvalidSnapshot, match="of one hash"):
            from_json(document)


@makers
def test_stored_dict_with_many_keys_of_one_hash_is_refused(make: Make) -> None:
    for data in stored(make(MAX_ALIKE)):
        assert opened(data)
        assert decode(data)
    for data in stored(make(MAX_ALIKE + 1)):
        for read in (decode, opened):
            with pytest.raises(IncompatibleFormat, match="of one hash"):
                read(data)


@makers
def test_only_what_can_be_read_is_written(make: Make) -> None:
    keys = make(MAX_ALIKE)
    for value in (dict.fromkeys(keys), set(keys), frozenset(keys), {**dict.fromkeys(keys), (1,): 2}):
        assert decode(encode(value)) == value
        assert from_json(to_json(value)) == value
    keys = make(MAX_ALIKE + 1)
    for value in (dict.fromkeys(keys), set(keys), frozenset(keys), {**dict.fromkeys(keys), (1,): 2}):
        with pytest.raises(UnsupportedValue, match="of one hash"):
            encode(value)


@makers
def test_cost_of_keys_of_one_hash_is_linear(make: Make) -> None:
    """Eight times as many cost about eight times as much; comparing each with all others would cost 64 times."""

    def document(index: int, size: int) -> Any:
        return documents(make(size))[index]

    def data(index: int, size: int) -> Any:
        return stored(make(size))[index]

    for index in range(4):
        assert growth(from_json, partial(document, index), 4000) < 30
    for index in range(3):
        assert growth(decode, partial(data, index), 4000) < 30


def test_keys_of_a_type_that_is_not_registered_are_read() -> None:
    """They all have the hash of its tag; in the program that wrote them they had others."""
    value = {Opaque("app.Point", {"x": x}): x for x in range(MAX_ALIKE + 100)}
    assert decode(encode(value)) == value
    assert from_json(to_json(value)) == value
    assert leaf_ext(frozenset(value))
