"""An order that cannot be shipped is undone, newest step first, each step once, despite a crash and a failure.

    python examples/order_with_compensation.py [FOLDER]

The goods are reserved, the card is charged, and then the carrier refuses. A rollback to the first version runs the
compensation of each step. Its process is killed after the bank has paid back and before Holdfast has recorded that; the
second process finds the warehouse closed; the third finishes the rollback. Then the order runs again.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import holdfast
from holdfast import CompensationFailed, step, workflow

RUN = "order-7"


# External services. They remember idempotency keys and do nothing twice.


def world(what: str) -> None:
    ledger, key = Path(sys.argv[1]) / "ledger.txt", holdfast.idempotency_key()
    known = ledger.exists() and key in ledger.read_text()
    if not known:
        with ledger.open("a") as book:
            book.write(f"{what:8} {key}\n")
    print(f"  {what}{' (known key: already done)' if known else ''}", flush=True)


# Steps and their compensations. A compensation gets the result of its step, then the arguments.


def release(reservation: str) -> None:
    if sys.argv[2:] == ["closed"]:
        raise ConnectionError("the warehouse is closed")
    world("release")


def refund(receipt: str, amount: int) -> None:
    world("refund")
    if sys.argv[2:] == ["killed"]:
        os.kill(os.getpid(), signal.SIGKILL)


@step(compensate=release)
def reserve(item: str) -> str:
    world("reserve")
    return f"reservation of {item}"


@step(compensate=refund)
def charge(amount: int) -> str:
    world("charge")
    return f"receipt for {amount} €"


@step
def ship(item: str) -> str:
    raise RuntimeError("the carrier does not take wet goods")


def ship_by_boat(item: str) -> str:
    world("ship")
    return f"{item}, by boat"


@workflow
def order(item: str, amount: int) -> list[str]:
    return [reserve(item), charge(amount), ship(item)]


def undo(folder: Path) -> None:
    """Roll the run back. Call it again until it succeeds."""
    with holdfast.open(folder / "runs.db") as hf:
        try:
            hf.rollback(RUN, to=1, resume=False, reason="it cannot be shipped")
        except CompensationFailed as error:
            print(f"  {error.__cause__}: the rollback is unfinished", flush=True)


def main(folder: Path) -> None:
    with holdfast.open(folder / "runs.db") as hf:
        print("An order:")
        try:
            hf.run(order, "kelp", 20, run_id=RUN)
        except RuntimeError as error:
            print(f"  {hf.get(RUN).status}: {error}")

    for number, fate in enumerate(("killed", "closed", "well"), 1):
        print(f"Process {number} rolls it back:", flush=True)
        ended = subprocess.run([sys.executable, __file__, folder, fate], check=False)
        if ended.returncode == -signal.SIGKILL:
            print("  💥 kill -9")

    with holdfast.open(folder / "runs.db") as hf:
        print(f"Back at version {hf.get(RUN).head.number}. The same order with another carrier:")
        run = hf.resume(RUN, overrides={"ship": ship_by_boat})
        print(f"  {run.status}: {run.result}")
        for version in reversed(run.history().versions()):
            line = f"version {version.number}  after {version.parent or '—'}  timeline {version.timeline}"
            print(f"  {line}  {version.step or version.kind}")
    done = [line.split()[0] for line in (folder / "ledger.txt").read_text().splitlines()]
    print(f"All effects: {', '.join(done)}")


if __name__ == "__main__":
    sys.argv[1:] = sys.argv[1:] or [tempfile.mkdtemp(prefix="holdfast-")]
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:]:
        undo(where)
    elif (where / "runs.db").exists():
        sys.exit(f"there are runs in {where} already: name another folder")
    else:
        main(where)
