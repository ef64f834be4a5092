"""Hashes that protect versions and attachments.

The hash of a version covers all its fields, the hash of its pack, and the first half of its parent's hash: a chain. A
pruned version keeps its hash for the chain; instead of the link, it stores a guard over its remaining content. The hash
of an attachment covers its place and its value; attachments are not part of the chain.

Invariant: a record that passes `check_hash` is, bit for bit, one that Holdfast wrote for this run and number.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import CorruptStore, CorruptVersion
from holdfast.model.records import AttachmentRecord, VersionRecord, stored_status
from holdfast.tree.block import digest

NO_PARENT = b"\0" * 8

_encode = msgspec.msgpack.Encoder().encode


def seal(run_id: str, version: VersionRecord) -> VersionRecord:
    """Return the version with its hash."""
    return msgspec.structs.replace(version, hash=_hash(run_id, version))


def seal_stub(run_id: str, version: VersionRecord) -> VersionRecord:
    """Return a pruned version with its guard."""
    return msgspec.structs.replace(version, prev=_guard(run_id, version))


def check_hash(run_id: str, version: VersionRecord) -> VersionRecord:
    """Return the version; `CorruptVersion` if it, or its pack if present, is not as it was written."""
    found = version.prev if version.pruned else version.hash
    # A pruned version has no key, and its guard does not cover one.
    is_intact = found == (_guard if version.pruned else _hash)(run_id, version) and not (
        version.pruned and version.key is not None
    )
    if is_intact and (version.pack is None or digest(version.pack) == version.pack_hash):
        return version
    raise CorruptVersion(
        f"{'the pack of ' if is_intact else ''}version {version.number} of run {run_id!r} fails its hash and is not "
        "served: other versions stay readable; run verify, and restore this one from a bundle",
        run=run_id,
        version=version.number,
    )


def seal_attachment(run_id: str, attachment: AttachmentRecord) -> AttachmentRecord:
    """Return the attachment with its hash."""
    return msgspec.structs.replace(attachment, hash=_attachment_hash(run_id, attachment))


def check_attachment(run_id: str, attachment: AttachmentRecord) -> AttachmentRecord:
    """Return the attachment; `CorruptStore` if it is not as it was written."""
    if attachment.hash == _attachment_hash(run_id, attachment):
        return attachment
    raise CorruptStore(
        f"attachment {attachment.name!r} of key {attachment.key!r} of run {run_id!r} fails its hash and is not served: "
        "versions, and attachments of other keys, stay readable; run verify, and restore the run from a bundle",
        run=run_id,
        key=attachment.key,
    )


def _attachment_hash(run_id: str, attachment: AttachmentRecord) -> bytes:
    return digest(_encode((run_id, attachment.key, attachment.name, attachment.at, attachment.data)))


def _hash(run_id: str, version: VersionRecord) -> bytes:
    fields = (
        run_id,
        version.number,
        version.parent,
        version.timeline,
        version.kind,
        stored_status(version.status),
        version.at,
        version.steps,
        version.step,
        version.detail,
        version.size,
        version.prev,
        version.pack_hash,
    )
    # Versions without a key have the hash of earlier formats.
    return digest(_encode(fields if version.key is None else (*fields, version.key)))


def _guard(run_id: str, version: VersionRecord) -> bytes:
    return digest(_encode((run_id, version.number, version.hash, version.pack_hash)))[:8]
