"""A plain interpreter of scripted workflows: what runs should become, without a store, a replay or a thread.

A script is a list of operations, each a list: its kind, then its arguments (see `Play.do`). Steps have a label, which
is theirs alone within a script: by it they are told to fail or to crash, and their executions are counted.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from runtime_told import ENDED, Known, Letter, Script, Told, Waiting


class Failed(Exception):
    """A step has failed."""


class Crashed(BaseException):
    """The process has died."""


class Halted(BaseException):
    """The execution has ended at a boundary between steps."""


@dataclass
class World:
    """All runs, and what happens to steps in the present execution."""

    now: float
    runs: dict[str, Told] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    crashing: str | None = None
    #: What real executions got from `now`, `uuid4` and `random`, in order.
    values: list[Any] = field(default_factory=list)
    #: What the workflows' own code saw, in order; executions of steps by label; where their keys come from.
    trace: list[Any] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)
    keys: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    #: What `uuid4` and `random` gave, by run, timeline and address.
    drawn: dict[tuple[str, int, str], Any] = field(default_factory=dict)

    def start(self, run_id: str, script: Script, state: Any, parent: str | None = None) -> None:
        told = self.runs[run_id] = Told(run_id, script, parent)
        told.add("initial", state)
        Play(self, told, {}).execute()

    def resume(self, told: Told) -> None:
        """What `resume` does, of a run that was not cancelled."""
        if told.status == "completed":
            return
        if told.status == "suspended" and not self.answers and not self.ready(told):
            return
        told.status = "running"
        Play(self, told, self.answers).execute()

    def cancel(self, told: Told) -> None:
        for child in [each for each in self.runs.values() if each.parent == told.id]:
            self.cancel(child)
        if told.status not in ENDED:
            told.waits = {}
            told.status = "cancelled"
            told.add("final", told.state, status="cancelled")

    def ready(self, told: Told) -> bool:
        """Would a suspended run go on if it were resumed?"""
        waits = told.waits.values()
        return not waits or any(
            wait.filled if wait.kind != "run" else self.would_move(self.runs[wait.name]) for wait in waits
        )

    def would_move(self, child: Told) -> bool:
        return child.status != "paused" and (child.status != "suspended" or self.ready(child))

    def roll_back(self, told: Told, to: int, *, resume: bool) -> None:
        told.roll_back(to)
        for child in [each for each in self.runs.values() if each.parent == told.id]:
            self.cancel(child)
        if resume:
            self.resume(told)

    def answer(self, told: Told, wait: Waiting, value: Any, *, resume: bool) -> None:
        wait.filled, wait.value = True, value
        if resume:
            self.delivered(told)

    def send(self, told: Told, name: str, value: Any, *, resume: bool) -> None:
        told.sent += 1
        letter = Letter(told.sent, name, value)
        for wait in told.waits.values():
            if wait.kind == "event" and wait.name == name and not wait.filled:
                wait.filled, wait.value, wait.letter = True, value, letter
                break
        else:
            told.mail.append(letter)
        if resume:
            self.delivered(told)

    def delivered(self, told: Told) -> None:
        """Something has come for a run, and it may go on."""
        top = told
        while top.parent is not None and self.runs[top.parent].status not in ENDED:
            top = self.runs[top.parent]
        if told.status == top.status == "suspended" and self.ready(top):
            self.resume(top)


class Place:
    """The workflow's code, a step, or a branch: gives the addresses of what is called there."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._counts: Counter[str] = Counter()

    def next(self, name: str) -> str:
        self._counts[name] += 1
        local = name if self._counts[name] == 1 else f"{name}#{self._counts[name]}"
        return f"{self.prefix}/{local}" if self.prefix else local


class Play:
    """One execution of a run."""

    def __init__(self, world: World, told: Told, answers: dict[str, Any]) -> None:
        self.world = world
        self.told = told
        self.answers = answers
        self.recorded: dict[str, Known] = {}
        self.values: dict[str, Any] = {}
        line = list(told.line())
        for known in reversed(line):
            self.values |= known.values
            if known.kind == "step":
                assert known.address is not None
                self.recorded[known.address] = known
        #: The line, oldest first, and how far the workflow's own code has come on it; None for its end.
        self.past: list[Known] = line[::-1]
        self.at: int | None = 0 if self.recorded else None
        self.loose = dict(told.loose)
        self.failures: list[str] = []
        self.wish = "cancel" if told.doomed else ""

    def execute(self) -> None:
        told = self.told
        try:
            result = self.play(told.script, Place())
            self.go_live()
            told.waits = {}
            told.status = "completed"
            self.commit("final", told.state, status="completed", result=result)
        except Failed:
            told.status, told.loose = "failed", self.loose
        except Halted as halt:
            self.halted(str(halt))

    def halted(self, status: str) -> None:
        told = self.told
        told.status = status
        if status == "cancelled":
            told.waits = {}
            self.commit("final", told.state, status="cancelled")
        told.loose = self.loose

    def commit(self, kind: str, state: Any, **facts: Any) -> Known:
        known = self.told.add(kind, state, values=self.loose, **facts)
        self.values |= self.loose
        self.told.loose, self.loose = {}, {}
        self.at = None
        return known

    def play(self, script: Script, place: Place) -> list[Any]:
        found = []
        for op in script:
            found.append(self.do(op, place))
            self.world.trace.append(deepcopy(found[-1]))
        return found

    def do(self, op: list[Any], place: Place) -> Any:
        kind, *args = op
        if kind == "try":
            try:
                return ["fine", self.do(args[0], place)]
            except Failed:
                return ["caught"]
        if kind == "value":
            return self.value(place.next(args[0]), args[0])
        if kind == "look":
            return deepcopy(self.told.state if self.at is None else self.past[self.at].state)
        if kind in ("ask", "wait"):
            return self.wait(place, *op)
        if kind == "part":
            return self.part(place.next("play_part"), args[0])
        if kind == "pair":
            return self.pair(place.next("parallel"), args)
        return self.step(place.next(kind), op)

    # Steps

    def check(self) -> None:
        if self.wish:
            raise Halted("cancelled" if self.wish == "cancel" else "paused")

    def replay(self, address: str) -> Any:
        """A recorded call: what it gave."""
        known = self.recorded[address]
        place = next(place for place, each in enumerate(self.past) if each is known)
        if self.at is not None:
            last = max(place for place, each in enumerate(self.past) if each.kind == "step")
            self.at = None if place == last else max(self.at, place)
        if known.failed:
            raise Failed
        return deepcopy(known.result)

    def go_live(self) -> None:
        while self.failures:
            self.commit("step", self.told.state, address=self.failures.pop(0), failed=True)

    def step(self, address: str, op: list[Any]) -> Any:
        self.check()
        if address in self.recorded:
            return self.replay(address)
        self.go_live()
        return self.live(address, op)

    def live(self, address: str, op: list[Any]) -> Any:
        result = self.body(address, op)
        state = deepcopy(self.told.state)
        change(state, op)
        self.commit("step", state, address=address, result=deepcopy(result))
        return result

    def body(self, address: str, op: list[Any]) -> Any:
        kind, label = op[0], op[1]
        self.world.ran[label] += 2 if kind == "flaky" else 1
        self.world.keys[label] = (self.told.id, len(self.told.starts), address)
        result = op[3]
        try:
            if kind == "nest":
                place = Place(address)
                result = [self.do(inner, place) for inner in op[3]]
            if kind == "stop":
                self.wish = op[3]
                self.told.doomed = self.wish == "cancel"
            self.fate(label)
        except Failed:
            self.check()
            self.failures.append(address)
            raise
        return result

    def fate(self, label: str) -> None:
        if label == self.world.crashing:
            raise Crashed
        if label in self.world.failing:
            raise Failed

    def pair(self, address: str, ops: list[list[Any]]) -> Any:
        """Two steps that begin together; the first ends first."""
        self.check()
        addresses = [Place(f"{address}/[{number}]").next("act") for number in (1, 2)]
        if not all(each in self.recorded for each in addresses):
            self.go_live()
        results: list[Any] = [None, None]
        errors: list[BaseException] = []
        for number, op in enumerate(ops):
            try:
                results[number] = self.beside(addresses[number], op, dead=bool(_crash(errors)))
            except (Failed, Crashed) as error:
                errors.append(error)
        for found in [*_crash(errors), *errors]:
            raise found
        return results

    def beside(self, address: str, op: list[Any], *, dead: bool) -> Any:
        if address in self.recorded:
            return self.replay(address)
        if dead:
            self.world.ran[op[1]] += 1
            self.world.keys[op[1]] = (self.told.id, len(self.told.starts), address)
            raise Crashed
        return self.live(address, op)

    # Values, waits, children

    def value(self, address: str, kind: str) -> Any:
        got = self.world.values.pop(0)
        known = self.loose.get(address, self.values.get(address))
        if known is None:
            assert kind != "now" or got == self.world.now
            known = self.loose[address] = got
            place = (self.told.id, len(self.told.starts), address)
            assert kind == "now" or self.world.drawn.setdefault(place, got) == got, "a crash has changed it"
        assert got == known, f"{address} gave {got} and was recorded as {known}"
        return got

    def wait(self, place: Place, kind: str, name: str) -> Any:
        told = self.told
        address = place.next("ask" if kind == "ask" else f"wait_for[{name}]")
        self.check()
        if address in self.recorded:
            return self.replay(address)
        self.go_live()
        wait = told.waits.get(address)
        if wait is None:
            told.asked += kind == "ask"
            wait = Waiting("prompt", f"{told.id}#{told.asked}") if kind == "ask" else Waiting("event", name)
        if kind == "ask" and not wait.filled:
            for given in (wait.name, address):
                if given in self.answers:
                    wait.filled, wait.value = True, self.answers[given]
        letter = next((each for each in told.mail if each.name == name), None)
        if kind == "wait" and not wait.filled and letter is not None:
            told.mail.remove(letter)
            wait.filled, wait.value = True, letter.value
        if not wait.filled:
            told.waits[address] = wait
            raise Halted("suspended")
        told.waits.pop(address, None)
        self.commit("step", told.state, address=address, result=wait.value)
        return deepcopy(wait.value)

    def part(self, address: str, script: Script) -> Any:
        told, world = self.told, self.world
        self.check()
        if address in self.recorded:
            return self.replay(address)
        self.go_live()
        line = len(told.starts)
        run_id = f"{told.id}.{address}" + ("" if line == 1 else f".{line}")
        if run_id not in world.runs:
            world.start(run_id, script, {}, told.id)
        elif world.runs[run_id].status != "cancelled":
            world.resume(world.runs[run_id])
        child = world.runs[run_id]
        told.waits.pop(address, None)
        if child.status == "completed":
            result = deepcopy(child.versions[child.head].result)
            self.commit("step", told.state, address=address, result=result)
            return result
        if child.status in ("failed", "cancelled"):
            self.failures.append(address)
            raise Failed
        told.waits[address] = Waiting("run", run_id)
        raise Halted(child.status)


def change(state: Any, op: list[Any]) -> None:
    """What a step does to a state, plain or draft."""
    what = op[2]
    if what[0] == "append":
        if "log" not in state:
            state["log"] = []
        state["log"].append(what[1])
    elif what[0] == "set":
        state[what[1]] = what[2]
    elif what[0] == "drop" and what[1] in state:
        del state[what[1]]
    if op[0] == "nest":
        state[f"nest {op[1]}"] = "done"


def _crash(errors: list[BaseException]) -> list[BaseException]:
    return [error for error in errors if isinstance(error, Crashed)]
