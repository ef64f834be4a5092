"""A whole run as one file, and back.

A bundle holds the run, its timelines, its versions oldest first (what is left of pruned ones too), its marks,
its events, and the artifacts that its versions refer to; `frames` lays them out. It stands by itself: what a
fork needs of its origin goes along as stubs with numbers below 1, and the run in the file has no origin.

The same examination of versions (`chain`) stands at both doors: what is exported can be imported. An import
reads the file twice, first to examine everything (`examine`), then to hand it to the store; a source that
cannot be read twice is copied to a temporary file. Nothing in a bundle is imported or executed, and no name
in it becomes a path.

Invariant: a run is imported whole and exactly as it was exported, or not at all.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from holdfast.errors import (
    AlreadyExists,
    CorruptStore,
    CorruptVersion,
    InvalidCall,
    InvalidSnapshot,
    NotFound,
    StaleVersion,
)
from holdfast.history.chain import Chain
from holdfast.history.examine import entries, examine, record
from holdfast.history.frames import (
    AnyFrame,
    ArtifactFrame,
    BlockFrame,
    EndFrame,
    EventFrame,
    MarkFrame,
    PieceFrame,
    RunFrame,
    Sink,
    Source,
    TimelineFrame,
    VersionFrame,
)
from holdfast.history.retention import borrowed
from holdfast.history.seal import NO_PARENT, seal, seal_stub
from holdfast.model.names import check_run_id
from holdfast.model.records import EventRecord, RunRecord, VersionRecord
from holdfast.store.base import Imported, Store
from holdfast.tree.artifact import PIECE
from holdfast.tree.fold import Redactor
from holdfast.tree.pack import Upload
from holdfast.whole import whole

_PAGE = 64

S = TypeVar("S", bound=msgspec.Struct)


def export_run(store: Store, run: RunRecord, file: str | os.PathLike[str] | BinaryIO) -> None:
    """Write a run to a new file, which appears when it is complete or not at all, or to an open binary file.

    `AlreadyExists` if there is something at the path; `CorruptVersion` if a version fails its examination.
    """
    if isinstance(file, str | os.PathLike):
        with _arriving(Path(file)) as opened:
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
    """Make the run that a bundle holds, under its own or another id. With `redact`, a bundle is refused that holds a
    value under a key that is to be redacted.

    `AlreadyExists` if the id is taken, `InvalidSnapshot` with the reason if anything in the bundle is not as
    it should be, `IncompatibleFormat` if a newer Holdfast wrote it; nothing is written then.
    """
    if run_id is not None:
        _refuse_taken(store, check_run_id(run_id))
    with _rereadable(file) as opened:
        try:
            return _import(store, Source(opened), run_id, now, redact)
        except InvalidSnapshot as error:
            raise InvalidSnapshot(f"this bundle cannot be imported: {error}", **error.details) from error


# Export


def _export(store: Store, run: RunRecord, file: BinaryIO) -> None:
    try:
        _write(store, run, Sink(file))
    except CorruptVersion as error:
        _refuse_changed(store, run)
        raise CorruptVersion(f"{error}; the run is not exported: run verify", **error.details) from error
    except NotFound:
        _refuse_changed(store, run)
        raise


def _write(store: Store, run: RunRecord, sink: Sink) -> None:
    # A fork that takes along what it needs is one from which the rest was pruned.
    epoch = run.epoch + (run.origin is not None)
    chained = Chain(_frame(RunFrame, run, epoch=epoch))
    sink.write(chained.run)
    timelines = [line for line in store.timelines(run.key) if line.number <= run.timeline]
    for line in timelines:
        sink.write(_frame(TimelineFrame, line))
    versions = 0
    stubs = borrowed(store, run) if run.origin is not None else ()
    for version, blocks in chain(((stub, blocks) for stub, blocks, _ in stubs), _stored(store, run)):
        holds = chained.add(version, blocks)
        sink.write(_frame(VersionFrame, version, blocks=len(blocks), holds=holds))
        for block in blocks:
            sink.write(BlockFrame(block))
        versions += 1
    chained.close(timelines)
    marks = [mark for mark in store.marks(run.key) if mark.number in chained.alive]
    for mark in marks:
        sink.write(_frame(MarkFrame, mark))
    events = 0
    for event in _events(store, run):
        sink.write(_frame(EventFrame, event))
        events += 1
    for name in sorted(chained.held):
        _export_artifact(store, name, sink)
    _refuse_changed(store, run)
    sink.write(EndFrame(len(timelines), versions, len(marks), events, len(chained.held)))
    sink.close()


def _export_artifact(store: Store, name: bytes, sink: Sink) -> None:
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
    """The versions that a run has in the store, with their packs."""
    after = -(1 << 62)
    while page := store.versions(
        run.key, after=after, before=run.last + 1, limit=_PAGE, ascending=True, pruned=True
    ):
        numbers = [record.number for record in page]
        found = {record.number: record for record in store.packs(run.key, numbers)}
        for number in filter(found.__contains__, numbers):
            blocks: list[bytes] = []
            while (block := store.block(run.key, number, len(blocks))) is not None:
                blocks.append(block)
            yield found[number], blocks
        after = numbers[-1]


def _events(store: Store, run: RunRecord) -> Iterator[EventRecord]:
    """The run's events up to the first version that came after the run was looked at."""
    after = 0
    while page := store.journal(run=run.key, after=after, limit=_PAGE):
        for entry in page:
            if isinstance(entry, EventRecord):
                after = entry.seq
                yield entry
            elif entry[1].number > run.last:
                return
            else:
                after = entry[1].seq


def _refuse_changed(store: Store, run: RunRecord) -> None:
    """A run that was pruned while it was read may look damaged, or be exported with a part of it missing."""
    after = store.run(run.id)
    if after is None or (after.key, after.epoch) != (run.key, run.epoch):
        raise StaleVersion(f"run {run.id!r} was pruned or deleted meanwhile: export it again", run=run.id)


def _frame(kind: type[S], record: msgspec.Struct, **more: Any) -> S:
    """A frame with the fields of a record."""
    names = (name for name in kind.__struct_fields__ if name not in more)
    return kind(**{name: getattr(record, name) for name in names}, **more)


@contextmanager
def _arriving(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete, or not at all."""
    try:
        with whole(path, overwrite=False) as file:
            yield file
    except FileExistsError as error:
        raise AlreadyExists(
            f"{path} exists and is not overwritten: export to another path", path=str(path)
        ) from error
    except OSError as error:
        raise InvalidCall(f"{path} cannot be written: {error.strerror}", path=str(path)) from error


# Import


def _import(store: Store, source: Source, run_id: str | None, now: int, redact: Redactor | None) -> RunRecord:
    found = examine(source, lambda own_id: _refuse_taken(store, own_id if run_id is None else run_id), redact)
    header = found.chain.run
    new_id = header.id if run_id is None else run_id
    run = record(
        RunRecord,
        header,
        id=new_id,
        # The clock of the machine that it comes from may be ahead of ours.
        updated=min(header.updated, now),
        size=found.chain.size,
        kept=len(found.chain.alive),
    )
    contents = _Contents(source)
    return store.import_run(
        Imported(
            run,
            _versions(source, header.id, new_id),
            found.timelines,
            found.marks,
            found.events,
            (Upload(name, size, partial(contents.pieces, name)) for name, size in found.artifacts),
        )
    )


def _versions(
    source: Source, old_id: str, new_id: str
) -> Iterator[tuple[VersionRecord, Sequence[bytes], Sequence[bytes]]]:
    """The versions of an examined bundle, sealed for the id that they will have."""
    links = {0: NO_PARENT}
    # To the very end, where it shows whether the file is still the one that was examined.
    for frame, blocks in entries(source):
        if isinstance(frame, VersionFrame):
            version = record(VersionRecord, frame)
            if new_id != old_id:
                version = _resealed(version, new_id, links)
            yield version, blocks, frame.holds


def _resealed(version: VersionRecord, run_id: str, links: dict[int, bytes]) -> VersionRecord:
    """A version as it would be had it been written for another run id. A stub keeps its hash: what that was
    made from is gone."""
    if version.pruned:
        version = seal_stub(run_id, version)
    else:
        link = links.get(version.parent, NO_PARENT)
        version = seal(run_id, msgspec.structs.replace(version, prev=link))
    if version.number > 0:
        links[version.number] = version.hash[:8]
    return version


class _Contents:
    """The contents of a bundle's artifacts. Asked for in order, they cost one reading of the file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._frames: Iterator[AnyFrame] = iter(())
        self._latest: bytes | None = None

    def pieces(self, name: bytes) -> Iterator[bytes]:
        """One content from its start."""
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
def _rereadable(file: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """The file, opened, as one that can be read from any place."""
    if isinstance(file, str | os.PathLike):
        try:
            opened = Path(file).open("rb")  # noqa: SIM115 - only opening it may fail here
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {file}", path=str(file)) from error
        except (OSError, ValueError) as error:
            raise InvalidCall(
                f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from error
        with opened, _rereadable(opened) as again:
            yield again
        return
    if isinstance(file, io.TextIOBase) or not hasattr(file, "read"):
        raise InvalidCall("import_run takes a path or a file opened in binary mode ('rb')")
    if _seeks(file):
        yield file
        return
    with tempfile.TemporaryFile() as spool:
        while piece := file.read(PIECE):
            spool.write(piece)
        spool.seek(0)
        yield spool


def _seeks(file: BinaryIO) -> bool:
    """Can it be read again, and its end be found? Some files claim to seek but cannot do that."""
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
