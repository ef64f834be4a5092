"""The hashes that guard versions.

A version's hash covers everything that is said about it, the hash of its pack, and the first half of its
parent's hash: a chain. A pruned version keeps its place in the chain; its link is replaced by a guard over
what is left of it.

Invariant: a record that passes `check` is, bit for bit, one that Holdfast wrote for this run and number.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import CorruptVersion
from holdfast.model.records import VersionRecord
from holdfast.tree.block import digest

NO_PARENT = b"\0" * 8

_encode = msgspec.msgpack.Encoder().encode


def seal(run_id: str, version: VersionRecord) -> VersionRecord:
    """The version with its hash."""
    return msgspec.structs.replace(version, hash=_hash(run_id, version))


def seal_stub(run_id: str, version: VersionRecord) -> VersionRecord:
    """A pruned version with its guard."""
    return msgspec.structs.replace(version, prev=_guard(run_id, version))


def check(run_id: str, version: VersionRecord) -> VersionRecord:
    """The version, if it is as it was written; its pack too, if it is there."""
    found = (
        (version.prev, _guard(run_id, version)) if version.pruned else (version.hash, _hash(run_id, version))
    )
    if found[0] != found[1]:
        raise CorruptVersion(
            f"version {version.number} of run {run_id!r} fails its hash and is not served: "
            "other versions stay readable; run verify, and restore this one from a bundle",
            run=run_id,
            version=version.number,
        )
    if version.pack is not None and digest(version.pack) != version.pack_hash:
        raise CorruptVersion(
            f"the pack of version {version.number} of run {run_id!r} fails its hash and is not served: "
            "run verify, and restore the version from a bundle",
            run=run_id,
            version=version.number,
        )
    return version


def _hash(run_id: str, version: VersionRecord) -> bytes:
    return digest(
        _encode(
            (
                run_id,
                version.number,
                version.parent,
                version.timeline,
                version.kind,
                version.status,
                version.at,
                version.steps,
                version.step,
                version.detail,
                version.size,
                version.prev,
                version.pack_hash,
            )
        )
    )


def _guard(run_id: str, version: VersionRecord) -> bytes:
    return digest(_encode((run_id, version.number, version.hash, version.pack_hash)))[:8]
