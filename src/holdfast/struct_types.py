"""Resolution of types that bytes and JSON are decoded to, by one thread at a time.

msgspec reads the annotations of a struct when it first decodes one. If two threads do that at the same moment, one of
them finds a half-resolved type and the process crashes (msgspec 0.22, all versions of Python).

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
    """Return a type of Holdfast, resolved, so that any thread can decode to it."""
    if kind not in _resolved:
        resolve(kind)
        _resolved.add(kind)
    return kind


def resolve(kind: Any) -> None:
    """Resolve a type, which may be the application's."""
    with _resolving:
        msgspec.msgpack.Decoder(kind)
