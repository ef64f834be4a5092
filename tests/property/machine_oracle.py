"""The model of the state machine: runs as plain deep copies, and what History should answer about them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from machine_values import Path, exactly, places, plain, reach

from holdfast import History, NotFound, Retention, Version
from holdfast.model.public import Event

#: Stands for "there is nothing at this path".
NOTHING: Any = object()


@dataclass
class Known:
    """A version as it should be."""

    number: int
    parent: int | None
    timeline: int
    kind: str
    at: float
    state: Any
    step: str | None = None
    result: Any = None
    status: str = "running"
    merged: int | None = None
    tags: set[str] = field(default_factory=set)
    pinned: bool = False


@dataclass
class RunModel:
    """A run as it should be."""

    id: str
    kept: dict[int, Known] = field(default_factory=dict)
    pruned: set[int] = field(default_factory=set)
    head: int = 0
    last: int = 0
    #: Where each timeline started, beginning with the first.
    starts: list[int | None] = field(default_factory=lambda: [None])
    origin: tuple[str, int] | None = None

    @property
    def state(self) -> Any:
        return self.kept[self.head].state

    def add(self, state: Any, at: float, *, kind: str | None = None, **facts: Any) -> Known:
        """The next version."""
        parent = self.head or None
        self.last += 1
        self.head = self.last
        if kind is None:
            kind = "step" if facts.get("step") is not None else "manual" if parent else "initial"
        status = facts.pop("status", None) or (self.kept[parent].status if parent else "running")
        known = Known(self.last, parent, len(self.starts), kind, at, plain(state), status=status, **facts)
        self.kept[self.last] = known
        return known

    def roll_back(self, to: int) -> None:
        self.head = to
        self.starts.append(to)

    def copy(self, run_id: str) -> RunModel:
        """The same history under another id, on its own."""
        kept = {
            number: replace(known, state=plain(known.state), tags=set(known.tags))
            for number, known in self.kept.items()
        }
        return replace(
            self, id=run_id, kept=kept, pruned=set(self.pruned), starts=list(self.starts), origin=None
        )

    def prune(self, policy: Retention, now: float, fork_points: set[int]) -> set[int]:
        """Return the versions that a policy removes."""
        newest = sorted(self.kept.values(), key=lambda known: -known.number)
        keep = {self.head} | fork_points
        keep |= {known.number for known in newest if known.tags or known.pinned}
        keep |= {known.number for known in newest[: policy.last or 0]}
        if policy.within is not None:
            keep |= {known.number for known in newest if known.at >= now - policy.within.total_seconds()}
        for count, period in ((policy.hourly, _hour), (policy.daily, _day), (policy.weekly, _week)):
            seen: list[Any] = []
            for known in newest:
                when = period(dt.datetime.fromtimestamp(known.at, dt.UTC))
                if when not in seen and len(seen) < (count or 0):
                    seen.append(when)
                    keep.add(known.number)
        return set(self.kept) - keep

    def let_go(self, numbers: set[int]) -> None:
        for number in numbers:
            del self.kept[number]
        self.pruned |= numbers

    def blame(self, path: Path) -> int:
        """The newest ancestor at which the value at a path became what it is; the last one before a gap, if none."""
        value = reach(self.state, path)
        number = self.head
        while True:
            known = self.kept[number]
            for before in (known.parent, known.merged):
                if before in self.kept and exactly(find(self.kept[before].state, path), value):
                    number = before
                    break
            else:
                return number

    def ancestors(self, number: int) -> Iterator[int]:
        """A version and those it follows, up to where versions are gone."""
        at: int | None = number
        while at in self.kept:
            yield at
            at = self.kept[at].parent


def filtered(run_model: RunModel, wanted: dict[str, Any]) -> list[int]:
    """The versions that a list with these filters shows, newest first."""
    return [
        known.number
        for known in sorted(run_model.kept.values(), key=lambda known: -known.number)
        if wanted["timeline"] in (None, known.timeline)
        and wanted["step"] in (None, known.step)
        and wanted["kind"] in (None, known.kind)
        and (wanted["tag"] is None or wanted["tag"] in known.tags)
        and (wanted["before"] is None or known.number < wanted["before"])
    ]


def check_version(version: Version, known: Known) -> None:
    """A version says what it should, to the last bit."""
    assert (version.number, version.parent, version.timeline) == (known.number, known.parent, known.timeline)
    assert (version.kind, version.step, version.status) == (known.kind, known.step, known.status)
    assert (set(version.tags), version.pinned) == (known.tags, known.pinned)
    assert version.at == dt.datetime.fromtimestamp(known.at, dt.UTC)
    assert exactly(plain(version.state), known.state)
    assert exactly(plain(version.result), known.result)


def check_run(log: History, run_model: RunModel) -> None:
    """Everything that is known about a run."""
    listed = log.versions(limit=10_000)
    assert [version.number for version in listed] == sorted(run_model.kept, reverse=True)
    assert set(run_model.kept) | run_model.pruned == set(range(1, run_model.last + 1))
    for version in listed:
        check_version(version, run_model.kept[version.number])
    for number in run_model.pruned:
        with pytest.raises(NotFound):
            log.at(number)
    assert [(line.number, line.parent) for line in log.timelines()] == list(enumerate(run_model.starts, 1))
    line = list(run_model.ancestors(run_model.head))
    assert [version.number for version in log.ancestors()] == line
    assert [log.at(f"~{back}").number for back in range(len(line))] == line
    saved = [event.version for event in read_all(log) if event.kind == "version.saved"]
    assert saved == sorted(run_model.kept)


def check_blame(log: History, run_model: RunModel) -> None:
    """Some places near the root, and some anywhere."""
    found = list(places(run_model.state))
    for path, value in found[:10] + found[10 :: len(found) // 10 + 1]:
        blamed = log.blame(path)
        assert (blamed.version.number, path) == (run_model.blame(path), path)
        assert exactly(plain(blamed.value), value)


def read_all(log: History) -> list[Event]:
    """The journal as a subscriber reads it: page by page, each from the cursor of the last."""
    found: list[Event] = []
    while page := log.events(after=found[-1].cursor if found else 0, limit=3):
        found += page
    return found


def find(state: Any, path: Path) -> Any:
    """Return the value at a place of a plain state, or NOTHING."""
    for key in path:
        if type(state) is dict:
            state = state.get(key, NOTHING)
        elif type(state) in (list, tuple) and type(key) is int and key < len(state):
            state = state[key]
        else:
            return NOTHING
    return state


def _hour(time: dt.datetime) -> Any:
    return time.replace(minute=0, second=0, microsecond=0)


def _day(time: dt.datetime) -> Any:
    return time.date()


def _week(time: dt.datetime) -> Any:
    return time.isocalendar()[:2]
