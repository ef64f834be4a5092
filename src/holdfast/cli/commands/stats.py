"""`holdfast stats`"""

from __future__ import annotations

import msgspec

from holdfast.cli.context import CommandContext, command
from holdfast.operator_view.lookup import store_overview
from holdfast.operator_view.text import size


@command("stats")
def stats_command(ctx: CommandContext) -> None:
    """Show what the store holds and how large it is."""
    stats = ctx.hf.stats()
    statuses, largest = store_overview(ctx.hf, 3)
    facts = {"store": ctx.location.public, **msgspec.structs.asdict(stats)}
    if ctx.out.json:
        ctx.out.document({**facts, "statuses": statuses})
        return
    facts.update({f"{status}_runs": number for status, number in statuses.items()})
    shown = {
        "runs": ", ".join(
            [
                f"{stats.runs:,}",
                *(f"{number:,} {status}" for status, number in sorted(statuses.items()) if number),
            ]
        ),
        "versions": f"{stats.versions:,}",
        "events": f"{stats.events:,}",
        "artifacts": f"{stats.artifacts:,}",
        "artifact_bytes": size(stats.artifact_bytes),
        "pack_bytes": size(stats.pack_bytes),
        "file_bytes": "" if stats.file_bytes is None else size(stats.file_bytes),
        "largest": ", ".join(f"{run.id} ({size(run.size)})" for run in largest),
        **{f"{status}_runs": "" for status in statuses},
    }
    ctx.out.facts(facts, shown)
