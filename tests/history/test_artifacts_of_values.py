"""Artifacts of Python values in states, and in differences between versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, UnsupportedValue, artifact

pytest_plugins = ["postgres_fixtures"]


@pytest.fixture(params=["file", "memory", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    where = {"file": str(tmp_path / "runs.db"), "memory": ":memory:"}.get(request.param)
    with holdfast.open(where or request.getfixturevalue("url"), redact=["*password*"]) as opened:
        yield opened


def test_large_list_of_numbers_leaves_the_pack(hf: Holdfast) -> None:
    numbers = [number / 7 for number in range(100_000)]
    log = hf.history("r")
    version = log.commit({"embedding": artifact(numbers, "embedding")})
    assert version.size < 1_000
    found = hf.version("r@1").state["embedding"]
    assert found.name == "embedding"
    assert found.load() == numbers
    assert hf.verify()


def test_arrays_keep_type_and_shape(hf: Holdfast) -> None:
    numpy = pytest.importorskip("numpy")
    value = numpy.arange(200_000, dtype="<f4").reshape(400, 500)
    hf.history("r").commit({"pixels": artifact({"array": value, "scale": 2})})
    loaded = hf.version("r").state["pixels"].load()
    assert loaded["array"].dtype == value.dtype
    assert (loaded["array"] == value).all()
    assert list(loaded) == ["array", "scale"]


def test_equal_content_is_stored_once(hf: Holdfast) -> None:
    for number in range(5):
        hf.history(f"r{number}").commit({"e": artifact([1.0, 2.0]), "n": number})
    assert hf.stats().artifacts == 1


def test_value_that_changes_after_it_was_handed_over(hf: Holdfast) -> None:
    log = hf.history("r")
    with log.edit(step="one") as state:
        state["list"] = [1, 2]
        state["kept"] = artifact(state["list"])
        state["list"].append(3)
    assert log.head.state["list"] == [1, 2, 3]
    assert log.head.state["kept"].load() == [1, 2]


def test_part_of_a_stored_state_becomes_an_artifact(hf: Holdfast) -> None:
    log = hf.history("r")
    log.commit({"items": [{"n": number} for number in range(1_000)]})
    log.commit({"items": artifact(log.head.state["items"])})
    assert log.head.state["items"].load()[-1] == {"n": 999}
    assert type(log.head.state["items"].load()[-1]) is dict


def test_secrets_in_a_value_are_redacted(hf: Holdfast) -> None:
    log = hf.history("r")
    secret = {"password": "hunter2", "user": "ana"}
    log.commit({"login": artifact(secret), "open": artifact({"user": "ana"})})
    state = log.head.state
    assert state["login"].load() == {"password": "[redacted]", "user": "ana"}
    assert state["open"] == artifact({"user": "ana"})
    assert not any(b"hunter2" in hf.artifact(each.digest).read() for each in hf.artifacts())
    with pytest.raises(UnsupportedValue, match="redacted"):
        log.commit({"login": (artifact(secret),)})


def test_bytes_that_start_like_a_value_are_stored_where_secrets_are_redacted(hf: Holdfast) -> None:
    mark = artifact([1]).read()[:-2]
    for content in (mark, mark[:-1] + b"\xc1", mark + b"\xff" * 9):
        version = hf.history("r").commit({"file": artifact(content)})
        assert version.state["file"].read() == content


def test_artifacts_are_collected_when_no_version_needs_them(hf: Holdfast) -> None:
    hf.history("r").commit({"e": artifact([1])})
    assert hf.gc(grace=0).artifacts == 0
    hf.delete("r")
    assert hf.gc(grace=0).artifacts == 1


def test_difference_names_artifacts_and_events(hf: Holdfast) -> None:
    log = hf.history("r")
    kept, gone, moved = artifact([1], "kept"), artifact([2], "gone"), artifact([3])
    log.commit({"kept": kept, "gone": gone, "list": [moved], "n": 1})
    new, result = artifact([4], "new"), artifact(b"bytes")
    log.add_event("agent.woke", {"why": "mail"})
    log.commit({"kept": kept, "again": kept, "moved": moved, "new": {"deep": (new,)}, "n": 2}, result=result)
    found = hf.diff("r@1", "r@2")
    assert {each.digest for each in found.new_artifacts} == {new.digest, result.digest}
    assert {each.name for each in found.removed_artifacts} == {"gone"}
    assert [each.load() for each in found.removed_artifacts] == [[2]]
    assert [event.kind for event in found.new_events] == ["agent.woke", "version.saved"]
    back = hf.diff("r@2", "r@1")
    assert {each.digest for each in back.removed_artifacts} == {new.digest, result.digest}
    assert back.new_events == ()
    assert hf.compare("r@1", "r@2").diff.new_events == found.new_events
    same = hf.diff("r@2", "r@2")
    assert not (same.new_artifacts)
    assert not (same.removed_artifacts)
    assert not (same.new_events)


def test_difference_of_two_runs_has_no_events(hf: Holdfast) -> None:
    hf.history("a").commit({"e": artifact([1])})
    hf.history("b").commit({"e": artifact([2])})
    found = hf.diff("a", "b")
    assert ([each.load() for each in found.new_artifacts], found.new_events) == ([[2]], ())


def test_events_of_a_difference_are_paged(hf: Holdfast) -> None:
    log = hf.history("r")
    log.commit({"n": 0})
    for number in range(300):
        log.add_event("agent.tick", {"number": number})
    log.commit({"n": 1})
    log.commit({"n": 2})
    log.add_event("agent.late")
    found = hf.diff("r@1", "r@2")
    pages: list[Any] = []
    while page := found.events(after=pages[-1].cursor if pages else 0, limit=70):
        assert len(page) <= 70
        pages += page
    assert [event.data.get("number") for event in pages] == [*range(300), None]
    assert pages[-1].version == 2
    for bad in ({"after": -1}, {"limit": 0}, {"limit": "x"}):
        with pytest.raises(holdfast.InvalidCall):
            found.events(**bad)
