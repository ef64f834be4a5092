"""All errors that Holdfast raises, grouped by how a caller handles them.

    HoldfastError
    ├── InvalidCall             fix the call
    │   ├── NotFound            no such run, version, tag, path, artifact
    │   ├── InvalidReference    a run id, reference or path that cannot be one
    │   ├── UnsupportedValue    a value that cannot be stored exactly; names its path
    │   ├── FrozenStateChanged  C code wrote into a version's immutable state
    │   ├── InvalidSnapshot     a snapshot or bundle that fails its checks
    │   ├── InvalidState        a state that does not fit the schema of its run; names the path
    │   ├── InvalidAnswer       an answer that does not match its question, or a second answer
    │   ├── NotAwaited          a step, ask, sleep, … was called without await
    │   └── AlreadyExists       a run of this id exists; nothing is overwritten
    │       └── RunMismatch     … of another workflow, or started with other arguments
    ├── TryAgain                read again, then repeat
    │   ├── StaleVersion        another writer committed first
    │   ├── AlreadyRunning      another process advances the run
    │   ├── LeaseLost           another process has taken over the run; uncommitted work is lost
    │   │   └── LeaseExpired    … or the lease expired and the run's queue is full
    │   ├── BreakerOpen         a step failed too often lately; it is not called for a while
    │   └── StoreBusy           another writer held the store for too long
    ├── DecisionNeeded          a person or a policy must choose
    │   ├── MergeConflict       two changes of one place; names path and values
    │   ├── ReplayDiverged      the workflow's code does not match the recorded steps
    │   ├── CodeChanged         the workflow's code is not the code that the run started with
    │   ├── LimitExceeded       a limit is exhausted; resume the run with a higher one
    │   ├── OverridesMissing    the run overrides steps with functions that this process lacks
    │   └── CompensationFailed  compensating a step failed; the rollback is incomplete
    ├── NotFinished             wait
    │   └── Suspended           the run waits for a person, a signal or a time
    ├── RunEnded                the run has no result, and will have none
    │   ├── Cancelled           it was cancelled
    │   └── StepFailed          it failed with an exception of a class that this process lacks
    ├── StepTimeout             a step, or the whole run, took too long (a TimeoutError too)
    │   └── QuestionTimeout     a question was not answered in time
    ├── BadData                 stored data is damaged or unknown
    │   ├── CorruptVersion      a version fails its hash; names run and version
    │   ├── CorruptStore        the store around the versions is damaged
    │   ├── IncompatibleFormat  written by a newer Holdfast, or not by Holdfast
    │   └── UnknownTimeZone     a stored time has a time zone that this machine lacks
    ├── StoreUnavailable        the store cannot be opened or written
    └── CommitUnknown           the connection or the disk failed during a commit: read the run again

A message names the run, the version, the path, and a remedy. `details` has the same data for programs; `code` is a
stable name of the kind of error.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """The base class of Holdfast's errors."""

    code = "error"

    def __init__(self, message: str | None = None, **details: Any) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.details: dict[str, Any] = details


class InvalidCall(HoldfastError):
    """The arguments of this call are invalid."""

    code = "invalid"


class NotFound(InvalidCall):
    """Nothing has this name."""

    code = "not_found"


class InvalidReference(InvalidCall):
    """This is not a valid reference to a run, a version or a path."""

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


class InvalidState(InvalidCall):
    """This state does not fit the schema of its run."""

    code = "invalid_state"


class AlreadyExists(InvalidCall):
    """A run of this id exists; nothing is overwritten."""

    code = "already_exists"


class RunMismatch(AlreadyExists):
    """The run of this id is of another workflow, or was started with other arguments."""

    code = "run_mismatch"


class NotAwaited(InvalidCall):
    """A call that returns an awaitable was used without await."""

    code = "not_awaited"


class InvalidAnswer(InvalidCall):
    """This answer does not match its question."""

    code = "invalid_answer"


class TryAgain(HoldfastError):
    """Read again and repeat."""

    code = "try_again"


class StaleVersion(TryAgain):
    """The run has changed since it was read."""

    code = "stale_version"


class AlreadyRunning(TryAgain):
    """Another process advances the run."""

    code = "already_running"


class LeaseLost(TryAgain):
    """Another process has taken over the run."""

    code = "lease_lost"


class LeaseExpired(LeaseLost):
    """The lease of the run expired, and it cannot be claimed again now."""

    code = "lease_expired"


class BreakerOpen(TryAgain):
    """The step failed too often lately. `details` has the `step`, the `breaker`, and `retry_at`."""

    code = "breaker_open"
    #: When a call is let through again, in microseconds since 1970; None if that is not known.
    retry_at: int | None = None
    #: With which its run waits, if the step's retry policy allows (see `execution.breakers`).
    waits: Any = None


class StoreBusy(TryAgain):
    """Another writer held the store for too long."""

    code = "store_busy"


class DecisionNeeded(HoldfastError):
    """A decision is needed."""

    code = "decide"


class MergeConflict(DecisionNeeded):
    """Two changes of one place cannot be merged."""

    code = "merge_conflict"


class ReplayDiverged(DecisionNeeded):
    """The workflow's code does not match the recorded steps of the run."""

    code = "replay_diverged"


class CodeChanged(DecisionNeeded):
    """The workflow's code has changed since the run started."""

    code = "code_changed"


class LimitExceeded(DecisionNeeded):
    """A limit is exhausted, so the next step was not started. `details` has the same data."""

    code = "limit_exceeded"

    @property
    def limit(self) -> str:
        """The name of the limit: cost, tokens, steps or seconds."""
        return str(self.details.get("limit", ""))

    @property
    def spent(self) -> float:
        """The amount that has been spent."""
        return float(self.details.get("spent", 0))

    @property
    def allowed(self) -> float:
        """The maximum amount."""
        return float(self.details.get("allowed", 0))

    @property
    def run(self) -> str:
        """The id of the run whose limit it is: the executed run or one of its parents."""
        return str(self.details.get("run", ""))


class OverridesMissing(DecisionNeeded):
    """The run overrides steps with functions that this process lacks."""

    code = "overrides_missing"


class CompensationFailed(DecisionNeeded):
    """Compensating a step failed."""

    code = "compensation_failed"


class NotFinished(HoldfastError):
    """The run has no result yet."""

    code = "not_finished"


class Suspended(NotFinished):
    """The run waits for a person, a signal or a time."""

    code = "suspended"


class RunEnded(HoldfastError):
    """The run has ended without a result."""

    code = "run_ended"


class Cancelled(RunEnded):
    """The run was cancelled."""

    code = "cancelled"


class StepFailed(RunEnded):
    """The run failed with an exception of a class that this process lacks."""

    code = "step_failed"


class StepTimeout(HoldfastError, TimeoutError):
    """A step, or the whole run, took too long."""

    code = "timeout"


class QuestionTimeout(StepTimeout):
    """A question was not answered in time."""

    code = "question_timeout"


class BadData(HoldfastError):
    """Stored data is damaged or of an unknown format."""

    code = "bad_data"


class CorruptVersion(BadData):
    """A version fails its integrity check."""

    code = "corrupt_version"


class CorruptStore(BadData):
    """The store is damaged."""

    code = "corrupt_store"


class IncompatibleFormat(BadData):
    """The data was written by a newer Holdfast, or not by Holdfast."""

    code = "incompatible_format"


class UnknownTimeZone(BadData):
    """A stored time has a time zone that this machine lacks."""

    code = "unknown_time_zone"


class StoreUnavailable(HoldfastError):
    """The store cannot be opened or written."""

    code = "store_unavailable"


class CommitUnknown(HoldfastError):
    """The connection was lost, or the disk failed, during a commit, and whether it was carried out is not known."""

    code = "commit_unknown"


class HoldfastWarning(UserWarning):
    """A warning about a call that may not do what its author expects. A filter of `warnings` can make it an error."""
