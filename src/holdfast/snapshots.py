"""Public import path of the snapshot manager: `from holdfast.snapshots import SnapshotManager`."""

from holdfast.compat.snapshot_manager import (
    Restored,
    Snapshot,
    SnapshotManager,
    compare_snapshots,
    validate_snapshot,
    with_snapshots,
)

__all__ = [
    "Restored",
    "Snapshot",
    "SnapshotManager",
    "compare_snapshots",
    "validate_snapshot",
    "with_snapshots",
]
