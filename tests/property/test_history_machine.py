"""Every operation of a history, in any order, on one and on two open stores, against plain deep copies.

`HOLDFAST_EXAMPLES=1000` looks deeper than a quick test run does.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from machine_oracle import Known, RunModel, check_blame, check_run, check_version, filtered
from machine_values import POLICIES, STATES, VALUES, change, exactly, plain, rearranged

import holdfast
from holdfast import History, Holdfast, NotFound, Retention, StaleVersion, thaw

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "10"))
STEPS = 25
MOST_RUNS = 5

TAGS = ["good", "bad", "v1"]


class Boom(Exception):
    """The error of a step."""


class Machine(RuleBasedStateMachine):
    """Two engines on one store (in memory: one), and what they should say."""

    in_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="holdfast-machine-")
        self.now = 1_700_000_000.0
        self.runs: dict[str, RunModel] = {}
        self.made = 0
        self.engines = [self.open()] if self.in_memory else [self.open(), self.open()]
        self.logs: dict[tuple[int, str], History] = {}

    def open(self) -> Holdfast:
        where = ":memory:" if self.in_memory else str(Path(self.folder) / "runs.db")
        return holdfast.open(where, durability="memory", clock=lambda: self.now)

    # Choosing

    def engine(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(range(len(self.engines))), label="engine")

    def run(self, data: st.DataObject) -> RunModel:
        return self.runs[data.draw(st.sampled_from(sorted(self.runs)), label="run")]

    def version(self, data: st.DataObject, run_model: RunModel) -> Known:
        return run_model.kept[data.draw(st.sampled_from(sorted(run_model.kept)), label="version")]

    def log(self, engine: int, run_id: str) -> History:
        """A history is used for long, as programs do: what it remembers must not become wrong."""
        return self.logs.setdefault((engine, run_id), self.engines[engine].history(run_id))

    def pick(self, data: st.DataObject) -> tuple[RunModel, History]:
        run_model = self.run(data)
        return run_model, self.log(self.engine(data), run_model.id)

    def new_id(self) -> str:
        self.made += 1
        return f"run-{self.made}"

    # Rules

    @initialize(state=STATES)
    def first(self, state: Any) -> None:
        run_model = RunModel(self.new_id())
        self.runs[run_model.id] = run_model
        version = self.log(0, run_model.id).commit(state, note="first")
        check_version(version, run_model.add(state, self.now))

    @rule(seconds=st.sampled_from([0.5, 60.0, 4000.0, 90_000.0, 700_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(data=st.data(), state=STATES)
    def another_run(self, data: st.DataObject, state: Any) -> None:
        run_model = RunModel(self.new_id())
        version = self.log(self.engine(data), run_model.id).commit(state, expected=0)
        self.runs[run_model.id] = run_model
        check_version(version, run_model.add(state, self.now))

    @rule(data=st.data(), state=STATES, result=VALUES, step=st.sampled_from([None, "plan", "search"]))
    def commit(self, data: st.DataObject, state: Any, result: Any, step: str | None) -> None:
        run_model, log = self.pick(data)
        tags = data.draw(st.lists(st.sampled_from(TAGS), max_size=2), label="tags")
        status = data.draw(st.sampled_from([None, "completed", "running"]), label="status")
        assert log.head.number == run_model.head
        version = log.commit(state, step=step, result=result, tags=tags, status=status)
        known = run_model.add(state, self.now, step=step, result=plain(result), tags=set(tags), status=status)
        check_version(version, known)

    @rule(data=st.data())
    def commit_changed(self, data: st.DataObject) -> None:
        """A program that keeps its own state, changes some of it, and commits all of it."""
        run_model, log = self.pick(data)
        state = thaw(log.head.state)
        for _ in range(data.draw(st.integers(0, 3), label="changes")):
            change(data.draw, plain(state))(state)
        version = log.commit(state, expected=data.draw(st.sampled_from([None, run_model.head])))
        check_version(version, run_model.add(state, self.now))

    @rule(data=st.data(), step=st.sampled_from([None, "plan"]))
    def edit(self, data: st.DataObject, step: str | None) -> None:
        run_model, log = self.pick(data)
        state = plain(run_model.state)
        with log.edit(step=step, tags=["good"] if step else []) as draft:
            for _ in range(data.draw(st.integers(0, 4), label="changes")):
                op = change(data.draw, plain(state))
                op(state)
                op(draft)
                assert exactly(thaw(draft), plain(state)), "a draft reads as it was changed"
        check_version(log.head, run_model.add(state, self.now, step=step, tags={"good"} if step else set()))

    @rule(data=st.data(), times=st.integers(1, 3))
    def rearrange(self, data: st.DataObject, times: int) -> None:
        """Parts change places, and perhaps back again in versions of their own."""
        run_model, log = self.pick(data)
        op = rearranged(data.draw, run_model.state)
        for _ in range(times):
            state = plain(run_model.state)
            op(state)
            with log.edit() as draft:
                op(draft)
            check_version(log.head, run_model.add(state, self.now))
        check_blame(log, run_model)

    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        """A part of an older version, as it was read from there, is put into the head again."""
        run_model, log = self.pick(data)
        old = self.version(data, run_model)
        if type(old.state) is not dict or type(run_model.state) is not dict or not old.state:
            return
        key = data.draw(st.sampled_from(list(old.state)[:20]), label="key")
        with log.edit() as draft:
            draft[key] = log.at(old.number).state[key]
        check_version(log.head, run_model.add({**run_model.state, key: old.state[key]}, self.now))
        check_blame(log, run_model)

    @rule(data=st.data())
    def edit_that_raises(self, data: st.DataObject) -> None:
        run_model, log = self.pick(data)
        with pytest.raises(Boom), log.edit() as draft:  # noqa: PT012 - a change, then an error
            change(data.draw, plain(run_model.state))(draft)
            raise Boom
        check_version(log.head, run_model.kept[run_model.head])

    @rule(data=st.data(), added=VALUES, mine=VALUES)
    def commit_behind(self, data: st.DataObject, added: Any, mine: Any) -> None:
        """A plain state made from a version that is no longer the head is carried over to the head."""
        run_model = self.run(data)
        if type(run_model.state) is not dict:
            return
        log, other = (self.engines[self.engine(data)].history(run_model.id) for _ in range(2))
        state = thaw(log.head.state)
        theirs, ours = f"theirs-{run_model.last}", f"ours-{run_model.last}"
        with other.edit() as draft:
            draft[theirs] = plain(added)
        run_model.add({**run_model.state, theirs: added}, self.now)
        with pytest.raises(StaleVersion):
            log.commit(state, expected=run_model.kept[run_model.head].parent)
        state[ours] = plain(mine)
        check_version(log.commit(state), run_model.add({**run_model.state, ours: mine}, self.now))

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        run_model, log = self.pick(data)
        target = self.version(data, run_model)
        log.rollback(target.number, reason="again")
        run_model.roll_back(target.number)
        assert log.head.number == run_model.head

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        run_model = self.run(data)
        source = self.version(data, run_model)
        run_id = self.new_id()
        fork = self.engines[self.engine(data)].fork(f"{run_model.id}@{source.number}", run_id)
        self.runs[run_id] = RunModel(run_id, origin=(run_model.id, source.number))
        known = self.runs[run_id].add(source.state, self.now, kind="fork", status=source.status)
        check_version(fork.head, known)

    @rule(data=st.data(), left=VALUES, right=VALUES, nested=st.booleans())
    def merge(self, data: st.DataObject, left: Any, right: Any, nested: bool) -> None:
        """Two timelines from one version that add different keys, and append to one list."""
        run_model, log = self.pick(data)
        if type(run_model.state) is not dict:
            return
        base = plain(run_model.state)
        for name in ("left", "right", "log"):
            base.pop(name, None)
        if nested:
            base["log"] = ["start"]
        run_model.add(base, self.now)
        log.head  # noqa: B018 - a program looks before it commits
        log.commit(base)
        start = run_model.head
        sides = []
        for name, value in (("left", left), ("right", right)):
            with log.edit() as draft:
                draft[name] = plain(value)
                if nested:
                    draft["log"].append(name)
            more = {"log": ["start", name]} if nested else {}
            sides.append(run_model.add({**base, **more, name: value}, self.now).number)
            if name == "left":
                log.rollback(start)
                run_model.roll_back(start)
        version = log.merge(sides[0])
        more = {"log": ["start", "right", "left"]} if nested else {}
        merged = {**base, **more, "right": right, "left": left}
        check_version(version, run_model.add(merged, self.now, kind="merge", merged=sides[0]))

    @rule(data=st.data(), name=st.sampled_from(TAGS), on=st.booleans())
    def tag(self, data: st.DataObject, name: str, on: bool) -> None:
        run_model, log = self.pick(data)
        known = self.version(data, run_model)
        if on:
            log.tag(known.number, name)
            known.tags.add(name)
        elif name in known.tags:
            log.untag(known.number, name)
            known.tags.remove(name)
        else:
            with pytest.raises(NotFound):
                log.untag(known.number, name)

    @rule(data=st.data(), on=st.booleans())
    def pin(self, data: st.DataObject, on: bool) -> None:
        run_model, log = self.pick(data)
        known = self.version(data, run_model)
        if on:
            log.pin(known.number)
        elif known.pinned:
            log.unpin(known.number)
        else:
            with pytest.raises(NotFound):
                log.unpin(known.number)
        known.pinned = on

    @rule(data=st.data(), policy=POLICIES)
    def prune(self, data: st.DataObject, policy: Retention) -> None:
        run_model, log = self.pick(data)
        points = {run.origin[1] for run in self.runs.values() if run.origin and run.origin[0] == run_model.id}
        gone = run_model.prune(policy, self.now, points)
        planned = log.prune(policy, dry_run=True)
        assert set(planned.versions) == gone
        assert planned.dry_run
        done = log.prune(policy)
        run_model.let_go(gone)
        assert (set(done.versions), set(done.kept)) == (gone, set(run_model.kept))
        check_run(log, run_model)

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(data=st.data())
    def export_and_import(self, data: st.DataObject) -> None:
        run_model, log = self.pick(data)
        source = self.version(data, run_model)
        document = json.loads(json.dumps(log.export(source.number)))
        assert holdfast.validate(document)
        run_id = self.new_id()
        version = self.engines[self.engine(data)].import_snapshot(document, run_id=run_id)
        self.runs[run_id] = copied = RunModel(run_id)
        facts = {
            "step": source.step,
            "result": source.result,
            "tags": set(source.tags),
            "status": source.status,
        }
        check_version(version, copied.add(source.state, self.now, kind="import", **facts))

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(data=st.data())
    def export_and_import_all(self, data: st.DataObject) -> None:
        run_model = self.run(data)
        file = io.BytesIO()
        self.engines[self.engine(data)].export_run(run_model.id, file)
        file.seek(0)
        run_id = self.new_id()
        engine = self.engine(data)
        self.engines[engine].import_run(file, run_id=run_id)
        self.runs[run_id] = run_model.copy(run_id)
        check_run(self.log(engine, run_id), self.runs[run_id])

    @precondition(lambda self: len(self.runs) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        run_model = self.run(data)
        self.engines[self.engine(data)].delete(run_model.id)
        del self.runs[run_model.id]
        for fork in self.runs.values():
            if fork.origin and fork.origin[0] == run_model.id:
                fork.origin = None
        for engine in range(len(self.engines)):
            with pytest.raises(NotFound):
                self.log(engine, run_model.id).head  # noqa: B018 - the reading is what is tested
            for other in self.runs.values():
                check_run(self.log(engine, other.id), other)

    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        self.engines[self.engine(data)].gc(grace=0)

    @precondition(lambda self: not self.in_memory)
    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        engine = self.engine(data)
        self.engines[engine].close()
        self.engines[engine] = self.open()
        self.logs = {key: log for key, log in self.logs.items() if key[0] != engine}

    # What must hold

    @rule(data=st.data())
    def looks(self, data: st.DataObject) -> None:
        run_model, log = self.pick(data)
        known = self.version(data, run_model)
        check_version(log.at(known.number), known)
        for tag in TAGS:
            if tagged := [known.number for known in run_model.kept.values() if tag in known.tags]:
                assert log.at(tag).number == max(tagged)
        check_blame(log, run_model)

    @rule(data=st.data())
    def differs(self, data: st.DataObject) -> None:
        one, other = self.run(data), self.run(data)
        a, b = self.version(data, one), self.version(data, other)
        found = self.engines[self.engine(data)].diff(f"{one.id}@{a.number}", f"{other.id}@{b.number}")
        assert bool(found.changes) == (not exactly(a.state, b.state)), found.summary()

    @rule(data=st.data())
    def lists(self, data: st.DataObject) -> None:
        run_model, log = self.pick(data)
        wanted = {
            "timeline": data.draw(st.sampled_from([None, *range(1, len(run_model.starts) + 1)])),
            "step": data.draw(st.sampled_from([None, "plan", "search"])),
            "kind": data.draw(st.sampled_from([None, "step", "manual", "merge"])),
            "tag": data.draw(st.sampled_from([None, *TAGS])),
            "before": data.draw(st.sampled_from([None, *range(1, run_model.last + 2)])),
        }
        limit = data.draw(st.integers(1, 6))
        found = [version.number for version in log.versions(limit=limit, **wanted)]
        assert found == filtered(run_model, wanted)[:limit]

    @invariant()
    def heads(self) -> None:
        for engine in range(len(self.engines)):
            for run_model in self.runs.values():
                check_version(self.log(engine, run_model.id).head, run_model.kept[run_model.head])

    def teardown(self) -> None:
        try:
            for engine in range(len(self.engines)):
                for run_model in self.runs.values():
                    check_run(self.log(engine, run_model.id), run_model)
            report = self.engines[0].verify()
            assert report.ok, [str(problem) for problem in report.problems]
            assert report.versions == sum(len(run_model.kept) for run_model in self.runs.values())
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
