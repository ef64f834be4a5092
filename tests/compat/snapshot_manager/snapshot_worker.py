"""A process that takes snapshots of one run: python snapshot_worker.py STORE NAME COUNT"""

from __future__ import annotations

import sys

from holdfast.snapshots import SnapshotManager


def main(where: str, name: str, count: int) -> None:
    with SnapshotManager(4, where, strict=True) as manager:
        print("ready", flush=True)
        sys.stdin.readline()
        for index in range(count):
            made = manager.create_snapshot("run-1", {"by": name, "n": index, "twice": [name, index]})
            assert made is not None
            print(made.number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
