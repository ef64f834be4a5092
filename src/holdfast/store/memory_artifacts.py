"""Large values in memory: what is known of each, its content, who holds it.

Its owner sees to it that one thread at a time is in here.

Invariant: `holders` names exactly the artifacts that a version holds, with those versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from operator import attrgetter

from holdfast.errors import NotFound
from holdfast.model.records import ArtifactRecord
from holdfast.store.artifacts import checked, verified
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload

Contents = dict[bytes, bytes]
#: A version: the key of its run, and its number.
Holder = tuple[int, int]


def read(uploads: Iterable[Upload]) -> Contents:
    """Contents of uploads; `CorruptStore` if one is not what it claims to be."""
    return {upload.digest: b"".join(checked(upload)) for upload in uploads}


class Artifacts:
    """The artifacts of one store in memory."""

    def __init__(self) -> None:
        self.records: dict[bytes, ArtifactRecord] = {}
        self.holders: dict[bytes, set[Holder]] = {}
        self._contents: Contents = {}

    def require(self, holds: Iterable[bytes], brought: Contents) -> None:
        """Refuse what would leave a version without an artifact."""
        for digest in holds:
            if digest not in brought and digest not in self.records:
                name = digest.hex()
                raise NotFound(
                    f"artifact {name[:12]} is not in this store: commit holdfast.artifact(…) of its content",
                    artifact=name,
                )

    def keep(self, brought: Contents, at: int) -> bool:
        """Keep what was brought; tells whether any was new."""
        new = not brought.keys() <= self.records.keys()
        for digest, content in brought.items():
            self._contents.setdefault(digest, content)
            known = self.records.get(digest)
            newest = at if known is None else max(at, known.at)
            self.records[digest] = ArtifactRecord(digest=digest, size=len(content), at=newest)
        return new

    def hold(self, holds: Iterable[bytes], holder: Holder) -> None:
        """Note that a version refers to artifacts."""
        for digest in holds:
            self.holders.setdefault(digest, set()).add(holder)

    def let_go(self, holds: Iterable[bytes], holder: Holder) -> None:
        """Note that a version no longer refers to the artifacts that it held."""
        for digest in set(holds):
            self.holders[digest].discard(holder)
            if not self.holders[digest]:
                del self.holders[digest]

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """The content of one."""
        content = self._contents.get(digest)
        if content is None:
            raise NotFound(f"artifact {digest.hex()[:12]} is not in this store", artifact=digest.hex())
        return verified(digest, (content[at : at + PIECE] for at in range(0, len(content), PIECE)))

    def page(self, after: bytes, limit: int) -> list[ArtifactRecord]:
        """Those whose digests follow one, in order."""
        later = (record for record in self.records.values() if record.digest > after)
        return nsmallest(limit, later, key=attrgetter("digest"))

    def collect(self, before: int) -> tuple[int, int]:
        """Remove those that nobody holds and that came before a time; gives number and bytes."""
        free = [self.records[digest] for digest in self.records.keys() - self.holders.keys()]
        gone = [record for record in free if record.at < before]
        for record in gone:
            del self.records[record.digest], self._contents[record.digest]
        return len(gone), sum(record.size for record in gone)
