"""Export a whole run to one file, and import it.

A bundle holds the run, its timelines, its versions oldest first (stubs of pruned ones too), its marks, its events, its
attachments, and the artifacts that its versions refer to; `frames` defines the layout. It is self-contained: nodes that
a fork needs of its origin are exported as stubs with numbers below 1, and the run in the file has no origin.

Export and import check versions with the same `VersionChecker`, so an exported run can be imported. An import reads the
file twice, first to check everything (`examine`), then to pass it to the store; a source that cannot be read twice is
copied to a temporary file. Nothing in a bundle is executed, and no name in it becomes a path.

Invariant: a run is imported whole and exactly as it was exported, or not at all.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.atomic_file import write_atomically
from holdfast.errors import (
    AlreadyExists,
    CorruptStore,
    CorruptVersion,
    InvalidCall,
    InvalidSnapshot,
    NotFound,
    StaleVersion,
)
from holdfast.history.bundle.checks import VersionChecker, examine
from holdfast.history.bundle.frames import (
    AnyFrame,
    ArtifactFrame,
    AttachmentFrame,
    BlockFrame,
    BundleReader,
    BundleWriter,
    EndFrame,
    EventFrame,
    MarkFrame,
    PieceFrame,
    RunFrame,
    TimelineFrame,
    VersionFrame,
    to_frame,
    to_record,
)
from holdfast.history.hashes import NO_PARENT, check_attachment, seal, seal_attachment, seal_stub
from holdfast.history.journal import iter_entries
from holdfast.history.prune import iter_records, origin_stubs, read_blocks
from holdfast.model.meta import check_meta
from holdfast.model.names import check_run_id, rollback_of
from holdfast.model.records import AttachmentRecord, EventRecord, RunRecord, VersionRecord
from holdfast.model.run_detail import indexed_meta, meta_of
from holdfast.store.protocol import RunImport, Store, iter_attachments
from holdfast.tree.artifact import PIECE
from holdfast.tree.codec import REDACTED
from holdfast.tree.fold import Redactor
from holdfast.tree.pack import Upload

_PAGE = 64


def export_run(store: Store, run: RunRecord, file: str | os.PathLike[str] | BinaryIO) -> None:
    """Write a run to a new file, which appears when it is complete or not at all, or to an open binary file.

    `AlreadyExists` if the path exists; `CorruptVersion` if a version fails a check.
    """
    if isinstance(file, str | os.PathLike):
        with _new_file(Path(file)) as opened:
            _export(store, run, opened)
    elif isinstance(file, io.TextIOBase) or not hasattr(file, "write"):
        raise InvalidCall("export_run takes a path or a file opened in binary mode ('wb')")
    else:
        _export(store, run, file)


def import_run(
    store: Store,
    file: str | os.PathLike[str] | BinaryIO,
    *,
    run_id: str | None,
    now: int,
    redact: Redactor | None = None,
) -> RunRecord:
    """Create the run of a bundle, under its own or another id. With `redact`, refuse a bundle that holds a value under
    a key that would be redacted.

    `AlreadyExists` if the id is taken, `InvalidSnapshot` with the reason if the bundle fails a check,
    `IncompatibleFormat` if a newer Holdfast wrote it; nothing is written then.
    """
    if run_id is not None:
        _refuse_taken(store, check_run_id(run_id))
    with _seekable(file) as opened:
        try:
            return _import(store, BundleReader(opened), run_id, now, redact)
        except InvalidSnapshot as error:
            raise InvalidSnapshot(f"this bundle cannot be imported: {error}", **error.details) from error


# Export


def _export(store: Store, run: RunRecord, file: BinaryIO) -> None:
    try:
        _write(store, run, BundleWriter(file))
    except CorruptVersion as error:
        _refuse_changed(store, run)
        raise CorruptVersion(f"{error}; the run is not exported: run verify", **error.details) from error
    except NotFound:
        _refuse_changed(store, run)
        raise


def _write(store: Store, run: RunRecord, sink: BundleWriter) -> None:
    # A fork is exported with the nodes of its origin that it needs, like a run whose other versions were pruned.
    epoch = run.epoch + (run.origin is not None)
    chained = VersionChecker(to_frame(RunFrame, run, epoch=epoch))
    sink.write(chained.run)
    timelines = [line for line in store.timelines(run.key) if line.number <= run.timeline]
    for line in timelines:
        sink.write(to_frame(TimelineFrame, line))
    versions = 0
    stubs = origin_stubs(store, run) if run.origin is not None else ()
    for version, blocks in chain(((stub, blocks) for stub, blocks, _ in stubs), _stored(store, run)):
        holds = chained.add(version, blocks)
        sink.write(to_frame(VersionFrame, version, blocks=len(blocks), holds=holds))
        for block in blocks:
            sink.write(BlockFrame(block))
        versions += 1
    chained.close(timelines)
    marks = [mark for mark in store.marks(run.key) if mark.number in chained.alive]
    for mark in marks:
        sink.write(to_frame(MarkFrame, mark))
    events = 0
    for event in _events(store, run):
        sink.write(to_frame(EventFrame, event))
        events += 1
    attachments = 0
    for attachment in iter_attachments(store, run.key):
        if (rollback_of(attachment.key) or 0) > run.timeline:
            # Of a rollback since the run was read.
            continue
        sink.write(to_frame(AttachmentFrame, check_attachment(run.id, attachment)))
        attachments += 1
    for name in sorted(chained.held):
        _export_artifact(store, name, sink)
    _refuse_changed(store, run)
    sink.write(EndFrame(len(timelines), versions, len(marks), events, len(chained.held), attachments))
    sink.close()


def _export_artifact(store: Store, name: bytes, sink: BundleWriter) -> None:
    known = store.artifact(name)
    if known is None:
        raise NotFound(f"artifact {name.hex()[:12]} is not in the store: run verify", artifact=name.hex())
    sink.write(ArtifactFrame(name, known.size))
    size = 0
    for piece in store.artifact_pieces(name):
        size += len(piece)
        for at in range(0, len(piece), PIECE):
            sink.write(PieceFrame(piece[at : at + PIECE]))
    if size != known.size:
        raise CorruptStore(f"artifact {name.hex()[:12]} has a wrong size: run verify", artifact=name.hex())


def _stored(store: Store, run: RunRecord) -> Iterator[tuple[VersionRecord, list[bytes]]]:
    """Yield the versions of a run in the store, with their packs and blocks."""
    numbers = (record.number for record in iter_records(store, run))
    while page := list(islice(numbers, _PAGE)):
        found = {record.number: record for record in store.packs(run.key, page)}
        for number in filter(found.__contains__, page):
            yield found[number], read_blocks(store, run, number)


def _events(store: Store, run: RunRecord) -> Iterator[EventRecord]:
    """Yield the run's events up to the first version that was committed after the run was read."""
    for entry in iter_entries(store, run):
        if isinstance(entry, EventRecord):
            yield entry
        elif entry[1].number > run.last:
            return


def _refuse_changed(store: Store, run: RunRecord) -> None:
    """Raise `StaleVersion` if a run was pruned while it was read: it may look damaged, or lack parts."""
    after = store.run(run.id)
    if after is None or (after.key, after.epoch) != (run.key, run.epoch):
        raise StaleVersion(
            f"run {run.id!r} was pruned or deleted during the export: export it again", run=run.id
        )


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name when it is complete, or not at all."""
    try:
        with write_atomically(path, overwrite=False) as file:
            yield file
    except FileExistsError as error:
        raise AlreadyExists(
            f"{path} exists and is not overwritten: export to another path", path=str(path)
        ) from error
    except OSError as error:
        raise InvalidCall(f"{path} cannot be written: {error.strerror}", path=str(path)) from error


# Import


def _import(
    store: Store, source: BundleReader, run_id: str | None, now: int, redact: Redactor | None
) -> RunRecord:
    found = examine(source, lambda own_id: _refuse_taken(store, own_id if run_id is None else run_id), redact)
    header = found.chain.run
    new_id = header.id if run_id is None else run_id
    run = to_record(
        RunRecord,
        header,
        id=new_id,
        # The clock of the exporting machine may be ahead of ours.
        updated=min(header.updated, now),
        size=found.chain.size,
        kept=len(found.chain.alive),
    )
    _check_meta(run, redact)
    contents = _ArtifactContents(source)
    return store.import_run(
        RunImport(
            run,
            _versions(source, header.id, new_id),
            found.timelines,
            found.marks,
            found.events,
            (Upload(name, size, partial(contents.pieces, name)) for name, size in found.artifacts),
            _attachments(source, header.id, new_id),
            indexed_meta(run),
        )
    )


def _check_meta(run: RunRecord, redact: Redactor | None) -> None:
    """Refuse metadata that no run can have: their index grows with the square of their number."""
    meta = meta_of(run)
    try:
        # A redacted value may be longer than the value was.
        check_meta({name: "" if value == REDACTED else value for name, value in meta.items()})
    except InvalidCall as error:
        raise InvalidSnapshot(str(error)) from error
    for name, value in meta.items():
        if redact is not None and redact.hides(name) and value != REDACTED:
            raise InvalidSnapshot(
                f"the metadata of the run hold a value under {name!r}, which this store redacts: import it with "
                "secrets='keep', or remove the name from the run with set_meta and export it again"
            )


def _versions(
    source: BundleReader, old_id: str, new_id: str
) -> Iterator[tuple[VersionRecord, Sequence[bytes], Sequence[bytes]]]:
    """Yield the versions of a checked bundle, sealed for their new run id."""
    links = {0: NO_PARENT}
    # To the end: the hash there shows whether the file was changed since the check.
    for frame, blocks in source.entries():
        if isinstance(frame, VersionFrame):
            version = to_record(VersionRecord, frame)
            if new_id != old_id:
                version = _resealed(version, new_id, links)
            yield version, blocks, frame.holds


def _attachments(source: BundleReader, old_id: str, new_id: str) -> Iterator[AttachmentRecord]:
    """Yield the attachments of a checked bundle, sealed for their new run id."""
    for frame in source.frames():
        if isinstance(frame, AttachmentFrame):
            record = to_record(AttachmentRecord, frame)
            try:
                # This does not read to the end of the file, where the hash of all its bytes is.
                yield seal_attachment(new_id, check_attachment(old_id, record))
            except CorruptStore as error:
                raise InvalidSnapshot("it changed while it was being read") from error
        elif isinstance(frame, ArtifactFrame | EndFrame):
            return


def _resealed(version: VersionRecord, run_id: str, links: dict[int, bytes]) -> VersionRecord:
    """Return a version sealed for another run id. A stub keeps its hash, which cannot be computed again."""
    if version.pruned:
        version = seal_stub(run_id, version)
    else:
        link = links.get(version.parent, NO_PARENT)
        version = seal(run_id, msgspec.structs.replace(version, prev=link))
    if version.number > 0:
        links[version.number] = version.hash[:8]
    return version


class _ArtifactContents:
    """The contents of a bundle's artifacts. Reading them in order reads the file once."""

    def __init__(self, source: BundleReader) -> None:
        self._source = source
        self._frames: Iterator[AnyFrame] = iter(())
        self._latest: bytes | None = None

    def pieces(self, name: bytes) -> Iterator[bytes]:
        """Yield the content of an artifact in pieces."""
        if self._latest is None or name <= self._latest:
            self._frames = self._source.frames()
        self._latest = name
        for frame in self._frames:
            if isinstance(frame, ArtifactFrame) and frame.digest == name:
                missing = frame.size
                break
        else:
            raise InvalidSnapshot("it changed while it was being read")
        while missing > 0 and isinstance(piece := next(self._frames, None), PieceFrame):
            missing -= len(piece.data)
            yield piece.data


@contextmanager
def _seekable(file: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """Open the file so that it can be read from any position."""
    if isinstance(file, str | os.PathLike):
        try:
            opened = Path(file).open("rb")  # noqa: SIM115 - only opening it may fail here
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {file}", path=str(file)) from error
        except (OSError, ValueError) as error:
            raise InvalidCall(
                f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from error
        with opened, _seekable(opened) as again:
            yield again
        return
    if isinstance(file, io.TextIOBase) or not hasattr(file, "read"):
        raise InvalidCall("import_run takes a path or a file opened in binary mode ('rb')")
    if _can_seek(file):
        yield file
        return
    with tempfile.TemporaryFile() as spool:
        while piece := file.read(PIECE):
            spool.write(piece)
        spool.seek(0)
        yield spool


def _can_seek(file: BinaryIO) -> bool:
    """Return whether a file can be read again and its end be found. Some files claim to seek but cannot."""
    try:
        start = file.tell()
        file.seek(0, os.SEEK_END)
        file.seek(start)
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _refuse_taken(store: Store, run_id: str) -> None:
    if store.run(run_id) is not None:
        raise AlreadyExists(
            f"run {run_id!r} exists: import with another run_id=…, or delete it first", run=run_id
        )
