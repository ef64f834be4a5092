"""Errors keep their causes, contexts, notes and members: in a version, after a resume, in another process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
from failure_cases import CardDeclined, again, caught

from holdfast import Holdfast, StepFailed, step, workflow
from holdfast.execution.exception_codec import describe, revive
from holdfast.operator_view.text import full_traceback

hf = step_fixtures.hf

_seen: list[Any] = []
_stops: list[bool] = []


def chain(error: BaseException | None) -> Any:
    """All that an error carries, as plain values that can be compared."""
    if error is None:
        return None
    name = str(error) if isinstance(error, StepFailed) else f"{type(error).__name__}: {error}"
    return {
        "error": name,
        "notes": list(getattr(error, "__notes__", [])),
        "cause": chain(error.__cause__),
        "context": "same" if error.__context__ is error.__cause__ else chain(error.__context__),
        "suppressed": error.__suppress_context__,
        "members": [chain(each) for each in getattr(error, "exceptions", ())],
    }


@step
def chain_fails() -> None:
    try:
        try:
            raise KeyError("no such host")
        except KeyError:
            raise ConnectionError("no answer")  # noqa: B904 - the context is what is tested
    except ConnectionError as error:
        error.add_note("asked twice")
        group = ExceptionGroup("both", [CardDeclined(card="1", reason="r"), ValueError("second")])
        group.exceptions[1].__cause__ = error
        raise RuntimeError("cannot continue") from group


@step
def chain_end(what: str) -> str:
    if _stops:
        raise SystemError("stopped")
    return what


@workflow
def chain_flow() -> str:
    try:
        raise LookupError("around")
    except LookupError:
        try:
            chain_fails()
        except RuntimeError as error:
            _seen.append(chain(error))
            error.add_note("added by the workflow")
    return chain_end("done")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    _seen.clear()
    _stops.clear()


def test_caught_failure_is_replayed_with_the_same_chain(hf: Holdfast) -> None:
    _stops.append(True)
    assert hf.run(chain_flow, run_id="r", raises=False).status == "failed"
    _stops.clear()
    assert hf.resume("r").result == "done"
    live, replayed = _seen
    assert replayed == live
    assert live["cause"]["members"][1]["cause"]["error"] == "ConnectionError: no answer"
    assert live["cause"]["members"][1]["cause"]["notes"] == ["asked twice"]
    assert live["context"]["error"] == "ConnectionError: no answer"
    assert live["context"]["context"]["error"] == "KeyError: 'no such host'"
    assert live["context"]["context"]["context"]["error"] == "LookupError: around"


def test_shared_cause_is_described_once_and_revived_as_one_object() -> None:
    def both() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    facts = describe(caught(both))
    assert facts["context"] == {"same_as": 1}
    error = again(caught(both))
    assert isinstance(error.__cause__, KeyError)
    assert error.__context__ is error.__cause__
    assert describe(error) == facts


def test_cause_may_be_a_base_exception() -> None:
    async def late() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(10)

    error = again(caught(lambda: asyncio.run(late())))
    assert isinstance(error, TimeoutError)
    assert isinstance(error.__cause__, asyncio.CancelledError)


def test_descriptions_without_contexts_of_older_formats_are_read() -> None:
    inner = {"type": "KeyError", "message": "'k'", "traceback": ""}
    old = {"type": "ValueError", "message": "v", "traceback": "", "cause": inner}
    assert isinstance(revive({**old, "direct": True}).__cause__, KeyError)
    context_only = revive({**old, "direct": False})
    assert context_only.__cause__ is None
    assert isinstance(context_only.__context__, KeyError)
    assert "During handling" in full_traceback({**old, "direct": False})


_READER = """
import sys, json, holdfast
from holdfast.execution.exception_codec import revive
with holdfast.open(sys.argv[1]) as hf:
    error = revive(hf.version("r@2").error)
    shown = []
    while error is not None:
        shown.append([type(error).__name__, str(error), getattr(error, "__notes__", [])])
        members = getattr(error, "exceptions", ())
        shown.extend([type(each).__name__, str(each), []] for each in members)
        error = error.__cause__ or error.__context__ or (members[1].__cause__ if members else None)
print(json.dumps(shown))
"""


def test_chain_is_read_in_a_process_without_the_classes(tmp_path: Path) -> None:
    import holdfast

    with holdfast.open(tmp_path / "r.db") as engine:
        engine.run(chain_flow, run_id="r")
    done = subprocess.run(
        [sys.executable, "-c", _READER, str(tmp_path / "r.db")], capture_output=True, text=True, check=True
    )
    declined = "failure_cases.CardDeclined: card 1 was declined: r"
    assert json.loads(done.stdout) == [
        ["RuntimeError", "cannot continue", []],
        ["ExceptionGroup", "both (2 sub-exceptions)", []],
        ["StepFailed", declined, []],
        ["ValueError", "second", []],
        ["ConnectionError", "no answer", ["asked twice"]],
        ["KeyError", "'no such host'", []],
        ["LookupError", "around", []],
    ]


def test_traceback_shows_causes_notes_and_members(hf: Holdfast) -> None:
    hf.run(chain_flow, run_id="r")
    text = full_traceback(hf.version("r@2").error)
    parts = [
        "ExceptionGroup: both", "1 of 2", "card 1 was declined: r", "2 of 2", "LookupError: around",
        "During handling of the above", "KeyError: 'no such host'", "ConnectionError: no answer", "asked twice",
        "ValueError: second", "direct cause of the following", "RuntimeError: cannot continue",
    ]  # fmt: skip
    places = [text.rindex(part) if part in parts[-2:] else text.index(part) for part in parts]
    assert places == sorted(places)


def test_error_of_a_run_keeps_its_chain(hf: Holdfast) -> None:
    _stops.append(True)

    @workflow(name="chain_ends")
    def chain_ends() -> None:
        try:
            chain_end("x")
        except SystemError as error:
            raise ValueError("the run is over") from error

    hf.run(chain_ends, run_id="r", raises=False)
    error = hf.get("r").error
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, SystemError)
    assert (hf.get("r").failure or {})["cause"]["message"] == "stopped"
