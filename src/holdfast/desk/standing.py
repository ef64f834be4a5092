"""How a run stands: what it gave, what it failed with, what it waits for."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, NotRequired, TypedDict

from holdfast.desk.records import status_of
from holdfast.desk.words import as_json
from holdfast.engine import Holdfast
from holdfast.errors import Suspended
from holdfast.history.version import Version
from holdfast.model.public import Prompt
from holdfast.runtime.run import Run


class Standing(TypedDict):
    """A run after something was done to it: its result, what it failed with, or what it waits for."""

    run: str
    status: str
    version: int
    timeline: int
    result: NotRequired[Any]
    error: NotRequired[Any]
    prompts: NotRequired[list[str]]
    waits: NotRequired[list[str]]
    until: NotRequired[datetime | None]


def standing(hf: Holdfast, run: Run) -> Standing:
    """How a run stands, as a record."""
    status = run.status
    head = run.head
    found: Standing = {
        "run": run.id,
        "status": status_of(run),
        "version": head.number,
        "timeline": _timeline(run, head),
    }
    if status == "completed":
        found["result"] = as_json(run.result) if run.workflow is not None else as_json(head.result)
    elif status == "failed":
        found["error"] = as_json(run.failure or {})
    elif status == "suspended":
        found["prompts"] = [prompt.id for prompt in questions(hf, run)]
        found["waits"], found["until"] = waits(run)
    elif status == "frozen":
        found["prompts"] = [prompt.id for prompt in run.prompts()]
    return found


def _timeline(run: Run, head: Version) -> int:
    """Where it goes on: after a rollback, the new timeline has no version of its own yet."""
    log = run.history()
    newest = log.timelines()[-1]
    begun = newest.parent == head.number and not log.versions(timeline=newest.number, limit=1)
    return newest.number if begun else head.timeline


def questions(hf: Holdfast, run: Run) -> list[Prompt]:
    """What a run asks, and what the runs that are parts of it ask."""
    return [*run.prompts(), *(each for part in run.children for each in questions(hf, hf.get(part)))]


def waits(run: Run) -> tuple[list[str], datetime | None]:
    """What a suspended run waits for, and until when."""
    # Whatever else comes, it has gone on meanwhile.
    with suppress(Exception):
        try:
            _ = run.result
        except Suspended as error:
            return error.details["waits"], error.details["until"]
    return [], None
