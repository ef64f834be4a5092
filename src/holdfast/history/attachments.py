"""Attachments: values under the key of a version, stored without a version of their own.

A framework stores what happens between two versions, such as results of tasks that the next version will contain, as
one row instead of a version. An attachment may arrive before the version of its key, or after later versions. Its value
is encoded like a node of a version, redacted in the same way, and hashed together with its place.

Invariant: a value that is read is the one that was attached under this run, key and name, or the read raises
`CorruptStore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import IncompatibleFormat, InvalidCall, NotFound, UnsupportedValue
from holdfast.history.hashes import check_attachment, seal_attachment
from holdfast.model.names import AFTER_ROLLBACK, check_attachment_key, check_attachment_name, short
from holdfast.model.records import AttachmentRecord, RunRecord, VersionRecord
from holdfast.tree import path as paths
from holdfast.tree.block import MAX_BLOCK, node_of, open_block, refuse_ext_keys, squeeze
from holdfast.tree.codec import ARTIFACT, REDACTED, decode, decode_frozen, encode
from holdfast.tree.fold import Redactor, artifacts_within
from holdfast.tree.load import artifacts

if TYPE_CHECKING:
    from holdfast.history.committer import Committer
    from holdfast.history.context import StoreContext

#: Bytes of an encoded value: with its place it fits into one frame of a bundle.
MAX_ATTACHMENT = MAX_BLOCK - 4_096


def key_after_rollback(key: str, timeline: int) -> str:
    """Return the key for values that belong to a version since a rollback to it started a timeline. Under the version's
    own key are those from before."""
    return f"{key}{AFTER_ROLLBACK}{timeline}"


def attach(
    context: StoreContext, committer: Committer, key: str, values: Mapping[str, Any], *, replace: bool
) -> list[str]:
    """Store values under a key; return the names that were stored."""
    if not isinstance(values, Mapping):
        raise InvalidCall(f"attach takes a dict of names and values, not {short(values)}")
    key = check_attachment_key(key)
    redact = context.redact
    now = context.clock()
    # By name: keys of a mapping that are subclasses of str may differ and have the same text.
    encoded = {check_attachment_name(name): _encode(name, value, redact) for name, value in values.items()}
    records = [
        seal_attachment(committer.id, AttachmentRecord(key=key, name=name, at=now, data=data, hash=b""))
        for name, data in encoded.items()
    ]
    if not records:
        return []
    head = committer.known_head()
    while True:
        if head is None:
            raise NotFound(f"there is no run {committer.id!r}: commit to it first", run=committer.id)
        try:
            stored = context.store.attach(head.run.key, records, replace=replace)
        except NotFound:
            # The run was deleted, and perhaps created again.
            known, head = head, committer.fresh_head()
            if head is not None and head.run.key == known.run.key:
                raise
            continue
        return [each.name for each, is_stored in zip(records, stored, strict=True) if is_stored]


def read_attachments(context: StoreContext, run: RunRecord, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the attachments of some keys: for each key, values by name. `NotFound` if the run was deleted."""
    wanted = [check_attachment_key(key) for key in keys]
    found: dict[str, dict[str, Any]] = {key: {} for key in wanted}
    records = context.store.attachments_of(run.key, wanted) if wanted else []
    if not records and context.store.run_by_key(run.key) is None:
        raise NotFound(f"run {run.id!r} was deleted", run=run.id)
    for record in records:
        found[record.key][record.name] = open_attachment(run.id, record)
    return found


def attachment_names(context: StoreContext, run: RunRecord, key: str) -> list[str]:
    """Return the names of the attachments of a key, also of those that cannot be read."""
    return context.store.attachment_names(run.key, check_attachment_key(key))


def attached_to(context: StoreContext, run: RunRecord, version: VersionRecord) -> dict[str, Any]:
    """Return the attachments of a version by name; `NotFound` if it was pruned, and its attachments with it."""
    key = version.key
    found = {} if key is None else read_attachments(context, run, [key])[key]
    if not found and key is not None and context.store.version_by_key(run.key, key) is None:
        raise NotFound(
            f"version {version.number} of run {run.id!r} was pruned", run=run.id, version=version.number
        )
    return found


def open_attachment(run_id: str, record: AttachmentRecord) -> Any:
    """Return the value of an attachment, as a private copy; `CorruptStore` if it is not as it was written,
    `IncompatibleFormat` if this program cannot read it."""
    node = _node(run_id, record)
    try:
        return decode(node)
    except IncompatibleFormat as error:
        raise IncompatibleFormat(f"{_show(run_id, record)} cannot be read: {error}", run=run_id) from error


def check_decodes(run_id: str, record: AttachmentRecord) -> None:
    """Raise an error if the value of an attachment is not as it was written, or cannot be decoded. Types and time zones
    that this program lacks are not an error."""
    node = _node(run_id, record)
    refuse_ext_keys(node)
    decode_frozen(node)
    if any(artifacts(node_of(node))):
        raise IncompatibleFormat(f"{_show(run_id, record)} refers to an artifact", run=run_id)


def _node(run_id: str, record: AttachmentRecord) -> msgspec.Raw:
    nodes = open_block(check_attachment(run_id, record).data)
    if len(nodes) != 1:
        raise IncompatibleFormat(f"{_show(run_id, record)} is not one value", run=run_id)
    return nodes[0]


def _show(run_id: str, record: AttachmentRecord) -> str:
    return f"attachment {record.name!r} of key {record.key!r} of run {run_id!r}"


def _encode(name: str, value: Any, redact: Redactor | None) -> bytes:
    if redact is not None and redact.hides(name):
        value = REDACTED
    try:
        data = encode(value, None if redact is None else redact.hides)
        if len(data) > MAX_ATTACHMENT:
            raise UnsupportedValue(
                f"{len(data):,} bytes are too many; the maximum is {MAX_ATTACHMENT:,}: store the content elsewhere and "
                "attach its address"
            )
        if ARTIFACT in data and next(artifacts_within(value), None) is not None:
            raise UnsupportedValue(
                "an artifact cannot be attached: store it in the state", type="holdfast.Artifact"
            )
    except UnsupportedValue as error:
        raise paths.name_place(error, f"attachment {short(name)}") from None
    return squeeze([msgspec.Raw(data)])
