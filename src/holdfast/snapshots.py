"""Public import path of the snapshot manager: `from holdfast.snapshots import SnapshotManager`."""

from holdfast.compat.snapshot_manager.manager import SnapshotManager, with_snapshots
from holdfast.compat.snapshot_manager.snapshot import Restored, Snapshot, compare_snapshots, validate_snapshot

__all__ = [
    "Restored",
    "Snapshot",
    "SnapshotManager",
    "compare_snapshots",
    "validate_snapshot",
    "with_snapshots",
]
