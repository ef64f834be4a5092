"""What belongs to an open store, and so to its process.

Invariant: whatever leads to an open store refuses to be pickled with the same error, which says what to pass instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from holdfast.errors import InvalidCall


class Unpicklable:
    """Base of what cannot be pickled or copied."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise InvalidCall(
            "histories, versions, differences, subscriptions and artifacts cannot be pickled or copied, because they "
            "belong to an open store: pass the ids of runs, the numbers of versions, the digests of artifacts, or "
            "plain values, and call holdfast.open in the other process"
        )


class _Artifacts(Protocol):
    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]: ...


class StoredContent(Unpicklable):
    """Reads the content of an artifact that is in a store."""

    __slots__ = ("_digest", "_store")

    def __init__(self, store: _Artifacts, digest: bytes) -> None:
        self._store = store
        self._digest = digest

    def __call__(self) -> Iterator[bytes]:
        return self._store.artifact_pieces(self._digest)

    def __deepcopy__(self, memo: Any) -> StoredContent:
        """A copy of a handle reads the same content."""
        return self
