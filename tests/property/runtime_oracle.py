"""A plain interpreter of scripted workflows: what runs should become, without a store, a replay or a thread.

A script is a list of operations, each a list: its kind, then its arguments (see `Play.do`). Steps have a label, which
is theirs alone within a script: by it they are to fail or to crash, and their executions are counted.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from expected_runs import ENDED, Code, Known, Path, RunModel, Script, SentSignal, Waiting
from runtime_changes import Conflict, change, merge

#: What `act` may be called, and the older name under which a step is found.
ALIASES = {"acted": "act"}
#: What each attempt at a step costs.
COSTS = ("act", "flaky", "tally")


class Failed(Exception):
    """A step has failed, with an error of a type."""


class Crashed(BaseException):
    """The process has died."""


class Halted(BaseException):
    """The execution has ended at a boundary between steps."""


class Diverged(BaseException):
    """The code calls something else than is recorded at an address."""


@dataclass
class World:
    """All runs, the code, and what happens to steps in the present execution."""

    now: float
    code: Code
    runs: dict[str, RunModel] = field(default_factory=dict)
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
    clock: list[int] = field(default_factory=lambda: [0])

    def start(self, run_id: str, program: str, state: Any, **facts: Any) -> None:
        run_model = self.runs[run_id] = RunModel(run_id, program, clock=self.clock, **facts)
        run_model.add("initial", state)
        Play(self, run_model, {}).execute()

    def resume(self, run_model: RunModel, limits: dict[str, int] | None = None) -> None:
        """Do what `resume` does to a run that was not cancelled."""
        if run_model.status != "completed":
            run_model.limits |= limits or {}
        if run_model.status == "completed":
            return
        if run_model.status == "suspended" and not self.answers and not self.ready(run_model):
            return
        before, run_model.status = run_model.status, "running"
        Play(self, run_model, self.answers, before).execute()

    def cancel(self, run_model: RunModel) -> None:
        if run_model.status not in ENDED:
            run_model.waits = {}
            run_model.status = "cancelled"
            run_model.add("final", run_model.state, status="cancelled")
        for child in self.children(run_model):
            self.cancel(child)

    def children(self, run_model: RunModel) -> list[RunModel]:
        return [each for each in self.runs.values() if each.parent == run_model.id]

    def ready(self, run_model: RunModel) -> bool:
        """Return whether a suspended run would continue if it were resumed."""
        waits = run_model.waits.values()
        return not waits or any(
            wait.filled if wait.kind != "run" else self.would_move(self.runs[wait.name]) for wait in waits
        )

    def would_move(self, child: RunModel) -> bool:
        return child.status != "paused" and (child.status != "suspended" or self.ready(child))

    def roll_back(self, run_model: RunModel, to: int, *, resume: bool) -> None:
        self.rewind_children(run_model, run_model.versions[to].tick)
        run_model.roll_back(to)
        for child in self.children(run_model):
            if not self.is_part(run_model, child):
                self.cancel(child)
        if resume:
            self.resume(run_model)

    def rewind_children(self, run_model: RunModel, moment: int) -> None:
        """Each child that was under way at a moment gets the version back that it had."""
        for child in self.children(run_model):
            if not self.is_part(run_model, child):
                continue
            self.rewind_children(child, moment)
            if child.versions[child.head].tick > moment >= child.versions[1].tick:
                child.roll_back(max(each.number for each in child.line() if each.tick <= moment))

    def is_part(self, run_model: RunModel, child: RunModel) -> bool:
        """Was a child called on the line that a run is on now?"""
        timeline, first = child.called[1], child.versions[1].tick
        return timeline == len(run_model.starts) or any(
            known.timeline <= timeline and known.tick > first for known in run_model.line()
        )

    def edit(self, run_model: RunModel, by_hand: list[Any]) -> Known:
        """A person changes the state of a run, whose status stays as it is."""
        state = deepcopy(run_model.state)
        change(state, ["by hand", "", by_hand])
        return run_model.add("manual", state, status=run_model.status, by_hand=by_hand)

    def spent(self, run_model: RunModel) -> dict[str, int]:
        """Return the spending of a run, its children included."""
        parts = [self.spent(child) for child in self.children(run_model)]
        own = {"steps": run_model.steps + run_model.discarded + run_model.flying, "cost": run_model.cost}
        return {name: own[name] + sum(part[name] for part in parts) for name in own}

    def answer(self, run_model: RunModel, wait: Waiting, value: Any, *, resume: bool) -> None:
        wait.filled, wait.value = True, value
        if resume:
            self.delivered(run_model)

    def send(self, run_model: RunModel, name: str, value: Any, *, resume: bool) -> None:
        run_model.sent += 1
        signal = SentSignal(run_model.sent, name, value)
        for wait in run_model.waits.values():
            if wait.kind == "event" and wait.name == name and not wait.filled:
                wait.filled, wait.value, wait.signal = True, value, signal
                break
        else:
            run_model.signals.append(signal)
        if resume:
            self.delivered(run_model)

    def delivered(self, run_model: RunModel) -> None:
        """Resume a run for which something has come, if it can continue."""
        top = run_model
        while top.parent is not None and self.runs[top.parent].status not in ENDED:
            top = self.runs[top.parent]
        if run_model.status == top.status == "suspended" and self.ready(top):
            self.resume(top)


class Place:
    """The workflow's code, a step, or a branch: gives the addresses of what is called there."""

    def __init__(self, prefix: str = "", path: Path | None = None) -> None:
        self.prefix = prefix
        self.path: Path = path or []
        self.calls = 0
        self.tasks = 0
        #: How many calls were found under the older name of their step.
        self.aliased = 0
        self._counts: Counter[str] = Counter()

    def next(self, name: str) -> str:
        self._counts[name] += 1
        return self.named(name, self._counts[name])

    def named(self, name: str, number: int) -> str:
        local = name if number == 1 else f"{name}#{number}"
        return f"{self.prefix}/{local}" if self.prefix else local

    def task(self) -> Place:
        """The branch of the next task that asyncio makes here."""
        self.tasks += 1
        prefix = f"{self.prefix}/[{self.tasks}]" if self.prefix else f"[{self.tasks}]"
        return Place(prefix, [*self.path, (self.prefix, self.tasks, None)])


class Play:
    """One execution of a run."""

    def __init__(
        self, world: World, run_model: RunModel, answers: dict[str, Any], before: str = "running"
    ) -> None:
        self.world = world
        self.run_model = run_model
        self.answers = answers
        #: The status that the run had before.
        self.before = before
        self.recorded: dict[str, Known] = {}
        self.values: dict[str, Any] = {}
        line = list(run_model.line())
        for known in reversed(line):
            self.values |= known.values
            if known.kind == "step":
                assert known.address is not None
                self.recorded[known.address] = known
        #: The line, oldest first, and how far the workflow's own code has come on it; None for its end.
        self.past: list[Known] = line[::-1]
        self.at: int | None = 0 if self.recorded else None
        self.loose = dict(run_model.loose)
        self.failures: list[tuple[str, Path, Any, str]] = []
        self.wish = "cancel" if run_model.doomed else ""
        #: The calls that this execution must make, by frame, each with its number; how many tasks were made there.
        self.expected: dict[str, dict[str, int]] = {}
        self.branches: Counter[str] = Counter()
        #: Calls that it may make, by frame: they were made before.
        self.passed: dict[str, set[str | None]] = {}
        for path in self.paths():
            for frame, number, address in path:
                if address is None:
                    self.branches[frame] = max(self.branches[frame], number)
                else:
                    self.expected.setdefault(frame, {}).setdefault(address, number)
        #: Was a step refused because a limit is used up?
        self.exceeded = False
        #: What failed attempts cost, until that is written; steps that failed after they had called others.
        self.owed = 0
        self.retried = dict(run_model.retried)
        run_model.flying = 0

    def paths(self) -> list[Path]:
        """Where calls are recorded, or wait, which the same code makes again. An attempt at a step that failed may have
        called others than the next one does."""
        found = []
        for known in self.recorded.values():
            around = [address for _, _, address in known.path[:-1] if address is not None]
            mine = self.run_model.versions.get(known.number) is known
            if not any(mine and known.number <= self.run_model.retried.get(address, 0) for address in around):
                found.append(known.path)
        for wait in self.run_model.waits.values():
            if self.is_expected(wait):
                found.append(wait.path)
            else:
                # Code that sees another state may go elsewhere, but it has been here.
                for frame, _, address in wait.path:
                    self.passed.setdefault(frame, set()).add(address)
        return found

    def is_expected(self, wait: Waiting) -> bool:
        """Does the same code come to what a run waits for once more? Not for sure if the state was edited since, or if
        an attempt that failed had come to it."""
        edited = any(known.kind in ("manual", "fork") and known.number > wait.head for known in self.own())
        around = [address for _, _, address in wait.path[:-1] if address is not None]
        return not edited and not any(
            address in self.run_model.retried and wait.head <= self.run_model.retried[address]
            for address in around
        )

    def own(self) -> list[Known]:
        """The versions of the run itself that its head follows."""
        return [known for known in self.past if self.run_model.versions.get(known.number) is known]

    def execute(self) -> None:
        run_model = self.run_model
        try:
            place = Place()
            result = self.play(self.world.code.scripts[run_model.program], place)
            self.finish(place)
            if self.exceeded:
                raise Failed("LimitExceeded")
            self.go_live()
            run_model.waits = {}
            run_model.status = "completed"
            self.commit("final", run_model.state, status="completed", result=result)
        except Failed as error:
            run_model.status, run_model.error = "failed", str(error)
            self.write()
        except Halted as halt:
            self.halted(str(halt))
        except Diverged:
            run_model.status = self.before
            self.write()
            raise

    def halted(self, status: str) -> None:
        run_model = self.run_model
        run_model.status = status
        if status == "cancelled":
            run_model.waits = {}
            self.commit("final", run_model.state, status="cancelled")
        self.write()

    def write(self) -> None:
        """Keep values that no version holds in the run's record."""
        self.run_model.loose = dict(self.loose)
        self.settle()

    def settle(self) -> None:
        self.run_model.cost += self.owed
        self.owed = 0
        self.run_model.retried = dict(self.retried)

    def commit(self, kind: str, state: Any, **facts: Any) -> Known:
        known = self.run_model.add(kind, state, values=self.loose, **facts)
        self.values |= self.loose
        self.run_model.loose, self.loose = {}, {}
        self.at = None
        self.settle()
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
            except Failed as error:
                return ["caught", str(error)]
        if kind == "value":
            return self.value(place.next(args[0]), args[0])
        if kind == "patched":
            return self.do(args[1], place) if self.patched(place, args[0]) else "as before"
        if kind == "look":
            return deepcopy(self.seen())
        if kind in ("ask", "wait"):
            return self.wait(place, *op)
        if kind == "part":
            return self.part(place, args[0])
        if kind == "pair":
            return self.in_parallel(place, args, threads=True, at_once=True)
        if kind == "count":
            threads = self.run_model.program not in self.world.code.asynchronous
            return self.in_parallel(place, args[1:], threads=threads, at_once=not (threads and args[0]))
        return self.step(place, op)

    def seen(self) -> Any:
        """The state that the workflow's own code sees."""
        return self.run_model.state if self.at is None else self.past[self.at].state

    # Calls

    def call(self, place: Place, name: str) -> tuple[str, Path]:
        """The address of a call, and its path; the code must make the calls that are recorded, in their order."""
        address = place.next(name)
        if name in ALIASES and address not in self.recorded:
            old = place.named(ALIASES[name], place.aliased + 1)
            if old in self.recorded:
                address = old
                place.aliased += 1
        number, place.calls = place.calls, place.calls + 1
        left = self.expected.get(place.prefix, {})
        first = min(left, key=lambda each: left[each], default=None)
        # Waits for different events may change places.
        alike = first is not None and "wait_for[" in name and "wait_for[" in first
        if (
            first is not None
            and first != address
            and (address in left or left[first] <= number)
            and not alike
        ):
            raise Diverged(first)
        left.pop(address, None)
        self.passed.get(place.prefix, set()).discard(address)
        return address, [*place.path, (place.prefix, number, address)]

    def finish(self, place: Place) -> None:
        """The code of a frame has returned: it must have made all calls that are recorded."""
        if self.expected.get(place.prefix) or self.branches[place.prefix] > place.tasks:
            raise Diverged(place.prefix)

    def patched(self, place: Place, name: str) -> Any:
        address = place.next(f"patched[{name}]")
        known = self.loose.get(address, self.values.get(address))
        if known is None:
            frame = place.prefix
            beyond = self.expected.get(frame) or self.passed.get(frame) or self.branches[frame] > place.tasks
            known = self.loose[address] = not beyond
        return known

    def check(self) -> None:
        if self.wish:
            raise Halted("cancelled" if self.wish == "cancel" else "paused")

    def admit(self, *, attempt: bool = False) -> None:
        """A step is to start, or to be tried again: it must not if a limit is used up."""
        run: RunModel | None = self.run_model
        while run is not None:
            spent = self.world.spent(run)
            spent["cost"] += self.owed
            names = ["cost"] if attempt else ["cost", "steps"]
            if any(spent[name] >= run.limits.get(name, spent[name] + 1) for name in names):
                self.exceeded = True
                raise Failed("LimitExceeded")
            run = None if run.parent is None else self.world.runs[run.parent]

    # Steps

    def replay(self, address: str, given: Any = None) -> Any:
        """A recorded call: what it gave."""
        known = self.recorded[address]
        if known.given != given:
            raise Diverged(address)
        place = next(place for place, each in enumerate(self.past) if each is known)
        if self.at is not None:
            last = max(place for place, each in enumerate(self.past) if each.kind == "step")
            self.at = None if place == last else max(self.at, place)
        if known.failed:
            raise Failed(known.error)
        return deepcopy(known.result)

    def go_live(self, handled: list[Any] | None = None) -> None:
        """Failures so far, or those that are given, were handled: they are results."""
        for failure in list(self.failures if handled is None else handled):
            if failure not in self.failures:
                continue
            self.failures.remove(failure)
            address, path, given, error = failure
            self.commit(
                "step",
                self.run_model.state,
                address=address,
                path=path,
                given=given,
                failed=True,
                error=error,
            )

    def step(self, place: Place, op: list[Any]) -> Any:
        address, path = self.call(place, self.world.code.act if op[0] == "act" else op[0])
        self.check()
        if address in self.recorded:
            return self.replay(address, op)
        self.admit()
        self.go_live()
        return self.live(address, path, op)

    def live(self, address: str, path: Path, op: list[Any]) -> Any:
        self.run_model.flying += 1
        try:
            result = self.body(address, path, op)
            state = deepcopy(self.run_model.state)
            change(state, op)
            self.written(address, path, op, state, result)
        finally:
            self.run_model.flying -= 1
        return result

    def written(self, address: str, path: Path, op: list[Any], state: Any, result: Any) -> None:
        self.run_model.cost += op[0] in COSTS
        self.retried.pop(address, None)
        self.commit("step", state, address=address, path=path, given=op, result=deepcopy(result))

    def enter(self, address: str, label: str) -> None:
        self.world.ran[label] += 1
        self.world.keys[label] = (self.run_model.id, len(self.run_model.starts), address)

    def body(self, address: str, path: Path, op: list[Any]) -> Any:
        kind, label = op[0], op[1]
        self.enter(address, label)
        result = op[3]
        try:
            if kind == "flaky":
                # The first attempt fails, which is written at once.
                self.owed += 1
                self.admit(attempt=True)
                self.write()
                self.enter(address, label)
            if kind == "nest":
                place = Place(address, path)
                result = [self.do(inner, place) for inner in op[3]]
            if kind == "stop":
                self.wish = op[3]
                self.run_model.doomed = self.wish == "cancel"
            self.fate(label)
            if kind == "nest":
                self.finish(place)
        except Failed as error:
            if str(error) != "LimitExceeded":
                self.owed += kind in COSTS
                self.failed(address, path, op, str(error))
            raise
        return result

    def failed(self, address: str, path: Path, op: list[Any], error: str) -> None:
        if any(each.startswith(f"{address}/") for each in self.steps_so_far()):
            self.retried[address] = self.run_model.head
        self.check()
        self.failures.append((address, path, op, error))

    def steps_so_far(self) -> list[str]:
        return [str(known.address) for known in self.run_model.line() if known.kind == "step"]

    def fate(self, label: str) -> None:
        if label == self.world.crashing:
            raise Crashed
        if label in self.world.failing:
            raise Failed("Boom")

    # Branches

    def in_parallel(self, place: Place, ops: list[list[Any]], *, threads: bool, at_once: bool) -> Any:
        """Steps in branches: each begins after the one before it, and ends after that one has ended. If they run at
        once, all begin before the first ends."""
        if threads:
            address, path = self.call(place, "parallel")
            branches = [
                Place(f"{address}/[{number}]", [*path, (address, number, None)])
                for number in range(1, len(ops) + 1)
            ]
        else:
            branches = [place.task() for _ in ops]
        base = deepcopy(self.seen())
        for known in [] if self.at is None else self.past[self.at + 1 :]:
            if known.by_hand is not None:
                change(base, ["by hand", "", known.by_hand])
        results: list[Any] = [None] * len(ops)
        errors: dict[int, BaseException] = {}
        started: dict[int, tuple[str, Path]] = {}
        # What fails in the branches, the code around them may handle later.
        earlier = list(self.failures)
        for phase in ("begin", "end") if at_once else ("both",):
            for number, op in enumerate(ops):
                try:
                    if phase != "end":
                        found = self.begin(branches[number], op, errors, earlier, threads=threads)
                        if len(found) == 1:
                            results[number] = found[0]
                        else:
                            started[number] = found
                            self.enter(found[0], op[1])
                            self.run_model.flying += 1
                    if phase != "begin" and number in started:
                        results[number] = self.end(*started[number], op, base, errors)
                except (Failed, Crashed, Halted, Diverged) as error:
                    errors[number] = error
        for kind in (Crashed, Diverged, Halted, Failed):
            for number in sorted(errors):
                if isinstance(errors[number], kind):
                    raise errors[number]
        return results

    def begin(
        self,
        place: Place,
        op: list[Any],
        errors: dict[int, BaseException],
        earlier: list[Any],
        *,
        threads: bool,
    ) -> Any:
        """Start a step in a branch: its address and path, or, if it is recorded, only what it gave."""
        if any(isinstance(error, Diverged | Halted) for error in errors.values()):
            raise Halted("diverged")
        name = {"act": self.world.code.act, "tally": "tally" if threads else "atally"}[op[0]]
        address, path = self.call(place, name)
        self.check()
        if address in self.recorded:
            return [self.replay(address, op)]
        self.admit()
        if not any(isinstance(error, Crashed) for error in errors.values()):
            self.go_live(earlier)
        return address, path

    def end(
        self, address: str, path: Path, op: list[Any], base: Any, errors: dict[int, BaseException]
    ) -> Any:
        """A step in a branch ends: it has changed the state that was there when the branches began."""
        self.run_model.flying -= 1
        if any(isinstance(error, Crashed) for error in errors.values()):
            raise Crashed
        own, state = deepcopy(base), deepcopy(self.run_model.state)
        result = op[3] if op[0] == "act" else deepcopy(own.get(op[2]))
        change(own, op)
        try:
            self.fate(op[1])
            if op[0] == "act":
                change(state, op)
            else:
                merge(state, base, own, op[2])
        except Crashed:
            # The branches after it are in the same process, which knows what it has spent.
            self.owed += 1
            raise
        except (Failed, Conflict) as error:
            name = "MergeConflict" if isinstance(error, Conflict) else str(error)
            self.owed += 1
            self.failed(address, path, op, name)
            raise Failed(name) from None
        self.written(address, path, op, state, result)
        return result

    # Values, waits, children

    def value(self, address: str, kind: str) -> Any:
        got = self.world.values.pop(0)
        known = self.loose.get(address, self.values.get(address))
        if known is None:
            assert kind != "now" or got == self.world.now
            known = self.loose[address] = got
            place = (self.run_model.id, len(self.run_model.starts), address)
            assert kind == "now" or self.world.drawn.setdefault(place, got) == got, "a crash has changed it"
        assert got == known, f"{address} gave {got} and was recorded as {known}"
        return got

    def wait(self, place: Place, kind: str, name: str) -> Any:
        run_model = self.run_model
        address, path = self.call(place, "ask" if kind == "ask" else f"wait_for[{name}]")
        self.check()
        if address in self.recorded:
            return self.replay(address)
        self.go_live()
        wait = run_model.waits.get(address)
        if wait is None:
            run_model.asked += kind == "ask"
            wait = (
                Waiting("prompt", f"{run_model.id}#{run_model.asked}")
                if kind == "ask"
                else Waiting("event", name)
            )
        wait.path = path
        if kind == "ask" and not wait.filled:
            for given in (wait.name, address):
                if given in self.answers:
                    wait.filled, wait.value = True, self.answers[given]
        signal = next((each for each in run_model.signals if each.name == name), None)
        if kind == "wait" and not wait.filled and signal is not None:
            run_model.signals.remove(signal)
            wait.filled, wait.value = True, signal.value
        if not wait.filled:
            wait.head = run_model.head
            run_model.waits[address] = wait
            raise Halted("suspended")
        run_model.waits.pop(address, None)
        self.commit("step", run_model.state, address=address, path=path, result=wait.value)
        return deepcopy(wait.value)

    def part(self, place: Place, program: str) -> Any:
        run_model, world = self.run_model, self.world
        address, path = self.call(place, "play_part")
        self.check()
        if address in self.recorded:
            return self.replay(address, program)
        self.admit()
        self.go_live()
        run_model.flying += 1
        run_id = self.child_at(address)
        if run_id not in world.runs:
            world.start(run_id, program, {}, parent=run_model.id, called=(address, len(run_model.starts)))
        elif world.runs[run_id].status != "cancelled":
            try:
                world.resume(world.runs[run_id])
            finally:
                run_model.flying -= 1
            run_model.flying += 1
        run_model.flying -= 1
        child = world.runs[run_id]
        run_model.waits.pop(address, None)
        if child.status == "completed":
            result = deepcopy(next(known.result for known in child.line() if known.kind == "final"))
            self.commit("step", run_model.state, address=address, path=path, given=program, result=result)
            return result
        if child.status in ("failed", "cancelled"):
            error = child.error if child.status == "failed" else "Cancelled"
            if error == "LimitExceeded":
                self.exceeded = True
            else:
                self.failures.append((address, path, program, error))
            raise Failed(error)
        run_model.waits[address] = Waiting("run", run_id, path=path, head=run_model.head)
        raise Halted(child.status)

    def child_at(self, address: str) -> str:
        """The child that is called at an address: perhaps one that was under way when the run was rolled back."""
        run_model, world = self.run_model, self.world
        timeline = len(run_model.starts)
        run_id = f"{run_model.id}.{address}" + ("" if timeline == 1 else f".{timeline}")
        if run_id not in world.runs:
            for child in reversed(world.children(run_model)):
                if (
                    child.called[0] == address
                    and child.status != "cancelled"
                    and world.is_part(run_model, child)
                ):
                    return child.id
        return run_id
