"""Researchers work in parallel on one state; their changes are merged.

    python examples/parallel_research.py [FOLDER]

Each step works on its own draft of the state, as it was when the step was called. When the step ends, its changes are
merged: appends to one list are concatenated, changes of different keys are combined. Two values for one place are a
conflict. It raises an error that names both, unless the step has a function that decides.
"""

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import holdfast
from holdfast import MergeConflict, step, workflow

LIBRARY = {
    "kelp": (0.3, 300),
    "urchins": (0.2, 900),
    "otters": (0.1, 500),
}  # topic: seconds to find, words found


# Coroutines: each adds its findings and may change the best topic so far


def the_richer(path: tuple[Any, ...], before: str | None, ours: str, theirs: str) -> str:
    """Decide a conflict, given its path, the value before, and the two new values."""
    return max(ours, theirs, key=lambda topic: LIBRARY[topic][1])


@step(key="topic", on_conflict=the_richer)
async def look_up(topic: str) -> int:
    state = holdfast.state()
    seconds, words = LIBRARY[topic]
    await asyncio.sleep(seconds)
    state["found"].append(topic)
    state["words"][topic] = words
    if state["best"] is None or words > state["words"][state["best"]]:
        state["best"] = topic  # in this step's draft, in which nothing was found yet
    return words


@workflow
async def research() -> int:
    return sum(await asyncio.gather(*(look_up(topic) for topic in LIBRARY)))


# Threads: two editors write one title

at_once = threading.Barrier(2)  # makes the conflict certain: both have read before one writes


def write_title(title: str) -> str:
    state = holdfast.state()
    at_once.wait(timeout=10)
    state["title"] = title
    return title


def the_longer(path: tuple[Any, ...], before: str | None, ours: str, theirs: str) -> str:
    return max(ours, theirs, key=len)


stubborn = step(name="stubborn editor")(write_title)
polite = step(name="polite editor", on_conflict=the_longer)(write_title)


@workflow
def entitle(peacefully: bool) -> list[str]:
    editor = polite if peacefully else stubborn
    titles: list[str] = holdfast.parallel((editor, "Kelp"), (editor, "Kelp and its friends"))
    return titles


def main(folder: Path) -> None:
    with holdfast.open(folder / "runs.db") as hf:
        run = hf.run(research, run_id="research", state={"found": [], "words": {}, "best": None})
        print("Three researchers, the fastest first:")
        for version in reversed(run.history().versions(kind="step")):
            name, best = version.address or "", version.get("best")
            print(f"  version {version.number}  {name:16}  best so far: {best}")
        print(f"Merged: {dict(run.state['words'])}, {run.result} words")

        try:
            hf.run(entitle, False, run_id="stubborn", state={"title": None})
        except MergeConflict as error:
            print(f"\nTwo editors, one title: the run has {hf.get('stubborn').status}")
            print(f"  conflict at “{error.details['path']}”; the first write is recorded")

        run = hf.run(entitle, True, run_id="polite", state={"title": None})
        print(
            f"With a step that decides conflicts: the run is {run.status}, the title is “{run.state['title']}”"
        )


if __name__ == "__main__":
    where = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="holdfast-"))
    where.mkdir(parents=True, exist_ok=True)
    if (where / "runs.db").exists():
        sys.exit(f"there are runs in {where} already: name another folder")
    main(where)
