"""Checkpoints of Microsoft's agent-framework: an execution of a workflow is a run, a checkpoint a version with a tag.

Invariant: a checkpoint follows the one that it names as its previous. Where others went on from that already, it begins
a timeline of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

try:
    import agent_framework as af
    from agent_framework.exceptions import WorkflowCheckpointException
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "holdfast.integrations.agent_framework needs agent-framework: pip install 'holdfast[agent-framework]'",
        name=error.name,
    ) from error

from holdfast import Holdfast, InvalidCall, InvalidReference, NotFound, Version
from holdfast.integrations.agent_framework_values import allow_types
from holdfast.integrations.ledger import Ledger, number_of_head, off_loop, plain, run_id_of
from holdfast.model.names import check_tag, short

_ROOT = "agent-framework"


class HoldfastCheckpointStorage:
    """For `WorkflowBuilder(checkpoint_storage=…)`. An execution is kept as the run
    `agent-framework/WORKFLOW_NAME/FIRST_CHECKPOINT_ID`. `allow` lists your own classes that messages and states may
    hold, or that a request may be answered with."""

    def __init__(self, hf: Holdfast, *, allow: Iterable[type] = ()) -> None:
        self._ledger = Ledger(hf, allow)
        allow_types(self._ledger.allowed)

    async def save(self, checkpoint: af.WorkflowCheckpoint) -> str:
        """Make a checkpoint the version that follows that of the checkpoint before it."""
        return await off_loop(self._save, checkpoint)

    async def load(self, checkpoint_id: str) -> af.WorkflowCheckpoint:
        """The checkpoint of an id, or `WorkflowCheckpointException`."""
        return await off_loop(self._load, checkpoint_id)

    async def list_checkpoints(self, *, workflow_name: str) -> list[af.WorkflowCheckpoint]:
        """The checkpoints of a workflow on all timelines, oldest first."""
        return await off_loop(lambda: [self._read(version) for version in self._kept(workflow_name)])

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Their ids."""
        return await off_loop(lambda: [_id(version) for version in self._kept(workflow_name)])

    async def get_latest(self, *, workflow_name: str) -> af.WorkflowCheckpoint | None:
        """The head of the execution that was continued, or rolled back, last."""
        return await off_loop(self._latest, workflow_name)

    async def delete(self, checkpoint_id: str) -> bool:
        """Take its id from a checkpoint; the version stays in history until it is pruned."""
        return await off_loop(self._delete, checkpoint_id)

    def _save(self, checkpoint: af.WorkflowCheckpoint) -> str:
        if not isinstance(checkpoint, af.WorkflowCheckpoint):
            raise InvalidCall(f"save takes a WorkflowCheckpoint, not {type(checkpoint).__name__}")
        name = check_tag(checkpoint.checkpoint_id)
        previous = checkpoint.previous_checkpoint_id
        before = None if previous is None else self._find(previous)
        run_id = run_id_of(_ROOT, checkpoint.workflow_name, name) if before is None else before.run
        after = number_of_head(self._ledger.hf.history(run_id)) if before is None else before.number
        step = f"superstep {checkpoint.iteration_count}"
        made = self._ledger.enter(run_id, checkpoint.to_dict(), after=after, step=step, tags=[name])
        self._ledger.remember(name, made)
        return name

    def _load(self, checkpoint_id: str) -> af.WorkflowCheckpoint:
        version = self._find(checkpoint_id)
        if version is None:
            raise WorkflowCheckpointException(f"there is no checkpoint {short(checkpoint_id)} in the store")
        return self._read(version)

    def _latest(self, workflow_name: str) -> af.WorkflowCheckpoint | None:
        runs = self._ledger.runs(f"{run_id_of(_ROOT, workflow_name)}/")
        for run in sorted(runs, key=lambda run: run.updated, reverse=True):
            for version in self._ledger.hf.history(run.id).ancestors():
                if _id(version):
                    return self._read(version)
        return None

    def _delete(self, checkpoint_id: str) -> bool:
        deleted = False
        while version := self._find(checkpoint_id):
            with suppress(NotFound):
                self._ledger.hf.history(version.run).untag(version.number, checkpoint_id)
                deleted = True
        return deleted

    def _find(self, checkpoint_id: str) -> Version | None:
        known = self._ledger.known(checkpoint_id) if isinstance(checkpoint_id, str) else None
        if known is not None and _id(known) == checkpoint_id:
            return known
        try:
            runs = self._ledger.hf.runs(tags=[checkpoint_id], prefix=f"{_ROOT}/", limit=1)
            found = self._ledger.hf.history(runs[0].id).at(f":{checkpoint_id}") if runs else None
        except (InvalidReference, NotFound):
            return None
        return found if found is not None and _id(found) == checkpoint_id else None

    def _kept(self, workflow_name: str) -> list[Version]:
        found: dict[str, Version] = {}
        for run in self._ledger.runs(f"{run_id_of(_ROOT, workflow_name)}/"):
            for version in self._ledger.hf.history(run.id).iter_versions():
                found.setdefault(_id(version), version)
        found.pop("", None)
        return sorted(found.values(), key=lambda version: (version.at, version.number))

    def _read(self, version: Version) -> af.WorkflowCheckpoint:
        self._ledger.remember(_id(version), version)
        return af.WorkflowCheckpoint.from_dict(plain(version))


def _id(version: Version) -> str:
    """The id of the checkpoint that a version is; empty if it is none, or was deleted."""
    try:
        name = version.get("checkpoint_id")
    except NotFound:
        return ""
    return name if name in version.tags else ""
