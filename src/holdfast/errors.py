"""Every error that Holdfast raises, grouped by what the caller does next.

    HoldfastError
    ├── InvalidCall             fix the call
    │   ├── NotFound            no such run, version, tag, path, artifact
    │   ├── InvalidReference    a run id, reference or path that cannot be one
    │   ├── UnsupportedValue    a value that cannot be stored exactly; names its path
    │   ├── InvalidSnapshot     a snapshot or bundle that fails its checks
    │   ├── InvalidAnswer       an answer that does not fit its prompt, or comes a second time
    │   └── AlreadyExists       a run of this id is there; nothing is overwritten
    ├── TryAgain                read afresh, then repeat
    │   ├── StaleVersion        someone else wrote the version first
    │   ├── AlreadyRunning      the run is being advanced elsewhere
    │   ├── LeaseLost           another took the run over; what was not committed is not kept
    │   ├── BreakerOpen         a step failed too often lately; it is left alone for a while
    │   └── StoreBusy           another writer held the store for too long
    ├── Decide                  a person or a policy must choose
    │   ├── MergeConflict       two changes of one place; names path and values
    │   ├── ReplayDiverged      a step was recorded with other arguments than it has now
    │   ├── CodeChanged         the workflow's code is not the code that the run began with
    │   └── CompensationFailed  undoing a step failed; the rollback waits
    ├── NotFinished             wait
    │   └── Suspended           the run waits for a person, an event or a time
    ├── RunEnded                the run has no result, and will have none
    │   ├── Cancelled           it was cancelled
    │   └── StepFailed          it failed with an exception whose class is not known here
    ├── StepTimeout             a step, or the whole run, took too long (a TimeoutError too)
    ├── BadData                 look at the data
    │   ├── CorruptVersion      a version fails its hash; names run and version
    │   ├── CorruptStore        the store around the versions is damaged
    │   └── IncompatibleFormat  written by a newer Holdfast, or not by Holdfast
    ├── StoreUnavailable        the store cannot be opened or written; says why
    └── CommitUnknown           the connection was lost during a commit: ask what happened

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


class InvalidSnapshot(InvalidCall):
    """This snapshot or bundle fails its checks."""

    code = "invalid_snapshot"


class AlreadyExists(InvalidCall):
    """A run of this id exists; nothing is overwritten."""

    code = "already_exists"


class InvalidAnswer(InvalidCall):
    """This answer does not fit its prompt."""

    code = "invalid_answer"


class TryAgain(HoldfastError):
    """Read afresh and repeat."""

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


class BreakerOpen(TryAgain):
    """The step failed too often lately."""

    code = "breaker_open"


class StoreBusy(TryAgain):
    """Another writer held the store for too long."""

    code = "store_busy"


class Decide(HoldfastError):
    """A decision is needed."""

    code = "decide"


class MergeConflict(Decide):
    """Two changes of one place cannot both stand."""

    code = "merge_conflict"


class ReplayDiverged(Decide):
    """The workflow does not do what it did when this step was recorded."""

    code = "replay_diverged"


class CodeChanged(Decide):
    """The workflow's code has changed since the run began."""

    code = "code_changed"


class CompensationFailed(Decide):
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


class StoreUnavailable(HoldfastError):
    """The store cannot be opened or written."""

    code = "store_unavailable"


class CommitUnknown(HoldfastError):
    """The connection was lost during a commit, and whether it was carried out could not be learned."""

    code = "commit_unknown"
