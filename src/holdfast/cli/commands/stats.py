"""`holdfast stats`"""

from __future__ import annotations

import msgspec

from holdfast.cli.call import Call, command
from holdfast.desk.census import census
from holdfast.desk.words import size


@command("stats")
def stats_command(call: Call) -> None:
    """What the store holds, and how large it is."""
    stats = call.hf.stats()
    statuses, largest = census(call.hf, 3)
    facts = {"store": call.place.shown, **msgspec.structs.asdict(stats)}
    if call.out.json:
        call.out.document({**facts, "statuses": statuses})
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
    call.out.facts(facts, shown)
