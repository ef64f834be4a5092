"""A run of which one branch waits is handed back with what the others have to do."""

from __future__ import annotations

import threading
from pathlib import Path

import holdfast
from holdfast import step, workflow

begun, may_end = threading.Event(), threading.Event()
done: list[int] = []


@step(name="handing_work")
def work(number: int) -> int:
    begun.set()
    may_end.wait(20)
    done.append(number)
    return number


def _wait() -> None:
    holdfast.sleep(86_400)


def _work() -> None:
    for number in range(3):
        work(number)


@workflow(name="handing_back")
def flow() -> None:
    holdfast.parallel(_wait, _work)


def test_stopping_worker_does_not_wait_for_a_sleeping_branch(tmp_path: Path) -> None:
    begun.clear()
    may_end.clear()
    done.clear()
    with holdfast.open(tmp_path / "runs.db") as hf:
        run = hf.enqueue(flow)
        worker = hf.worker(monitor=False).start()
        assert begun.wait(20)
        worker.stop()
        may_end.set()
        assert worker.join(20)
        assert run.status == "queued"
        with hf.worker(monitor=False):
            until = threading.Event()
            for _ in range(400):
                if run.status == "suspended":
                    break
                until.wait(0.02)
        assert run.status == "suspended"
        assert sorted(set(done)) == [0, 1, 2]
