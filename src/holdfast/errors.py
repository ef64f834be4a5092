"""Every error that Holdfast raises, grouped by what the caller does next.

    HoldfastError
    ├── InvalidCall             fix the call
    │   ├── NotFound            no such run, version, tag, path, artifact
    │   ├── InvalidReference    a run id, reference or path that cannot be one
    │   ├── UnsupportedValue    a value that cannot be stored exactly; names its path
    │   ├── FrozenStateChanged  C code wrote into a version's immutable state
    │   ├── InvalidSnapshot     a snapshot or bundle that fails its checks
    │   ├── InvalidAnswer       an answer that does not fit its prompt, or comes a second time
    │   ├── NotAwaited          a step, ask, sleep, … was called without await
    │   └── AlreadyExists       a run of this id is there; nothing is overwritten
    │       └── RunMismatch     … of another workflow, or started with other arguments
    ├── TryAgain                read again, then repeat
    │   ├── StaleVersion        someone else wrote the version first
    │   ├── AlreadyRunning      the run is being advanced elsewhere
    │   ├── LeaseLost           another took the run over; what was not committed is not kept
    │   │   └── LeaseExpired    … or the lease ran out and the run's queue is full by now
    │   ├── BreakerOpen         a step failed too often lately; it is left alone for a while
    │   └── StoreBusy           another writer held the store for too long
    ├── Decide                  a person or a policy must choose
    │   ├── MergeConflict       two changes of one place; names path and values
    │   ├── ReplayDiverged      the workflow's code does not fit what the run has recorded
    │   ├── CodeChanged         the workflow's code is not the code that the run began with
    │   ├── LimitExceeded       a limit is used up; resume the run with a higher one
    │   ├── OverridesMissing    the run has overrides of steps that this process does not know
    │   └── CompensationFailed  undoing a step failed; the rollback waits
    ├── NotFinished             wait
    │   └── Suspended           the run waits for a person, an event or a time
    ├── RunEnded                the run has no result, and will have none
    │   ├── Cancelled           it was cancelled
    │   └── StepFailed          it failed with an exception whose class is not known here
    ├── StepTimeout             a step, or the whole run, took too long (a TimeoutError too)
    │   └── QuestionTimeout     a question was not answered in time
    ├── BadData                 look at the data
    │   ├── CorruptVersion      a version fails its hash; names run and version
    │   ├── CorruptStore        the store around the versions is damaged
    │   ├── IncompatibleFormat  written by a newer Holdfast, or not by Holdfast
    │   └── UnknownTimeZone     a stored time is in a zone that this machine does not know
    ├── StoreUnavailable        the store cannot be opened or written; says why
    └── CommitUnknown           the connection or the disk failed during a commit: read what happened

A message names the run, the version, the path, and the next step. `details` holds the same facts for
programs; `code` is a stable word for the kind of error.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    code = "error"

    def __init__(self, message: str | None = None, **details: Any) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.details: dict[str, Any] = details


class InvalidCall(HoldfastError):
    """The call cannot be carried out as it is."""

    code = "invalid"


class NotFound(InvalidCall):
    """There is nothing under this name."""

    code = "not_found"


class InvalidReference(InvalidCall):
    """This cannot name a run, a version or a path."""

    code = "invalid_reference"


class UnsupportedValue(InvalidCall):
    """This value cannot be stored exactly."""

    code = "unsupported_value"


class FrozenStateChanged(InvalidCall):
    """A container of a version's immutable state was written to past its methods."""

    code = "frozen_state_changed"


class InvalidSnapshot(InvalidCall):
    """This snapshot or bundle fails its checks."""

    code = "invalid_snapshot"


class AlreadyExists(InvalidCall):
    """A run of this id exists; nothing is overwritten."""

    code = "already_exists"


class RunMismatch(AlreadyExists):
    """The run of this id is of another workflow, or was started with other arguments."""

    code = "run_mismatch"


class NotAwaited(InvalidCall):
    """A call that gives an awaitable was used without await."""

    code = "not_awaited"


class InvalidAnswer(InvalidCall):
    """This answer does not fit its prompt."""

    code = "invalid_answer"


class TryAgain(HoldfastError):
    """Read again and repeat."""

    code = "try_again"


class StaleVersion(TryAgain):
    """The run has moved on since it was read."""

    code = "stale_version"


class AlreadyRunning(TryAgain):
    """The run is being advanced elsewhere."""

    code = "already_running"


class LeaseLost(TryAgain):
    """Another has taken the run over."""

    code = "lease_lost"


class LeaseExpired(LeaseLost):
    """The lease of the run ran out, and it cannot be claimed again now."""

    code = "lease_expired"


class BreakerOpen(TryAgain):
    """The step failed too often lately."""

    code = "breaker_open"


class StoreBusy(TryAgain):
    """Another writer held the store for too long."""

    code = "store_busy"


class DecisionNeeded(HoldfastError):
    """A decision is needed."""

    code = "decide"


class MergeConflict(DecisionNeeded):
    """Two changes of one place cannot both stand."""

    code = "merge_conflict"


class ReplayDiverged(DecisionNeeded):
    """The workflow's code does not fit what the run has recorded."""

    code = "replay_diverged"


class CodeChanged(DecisionNeeded):
    """The workflow's code has changed since the run began."""

    code = "code_changed"


class LimitExceeded(DecisionNeeded):
    """A limit is used up, so the next step was not started. `details` has the same facts."""

    code = "limit_exceeded"

    @property
    def limit(self) -> str:
        """Which limit: cost, tokens, steps or seconds."""
        return str(self.details.get("limit", ""))

    @property
    def spent(self) -> float:
        """What has been spent."""
        return float(self.details.get("spent", 0))

    @property
    def allowed(self) -> float:
        """What may be spent."""
        return float(self.details.get("allowed", 0))

    @property
    def run(self) -> str:
        """The id of the run whose limit it is: of the one that was executed, or of one that it is a child of."""
        return str(self.details.get("run", ""))


class OverridesMissing(DecisionNeeded):
    """The run has overrides of steps whose functions this process does not know."""

    code = "overrides_missing"


class CompensationFailed(DecisionNeeded):
    """Undoing a step failed."""

    code = "compensation_failed"


class NotFinished(HoldfastError):
    """The run has no result yet."""

    code = "not_finished"


class Suspended(NotFinished):
    """The run waits for a person, an event or a time."""

    code = "suspended"


class RunEnded(HoldfastError):
    """The run has ended without a result."""

    code = "run_ended"


class Cancelled(RunEnded):
    """The run was cancelled."""

    code = "cancelled"


class StepFailed(RunEnded):
    """Stands for an exception whose class is not known in this process."""

    code = "step_failed"


class StepTimeout(HoldfastError, TimeoutError):
    """It took too long."""

    code = "timeout"


class QuestionTimeout(StepTimeout):
    """A question was not answered in time."""

    code = "question_timeout"


class BadData(HoldfastError):
    """Stored data cannot be trusted or understood."""

    code = "bad_data"


class CorruptVersion(BadData):
    """A version fails its integrity check."""

    code = "corrupt_version"


class CorruptStore(BadData):
    """The store is damaged."""

    code = "corrupt_store"


class IncompatibleFormat(BadData):
    """Not written by this or an older Holdfast."""

    code = "incompatible_format"


class UnknownTimeZone(BadData):
    """A stored time is in a time zone that this machine does not know."""

    code = "unknown_time_zone"


class StoreUnavailable(HoldfastError):
    """The store cannot be opened or written."""

    code = "store_unavailable"


class CommitUnknown(HoldfastError):
    """The connection was lost, or the disk failed, during a commit, and whether it was carried out is not known."""

    code = "commit_unknown"


class HoldfastWarning(UserWarning):
    """A call that works, but perhaps not as its author expects. A filter of `warnings` makes it an error."""
