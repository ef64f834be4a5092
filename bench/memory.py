"""How much memory is taken: by a long run, and by a large state. Each is measured in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast
from bench import workload
from bench.measure import Bench, Row, megabytes, note

_LONG = 10_000
_LARGE = 97_500  # documents of 1 KB: 100 MB


def memory(bench: Bench) -> Iterator[Row]:
    """10,000 versions through `edit`, and a state of 100 MB."""
    note(f"memory of {_LONG:,} versions")
    with bench.place() as folder:
        plain = _child(folder, "plain_messages")
        ours = _child(folder, "edited_messages")
    grown, state = ours["end"] - ours["start"], plain["end"] - plain["start"]
    yield Row(
        f"{_LONG:,} versions, edit", "memory beyond the state", (grown - state) / 1e6, "MB",
        f"grew by {megabytes(grown)}; the same messages in a plain list {megabytes(state)}", at_most=20,
    )  # fmt: skip
    note("memory of a state of 100 MB")
    with bench.place() as folder:
        plain = _child(folder, "plain_documents")
        written = _child(folder, "committed_documents")
        read = _child(folder, "read_documents")
    size = plain["size"]
    beside = f"as plain dicts {megabytes(plain['end'])}, interpreter {megabytes(plain['start'])}"
    for name, found in (("commit and edit", written), ("open and read", read)):
        yield Row(
            "a state of 100 MB", f"{name}: peak ÷ state", found["end"] / size, "×",
            f"peak {megabytes(found['end'])}; {beside}", at_most=3,
        )  # fmt: skip


def plain_messages(_: Path) -> dict[str, int]:
    """The messages of a long run in an ordinary list."""
    warm_up()
    start = peak()
    said: list[Any] = []
    said.extend(_long())
    return {"start": start, "end": peak()}


def edited_messages(folder: Path) -> dict[str, int]:
    """A long run, one message per version."""
    warm_up()
    hf = holdfast.open(folder / "long.db", durability="fast")
    log = hf.history("run")
    log.commit({"messages": []})
    start = peak()
    for message in _long():
        with log.edit(step="chat") as draft:
            draft["messages"].append(message)
    return {"start": start, "end": peak()}


def plain_documents(_: Path) -> dict[str, int]:
    """A large state as ordinary dicts."""
    warm_up()
    start = peak()
    state = {"documents": workload.documents(_LARGE)}
    end = peak()
    return {"start": start, "end": end, "size": workload.json_size(state)}


def committed_documents(folder: Path) -> dict[str, int]:
    """A large state, made, committed, then changed in one place. The maker holds on to it."""
    state = {"documents": workload.documents(_LARGE)}
    with holdfast.open(folder / "large.db") as hf:
        log = hf.history("run")
        log.commit(state)
        with log.edit() as draft:
            draft["documents"]["doc-000007"]["seen"] = True
    return {"start": 0, "end": peak()}


def read_documents(folder: Path) -> dict[str, int]:
    """A large state, read from its file."""
    with holdfast.open(folder / "large.db") as hf:
        state = hf.history("run").head.state
        if len(state["documents"]) != _LARGE:
            raise AssertionError("documents are missing")
    return {"start": 0, "end": peak()}


def peak() -> int:
    """The most memory that this process has had, in bytes.

    Linux hands the peak of `getrusage` on from the parent to a child, so it is read from /proc there.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def warm_up() -> None:
    """Make the vocabulary, which is not to be counted."""
    workload.messages(1)


def _long() -> Iterator[workload.Message]:
    for seed in range(_LONG // 100):
        yield from workload.messages(100, seed=seed)


def _child(folder: Path, what: str) -> dict[str, int]:
    """Run one of the functions above in a new process."""
    command = [sys.executable, "-m", "bench.memory", what, str(folder)]
    found: dict[str, int] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


if __name__ == "__main__":
    _WORK = (plain_messages, edited_messages, plain_documents, committed_documents, read_documents)
    print(json.dumps({work.__name__: work for work in _WORK}[sys.argv[1]](Path(sys.argv[2]))))
