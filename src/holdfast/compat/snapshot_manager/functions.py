"""The functions of the original's `SnapshotUtils`, under its names and Python's.

Invariant: each calls the manager, or the function of `snapshot`, and nothing else.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast.compat.snapshot_manager.fields import TEMPORARY
from holdfast.compat.snapshot_manager.manager import SnapshotManager
from holdfast.compat.snapshot_manager.restoring import Restored
from holdfast.compat.snapshot_manager.snapshot import Snapshot, compare_snapshots, validate_snapshot
from holdfast.history.snapshot import Validation


class SnapshotUtils:
    """Functions that take the manager as their last argument."""

    @staticmethod
    def create_snapshot(run_id: str, store: Any, manager: SnapshotManager) -> Snapshot | None:
        """Take a snapshot, as `SnapshotManager.create_snapshot`."""
        return manager.create_snapshot(run_id, store)

    @staticmethod
    def restore_from_snapshot(
        run_id: str, store: Any, snapshot: Snapshot, manager: SnapshotManager
    ) -> Restored:
        """Restore a snapshot, as `SnapshotManager.restore_from_snapshot`."""
        temporary = sys.getrefcount(store) <= TEMPORARY
        return manager.restore_store(run_id, store, snapshot, temporary=temporary)

    @staticmethod
    def compare_snapshots(a: Snapshot, b: Snapshot) -> dict[str, dict[str, Any]]:
        """Compare two snapshots, step results by step, as `compare_snapshots(a, b, nested=True)`."""
        return compare_snapshots(a, b, nested=True)

    @staticmethod
    def validate_snapshot(snapshot: Any) -> Validation:
        """Check whether a snapshot can be restored, as `validate_snapshot`."""
        return validate_snapshot(snapshot)

    createSnapshot = create_snapshot  # noqa: N815 - the name of the original
    restoreFromSnapshot = restore_from_snapshot  # noqa: N815 - the name of the original
    compareSnapshots = compare_snapshots  # noqa: N815 - the name of the original
    validateSnapshot = validate_snapshot  # noqa: N815 - the name of the original
