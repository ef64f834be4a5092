"""The statements for items in which SQLite differs."""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.store.items import ITEM, ItemDialect


def _encode_names(names: Sequence[tuple[bytes, bytes]]) -> Sequence[Any]:
    return (msgspec.json.encode([[namespace.hex(), key.hex()] for namespace, key in names]).decode(),)


def _check_vector(stored: Any) -> bytes:
    if not isinstance(stored, bytes):
        raise TypeError(f"a vector is stored as {type(stored).__name__}")
    return stored


ITEM_DIALECT = ItemDialect(
    find_many=(
        f"SELECT {ITEM} FROM json_each($1) given CROSS JOIN item "
        "ON namespace = unhex(given.value ->> 0) AND item.key = unhex(given.value ->> 1)"
    ),
    encode_names=_encode_names,
    encode_vector=bytes,
    decode_vector=_check_vector,
    # An empty index takes a page of each store, too.
    prepare=(
        "CREATE INDEX IF NOT EXISTS item_recent ON item (namespace, updated)",
        "CREATE INDEX IF NOT EXISTS item_expires ON item (expires) WHERE expires IS NOT NULL",
    ),
)
