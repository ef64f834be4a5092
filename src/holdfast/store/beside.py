"""What stores on databases keep beside their runs: large values and small ones. Each database has classes for them; a
store only hands on what is asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from holdfast.model.records import ArtifactRecord
from holdfast.store.unpicklable import Unpicklable
from holdfast.tree.pack import Upload


class LargeValues(Protocol):
    """Large values in a database."""

    def put(self, upload: Upload, at: int) -> bool: ...
    def find(self, digest: bytes) -> ArtifactRecord | None: ...
    def pieces(self, digest: bytes) -> Iterator[bytes]: ...
    def page(self, after: bytes, limit: int) -> list[ArtifactRecord]: ...
    def collect(self, before: int) -> tuple[int, int]: ...


class SmallValues(Protocol):
    """Small values in a database, and leases."""

    def get(self, name: str) -> tuple[bytes, int] | None: ...
    def set(self, name: str, data: bytes, expect: int) -> int: ...
    def drop(self, name: str, expect: int) -> None: ...
    def names(self, prefix: str, after: str, limit: int) -> list[str]: ...
    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]: ...


class Beside(Unpicklable):
    """The half of a store that hands on. The contracts are on the protocol, `store.base`."""

    _large: LargeValues
    _small: SmallValues

    def put_artifact(self, upload: Upload, at: int) -> bool:
        return self._large.put(upload, at)

    def artifact(self, digest: bytes) -> ArtifactRecord | None:
        return self._large.find(digest)

    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]:
        return self._large.pieces(digest)

    def artifacts(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        return self._large.page(after, limit)

    def collect(self, *, before: int) -> tuple[int, int]:
        return self._large.collect(before)

    def value(self, name: str) -> tuple[bytes, int] | None:
        return self._small.get(name)

    def set_value(self, name: str, data: bytes, expect: int) -> int:
        return self._small.set(name, data, expect)

    def drop_value(self, name: str, expect: int) -> None:
        self._small.drop(name, expect)

    def value_names(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return self._small.names(prefix, after, limit)

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        return self._small.renew(runs, owner, until)
