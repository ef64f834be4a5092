"""Lists of versions: pages, ancestors and references, in spite of damaged rows.

A list that the store cannot read, or that lacks rows, is read again version by version; a version whose row cannot be
read is listed as damaged.

Invariant: a list that lost rows is never returned as if it were complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypedDict

from holdfast.errors import CorruptStore, CorruptVersion, NotFound
from holdfast.history.hashes import check_hash
from holdfast.history.reader import is_complete
from holdfast.history.version import Version, VersionMarks
from holdfast.model.names import Reference, suggest
from holdfast.model.records import RunRecord, VersionRecord

if TYPE_CHECKING:
    from holdfast.history.history import History

#: Rows of a page where the caller does not choose.
PAGE = 256


class VersionFilters(TypedDict):
    """Filters of `VersionStore.versions`."""

    timeline: int | None
    step: str | None
    tag: str | None
    kind: str | None


_NO_FILTERS = VersionFilters(timeline=None, step=None, tag=None, kind=None)


def list_versions(history: History, filters: VersionFilters, before: int | None, limit: int) -> list[Version]:
    """Return the newest versions before one, newest first, without reading any state."""
    is_unfiltered = filters == _NO_FILTERS
    while True:
        run = history.run_record()
        try:
            records = history.context.store.versions(run.key, before=before, after=0, limit=limit, **filters)
        except CorruptStore:
            return _list_one_by_one(history, run, filters, before, limit, is_unfiltered)
        numbers = [record.number for record in records]
        if not is_unfiltered or is_complete(run, numbers, before=before, limit=limit):
            return _to_versions(history, run, records)
        fresh = history.run_record()
        if (fresh.key, fresh.epoch) == (run.key, run.epoch):
            return _list_one_by_one(history, run, filters, before, limit, is_unfiltered)


def iter_ancestors(history: History, version: Version) -> Iterator[Version]:
    """Yield a version and its ancestors, newest first, until the run's first version or a pruned one."""
    run = history.run_record()
    wanted = version.number
    page: dict[int, Version] = {}
    while wanted > 0:
        if wanted not in page:
            try:
                records = history.context.store.versions(run.key, before=wanted + 1, after=0, limit=PAGE)
                found = _to_versions(history, run, records)
            except CorruptStore:
                found = _list_one_by_one(history, run, _NO_FILTERS, wanted + 1, PAGE, False)
            page = {each.number: each for each in found}
        if wanted not in page:
            try:
                record = history.context.reader(run).record(wanted)
            except NotFound:
                return
            page[wanted] = _to_versions(history, run, [record])[0]
        page[wanted].check()
        yield page[wanted]
        wanted = page[wanted].parent or 0


def resolve(history: History, run: RunRecord, ref: Reference) -> int:
    """Return the number of the version that a reference names."""
    if ref.number is not None:
        return ref.number
    if ref.tag is not None:
        store = history.context.store
        found = store.versions(run.key, tag=ref.tag, limit=1)
        if not found:
            hint = suggest(ref.tag, (mark.name for mark in store.marks(run.key)))
            raise NotFound(f"run {run.id!r} has no version tagged {ref.tag!r}{hint}", run=run.id, tag=ref.tag)
        number = check_hash(run.id, found[0]).number
        # The search compares the tag alone; reading the mark checks the whole row.
        store.marks(run.key, number, number)
        return number
    if ref.back == 0:
        return run.head
    for version in islice(history.ancestors(run.head), ref.back, None):
        return version.number
    raise NotFound(f"run {run.id!r} has no version {ref.back} before its head", run=run.id, back=ref.back)


def _to_versions(history: History, run: RunRecord, records: Sequence[VersionRecord]) -> list[Version]:
    """Check records and return them as versions."""
    if not records:
        return []
    numbers = [record.number for record in records]
    reader = history.context.reader(run)
    marks = VersionMarks(reader, min(numbers), max(numbers))
    found = []
    for record in records:
        try:
            at_head = run if record.number == run.head else None
            found.append(Version(history, reader, check_hash(run.id, record), marks, run=at_head))
        except CorruptVersion as damage:
            found.append(Version.damaged(history, reader, run, damage))
    return found


def _list_one_by_one(
    history: History,
    run: RunRecord,
    filters: VersionFilters,
    before: int | None,
    limit: int,
    is_unfiltered: bool,
) -> list[Version]:
    found: list[Version] = []
    number = run.last if before is None else min(run.last, before - 1)
    missing = 0
    while number > 0 and len(found) < limit:
        try:
            records = history.context.store.versions(
                run.key, before=number + 1, after=number - 1, limit=1, **filters
            )
            found += _to_versions(history, run, records)
            # In a run that was never pruned, every number has a row.
            is_damaged = is_unfiltered and not records and run.epoch == 0
            missing += is_unfiltered and not records
        except CorruptStore:
            is_damaged = True
        if is_damaged:
            # An unreadable row may be that of a pruned version.
            pruned = ", or was pruned" if run.epoch else ""
            damage = CorruptVersion(
                f"version {number} of run {run.id!r} cannot be read{pruned}: other versions stay readable; run "
                "verify, and restore this one from a bundle",
                run=run.id,
                version=number,
            )
            found.append(Version.damaged(history, history.context.reader(run), run, damage))
        number -= 1
    if is_unfiltered and number == 0 and before is None and run.epoch and missing > run.last - run.kept:
        raise CorruptStore(
            f"versions are missing from the list of run {run.id!r}: each can be read by its number; "
            "verify the store, restore the run from a bundle",
            run=run.id,
        )
    return found
