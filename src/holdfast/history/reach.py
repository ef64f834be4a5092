"""Which stored nodes are needed by a set of versions.

Pruning keeps them, verifying reads them, a fork that loses its origin takes them along. Nodes that several
versions share are visited once.
"""

from __future__ import annotations

from itertools import islice

from holdfast.history.reader import Reader
from holdfast.tree.load import Place, artifacts, refs

_BATCH = 500


class Reach:
    """The nodes that the versions added so far can reach."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.places: set[Place] = set()
        #: The artifacts that the reached nodes of each version refer to.
        self.holds: dict[int, set[bytes]] = {}

    @property
    def artifacts(self) -> set[bytes]:
        """All artifacts reached."""
        return set().union(*self.holds.values())

    def add(self, number: int) -> None:
        """Reach all that a version is made of."""
        roots = self.reader.roots(number)
        self._note(number, roots)
        wanted = set(refs(roots, number)) - self.places
        while wanted:
            batch = list(islice(wanted, _BATCH))
            wanted.difference_update(batch)
            self.places.update(batch)
            for place, node in self.reader.fetch(batch).items():
                self._note(place[0], node)
                wanted.update(ref for ref in refs(node, place[0]) if ref not in self.places)

    def by_version(self) -> dict[int, set[int]]:
        """The reached slots of each version."""
        found: dict[int, set[int]] = {}
        for number, slot in self.places:
            found.setdefault(number, set()).add(slot)
        return found

    def _note(self, number: int, node: object) -> None:
        for digest in artifacts(node):
            self.holds.setdefault(number, set()).add(digest)
