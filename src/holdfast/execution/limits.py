"""Limits: what a run, or a block of its code, may spend before its next step is refused.

Spending is counted in budgets. A run that has limits has one, and so has each `with Limits(…)` block; a budget knows
the one around it, so that a child run spends from the budgets of its parents, too. Costs and tokens are those that
steps passed to `holdfast.annotate`, failed attempts included.

Invariant: spending never decreases, whatever becomes of the steps: a rollback, a failed attempt and an abandoned
timeline have cost what they cost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from decimal import Decimal
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import InvalidCall, LimitExceeded
from holdfast.model.checks import check_integer, check_number
from holdfast.model.names import short
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import RunDetail, RunLimits, detail_of
from holdfast.store.protocol import Store

if TYPE_CHECKING:
    from holdfast.execution.execution import Execution
    from holdfast.execution.frame import Frame
    from holdfast.execution.replay_log import RecordedStep

#: Runs whose heads are read together.
_PAGE = 200
_NAMES = ("cost", "tokens", "steps", "seconds")


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Budgets of a run, its children included, or of a `with Limits(…):` block of its code. Once a limit is used up,
    the next step is not started: `LimitExceeded` is raised instead. None means unlimited."""

    #: Sums of what steps noted with `holdfast.annotate(cost=…, tokens=…)`, failed attempts included.
    cost: float | None = None
    tokens: int | None = None
    #: Completed steps: nested ones, those of children, the calls of children, and answers and events that were waited
    #: for count, too.
    steps: int | None = None
    #: Seconds of execution: waiting for an answer, an event or a time does not count.
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "steps"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 0)
        for name in ("cost", "seconds"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))

    def __enter__(self) -> Limits:
        """Limit the spending of the steps in the block. No effect in `call_steps_directly`, where nothing is
        counted."""
        from holdfast.execution.calls import current

        frame = current.get()
        outer = _block.get()
        if frame is None:
            from holdfast.workflow.decorators import direct_state

            if direct_state() is None:
                raise InvalidCall(
                    "`with Limits(…)` limits the steps of a workflow that is being run: put it into the workflow, or "
                    "give limits=… to hf.run or @workflow"
                )
            _block.set(Budget(Limits(), "", outer=outer, inside=outer))
            return self
        execution = frame.execution
        execution.has_limit_blocks = True
        around = innermost_budget(execution)
        clock = execution.engine.context.clock
        recorded = _Recorded(frame.here())
        _block.set(
            Budget(
                self,
                execution.id,
                outer=around,
                execution=execution,
                inside=outer,
                began=clock(),
                recorded=recorded,
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        budget = _block.get()
        if budget is not None and budget.recorded is not None:
            budget.recorded.leave()
        _block.set(None if budget is None else budget.inside)


class Spent(msgspec.Struct, frozen=True):
    """The spending of a run, its children included."""

    cost: float = 0
    tokens: float = 0
    steps: int = 0
    seconds: float = 0

    def plus(self, other: Spent) -> Spent:
        """Return the sum. Children execute within the time of their parent, so their time is not added."""
        return Spent(
            self.cost + other.cost, self.tokens + other.tokens, self.steps + other.steps, self.seconds
        )


class _Recorded:
    """The calls of a block that were recorded before the block was entered. Each is counted once: when it is replayed,
    or when a step that is not recorded is about to start in another branch, whichever comes first."""

    __slots__ = ("_counted", "_end", "_frame", "_left", "_newest", "_start")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        #: How many calls and tasks the frame had made when the block was entered, and when it was left.
        self._start = (frame.calls, frame.tasks)
        self._end: tuple[int, int] | None = None
        self._newest = frame.execution.head.version.number
        #: Those that are not counted yet, by address: is it in a task, the number of the task or call, its record.
        self._left: dict[str, tuple[bool, int, RecordedStep]] | None = None
        self._counted: set[str] = set()

    def leave(self) -> None:
        """Note that the code of the frame has left the block; tasks that it started there are still in it."""
        self._end = (self._frame.calls, self._frame.tasks)

    def is_uncounted(self, entry: RecordedStep) -> bool:
        """Note that a recorded call is replayed; return whether it is to be counted. One that was recorded in the block
        is not: it was counted when it ran."""
        if entry.number > self._newest or entry.address in self._counted:
            return False
        self._counted.add(entry.address)
        if self._left is not None:
            self._left.pop(entry.address, None)
        return True

    def take(self) -> list[RecordedStep]:
        """Return the recorded calls that must count against the budget now, each once, oldest first: those that the
        block has made, and all calls of parallel branches that it has started."""
        if self._left is None:
            self._left = self._find()
        if not self._left:
            return []
        calls, tasks = self._end or (self._frame.calls, self._frame.tasks)
        found = [
            entry
            for is_task, number, entry in self._left.values()
            if (number <= tasks if is_task else number < calls)
        ]
        for entry in found:
            del self._left[entry.address]
            self._counted.add(entry.address)
        return sorted(found, key=lambda entry: entry.number)

    def _find(self) -> dict[str, tuple[bool, int, RecordedStep]]:
        steps = self._frame.execution.replay_log.steps
        found = {}
        for entry in list(steps.values()):
            is_left = entry.number <= self._newest and entry.address not in self._counted
            place = self._place(entry) if is_left else None
            if place is not None and not self._is_in_recorded(entry.address, steps):
                found[entry.address] = (*place, entry)
        return found

    def _place(self, entry: RecordedStep) -> tuple[bool, int] | None:
        """Return the task, or else the call, of the frame that a recorded call is or belongs to; None if the frame made
        it before it entered the block, or did not make it, or if the order of its calls is not known."""
        frame = self._frame
        within = f"{frame.address}/" if frame.address else ""
        if not entry.address.startswith(within):
            return None
        local = entry.address[len(within) :].partition("/")[0]
        calls, tasks = self._start
        if local.startswith("["):
            number = int(local[1:-1]) if local[1:-1].isdigit() else 0
            return (True, number) if number > tasks else None
        path = entry.detail.get("call")
        path = (path,) if isinstance(path, int) else path
        if path is None or frame.path is None or len(path) <= len(frame.path):
            return None
        index = path[len(frame.path)]
        return (False, index) if index >= calls else None

    def _is_in_recorded(self, address: str, steps: Mapping[str, RecordedStep]) -> bool:
        """Return whether a call is within a recorded one, which has counted it and is replayed in its place."""
        around = address.rpartition("/")[0]
        while len(around) > len(self._frame.address):
            if around in steps:
                return True
            around = around.rpartition("/")[0]
        return False


class Budget:
    """The spending within some limits, and the budget around it."""

    __slots__ = (
        "began",
        "cost",
        "covered",
        "execution",
        "inside",
        "limits",
        "lock",
        "outer",
        "recorded",
        "run",
        "steps",
        "tokens",
        "worked",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        run: str,
        *,
        outer: Budget | None,
        execution: Execution | None = None,
        spent: Spent | None = None,
        began: int = 0,
        inside: Budget | None = None,
        recorded: _Recorded | None = None,
    ) -> None:
        self.limits = limits
        #: The id of the run whose limits these are.
        self.run = run
        self.outer = outer
        #: Of a block: the execution whose code it is in, and the block around it, if there is one.
        self.execution = execution
        self.inside = inside
        #: When it was opened; 0 if the run is not being executed. Microseconds that count before that.
        self.began = began
        spent = spent or Spent()
        self.cost, self.tokens, self.steps = spent.cost, spent.tokens, spent.steps
        self.worked = int(spent.seconds * 1e6)
        #: Of a block: what was recorded in it earlier, and until when such steps have been counted.
        self.recorded = recorded
        self.covered = 0
        self.lock = threading.Lock()

    def around(self) -> Iterator[Budget]:
        """Yield this budget and those around it."""
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.outer

    def admit(self, execution: Execution, address: str, steps: int) -> None:
        """Let a step start, or only its next attempt if `steps` is 0; `LimitExceeded` if a limit is used up. Steps
        that have started count, so that parallel ones do not exceed the limit together."""
        now = execution.engine.context.clock()
        admitted: list[Budget] = []
        for budget in self.around():
            with budget.lock:
                if budget.recorded is not None:
                    for entry in budget.recorded.take():
                        budget.count_entry(entry)
                found = budget.used_up(now, steps)
                if found is None:
                    budget.steps += steps
            if found is not None:
                for each in admitted:
                    each.add(0, 0, -steps)
                raise budget.refusal(execution, address, *found)
            admitted.append(budget)

    def give_back(self) -> None:
        """Uncount a step that was admitted and not completed."""
        for budget in self.around():
            budget.add(0, 0, -1)

    def count_step(self) -> None:
        """Count a completed step that was not admitted: what a run waited for has come."""
        for budget in self.around():
            budget.add(0, 0, 1)

    def spend(self, cost: float, tokens: float) -> None:
        """Count what was noted, here and in the budgets around."""
        if cost or tokens:
            for budget in self.around():
                budget.add(cost, tokens, 0)

    def add(self, cost: float, tokens: float, steps: int) -> None:
        """Count something, here alone."""
        with self.lock:
            self.cost += cost
            self.tokens += tokens
            self.steps += steps

    def count_replayed(self, entry: RecordedStep) -> None:
        """Count the spending of a replayed step in this block, unless it was counted."""
        with self.lock:
            if self.recorded is None or self.recorded.is_uncounted(entry):
                self.count_entry(entry)

    def count_entry(self, entry: RecordedStep) -> None:
        spent = entry.detail.get("spent") or {}
        self.cost += spent.get("cost", 0)
        self.tokens += spent.get("tokens", 0)
        self.steps += spent.get("steps", 0) + (0 if entry.failed else 1)
        end = entry.version.at
        began = max(end - entry.detail.get("took", 0), self.covered)
        self.worked += max(0, end - began)
        self.covered = max(self.covered, end)

    def learn(self, spent: Spent) -> None:
        """Raise the spending to what others have recorded."""
        with self.lock:
            self.cost = max(self.cost, spent.cost)
            self.tokens = max(self.tokens, spent.tokens)
            self.steps = max(self.steps, spent.steps)

    def seconds(self, now: int) -> float:
        """Return the seconds of execution so far."""
        return (self.worked + (now - self.began if self.began else 0)) / 1e6

    def used_up(self, now: int, steps: int) -> tuple[str, float, float] | None:
        limits = self.limits
        if limits.cost is not None and self.cost >= limits.cost:
            return "cost", self.cost, limits.cost
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return "tokens", self.tokens, limits.tokens
        if steps and limits.steps is not None and self.steps >= limits.steps:
            return "steps", self.steps, limits.steps
        if limits.seconds is not None and (spent := self.seconds(now)) >= limits.seconds:
            return "seconds", spent, limits.seconds
        return None

    def refusal(
        self, execution: Execution, address: str, limit: str, spent: float, allowed: float
    ) -> LimitExceeded:
        block = self.execution is not None
        whose = f"a block of run {self.run!r}" if block else f"run {self.run!r}"
        how = (
            "raise the limit of the block in the code, and resume the run"
            if block
            else f"resume it with a higher one, as in hf.resume({self.run!r}, limits=Limits({limit}=…))"
        )
        error = LimitExceeded(
            f"step {address!r} was not started: {whose} has used up its limit of {limit} ({spent:,.6g} of "
            f"{allowed:,.6g}); {how}",
            limit=limit,
            spent=spent,
            allowed=allowed,
            run=self.run,
            address=address,
            block=block,
        )
        if self.execution is not execution:
            # It is the limit of the whole run, or of one around it: code that catches the error cannot continue.
            execution.exceed(error, address)
        return error


#: The innermost block of the code that is running; None if there is none.
_block: ContextVar[Budget | None] = ContextVar("holdfast.limits", default=None)


def innermost_budget(execution: Execution) -> Budget | None:
    """Return the budget from which code of an execution spends first; None if nothing is limited."""
    block = _block.get()
    return execution.budget if block is None or block.execution is not execution else block


def blocks_of(execution: Execution) -> Iterator[Budget]:
    """Yield the blocks around the running code of an execution, innermost first."""
    block = _block.get()
    while block is not None and block.execution is execution:
        yield block
        block = block.inside


def is_run_limit(execution: Execution, error: BaseException) -> bool:
    """Return whether a step was refused by a limit of the run that an execution is of, or of one around that run, and
    not by a limit of a child or of a block."""
    if not isinstance(error, LimitExceeded) or execution.budget is None:
        return False
    if error.run == execution.id and error.details.get("block"):
        return False
    return any(budget.run == error.run for budget in execution.budget.around())


def count_replayed(execution: Execution, entry: RecordedStep) -> None:
    """Count the spending of a replayed step in the blocks around its call. The budget of the run includes it
    already."""
    for block in blocks_of(execution):
        block.count_replayed(entry)


def count_child(execution: Execution, run: RunRecord) -> None:
    """Count the spending of a child that was executed before and is called again."""
    budget = innermost_budget(execution)
    if budget is None:
        return
    store = execution.engine.store
    spent = spent_by(store, run)
    for block in blocks_of(execution):
        block.add(spent.cost, spent.tokens, spent.steps)
    for around in budget.around():
        if around.execution is None and around.run:
            known = store.run(around.run)
            if known is not None:
                around.learn(spent_by(store, known))


def open_budget(execution: Execution, outer: Budget | None, alone: bool) -> Budget | None:
    """Return the budget of an execution that starts; None if nothing is limited. A child that is executed without its
    parent (`alone`) keeps to the limits of its parents all the same."""
    run, store = execution.head.run, execution.engine.store
    if alone and run.parent is not None:
        outer = _of_parents(store, run)
    limits = limits_of(execution.detail.limits)
    if limits is None:
        return outer
    # A run that this execution has made has spent nothing. One that was rolled back to its first version may have.
    spent = Spent() if execution.before is None else spent_by(store, run)
    return Budget(limits, run.id, outer=outer, spent=spent, began=execution.began)


def _of_parents(store: Store, run: RunRecord) -> Budget | None:
    above = None if run.parent is None else store.run_by_key(run.parent)
    if above is None:
        return None
    outer = _of_parents(store, above)
    limits = limits_of(detail_of(above).limits)
    return outer if limits is None else Budget(limits, above.id, outer=outer, spent=spent_by(store, above))


# What was spent


def amounts(notes: Mapping[str, Any] | None) -> tuple[float, float]:
    """Return the cost and the tokens among the annotations of a step."""
    return (amount(notes, "cost"), amount(notes, "token")) if notes else (0, 0)


def amount(notes: Mapping[str, Any], what: str) -> float:
    """Return the amount of something among annotations: the figure under its own name, or else the sum of all names
    that contain it."""
    for name in (f"{what}s", what, f"total_{what}s", f"total_{what}"):
        if is_sum(name, notes.get(name)):
            return _number(notes[name])
    return sum(_number(value) for name, value in notes.items() if what in name and is_sum(name, value))


def is_sum(name: Any, value: Any) -> bool:
    """Return whether a figure adds up, as tokens and cost do. A setting such as `max_tokens` does not."""
    return (
        isinstance(name, str)
        and ("token" in name or "cost" in name)
        and not name.startswith(("max_", "min_"))
        # The numbers of numpy are numbers, too.
        and isinstance(value, int | float | Decimal | Real)
        and not isinstance(value, bool)
    )


def add_figures(totals: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return totals with the figures of a step that add up."""
    found = dict(totals)
    for name, value in notes.items():
        if is_sum(name, value):
            found[name] = add_figure(found.get(name, 0), value)
    return found


def add_figure(one: Any, other: Any) -> Any:
    """Return the sum of two figures, which may be of different types."""
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return one + other
    return _number(one) + _number(other)


def check_figures(facts: Mapping[str, Any]) -> None:
    """Refuse a figure that cannot be added up: no limit would ever be reached."""
    for name, value in facts.items():
        if is_sum(name, value) and not isfinite(value):
            raise InvalidCall(
                f"{name} is annotated as {value!r}: give a finite number, so that it can be added up"
            )


def _number(value: Any) -> float:
    if isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def used_by(facts: RunDetail) -> tuple[float, float]:
    """Return the cost and the tokens of a run without its children. Older runs have only the totals by name."""
    if facts.used is not None:
        return facts.used.cost, facts.used.tokens
    return amounts(facts.totals)


def spent_by(store: Store, run: RunRecord) -> Spent:
    """Return the spending of a run and its children, whatever became of their steps."""
    facts = detail_of(run)
    found = Spent(*used_by(facts), seconds=facts.worked / 1e6)
    for page in _pages([run], store):
        heads = store.packs_of([(each.key, each.head) for each in page])
        for each in page:
            its = facts if each.key == run.key else detail_of(each)
            cost, tokens = (0.0, 0.0) if each.key == run.key else used_by(its)
            head = heads.get((each.key, each.head))
            steps = (0 if head is None else head.steps) + its.discarded
            found = found.plus(Spent(cost, tokens, steps))
    return found


def totals_of(store: Store, run: RunRecord) -> dict[str, Any]:
    """Return the tokens and costs of the annotations of a run and its children, by name."""
    found: dict[str, Any] = {}
    for page in _pages([run], store):
        for each in page:
            found = add_figures(found, detail_of(each).totals)
    return found


def _pages(runs: list[RunRecord], store: Store) -> Iterator[list[RunRecord]]:
    """Yield runs, their children, and the children of those, in pages."""
    waiting = [runs]
    while waiting:
        page = waiting.pop()
        yield page
        for run in page:
            before: int | None = None
            while children := store.runs(parent=run.key, before=before, limit=_PAGE):
                waiting.append(children)
                before = children[-1].key


# What a run's record keeps


def check_limits(limits: Any) -> Limits | None:
    """Return limits, or raise `InvalidCall`."""
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidCall(f"limits is Limits(…), such as Limits(cost=5), not {short(limits)}")
    return limits


def limits_record(run: Limits | None, workflow: Limits | None) -> RunLimits | None:
    """Return the limits of a run for its record: those of its workflow, each replaced by the run's own."""
    own = _given(run)
    given = {**_given(workflow), **own}
    return RunLimits(**given, own=sorted(own)) if given else None


def updated_limits(
    known: RunLimits | None, workflow: Limits | None, given: Limits | None = None
) -> RunLimits | None:
    """Return the limits of a run whose workflow may have changed: the run's own stay, unless others are `given`."""
    own = {name: value for name, value in _given(known).items() if known is not None and name in known.own}
    own |= _given(given)
    return limits_record(Limits(**own) if own else None, workflow)


def limits_of(known: RunLimits | None) -> Limits | None:
    """Return the limits in a record; None if there are none."""
    found = _given(known)
    return Limits(**found) if found else None


def _given(limits: Limits | RunLimits | None) -> dict[str, Any]:
    """Return the limits that are set, by name."""
    values = {name: getattr(limits, name, None) for name in _NAMES}
    return {name: value for name, value in values.items() if value is not None}
