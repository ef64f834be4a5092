"""The hash by which a wide dict finds its keys.

Invariant: it is the same in every process, and for keys that Python takes for one (`1`, `1.0`, `True`).
`docs/format.md` is the contract for it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from numbers import Number
from typing import Any

from holdfast.tree.codec import encode


def hash_key(key: Any) -> int:
    """64 bits of BLAKE2b over a dict key."""
    return int.from_bytes(blake2b(_key_bytes(key), digest_size=8).digest(), "little")


def _key_bytes(key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    if isinstance(key, Number):
        return b"\xffn" + (b"nan" if key != key else str(hash(key)).encode())  # noqa: PLR0124 - is it NaN?
    if isinstance(key, tuple):
        return b"\xfft" + b"".join(hash_key(item).to_bytes(8, "little") for item in key)
    if isinstance(key, frozenset):
        return b"\xffs" + b"".join(sorted(hash_key(item).to_bytes(8, "little") for item in key))
    if isinstance(key, datetime) and key.utcoffset() is not None:
        return b"\xffd" + str(key.astimezone(UTC)).encode()
    return b"\xff" + encode(key)
