"""Holdfast in a minute: an agent plans a trip, goes wrong, and is put back on its feet.

`python -m holdfast.demo [FILE]` keeps the history in a new SQLite file and says in plain words what happened.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import holdfast
from holdfast import History, Holdfast


def main() -> None:
    """Tell the story on a new file: the one named, or one in a new temporary folder."""
    given = sys.argv[1:]
    path = Path(given[0]) if given else Path(tempfile.mkdtemp(prefix="holdfast-")) / "runs.db"
    if path.exists():
        sys.exit(f"{path} exists, and the demo starts from nothing: name a file that does not")
    print("Holdfast keeps every step of an agent as a version that you can go back to.")
    with holdfast.open(path) as hf:
        log = hf.history("trip")
        work(log)
        look(log)
        go_back(log)
        fork(hf)
    come_again(path)
    print(NEXT.format(python=sys.executable, path=path))


def work(log: History) -> None:
    """Each step changes the state as if it were an ordinary dict, and becomes a version."""
    log.commit({"messages": [], "plan": {"city": None, "hotel": None, "budget": 600}}, step="start")
    with log.edit(step="ask") as state:
        state["messages"].append({"role": "user", "content": "A weekend in Lisbon, please."})
        state["plan"]["city"] = "Lisbon"
    with log.edit(step="search", tags=["good"]) as state:
        state["messages"].append({"role": "assistant", "content": "Casa Azul has a room for 180."})
        state["plan"]["hotel"] = {"name": "Casa Azul", "price": 180}
    with log.edit(step="upgrade") as state:
        state["messages"].append({"role": "assistant", "content": "I found something nicer!"})
        state["plan"]["hotel"] = {"name": "Grand Palace", "price": 950}
    tell(
        "The agent works. Each step is a version, safe on disk when the step ends:",
        'log.edit(step="…")',
        listed(log),
    )


def look(log: History) -> None:
    """Something is wrong: the hotel costs more than the budget. What changed, and who did it?"""
    changes = [change.summary for change in log.diff(3, 4).changes]
    tell("The hotel is over the budget! What changed since version 3?", "log.diff(3, 4)", changes)
    tell("Which step set that price?", 'log.blame("plan.hotel.price")', [log.blame("plan.hotel.price")])


def go_back(log: History) -> None:
    """Rollback moves the head, on a new timeline, and deletes nothing."""
    log.rollback(to="good", reason="over the budget")
    with log.edit(step="book") as state:
        state["messages"].append({"role": "assistant", "content": "Casa Azul is booked."})
        state["plan"]["booked"] = True
    abandoned = log.at(4).state["plan"]["hotel"]["name"]
    tell(
        "So it goes back to the version tagged “good”, and on from there. Nothing is lost:",
        'log.rollback(to="good")',
        [*listed(log), f"version 4 can still be read: {abandoned}"],
    )


def fork(hf: Holdfast) -> None:
    """A fork tries something else beside the first run, from any version of it."""
    other = hf.fork("trip@3", "trip-by-train")
    with other.edit(step="book") as state:
        state["plan"]["travel"] = "night train"
    changes = hf.diff("trip", "trip-by-train").summary()
    tell(
        "Another idea is tried from version 3, as a run of its own. How it differs from the first:",
        'hf.fork("trip@3", "trip-by-train"); hf.diff("trip", "trip-by-train")',
        changes,
    )


def come_again(path: Path) -> None:
    """Another process finds everything again, and can prove that no bit of it has changed."""
    with holdfast.open(path) as hf:
        report = hf.verify()
        sound = "every hash is right" if report.ok else "something is damaged"
        tell(
            "The file is closed and opened again. Everything is there:",
            "hf.verify()",
            [f"{report.runs} runs, {report.versions} versions: {sound}"],
        )


def listed(log: History) -> list[str]:
    """A line for each version, oldest first."""
    head = log.head.number
    return [
        f"version {version.number}  {version.step or '':8} timeline {version.timeline}"
        + "".join(f"  “{tag}”" for tag in version.tags)
        + ("  ← head" if version.number == head else "")
        for version in reversed(log.versions())
    ]


def tell(what: str, call: str, lines: Iterable[object]) -> None:
    """A sentence, the call that did it, and below it what there is to see."""
    print(f"\n{what}\n  > {call}")
    for line in lines:
        print(f"    {line}")


NEXT = """
Your turn, on the same file:
  $ {python}
  >>> import holdfast
  >>> log = holdfast.open("{path}").history("trip")
  >>> log.at(2).state
  >>> with log.edit(step="mine") as state: state["plan"]["budget"] = 700
  ...
  >>> print(log.diff("~1", "head"))"""

if __name__ == "__main__":
    main()
