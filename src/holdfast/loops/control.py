"""What a restore does not touch: a project's configuration, its running agents, its prompts, and the audit.

All of it is one small record in a run of its own. Each change is a version that says who did what, when and why: the
versions are the audit. The record is kept as text, so that no pattern for secrets in a state meets its names.

Invariant: a change is made to the newest record or not at all (`expected=`), so that of two that decide the same thing
one decides and the other sees what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.engine import Holdfast
from holdfast.errors import BadData, CorruptStore, IncompatibleFormat, NotFound, StaleVersion
from holdfast.history.version import Version
from holdfast.loops import names
from holdfast.loops.replies import Reply, packed, stamp, unpacked
from holdfast.model.retention import Retention
from holdfast.struct_types import resolved

#: The number of the form of the record.
FORMAT = 1
#: The tag by which control runs are found among others.
TAG = "loop-control"
#: Entries that only tidy up: no part of the audit.
TIDIED = "tidied"

#: Answered prompts, and agents that another has ended, that are remembered.
_ANSWERED = 50
_ENDED = 100
_PAGE = 500

T = TypeVar("T")


class Config(msgspec.Struct, omit_defaults=True):
    """How a project wants to be treated."""

    #: None if nobody has said.
    loop_autoresume: bool | None = None
    #: Seconds until an agent is frozen; None for the engine's own, 0 for never.
    timeout: float | None = None
    #: The same, by agent.
    timeouts: dict[str, float] = {}
    retention: Retention | None = None
    #: Seconds between scheduled snapshots.
    every: float | None = None


class Agent(msgspec.Struct, omit_defaults=True):
    """An agent that runs."""

    #: Tells this start of the agent from others.
    token: int
    started: int
    #: Seconds; 0 for never.
    timeout: float
    actor: str | None = None
    #: Since when its last snapshot is being saved; 0 if it is not.
    completing: int = 0


class Ended(msgspec.Struct, omit_defaults=True):
    """An agent that another has ended: frozen or reset."""

    token: int
    how: str
    at: int
    actor: str | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """What was answered, by whom and when."""

    choice: str
    at: int
    actor: str | None = None


class Question(msgspec.Struct, omit_defaults=True):
    """A prompt: what the operator is to decide."""

    number: int
    reasons: list[str]
    opened: int
    answer: Answer | None = None


class Task(msgspec.Struct, omit_defaults=True):
    """Something decided that is being carried out; whoever finds it left behind carries it out."""

    number: int
    #: restore or reinitialize
    what: str
    reason: str
    #: Since when the one who carries it out has it.
    at: int
    actor: str | None = None
    keys: list[str] = []


class Control(msgspec.Struct):
    """The record."""

    #: The project id, quoted.
    project: str
    format: int = FORMAT
    #: The last number given to a start, a prompt or a task.
    serial: int = 0
    config: Config = msgspec.field(default_factory=Config)
    agents: dict[str, Agent] = {}
    ended: dict[str, Ended] = {}
    prompts: list[Question] = []
    tasks: list[Task] = []

    def next(self) -> int:
        self.serial += 1
        return self.serial

    @property
    def open_prompt(self) -> Question | None:
        return next((prompt for prompt in self.prompts if prompt.answer is None), None)

    @property
    def status(self) -> str:
        """Of the run: running while there is something for a checker to look at."""
        if self.agents or self.tasks or self.config.every is not None:
            return "running"
        return "suspended" if self.open_prompt is not None else "paused"


class Entry(NamedTuple):
    """What a change is, for the audit. A change that turns out to be none gives no entry."""

    action: str
    reason: str | None = None
    actor: str | None = None
    facts: Mapping[str, Any] = MappingProxyType({})


class Book:
    """The record of one project, read and changed."""

    def __init__(self, hf: Holdfast, name: str, project_id: str) -> None:
        self._log = hf.history(names.control_run(name))
        self._project = project_id

    def read(self) -> Control:
        """The record as it is; that of a project which has none is empty."""
        return self._read()[0]

    def change(self, decide: Callable[[Control], tuple[Entry | None, T]]) -> T:
        """Change the record: `decide` changes it, says what the change is, and what to give back. It may be called
        several times, each time with the newest record; what it raises changes nothing."""
        while True:
            control, number = self._read()
            entry, outcome = decide(control)
            if entry is None:
                return outcome
            answered = [prompt for prompt in control.prompts if prompt.answer is not None][:-_ANSWERED]
            control.prompts = [prompt for prompt in control.prompts if prompt not in answered]
            control.ended = dict(sorted(control.ended.items(), key=_when)[-_ENDED:])
            try:
                self._log.commit(
                    msgspec.json.encode(control).decode(),
                    step=entry.action,
                    note=entry.reason,
                    actor=entry.actor,
                    meta=packed(dict(entry.facts)) if entry.facts else None,
                    status=control.status,
                    tags=[TAG] if number == 0 else (),
                    expected=number,
                )
            except StaleVersion:
                continue
            return outcome

    def entries(self, limit: int) -> list[Reply]:
        """The newest changes, newest first."""
        found: list[Reply] = []
        before: int | None = None
        while len(found) < limit:
            try:
                page = self._log.versions(limit=min(_PAGE, limit), before=before)
            except NotFound:
                break
            if not page:
                break
            found += [_entry(version) for version in page if version.step != TIDIED]
            before = page[-1].number
        return found[:limit]

    def prune(self, policy: Retention) -> int:
        """Forget old entries of the audit; gives how many."""
        try:
            return len(self._log.prune(policy).versions)
        except NotFound:
            return 0

    def _read(self) -> tuple[Control, int]:
        try:
            head = self._log.head
        except NotFound:
            return Control(names.quoted(self._project)), 0
        return decoded(head), head.number


def decoded(version: Version) -> Control:
    """The record in a version."""
    try:
        control = msgspec.json.decode(version.state, type=resolved(Control))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise CorruptStore(
            f"{version.run}@{version.number} is not what a loop engine writes: roll it back to a version that is",
            run=version.run,
            version=version.number,
        ) from error
    if control.format > FORMAT:
        raise IncompatibleFormat(
            f"{version.run} is of format {control.format}, newer than this Holdfast knows ({FORMAT}): upgrade Holdfast",
            run=version.run,
        )
    return control


def projects(hf: Holdfast, *, status: str | None = None) -> Iterator[str]:
    """The names of all projects that have a control run, newest first."""
    for run in hf.iter_runs(tags=[TAG], status=status):
        name = names.name_in(run.id)
        if name is not None:
            yield name


def _when(ended: tuple[str, Ended]) -> tuple[int, int]:
    return ended[1].at, ended[1].token


def _entry(version: Version) -> Reply:
    try:
        facts = unpacked(version.meta)
    except BadData as error:
        facts = {"damaged": str(error)}
    return {
        "at": stamp(version.at),
        "action": version.step,
        "actor": version.actor,
        "reason": version.note,
        **facts,
    }
