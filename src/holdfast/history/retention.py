"""Pruning: which versions go, and what must stay of them.

A version that goes may have written nodes that others still share. Of such a version a stub stays: its
number, its place in the chain of hashes, and those nodes. What nobody needs is removed altogether.

Invariant: every version that is kept reads back as before. The head, tagged and pinned versions, fork points,
and all that a live workflow would replay are always kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime

import msgspec

from holdfast.errors import StaleVersion
from holdfast.history.commit import event
from holdfast.history.reach import Reach
from holdfast.history.reader import Reader
from holdfast.history.seal import check, seal_stub
from holdfast.model.public import Pruned
from holdfast.model.records import ENDED, RunRecord, VersionRecord
from holdfast.model.retention import Retention
from holdfast.store.base import Prune, Store
from holdfast.tree.block import digest, thin
from holdfast.tree.codec import decode

_PAGE = 500

Stub = tuple[VersionRecord, list[bytes], list[bytes]]


def prune(
    store: Store,
    run: RunRecord,
    policy: Retention | Collection[int],
    *,
    now: int,
    dry_run: bool,
    quiet: bool = False,
) -> Pruned:
    """Remove the versions of a run that a policy does not keep, or those that are named."""
    records = list(_records(store, run))
    keep = _kept(store, run, records, policy, now)
    gone = [record for record in records if record.number not in keep and not record.pruned]
    if dry_run or not gone:
        return Pruned(
            tuple(record.number for record in gone),
            tuple(sorted(keep)),
            sum(record.size for record in gone),
            dry_run,
        )
    reach = Reach(Reader(store, run))
    for number in sorted(keep):
        reach.add(number)
    stubs, drop = _divide(store, run, records, keep, reach)
    was = sum(record.size for record in records if record.number not in keep)
    freed = was - sum(stub.size for stub, _, _ in stubs)
    after = msgspec.structs.replace(
        run,
        revision=run.revision + 1,
        epoch=run.epoch + 1,
        kept=len(keep),
        size=run.size - freed,
        updated=now,
    )
    entry = event("versions.pruned", now, versions=[record.number for record in gone], kept=len(keep))
    store.prune(Prune(expect=run, run=after, drop=drop, thin=stubs, events=[] if quiet else [entry]))
    return Pruned(tuple(record.number for record in gone), tuple(sorted(keep)), freed)


def detach(store: Store, fork: RunRecord, *, now: int) -> None:
    """Give a fork its own copy of what it needs from its origin, so that the origin can go."""
    stubs = list(borrowed(store, fork))
    after = msgspec.structs.replace(
        fork,
        origin=None,
        revision=fork.revision + 1,
        epoch=fork.epoch + 1,
        size=fork.size + sum(stub.size for stub, _, _ in stubs),
        updated=now,
    )
    entry = event("run.detached", now)
    store.prune(Prune(expect=fork, run=after, drop=[], thin=stubs, events=[entry]))


def borrowed(store: Store, fork: RunRecord) -> Iterator[Stub]:
    """What a fork needs from its origin, as stubs of its own with numbers below 1, in their order."""
    reader = Reader(store, fork)
    reach = Reach(reader)
    for record in _records(store, fork):
        if not record.pruned:
            reach.add(record.number)
    for number, slots in sorted(reach.by_version().items()):
        if number < 1:
            source, real = lineage(reader, number)
            record = _with_pack(store, source.run, real)
            stub, blocks, holds = _stub(store, source.run, record, slots, sorted(reach.holds.get(number, ())))
            moved = msgspec.structs.replace(stub, number=number, parent=number, seq=0)
            yield seal_stub(fork.id, moved), blocks, holds


def lineage(reader: Reader, number: int) -> tuple[Reader, int]:
    """The run that really holds a number of a run's lineage, and the number there."""
    while number < 1 and reader.run.origin is not None:
        number += reader.run.origin[1]
        reader = reader.origin
    return reader, number


def _records(store: Store, run: RunRecord) -> Iterator[VersionRecord]:
    after = -(1 << 62)
    while page := store.versions(run.key, after=after, limit=_PAGE, ascending=True, pruned=True):
        for record in page:
            yield check(run.id, record)
        after = page[-1].number


def _kept(
    store: Store, run: RunRecord, records: list[VersionRecord], policy: Retention | Collection[int], now: int
) -> set[int]:
    alive = [record for record in records if not record.pruned]
    keep = {run.head} | {mark.number for mark in store.marks(run.key)}
    forks = store.forks_of(run.key)
    keep |= {fork.origin[1] for fork in forks if fork.origin is not None}
    if run.workflow is not None:
        # What is undone when the run is rolled back, and what is replayed when it, or a fork of it, is resumed.
        keep |= {record.number for record in alive if _is_compensated(record)}
        ends = [fork.origin[1] for fork in forks if fork.origin is not None and _goes_on(store, fork)]
        parents = {record.number: record.parent for record in alive}
        for end in [*ends, run.head] if run.status not in ENDED else ends:
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
    """Does the step of a version have a compensation?"""
    return bool(record.detail) and "undo" in decode(record.detail)


def _since(last: list[VersionRecord], alive: list[VersionRecord]) -> list[VersionRecord]:
    """Versions, newest first, and all that came between and after them."""
    return [record for record in alive if last and record.number >= last[-1].number]


def _goes_on(store: Store, run: RunRecord) -> bool:
    """May a run, or one that was forked from it, be resumed?"""
    return run.status not in ENDED or any(_goes_on(store, fork) for fork in store.forks_of(run.key))


def _divide(
    store: Store, run: RunRecord, records: list[VersionRecord], keep: set[int], reach: Reach
) -> tuple[list[Stub], list[int]]:
    """Stubs for versions of which something is needed, and the numbers of those of which nothing is."""
    needed = reach.by_version()
    linked = {record.parent for record in records if record.number in keep}
    stubs: list[Stub] = []
    drop: list[int] = []
    for record in records:
        if record.number in keep:
            continue
        slots = needed.get(record.number, set())
        if slots or record.number in linked:
            holds = sorted(reach.holds.get(record.number, ()))
            stubs.append(_stub(store, run, _with_pack(store, run, record.number), slots, holds))
        else:
            drop.append(record.number)
    return stubs, drop


def _with_pack(store: Store, run: RunRecord, number: int) -> VersionRecord:
    found = store.packs(run.key, [number])
    if not found:
        raise StaleVersion(f"run {run.id!r} was pruned by another meanwhile: try again")
    return check(run.id, found[0])


def _stub(store: Store, run: RunRecord, record: VersionRecord, slots: set[int], holds: list[bytes]) -> Stub:
    assert record.pack is not None
    blocks: list[bytes] = []
    while (block := store.block(run.key, record.number, len(blocks))) is not None:
        blocks.append(block)
    data, blocks = thin(record.pack, blocks, slots)
    stub = msgspec.structs.replace(
        record,
        step=None,
        detail=b"",
        pruned=True,
        pack=data,
        pack_hash=digest(data),
        size=len(data) + sum(map(len, blocks)),
    )
    return seal_stub(run.id, stub), blocks, holds
