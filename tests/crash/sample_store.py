"""A small store with every kind of row, and functions that read all of it.

Invariant: `read_all` reads everything that a caller can see, each part by a call of its own. A damaged store returns
what the undamaged store returns, or raises an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast import History, Holdfast, HoldfastError, Retention, Version

#: Reads by name: the entries that were read, as text, or the error.
Readings = dict[str, "tuple[str, ...] | HoldfastError"]


def build(path: Path) -> None:
    """Create the store, and close it, so that all data is in the file."""
    rng = random.Random(5)
    ticks = iter(range(1_700_000_000, 1_800_000_000))
    with holdfast.open(path, durability="fast", clock=lambda: float(next(ticks))) as hf:
        _conversation(hf.history("talk"), rng)
        _plan(hf.history("plan/2"), rng)
        fork = hf.fork("talk@6", "talk-fork", note="another model")
        for number in range(4):
            with fork.edit(step="retry", tags=["tried"]) as state:
                state["messages"].append({"role": "fork", "content": f"again {number}"})
        hf.gc(grace=0, compact=True)


def _conversation(log: History, rng: random.Random) -> None:
    messages = [{"role": "user", "content": rng.randbytes(40).hex()} for _ in range(28)]
    log.commit({"messages": messages, "notes": {}}, note="begins", actor="ada")
    for number in range(14):
        with log.edit(
            step=f"say {number % 3}", result={"n": number}, annotations={"tokens": number}
        ) as state:
            state["messages"].append({"role": "agent", "content": f"{number}: " + rng.randbytes(40).hex()})
            if number % 4 == 3:
                state["notes"][f"note {number}"] = holdfast.artifact(rng.randbytes(300), name=f"{number}.bin")
    log.tag(5, "good")
    log.tag(9, "good")
    log.tag(9, "reviewed")
    log.pin(7)
    log.rollback(to=9, reason="went wrong", actor="eve")
    log.commit({"document": rng.randbytes(66_000)}, tags=["short"], error={"type": "Timeout"})
    log.rollback(to=14)
    for number in range(3):
        log.commit({**log.head.state, "extra": [number] * 40}, step="extra", note=f"extra {number}")


def _plan(log: History, rng: random.Random) -> None:
    documents = {f"doc-{n}": {"text": rng.randbytes(60).hex(), "n": n} for n in range(60)}
    log.commit({"documents": documents, "plan": {"tasks": [{"id": n, "done": False} for n in range(8)]}})
    for number in range(16):
        with log.edit(step="replace", actor="bob") as state:
            state["documents"][f"doc-{number * 7 % 60}"] = {"text": rng.randbytes(60).hex(), "n": number}
            state["plan"]["tasks"][number % 8]["done"] = number % 2 == 0
        if number % 6 == 0:
            log.tag("head", f"mile-{number}")
    log.pin(4)
    log.prune(Retention(last=4))


def read_all(path: Path) -> Readings:
    """Return the results, or errors, of all reads of a store."""
    found: Readings = {}
    try:
        hf = holdfast.open(path, timeout=0.2)
    except HoldfastError as error:
        return {"open": error}
    with hf:
        for name, read in _reads(hf):
            try:
                found[name] = tuple(map(repr, read()))
            except HoldfastError as error:
                found[name] = error
    return found


#: The runs of the store, and the versions of each that can be read.
RUNS = {
    "talk": tuple(range(1, 20)),
    "plan/2": (2, 4, 8, 14, 15, 16, 17),
    "talk-fork": tuple(range(1, 6)),
}
_PATHS = {"talk": "messages[30].content", "plan/2": "documents.doc-45.text", "talk-fork": "messages[2]"}


def is_loose(name: str) -> bool:
    """Return whether this list may silently lose entries if the database is damaged (`verify` detects that): the number
    of tags, of events and of matches of a search is not stored."""
    return name == "events" or name.endswith((" tags", " events", " by step", " by tag")) or ":" in name


def _reads(hf: Holdfast) -> Iterator[tuple[str, Callable[[], Iterable[Any]]]]:
    yield "runs", lambda: [replace(run, tags=()) for run in hf.runs()]
    yield "runs' tags", lambda: [(run.id, tag) for run in hf.runs() for tag in run.tags]
    yield "runs by tag", lambda: [run.id for run in hf.runs(tags=["good"])]
    yield "events", hf.events
    for run, numbers in RUNS.items():
        log = hf.history(run)
        yield f"{run} versions", partial(_versions, log)
        yield f"{run} tags", partial(_all_tags, log)
        yield f"{run} timelines", log.timelines
        yield f"{run} events", log.events
        yield f"{run} blame", partial(_blame, log, _PATHS[run])
        for number in numbers:
            yield f"{run}@{number}", partial(_whole, log, number)
    yield "talk by step", partial(_versions, hf.history("talk"), step="say 1")
    for tag in ("good", "short"):
        yield f"talk:{tag}", partial(_whole, hf.history("talk"), tag)
    yield "artifacts", lambda: _artifacts(hf)


def _versions(log: History, step: str | None = None) -> list[list[Any]]:
    return [_facts(version) for version in log.versions(step=step)]


def _all_tags(log: History) -> list[tuple[int, str]]:
    return [
        (version.number, tag)
        for version in log.versions()
        for tag in [*version.tags, *(["(pin)"] if version.pinned else [])]
    ]


def is_damaged(entry: str) -> bool:
    """Return whether an entry of a list is that of a damaged version."""
    return entry.endswith(", 'damaged']")


def holds(reading: tuple[str, ...], sound: tuple[str, ...]) -> bool:
    """Return whether a reading equals that of the undamaged store except for versions listed as damaged. Their numbers
    may be wrong: the number itself can be damaged, and is not stored elsewhere for a pruned run."""
    entries = iter(sound)
    return len(reading) >= len(sound) and all(entry in entries for entry in reading if not is_damaged(entry))


def _facts(version: Version) -> list[Any]:
    if version.is_damaged:
        return [version.number, "damaged"]
    return [
        *(version.number, version.parent, version.timeline, version.kind, version.status, version.step),
        *(version.steps, version.at, version.size, version.hash, version.detail),
    ]


def _whole(log: History, ref: int | str) -> list[Any]:
    version = log.at(ref)
    return [[_facts(version), version.state, version.result, version.annotations, version.error]]


def _blame(log: History, path: str) -> list[Any]:
    found = log.blame(path)
    return [[found.path, found.value, found.version.number]]


def _artifacts(hf: Holdfast) -> Iterator[tuple[str, str | None, bytes]]:
    notes = hf.history("talk").at(15).state["notes"]
    for handle in notes.values():
        yield handle.digest, handle.name, handle.read()
        yield handle.digest, None, hf.artifact(handle.digest).read()
