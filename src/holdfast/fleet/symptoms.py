"""How it shows that a run is stuck: silence, loops, spent budgets.

Invariant: nothing here reads a store or a clock. What is found follows from what the run's owner said of it, from its
versions, newest first, and from its policy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import msgspec

from holdfast.runtime.limits import Spent, amounts
from holdfast.runtime.pulse import Busy, Sign, silence
from holdfast.runtime.waits import Facts
from holdfast.runtime.watch import Watch

#: Versions that are looked at for the beginning of a loop.
MOST = 1000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a run."""

    #: dead, silent, looping, over budget, unclaimed or diverged.
    symptom: str
    why: str
    #: Microseconds: when it began.
    since: int
    #: The last good version: the newest before it began.
    good: int
    address: str | None = None
    attempt: int | None = None
    stack: str = ""


class Mark(Protocol):
    """A version as it is compared with others; what it holds is read when it is asked for."""

    @property
    def number(self) -> int: ...
    @property
    def at(self) -> int: ...
    @property
    def step(self) -> str | None: ...
    @property
    def call(self) -> Hashable:
        """The step and its arguments; None for what is no step."""

    @property
    def result(self) -> Any: ...
    @property
    def state(self) -> Any: ...


#: The versions up to a head by their distance from it; None where there is none, or where nobody need look any more.
Trail = Callable[[int], Mark | None]


def silent(sign: Sign, at: int, watch: Watch, head: int) -> Finding | None:
    """Has an execution given no sign of life for longer than it may, at the time at which its owner said so?"""
    late = [(step.beat, step) for step in sign.steps if _is_late(step, at, watch)]
    if late:
        since, step = min(late, key=lambda each: each[0])
        budget = silence(step.silent, step.timeout, watch.silent) or 0
        return Finding(
            symptom="silent",
            why=f"step {step.address} has given no sign of life for {_seconds(at - since)}, {budget:g} s are allowed",
            since=since,
            good=head,
            address=step.address,
            attempt=step.attempt,
            stack=step.stack,
        )
    if not sign.busy and watch.between is not None and at - sign.beat > watch.between * 1e6:
        allowed = f"{watch.between:g} s are allowed between two steps"
        return Finding(
            symptom="silent",
            why=f"no step has begun for {_seconds(at - sign.beat)}, {allowed}",
            since=sign.beat,
            good=head,
            stack=sign.stack,
        )
    return None


def looping(trail: Trail, watch: Watch, most: int = MOST) -> Finding | None:
    """Does a run do the same again and again? Its beginning is looked for among the newest `most` versions."""
    if watch.repeats is not None:
        count = _streak(trail, 1, _same_call, most) + 1
        if count >= watch.repeats:
            return _loop(
                trail, count - 1, f"step {_name(trail, 0)} has given the same {count} times in a row"
            )
        for same in (_same_call, _same_state):
            matched = _streak(trail, 2, same, most)
            if matched and (matched + 2) // 2 >= watch.repeats and not _pair(trail, 0, 1, same):
                steps = " and ".join(dict.fromkeys((_name(trail, 1), _name(trail, 0))))
                what = "between two results" if same is _same_call else "between two states"
                return _loop(
                    trail, matched, f"steps {steps} go to and fro {what}, {(matched + 2) // 2} times now"
                )
    if watch.unchanged is not None:
        count = _streak(trail, 1, _same_state, most)
        if count >= watch.unchanged:
            return _loop(trail, count, f"the state has not changed for {count} versions")
    return None


def over_budget(
    facts: Facts, watch: Watch, *, spent: Spent, working: int, now: int, head: int
) -> Finding | None:
    """Has a run used more than it may, since it began or since a person last let it go on? `working` are the
    microseconds of the present execution."""
    before = _spent_before(facts.spent)
    used = {
        "time": (watch.max_time, spent.seconds + working / 1e6 - before.seconds, " s"),
        "steps": (watch.max_steps, spent.steps - before.steps, " steps"),
        "tokens": (watch.max_tokens, spent.tokens - before.tokens, " tokens"),
        "cost": (watch.max_cost, spent.cost - before.cost, ""),
    }
    for name, (allowed, value, unit) in used.items():
        if allowed is not None and value > allowed:
            why = f"over its budget of {name}: {value:,.6g}{unit} used, {allowed:,.6g}{unit} are allowed"
            return Finding(symptom="over budget", why=why, since=now, good=head)
    return None


def _is_late(step: Busy, at: int, watch: Watch) -> bool:
    budget = silence(step.silent, step.timeout, watch.silent)
    return budget is not None and at - step.beat > budget * 1e6


def _streak(trail: Trail, apart: int, same: Callable[[Mark, Mark], bool], most: int) -> int:
    """How many versions, from the head back, are the same as the one so many before them."""
    count = 0
    while count < most and _pair(trail, count, count + apart, same):
        count += 1
    return count


def _pair(trail: Trail, one: int, other: int, same: Callable[[Mark, Mark], bool]) -> bool:
    a, b = trail(one), trail(other)
    return a is not None and b is not None and same(a, b)


def _same_call(one: Mark, other: Mark) -> bool:
    return one.call is not None and one.call == other.call and bool(one.result == other.result)


def _same_state(one: Mark, other: Mark) -> bool:
    return bool(one.state == other.state)


def _loop(trail: Trail, first: int, why: str) -> Finding:
    """A loop whose last version before the first repetition is so far back."""
    good, again, head = trail(first), trail(first - 1), trail(0)
    assert good is not None
    assert again is not None
    assert head is not None
    return Finding(symptom="looping", why=why, since=again.at, good=good.number, address=head.step)


def _name(trail: Trail, distance: int) -> str:
    mark = trail(distance)
    return (mark.step if mark is not None else None) or "?"


def _spent_before(kept: dict[str, Any]) -> Spent:
    """What had been spent when a person last let a run go on. Older records have the sums by name."""
    cost, tokens = amounts(kept.get("totals"))
    return Spent(
        kept.get("cost", cost),
        kept.get("tokens", tokens),
        kept.get("steps", 0),
        kept.get("seconds", kept.get("worked", 0) / 1e6),
    )


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:.3g} s" if micros < 1e9 else f"{micros / 1e6:,.0f} s"
