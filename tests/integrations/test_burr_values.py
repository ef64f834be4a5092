"""Values, partitions and arguments of Burr's persister."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import pytest
from burr.core import State
from burr.core.state import FIELD_SERIALIZATION, register_field_serde
from burr_apps import build, steps

import holdfast
from database import Database
from holdfast import CorruptVersion, Holdfast, HoldfastError, InvalidCall, InvalidReference, UnsupportedValue
from holdfast.integrations.burr import HoldfastPersister

pytest_plugins = ["postgres_fixtures"]


def test_partitions_are_separate(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    assert (persister.list_app_ids("x"), persister.load("x", None), persister.load("x", "a")) == (
        [],
        None,
        None,
    )
    keys: list[tuple[str | None, str]] = [
        (None, "a"),
        ("p", "a"),
        ("p", "b"),
        (None, "p/a"),
        ("p/a", "b"),
        ("..", ".."),
        ("é%2F", "~@\\"),
    ]
    for number, (partition_key, app_id) in enumerate(keys):
        persister.save(partition_key, app_id, number, "count", State({"n": number}), "completed")
    for number, (partition_key, app_id) in enumerate(keys):
        found = persister.load(partition_key, app_id)
        assert found is not None
        assert (found["state"]["n"], found["app_id"]) == (number, app_id)
        assert found["partition_key"] == (partition_key or "")
        assert app_id in persister.list_app_ids(partition_key)
    assert persister.list_app_ids("p") == ["b", "a"]
    assert persister.list_app_ids(None) == persister.list_app_ids("") == ["p/a", "a"]
    persister.save("p", "a", 9, "count", State({"n": 9}), "completed")
    assert persister.list_app_ids("p") == ["a", "b"]
    latest = persister.load("p", None)
    assert latest is not None
    assert (latest["app_id"], latest["state"]["n"]) == ("a", 9)
    assert datetime.fromisoformat(latest["created_at"]).tzinfo is not None


@dataclasses.dataclass
class Order:
    number: int
    lines: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Unknown:
    number: int


def test_values_are_read_back_exactly_or_refused(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf, allow=[Order])
    values = {
        "t": (1, 2.0),
        "s": {1, 2},
        "o": Order(1, ["x"]),
        "big": 2**100,
        "e": {},
        "when": datetime(2026, 1, 1, fold=1),  # noqa: DTZ001
    }
    persister.save(None, "a", 0, "count", State(values), "completed")
    found = persister.load(None, "a")
    assert found is not None
    assert found["state"].get_all() == values
    found["state"]["o"].lines.append("y")
    again = persister.load(None, "a")
    assert again is not None
    assert again["state"]["o"] == Order(1, ["x"])
    with pytest.raises(UnsupportedValue, match=r"state\.u.*register"):
        persister.save(None, "a", 1, "count", State({"u": [Unknown(1)]}), "completed")
    assert len(hf.history("burr/a").versions()) == 1


def test_load_names_an_unknown_class(path: Path) -> None:
    program = (
        "import dataclasses, sys, holdfast\nfrom burr.core import State\n"
        "from holdfast.integrations.burr import HoldfastPersister\n"
        "@dataclasses.dataclass\nclass Strange:\n    n: int\n"
        "with holdfast.open(sys.argv[1]) as hf:\n"
        "    persister = HoldfastPersister(hf, allow=[Strange])\n"
        "    persister.save(None, 'a', 0, 'count', State({'deep': [{'o': (Strange(1),)}]}), 'completed')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)
    with holdfast.open(path) as hf, pytest.raises(InvalidCall, match=r"Strange.*allow="):
        HoldfastPersister(hf).load(None, "a")


class Phase(StrEnum):
    PAUSED = "paused"


class Shown(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "shown instead"


def _check_statuses(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    statuses = ["completed", "status", "", "Failed", "paused by 'ops'; --", "\ud800 \0", "x" * 1_000_000]
    for number, status in enumerate([*statuses, Phase.PAUSED, Shown("as it is"), "failed"]):
        persister.save("p", "a", number, Phase.PAUSED, State({"n": number}), status)
        found = HoldfastPersister(hf).load("p", "a")
        assert found is not None
        assert (found["sequence_id"], found["status"], found["position"]) == (number, status, "paused")
        assert (type(found["status"]), type(found["position"])) == (str, str)
        assert hf.runs()[0].status == ("failed" if status == "failed" else "running")
    earlier = persister.load("p", "a", 1)
    assert earlier is not None
    assert earlier["status"] == "status"
    assert hf.verify()


def test_any_status_is_read_back_as_it_was_saved(hf: Holdfast) -> None:
    _check_statuses(hf)


def test_any_status_is_read_back_on_postgres(url: str) -> None:
    with holdfast.open(url) as hf:
        _check_statuses(hf)


def test_action_with_another_status_is_run_again(hf: Holdfast) -> None:
    """As with Burr's own persisters: only `completed` continues with the next action."""
    persister = HoldfastPersister(hf)
    values = {"count": 1, "log": [], "broken": False}
    for status, following in (("completed", "report"), ("paused", "count")):
        persister.save(None, status, 0, "count", State(values), status)
        assert steps(build(persister, status), 1) == [following]


def test_field_serialization_functions_are_called(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FIELD_SERIALIZATION, "shout", raising=False)

    def write(value: str, **_: Any) -> dict[str, str]:
        return {"low": value.lower()}

    def read(value: dict[str, str], **_: Any) -> str:
        return value["low"].upper()

    register_field_serde("shout", write, read)
    persister = HoldfastPersister(hf)
    persister.save(None, "a", 0, "count", State({"shout": "HO"}), "completed")
    assert hf.history("burr/a").head.get("state.shout") == {"low": "ho"}
    found = persister.load(None, "a")
    assert found is not None
    assert found["state"]["shout"] == "HO"
    monkeypatch.delitem(FIELD_SERIALIZATION, "shout")
    with pytest.raises(InvalidCall, match=r"'shout'.*register_field_serde"):
        persister.load(None, "a")


def test_invalid_save_and_load_are_refused(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    state: State[Any] = State({"n": 1})
    bad: list[tuple[Any, ...]] = [
        (None, "a", -1, "x", state, "completed"),
        (None, "a", "0", "x", state, "completed"),
        (None, "a", True, "x", state, "completed"),
        (None, "a", 0, None, state, "completed"),
        (None, "a", 0, "x", {"n": 1}, "completed"),
        (None, "a", 0, "x", state, None),
        (None, "a", 0, "x", state, b"completed"),
        (None, None, 0, "x", state, "completed"),
        (None, "", 0, "x", state, "completed"),
        (None, "a\0b", 0, "x", state, "completed"),
        (None, "a" * 300, 0, "x", state, "completed"),
        (7, "a", 0, "x", state, "completed"),
        (None, "a", 0, "x" * 1000, state, "completed"),
    ]
    for call in bad:
        with pytest.raises((InvalidCall, InvalidReference)):
            persister.save(*call)
    for key in ((None, ""), (None, 7), (7, "a"), (None, "\ud800"), (None, "a", "1"), (None, "a", -1)):
        with pytest.raises(InvalidCall):
            persister.load(*cast(Any, key))
    assert hf.runs() == []
    hf.history("burr/taken").commit({"plan": 1})
    hf.history("burr/list").commit([1])
    for name in ("taken", "list"):
        for call in ((None, name), (None, name, 0)):
            with pytest.raises(InvalidCall, match="not an application of Burr"):
                persister.load(*call)
        with pytest.raises(InvalidCall, match="not an application of Burr"):
            persister.save(None, name, 1, "x", state, "completed")
    for wrong in ("runs.db", None):
        with pytest.raises(InvalidCall, match="open store"):
            HoldfastPersister(cast(Any, wrong))
    for allow in (Order, "Order", 3, [3], [int]):
        with pytest.raises(InvalidCall):
            HoldfastPersister(hf, allow=cast(Any, allow))


def test_corrupt_version_is_refused_and_others_are_loaded(path: Path) -> None:
    with holdfast.open(path) as hf:
        steps(build(HoldfastPersister(hf)), 3)
    with Database(path) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 3")
    with holdfast.open(path) as hf:
        with pytest.raises(CorruptVersion):
            build(HoldfastPersister(hf))
        with pytest.raises(HoldfastError):
            HoldfastPersister(hf).save(None, "app", 3, "x", State({}), "completed")
        hf.rollback("burr/app", to=2)
        assert steps(build(HoldfastPersister(hf)), 1) == ["count"]


def test_load_finds_any_of_many_sequence_ids(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    for number in range(0, 900, 3):
        persister.save(None, "a", number, "count", State({"n": number}), "completed")
    for number in (0, 3, 450, 897):
        found = persister.load(None, "a", number)
        assert found is not None
        assert found["state"]["n"] == number
    assert (persister.load(None, "a", 1), persister.load(None, "a", 896)) == (None, None)
