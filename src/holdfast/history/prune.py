"""Retention: which versions are pruned, which of their nodes stay, and the marks that protect versions.

A pruned version may have written nodes that other versions share. Such a version is replaced by a stub: its number, its
hash in the chain, and those nodes. Other pruned versions are removed.

Invariant: every version that is kept reads back as before. The head, the version that it needs, tagged and pinned
versions, fork points, and all versions that a live workflow would replay are always kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

import msgspec

from holdfast.errors import BadData, CorruptVersion, NotFound, StaleVersion
from holdfast.history.attachments import key_after_rollback
from holdfast.history.builder import build_event
from holdfast.history.context import StoreContext
from holdfast.history.hashes import check_hash, seal_stub
from holdfast.history.reader import Reader
from holdfast.history.version import Version
from holdfast.model.public import Pruned
from holdfast.model.records import CLOSED, PIN, MarkRecord, RunRecord, VersionRecord
from holdfast.model.retention import Retention
from holdfast.store.protocol import Prune, Store
from holdfast.tree.block import digest, thin
from holdfast.tree.codec import decode
from holdfast.tree.load import Slot, artifacts, large_leaves, refs

_BATCH = 500


class ReachableNodes:
    """The nodes that are reachable from a set of versions; shared nodes are visited once."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.places: set[Slot] = set()
        #: The artifacts that the nodes of each version refer to.
        self.holds: dict[int, set[bytes]] = {}
        #: Long leaves that nodes refer to.
        self.large: set[bytes] = set()

    @property
    def artifacts(self) -> set[bytes]:
        """All artifacts that the nodes refer to."""
        return set().union(*self.holds.values())

    def add(self, number: int) -> None:
        """Add all nodes of a version."""
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
        """Return the reachable slots of each version."""
        found: dict[int, set[int]] = {}
        for number, slot in self.places:
            found.setdefault(number, set()).add(slot)
        return found

    def _note(self, number: int, node: object) -> None:
        for name in artifacts(node):
            self.holds.setdefault(number, set()).add(name)
        if number in self.holds:
            self.large.update(large_leaves(node))


_PAGE = 500
#: Microseconds for which attachments wait for the version of their key.
_GRACE = 3_600_000_000
#: Attempts to prune a run while others write to it.
ATTEMPTS = 10

Stub = tuple[VersionRecord, list[bytes], list[bytes]]


def prune(
    store: Store,
    run: RunRecord,
    policy: Retention | Collection[int],
    *,
    now: int,
    dry_run: bool,
    quiet: bool = False,
    damaged: bool = False,
    release: bool = False,
) -> Pruned:
    """Remove the versions of a run that a policy does not keep, or those of a collection. With `release`, their long
    texts are deleted at once, unless another version holds them, not only when artifacts are collected.

    With `damaged`, damaged versions are removed, too; those that a damaged one that is kept may need stay."""
    records, broken = _checked_records(store, run, damaged=damaged)
    keep = _kept(store, run, records, policy, now)
    if not damaged:
        broken = []
    gone = [record for record in records if record.number not in keep and not record.pruned]
    if dry_run or not (gone or broken):
        return Pruned(
            tuple(record.number for record in gone),
            tuple(sorted(keep)),
            sum(record.size for record in gone),
            dry_run,
        )
    reachable = ReachableNodes(Reader(store, run))
    first = 0
    for number in sorted(keep):
        try:
            reachable.add(number)
        except CorruptVersion:
            if not damaged or number == run.head:
                raise
            # It refers only to versions before it.
            first = number
    stay = {record.number for record in records if first and record.number < first}
    keep |= {record.number for record in records if record.number in stay and not record.pruned}
    gone = [record for record in gone if record.number not in keep]
    if not gone and not broken:
        return Pruned((), tuple(sorted(keep)), 0)
    stubs, drop = _split(store, run, records, keep | stay, reachable)
    drop = sorted({*drop, *(number for number in broken if number > first)})
    released = _long_leaves(reachable, gone) if release else ()
    was = sum(record.size for record in records if record.number not in keep | stay)
    freed = was - sum(stub.size for stub, _, _ in stubs)
    after = msgspec.structs.replace(
        run,
        revision=run.revision + 1,
        epoch=run.epoch + 1,
        kept=len(keep),
        size=run.size - freed,
        updated=now,
    )
    entry = build_event("versions.pruned", now, versions=[record.number for record in gone], kept=len(keep))
    keys, unused = _keys_to_remove(store, run, gone, records, now)
    events = [] if quiet else [entry]
    store.prune(Prune(run, after, drop, stubs, keys, unused, now - _GRACE, events))
    store.release(sorted(released))
    return Pruned(tuple(record.number for record in gone), tuple(sorted(keep)), freed)


def _checked_records(store: Store, run: RunRecord, *, damaged: bool) -> tuple[list[VersionRecord], list[int]]:
    """Return the rows of a run, and the numbers of those that fail their hash; `CorruptVersion` unless `damaged`."""
    records: list[VersionRecord] = []
    broken: list[int] = []
    marks = {mark.number for mark in store.marks(run.key)} if damaged else set()
    for record in iter_records(store, run):
        try:
            records.append(check_hash(run.id, record))
        except CorruptVersion:
            if not damaged:
                raise
            if record.number != run.head and record.number not in marks:
                broken.append(record.number)
    return records, broken


def _long_leaves(reachable: ReachableNodes, gone: list[VersionRecord]) -> set[bytes]:
    """Return the long leaves of versions to remove that no kept version needs. Adds the versions to `reachable`."""
    kept = set(reachable.large)
    for record in gone:
        with suppress(BadData, NotFound):
            reachable.add(record.number)
    return reachable.large - kept


def long_leaves(store: Store, run: RunRecord) -> set[bytes]:
    """Return the long leaves of all versions of a run, as far as they can be read."""
    reachable = ReachableNodes(Reader(store, run))
    with suppress(BadData, NotFound):
        for record in iter_records(store, run):
            if not record.pruned:
                with suppress(BadData, NotFound):
                    reachable.add(record.number)
    return reachable.large


def _keys_to_remove(
    store: Store, run: RunRecord, gone: list[VersionRecord], records: list[VersionRecord], now: int
) -> tuple[list[str], list[str]]:
    """Return the keys of versions that are removed, and keys that have no version and only old attachments."""
    lines = [line for line in store.timelines(run.key) if line.parent] if run.timeline > 1 else []

    def keys_of(versions: list[VersionRecord]) -> set[str]:
        own = {record.number: record.key for record in versions if record.key is not None}
        after = {key_after_rollback(own[line.parent], line.number) for line in lines if line.parent in own}
        return {*own.values(), *after}

    removed = {record.number for record in gone}
    kept = keys_of([record for record in records if record.number not in removed])
    removed_keys = keys_of(gone) - kept
    old = store.attachment_keys(run.key, before=now - _GRACE)
    return sorted(removed_keys), sorted(set(old) - kept - removed_keys)


def detach(store: Store, fork: RunRecord, *, now: int) -> None:
    """Copy the nodes that a fork needs from its origin into the fork, so that the origin can be deleted."""
    stubs = list(origin_stubs(store, fork))
    after = msgspec.structs.replace(
        fork,
        origin=None,
        revision=fork.revision + 1,
        epoch=fork.epoch + 1,
        size=fork.size + sum(stub.size for stub, _, _ in stubs),
        updated=now,
    )
    entry = build_event("run.detached", now)
    store.prune(Prune(expect=fork, run=after, drop=[], thin=stubs, events=[entry]))


def origin_stubs(store: Store, fork: RunRecord) -> Iterator[Stub]:
    """Yield the nodes that a fork needs from its origin, as stubs with numbers below 1, in ascending order."""
    reader = Reader(store, fork)
    reachable = ReachableNodes(reader)
    for record in iter_records(store, fork):
        if not check_hash(fork.id, record).pruned:
            reachable.add(record.number)
    for number, slots in sorted(reachable.by_version().items()):
        if number < 1:
            source, real = lineage(reader, number)
            record = _with_pack(store, source.run, real)
            stub, blocks, holds = _stub(
                store, source.run, record, slots, sorted(reachable.holds.get(number, ()))
            )
            moved = msgspec.structs.replace(stub, number=number, parent=number, seq=0)
            yield seal_stub(fork.id, moved), blocks, holds


def lineage(reader: Reader, number: int) -> tuple[Reader, int]:
    """Return the run that holds a version of a run's lineage, and its number there."""
    while number < 1 and reader.run.origin is not None:
        number += reader.run.origin[1]
        reader = reader.origin
    return reader, number


def iter_records(store: Store, run: RunRecord) -> Iterator[VersionRecord]:
    """Iterate over the rows of a run as it was read, pruned ones included, oldest first; they are not checked."""
    after = -(1 << 62)
    while page := store.versions(
        run.key, after=after, before=run.last + 1, limit=_PAGE, ascending=True, pruned=True
    ):
        yield from page
        after = page[-1].number


def read_blocks(store: Store, run: RunRecord, number: int) -> list[bytes]:
    """Return the further blocks of a version."""
    blocks: list[bytes] = []
    while (block := store.block(run.key, number, len(blocks))) is not None:
        blocks.append(block)
    return blocks


def _kept(
    store: Store, run: RunRecord, records: list[VersionRecord], policy: Retention | Collection[int], now: int
) -> set[int]:
    alive = [record for record in records if not record.pruned]
    keep = {run.head} | {mark.number for mark in store.marks(run.key)}
    keep |= {needed for record in alive if record.number == run.head and (needed := _needed_by(record))}
    forks = store.forks_of(run.key)
    keep |= {fork.origin[1] for fork in forks if fork.origin is not None}
    if run.workflow is not None:
        # Versions with compensations, and versions that are replayed when the run, or a fork of it, is resumed.
        keep |= {record.number for record in alive if _is_compensated(record)}
        ends = [fork.origin[1] for fork in forks if fork.origin is not None and _is_resumable(store, fork)]
        parents = {record.number: record.parent for record in alive}
        for end in [*ends, run.head] if run.status not in CLOSED else ends:
            number = end
            while number in parents:
                keep.add(number)
                number = parents.pop(number)
    if not isinstance(policy, Retention):
        return {record.number for record in alive if record.number in keep or record.number not in policy}
    newest = sorted(alive, key=lambda record: record.number, reverse=True)
    if policy.step is not None:
        newest = [record for record in newest if record.step == policy.step]
    if policy.last is not None:
        last = newest[: policy.last]
        keep |= {record.number for record in (last if policy.step is None else _since(last, alive))}
    if policy.within is not None:
        oldest = now - int(policy.within.total_seconds() * 1_000_000)
        keep |= {record.number for record in newest if record.at >= oldest}
    for count, form in ((policy.hourly, "%Y-%m-%d %H"), (policy.daily, "%Y-%m-%d"), (policy.weekly, "%G-%V")):
        if count is not None:
            first: dict[str, int] = {}
            for record in newest:
                first.setdefault(
                    datetime.fromtimestamp(record.at / 1_000_000, UTC).strftime(form), record.number
                )
            keep |= set(list(first.values())[:count])
    return keep & {record.number for record in alive}


def _is_compensated(record: VersionRecord) -> bool:
    """Return whether the step of a version has a compensation."""
    return bool(record.detail) and "undo" in decode(record.detail)


def _needed_by(record: VersionRecord) -> int:
    """Return the version that a head needs: the last snapshot of an agent loop, to which it is restored; 0 for none."""
    needed: int = decode(record.detail).get("needs", 0) if record.detail else 0
    return needed


def _since(last: list[VersionRecord], alive: list[VersionRecord]) -> list[VersionRecord]:
    """Return the versions since the last one of a list, which is ordered newest first."""
    return [record for record in alive if last and record.number >= last[-1].number]


def _is_resumable(store: Store, run: RunRecord) -> bool:
    """Return whether a run, or a fork of it, can be resumed."""
    return run.status not in CLOSED or any(_is_resumable(store, fork) for fork in store.forks_of(run.key))


def _split(
    store: Store, run: RunRecord, records: list[VersionRecord], keep: set[int], reachable: ReachableNodes
) -> tuple[list[Stub], list[int]]:
    """Return stubs of removed versions that others need, and the numbers of the rest."""
    needed = reachable.by_version()
    linked = {record.parent for record in records if record.number in keep}
    stubs: list[Stub] = []
    drop: list[int] = []
    for record in records:
        if record.number in keep:
            continue
        slots = needed.get(record.number, set())
        if slots or record.number in linked:
            holds = sorted(reachable.holds.get(record.number, ()))
            stubs.append(_stub(store, run, _with_pack(store, run, record.number), slots, holds))
        else:
            drop.append(record.number)
    return stubs, drop


def _with_pack(store: Store, run: RunRecord, number: int) -> VersionRecord:
    found = store.packs(run.key, [number])
    if not found:
        raise StaleVersion(f"run {run.id!r} was pruned by another process: try again")
    return check_hash(run.id, found[0])


def _stub(store: Store, run: RunRecord, record: VersionRecord, slots: set[int], holds: list[bytes]) -> Stub:
    assert record.pack is not None
    data, blocks = thin(record.pack, read_blocks(store, run, record.number), slots)
    stub = msgspec.structs.replace(
        record,
        step=None,
        detail=b"",
        key=None,
        pruned=True,
        pack=data,
        pack_hash=digest(data),
        size=len(data) + sum(map(len, blocks)),
    )
    return seal_stub(run.id, stub), blocks, holds


def set_mark(context: StoreContext, version: Version, name: str, *, on: bool) -> None:
    """Set or remove a tag, or the pin; `NotFound` if a mark to remove does not exist.

    A version that has a mark when this returns is not removed by a prune that was planned before.
    """
    now = context.clock()
    kind = "version." + ("" if on else "un") + ("pinned" if name == PIN else "tagged")
    entry = build_event(kind, now, version=version.number, tag=name or None)
    mark = MarkRecord(number=version.number, name=name, at=now)
    changed = context.store.set_mark(_run(context, version).key, mark, on=on, event=entry)
    if changed and on:
        _protect(context, version)
    if not changed and not on:
        what = "is not pinned" if name == PIN else f"has no tag {name!r}"
        raise NotFound(
            f"version {version.number} of run {version.run!r} {what}", run=version.run, version=version.number
        )


def _protect(context: StoreContext, version: Version) -> None:
    """Change the revision, so that a concurrent prune fails; `NotFound` if the version is pruned already."""

    def read() -> RunRecord:
        run = _run(context, version)
        context.reader(run).record(version.number)
        return run

    context.touch(read)


def _run(context: StoreContext, version: Version) -> RunRecord:
    run = context.store.run(version.run)
    if run is None:
        raise NotFound(f"run {version.run!r} was deleted", run=version.run)
    return run
