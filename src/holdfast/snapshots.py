"""Public import path of the snapshot manager: `from holdfast.snapshots import SnapshotManager`."""

from holdfast.compat.snapshot_manager.functions import SnapshotUtils
from holdfast.compat.snapshot_manager.kaiban import RUN_SCHEMA
from holdfast.compat.snapshot_manager.manager import SnapshotManager
from holdfast.compat.snapshot_manager.restoring import Restored
from holdfast.compat.snapshot_manager.snapshot import Snapshot, compare_snapshots, validate_snapshot
from holdfast.compat.snapshot_manager.timed import with_snapshots

__all__ = [
    "RUN_SCHEMA",
    "Restored",
    "Snapshot",
    "SnapshotManager",
    "SnapshotUtils",
    "compare_snapshots",
    "validate_snapshot",
    "with_snapshots",
]
