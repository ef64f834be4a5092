"""What the store in memory keeps beside its runs: large values and small ones.

Invariant: all is read and changed under the lock of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from holdfast.errors import StaleVersion
from holdfast.model import records
from holdfast.store.memory_artifacts import Artifacts, read
from holdfast.store.unpicklable import Unpicklable
from holdfast.tree.pack import Upload


class Beside(Unpicklable):
    """The half of the store that knows no runs. The contracts are on the protocol, `store.base`."""

    def __init__(self) -> None:
        self._lock: AbstractContextManager[object] = threading.Lock()
        self._artifacts = Artifacts()
        self._values: dict[str, tuple[bytes, int]] = {}

    def put_artifact(self, upload: Upload, at: int) -> bool:
        brought = read((upload,))
        with self._lock:
            return self._artifacts.keep(brought, at)

    def artifact(self, digest: bytes) -> records.ArtifactRecord | None:
        with self._lock:
            return self._artifacts.records.get(digest)

    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]:
        with self._lock:
            return self._artifacts.pieces(digest)

    def artifacts(self, *, after: bytes = b"", limit: int = 1000) -> list[records.ArtifactRecord]:
        with self._lock:
            return self._artifacts.page(after, limit)

    def collect(self, *, before: int) -> tuple[int, int]:
        with self._lock:
            return self._artifacts.collect(before)

    def value(self, name: str) -> tuple[bytes, int] | None:
        with self._lock:
            return self._values.get(name)

    def set_value(self, name: str, data: bytes, expect: int) -> int:
        with self._lock:
            if self._values.get(name, (b"", 0))[1] != expect:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")
            self._values[name] = (data, expect + 1)
            return expect + 1

    def drop_value(self, name: str, expect: int) -> None:
        with self._lock:
            if name not in self._values or self._values[name][1] != expect:
                raise StaleVersion(f"the value {name!r} was changed by another: read it, then try again")
            del self._values[name]

    def value_names(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        with self._lock:
            return sorted(name for name in self._values if name.startswith(prefix) and name > after)[:limit]
