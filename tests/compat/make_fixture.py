"""Writes the fixtures of the present format: `python tests/compat/make_fixture.py`, once for each format.

A fixture is a SQLite store, a bundle, a snapshot, and what they say: a digest for each state, result, … of
each version, in portable JSON. It is noted from the plain values as they are committed, not read back from
the store. Once checked in, a fixture is never written again; a format that changes gets a number and fixtures
of its own.
"""

from __future__ import annotations

import copy
import datetime as dt
import enum
import json
import math
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pydantic

import holdfast
from holdfast import History, Holdfast, Opaque, Retention, Version
from holdfast.tree.portable import to_json

FORMAT = 6
HERE = Path(__file__).parent
#: The run that goes into the bundle, and the version that becomes the snapshot.
BUNDLED, EXPORTED = "talk", "values@1"


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Point:
    x: int
    y: float
    notes: list[Any] = field(default_factory=list)


class Pair(NamedTuple):
    left: Any
    right: Any


class Task(msgspec.Struct):
    title: str
    done: bool = False


class Model(pydantic.BaseModel):
    name: str
    score: float = 0.5


class Refused(Exception):
    pass


for _cls in (Color, Mode, Point, Pair, Task, Model, Refused):
    holdfast.register(_cls, f"fixture.{_cls.__name__}")


def values() -> dict[str, Any]:
    """Return one value of each kind that can be stored."""
    refused = Refused("no", 7)
    refused.code = 403  # type: ignore[attr-defined]
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, 1, -1, 127, 128, -129, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 64, -(1 << 200)],
        "floats": [0.0, -0.0, 1.0, 0.1, 5e-324, 1.7e308, math.inf, -math.inf, math.nan],
        "text": ["", "plain", "Grüße, 世界 🪸", "\x00\n", "lone \ud800", "x" * 600],
        "bytes": [b"", b"\x00\xff", b"y" * 600],
        "look-alikes": [1, 1.0, True, "1", b"1"],
        "marker": {"$holdfast": "tuple", "value": [1]},
        "keys": {None: 0, True: 1, 2: 2, 3.5: 3, "four": 4, b"five": 5, (6, ("six",)): 6, UUID(int=7): 7},
        "odd keys": {"\ud800": 1, 1 << 70: 2, frozenset({1}): 3, dt.date(2024, 2, 29): 4, Color.RED: 5},
        "tuples": [(), (1,), (1, (2, [3]))],
        "sets": [set(), {1, "two", (3,)}, frozenset({b"x", None})],
        "times": [
            dt.datetime(2024, 2, 29, 12, 30, 1, 999),  # noqa: DTZ001 - one without a zone is meant
            dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            dt.datetime(1, 1, 1, tzinfo=dt.UTC),
            dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30), "odd")),
            dt.date(9999, 12, 31),
            dt.time(23, 59, 59, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
            dt.timedelta(days=-1, seconds=3, microseconds=7),
            ZoneInfo("America/New_York"),
            dt.UTC,
        ],
        "numbers": [
            Decimal("1.10"),
            Decimal("-0E+3"),
            Decimal("NaN"),
            Fraction(-1, 3),
            complex(-0.0, math.inf),
        ],
        "uuid": UUID("12345678-1234-5678-1234-567812345678"),
        "paths": [Path("a/b.txt"), PurePosixPath("/etc"), PureWindowsPath("C:\\x")],
        "bytearray": bytearray(b"abc"),
        "deque": deque([1, [2]], maxlen=5),
        "ordered": OrderedDict([("b", 1), ("a", OrderedDict())]),
        "range": range(1, 10, 3),
        "errors": [ValueError("bad", 1), KeyError("k"), OSError(2, "No such file", "x.txt"), refused],
        "enums": [Color.RED, Color.BLUE, Mode.READ | Mode.WRITE],
        "dataclass": Point(1, 2.0, [{"deep": Point(3, 4.0)}]),
        "named": Pair((1, 2), {"k": [3]}),
        "struct": Task("write", True),
        "model": Model(name="m", score=1.5),
        "unknown": Opaque("fixture.Gone", {"kept": [1, "two"]}),
        "arrays": [np.arange(6, dtype="<i4").reshape(2, 3), np.array([1.5, np.nan]), np.float32(0.25)],
        "empty": [{}, [], "", (), set()],
        "nested": {"a": [{"b": ({"c": [1, {"d": None}]},)}]},
    }


def digest(value: Any) -> str:
    """Return a digest of a value as portable JSON, in which types, bits and the order of keys matter."""
    return sha256(json.dumps(to_json(value)).encode()).hexdigest()[:32]


class Script:
    """Writer of versions that records what each version must contain from then on."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.expected: dict[str, dict[str, str]] = {}

    def commit(self, log: History, state: Any, **facts: Any) -> Version:
        version = log.commit(copy.deepcopy(state), **facts)
        self.note(version, state, facts)
        return version

    def edit(self, log: History, state: Any, change: Callable[[Any], Any], **facts: Any) -> None:
        """Change a state in place, and the head in the same way."""
        with log.edit(**facts) as draft:
            change(draft)
        change(state)
        self.note(log.head, state, facts)

    def forget(self, run: str, numbers: Any) -> None:
        for number in numbers:
            del self.expected[f"{run}@{number}"]

    def note(self, version: Version, state: Any, facts: dict[str, Any]) -> None:
        parts = {"state": state, **{name: facts.get(name) for name in ("result", "annotations", "error")}}
        self.expected[f"{version.run}@{version.number}"] = {
            name: digest(part) for name, part in parts.items() if name == "state" or part is not None
        }


def play(hf: Holdfast) -> dict[str, dict[str, str]]:
    """Fill a store; return what each version that remains must contain."""
    script = Script(hf)
    _values(script)
    _talk(script)
    _large(script)
    _objects(script)
    _forks(script)
    _flows(script)
    hf.gc(grace=0)
    return script.expected


def _values(script: Script) -> None:
    log = script.hf.history("values")
    everything = values()
    script.commit(log, everything, note="all of them", actor="maker", tags=["all"])
    script.commit(
        log, [everything], step="as a list", result=everything, annotations={"model": "m-1", "tokens": 12}
    )
    for number, (name, value) in enumerate(everything.items()):
        script.commit(log, value, step=name, kind="timed" if number % 2 else None)
    failed = {"type": "ValueError", "message": "bad", "traceback": "Traceback …"}
    script.commit(log, {}, step="fails", error=failed, status="failed", kind="final")


def _talk(script: Script) -> None:
    """A long list, sealed as it grows; timelines, a merge, tags, a pin, keys, attachments, a pruning."""
    log = script.hf.history("talk")
    state: Any = {"messages": [], "plan": {"tasks": [{"id": n, "done": False} for n in range(5)]}}
    script.commit(log, state, kind="initial", key="first")
    log.attach("first", {"pruned": True})
    for number in range(70):
        message = {"role": "agent", "content": _message(number)}
        script.edit(log, state, partial(_append, message), step="say")
    script.edit(log, state, lambda at: at["plan"]["tasks"][3].update(done=True), step="plan", result="done")
    script.edit(log, state, lambda at: at["messages"].__delitem__(40))
    log.tag(10, "tenth")
    log.tag("head", "complete")
    log.pin(20)
    back: Any = {"messages": state["messages"][:30], "plan": copy.deepcopy(state["plan"])}
    back["plan"]["tasks"][3]["done"] = False
    log.rollback(to=31, reason="another try", actor="operator")
    script.edit(log, back, lambda at: at.update(more=[1]), step="more", tags=["second"])
    script.note(log.merge("complete", note="joined"), {**state, "more": [1]}, {})
    log.attach("Grüße 🪸", {"before": values()})
    script.commit(log, {**state, "more": [2]}, key="Grüße 🪸")
    log.attach("Grüße 🪸", {"after": ["long " * 2_000], "with\nnewline": None})
    log.attach("not yet", {"name": {"n": 1}})
    gone = log.prune(Retention(last=12)).versions
    script.forget("talk", gone)


def _append(message: Any, at: Any) -> None:
    at["messages"].append(message)


def _message(number: int) -> str:
    return f"message {number} " + "lorem ipsum " * (number % 9)


def _large(script: Script) -> None:
    """Wide dicts, packs of several blocks, long leaves, artifacts."""
    log = script.hf.history("large/1")
    state: Any = {"wide": {f"key {n}": {"n": n} for n in range(700)}, "numbers": list(range(1200))}
    script.commit(log, state)
    script.edit(log, state, lambda at: at["wide"].update({"key 7": "seven", "new": 1}))
    script.edit(log, state, lambda at: at["wide"].pop("key 300"))
    script.edit(log, state, lambda at: at["numbers"].extend(range(50)))
    script.edit(log, state, lambda at: at["numbers"].__setitem__(500, "changed"))
    state["blocks"] = {f"page {n}": f"{n} " * 1500 for n in range(40)}
    script.commit(log, state)
    state["leaf"] = "leaf " * 14_000
    state["file"] = [holdfast.artifact(b"content of a file " * 20, name="file.txt")]
    script.commit(log, state, result={"report": holdfast.artifact(b"report")})
    script.edit(log, state, lambda at: at["blocks"].update({"page 3": "short"}))


def _objects(script: Script) -> None:
    """A long list of objects, sealed as it grows, of which one is replaced."""
    log = script.hf.history("objects")
    state: Any = {"messages": []}
    script.commit(log, state)
    for number in range(36):
        point = Point(number, 0.5, [_message(number), "a note " * 12])
        script.edit(log, state, partial(_append, point))
    script.edit(log, state, lambda at: at["messages"].__setitem__(7, Task("another")))


def _forks(script: Script) -> None:
    """A fork that shares its origin, and one whose origin is gone."""
    fork = script.hf.fork("talk:tenth", "talk-fork", note="another model")
    base = {
        "messages": [{"role": "agent", "content": _message(n)} for n in range(9)],
        "plan": {"tasks": [{"id": n, "done": False} for n in range(5)]},
    }
    script.note(fork.head, base, {})
    script.edit(
        fork, base, lambda at: at["messages"].append({"role": "fork", "content": "hello"}), step="say"
    )
    gone = script.hf.history("origin")
    state: Any = {"kept": [{"text": f"from the origin {n}" * 8} for n in range(40)], "n": 0}
    gone.commit(state)
    orphan = script.hf.fork("origin", "orphan")
    script.note(orphan.head, state, {})
    script.edit(orphan, state, lambda at: at.update(n=1))
    script.hf.delete("origin")


@holdfast.step(name="fixture.go")
def go(by: int) -> dict[str, Any]:
    state = holdfast.state()
    state["at"].append({"by": by, "note": _message(by)})
    holdfast.annotate(model="m-1", tokens=by)
    return {"there": [by] * by}


@holdfast.workflow(name="fixture.travel", version="1")
def travel(far: int) -> list[Any]:
    results: list[Any] = [go(by) for by in range(1, far + 1)]
    return [*results, holdfast.ask("Further?", schema=bool)]


def _flows(script: Script) -> None:
    """A workflow that waits for an answer."""
    run = script.hf.run(travel, 3, run_id="travel", state={"at": []})
    steps = [{"by": by, "note": _message(by)} for by in range(1, 4)]
    log = run.history()
    script.note(log.at(1), {"at": []}, {})
    for by in range(1, 4):
        facts = {"result": {"there": [by] * by}, "annotations": {"model": "m-1", "tokens": by}}
        script.note(log.at(by + 1), {"at": steps[:by]}, facts)


def describe(hf: Holdfast) -> dict[str, Any]:
    """Return what a store records about its runs besides their states, as JSON."""
    return {
        run.id: {
            "status": run.status,
            "head": run.head,
            "origin": run.origin,
            "versions": [_facts(version) for version in hf.history(run.id).versions(limit=10_000)],
            "timelines": [
                [line.number, line.parent, line.at.isoformat(), line.reason, line.actor]
                for line in hf.history(run.id).timelines()
            ],
            "events": [
                [event.kind, event.at.isoformat(), event.version, event.step, to_json(event.data)]
                for event in hf.history(run.id).events()
            ],
            **_keys(hf.history(run.id)),
        }
        for run in hf.runs()
    }


def _keys(log: History) -> dict[str, Any]:
    """Return the keys of a run, and digests of its attachments; nothing for a run without, as in earlier formats."""
    keyed: list[list[Any]] = [[version.key, version.number] for version in log.keyed_versions()]
    named = {
        key: {name: digest(value) for name, value in attached.items()}
        for key, attached in log.attachments("first", "not yet", *(key for key, _ in keyed)).items()
        if attached
    }
    return {"keys": keyed, "attachments": named} if keyed or named else {}


def _facts(version: Version) -> list[Any]:
    return [
        *(version.number, version.parent, version.timeline, version.kind, version.status, version.step),
        *(version.steps, version.at.isoformat(), version.note, version.actor, list(version.tags)),
        *(version.pinned, version.hash),
    ]


def clock() -> Callable[[], float]:
    """Return a clock that gives the same times whenever it is started."""
    ticks = iter(range(1_700_000_000, 1_800_000_000))
    return lambda: next(ticks) + 0.25


def main() -> None:
    names = {kind: HERE / f"format-{FORMAT}.{kind}" for kind in ("sqlite", "bundle", "json", "expected.json")}
    if any(path.exists() for path in names.values()):
        sys.exit(f"the fixtures of format {FORMAT} exist: a fixture is never written again")
    with holdfast.open(names["sqlite"], clock=clock()) as hf:
        expected = play(hf)
        hf.export_run(BUNDLED, names["bundle"])
        snapshot = hf.version(EXPORTED)
        _dump(names["json"], hf.history(snapshot.run).export(snapshot))
        _dump(names["expected.json"], {"versions": expected, "runs": describe(hf)})
        hf.gc(grace=0, compact=True)
    for path in names.values():
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def _dump(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
