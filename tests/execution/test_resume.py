"""Resuming: what was recorded is not run again, whoever resumes, wherever, however often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_fixtures import ALL, BOOKS
from step_flows import Broken, control, effects_in, elsewhere

import holdfast
from holdfast import Holdfast, ReplayDiverged, step, workflow
from holdfast.execution import lifecycle
from patience import until

fresh, hf = step_fixtures.fresh, step_fixtures.hf


@pytest.mark.parametrize("flow", BOOKS)
def test_resume_runs_only_the_failed_step_again(hf: Holdfast, flow: Any) -> None:
    control.failing["finish"] = 1
    run = hf.run(flow, "kelp", run_id="a-run-with-dashes", raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, Broken)
    assert run.state == {"topic": "kelp", "texts": ["a", "b"]}
    assert control.ran == ALL
    again = hf.resume("a-run-with-dashes")
    assert again.result == "A+B"
    assert again.status == "completed"
    assert control.ran == [*ALL, "finish"]
    assert again.state == {"topic": "kelp", "texts": ["a", "b"], "done": True}


@pytest.mark.parametrize("flow", BOOKS)
def test_resume_ten_times_runs_nothing_twice(hf: Holdfast, flow: Any) -> None:
    control.failing["finish"] = 10
    run = hf.run(flow, "kelp", raises=False)
    for _ in range(9):
        assert hf.resume(run.id, raises=False).status == "failed"
    assert hf.resume(run.id).result == "A+B"
    assert control.ran == [*ALL, *["finish"] * 10]
    for _ in range(10):
        assert hf.resume(run.id).result == "A+B"
    assert control.ran == [*ALL, *["finish"] * 10]
    assert run.head.number == 6


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["book", "abook"])
def test_resume_in_a_new_process_needs_only_the_id(tmp_path: Path, flow: str) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    run_id = "deep-sea-1-2"
    body = f"f.control.failing['write-b'] = 1\nprint(hf.run(f.{flow}, 'kelp', run_id={run_id!r}, raises=False).status)"
    assert elsewhere(db, body, effects) == "failed"
    assert effects_in(effects) == ["plan", "write-a", "write-b"]
    shown = elsewhere(
        db,
        f"r = hf.resume({run_id!r}); print(r.result, dict(r.state) == hf.version({run_id!r}).state)",
        effects,
    )
    assert shown == "A+B True"
    assert effects_in(effects) == ["plan", "write-a", "write-b", "write-b", "finish"]
    assert elsewhere(db, f"print(hf.resume({run_id!r}).result)", effects) == "A+B"
    assert len(effects_in(effects)) == 5
    with holdfast.open(db) as hf:
        assert hf.get(run_id).state == {"topic": "kelp", "texts": ["a", "b"], "done": True}


@workflow
def counting_executions() -> list[str]:
    found = [write_once(number) for number in range(5)]
    control.did("end")
    return found


@step
def write_once(number: int) -> str:
    control.did(f"n{number}")
    return f"{number}-{len(control.ran)}"


def test_resume_replays_each_call_of_a_loop(hf: Holdfast) -> None:
    control.failing["n3"] = 1
    run = hf.run(counting_executions, raises=False)
    assert run.status == "failed"
    result = hf.resume(run.id).result
    assert result == ["0-1", "1-2", "2-3", "3-5", "4-6"]
    addresses = [version.address for version in run.history().versions() if version.kind == "step"]
    assert sorted(filter(None, addresses)) == [
        "write_once", "write_once#2", "write_once#3", "write_once#4", "write_once#5",
    ]  # fmt: skip


def test_resume_by_another_engine_of_a_memory_store() -> None:
    from holdfast.store.memory.store import MemoryStore

    store = MemoryStore()
    control.failing["finish"] = 1
    assert Holdfast(store).run(f.book, "kelp", run_id="m", raises=False).status == "failed"
    other = Holdfast(store)
    assert other.resume("m").result == "A+B"
    until(lambda: other.get("m").status == "completed")


# Calls that are named by a key


@step(key="item")
def by_name(item: Any) -> str:
    control.did(f"do-{item}")
    return f"done {item}"


@step(key=lambda item: f"id:{item}")
async def by_function(item: Any) -> str:
    control.did(f"do-{item}")
    return f"done {item}"


@workflow
def keyed(items: list[Any]) -> list[str]:
    return [by_name(item) for item in (control.value or items)]


@workflow
async def akeyed(items: list[Any]) -> list[str]:
    return [await by_function(item) for item in (control.value or items)]


@pytest.mark.parametrize(
    ("flow", "wanted"),
    [
        (keyed, {"by_name[a]", "by_name[b]", "by_name[b]#2", "by_name[7]"}),
        (akeyed, {"by_function[id:a]", "by_function[id:b]", "by_function[id:b]#2", "by_function[id:7]"}),
    ],
)
def test_step_key_names_a_call_by_its_data(hf: Holdfast, flow: Any, wanted: set[str]) -> None:
    control.failing["do-7"] = 1
    run = hf.run(flow, ["a", "b", "b", 7], raises=False)
    assert run.status == "failed"
    control.value = ["b", 7, "b", "a"]
    with pytest.raises(ReplayDiverged, match="7"):
        hf.resume(run.id)
    # What is not recorded comes last.
    control.value = ["b", "b", "a", 7]
    assert hf.resume(run.id).result == ["done b", "done b", "done a", "done 7"]
    assert control.ran == ["do-a", "do-b", "do-b", "do-7", "do-7"]
    assert {version.address for version in run.history().versions() if version.kind == "step"} == wanted


@pytest.mark.parametrize("key", ["a/b", "x#2", "[y]", "long" * 100, "", "\n", "ü", "\ud800", "a\0b"])
def test_step_key_may_be_any_text(hf: Holdfast, key: str) -> None:
    run = hf.run(keyed, [key, "other", key])
    assert run.result == [f"done {key}", "done other", f"done {key}"]
    addresses = [version.address for version in run.history().versions() if version.kind == "step"]
    assert len(set(addresses)) == 3
    control.failing["never"] = 1
    hf.rollback(run.id, to=3)
    assert run.result == [f"done {key}", "done other", f"done {key}"]
    assert len(control.ran) == 4


@workflow
def asks_whom() -> Any:
    return holdfast.ask("whom?")


def test_resume_uses_nothing_of_a_deleted_run_of_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suspend(hf: Holdfast, answer: str) -> None:
        hf.run(asks_whom, run_id="one")
        hf.answer("one#1", answer, resume=False)

    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf, holdfast.open(path) as other:
        take_over = lifecycle.__dict__["_take_over"]

        def take_over_later(*args: Any) -> Any:
            other.delete("one")
            suspend(other, "new")
            return take_over(*args)

        suspend(hf, "old")
        monkeypatch.setattr(lifecycle, "_take_over", take_over_later)
        assert hf.resume("one").result == "new"
