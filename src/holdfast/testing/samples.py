"""Sample records for tests of stores, and functions that drive runs through the store protocol alone.

Invariant: the same arguments give the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256, shake_256
from typing import Any

from msgspec.structs import replace

from holdfast.model.records import (
    AttachmentRecord,
    EventRecord,
    MarkRecord,
    RunRecord,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.protocol import Append, JournalEntry, RunImport, Store, VersionParts
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload

#: More than any test writes.
ALL = 1_000_000

#: In microseconds.
HOUR = 3_600_000_000


def content(name: str, size: int) -> bytes:
    """Return pseudo-random bytes that depend on a name."""
    return shake_256(name.encode()).digest(size)


def digest(data: bytes) -> bytes:
    """Return the digest of an artifact with this content."""
    return sha256(data).digest()


def upload(data: bytes, *, becomes: bytes | None = None) -> Upload:
    """Return an upload; with `becomes`, one whose source changes before it is read."""
    given = data if becomes is None else becomes
    pieces = [given[at : at + PIECE] for at in range(0, len(given), PIECE)]
    return Upload(digest(data), len(data), lambda: iter(pieces))


def new_run(run_id: str = "run", **fields: Any) -> RunRecord:
    """Return a run that is not yet stored."""
    made: dict[str, Any] = {"id": run_id, "created": 1_000, "updated": 1_000}
    return RunRecord(**(made | fields))


def version(number: int, **fields: Any) -> VersionRecord:
    """Return a version with a pack. Its hashes have the lengths that a store may rely on."""
    pack: bytes = fields.get("pack", content(f"pack {number}", 40))
    made: dict[str, Any] = {
        "number": number,
        "parent": max(number - 1, 0),
        "timeline": 1,
        "kind": "step",
        "status": "running",
        "at": 1_000 + number,
        "steps": max(number, 0),
        "step": f"step-{number}",
        "prev": content(f"hash {number - 1}", 16)[:8],
        "pack_hash": content(f"pack hash {number}", 16),
        "hash": content(f"hash {number}", 16),
        "size": len(pack or b""),
        "pack": pack,
    }
    return VersionRecord(**(made | fields))


def stub(number: int, **fields: Any) -> VersionRecord:
    """Return the stub of a pruned version."""
    return version(number, **({"pruned": True, "step": None, "pack": b"stub"} | fields))


def stubs(*which: int) -> list[VersionParts]:
    """Return stubs for `Prune.thin`."""
    return [(stub(number), (), ()) for number in which]


def event(kind: str = "noted", at: int = 1_000, data: bytes = b"") -> EventRecord:
    """Return an event."""
    return EventRecord(kind=kind, at=at, data=data)


def attachment(key: str, name: str = "name", *, data: bytes = b"data", at: int = 7) -> AttachmentRecord:
    """Return an attachment. Its hash has the length that a store may rely on."""
    hashed = digest(f"{key}\0{name}\0{at}".encode() + data)[:16]
    return AttachmentRecord(key=key, name=name, at=at, data=data, hash=hashed)


def begin(store: Store, run_id: str = "run", **fields: Any) -> RunRecord:
    """Store a run without versions."""
    return store.append(Append(expect=None, run=new_run(run_id, **fields)))


def advanced(run: RunRecord, **fields: Any) -> RunRecord:
    """Return a run after a change."""
    return replace(run, revision=run.revision + 1, **fields)


def next_version(run: RunRecord, **fields: Any) -> tuple[VersionRecord, RunRecord]:
    """Return the version after a run's head, and the run after it."""
    made = version(run.last + 1, **({"parent": run.head, "timeline": run.timeline} | fields))
    after = advanced(
        run,
        head=made.number,
        last=made.number,
        updated=made.at,
        step=made.step,
        size=run.size + made.size,
        kept=run.kept + 1,
    )
    return made, after


def change_of(run: RunRecord, **parts: Any) -> Append:
    """Return the change that appends the next version of a run, with further parts."""
    made, after = next_version(run)
    return Append(**{"expect": run if run.key else None, "run": after, "version": made, **parts})


def commit(store: Store, run: RunRecord, *, change: dict[str, Any] | None = None, **fields: Any) -> RunRecord:
    """Append the next version of a run; `fields` are the version's, `change` are further parts of the `Append`."""
    made, after = next_version(run, **fields)
    return store.append(Append(expect=run if run.key else None, run=after, version=made, **(change or {})))


def history(store: Store, count: int, run_id: str = "run") -> RunRecord:
    """Store a run with some versions, one by one."""
    run = new_run(run_id)
    for _ in range(count):
        run = commit(store, run)
    return run


def imported(count: int, run_id: str = "run", **parts: Any) -> RunImport:
    """Return a run with many versions for `import_run`."""
    made: dict[str, Any] = {
        "run": new_run(run_id, head=count, last=count, revision=count + 1, kept=count, size=40 * count),
        "versions": ((version(number), (), ()) for number in range(1, count + 1)),
        "timelines": (),
        "marks": (),
        "events": (),
        "uploads": iter(()),
    }
    return RunImport(**(made | parts))


def mark(store: Store, run: RunRecord, number: int, name: str, *, on: bool = True) -> bool:
    """Tag or untag a version."""
    return store.set_mark(
        run.key, MarkRecord(number=number, name=name, at=7), on=on, event=event("marked", data=name.encode())
    )


def numbers(records: Sequence[VersionRecord]) -> list[int]:
    """Return the numbers of versions."""
    return [record.number for record in records]


def names(entries: Sequence[JournalEntry]) -> list[str | int]:
    """Return the kind of each event and the number of each version."""
    return [entry.kind if isinstance(entry, EventRecord) else entry[1].number for entry in entries]


def place(entry: JournalEntry) -> int:
    """Return the position of a journal entry."""
    return entry.seq if isinstance(entry, EventRecord) else entry[1].seq


def walk(store: Store, *, run: int | None, limit: int, after: int = 0) -> Iterator[JournalEntry]:
    """Yield the journal, read page by page."""
    while page := store.journal(run=run, after=after, limit=limit):
        yield from page
        after = place(page[-1])


def everything(store: Store) -> dict[str, Any]:
    """Return everything that can be read from a store, for comparison."""
    return {
        "journal": store.journal(run=None, after=0, limit=ALL),
        "artifacts": [
            (record, b"".join(store.artifact_pieces(record.digest))) for record in store.artifacts(limit=ALL)
        ],
        "stats": replace(store.stats(), file_bytes=None),
        **{f"run {run.key}": (run, *belongings(store, run)) for run in store.runs(limit=ALL)},
    }


def belongings(
    store: Store, run: RunRecord
) -> tuple[
    list[VersionRecord],
    list[list[bytes]],
    list[TimelineRecord],
    list[MarkRecord],
    list[JournalEntry],
    list[AttachmentRecord],
]:
    """Return the versions with packs, blocks, timelines, marks, journal and attachments of a run."""
    every = numbers(store.versions(run.key, limit=ALL, ascending=True, pruned=True))
    packs = sorted(store.packs(run.key, every), key=lambda record: record.number)
    return (
        packs,
        [blocks(store, run, number) for number in every],
        store.timelines(run.key),
        store.marks(run.key),
        store.journal(run=run.key, after=0, limit=ALL),
        store.attachments(run.key, limit=ALL),
    )


def blocks(store: Store, run: RunRecord, number: int) -> list[bytes]:
    """Return the further blocks of a version's pack."""
    found: list[bytes] = []
    while (block := store.block(run.key, number, len(found))) is not None:
        found.append(block)
    return found
