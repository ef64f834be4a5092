"""Snapshots around any run: created, restored, compared, exported; in memory or on any store.

`keeper` holds the manager, `record` a snapshot as a caller holds it, `fields` what can be read and written of any
object, `restore` a snapshot on its way back into one, `timed` classes whose objects are saved by time.

Invariant: a snapshot never breaks the run that it observes, and a restore changes everything or nothing.
"""

from holdfast.snapshots.keeper import SnapshotManager
from holdfast.snapshots.record import Snapshot, compare_snapshots, validate_snapshot
from holdfast.snapshots.restore import Restored
from holdfast.snapshots.timed import with_snapshots

__all__ = [
    "Restored",
    "Snapshot",
    "SnapshotManager",
    "compare_snapshots",
    "validate_snapshot",
    "with_snapshots",
]
