"""A process that commits: `python committing_process.py FILE NUMBER ROUNDS`.

It does one job after the other. Before each it waits for a line on its standard input, so that all processes
begin together; after each it prints the versions that were acknowledged.
"""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast
from holdfast import History, MergeConflict, StaleVersion, thaw


def append(log: History, me: int, round_: int) -> int:
    """Append to one list that all share."""
    with log.edit(step=f"worker-{me}") as state:
        state["list"].append(f"{me}.{round_}")
    return 0


def expected(log: History, me: int, round_: int) -> int:
    """Take the next number, or lose it and try again."""
    while True:
        head = log.head
        state = thaw(head.state)
        state["list"].append(f"{me}.{round_}")
        try:
            return log.commit(state, expected=head, step=f"worker-{me}").number
        except StaleVersion:
            continue


def plain(log: History, me: int, round_: int) -> int:
    """A plain state with a change of one's own place: rebased by a merge."""
    state = thaw(log.head.state)
    state["by"][str(me)] = round_
    state["list"].append(f"{me}.{round_}")
    return log.commit(state, step=f"worker-{me}").number


def conflict(log: History, me: int, round_: int) -> int:
    """Change one place in all processes: the second commit is refused."""
    while True:
        state = thaw(log.head.state)
        state["owner"] = f"{me}.{round_}"
        try:
            return log.commit(state, step=f"worker-{me}").number
        except MergeConflict:
            continue


HOW = {way.__name__: way for way in (append, expected, plain, conflict)}


def jobs(me: int) -> list[tuple[str, str]]:
    """What a process does, in order: every way on a run that all share, then one on a run of its own."""
    return [*((how, f"shared-{how}") for how in HOW), ("expected", f"own-{me}")]


def main(file: str, number: str, rounds: str) -> None:
    me = int(number)
    with holdfast.open(Path(file), durability="fast") as hf:
        print("ready", flush=True)
        for how, run in jobs(me):
            sys.stdin.readline()
            log = hf.history(run)
            print(*(HOW[how](log, me, round_) for round_ in range(int(rounds))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
