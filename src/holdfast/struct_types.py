"""Types that bytes and JSON are decoded to, resolved by one thread at a time.

msgspec reads the annotations of a struct when the struct is first decoded to. If two threads do that at the same
moment, one of them meets a half-resolved type, and the process crashes (msgspec 0.22, all versions of Python). So a
type goes through here before msgspec sees it.

Invariant: no type that Holdfast decodes to is resolved by two threads at once.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.operating_system import fork_safe_lock

T = TypeVar("T")

_resolving = fork_safe_lock()
_resolved: set[Any] = set()


def resolved(kind: type[T]) -> type[T]:
    """Return a type of Holdfast's, ready to be decoded to by any thread."""
    if kind not in _resolved:
        resolve(kind)
        _resolved.add(kind)
    return kind


def resolve(kind: Any) -> None:
    """Make a type, which may be the application's, ready to be decoded to."""
    with _resolving:
        msgspec.msgpack.Decoder(kind)
