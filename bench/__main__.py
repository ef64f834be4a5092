"""Measure everything, or the sections named: `python -m bench append read --quick`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import (
    drafting,
    fleet,
    inbox,
    items,
    memory,
    peer,
    postgres,
    reading,
    report,
    running,
    snapshots,
    stages,
    starting,
    threads,
    writing,
)
from bench.measure import Bench, Row, note

_SECTIONS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "append": writing.append,
    "commit": writing.commit,
    "replace": writing.replace,
    "runs": writing.runs,
    "draft": drafting.draft,
    "tasks": running.tasks,
    "read": reading.read,
    "page": reading.page,
    "diff": reading.diff,
    "memory": memory.memory,
    "steps": running.steps,
    "crowd": running.crowd,
    "rollback": running.rollback,
    "kill": running.kill,
    "import": starting.start,
    "program": starting.program,
    "peer": peer.peer,
    "threads": threads.threads,
    "stages": stages.stages,
    "items": items.items,
    "snapshots": snapshots.snapshots,
    "inbox": inbox.inbox,
    "loops": inbox.loops,
    "postgres": postgres.postgres,
    "fleet": fleet.fleet,
}

#: The load of a machine that does nothing else.
_QUIET = 0.5


def main() -> None:
    names = "\n".join(f"  {name:9} {section.__doc__}" for name, section in _SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Measure Holdfast beside the raw limit. Sections:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help="what to measure; everything if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="2 repetitions instead of 5")
    parser.add_argument(
        "--folder", type=Path, default=Path("build"), help="where files go: on the disk to measure"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the report as Markdown, too")
    given = parser.parse_args()
    unknown = set(given.sections) - set(_SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}: there are {', '.join(_SECTIONS)}")

    load = os.getloadavg()[0]
    if load > _QUIET:
        note(f"the machine is busy (load {load:.1f}): expect worse numbers than it could give")
    given.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.folder, 2 if given.quick else 5)
    rows = [
        row
        for name, section in _SECTIONS.items()
        if not given.sections or name in given.sections
        for row in section(bench)
    ]
    print(report.table(rows))
    missed = sum(not row.met for row in rows)
    print(
        f"\n{missed} of {sum(bool(row.target) for row in rows)} targets missed"
        if missed
        else "\nall targets met"
    )
    if given.write is not None:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(
            report.page(rows, folder=bench.folder, repetitions=bench.repetitions, load=load), encoding="utf-8"
        )
        print(f"written to {given.write}")


if __name__ == "__main__":
    main()
