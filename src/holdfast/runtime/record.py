"""What a run has recorded: the results by address that a resumed run passes without running anything.

Only versions that the head follows count, back through the runs that it was forked from: what an abandoned timeline
did is never seen here.

Invariant: an address is recorded once; its result is what the step gave when it was recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from holdfast.errors import InvalidCall, NotFound
from holdfast.history.commit import ERROR, INPUT, RESULT
from holdfast.history.reader import Reader
from holdfast.history.seal import check
from holdfast.model.names import meant
from holdfast.model.records import VersionRecord
from holdfast.runtime.failure import revive
from holdfast.runtime.waits import facts_of
from holdfast.tree.codec import decode
from holdfast.tree.frozen import thaw

_PAGE = 2000
#: Packs that are read together.
_AHEAD = 100


class Entry(NamedTuple):
    """A recorded step."""

    address: str
    #: Its version, counted as the lineage of the run counts (see `history.reader`).
    number: int
    #: The digest of its arguments; empty where they have none.
    args: bytes
    failed: bool
    detail: dict[str, Any]
    version: VersionRecord


class Record:
    """What the head and those before it have recorded."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.steps: dict[str, Entry] = {}
        #: Recorded values: times, random numbers, …
        self.values: dict[str, Any] = {}
        #: The version that holds what the workflow was called with; None if it is not there any more.
        self.first: int | None = None
        #: By the address of a step that called steps: the version before the first of those.
        self.begun: dict[str, int] = {}
        #: The fingerprint of the code that the first version tells.
        self.code = ""
        self._order: list[VersionRecord] = []
        self._places: dict[int, int] = {}

    def load(self, head: int, forgotten: Collection[int] = ()) -> Record:
        """Read what a head and those before it have recorded, but for the failures in the versions `forgotten`."""
        skipped = {*forgotten, *_forgotten_before(self._reader)}
        for number, version in lineage(self._reader, head):
            if number not in skipped:
                self._enter(number, version, decode(version.detail) if version.detail else {})
        return self

    def enter(self, version: VersionRecord, detail: dict[str, Any]) -> None:
        """A step of this execution was recorded: code that is run once more within it passes it."""
        self._enter(version.number, version, detail)

    def forget(self, address: str, number: int) -> None:
        """What a version recorded at an address does not count any more."""
        entry = self.steps.get(address)
        if entry is not None and entry.number == number:
            del self.steps[address]

    def before(self, address: str) -> int:
        """The version before a step, and what it called, was run."""
        run = self._reader.run.id
        if address not in self.steps:
            known = (
                meant(address, self.steps) or f"; the last are: {', '.join(list(self.steps)[-10:]) or 'none'}"
            )
            raise NotFound(
                f"run {run!r} has recorded no step {address!r:.100}{known}",
                run=run,
                address=address,
            )
        inside = [each for each in self.steps.values() if each.address.startswith(f"{address}/")]
        entry = min([self.steps[address], *inside], key=lambda each: each.number)
        if entry.number < 1:
            raise InvalidCall(
                f"step {address!r} was run before {run!r} was forked: fork from before it instead", run=run
            )
        return entry.version.parent

    def at_hand(self, entry: Entry) -> bool:
        """Can what a step gave be read without asking the store?"""
        return self._reader.at_hand(entry.number)

    def fetch(self, entry: Entry) -> None:
        """Read what a step gave from the store, and along with it what will be asked for next."""
        if entry.number == entry.version.number:
            place = self._places[entry.number]
            self._reader.read_ahead(self._order[place : place + _AHEAD])

    def result(self, entry: Entry) -> Any:
        """What a step gave, as an ordinary value."""
        return thaw(self._reader.part(entry.number, RESULT))

    def error(self, entry: Entry) -> BaseException:
        """How a step failed, to be raised again."""
        return revive(self._reader.part(entry.number, ERROR) or {})

    def given(self) -> tuple[list[Any], dict[str, Any]]:
        """What the workflow was called with."""
        if self.first is None:
            run = self._reader.run.id
            raise NotFound(
                f"run {run!r} has lost its first version, which says what its workflow was called with: it can be read "
                "and forked, but not resumed",
                run=run,
            )
        return self.input(self.first)

    def input(self, number: int) -> tuple[list[Any], dict[str, Any]]:
        """What a workflow or a step was called with."""
        given = thaw(self._reader.part(number, INPUT))
        return (given[0], given[1]) if given else ([], {})

    def _enter(self, number: int, version: VersionRecord, detail: dict[str, Any]) -> None:
        if version.kind == "initial":
            self.first = number
            self.code = detail.get("code", "")
        if "values" in detail:
            self.values.update(detail["values"])
        args = detail.get("args")
        if args is None:
            return
        address: str = detail.get("address") or version.step or ""
        self.steps[address] = Entry(address, number, args, "failed" in detail, detail, version)
        around = address
        while "/" in around:
            around = around.rpartition("/")[0]
            self.begun.setdefault(around, number - (version.number - version.parent))
        self._places[number] = len(self._order)
        self._order.append(version)


def _forgotten_before(reader: Reader) -> set[int]:
    """Versions of the runs that this one was forked from whose failures count no more."""
    origin = reader.run.origin
    run = None if origin is None else reader.store.run_by_key(origin[0])
    if origin is None or run is None:
        return set()
    return {number - origin[1] for number in (*facts_of(run).failed, *_forgotten_before(reader.origin))}


def lineage(reader: Reader, head: int) -> Iterator[tuple[int, VersionRecord]]:
    """The head and all that it follows, oldest first."""
    origin = reader.run.origin
    line: list[VersionRecord] = []
    known: dict[int, VersionRecord] = {}
    after = 0
    while after < head:
        page = reader.store.versions(
            reader.run.key, after=after, before=head + 1, limit=_PAGE, ascending=True
        )
        if not page:
            break
        known.update((record.number, record) for record in page)
        after = page[-1].number
    number = head
    while number in known:
        line.append(check(reader.run.id, known[number]))
        number = known[number].parent
    if number > 0:
        raise NotFound(
            f"version {number} of run {reader.run.id!r}, of which a replay must know what it recorded, is not there: "
            "it was pruned, or did not come along with an import; the run can be read, but not resumed from here",
            run=reader.run.id,
            version=number,
        )
    if origin is not None:
        for earlier, record in lineage(reader.origin, origin[1]):
            yield earlier - origin[1], record
    for record in reversed(line):
        yield record.number, record
