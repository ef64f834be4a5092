"""Limits: what a run, or a block of its code, may spend before its next step is refused.

Spending is counted in ledgers. A run that has limits has one, and so has each `with Limits(…)` block; a ledger knows
the one around it, so that a child run spends from the ledgers of its parents, too. Costs and tokens are those that
steps noted with `holdfast.note`, failed attempts included.

Invariant: what has been spent never decreases, whatever becomes of the steps: a rollback, a failed attempt and an
abandoned timeline have cost what they cost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import InvalidCall, LimitExceeded
from holdfast.model.names import short
from holdfast.model.records import RunRecord
from holdfast.runtime.waits import Facts, facts_of
from holdfast.store.base import Store

if TYPE_CHECKING:
    from holdfast.runtime.record import Entry
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.session import Session

#: Runs whose heads are read together.
_PAGE = 200
_MOST = 1e12
#: In a run's record: the names of the limits that were given for the run and not with its workflow.
_OWN = "own"
_NAMES = ("cost", "tokens", "steps", "seconds")


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be spent: by a run, its children included, or in a `with Limits(…):` block of its code. Once a limit is
    used up, the next step is not started: `LimitExceeded` is raised instead. None means unlimited."""

    #: Sums of what steps noted with `holdfast.note(cost=…, tokens=…)`, failed attempts included.
    cost: float | None = None
    tokens: int | None = None
    #: Completed steps: nested ones, those of children, the calls of children, and answers and events that were waited
    #: for count, too.
    steps: int | None = None
    #: Seconds of execution: waiting for an answer, an event or a time does not count.
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            whole = name in ("tokens", "steps")
            kind = int if whole else int | float
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < _MOST
            ):
                what = "a whole number" if whole else "a number"
                raise InvalidCall(f"{name} of Limits is {what}, 0 or more, not {short(value)}", field=name)

    def __enter__(self) -> Limits:
        """Limit what the steps of the block may spend. In a trial, where nothing is counted, this has no effect."""
        from holdfast.runtime.scope import current

        frame = current.get()
        outer = _block.get()
        if frame is None:
            from holdfast.runtime.calls import trial_state

            if trial_state() is None:
                raise InvalidCall(
                    "`with Limits(…)` limits the steps of a workflow that is being run: put it into the workflow, or "
                    "give limits=… to hf.run or @workflow"
                )
            _block.set(Ledger(Limits(), "", outer=outer, inside=outer))
            return self
        session = frame.session
        around = innermost(session)
        clock = session.services.context.clock
        recorded = _Recorded(frame.here())
        _block.set(
            Ledger(
                self,
                session.id,
                outer=around,
                session=session,
                inside=outer,
                began=clock(),
                recorded=recorded,
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        ledger = _block.get()
        if ledger is not None and ledger.recorded is not None:
            ledger.recorded.leave()
        _block.set(None if ledger is None else ledger.inside)


class Spent(msgspec.Struct, frozen=True):
    """What a run has spent, its children included."""

    cost: float = 0
    tokens: float = 0
    steps: int = 0
    seconds: float = 0

    def plus(self, other: Spent) -> Spent:
        """The sum. Children execute within the time of their parent, so their time is not added."""
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
        self._newest = frame.session.head.version.number
        #: Those that are not counted yet, by address: is it in a task, the number of the task or call, its record.
        self._left: dict[str, tuple[bool, int, Entry]] | None = None
        self._counted: set[str] = set()

    def leave(self) -> None:
        """The code of the frame has left the block; tasks that it started there are still in it."""
        self._end = (self._frame.calls, self._frame.tasks)

    def is_uncounted(self, entry: Entry) -> bool:
        """Note that a recorded call is replayed; return whether it is to be counted. One that was recorded in the block
        is not: it was counted when it ran."""
        if entry.number > self._newest or entry.address in self._counted:
            return False
        self._counted.add(entry.address)
        if self._left is not None:
            self._left.pop(entry.address, None)
        return True

    def take(self) -> list[Entry]:
        """Return the recorded calls that have been made, or are made in branches that have started, and are not counted
        yet, oldest first."""
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

    def _find(self) -> dict[str, tuple[bool, int, Entry]]:
        steps = self._frame.session.record.steps
        found = {}
        for entry in list(steps.values()):
            is_left = entry.number <= self._newest and entry.address not in self._counted
            place = self._place(entry) if is_left else None
            if place is not None and not self._is_in_recorded(entry.address, steps):
                found[entry.address] = (*place, entry)
        return found

    def _place(self, entry: Entry) -> tuple[bool, int] | None:
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

    def _is_in_recorded(self, address: str, steps: Mapping[str, Entry]) -> bool:
        """Is a call within one that is recorded, which has counted it and is replayed in its place?"""
        around = address.rpartition("/")[0]
        while len(around) > len(self._frame.address):
            if around in steps:
                return True
            around = around.rpartition("/")[0]
        return False


class Ledger:
    """What was spent within some limits, and the ledger around them."""

    __slots__ = (
        "_lock", "began", "cost", "covered", "inside", "limits", "outer", "recorded", "run", "session", "steps",
        "tokens", "worked",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        run: str,
        *,
        outer: Ledger | None,
        session: Session | None = None,
        spent: Spent | None = None,
        began: int = 0,
        inside: Ledger | None = None,
        recorded: _Recorded | None = None,
    ) -> None:
        self.limits = limits
        #: The id of the run whose limits these are.
        self.run = run
        self.outer = outer
        #: Of a block: the execution whose code it is in, and the block around it, if there is one.
        self.session = session
        self.inside = inside
        #: When it was opened; 0 if the run is not being executed. Microseconds that count before that.
        self.began = began
        spent = spent or Spent()
        self.cost, self.tokens, self.steps = spent.cost, spent.tokens, spent.steps
        self.worked = int(spent.seconds * 1e6)
        #: Of a block: what was recorded in it earlier, and until when such steps have been counted.
        self.recorded = recorded
        self.covered = 0
        self._lock = threading.Lock()

    def around(self) -> Iterator[Ledger]:
        """This ledger and those around it."""
        ledger: Ledger | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.outer

    def admit(self, session: Session, address: str, steps: int) -> None:
        """Let a step start, or only its next attempt if `steps` is 0; `LimitExceeded` if a limit is used up. Steps
        that have started count, so that parallel ones do not exceed the limit together."""
        now = session.services.context.clock()
        admitted: list[Ledger] = []
        for ledger in self.around():
            with ledger._lock:
                if ledger.recorded is not None:
                    for entry in ledger.recorded.take():
                        ledger._count(entry)
                found = ledger._used_up(now, steps)
                if found is None:
                    ledger.steps += steps
            if found is not None:
                for each in admitted:
                    each.add(0, 0, -steps)
                raise ledger._refusal(session, address, *found)
            admitted.append(ledger)

    def give_back(self) -> None:
        """A step that was admitted has not been completed."""
        for ledger in self.around():
            ledger.add(0, 0, -1)

    def count_step(self) -> None:
        """Count a completed step that was not admitted: what a run waited for has come."""
        for ledger in self.around():
            ledger.add(0, 0, 1)

    def spend(self, cost: float, tokens: float) -> None:
        """Count what was noted, here and in the ledgers around."""
        if cost or tokens:
            for ledger in self.around():
                ledger.add(cost, tokens, 0)

    def add(self, cost: float, tokens: float, steps: int) -> None:
        """Count something, here alone."""
        with self._lock:
            self.cost += cost
            self.tokens += tokens
            self.steps += steps

    def count_replayed(self, entry: Entry) -> None:
        """A recorded step was replayed in this block: count what it has spent, unless that has been counted."""
        with self._lock:
            if self.recorded is None or self.recorded.is_uncounted(entry):
                self._count(entry)

    def _count(self, entry: Entry) -> None:
        spent = entry.detail.get("spent") or {}
        self.cost += spent.get("cost", 0)
        self.tokens += spent.get("tokens", 0)
        self.steps += spent.get("steps", 0) + (0 if entry.failed else 1)
        end = entry.version.at
        began = max(end - entry.detail.get("took", 0), self.covered)
        self.worked += max(0, end - began)
        self.covered = max(self.covered, end)

    def learn(self, spent: Spent) -> None:
        """Others may have spent more than is known here."""
        with self._lock:
            self.cost = max(self.cost, spent.cost)
            self.tokens = max(self.tokens, spent.tokens)
            self.steps = max(self.steps, spent.steps)

    def seconds(self, now: int) -> float:
        """Seconds of execution so far."""
        return (self.worked + (now - self.began if self.began else 0)) / 1e6

    def _used_up(self, now: int, steps: int) -> tuple[str, float, float] | None:
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

    def _refusal(
        self, session: Session, address: str, limit: str, spent: float, allowed: float
    ) -> LimitExceeded:
        block = self.session is not None
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
        if self.session is not session:
            # It is the limit of the whole run, or of one around it: code that catches the error cannot go on.
            session.exceed(error, address)
        return error


#: The innermost block of the code that is running; None if there is none.
_block: ContextVar[Ledger | None] = ContextVar("holdfast.limits", default=None)


def innermost(session: Session) -> Ledger | None:
    """The ledger from which code of an execution spends first; None if nothing is limited."""
    block = _block.get()
    return session.ledger if block is None or block.session is not session else block


def blocks_of(session: Session) -> Iterator[Ledger]:
    """The blocks that the code of an execution is in, innermost first."""
    block = _block.get()
    while block is not None and block.session is session:
        yield block
        block = block.inside


def binds(session: Session, error: BaseException) -> bool:
    """Was a child refused a step by a limit of the run that an execution is of, or of one around that run? Not by a
    limit of its own, or of a block in the code that called it."""
    if not isinstance(error, LimitExceeded) or session.ledger is None:
        return False
    if error.run == session.id and error.details.get("block"):
        return False
    return any(ledger.run == error.run for ledger in session.ledger.around())


def count_replayed(session: Session, entry: Entry) -> None:
    """A recorded step was replayed: the blocks around its call count what it has spent. The run's ledger knows."""
    for block in blocks_of(session):
        block.count_replayed(entry)


def count_child(session: Session, run: RunRecord) -> None:
    """A child that was executed before is called again: learn what it has spent since then."""
    ledger = innermost(session)
    if ledger is None:
        return
    store = session.services.store
    spent = spent_by(store, run)
    for block in blocks_of(session):
        block.add(spent.cost, spent.tokens, spent.steps)
    for around in ledger.around():
        if around.session is None and around.run:
            known = store.run(around.run)
            if known is not None:
                around.learn(spent_by(store, known))


def open_ledger(session: Session, outer: Ledger | None, alone: bool) -> Ledger | None:
    """The ledger of an execution that begins; None if nothing is limited. A child that is executed without its parent
    (`alone`) keeps to the limits of its parents all the same."""
    run, store = session.head.run, session.services.store
    if alone and run.parent is not None:
        outer = _of_parents(store, run)
    limits = limits_of(session.facts.limits)
    if limits is None:
        return outer
    # A run that this execution has made has spent nothing. One that was rolled back to its first version may have.
    spent = Spent() if session.before is None else spent_by(store, run)
    return Ledger(limits, run.id, outer=outer, spent=spent, began=session.began)


def _of_parents(store: Store, run: RunRecord) -> Ledger | None:
    above = None if run.parent is None else store.run_by_key(run.parent)
    if above is None:
        return None
    outer = _of_parents(store, above)
    limits = limits_of(facts_of(above).limits)
    return outer if limits is None else Ledger(limits, above.id, outer=outer, spent=spent_by(store, above))


# What was spent


def amounts(notes: Mapping[str, Any] | None) -> tuple[float, float]:
    """The cost and the tokens among what a step noted."""
    return (amount(notes, "cost"), amount(notes, "token")) if notes else (0, 0)


def amount(notes: Mapping[str, Any], what: str) -> float:
    """All that was noted of something: the figure under its own name, or else the sum of all that speak of it."""
    for name in (f"{what}s", what, f"total_{what}s", f"total_{what}"):
        if is_sum(name, notes.get(name)):
            return _number(notes[name])
    return sum(_number(value) for name, value in notes.items() if what in name and is_sum(name, value))


def is_sum(name: Any, value: Any) -> bool:
    """Is this a figure that adds up, as tokens and cost do? A setting such as `max_tokens` is not."""
    return (
        isinstance(name, str)
        and ("token" in name or "cost" in name)
        and not name.startswith(("max_", "min_"))
        and isinstance(value, int | float | Decimal)
        and not isinstance(value, bool)
    )


def added(totals: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Sums with those figures of a step that add up."""
    found = dict(totals)
    for name, value in notes.items():
        if is_sum(name, value):
            found[name] = plus(found.get(name, 0), value)
    return found


def plus(one: Any, other: Any) -> Any:
    """The sum of two figures, which may be of different types."""
    if isinstance(one, Decimal) != isinstance(other, Decimal):
        return _number(one) + _number(other)
    return one + other


def check_figures(facts: Mapping[str, Any]) -> None:
    """Refuse a figure that cannot be added up: no limit would ever be reached."""
    for name, value in facts.items():
        if is_sum(name, value) and not isfinite(value):
            raise InvalidCall(
                f"{name} is noted as {value!r}: give a finite number, so that it can be added up"
            )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, Decimal) else value


def used_by(facts: Facts) -> tuple[float, float]:
    """The cost and the tokens of a run without its children. Older runs have only the sums by name."""
    if facts.used:
        return facts.used.get("cost", 0), facts.used.get("tokens", 0)
    return amounts(facts.totals)


def spent_by(store: Store, run: RunRecord) -> Spent:
    """What a run and its children have spent, whatever became of their steps."""
    facts = facts_of(run)
    found = Spent(*used_by(facts), seconds=facts.worked / 1e6)
    for page in _pages([run], store):
        heads = store.packs_of([(each.key, each.head) for each in page])
        for each in page:
            its = facts if each.key == run.key else facts_of(each)
            cost, tokens = (0.0, 0.0) if each.key == run.key else used_by(its)
            head = heads.get((each.key, each.head))
            steps = (0 if head is None else head.steps) + its.discarded
            found = found.plus(Spent(cost, tokens, steps))
    return found


def totals_of(store: Store, run: RunRecord) -> dict[str, Any]:
    """The tokens and costs that the steps of a run and of its children noted, by name."""
    found: dict[str, Any] = {}
    for page in _pages([run], store):
        for each in page:
            found = added(found, facts_of(each).totals)
    return found


def _pages(runs: list[RunRecord], store: Store) -> Iterator[list[RunRecord]]:
    """Runs, their children, and the children of those, some at a time."""
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
    """Limits, or `InvalidCall`."""
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidCall(f"limits is Limits(…), such as Limits(cost=5), not {short(limits)}")
    return limits


def kept_limits(run: Limits | None, workflow: Limits | None) -> dict[str, Any]:
    """The limits of a run as its record keeps them: those of its workflow, each replaced by one that the run has."""
    own = {} if run is None else msgspec.to_builtins(run)
    kept = {**({} if workflow is None else msgspec.to_builtins(workflow)), **own}
    return {**kept, _OWN: sorted(own)} if kept else {}


def follow_limits(
    kept: Mapping[str, Any], workflow: Limits | None, given: Limits | None = None
) -> dict[str, Any]:
    """The limits of a run whose workflow may have others by now: the run's own stay, unless others are `given`."""
    own = {name: kept[name] for name in kept.get(_OWN, ()) if name in kept}
    own |= {} if given is None else msgspec.to_builtins(given)
    return kept_limits(Limits(**own) if own else None, workflow)


def limits_of(kept: Mapping[str, Any]) -> Limits | None:
    """The limits that a record keeps; None if there are none."""
    found = {name: kept[name] for name in _NAMES if kept.get(name) is not None}
    return Limits(**found) if found else None
