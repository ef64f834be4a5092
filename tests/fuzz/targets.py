"""Fuzz targets: a function for each door through which bytes of unknown origin come in.

A target takes any bytes. It returns if Holdfast did what it promises for them: a value, or a `HoldfastError`, in
CPU time that is linear in their size. Otherwise it raises.

The bytes of `pack`, `bundle` and `http` are a msgpack document from which the target builds the real input, with hashes
that fit: a mutation of the document reaches what lies behind the hashes.
"""

from __future__ import annotations

import cmath
import io
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import requests_in_process as requests

import holdfast
from holdfast import Holdfast, HoldfastError
from holdfast.history.bundle import frames
from holdfast.history.bundle.transfer import import_run
from holdfast.history.hashes import NO_PARENT, seal, seal_stub
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.snapshots import SnapshotManager, validate_snapshot
from holdfast.store.protocol import RunImport
from holdfast.tree import path as paths
from holdfast.tree.block import digest, squeeze
from holdfast.tree.codec import decode, decode_frozen, encode, too_deep
from holdfast.tree.portable import from_json, to_json

#: CPU seconds that an input may cost: so many, and so many more for each byte of it.
_SECONDS, _PER_BYTE = 1.0, 50e-6
_TRIES = 3

Target = Callable[[bytes], None]


def codec(data: bytes) -> None:
    """Decode a value; what was decoded can be written again, and is the same then."""
    again = None
    with suppress(HoldfastError):
        value = decode(data)
        again = _encoded(value)
    if again is None:
        with suppress(HoldfastError):
            decode_frozen(data)
        return
    assert encode(decode(again)) == again
    frozen = _encoded(decode_frozen(data))
    assert frozen is None or encode(decode(frozen)) == again
    assert encode(from_json(json.loads(json.dumps(to_json(value))))) == again


#: Refusals of values that only bytes of a stranger decode to: nested too deep, or with a tuple for a key of a msgpack
#: map. Holdfast writes such dicts in another form, whose keys are checked; to check all maps would cost every reader.
_REFUSALS = (str(too_deep()), "could change", "Box cannot be stored")


def _encoded(value: Any) -> bytes | None:
    """The bytes of a decoded value; None if it is refused as what Holdfast cannot have written."""
    try:
        return encode(value)
    except holdfast.UnsupportedValue as error:
        if any(refusal in str(error) for refusal in _REFUSALS):
            return None
        raise AssertionError("what was decoded cannot be encoded") from error


def path(data: bytes) -> None:
    """Parse a path and a pattern; what was parsed is shown in a form that parses to the same."""
    text = data.decode("utf-8", "surrogatepass") if _is_text(data) else data.decode("latin-1")
    with suppress(HoldfastError):
        paths.parse_pattern(text)
    try:
        segments = paths.parse(text)
    except HoldfastError:
        return
    if all(map(_is_finite, segments)):
        again = paths.parse(paths.show(segments))
        assert again == segments
        assert list(map(type, again)) == list(map(type, segments))
    with suppress(HoldfastError):
        paths.get({"plan": {"tasks": [1, 2]}, (1, 2): "a", b"k": None}, text)


def snapshot(data: bytes) -> None:
    """Import a snapshot document, as text, after which its export is an equal one; then with a sum that fits."""
    _import_snapshot(data)
    with suppress(ValueError, RecursionError):
        document = json.loads(data)
        with suppress(HoldfastError):
            value = from_json(document)
            assert encode(from_json(json.loads(json.dumps(to_json(value))))) == encode(value)
        if isinstance(document, dict):
            _import_snapshot(json.dumps({**document, "sum": holdfast.history.snapshot._sum(document)}))


def _import_snapshot(text: str | bytes) -> None:
    manager = _manager()
    is_valid = bool(validate_snapshot(text))
    try:
        found = manager.import_snapshot(text)
    except HoldfastError:
        assert not is_valid
    else:
        assert is_valid
        assert manager.import_snapshot(manager.export_snapshot(found)) == found
        with suppress(HoldfastError):
            manager.restore_from_snapshot(found.run_id, {}, found)
    with holdfast.open(":memory:") as hf:
        try:
            made = hf.import_snapshot(text)
        except HoldfastError:
            assert not hf.runs()
        else:
            assert hf.history(made.run).export(made)
            _assert_sound(hf)


def pack(data: bytes) -> None:
    """Read a run whose packs a stranger has written who can compute hashes: every reading is typed."""
    document = _document(data)
    if not isinstance(document, list):
        return
    versions: list[tuple[VersionRecord, list[bytes], list[bytes]]] = []
    link = NO_PARENT
    for number, nodes in enumerate(document[:20], 1):
        made = nodes if isinstance(nodes, bytes) else squeeze(nodes if isinstance(nodes, list) else [nodes])
        version = seal(
            "r",
            VersionRecord(
                number=number, parent=number - 1, timeline=1, kind="manual", status="running", at=0, steps=number,
                prev=link, pack_hash=digest(made), hash=b"", size=len(made), pack=made,
            ),
        )  # fmt: skip
        versions.append((version, [], []))
        link = version.hash[:8]
    if not versions:
        return
    run = RunRecord(id="r", created=0, updated=0, head=len(versions), last=len(versions), kept=len(versions))
    with holdfast.open(":memory:") as hf:
        hf._store.import_run(RunImport(run, iter(versions), [], [], [], iter(())))
        _read_all(hf, "r", HoldfastError)
        hf.verify()
        assert hf.history("other").commit({"still": "usable"}).number == 1


def bundle(data: bytes) -> None:
    """Import a bundle: all of it, after which nothing is wrong with the store, or nothing."""
    made = build_bundle(data)
    with holdfast.open(":memory:") as hf:
        _import(hf, made)
    with (
        tempfile.TemporaryDirectory() as folder,
        holdfast.open(Path(folder, "s.db"), durability="fast") as hf,
    ):
        _import(hf, made)


def _import(hf: Holdfast, made: bytes) -> None:
    hf.history("mine").commit({"mine": 1})
    before = _facts(hf)
    try:
        log = hf.import_run(io.BytesIO(made))
    except HoldfastError:
        assert _facts(hf) == before
    else:
        _assert_sound(hf)
        for version in log.versions(limit=1000):
            # The whole tree, without the objects of its leaves: an object of an odd type is refused when it is read.
            version.reader.state(version.number)
        _read_all(hf, log.id, holdfast.IncompatibleFormat)
        copy = io.BytesIO()
        hf.export_run(log.id, copy)
        copy.seek(0)
        with holdfast.open(":memory:") as other:
            import_run(other._store, copy, run_id="copy", now=0)
            _assert_sound(other)
    assert hf.history("mine").commit({"mine": 2}).number == 2


def build_bundle(data: bytes) -> bytes:
    """Make a bundle of a document: a list of frames, in which a pack is a list of nodes or its bytes. Bytes that are
    not a document of that kind are the bundle itself."""
    document = _document(data)
    if not isinstance(document, list) or not all(isinstance(frame, list) and frame for frame in document):
        return data
    run_id = document[0][1] if document and len(document[0]) > 1 else None
    links: dict[Any, bytes] = {0: NO_PARENT}
    parts: list[Any] = [
        _sealed(run_id, links, frame) if frame[0] == "version" else frame for frame in document
    ]
    file = io.BytesIO()
    sink = frames.BundleWriter(file)
    for part in parts:
        with suppress(HoldfastError):
            sink.write(part)
    sink.close()
    return file.getvalue()


def _sealed(run_id: Any, links: dict[Any, bytes], frame: list[Any]) -> list[Any]:
    """A version frame with the hashes and the size that fit its pack and its parent."""
    names = ("tag", *frames.VersionFrame.__struct_fields__)
    fields: dict[str, Any] = dict(zip(names, frame, strict=False))
    if len(frame) != len(names) or not isinstance(fields["pack"], list):
        return frame
    made = squeeze(fields["pack"])
    fields |= {"pack": made, "pack_hash": digest(made), "size": len(made)}
    with suppress(Exception):  # a field of a type that no version has: it stays as it is
        record = VersionRecord(
            **{name: fields[name] for name in names if name in VersionRecord.__struct_fields__}
        )
        record = msgspec.structs.replace(record, prev=links.get(record.parent, NO_PARENT))
        record = seal_stub(run_id, record) if record.pruned else seal(run_id, record)
        fields["prev"], fields["hash"] = record.prev, record.hash
        links[record.number] = record.hash[:8]
    return list(fields.values())


def http(data: bytes) -> None:
    """Send a request to the application: 2xx or 4xx, with JSON; 401 or 403 where the role is too low."""
    document = _document(data)
    if isinstance(document, list) and len(document) == len(requests.PARTS):
        requests.check(dict(zip(requests.PARTS, document, strict=True)))


TARGETS: dict[str, Target] = {
    target.__name__: target for target in (codec, path, pack, snapshot, bundle, http)
}


def check(target: Target, data: bytes) -> None:
    """Run a target, and assert that its time is linear."""
    most = _SECONDS + _PER_BYTE * len(data)
    for left in reversed(range(_TRIES)):
        began = time.process_time()
        target(data)
        used = time.process_time() - began
        if used <= most:
            return
        assert left, f"{len(data)} bytes cost {used:.1f} s of CPU, not at most {most:.1f}"


def _read_all(hf: Holdfast, run_id: str, *allowed: type[Exception]) -> None:
    """Read all that there is of a run, in each of the ways in which it can be read."""
    log = hf.history(run_id)
    values: list[Any] = []
    for number in range(1, 21):
        try:
            version = log.at(number)
        except HoldfastError:
            continue
        read: list[Any] = []
        for name in ("state", "result", "annotations", "error"):
            with suppress(*allowed):
                read.append(getattr(version, name))
        values += read
        if None not in [_encoded(value) for value in read]:
            with suppress(*allowed):
                log.export(number)
    with suppress(*allowed):
        log.versions(limit=1000)
        log.timelines()
        log.events()
    if None not in map(_encoded, values):
        with suppress(holdfast.NotFound, *allowed):
            hf.diff(f"{run_id}@1", run_id)
    for segments in [[], *([key] for key in _keys(values))][:20]:
        with suppress(holdfast.NotFound, *allowed):
            log.blame(segments)


def _keys(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            found += list(value)[:3]
        elif isinstance(value, list) and value:
            found += (0, len(value) - 1)
    return found


def _facts(hf: Holdfast) -> Any:
    return msgspec.structs.replace(hf.stats(), file_bytes=None), hf.runs(), hf.events()


def _assert_sound(hf: Holdfast) -> None:
    report = hf.verify()
    assert report.ok, report.problems


def _document(data: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _is_finite(segment: Any) -> bool:
    if isinstance(segment, tuple | frozenset):
        return all(map(_is_finite, segment))
    return not isinstance(segment, float | complex) or cmath.isfinite(segment)


def _is_text(data: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        data.decode("utf-8", "surrogatepass")
        return True
    return False


_managers: list[SnapshotManager] = []


def _manager() -> SnapshotManager:
    if not _managers:
        _managers.append(SnapshotManager())
    return _managers[0]
