"""What a run was begun with, and what it is asked for now: the pipeline's stages, the caller's context. Does no I/O.

Invariant: what is passed was recorded for the same stage, of the same pipeline, for the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stageflow.context import ContextSnapshot
from stageflow.core import StageStatus

from holdfast.errors import CodeChanged, InvalidCall, ReplayDiverged
from holdfast.runtime.log import warn
from holdfast.runtime.machine import digest_of

#: Statuses of outputs that stand: such a stage is passed the next time.
DONE = (StageStatus.OK, StageStatus.SKIP, StageStatus.CANCEL)

#: Fields of a snapshot that say what is to be done; ids and times tell who asked, and when.
_GIVEN = (
    "input_text",
    "input_audio_duration_ms",
    "topology",
    "execution_mode",
    "metadata",
    "extensions",
    "conversation",
    "enrichments",
)
#: Keys without which a state cannot be read.
_KEYS = (
    *("pipeline", "format", "name", "stages", "given", "kind", "after", "conditional"),
    *("snapshot", "run_id", "status", "data"),
)
#: Characters of a list of names in a message.
_SHOWN = 300


class Asked(NamedTuple):
    """The task that a context describes."""

    #: Of each field, in order, with spaces between them.
    digests: str
    #: Does it say nothing at all? Then the recorded one is meant.
    empty: bool


def ask(given: ContextSnapshot[Any], pipeline: str, freeze: Callable[[Any], Any]) -> Asked:
    """The task of a context; `freeze` gives a value as it would be stored."""
    values = {name: getattr(given, name) for name in _GIVEN}
    if values["topology"] == pipeline:
        # Stageflow's own choice, where the caller makes none.
        values["topology"] = None
    empty = values["metadata"] == {} and all(values[name] is None for name in _GIVEN if name != "metadata")
    return Asked(" ".join(digest_of((freeze(value),), {}).hex() for value in values.values()), empty)


class Plan(NamedTuple):
    """A pipeline as a run knows it."""

    name: str
    #: For each stage: `kind`, the stages that it comes `after`, and whether it is `conditional`.
    stages: Mapping[str, Mapping[str, Any]]
    #: What is done if the run was begun with other stages: refuse, warn or allow.
    changed: str

    def check_names(self, run_id: str, freeze: Callable[[Any], Any]) -> None:
        """Refuse stages whose names are taken for those of secrets: their outputs would not be there."""
        names = freeze(dict.fromkeys([*self.stages, *_KEYS], 0))
        hidden = [name for name, value in names.items() if value != 0]
        if hidden:
            raise InvalidCall(
                f"run {run_id!r}: {', '.join(hidden)[:_SHOWN]} would be hidden by the patterns that the store was "
                "opened with (redact=…): rename the stages, or choose narrower patterns",
                run=run_id,
                names=hidden,
            )

    def compare(self, run_id: str, begun: Mapping[str, Any], asked: Asked) -> None:
        """Refuse another pipeline, and another task."""
        if self.changed != "allow" and self.differs(begun):
            self._object(run_id, begun)
        if asked.empty:
            return
        pairs = zip(_GIVEN, begun["given"].split(), asked.digests.split(), strict=False)
        other = [name for name, then, now in pairs if then != now]
        if other:
            raise ReplayDiverged(
                f"run {run_id!r} was begun with another {', '.join(other)}: use another run id, or run it without a "
                "context to go on with the one that is recorded",
                run=run_id,
                fields=other,
            )

    def differs(self, begun: Mapping[str, Any]) -> bool:
        """Is it another pipeline than the run was begun, or last gone on, with?"""
        return bool((begun["name"], begun["stages"]) != (self.name, self.stages))

    def good(self, state: Mapping[str, Any]) -> set[str]:
        """The stages whose recorded outputs stand: they are as they were, and so is all that they come after."""
        begun = state["pipeline"]["stages"]
        left = {
            name
            for name, output in state["stages"].items()
            if name in self.stages and begun.get(name) == self.stages[name] and _status(output) in DONE
        }
        good: set[str] = set()
        while found := {name for name in left if good.issuperset(self.stages[name]["after"])}:
            good |= found
            left -= found
        return good

    def _object(self, run_id: str, begun: Mapping[str, Any]) -> None:
        names = [
            name
            for name in {**begun["stages"], **self.stages}
            if begun["stages"].get(name) != self.stages.get(name)
        ]
        what = f"other stages ({', '.join(names)[:_SHOWN]})" if names else "another name"
        message = f"run {run_id!r} was begun with pipeline {begun['name']!r}; {self.name!r} has {what}"
        if self.changed == "refuse":
            raise CodeChanged(
                f"{message}: use another run id, or durable(…, changed='allow') to pass the stages that are the same",
                run=run_id,
                stages=names,
            )
        warn("%s: the stages that are the same are passed", message)


def _status(output: Any) -> Any:
    return output.get("status") if isinstance(output, dict) else getattr(output, "status", None)
