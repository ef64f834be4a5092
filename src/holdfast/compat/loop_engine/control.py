"""Project data that a restore does not touch: configuration, running agents, questions, and the audit.

All of it is one small record in a separate run. Each change is a version that records actor, action, time and
reason: the versions are the audit. The record is stored as text, so that redaction patterns for states do not
match its names.

Run ids are `loop/NAME`, `loop/NAME/control`, `loop/NAME/beats`. In NAME, letters and digits of the project id
stay as they are, characters special in a run id are escaped as in `%2F`, and a name that would be too long
ends in a hash.

Invariant: a change applies to the newest record or not at all (`expected=`), so that of two concurrent
decisions about the same thing one is made and the other sees it. Two project ids never share a run, and a
project id maps to the same runs in every process and Python version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from unicodedata import ucd_3_2_0
from urllib.parse import unquote_to_bytes

import msgspec

from holdfast.compat.loop_engine.replies import Reply, packed, stamp, unpacked
from holdfast.engine import Holdfast
from holdfast.errors import (
    BadData,
    CorruptStore,
    IncompatibleFormat,
    InvalidCall,
    InvalidReference,
    NotFound,
    StaleVersion,
)
from holdfast.history.version import Version
from holdfast.model.checks import check_text
from holdfast.model.names import short
from holdfast.model.retention import Retention
from holdfast.struct_types import resolved

AUTORESUME = "loop_autoresume"

#: Maximum characters of a name, and of a reason.
MAX_NAME = 500
MAX_REASON = 5000

#: Format number of the record.
_FORMAT = 1
#: Tag that marks control runs.
_TAG = "loop-control"
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

_PREFIX = "loop/"
_CONTROL = "/control"
#: Maximum characters of a name, such that prefix, name and suffix fit into a run id.
_MAX_RUN_NAME = 180
#: Maximum characters of a project id.
_MAX_PROJECT_ID = 10_000
#: The longest timeout or interval: 100 years.
_MAX_SECONDS = 100 * 366 * 86_400.0

T = TypeVar("T")


def check_project(project_id: Any) -> str:
    """Return a project id, or raise `InvalidReference`."""
    if not isinstance(project_id, str):
        raise InvalidReference(f"a project id is a string, not {type(project_id).__name__}")
    # For a subclass of str, the text itself, regardless of overridden methods.
    text: str = str.__str__(project_id)
    if not text:
        raise InvalidReference("a project id is not empty")
    if len(text) > _MAX_PROJECT_ID:
        raise InvalidReference(f"a project id has at most {_MAX_PROJECT_ID} characters, not {len(text)}")
    return text


def quoted(project_id: str) -> str:
    """Return a project id quoted in characters that are valid in a run id."""
    text = "".join(map(_quoted_character, project_id))
    return text.replace(".", "%2E") if text in (".", "..") else text


def _quoted_character(character: str) -> str:
    # Uses an old Unicode database, which is the same in every Python version.
    if character in "-_." or ucd_3_2_0.category(character)[0] in "LN":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def unquoted(text: str) -> str:
    """Return the project id of a quoted text."""
    return unquote_to_bytes(text.encode()).decode(errors="surrogatepass")


def name_of(project_id: str) -> str:
    """Return the name of a project within the ids of its runs."""
    text = quoted(project_id)
    if len(text) <= _MAX_RUN_NAME:
        return text
    # A quoted text never contains "%-".
    return f"{text[:100]}%-{sha256(text.encode()).hexdigest()[:40]}"


def state_run(name: str) -> str:
    """Return the id of the run with a project's state."""
    return _PREFIX + name


def control_run(name: str) -> str:
    """Return the id of the run with a project's control record."""
    return _PREFIX + name + _CONTROL


def heartbeat_run(name: str) -> str:
    """Return the id of the run with the heartbeats of a project's agents."""
    return f"{_PREFIX}{name}/beats"


def name_in(run_id: str) -> str | None:
    """Return the quoted project id in the id of a control run (`loop/NAME/control`); None for another run."""
    if not run_id.startswith(_PREFIX) or not run_id.endswith(_CONTROL):
        return None
    name = run_id[len(_PREFIX) : -len(_CONTROL)]
    return name if name and "/" not in name else None


def project_of_state_run(run_id: str) -> str | None:
    """Return the id of the project whose state a run holds; None if it cannot be derived from the run's id."""
    name = run_id.removeprefix(_PREFIX)
    return None if name == run_id or not name or "/" in name or "%-" in name else unquoted(name)


class Config(msgspec.Struct, omit_defaults=True):
    """Configuration of a project."""

    #: None if it was never configured.
    loop_autoresume: bool | None = None
    #: Seconds until an agent counts as stalled; None for the engine's default, 0 for never.
    timeout: float | None = None
    #: The same, by agent.
    timeouts: dict[str, float] = {}
    retention: Retention | None = None
    #: Seconds between scheduled snapshots.
    every: float | None = None

    def timeout_of(self, agent: str, default: float) -> float:
        """Return the seconds after which an agent counts as stalled; 0 for never."""
        return self.timeouts.get(agent, default if self.timeout is None else self.timeout)

    def reply(self) -> Reply:
        """Return the configuration in the form of a reply."""
        keep = {} if self.retention is None else msgspec.to_builtins(self.retention)
        return {
            AUTORESUME: bool(self.loop_autoresume),
            "timeout": "never" if self.timeout == 0 else self.timeout,
            "timeouts": {agent: seconds or "never" for agent, seconds in self.timeouts.items()},
            "retention": {name: value for name, value in keep.items() if value is not None} or None,
            "every": self.every,
        }


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


class EndedAgent(msgspec.Struct, omit_defaults=True):
    """An agent that was ended from outside."""

    token: int
    #: stalled or reset
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


class RecoveryTask(msgspec.Struct, omit_defaults=True):
    """A decision that is being executed; if its process dies, another process that finds it executes it."""

    number: int
    #: restore or reinitialize
    what: str
    reason: str
    #: Time at which a process took over the task.
    at: int
    actor: str | None = None
    keys: list[str] = []


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
    """Audit entry of a change. A decision without a change has no entry."""

    action: str
    reason: str | None = None
    actor: str | None = None
    facts: Mapping[str, Any] = MappingProxyType({})


class ControlLog:
    """Access to the control record of one project."""

    def __init__(self, hf: Holdfast, name: str, project_id: str) -> None:
        self._log = hf.history(control_run(name))
        self._project = project_id

    def read(self) -> Control:
        """Return the current record; an empty one if the project has none."""
        return self._read()[0]

    def change(self, decide: Callable[[Control], tuple[Entry | None, T]]) -> T:
        """Change the record. `decide` modifies it and returns the audit entry and the result. It may be
        called several times, each time with the newest record; if it raises, nothing changes."""
        while True:
            control, number = self._read()
            entry, outcome = decide(control)
            if entry is None:
                return outcome
            answered = [question for question in control.questions if question.answer is not None]
            dropped = answered[:-_MAX_ANSWERED]
            control.questions = [question for question in control.questions if question not in dropped]
            by_time = sorted(control.ended.items(), key=lambda item: (item[1].at, item[1].token))
            control.ended = dict(by_time[-_MAX_ENDED:])
            try:
                self._log.commit(
                    msgspec.json.encode(control).decode(),
                    step=entry.action,
                    note=entry.reason,
                    actor=entry.actor,
                    annotations=packed(dict(entry.facts)) if entry.facts else None,
                    status=control.status,
                    tags=[_TAG] if number == 0 else (),
                    expected=number,
                )
            except StaleVersion:
                continue
            return outcome

    def configure(self, given: Mapping[str, Any], actor: Any) -> Config:
        """Change the given settings, and return the configuration."""
        check_text("actor", actor, MAX_NAME)
        values = {name: _SETTINGS[name](value) for name, value in given.items()}

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

    def _read(self) -> tuple[Control, int]:
        try:
            head = self._log.head
        except NotFound:
            return Control(quoted(self._project)), 0
        return _decoded(head), head.number


def project_names(hf: Holdfast, *, status: str | None = None) -> Iterator[str]:
    """Yield the names of all projects that have a control run, newest first."""
    for run in hf.iter_runs(tags=[_TAG], status=status):
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


def policy_of(policy: Any) -> Retention:
    """Return the retention policy that a caller's argument describes."""
    if isinstance(policy, Retention):
        return policy
    if type(policy) is int:
        return Retention(last=policy)
    raise InvalidCall(
        f"a policy is a number of snapshots to keep, or a holdfast.Retention, not {short(policy)}"
    )


def seconds_of(name: str, value: Any) -> float:
    """Return a caller's number of seconds; 0 for infinity, which means never."""
    if type(value) not in (int, float) or not value > 0:
        raise InvalidCall(f"{name} is a number of seconds above 0, not {short(value)}")
    if value == math.inf:
        return 0.0
    if value > _MAX_SECONDS:
        raise InvalidCall(f"{name} is at most 100 years; math.inf means never")
    return float(value)


def check_agent(agent: Any) -> str:
    """Return the name of an agent, or raise `InvalidCall`."""
    if not isinstance(agent, str) or not agent:
        raise InvalidCall(f"an agent is named by a string, not {short(agent)}")
    name: str = str.__str__(agent)
    check_text("agent", name, MAX_NAME)
    return name


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidCall(f"{AUTORESUME} is True or False, not {short(value)}")
    return value


def _timeout(value: Any) -> float | None:
    return None if value is None else seconds_of("timeout", value)


def _timeouts(value: Any) -> dict[str, float | None]:
    if not isinstance(value, Mapping):
        raise InvalidCall(f"timeouts is a dict of agents and seconds, not {short(value)}")
    return {check_agent(agent): _timeout(seconds) for agent, seconds in value.items()}


#: The checks of the settings.
_SETTINGS: dict[str, Callable[[Any], Any]] = {
    AUTORESUME: _flag,
    "timeout": _timeout,
    "timeouts": _timeouts,
    "retention": lambda value: None if value is None else policy_of(value),
    "every": lambda value: None if value is None else seconds_of("every", value) or None,
}
