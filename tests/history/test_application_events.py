"""Events of an application in the journal, and values that are captured now and committed later."""

from __future__ import annotations

import dataclasses
import io
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import History, Holdfast, InvalidCall, NotFound, StaleVersion, UnsupportedValue
from holdfast.history.builder import build_event
from holdfast.model.records import EventRecord
from holdfast.tree.codec import encode


@holdfast.register
@dataclasses.dataclass
class Login:
    name: str
    password: str


def own_events(log: History) -> list[tuple[str, int | None, str | None, dict[str, Any]]]:
    return [
        (event.kind, event.version, event.step, dict(event.data)) for event in log.events() if not event.saved
    ]


def test_events_are_committed_with_their_version(log: History) -> None:
    log.commit({"n": 1}, step="plan", events=[("agent.woke", {"by": "cron"}), ("agent.ate", {})])
    with log.edit(
        step="act", events=[("agent.slept", {"hours": 8})], status="failed", error={"type": "E"}
    ) as state:
        state["n"] = 2
    assert own_events(log) == [
        ("agent.woke", 1, "plan", {"by": "cron"}),
        ("agent.ate", 1, "plan", {}),
        ("agent.slept", 2, "act", {"hours": 8}),
    ]
    assert (log.head.status, log.head.error) == ("failed", {"type": "E"})


def test_events_of_a_refused_commit_are_not_written(log: History) -> None:
    log.commit({"n": 1})
    with pytest.raises(StaleVersion):
        log.commit({"n": 2}, expected=7, events=[("agent.woke", {})])
    with pytest.raises(UnsupportedValue):
        log.commit({"n": object()}, events=[("agent.woke", {})])
    with pytest.raises(UnsupportedValue, match="cannot be stored"):
        log.commit({"n": 2}, events=[("agent.woke", {"n": object()})])
    assert own_events(log) == []
    assert log.head.number == 1


def test_events_of_a_merged_commit_name_its_version(hf: Holdfast, log: History) -> None:
    log.commit({"a": 1})
    other = hf.history("run-1")
    _ = log.head, other.head
    other.commit({"a": 1, "b": 2})
    log.commit({"a": 1, "c": 3}, events=[("agent.woke", {})])
    assert own_events(log) == [("agent.woke", 3, None, {})]


def test_add_event_writes_no_version(hf: Holdfast, log: History) -> None:
    with pytest.raises(NotFound, match="run-1"):
        log.add_event("agent.woke")
    log.commit({"n": 1})
    heard = []
    with hf.subscribe(lambda event: heard.append(event.kind), kinds=["agent.*"]):
        log.add_event("agent.woke", {"by": "cron", "at": (1, {2})}, version=1, step="plan")
    assert own_events(log) == [("agent.woke", 1, "plan", {"by": "cron", "at": (1, {2})})]
    assert heard == ["agent.woke"]
    assert [version.number for version in log.versions()] == [1]
    assert log.commit({"n": 2}, expected=1).number == 2


def test_add_event_from_many_threads_loses_nothing(log: History) -> None:
    log.commit({})

    def work() -> None:
        for _ in range(20):
            log.add_event("agent.woke")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(own_events(log)) == 80


REFUSED: list[tuple[Any, str]] = [
    ("agent.woke", "list of kinds"),
    ({"agent.woke": {}}, "list of kinds"),
    (7, "list of kinds"),
    (["agent.woke"], "a kind and its data"),
    ([("agent.woke",)], "a kind and its data"),
    ([("agent", {})], "words separated by points"),
    ([("", {})], "words separated by points"),
    ([(7, {})], "words separated by points"),
    ([("agent.woke\n", {})], "words separated by points"),
    ([("a." * 200 + "a", {})], "words separated by points"),
    ([("run.completed", {})], "Holdfast's own"),
    ([("version.saved", {})], "Holdfast's own"),
    ([("timeline.started", {})], "Holdfast's own"),
    ([("agent.woke", [])], "keys are strings"),
    ([("agent.woke", {1: 2})], "keys are strings"),
    ([("agent.woke", {"version": 2})], "not part of its data"),
    ([("agent.woke", {"text": "x" * 70_000})], "put it into the state"),
]


def test_invalid_events_are_refused(log: History) -> None:
    log.commit({"n": 1})
    for events, words in REFUSED:
        with pytest.raises(InvalidCall, match=words):
            log.commit({"n": 2}, events=events)
    assert log.head.number == 1
    assert own_events(log) == []


def test_events_are_redacted(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", redact=["password"]) as hf:
        log = hf.history("run-1")
        held = log.capture({"login": Login("ada", "s3cret"), "password": "s3cret"})
        log.commit({"held": held}, events=[("agent.woke", {"password": "s3cret"})])
        log.add_event("agent.slept", {"login": Login("ada", "s3cret")})
        assert all(b"s3cret" not in path.read_bytes() for path in tmp_path.iterdir())
        assert log.head.state["held"]["login"].name == "ada"


def test_capture_is_not_changed_later(hf: Holdfast, log: History) -> None:
    plan: dict[str, Any] = {"tasks": [{"done": False}], "large": holdfast.artifact(b"kelp" * 50_000)}
    held = log.capture(plan)
    plan["tasks"][0]["done"] = True
    log.commit({"plan": held, "again": [held]})
    state = log.head.state
    assert state["plan"]["tasks"] == state["again"][0]["tasks"] == [{"done": False}]
    assert state["plan"]["large"].read() == b"kelp" * 50_000
    with log.edit() as draft:
        draft["plan"] = held
        draft["new"] = held
    assert log.head.state["new"]["tasks"] == [{"done": False}]
    assert log.diff(1, 2).changes[0].path == ("new",)
    assert len(log.diff(1, 2).changes) == 1
    with pytest.raises(UnsupportedValue, match="at file"):
        log.capture({"file": io.StringIO()})
    assert log.verify().ok


def test_events_are_exported_and_imported(hf: Holdfast, log: History) -> None:
    log.commit({"n": 1}, events=[("agent.woke", {"by": "cron"})])
    file = io.BytesIO()
    hf.export_run("run-1", file)
    file.seek(0)
    assert own_events(hf.import_run(file, run_id="copy")) == [("agent.woke", 1, None, {"by": "cron"})]


def test_event_of_an_application_keeps_the_word_that_questions_are_stored_under(hf: Holdfast) -> None:
    """Kinds that start with `question.` were free to use before Holdfast's own events had them."""
    log = hf.history("run-1")
    log.commit({})
    entry = EventRecord(kind="question.asked", at=1, data=encode({"prompt": "Why?"}))
    log.context.touch(log.run_record, [entry])
    assert own_events(log) == [("question.asked", None, None, {"prompt": "Why?"})]
    log.context.touch(log.run_record, [build_event("question.opened", 1, question_id="q")])
    assert own_events(log)[1:] == [("question.opened", None, None, {"question_id": "q"})]
