"""The numbers of the advisory locks that processes of one store agree on. Each schema has its own."""

from __future__ import annotations

from hashlib import sha256

#: Held by whoever makes or migrates the tables.
MIGRATING = "migrating"
#: Shared by whoever brings or refers to artifacts; held alone by whoever collects them.
ARTIFACTS = "artifacts"
#: Shared by whoever has taken positions in the journal, until they can be seen.
PLACES = "places"


def lock_number(schema: str, name: str) -> int:
    """The number of a lock, for the functions that take one of 64 bits."""
    return int.from_bytes(_hash(schema, name)[:8], "big", signed=True)


def lock_class(schema: str, name: str) -> int:
    """The first number of a family of locks, for the functions that take two of 32 bits."""
    return int.from_bytes(_hash(schema, name)[:4], "big") >> 1


def _hash(schema: str, name: str) -> bytes:
    return sha256(f"holdfast\0{schema}\0{name}".encode()).digest()
