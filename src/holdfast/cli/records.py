"""The columns in which lists show runs."""

from __future__ import annotations

from holdfast.cli.output import Column, Output
from holdfast.desk.records import status_of
from holdfast.desk.words import age, size


def run_columns(out: Output) -> list[Column]:
    """How a list of runs looks."""
    return [
        Column("run", lambda run: run.id, style="bold", least=22),
        Column("status", status_of, lambda run: out.status(status_of(run))),
        Column("workflow", lambda run: run.workflow, lambda run: run.workflow or "—", least=16, spare=3),
        Column("step", lambda run: run.step, least=12, spare=2),
        Column("versions", lambda run: run.versions, right=True, spare=4),
        Column("age", lambda run: run.updated, lambda run: age(run.updated), spare=1),
        Column("size", lambda run: run.size, lambda run: size(run.size), right=True, spare=6),
        Column("tags", lambda run: run.tags, style="yellow", least=8, spare=5),
    ]
