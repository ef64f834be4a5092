"""The results that a run has recorded, by address, which a resumed run replays without running anything.

Only versions that the head follows count, back through the runs that it was forked from: abandoned timelines do not.

Invariant: an address is recorded once; its result is the result of the step at the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

from holdfast.errors import InvalidCall, NotFound
from holdfast.execution.exception_codec import revive
from holdfast.execution.replay_cursor import ExpectedCalls, VoidedSteps, calls_by_frame, sleep_indexes
from holdfast.history.builder import ERROR, INPUT, RESULT
from holdfast.history.hashes import check_hash
from holdfast.history.reader import Reader
from holdfast.model.names import suggest
from holdfast.model.records import VersionRecord
from holdfast.model.run_detail import Wait, detail_of
from holdfast.tree.codec import decode
from holdfast.tree.frozen import thaw

_PAGE = 2000
#: Kinds of versions without arguments that an execution of a run makes.
_INSIDE = frozenset(("initial", "final"))
#: Packs that are read together.
_AHEAD = 100


class RecordedStep(NamedTuple):
    """A recorded step."""

    address: str
    #: Its version, counted as the lineage of the run counts (see `history.reader`).
    number: int
    #: The digest of its arguments; empty where they have none.
    args: bytes
    failed: bool
    detail: dict[str, Any]
    version: VersionRecord


class ReplayLog:
    """The calls that the head and the versions before it have recorded."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.steps: dict[str, RecordedStep] = {}
        #: Recorded values: times, random numbers, …
        self.values: dict[str, Any] = {}
        #: The version that holds the arguments of the workflow; None if it was pruned.
        self.first: int | None = None
        #: By the address of a step that called steps: the version before the first of those.
        self.before_inner: dict[str, int] = {}
        #: Versions that were made from outside the run.
        self.outside: list[int] = []
        #: The fingerprint of the code, from the first version.
        self.code = ""
        #: Addresses of steps whose recorded failures do not count any more: they are run again.
        self.failed: frozenset[str] = frozenset()
        self._void: VoidedSteps | None = None
        #: By step: the implementation that a version named last (see `history.version`), and that version.
        self.ran: dict[str, tuple[list[Any], int]] = {}
        self._order: list[VersionRecord] = []
        self._places: dict[int, int] = {}

    def load(
        self, head: int, dropped_failures: Collection[int] = (), retried: Mapping[str, int] | None = None
    ) -> ReplayLog:
        """Read what a head and the versions before it have recorded, without the failures that the versions
        `dropped_failures` hold. `retried` is, by the address of a step, the head when an attempt at it failed last."""
        skipped = {*dropped_failures, *_dropped_before(self._reader)}
        dropped: dict[str, int] = {}
        for number, version in lineage(self._reader, head):
            detail = decode(version.detail) if version.detail else {}
            if number not in skipped:
                self._enter(number, version, detail)
            else:
                dropped.setdefault(detail.get("address") or version.step or "", number)
        self.failed = frozenset(dropped)
        spans = [(number, self._again(address, number)) for address, number in dropped.items()]
        self._void = VoidedSteps(spans, retried or {}) if spans or retried else None
        return self

    def expected(self, values: Mapping[str, Any], waits: Iterable[Wait] = ()) -> dict[str, ExpectedCalls]:
        """Return the calls that a replay makes, by the address of their frame. `values` are recorded values that no
        version holds yet, `waits` the waits of the run."""
        sleeps = sleep_indexes({**self.values, **values}) if self.values or values else {}
        sleeps.update((wait.address, wait.call[-1]) for wait in waits if wait.kind == "time" and wait.call)
        sure = [wait for wait in waits if self._is_expected(wait)]
        return calls_by_frame(self.steps.values(), sleeps, self._void, sure)

    def _is_expected(self, wait: Wait) -> bool:
        """Return whether the same code reaches a question, an event or a child again. That is not certain if a failure
        before it was dropped, or if the state was edited since."""
        if wait.kind == "time" or not wait.call:
            return False
        if self.outside and self.outside[-1] > wait.head:
            return False
        void = self._void
        return void is None or not any(
            void.covers(wait.address, number) for number in (wait.head, wait.head + 1)
        )

    def to_return(self) -> list[RecordedStep]:
        """Return the recorded calls that a replay makes."""
        return [entry for entry in self.steps.values() if not self._is_left_out(entry)]

    def _is_left_out(self, entry: RecordedStep) -> bool:
        """Return whether a replay need not call a step, because it is void or within a recorded step."""
        if self._void is not None and self._void(entry):
            return True
        around = entry.address
        while "/" in around:
            around = around.rpartition("/")[0]
            if around in self.steps:
                return True
        return False

    def _again(self, address: str, number: int) -> float:
        """Return the version that recorded a step again after its failure was dropped."""
        entry = self.steps.get(address)
        return entry.number if entry is not None and entry.number > number else inf

    def enter(self, version: VersionRecord, detail: dict[str, Any]) -> None:
        """Enter a step that this execution recorded, so that code which is run again replays it."""
        self._enter(version.number, version, detail)

    def drop(self, address: str, number: int) -> None:
        """Drop the recorded result of an address if this version recorded it."""
        entry = self.steps.get(address)
        if entry is not None and entry.number == number:
            del self.steps[address]

    def before(self, address: str) -> int:
        """Return the version before a step, and the steps that it called, ran."""
        run = self._reader.run.id
        if address not in self.steps:
            known = (
                suggest(address, self.steps)
                or f"; the last are: {', '.join(list(self.steps)[-10:]) or 'none'}"
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

    def is_cached(self, entry: RecordedStep) -> bool:
        """Return whether the result of a step can be read without the store."""
        return self._reader.is_cached(entry.number)

    def fetch(self, entry: RecordedStep) -> None:
        """Read the result of a step from the store, together with those that are likely to be requested next."""
        if entry.number == entry.version.number:
            place = self._places[entry.number]
            self._reader.prefetch(self._order[place : place + _AHEAD])

    def result(self, entry: RecordedStep) -> tuple[Any, Any]:
        """Return the result of a step as an ordinary value, and in its internal form."""
        frozen = self._reader.root(entry.number, RESULT)
        return thaw(self._reader.show(frozen)), frozen

    def error(self, entry: RecordedStep) -> BaseException:
        """Return the error of a failed step, to be raised again."""
        return revive(self._reader.part(entry.number, ERROR) or {})

    def given(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the workflow."""
        if self.first is None:
            run = self._reader.run.id
            raise NotFound(
                f"the first version of run {run!r}, which holds the arguments of its workflow, is missing: the run can "
                "be read and forked, but not resumed",
                run=run,
            )
        return self.input(self.first)

    def input(self, number: int) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a workflow or a step."""
        given = thaw(self._reader.part(number, INPUT))
        return (given[0], given[1]) if given else ([], {})

    def call(self, entry: RecordedStep) -> Any:
        """Return the stored call of a step in its internal form (see `history.version`); None if its version stores
        none."""
        return self._reader.root(entry.number, INPUT)

    def _enter(self, number: int, version: VersionRecord, detail: dict[str, Any]) -> None:
        if version.kind == "initial":
            self.first = number
            self.code = detail.get("code", "")
        if "values" in detail:
            self.values.update(detail["values"])
        args = detail.get("args")
        if args is None:
            if version.kind not in _INSIDE:
                self.outside.append(number)
            return
        if "ran" in detail:
            self.ran[version.step or ""] = (detail["ran"], number)
        address: str = detail.get("address") or version.step or ""
        self.steps[address] = RecordedStep(address, number, args, "failed" in detail, detail, version)
        around = address
        while "/" in around:
            around = around.rpartition("/")[0]
            self.before_inner.setdefault(around, number - (version.number - version.parent))
        self._places[number] = len(self._order)
        self._order.append(version)


def _dropped_before(reader: Reader) -> set[int]:
    """Return the versions of the runs that this one was forked from whose failures were dropped."""
    origin = reader.run.origin
    run = None if origin is None else reader.store.run_by_key(origin[0])
    if origin is None or run is None:
        return set()
    return {number - origin[1] for number in (*detail_of(run).failed, *_dropped_before(reader.origin))}


def lineage(reader: Reader, head: int) -> Iterator[tuple[int, VersionRecord]]:
    """Yield the head and all versions that it follows, oldest first."""
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
        line.append(check_hash(reader.run.id, known[number]))
        number = known[number].parent
    if number > 0:
        raise NotFound(
            f"version {number} of run {reader.run.id!r}, which a replay needs, is missing: it was pruned, or an import "
            "did not include it; the run can be read, but not resumed from here",
            run=reader.run.id,
            version=number,
        )
    if origin is not None:
        for earlier, record in lineage(reader.origin, origin[1]):
            yield earlier - origin[1], record
    for record in reversed(line):
        yield record.number, record
