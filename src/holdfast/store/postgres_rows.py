"""What differs from SQLite where records become rows: packs of any length stand in the journal."""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

from typing import Any

from holdfast.model.records import VersionRecord
from holdfast.store.sqlite_rows import RUN, version_values

SELECT_RUN = f"SELECT {RUN}, sum FROM run WHERE "
VERSION = (
    "seq, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, "
    "coalesce(length(pack), 0)"
)
#: Columns of a version's row.
VERSION_COLUMNS = (
    "run, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, pack"
)
#: The types in which columns are sent that do not hold whole numbers, of both tables.
TYPES = {
    "id": "text", "workflow": "text", "step": "text", "owner": "text",
    "detail": "bytea", "seal": "bytea", "pack": "bytea", "sum": "bytea",
}  # fmt: skip


def sent_as(column: str) -> str:
    """The type in which a column's value is sent."""
    return TYPES.get(column, "bigint")


def version_row(version: VersionRecord) -> tuple[Any, ...]:
    """The values of `VERSION_COLUMNS` but for the run."""
    return version_values(version, version.pack or b"")
