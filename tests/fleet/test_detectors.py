"""Symptoms follow from what is recorded alone: compared with plain definitions, on many histories."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from holdfast import Watchdog
from holdfast.execution.heartbeat import ActiveExecution, ActiveStep
from holdfast.execution.limits import Spent, used_by
from holdfast.fleet.monitor.detectors import ComparedVersion, Trail, looping, over_budget, silent
from holdfast.model.run_detail import Figure, RunDetail, SpentBefore

SECOND = 1_000_000


class Version(NamedTuple):
    """A version as a test makes it."""

    number: int
    step: str | None
    call: Any
    result: Any
    state: Any

    @property
    def at(self) -> int:
        return self.number * SECOND


def trail_of(versions: list[Version]) -> Trail:
    newest_first: list[ComparedVersion] = list(reversed(versions))
    return lambda distance: newest_first[distance] if distance < len(newest_first) else None


@st.composite
def histories(draw: st.DrawFn) -> list[Version]:
    """Versions of few steps, results and states, so that they repeat."""
    rows = draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 1)), max_size=14))
    steps = [
        Version(number, step, (step, b""), result, state)
        for number, (step, result, state) in enumerate(rows, 2)
    ]
    return [Version(1, None, None, None, 0), *steps]


def calls(versions: list[Version]) -> list[Any]:
    return [(version.call, version.result) if version.call else object() for version in versions]


@given(histories(), st.integers(2, 4))
def test_loop_detector_finds_a_repeated_step(versions: list[Version], repeats: int) -> None:
    found = looping(trail_of(versions), Watchdog(max_repeats=repeats))
    same = calls(versions)[-repeats:]
    expected = len(same) == repeats and all(each == same[0] for each in same)
    assert (found is not None and "in a row" in found.why) == expected
    if found is not None and expected:
        # The last good version is the first of the streak; what came before it is another.
        streak = [each for each in versions if each.number >= found.good]
        assert len(set(calls(streak))) == 1
        assert calls(versions)[found.good - 2] != calls(streak)[0]
        assert found.since == (found.good + 1) * SECOND


@given(histories(), st.integers(2, 3))
def test_loop_detector_finds_two_alternating_steps(versions: list[Version], rounds: int) -> None:
    found = looping(trail_of(versions), Watchdog(max_repeats=rounds))
    states = [version.state for version in versions]

    def alternate(row: list[Any]) -> bool:
        last = row[-2 * rounds :]
        return (
            len(last) == 2 * rounds
            and last[0] != last[1]
            and all(last[at] == last[at + 2] for at in range(len(last) - 2))
        )

    if found is None:
        assert not alternate(calls(versions))
        assert not alternate(states)
    elif "to and fro" in found.why:
        assert alternate(calls(versions)) or alternate(states)
        row = states if "states" in found.why else calls(versions)
        after = row[found.good :]
        # From the first repetition on, each is the one two before it.
        assert all(row[found.good + at] == row[found.good + at - 2] for at in range(len(after)))


@given(histories(), st.integers(2, 4))
def test_loop_detector_finds_an_unchanged_state(versions: list[Version], unchanged: int) -> None:
    found = looping(trail_of(versions), Watchdog(max_unchanged=unchanged))
    last = [version.state for version in versions][-unchanged - 1 :]
    assert (found is not None) == (len(last) == unchanged + 1 and len(set(last)) == 1)
    if found is not None:
        assert found.good <= versions[-1].number - unchanged
        assert len({version.state for version in versions[found.good - 1 :]}) == 1


@given(histories())
def test_loop_detector_ignores_what_is_not_watched(versions: list[Version]) -> None:
    assert looping(trail_of(versions), Watchdog(heartbeat_timeout=1)) is None


busy = st.builds(
    ActiveStep,
    st.sampled_from(["plan", "search"]),
    st.integers(1, 3),
    st.just(0),
    st.integers(0, 100 * SECOND),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 100),
)


@given(
    st.lists(busy, max_size=3), st.integers(0, 100 * SECOND), st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 100), st.booleans(),
)  # fmt: skip
def test_silence_detector_finds_late_steps(
    steps: list[ActiveStep], beat: int, inside: int | None, between: int | None, waits: bool
) -> None:
    at = 100 * SECOND
    sign = ActiveExecution(began=0, beat=beat, busy=bool(steps) or waits, steps=steps)
    found = silent(sign, at, Watchdog(heartbeat_timeout=inside, idle_timeout=between), 7)

    def allowed(step: ActiveStep) -> float | None:
        if step.heartbeat_timeout is not None:
            return step.heartbeat_timeout
        return None if inside is None else max(inside, step.timeout or 0)

    late = [
        step for step in steps if (budget := allowed(step)) is not None and at - step.beat > budget * SECOND
    ]
    idle = not sign.busy and between is not None and at - beat > between * SECOND
    assert (found is not None) == (bool(late) or idle)
    if found is not None:
        assert found.good == 7
        assert found.since == (min(step.beat for step in late) if late else beat)
        assert (found.address is None) == (not late)


amounts = st.integers(0, 50)


@given(st.data(), amounts, amounts, amounts, amounts, amounts, amounts, amounts, amounts, st.integers(1, 40))
def test_budget_detector_counts_from_the_last_answer(
    data: st.DataObject,
    worked: int,
    working: int,
    steps: int,
    tokens: int,
    was: int,
    done: int,
    had: int,
    cost: int,
    limit: int,
) -> None:
    totals: dict[str, Figure] = {
        "tokens": tokens + had,
        "input_tokens": 10**9,
        "cost_usd": cost,
        "cost_eur": cost,
    }
    # As records keep it now, and as older ones do.
    before: dict[str, Any] = data.draw(
        st.sampled_from(
            [
                {"seconds": was, "steps": done, "tokens": had, "cost": 0},
                {"worked": was * SECOND, "steps": done, "totals": {"tokens": had}},
            ]
        )
    )
    facts = RunDetail(worked=worked * SECOND, totals=totals, spent_before=SpentBefore(**before))
    spent = Spent(*used_by(facts), steps, worked)

    def found(watch: Watchdog) -> bool:
        told = over_budget(facts, watch, spent=spent, working=working * SECOND, now=5, head=3)
        assert told is None or (told.symptom, told.since, told.good) == ("over budget", 5, 3)
        return told is not None

    assert found(Watchdog(max_seconds=limit)) == (worked + working - was > limit)
    assert found(Watchdog(max_steps=limit)) == (steps - done > limit)
    assert found(Watchdog(max_tokens=limit)) == (tokens > limit)
    assert found(Watchdog(max_cost=limit)) == (2 * cost > limit)
    assert not found(Watchdog())
