"""Detectors of stuck runs: silence, loops, exceeded budgets.

Invariant: nothing here reads a store or a clock. A finding follows from the heartbeat of the run's owner, its versions,
newest first, and its watchdog alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import msgspec

from holdfast.execution.heartbeat import ActiveExecution, ActiveStep, allowed_silence
from holdfast.execution.limits import Spent, amounts
from holdfast.model.run_detail import RunDetail, SpentBefore
from holdfast.model.watchdog import Watchdog

#: The most versions that are searched for the start of a loop.
MOST = 1000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a run."""

    #: dead, silent, looping, over budget, unclaimed or diverged.
    symptom: str
    why: str
    #: When it started, in microseconds.
    since: int
    #: The last good version: the newest before it started.
    good: int
    address: str | None = None
    attempt: int | None = None
    stack: str = ""


class ComparedVersion(Protocol):
    """A version that is compared with others; its result and state are read on access."""

    @property
    def number(self) -> int: ...
    @property
    def at(self) -> int: ...
    @property
    def step(self) -> str | None: ...
    @property
    def call(self) -> Hashable:
        """The step and its arguments; None if a step did not make the version."""

    @property
    def result(self) -> Any: ...
    @property
    def state(self) -> Any: ...


#: The versions by their distance from the head; None beyond the last that matters.
Trail = Callable[[int], ComparedVersion | None]


def silent(sign: ActiveExecution, at: int, watchdog: Watchdog, head: int) -> Finding | None:
    """Find a step, or a gap between steps, that has sent no heartbeat for longer than allowed at time `at`."""
    late = [(step.beat, step) for step in sign.steps if _is_late(step, at, watchdog)]
    if late:
        since, step = min(late, key=lambda each: each[0])
        budget = allowed_silence(step.heartbeat_timeout, step.timeout, watchdog.heartbeat_timeout) or 0
        return Finding(
            symptom="silent",
            why=f"step {step.address} has sent no heartbeat for {_seconds(at - since)}, {budget:g} s are allowed",
            since=since,
            good=head,
            address=step.address,
            attempt=step.attempt,
            stack=step.stack,
        )
    if not sign.busy and watchdog.idle_timeout is not None and at - sign.beat > watchdog.idle_timeout * 1e6:
        allowed = f"{watchdog.idle_timeout:g} s are allowed between two steps"
        return Finding(
            symptom="silent",
            why=f"no step has started for {_seconds(at - sign.beat)}, {allowed}",
            since=sign.beat,
            good=head,
            stack=sign.stack,
        )
    return None


def looping(trail: Trail, watchdog: Watchdog, most: int = MOST) -> Finding | None:
    """Find a run that repeats itself, within the newest `most` versions."""
    if watchdog.max_repeats is not None:
        count = _streak(trail, 1, _same_call, most) + 1
        if count >= watchdog.max_repeats:
            return _loop(
                trail,
                count - 1,
                f"step {_name(trail, 0)} has returned the same result {count} times in a row",
            )
        for same in (_same_call, _same_state):
            matched = _streak(trail, 2, same, most)
            if matched and (matched + 2) // 2 >= watchdog.max_repeats and not _pair(trail, 0, 1, same):
                steps = " and ".join(dict.fromkeys((_name(trail, 1), _name(trail, 0))))
                what = "between two results" if same is _same_call else "between two states"
                return _loop(
                    trail, matched, f"steps {steps} alternate {what}, {(matched + 2) // 2} times now"
                )
    if watchdog.max_unchanged is not None:
        count = _streak(trail, 1, _same_state, most)
        if count >= watchdog.max_unchanged:
            return _loop(trail, count, f"the state has not changed for {count} versions")
    return None


def over_budget(
    facts: RunDetail, watchdog: Watchdog, *, spent: Spent, working: int, now: int, head: int
) -> Finding | None:
    """Find a run that has spent more than allowed since it started, or since a person last let it continue.
    `working` is the time of the current execution in microseconds."""
    before = _spent_before(facts)
    used = {
        "time": (watchdog.max_seconds, spent.seconds + working / 1e6 - before.seconds, " s"),
        "steps": (watchdog.max_steps, spent.steps - before.steps, " steps"),
        "tokens": (watchdog.max_tokens, spent.tokens - before.tokens, " tokens"),
        "cost": (watchdog.max_cost, spent.cost - before.cost, ""),
    }
    for name, (allowed, value, unit) in used.items():
        if allowed is not None and value > allowed:
            why = f"over its budget of {name}: {value:,.6g}{unit} used, {allowed:,.6g}{unit} are allowed"
            return Finding(symptom="over budget", why=why, since=now, good=head)
    return None


def _is_late(step: ActiveStep, at: int, watchdog: Watchdog) -> bool:
    budget = allowed_silence(step.heartbeat_timeout, step.timeout, watchdog.heartbeat_timeout)
    return budget is not None and at - step.beat > budget * 1e6


def _streak(
    trail: Trail, apart: int, same: Callable[[ComparedVersion, ComparedVersion], bool], most: int
) -> int:
    """Count the versions, from the head back, that equal the version `apart` before them."""
    count = 0
    while count < most and _pair(trail, count, count + apart, same):
        count += 1
    return count


def _pair(
    trail: Trail, one: int, other: int, same: Callable[[ComparedVersion, ComparedVersion], bool]
) -> bool:
    a, b = trail(one), trail(other)
    return a is not None and b is not None and same(a, b)


def _same_call(one: ComparedVersion, other: ComparedVersion) -> bool:
    return one.call is not None and one.call == other.call and bool(one.result == other.result)


def _same_state(one: ComparedVersion, other: ComparedVersion) -> bool:
    return bool(one.state == other.state)


def _loop(trail: Trail, first: int, why: str) -> Finding:
    """Return a loop whose last version before the first repetition is at distance `first`."""
    good, again, head = trail(first), trail(first - 1), trail(0)
    assert good is not None
    assert again is not None
    assert head is not None
    return Finding(symptom="looping", why=why, since=again.at, good=good.number, address=head.step)


def _name(trail: Trail, distance: int) -> str:
    mark = trail(distance)
    return (mark.step if mark is not None else None) or "?"


def _spent_before(facts: RunDetail) -> Spent:
    """Return what had been spent when a person last let a run continue. Older records have sums by name."""
    before = facts.spent_before or SpentBefore()
    cost, tokens = amounts(before.totals)
    return Spent(
        cost if before.cost is None else before.cost,
        tokens if before.tokens is None else before.tokens,
        before.steps,
        (before.worked or 0) / 1e6 if before.seconds is None else before.seconds,
    )


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:.3g} s" if micros < 1e9 else f"{micros / 1e6:,.0f} s"
