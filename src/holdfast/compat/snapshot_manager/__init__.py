"""Snapshots of any run: created, restored, compared, exported; in memory or on any store.

`manager` holds the manager, `record` the snapshot record and access to the fields of any object, `restore`
the restore of a snapshot into an object, `timed` classes whose objects are saved periodically.

Invariant: a snapshot never breaks the run that it observes, and a restore changes everything or nothing.
"""

from holdfast.compat.snapshot_manager.manager import SnapshotManager
from holdfast.compat.snapshot_manager.record import Snapshot, compare_snapshots, validate_snapshot
from holdfast.compat.snapshot_manager.restore import Restored
from holdfast.compat.snapshot_manager.timed import with_snapshots

__all__ = [
    "Restored",
    "Snapshot",
    "SnapshotManager",
    "compare_snapshots",
    "validate_snapshot",
    "with_snapshots",
]
