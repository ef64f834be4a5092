"""Hash collisions: a document with many keys of one hash is refused in linear time."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import islice, product
from typing import Any

import msgspec
import pytest
from msgspec.msgpack import Ext

import holdfast
from growth import growth
from holdfast.errors import IncompatibleFormat, InvalidSnapshot, UnsupportedValue
from holdfast.tree.block import BUCKET, SEALED, open_block, refuse_ext_keys, squeeze, unsqueeze
from holdfast.tree.codec import (
    MAX_COLLISIONS,
    big_int,
    decode,
    decode_frozen,
    encode,
    leaf_ext,
    odd_dict,
    open_box,
    prepare_key,
    to_bytes,
)
from holdfast.tree.fold import Folder
from holdfast.tree.pack import Writer
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


def opaques(size: int) -> list[Any]:
    return [Opaque("app.Point", {"x": number, "more": [1]}) for number in ints(size)]


MAKERS = [ints, tuples, fractions, mixed, opaques]
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
    for document in documents(make(MAX_COLLISIONS)):
        assert to_json(from_json(document))
    for document in documents(make(MAX_COLLISIONS + 1)):
        with pytest.raises(InvalidSnapshot, match="of one hash"):
            from_json(document)


@makers
def test_stored_dict_with_many_keys_of_one_hash_is_refused(make: Make) -> None:
    for data in stored(make(MAX_COLLISIONS)):
        assert opened(data)
        assert decode(data)
    for data in stored(make(MAX_COLLISIONS + 1)):
        for read in (decode, opened):
            with pytest.raises(IncompatibleFormat, match="of one hash"):
                read(data)


@makers
def test_unreadable_dict_is_not_written(make: Make) -> None:
    keys = make(MAX_COLLISIONS)
    for value in (dict.fromkeys(keys), set(keys), frozenset(keys), {**dict.fromkeys(keys), (1,): 2}):
        assert decode(encode(value)) == value
        assert from_json(to_json(value)) == value
    keys = make(MAX_COLLISIONS + 1)
    for value in (dict.fromkeys(keys), set(keys), frozenset(keys), {**dict.fromkeys(keys), (1,): 2}):
        with pytest.raises(UnsupportedValue, match="of one hash"):
            encode(value)


@pytest.mark.slow
@makers
def test_keys_of_one_hash_take_linear_time(make: Make) -> None:
    """Eight times as many cost about eight times as much; comparing each with all others would cost 64 times."""

    def document(index: int, size: int) -> Any:
        return documents(make(size))[index]

    def data(index: int, size: int) -> Any:
        return stored(make(size))[index]

    for index in range(4):
        assert growth(from_json, partial(document, index), 1000) < 30
    for index in range(3):
        assert growth(decode, partial(data, index), 1000) < 30


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS[:-1], ids=lambda make: make.__name__)
def test_wide_dict_with_many_keys_of_one_hash_is_refused(make: Make) -> None:
    log = holdfast.open(":memory:").history("run")
    wide = {**dict.fromkeys(make(MAX_COLLISIONS)), **dict.fromkeys(map(str, range(50)))}
    assert log.commit({"wide": wide}).state["wide"] == wide
    with pytest.raises(UnsupportedValue, match="of one hash"):
        log.commit({"wide": dict.fromkeys(make(MAX_COLLISIONS + 1))})
    flat = [
        part for number, key in enumerate(make(MAX_COLLISIONS + 1)) for part in (number, prepare_key(key), 0)
    ]
    with pytest.raises(IncompatibleFormat, match="of one hash"):
        unsqueeze(squeeze([Ext(BUCKET, to_bytes(flat))]))


@pytest.mark.parametrize("levels", range(3))
def test_map_with_extensions_for_keys_is_refused_in_linear_time(levels: int) -> None:
    """Such maps are made by hand; Holdfast writes dicts whose keys msgpack does not know as flat lists."""

    def node(size: int) -> msgspec.Raw:
        keys = b"".join(to_bytes(big_int(number)) + b"\x00" for number in ints(size))
        data = b"\xdf" + size.to_bytes(4, "big") + keys
        for level in range(levels):
            data = to_bytes([Ext(SET if level else SEALED, data)])
        return msgspec.Raw(data)

    assert growth(refuse_ext_keys, node, 4000) < 30
    with pytest.raises(IncompatibleFormat):
        refuse_ext_keys(node(3))


def test_node_without_extensions_for_keys_passes() -> None:
    whole = {(1, "a"): {1, 2}, 1 << 80: [Opaque("t", {1 << 90: {3}})], "x": {"\ud800": b"\xc1"}}
    for value in (whole, [whole] * 40, {str(number): whole for number in range(100)}, "text", 1 << 70, None):
        writer = Writer(object(), 1)
        pack = writer.finish([writer.root(Folder(None).fold(value))])
        for raw in open_block(pack.data):
            refuse_ext_keys(raw)


def test_value_of_a_type_whose_tag_has_a_lone_surrogate_is_read() -> None:
    value = [Opaque("app.\ud800", {"x": 1})]
    log = holdfast.open(":memory:").history("run")
    assert log.commit({"v": value}).state["v"] == value
    assert open_box(decode_frozen(encode(value))[0]) == value[0]


def test_keys_of_a_type_that_is_not_registered_are_read() -> None:
    value = {Opaque("app.Point", {"x": x}): x for x in range(MAX_COLLISIONS + 100)}
    assert decode(encode(value)) == value
    assert from_json(to_json(value)) == value
    assert leaf_ext(frozenset(value))


def test_equal_values_of_a_type_that_is_not_registered_have_one_hash() -> None:
    groups: list[list[Any]] = [
        [{"x": 1, "y": [2]}, {"y": [2.0], "x": True}],
        [[1, {2}], [1.0, {2.0}]],
        [(1, [2]), (True, [2])],
        [bytearray(b"a"), b"a"],
        [[{1, 2}], [frozenset((2, 1))]],
    ]
    for first, second in groups:
        assert first == second
        assert len({Opaque("t", first), Opaque("t", second)}) == 1
    assert len({hash(Opaque("t", {"x": number})) for number in range(1000)}) > 990
