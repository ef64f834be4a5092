"""Workflows that are run, fail, crash, are resumed, rolled back, forked, answered, stopped, limited and edited by hand,
in any order and under code that changes, against a plain interpreter of the same scripts.

A script is drawn; `runtime_stage` carries it out with real steps, `runtime_oracle` without any of Holdfast. After
each move both must agree on what the workflow's own code saw, which steps were executed and how often, under which
idempotency keys, whether the code was refused because it does not fit what is recorded, and on every version, timeline,
status, prompt, error and result.

`HOLDFAST_EXAMPLES=1000` looks deeper than a quick test run does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expected_runs import ENDED, Code, RunModel, Script, Waiting, check_run
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from runtime_oracle import Crashed, Diverged, World
from runtime_scripts import (
    EVENTS,
    INSERTED,
    LIMITED,
    SCRIPTS,
    TASKS,
    VALUES,
    add_program,
    labels,
    operation,
    with_programs,
)
from runtime_stage import Crash, Mortal, play, play_tasks, stage

from holdfast import (
    AlreadyRunning,
    Holdfast,
    InvalidAnswer,
    InvalidCall,
    Limits,
    NotFound,
    ReplayDiverged,
    thaw,
)
from holdfast.store.memory.store import MemoryStore
from holdfast.store.sqlite.store import SQLiteStore

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "150"))
STEPS = 30
MOST_RUNS = 4
#: Instructions for steps in an execution.
FATES = [(), (), (), ("fail",), ("fail", "fail too"), ("crash",), ("fail", "crash")]
#: Ways to edit a run by hand.
WAYS = ["edit", "commit", "patch", "update"]
#: What the step `act` may be called, and what else may happen to code.
NAMES = ["acted", "renamed"]
CODE_CHANGES = [*NAMES, "insert", "insert patched", "insert patched", "remove", "remove"]
inserted = st.composite(operation)


class Machine(RuleBasedStateMachine):
    """An engine, opened again after each crash, and the model of what it should say."""

    in_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="holdfast-runtime-")
        self.code = stage.code = Code()
        stage.recorded.clear()
        #: The scripts as they were before they were changed.
        self.before: dict[str, Script] = {}
        self.inserted = 0
        self.world = World(1_700_000_000.0, self.code)
        self.memory = MemoryStore(clock=self.now)
        self.old: list[Holdfast] = []
        self.keys: dict[tuple[str, int, str], str] = {}
        #: Has the last move ended as it should?
        self.fine = True
        self.open()

    def now(self) -> int:
        return int(self.world.now * 1_000_000)

    def store(self) -> Any:
        """The store, opened."""
        path = Path(self.folder) / "runs.db"
        return self.memory if self.in_memory else SQLiteStore(path, durability="memory", clock=self.now)

    def open(self) -> None:
        stage.store = Mortal(self.store())
        self.hf = stage.hf = Holdfast(stage.store)
        self.old.append(self.hf)

    # Choosing

    def run(self, data: st.DataObject, *statuses: str) -> RunModel:
        """A run that is not part of another."""
        names = [run_model.id for run_model in self.world.runs.values() if run_model.parent is None]
        return self.world.runs[data.draw(st.sampled_from(sorted(names)), label="run")]

    def move(
        self, data: st.DataObject, run_model: RunModel, real: Callable[[], Any], model: Callable[[], Any]
    ) -> None:
        """Do the same to both, with steps that are to fail or to crash, and compare."""
        self.fine = False
        names = labels(self.code, self.code.scripts[run_model.program])
        fates = data.draw(st.sampled_from(FATES), label="fates") if names else {}
        drawn = {fate: data.draw(st.sampled_from(names), label=fate) for fate in fates}
        failing, crashing = {drawn[fate] for fate in drawn if fate != "crash"}, drawn.get("crash")
        stage.clear(failing - {crashing or ""}, crashing)
        stage.run = run_model.id
        world = self.world
        outcomes = []
        for act_now, death, refused in ((real, Crash, ReplayDiverged), (model, Crashed, Diverged)):
            if act_now is model:
                world.failing, world.crashing = stage.failing, crashing
                world.values, world.trace = list(stage.values), []
                world.ran, world.keys = Counter(), {}
            try:
                act_now()
            except death:
                outcomes.append("crashed")
            except refused:
                outcomes.append("diverged")
            else:
                outcomes.append("")
        world.answers = {}
        assert outcomes[0] == outcomes[1]
        assert stage.trace == world.trace
        assert stage.ran == world.ran
        assert not world.values
        for label, place in world.keys.items():
            (key,) = stage.keys[label]
            assert self.keys.setdefault(place, key) == key
        assert len(set(self.keys.values())) == len(self.keys)
        if outcomes[0] == "crashed":
            self.bury(data, run_model)
        self.compare(run_model)
        self.fine = True

    def bury(self, data: st.DataObject, run_model: RunModel) -> None:
        """The process is dead; another opens the store. It waits for the lease, or knows that the owner is gone."""
        dead = self.hf
        self.open()
        with pytest.raises(AlreadyRunning):
            self.hf.resume(run_model.id)
        if data.draw(st.booleans(), label="is known to be dead"):
            dead._engine.keeper.close()
        else:
            self.world.now += 20.0

    # Rules

    @initialize(data=st.data(), script=SCRIPTS)
    def first(self, data: st.DataObject, script: Script) -> None:
        self.begin(data, play, script)

    @precondition(lambda self: len(self.world.runs) < MOST_RUNS)
    @rule(data=st.data(), script=SCRIPTS)
    def start(self, data: st.DataObject, script: Script) -> None:
        self.begin(data, play, script)

    @precondition(lambda self: len(self.world.runs) < MOST_RUNS)
    @rule(data=st.data(), script=TASKS)
    def start_tasks(self, data: st.DataObject, script: Script) -> None:
        self.begin(data, play_tasks, script)

    @precondition(lambda self: len(self.world.runs) < MOST_RUNS)
    @rule(data=st.data(), script=LIMITED, name=st.sampled_from(["steps", "cost"]), most=st.integers(0, 5))
    def start_limited(self, data: st.DataObject, script: Script, name: str, most: int) -> None:
        self.begin(data, play, script, {name: most})

    def begin(
        self, data: st.DataObject, workflow: Any, script: Script, limits: dict[str, int] | None = None
    ) -> None:
        name = f"run-{len(self.world.runs) + 1}"
        add_program(self.code, name, script)
        if workflow is play_tasks:
            self.code.asynchronous.add(name)
        state = {"log": [], "k1": 0}
        allowed = None if limits is None else Limits(**limits)
        self.move(
            data,
            RunModel(name, name),
            lambda: self.hf.run(workflow, name, run_id=name, state=state, raises=False, limits=allowed),
            lambda: self.world.start(name, name, state, limits=limits or {}),
        )

    @rule(seconds=st.sampled_from([0.5, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @precondition(lambda self: any(run_model.limits for run_model in self.world.runs.values()))
    @rule(data=st.data(), more=st.integers(0, 6))
    def resume_with_a_higher_limit(self, data: st.DataObject, more: int) -> None:
        run_model = data.draw(
            st.sampled_from([run_model for run_model in self.world.runs.values() if run_model.limits])
        )
        if run_model.status == "cancelled":
            return
        limits = {name: most + more for name, most in run_model.limits.items()}
        self.move(
            data,
            run_model,
            lambda: self.hf.resume(run_model.id, raises=False, limits=Limits(**limits)),
            lambda: self.world.resume(run_model, limits),
        )

    @rule(data=st.data(), way=st.sampled_from(WAYS), key=st.sampled_from(["log", "k1", "n", "total"]))
    def edit_by_hand(self, data: st.DataObject, way: str, key: str) -> None:
        """Its status stays as it is; the next execution sees the edit."""
        run_model = self.world.runs[data.draw(st.sampled_from(sorted(self.world.runs)), label="run")]
        # No two edits, and no edit and a step, give a place the same value.
        value = 1000 + self.world.clock[0]
        log = self.hf.history(run_model.id)
        state = thaw(log.head.state)
        place = ("log", len(state.get("log", []))) if key == "log" and "log" in state else (key,)
        by_hand = ["append", value] if key == "log" else ["set", key, value]

        def apply(state: Any) -> None:
            if key != "log":
                state[key] = value
            elif "log" in state:
                state["log"].append(value)
            else:
                state["log"] = [value]

        if way == "edit":
            with log.edit() as draft:
                apply(draft)
        elif way == "commit":
            apply(state)
            log.commit(state)
        elif way == "patch":
            log.patch({place: [value] if key == "log" and len(place) == 1 else value}, after=log.head)
        else:
            log.update(apply)
        self.world.edit(run_model, by_hand)
        with pytest.raises(InvalidCall):
            log.commit({}, status="paused" if run_model.status != "paused" else "completed")
        self.compare(self.top(run_model))

    @rule(data=st.data(), name=st.sampled_from(["good", "bad"]))
    def tag(self, data: st.DataObject, name: str) -> None:
        run_model = self.run(data)
        number = data.draw(st.sampled_from(sorted(run_model.versions)), label="version")
        self.hf.history(run_model.id).tag(number, name)
        run_model.versions[number].tags.add(name)
        self.compare(run_model)

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data(), change=st.sampled_from(CODE_CHANGES), returns=st.booleans())
    def change_code(self, data: st.DataObject, change: str, returns: bool) -> None:
        """Deploy other code while a run is unfinished, and resume the run; perhaps bring the old code back then."""
        name = data.draw(st.sampled_from(self.unfinished()), label="run")
        run_model = self.world.runs[name]
        programs = sorted({each.program for each in self.parts(run_model)})
        program = data.draw(st.sampled_from(programs), label="program")
        script = list(self.code.scripts[program])
        if change in NAMES:
            self.code.act = change
        elif change == "remove" and script:
            del script[data.draw(st.integers(0, len(script) - 1), label="at")]
        elif change != "remove":
            # Mostly before something that is recorded.
            most = len(script) if change == "insert" else min(len(script), run_model.steps)
            at = data.draw(st.integers(0, most), label="before")
            self.inserted += 1
            label = f"new {self.inserted}"
            op = data.draw(inserted(data.draw(st.sampled_from(INSERTED), label="kind"), label), label="op")
            op = with_programs(self.code, label, op)
            script.insert(at, ["patched", label, op] if change == "insert patched" else op)
        self.before.setdefault(program, self.code.scripts[program])
        self.code.scripts[program] = script
        self.push(data, run_model)
        if returns:
            self.bring_the_old_code_back()
            self.push(data, run_model)

    @rule()
    def bring_the_old_code_back(self) -> None:
        self.code.act = "act"
        self.code.scripts |= self.before

    def unfinished(self) -> list[str]:
        """Runs that have recorded something and have not ended, but for children."""
        return sorted(
            run_model.id
            for run_model in self.world.runs.values()
            if run_model.parent is None
            and run_model.status not in ("completed", "cancelled")
            and run_model.steps
        )

    @precondition(lambda self: self.waiting_for_children())
    @rule(data=st.data(), count=st.integers(0, 2), resume=st.booleans())
    def roll_back_while_a_child_is_under_way(self, data: st.DataObject, count: int, resume: bool) -> None:
        """The child gets the version back that it had, and is continued."""
        run_model = self.world.runs[data.draw(st.sampled_from(self.waiting_for_children()), label="run")]
        with self.hf.history(run_model.id).edit() as state:
            state["k1"] = value = 1000 + self.world.clock[0]
        to = self.world.edit(run_model, ["set", "k1", value]).number
        for _ in range(count):
            self.push(data, run_model)
        self.move(
            data,
            run_model,
            lambda: self.hf.rollback(run_model.id, to, resume=resume, raises=False),
            lambda: self.world.roll_back(run_model, to, resume=resume),
        )
        self.push(data, run_model)

    def waiting_for_children(self) -> list[str]:
        """Runs whose child is under way."""
        return sorted(
            run_model.id
            for run_model in self.world.runs.values()
            if run_model.parent is None and any(wait.kind == "run" for wait in run_model.waits.values())
        )

    @rule(data=st.data(), answer=st.none() | VALUES.map(lambda value: [value]), by_id=st.booleans())
    def resume(self, data: st.DataObject, answer: list[Any] | None, by_id: bool) -> None:
        run_model = self.run(data)
        if run_model.status == "cancelled":
            with pytest.raises(InvalidCall):
                self.hf.resume(run_model.id)
            return
        answers: dict[str, Any] = {}
        for address, wait in run_model.waits.items():
            if wait.kind == "prompt" and answer and not wait.filled:
                answers = {wait.name if by_id else address: answer[0]}
        self.world.answers = answers
        self.move(
            data,
            run_model,
            lambda: self.hf.resume(run_model.id, answers=answers, raises=False),
            lambda: self.world.resume(run_model),
        )

    @rule(data=st.data())
    def resume_from(self, data: st.DataObject) -> None:
        run_model = self.run(data)
        steps = [known for known in run_model.line() if known.kind == "step"]
        own = {known.address: known for known in steps if run_model.versions.get(known.number) is known}
        if not own:
            with pytest.raises((NotFound, InvalidCall)):
                self.hf.resume(run_model.id, from_address=str(steps[0].address) if steps else "nowhere")
            return
        address = data.draw(st.sampled_from(sorted(map(str, own))), label="address")
        within = [known for known in steps if f"{known.address}/".startswith(f"{address}/")]
        if any(known not in own.values() for known in within):
            with pytest.raises(InvalidCall):
                self.hf.resume(run_model.id, from_address=address)
            return
        before = within[-1].parent
        assert before is not None
        self.move(
            data,
            run_model,
            lambda: self.hf.resume(run_model.id, from_address=address, raises=False),
            lambda: self.world.roll_back(run_model, before, resume=True),
        )

    @rule(data=st.data(), resume=st.booleans())
    def rollback(self, data: st.DataObject, resume: bool) -> None:
        run_model = self.run(data)
        to = data.draw(st.sampled_from(sorted(run_model.versions)), label="to")
        self.move(
            data,
            run_model,
            lambda: self.hf.rollback(run_model.id, to, resume=resume, raises=False),
            lambda: self.world.roll_back(run_model, to, resume=resume),
        )

    @precondition(lambda self: len(self.world.runs) < MOST_RUNS)
    @rule(data=st.data(), edit=st.none() | VALUES.map(lambda value: [value]))
    def fork(self, data: st.DataObject, edit: list[Any] | None) -> None:
        run_model = self.run(data)
        if run_model.limits:
            return
        at = data.draw(st.sampled_from(sorted(run_model.versions)), label="at")
        name = f"run-{len(self.world.runs) + 1}"
        change_it = None if edit is None else (lambda state: state.update(edited=edit[0]))
        self.hf.fork(run_model.id, name, at=at, edit=change_it)
        fork = self.world.runs[name] = RunModel(
            name, run_model.program, origin=(run_model, at), status="paused", clock=self.world.clock
        )
        state = {**run_model.versions[at].state, **({} if edit is None else {"edited": edit[0]})}
        fork.add("fork", state, status="paused", by_hand=edit and ["set", "edited", edit[0]])
        self.compare(fork)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), value=VALUES, resume=st.booleans())
    def answer(self, data: st.DataObject, value: Any, resume: bool) -> None:
        waiting = self.waiting()
        number = data.draw(st.integers(0, len(waiting) - 1), label="prompt")
        run_model, wait = waiting[number]
        if wait.filled:
            with pytest.raises(InvalidAnswer):
                self.hf.answer(wait.name, value)
            return

        self.bring(data, run_model, wait, value, resume)

    @rule(data=st.data(), name=st.sampled_from(EVENTS), value=VALUES, resume=st.booleans())
    def send(self, data: st.DataObject, name: str, value: Any, resume: bool) -> None:
        names = [run_model.id for run_model in self.world.runs.values() if self.wanted(run_model)]
        run_model = self.world.runs[data.draw(st.sampled_from(sorted(names)), label="to")]
        if run_model.status in ("completed", "cancelled"):
            with pytest.raises(InvalidCall):
                self.hf.signal(run_model.id, name, value)
            return

        self.bring(data, run_model, Waiting("event", name), value, resume)

    @rule(data=st.data(), count=st.integers(1, 6))
    def go_on(self, data: st.DataObject, count: int) -> None:
        """Bring a run what it waits for, and resume it, a few times."""
        run_model = self.run(data)
        for _ in range(count):
            self.push(data, run_model)

    def push(self, data: st.DataObject, run_model: RunModel) -> None:
        """Bring a run, or a part of it, what it waits for, or else resume it."""
        if run_model.status in ("completed", "cancelled"):
            return
        waits = [
            (part, wait)
            for part in self.parts(run_model)
            for wait in part.waits.values()
            if self.wanted(part)
        ]
        for part, wait in waits:
            if not wait.filled and wait.kind != "run":
                self.bring(data, part, wait)
                return
        self.move(
            data,
            run_model,
            lambda: self.hf.resume(run_model.id, raises=False),
            lambda: self.world.resume(run_model),
        )

    def parts(self, run_model: RunModel) -> list[RunModel]:
        """A run, and the runs that are parts of it."""
        return [
            run_model,
            *(
                each
                for each in self.world.runs.values()
                if each is not run_model and self.top(each) is run_model
            ),
        ]

    @rule(data=st.data(), what=st.sampled_from(["pause", "cancel"]))
    def stops(self, data: st.DataObject, what: str) -> None:
        run_model = self.run(data)
        if what == "cancel":
            self.hf.cancel(run_model.id)
            self.world.cancel(run_model)
        else:
            self.hf.pause(run_model.id)
            run_model.status = run_model.status if run_model.status in ENDED else "paused"
        self.compare(run_model)

    @rule()
    def reopen(self) -> None:
        self.hf.close()
        self.open()

    def waiting(self) -> list[tuple[RunModel, Waiting]]:
        """Prompts that can be answered, or were and are not read yet."""
        return [
            (run_model, wait)
            for run_model in self.world.runs.values()
            for wait in run_model.waits.values()
            if wait.kind == "prompt" and run_model.status not in ENDED and self.wanted(run_model)
        ]

    def bring(
        self, data: st.DataObject, run_model: RunModel, wait: Waiting, value: Any = 7, resume: bool = True
    ) -> None:
        """Deliver what a run waits for: an answer, or a signal."""
        hf, world, name = self.hf, self.world, wait.name
        if wait.kind == "prompt":
            self.move(
                data,
                self.top(run_model),
                lambda: hf.answer(name, value, resume=resume, raises=False),
                lambda: world.answer(run_model, wait, value, resume=resume),
            )
        else:
            self.move(
                data,
                self.top(run_model),
                lambda: hf.signal(run_model.id, name, value, resume=resume, raises=False),
                lambda: world.send(run_model, name, value, resume=resume),
            )

    # What must hold

    def top(self, run_model: RunModel) -> RunModel:
        return run_model if run_model.parent is None else self.top(self.world.runs[run_model.parent])

    def wanted(self, run_model: RunModel) -> bool:
        """Is a run still a part of what it was part of?"""
        if run_model.parent is None:
            return True
        return any(wait.name == run_model.id for wait in self.world.runs[run_model.parent].waits.values())

    def compare(self, run_model: RunModel) -> None:
        for each in self.world.runs.values():
            if self.top(each).id == run_model.id:
                check_run(self.hf, each)
        expected = [
            wait.name
            for each in self.world.runs.values()
            for wait in each.waits.values()
            if wait.kind == "prompt" and not wait.filled and each.status in ("suspended", "running", "paused")
        ]
        assert sorted(prompt.id for prompt in self.hf.inbox()) == sorted(expected)

    def teardown(self) -> None:
        try:
            if self.fine:
                for run_model in self.world.runs.values():
                    check_run(self.hf, run_model)
                report = self.hf.verify()
                assert report.ok, [str(problem) for problem in report.problems]
                assert report.versions == sum(
                    len(run_model.versions) for run_model in self.world.runs.values()
                )
        finally:
            for hf in self.old:
                hf.close()
            shutil.rmtree(self.folder)


class MemoryMachine(Machine):
    in_memory = True


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
if "HOLDFAST_EXAMPLES" not in os.environ:
    # The same examples everywhere, whatever the names in this file are.
    seed(1)(Machine)
TestOnSQLite = Machine.TestCase
TestOnSQLite.settings = SETTINGS
TestInMemory = MemoryMachine.TestCase
TestInMemory.settings = SETTINGS
