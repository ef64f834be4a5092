"""Versions found by their annotations."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_clock import Clock

import holdfast
from holdfast import History, InvalidCall

_ANNOTATIONS: list[Any] = [
    None,
    {"model": "gpt-4", "cost": 0.05},
    {"model": "gpt-4", "cost": 0.5, "tokens": 7},
    {"model": "small", "cost": Decimal("0.5")},
    {"model": "gpt-4", "cost": 2, "cached": True},
    {"model": "gpt-4", "cost": "2", "tokens": "7"},
    ["model", "gpt-4"],
    {"model": None, "cost": float("nan"), "tokens": True},
    {"cost": Decimal("NaN"), "model": {"name": "gpt-4"}},
    {"cost": Decimal("0.1"), "tokens": 7.0},
]


@pytest.fixture
def annotated(log: History) -> History:
    for number, given in enumerate(_ANNOTATIONS, 1):
        log.commit({"n": number}, step=f"step-{number}", annotations=given)
    return log


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ({"model": "gpt-4"}, [6, 5, 3, 2]),
        ({"model=": "gpt-4", "cost>": 0.1}, [5, 3]),
        ({"cost": 0.5}, [4, 3]),
        ({"cost": Decimal("0.5")}, [4, 3]),
        ({"cost": 2}, [5]),
        ({"cost": 2.0}, [5]),
        ({"cost": "2"}, [6]),
        ({"cost": 0.1}, [10]),
        ({"cost>=": 0.1, "cost<": 1}, [10, 4, 3]),
        ({"cost <= ": 0.1}, [10, 2]),
        ({"tokens": 7}, [10, 3]),
        ({"tokens": True}, [8]),
        ({"tokens!=": 7}, [8, 6]),
        ({"model!=": "gpt-4"}, [9, 8, 4]),
        ({"model": None}, [8]),
        ({"model>": "gpt-4"}, [4]),
        ({"cached": True}, [5]),
        ({"cached": 1}, []),
        ({"unknown!=": 1}, []),
        ({"cost<": float("inf")}, [10, 5, 4, 3, 2]),
        ({}, list(range(10, 0, -1))),
    ],
)
def test_versions_are_found_by_annotations(
    annotated: History, where: dict[str, Any], numbers: list[int]
) -> None:
    assert [version.number for version in annotated.versions(where=where)] == numbers
    assert [version.number for version in annotated.iter_versions(where=where)] == numbers


def test_numbers_of_numpy_and_fractions_are_numbers(log: History) -> None:
    for cost in (
        np.int64(2),
        np.float32(0.5),
        np.float64(0.25),
        Fraction(1, 8),
        np.float32("nan"),
        np.bool_(True),
    ):
        log.commit({}, annotations={"cost": cost})
    assert [version.number for version in log.versions(where={"cost>": 0.2})] == [3, 2, 1]
    assert [version.number for version in log.versions(where={"cost<": Decimal("0.2")})] == [4]
    assert [version.number for version in log.versions(where={"cost": np.int64(2)})] == [1]
    assert [version.number for version in log.versions(where={"cost>=": np.float32(0.5)})] == [2, 1]


def test_other_filters_and_paging_apply_too(annotated: History) -> None:
    where = {"model": "gpt-4"}
    assert [each.number for each in annotated.versions(where=where, limit=2)] == [6, 5]
    assert [each.number for each in annotated.versions(where=where, limit=2, before=5)] == [3, 2]
    assert [each.number for each in annotated.versions(where=where, step="step-3")] == [3]


def test_a_match_is_found_behind_many_versions(log: History) -> None:
    log.commit({}, annotations={"model": "rare"})
    for number in range(300):
        log.commit({"n": number}, annotations={"model": "usual"})
    assert [each.number for each in log.versions(where={"model": "rare"}, limit=5)] == [1]
    assert len(list(log.iter_versions(where={"model": "usual"}))) == 300


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"cost~": 1, "": 2}, "condition"),
        ({">": 1}, "condition"),
        ({"cost=>": 1}, "condition"),
        ({"cost=!": 1}, "condition"),
        ({"cost==": 1}, "condition"),
        ({7: 1}, "by text"),
        ({"cost>": None}, "compares numbers or texts"),
        ({"cost>": True}, "compares numbers or texts"),
        ({"cost": [1]}, "compare with"),
        ({"cost": float("nan")}, "NaN"),
        (["cost"], "a dict"),
        ("cost>1", "a dict"),
        ({f"n{number}": 1 for number in range(51)}, "maximum is 50"),
    ],
)
def test_wrong_conditions_are_refused(annotated: History, where: Any, message: str) -> None:
    with pytest.raises(InvalidCall, match=message):
        annotated.versions(where=where)


def test_a_version_whose_annotations_are_damaged_is_listed_as_damaged(file: Path, clock: Clock) -> None:
    with holdfast.open(file, durability="fast", clock=clock) as hf:
        for number in range(4):
            hf.history("run-1").commit({"n": number}, annotations={"model": "gpt-4"})
    with sqlite3.connect(file) as raw:
        raw.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 2")
    raw.close()
    with holdfast.open(file, durability="fast", clock=clock) as hf:
        found = hf.history("run-1").versions(where={"model": "gpt-4"})
        assert [(each.number, each.is_damaged) for each in found] == [
            (4, False),
            (3, False),
            (2, True),
            (1, False),
        ]
