"""Snapshots of any run: created, restored, compared, exported; in memory or on any store.

manager   SnapshotManager, and classes whose objects it saves periodically
snapshot  the snapshot record, and the fields of any object: read for a snapshot, restored from it

Invariant: a snapshot never breaks the run that it observes, and a restore changes everything or nothing.
"""
