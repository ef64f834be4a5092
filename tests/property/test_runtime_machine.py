"""Workflows that are run, fail, crash, are resumed, rolled back, forked, answered and stopped, in any order, against a
plain interpreter of the same scripts.

A script is drawn; `runtime_stage` carries it out with real steps, `runtime_oracle` without any of Holdfast. After
each move both must agree on what the workflow's own code saw, which steps were executed and how often, under which
idempotency keys, and on every version, timeline, status, prompt and result.

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
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from runtime_oracle import Crashed, World
from runtime_scripts import EVENTS, SCRIPTS, VALUES, labels
from runtime_stage import Crash, Mortal, play, stage
from runtime_told import ENDED, Told, Waiting, check_run

from holdfast import AlreadyRunning, Holdfast, InvalidAnswer, InvalidCall, NotFound
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SQLiteStore

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "80"))
STEPS = 30
MOST_RUNS = 4
#: What steps are told to do in an execution.
FATES = [(), (), (), ("fail",), ("fail", "fail too"), ("crash",), ("fail", "crash")]


class Machine(RuleBasedStateMachine):
    """An engine, opened anew after each crash, and what it should say."""

    in_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="holdfast-runtime-")
        self.world = World(1_700_000_000.0)
        self.memory = MemoryStore()
        self.old: list[Holdfast] = []
        self.keys: dict[tuple[str, int, str], str] = {}
        #: Has the last move ended as it should?
        self.fine = True
        self.open()

    def open(self) -> None:
        path = Path(self.folder) / "runs.db"
        store: Any = self.memory if self.in_memory else SQLiteStore(path, durability="memory")
        stage.store = Mortal(store)
        self.hf = stage.hf = Holdfast(stage.store, clock=lambda: self.world.now)
        self.old.append(self.hf)

    # Choosing

    def run(self, data: st.DataObject, *statuses: str) -> Told:
        """A run that is not part of another."""
        names = [told.id for told in self.world.runs.values() if told.parent is None]
        return self.world.runs[data.draw(st.sampled_from(sorted(names)), label="run")]

    def move(
        self, data: st.DataObject, told: Told, real: Callable[[], Any], model: Callable[[], Any]
    ) -> None:
        """Do the same to both, with steps that are told to fail or to crash, and compare."""
        self.fine = False
        names = labels(told.script)
        fates = data.draw(st.sampled_from(FATES), label="fates") if names else {}
        drawn = {fate: data.draw(st.sampled_from(names), label=fate) for fate in fates}
        failing, crashing = {drawn[fate] for fate in drawn if fate != "crash"}, drawn.get("crash")
        stage.clear(failing - {crashing or ""}, crashing)
        stage.run = told.id
        world = self.world
        outcomes = []
        for act_now, death in ((real, Crash), (model, Crashed)):
            if act_now is model:
                world.failing, world.crashing = stage.failing, crashing
                world.values, world.trace = list(stage.values), []
                world.ran, world.keys = Counter(), {}
            try:
                act_now()
            except death:
                outcomes.append(True)
            else:
                outcomes.append(False)
        world.answers = {}
        assert outcomes[0] == outcomes[1], "only one of them crashed"
        assert stage.trace == world.trace
        assert stage.ran == world.ran
        assert not world.values
        for label, place in world.keys.items():
            (key,) = stage.keys[label]
            assert self.keys.setdefault(place, key) == key
        assert len(set(self.keys.values())) == len(self.keys)
        if outcomes[0]:
            self.bury(data, told)
        self.compare(told)
        self.fine = True

    def bury(self, data: st.DataObject, told: Told) -> None:
        """The process is dead; another opens the store. It waits for the lease, or knows that the owner is gone."""
        dead = self.hf
        self.open()
        with pytest.raises(AlreadyRunning):
            self.hf.resume(told.id)
        if data.draw(st.booleans(), label="is known to be dead"):
            dead._services.keeper.close()
        else:
            self.world.now += 20.0

    # Rules

    @initialize(data=st.data(), script=SCRIPTS)
    def first(self, data: st.DataObject, script: list[Any]) -> None:
        self.start(data, script)

    @precondition(lambda self: len(self.world.runs) < MOST_RUNS)
    @rule(data=st.data(), script=SCRIPTS)
    def start(self, data: st.DataObject, script: list[Any]) -> None:
        name = f"run-{len(self.world.runs) + 1}"
        state = {"log": [], "k1": 0}
        self.move(
            data,
            Told(name, script),
            lambda: self.hf.run(play, script, run_id=name, state=state),
            lambda: self.world.start(name, script, state),
        )

    @rule(seconds=st.sampled_from([0.5, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(data=st.data(), answer=st.none() | VALUES.map(lambda value: [value]), by_id=st.booleans())
    def resume(self, data: st.DataObject, answer: list[Any] | None, by_id: bool) -> None:
        told = self.run(data)
        if told.status == "cancelled":
            with pytest.raises(InvalidCall):
                self.hf.resume(told.id)
            return
        answers: dict[str, Any] = {}
        for address, wait in told.waits.items():
            if wait.kind == "prompt" and answer and not wait.filled:
                answers = {wait.name if by_id else address: answer[0]}
        self.world.answers = answers
        self.move(
            data, told, lambda: self.hf.resume(told.id, answers=answers), lambda: self.world.resume(told)
        )

    @rule(data=st.data())
    def resume_from(self, data: st.DataObject) -> None:
        told = self.run(data)
        steps = [known for known in told.line() if known.kind == "step"]
        own = {known.address: known for known in steps if told.versions.get(known.number) is known}
        if not own:
            with pytest.raises((NotFound, InvalidCall)):
                self.hf.resume(told.id, from_address=str(steps[0].address) if steps else "nowhere")
            return
        address = data.draw(st.sampled_from(sorted(map(str, own))), label="address")
        within = [known for known in steps if f"{known.address}/".startswith(f"{address}/")]
        if any(known not in own.values() for known in within):
            with pytest.raises(InvalidCall):
                self.hf.resume(told.id, from_address=address)
            return
        before = within[-1].parent
        assert before is not None
        self.move(
            data,
            told,
            lambda: self.hf.resume(told.id, from_address=address),
            lambda: self.world.roll_back(told, before, resume=True),
        )

    @rule(data=st.data(), resume=st.booleans())
    def rollback(self, data: st.DataObject, resume: bool) -> None:
        told = self.run(data)
        to = data.draw(st.sampled_from(sorted(told.versions)), label="to")
        self.move(
            data,
            told,
            lambda: self.hf.rollback(told.id, to, resume=resume),
            lambda: self.world.roll_back(told, to, resume=resume),
        )

    @precondition(lambda self: len(self.world.runs) < MOST_RUNS)
    @rule(data=st.data(), edit=st.none() | VALUES.map(lambda value: [value]))
    def fork(self, data: st.DataObject, edit: list[Any] | None) -> None:
        told = self.run(data)
        at = data.draw(st.sampled_from(sorted(told.versions)), label="at")
        name = f"run-{len(self.world.runs) + 1}"
        change_it = None if edit is None else (lambda state: state.update(edited=edit[0]))
        self.hf.fork(told.id, name, at=at, edit=change_it)
        fork = self.world.runs[name] = Told(name, told.script, origin=(told, at), status="paused")
        state = {**told.versions[at].state, **({} if edit is None else {"edited": edit[0]})}
        fork.add("fork", state, status="paused")
        self.compare(fork)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), value=VALUES, resume=st.booleans())
    def answer(self, data: st.DataObject, value: Any, resume: bool) -> None:
        waiting = self.waiting()
        number = data.draw(st.integers(0, len(waiting) - 1), label="prompt")
        told, wait = waiting[number]
        if wait.filled:
            with pytest.raises(InvalidAnswer):
                self.hf.answer(wait.name, value)
            return

        self.bring(data, told, wait, value, resume)

    @rule(data=st.data(), name=st.sampled_from(EVENTS), value=VALUES, resume=st.booleans())
    def send(self, data: st.DataObject, name: str, value: Any, resume: bool) -> None:
        names = [told.id for told in self.world.runs.values() if self.wanted(told)]
        told = self.world.runs[data.draw(st.sampled_from(sorted(names)), label="to")]
        if told.status in ("completed", "cancelled"):
            with pytest.raises(InvalidCall):
                self.hf.send(told.id, name, value)
            return

        self.bring(data, told, Waiting("event", name), value, resume)

    @rule(data=st.data(), count=st.integers(1, 6))
    def go_on(self, data: st.DataObject, count: int) -> None:
        """Bring a run what it waits for, and resume it, a few times."""
        told = self.run(data)
        for _ in range(count):
            if told.status in ("completed", "cancelled"):
                return
            parts = [told, *(each for each in self.world.runs.values() if self.top(each) is told)]
            waits = [(part, wait) for part in parts for wait in part.waits.values() if self.wanted(part)]
            for part, wait in waits:
                if not wait.filled and wait.kind != "run":
                    self.bring(data, part, wait)
                    break
            else:
                self.move(data, told, lambda: self.hf.resume(told.id), lambda: self.world.resume(told))

    @rule(data=st.data(), what=st.sampled_from(["pause", "cancel"]))
    def stops(self, data: st.DataObject, what: str) -> None:
        told = self.run(data)
        if what == "cancel":
            self.hf.cancel(told.id)
            self.world.cancel(told)
        else:
            self.hf.pause(told.id)
            told.status = told.status if told.status in ENDED else "paused"
        self.compare(told)

    @rule()
    def reopen(self) -> None:
        self.hf.close()
        self.open()

    def waiting(self) -> list[tuple[Told, Waiting]]:
        """Prompts that can be answered, or were and are not read yet."""
        return [
            (told, wait)
            for told in self.world.runs.values()
            for wait in told.waits.values()
            if wait.kind == "prompt" and told.status not in ENDED and self.wanted(told)
        ]

    def bring(
        self, data: st.DataObject, told: Told, wait: Waiting, value: Any = 7, resume: bool = True
    ) -> None:
        """What a run waits for."""
        hf, world, name = self.hf, self.world, wait.name
        if wait.kind == "prompt":
            self.move(
                data,
                self.top(told),
                lambda: hf.answer(name, value, resume=resume),
                lambda: world.answer(told, wait, value, resume=resume),
            )
        else:
            self.move(
                data,
                self.top(told),
                lambda: hf.send(told.id, name, value, resume=resume),
                lambda: world.send(told, name, value, resume=resume),
            )

    # What must hold

    def top(self, told: Told) -> Told:
        return told if told.parent is None else self.top(self.world.runs[told.parent])

    def wanted(self, told: Told) -> bool:
        """Is a run still a part of what it was part of?"""
        if told.parent is None:
            return True
        return any(wait.name == told.id for wait in self.world.runs[told.parent].waits.values())

    def compare(self, told: Told) -> None:
        for each in self.world.runs.values():
            if self.top(each).id == told.id:
                check_run(self.hf, each)
        expected = [
            wait.name
            for each in self.world.runs.values()
            for wait in each.waits.values()
            if wait.kind == "prompt" and not wait.filled and each.status in ("suspended", "running", "paused")
        ]
        assert sorted(prompt.id for prompt in self.hf.prompts()) == sorted(expected)

    def teardown(self) -> None:
        try:
            if self.fine:
                for told in self.world.runs.values():
                    check_run(self.hf, told)
                report = self.hf.verify()
                assert report.ok, [str(problem) for problem in report.problems]
                assert report.versions == sum(len(told.versions) for told in self.world.runs.values())
        finally:
            for hf in self.old:
                hf.close()
            shutil.rmtree(self.folder)


class MemoryMachine(Machine):
    in_memory = True


_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize="HOLDFAST_EXAMPLES" not in os.environ,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestOnSQLite = Machine.TestCase
TestOnSQLite.settings = _SETTINGS
TestInMemory = MemoryMachine.TestCase
TestInMemory.settings = _SETTINGS
