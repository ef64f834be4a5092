"""Project data that a restore does not touch: configuration, running agents, questions, and the audit.

All of it is one small record in the control run of the project. Each change is a version that records actor, action,
time and reason: the versions are the audit. The record is stored as text, so that redaction patterns for states do not
match its names. The open question has a row in the index of the inbox, and an entry in the journal for each event of
its life, written with the record.

Invariant: a change applies to the newest record or not at all (`expected=`), so that of two concurrent decisions about
the same thing one is made and the other sees it. The index lists a question while the record has it open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.agent_loops.config import MAX_NAME, Config, checked
from holdfast.agent_loops.names import control_run, name_in, quoted
from holdfast.agent_loops.replies import Reply, packed, stamp, unpacked
from holdfast.errors import BadData, CorruptStore, HoldfastError, IncompatibleFormat, NotFound, StaleVersion
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.loops import PREFIX
from holdfast.history.builder import VersionMetadata, build_event
from holdfast.history.version import Version
from holdfast.log import warn
from holdfast.model.checks import check_text
from holdfast.model.question import Handling
from holdfast.model.records import EventRecord, QuestionRecord
from holdfast.model.retention import Retention
from holdfast.store.protocol import RunFilters, iter_runs
from holdfast.struct_types import resolved

#: Format number of the record.
_FORMAT = 1
#: Maximum number of runs read at a time. A store sorts the runs of all loops for each page.
PAGE = 10_000
#: Tag that marks control runs.
TAG = "loop-control"
#: Step of internal bookkeeping changes, which are not part of the audit.
BOOKKEEPING = "tidied"
#: Words in records and audit entries that were renamed, by the word that earlier versions wrote. The questions of a
#: record are still stored as `prompts`.
_FORMER_WORDS = {
    "agent.frozen": "agent.stalled",
    "frozen": "stalled",
    "prompt.answered": "question.answered",
    "prompt.opened": "question.opened",
    "prompt_id": "question_id",
}

#: Maximum number of answered questions, and of ended agents, in the record.
_MAX_ANSWERED = 50
_MAX_ENDED = 100
#: Changes after which old audit entries are removed.
_PRUNE_EVERY = 64

T = TypeVar("T")


class Agent(msgspec.Struct, omit_defaults=True):
    """A running agent."""

    #: Identifies this start of the agent.
    token: int
    started: int
    #: Seconds; 0 for never.
    timeout: float
    actor: str | None = None
    #: Time at which the save of its last snapshot started; 0 if it is not completing.
    completing: int = 0
    #: The owner that saves it; empty in records of earlier versions.
    completer: str = ""


class EndedAgent(msgspec.Struct, omit_defaults=True):
    """An agent that was ended from outside."""

    token: int
    #: stalled, reset or cancelled
    how: str
    at: int
    actor: str | None = None


class LoopAnswer(msgspec.Struct, omit_defaults=True):
    """The answer to a question: choice, time and actor."""

    choice: str
    at: int
    actor: str | None = None


class LoopQuestion(msgspec.Struct, omit_defaults=True):
    """A question to the operator."""

    number: int
    reasons: list[str]
    opened: int
    answer: LoopAnswer | None = None
    #: The agents that stalled; none if the program reported the reason.
    agents: list[str] = []
    handling: Handling | None = None


class RecoveryTask(msgspec.Struct, omit_defaults=True):
    """A decision that is being executed; if its process dies, another process that finds it executes it."""

    #: Marks the timeline that the task starts. A random one: those of a control record that was rolled back, or deleted
    #: and made again, are assigned a second time.
    number: int
    #: restore or reinitialize
    what: str
    reason: str
    #: Time at which a process took over the task.
    at: int
    actor: str | None = None
    #: The version to restore; None for the last good one.
    version: int | None = None
    keep_unknown: bool = True
    #: The parts of the memory that a reinitialization keeps, as paths.
    keys: list[str] = []
    #: The owner that executes the task; empty in records of earlier versions.
    owner: str = ""


class Control(msgspec.Struct):
    """The control record of a project."""

    #: The project id, quoted.
    project: str
    format: int = _FORMAT
    #: The last number assigned to a start, a question or a task.
    serial: int = 0
    config: Config = msgspec.field(default_factory=Config)
    agents: dict[str, Agent] = {}
    ended: dict[str, EndedAgent] = {}
    questions: list[LoopQuestion] = msgspec.field(default_factory=list, name="prompts")
    tasks: list[RecoveryTask] = []
    #: When the project was restored by configuration, since a person last decided.
    restores: list[int] = []

    def next_number(self) -> int:
        """Assign a number."""
        self.serial += 1
        return self.serial

    @property
    def open_question(self) -> LoopQuestion | None:
        return next((question for question in self.questions if question.answer is None), None)

    @property
    def status(self) -> str:
        """Return the status of the run: running while a checker has something to check."""
        if self.agents or self.tasks or self.config.every is not None:
            return "running"
        return "suspended" if self.open_question is not None else "paused"


class Entry(NamedTuple):
    """Audit entry of a change, and the events to write into the journal with it. A decision without a change has no
    entry."""

    action: str
    reason: str | None = None
    actor: str | None = None
    facts: Mapping[str, Any] = MappingProxyType({})
    events: Sequence[EventRecord] = ()


class ControlLog:
    """Access to the control record of one project."""

    def __init__(self, engine: EngineContext, name: str, project_id: str) -> None:
        self._log = engine.history(control_run(name))
        self._project = project_id

    @property
    def id(self) -> str:
        """The id of the control run."""
        return self._log.id

    @property
    def exists(self) -> bool:
        """Whether the project was ever configured, or had an agent or a question."""
        return self._read()[1] is not None

    def read(self) -> Control:
        """Return the current record; an empty one if the project has none."""
        return self._read()[0]

    def change(self, decide: Callable[[Control], tuple[Entry | None, T]]) -> T:
        """Change the record. `decide` modifies it and returns the audit entry and the result. It may be called several
        times, each time with the newest record; if it raises, nothing changes."""
        while True:
            control, head = self._read()
            entry, outcome = decide(control)
            if entry is None:
                return outcome
            answered = [question for question in control.questions if question.answer is not None]
            dropped = answered[:-_MAX_ANSWERED]
            control.questions = [question for question in control.questions if question not in dropped]
            by_time = sorted(control.ended.items(), key=lambda item: (item[1].at, item[1].token))
            control.ended = dict(by_time[-_MAX_ENDED:])
            metadata = VersionMetadata(
                step=entry.action,
                note=entry.reason,
                actor=entry.actor,
                annotations=packed(dict(entry.facts)) if entry.facts else None,
                status=control.status,
                tags=[TAG] if head is None else (),
                entries=entry.events,
                questions=_rows(control),
            )
            try:
                made = self._log.commit_record(
                    msgspec.json.encode(control).decode(), metadata, expected=head or 0
                )
            except StaleVersion:
                continue
            policy = control.config.kept_entries
            if policy is not None and made.number % _PRUNE_EVERY == 0:
                self._prune_later(policy)
            return outcome

    def configure(self, given: Mapping[str, Any], actor: Any) -> Config:
        """Change the given settings, and return the configuration."""
        check_text("actor", actor, MAX_NAME)
        values = checked(given)

        def decide(control: Control) -> tuple[Entry | None, Config]:
            timeouts = {**control.config.timeouts, **values.get("timeouts", {})}
            kept = {agent: seconds for agent, seconds in timeouts.items() if seconds is not None}
            after = msgspec.structs.replace(control.config, **{**values, "timeouts": kept})
            if after == control.config:
                return None, after
            changed = {name: value for name, value in after.reply().items() if name in values}
            control.config = after
            return Entry("configured", None, actor, {"config": changed}), after

        return self.change(decide)

    def event(self, kind: str, question: LoopQuestion, now: int, **data: Any) -> EventRecord:
        """Return a journal entry about a question."""
        question_id = f"{self.id}#{question.number}"
        reason = question.reasons[0]
        return build_event(kind, now, question_id=question_id, question=reason, project=self._project, **data)

    def entries(self, limit: int) -> list[Reply]:
        """Return the newest changes, newest first."""
        changes = (version for version in self._log.iter_versions() if version.step != BOOKKEEPING)
        try:
            return [_audit_entry(version) for version in islice(changes, limit)]
        except NotFound:
            return []

    def prune(self, policy: Retention) -> int:
        """Remove old audit entries; return how many."""
        try:
            return len(self._log.prune(policy).versions)
        except NotFound:
            return 0

    def _prune_later(self, policy: Retention) -> None:
        """Remove old audit entries; a failure does not undo the change that was made before."""
        try:
            self.prune(policy)
        except HoldfastError as error:
            warn("old audit entries of project %s could not be removed: %s", self._project, error)

    def _read(self) -> tuple[Control, Version | None]:
        try:
            head = self._log.head
        except NotFound:
            return Control(quoted(self._project)), None
        return _decoded(head), head


def _rows(control: Control) -> tuple[QuestionRecord, ...]:
    """Return the rows of the index of open questions for a control record."""
    question = control.open_question
    if question is None:
        return ()
    handling = question.handling or Handling()
    return (
        QuestionRecord(
            number=question.number,
            kind="loop",
            opened=question.opened,
            assignee=handling.assignee,
            priority=handling.priority,
            due=handling.due,
            wake=handling.wake,
        ),
    )


def control_names(engine: EngineContext, *statuses: str) -> Iterator[str]:
    """Yield the names of the projects that have a control run of one of these statuses, newest first."""
    filters: RunFilters = {"tags": [TAG], "statuses": list(statuses) or None, "prefix": PREFIX}
    for run in iter_runs(engine.store, page=PAGE, **filters):
        name = name_in(run.id)
        if name is not None:
            yield name


def _decoded(version: Version) -> Control:
    """Return the record in a version."""
    try:
        control = msgspec.json.decode(version.state, type=resolved(Control))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise CorruptStore(
            f"{version.run}@{version.number} is not a record of a loop engine: roll back to a version that is one",
            run=version.run,
            version=version.number,
        ) from error
    if control.format > _FORMAT:
        raise IncompatibleFormat(
            f"{version.run} has format {control.format}, newer than this Holdfast reads ({_FORMAT}): upgrade Holdfast",
            run=version.run,
        )
    for ended in control.ended.values():
        ended.how = _current(ended.how)
    return control


def _current(word: Any) -> Any:
    """Return the word of today for a stored one."""
    return _FORMER_WORDS.get(word, word) if isinstance(word, str) else word


def _audit_entry(version: Version) -> Reply:
    try:
        facts = unpacked(version.annotations)
    except BadData as error:
        facts = {"damaged": str(error)}
    return {
        "at": stamp(version.at),
        "action": _current(version.step),
        "actor": version.actor,
        "reason": version.note,
        **{_current(name): _current(fact) if name == "decided" else fact for name, fact in facts.items()},
    }
