"""A question whose time is over cannot be answered, and is not listed as open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, InvalidAnswer, workflow

pytest_plugins = ["postgres_fixtures"]
place = store_fixtures.place
#: Seconds since 1970 of the engine under test.
clock: list[float] = [0.0]


@pytest.fixture
def hf(place: str) -> Iterator[Holdfast]:
    clock[0] = 1_800_000_000.0
    with holdfast.open(place, durability="fast", clock=lambda: clock[0]) as opened:
        yield opened


@workflow(name="late question")
def asks() -> list[bool]:
    return [
        holdfast.ask("Delete?", timeout=10, default=False, schema=bool, key="first"),
        holdfast.ask("Really?", schema=bool, key="second"),
    ]


def test_question_whose_time_is_over_is_not_open(hf: Holdfast) -> None:
    run = hf.run(asks, run_id="r")
    clock[0] += 9.9
    (question,) = hf.inbox()
    assert hf.inbox(run_id="r") == run.questions() == [question]
    assert hf.question(question.id) == question
    clock[0] += 0.1
    assert hf.inbox() == hf.inbox(run_id="r") == run.questions() == []
    with pytest.raises(InvalidAnswer, match="timed out"):
        hf.question(question.id)
    with pytest.raises(InvalidAnswer, match="timed out"):
        hf.answer(question.id, True)
    # The next execution closes it.
    hf.resume("r")
    (other,) = hf.inbox()
    assert other.text == "Really?"
    assert hf.answer(other.id, True).result == [False, True]
