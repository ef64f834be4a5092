"""Keys and attachments, in any order, on two open stores, against plain dicts.

`HOLDFAST_EXAMPLES=1000` looks deeper than a quick test run does.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from machine_values import VALUES, exactly, plain

import holdfast
from holdfast import AlreadyExists, History, Holdfast, NotFound, StaleVersion

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "10"))
STEPS = 30
MOST_RUNS = 4

#: Few, so that they meet; ordered differently by languages and by bytes.
KEYS = st.sampled_from(["a", "B", "b", "ä", "10", "9", "\U0001f40b", "a b"])
NAMES = st.sampled_from(["x", "Y", "line\nbreak", "\U0001f40b"])
VALUES_BY_NAME = st.dictionaries(NAMES, VALUES, max_size=3)


@dataclass
class RunModel:
    """A run as plain dicts."""

    id: str
    head: int = 0
    last: int = 0
    #: The versions that remain, and their keys.
    keys: dict[int, str | None] = field(default_factory=dict)
    attached: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Whether each version follows the one before.
    is_straight: bool = True

    def add(self, key: str | None, *, move: bool = True) -> int:
        self.last += 1
        self.keys[self.last] = key
        if move:
            self.head = self.last
        return self.last

    def is_taken(self, key: str | None) -> bool:
        return key is not None and key in self.keys.values()

    def named(self, key: str) -> dict[str, Any]:
        """The attachments of a key, by name."""
        return dict(sorted(self.attached.get(key, {}).items(), key=lambda item: item[0].encode()))

    def remove(self, numbers: set[int]) -> None:
        for number in numbers:
            self.attached.pop(self.keys.pop(number) or "", None)


class Machine(RuleBasedStateMachine):
    """Two engines on one store (in memory: one), and what they should say."""

    in_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="holdfast-machine-")
        self.runs: dict[str, RunModel] = {}
        self.made = 0
        self.engines = [self.open()] if self.in_memory else [self.open(), self.open()]
        self.logs: dict[tuple[int, str], History] = {}

    def open(self) -> Holdfast:
        return holdfast.open(
            ":memory:" if self.in_memory else Path(self.folder) / "runs.db", durability="memory"
        )

    def pick(self, data: st.DataObject) -> tuple[RunModel, History]:
        """Choose a run, and a history of it that is used for long, as programs do."""
        run = self.runs[data.draw(st.sampled_from(sorted(self.runs)), label="run")]
        engine = data.draw(st.sampled_from(range(len(self.engines))), label="engine")
        return run, self.logs.setdefault((engine, run.id), self.engines[engine].history(run.id))

    def new_run(self, run_id: str | None = None) -> RunModel:
        self.made += 1
        run = RunModel(run_id or f"run-{self.made}")
        self.runs[run.id] = run
        return run

    # Rules

    @initialize(key=st.none() | KEYS)
    def first(self, key: str | None) -> None:
        run = self.new_run()
        self.engines[0].history(run.id).commit({"n": run.add(key)}, key=key)

    @rule(data=st.data(), key=st.none() | KEYS, way=st.sampled_from(["plain", "expected", "after", "aside"]))
    def commit(self, data: st.DataObject, key: str | None, way: str) -> None:
        run, log = self.pick(data)
        more: dict[str, Any] = {"expected": run.head} if way == "expected" else {}
        if way in ("after", "aside"):
            more = {"after": data.draw(st.sampled_from(sorted(run.keys))), "move": way == "after"}
            run.is_straight = run.is_straight and way == "after" and more["after"] == run.head
        state = {"n": run.last + 1}
        if way == "plain":
            # Committed from the head, not from a version that this engine read before.
            log.head.state  # noqa: B018 - notes that it was read
        if run.is_taken(key):
            with pytest.raises(AlreadyExists) as refused:
                log.commit(state, key=key, **more)
            assert run.keys[refused.value.details["version"]] == key
            return
        version = log.commit(state, key=key, **more)
        assert (version.number, version.key) == (run.add(key, move=way != "aside"), key)

    @rule(data=st.data(), key=KEYS)
    def commit_with_a_wrong_expectation(self, data: st.DataObject, key: str) -> None:
        run, log = self.pick(data)
        with pytest.raises(StaleVersion):
            log.commit({"n": 0}, key=key, expected=run.last + 5)

    @rule(data=st.data(), key=KEYS, values=VALUES_BY_NAME, replace=st.booleans())
    def attach(self, data: st.DataObject, key: str, values: dict[str, Any], replace: bool) -> None:
        run, log = self.pick(data)
        named = run.attached.get(key, {})
        expected = [name for name in values if replace or name not in named]
        assert log.attach(key, values, replace=replace) == expected
        if expected:
            run.attached[key] = named | {name: plain(values[name]) for name in expected}

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        run, log = self.pick(data)
        run.head = data.draw(st.sampled_from(sorted(run.keys)), label="to")
        log.rollback(to=run.head)
        run.is_straight = False

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        run, log = self.pick(data)
        gone = data.draw(st.sets(st.sampled_from(sorted(run.keys)), max_size=4), label="versions")
        run.remove(set(log.drop(gone).versions))

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        run, log = self.pick(data)
        number = data.draw(st.sampled_from(sorted(run.keys)), label="version")
        key = run.keys[number]
        made = self.new_run()
        fork = self.engines[0].fork(log.at(number), made.id)
        made.add(key)
        if key not in run.attached:
            return
        # The attachments of a version that was continued led to the next one. Whether it was is known here only if
        # no timeline was started.
        copied = fork.attachments(key)[key]
        if run.is_straight:
            assert bool(copied) == (number == run.last)
        if copied:
            assert exactly(copied, run.named(key))
            made.attached[key] = dict(run.attached[key])

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(data=st.data())
    def export_and_import(self, data: st.DataObject) -> None:
        run, _ = self.pick(data)
        file = io.BytesIO()
        self.engines[-1].export_run(run.id, file)
        file.seek(0)
        made = self.new_run()
        self.engines[0].import_run(file, run_id=made.id)
        made.head, made.last, made.keys = run.head, run.last, dict(run.keys)
        made.is_straight = run.is_straight
        made.attached = {key: dict(named) for key, named in run.attached.items()}

    @precondition(lambda self: len(self.runs) > 1)
    @rule(data=st.data(), again=st.booleans(), key=st.none() | KEYS)
    def delete(self, data: st.DataObject, again: bool, key: str | None) -> None:
        """The id may be used again at once, while histories of the deleted run are in use."""
        run, log = self.pick(data)
        self.engines[0].delete(run.id)
        del self.runs[run.id]
        with pytest.raises(NotFound):
            log.attach("a", {"x": 1})
        if again:
            self.engines[-1].history(run.id).commit({"n": self.new_run(run.id).add(key)}, key=key)

    # What must hold

    @rule(data=st.data(), key=KEYS)
    def find(self, data: st.DataObject, key: str) -> None:
        run, log = self.pick(data)
        found = log.find(key)
        numbers = [number for number, own in run.keys.items() if own == key]
        assert ([] if found is None else [found.number]) == numbers
        if found is not None:
            assert found.state == {"n": found.number} or found.kind == "fork"
            assert exactly(found.attachments, run.named(key))

    @rule(data=st.data(), before=st.none() | KEYS, limit=st.integers(1, 9))
    def keyed_versions(self, data: st.DataObject, before: str | None, limit: int) -> None:
        run, log = self.pick(data)
        keyed = [key for key in run.keys.values() if key is not None]
        order = sorted(keyed, key=str.encode, reverse=True)
        expected = [key for key in order if before is None or key.encode() < before.encode()]
        found = [version.key for version in log.keyed_versions(before=before, limit=limit)]
        assert found == expected[:limit]

    @rule(data=st.data(), keys=st.lists(KEYS, max_size=4))
    def attachments(self, data: st.DataObject, keys: list[str]) -> None:
        run, log = self.pick(data)
        found = log.attachments(*keys)
        assert found.keys() == set(keys)
        for key, named in found.items():
            assert exactly(named, run.named(key))

    @invariant()
    def heads(self) -> None:
        for run in self.runs.values():
            head = self.engines[-1].history(run.id).head
            assert (head.number, head.key) == (run.head, run.keys[run.head])

    def teardown(self) -> None:
        try:
            report = self.engines[0].verify()
            assert report.ok, [str(problem) for problem in report.problems]
            assert report.versions == sum(len(run.keys) for run in self.runs.values())
        finally:
            for hf in self.engines:
                hf.close()
            shutil.rmtree(self.folder)


class MemoryMachine(Machine):
    in_memory = True


_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestOnSQLite = Machine.TestCase
TestOnSQLite.settings = _SETTINGS
TestInMemory = MemoryMachine.TestCase
TestInMemory.settings = _SETTINGS
