"""A process that commits to a PostgreSQL store in several threads, and reports every acknowledged commit.

    python postgres_committer.py URL NAME THREADS

Each thread takes turns between a run of its own, in which it counts, and a run that all share, to which it appends.
Ends when its input does.
"""

from __future__ import annotations

import os
import sys
import threading

import holdfast


def main(url: str, name: str, threads: int) -> None:
    hf = holdfast.open(url, timeout=60)
    stop = threading.Event()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        own, shared = hf.history(f"{name}-{number}"), hf.history("shared")
        count = 0
        try:
            while not stop.is_set():
                count += 1
                token = f"{name}-{number}-{count}"
                with own.edit() as state:
                    state["count"] = state.get("count", 0) + 1
                with shared.edit() as state:
                    state["tokens"].append(token)
                # In one piece: threads share the stream.
                os.write(1, f"{token}\n".encode())
        except BaseException as error:
            failed.append(error)
            stop.set()
            raise

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    sys.stdin.read()
    stop.set()
    for worker in workers:
        worker.join()
    hf.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
