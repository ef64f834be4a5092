"""The end of automatic snapshots: timers that are stopped, abandoned, or forked."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import autosave_fixtures
import pytest
from autosave_fixtures import NEVER, SOON, Plain, Reads, versions

import autosave_timers
import holdfast
from autosave_timers import threads, timers, warnings
from holdfast import History
from holdfast.compat.autosave import autosave
from patience import until

file, hf, log, no_timer_is_left = (
    autosave_fixtures.file,
    autosave_fixtures.hf,
    autosave_fixtures.log,
    autosave_timers.no_timer_is_left,
)


def test_stop_ends_the_timer_and_may_be_repeated(log: History) -> None:
    saver = autosave({}, log, every=NEVER)
    saver.stop()
    for _ in range(3):
        assert saver.start() is saver.start() is saver
        [timer] = timers()
        assert all(thread.daemon for thread in threads())
        saver.stop()
        saver.stop()
        assert not timer.is_alive()
    assert not versions(log)


@pytest.mark.slow
def test_stopped_timer_writes_nothing_and_can_be_restarted(log: History) -> None:
    reads = Reads({"n": 0})
    saver = autosave(reads.read, log, every=0.0005)
    for _ in range(50):
        saver.start()
        goal = reads.count + 1
        while reads.count < goal:
            reads.state["n"] += 1
        assert len(timers()) == 1
        saver.stop()
        written = len(versions(log))
        reads.state["n"] += 1
        assert len(versions(log)) == written
    assert versions(log)


def test_timer_stopped_during_a_read_writes_nothing(log: History) -> None:
    lock = threading.Lock()
    waiting = threading.Event()

    class Watched:
        def __enter__(self) -> None:
            waiting.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    saver = autosave({"n": 1}, log, every=SOON, lock=Watched())
    with lock:
        saver.start()
        assert waiting.wait(60)
        [timer] = timers()
        saver.stop()
    assert not timer.is_alive()
    assert not versions(log)


def test_stop_waits_for_a_write_in_progress(file: Path) -> None:
    writing, gate = threading.Event(), threading.Event()

    def clock() -> float:
        writing.set()
        assert gate.wait(60)
        return 1_700_000_000.0

    with holdfast.open(file, clock=clock) as hf:
        log = hf.history("loop")
        saver = autosave({"n": 1}, log, every=SOON).start()
        assert writing.wait(60)
        found: list[int] = []

        def stop() -> None:
            saver.stop()
            found.append(len(versions(log)))

        stoppers = [threading.Thread(target=stop) for _ in "ab"]
        for stopper in stoppers:
            stopper.start()
        stoppers[0].join(0.2)
        gate.set()
        for stopper in stoppers:
            stopper.join(60)
        assert found == [1, 1]


def test_read_may_stop_its_own_timer(log: History) -> None:
    def read() -> dict[str, int]:
        saver.stop()
        return {"n": 1}

    saver = autosave(read, log, every=SOON)
    saver.start()
    until(lambda: not timers())
    assert not versions(log)


def test_block_exit_does_not_stop_a_timer_started_explicitly(log: History) -> None:
    saver = autosave({}, log, every=NEVER).start()
    with saver:
        pass
    assert saver._timer in timers()
    with saver, saver:
        saver.stop()
        until(lambda: not timers())
        with saver:
            assert not timers()
    with saver:
        assert len(timers()) == 1
    until(lambda: not timers())


def test_finished_saver_keeps_nothing_alive(log: History, caplog: pytest.LogCaptureFixture) -> None:
    one = Plain("win", [])
    saver = autosave(one, log, every=SOON)
    with pytest.raises(ValueError, match="no"), saver:  # noqa: PT012
        until(lambda: versions(log))
        one.goal = object()  # type: ignore[assignment]
        until(lambda: warnings(caplog))
        raise ValueError("no")
    until(lambda: not timers())
    gone = weakref.ref(one)
    caplog.clear()
    del one, saver
    gc.collect()
    assert gone() is None


def run_script(file: Path, body: str) -> subprocess.CompletedProcess[str]:
    start = "import os, threading, holdfast\nfrom holdfast.compat.autosave import autosave\n"
    return subprocess.run(
        # From 3.12 on, Python warns of a fork in a process that has threads; here that is wanted.
        [
            sys.executable,
            "-W",
            "ignore:This process:DeprecationWarning",
            "-c",
            f"{start}file = {str(file)!r}\n{body}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_running_timer_does_not_keep_the_interpreter_alive(file: Path) -> None:
    ended = run_script(
        file,
        """
import atexit

def wait_for_the_timer():
    # Runs after the store was closed: it was registered before.
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-autosave"):
            thread.join(1)

atexit.register(wait_for_the_timer)
state = {"n": 0}
log = holdfast.open(file).history("loop")
autosave(state, log, every=0.001).start()
while True:
    state["n"] += 1
    try:
        if log.head.number >= 5:
            break
    except holdfast.NotFound:
        pass
print("end")
""",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
    with holdfast.open(file) as hf:
        assert hf.verify().ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_process_has_no_timer_until_it_starts_one(file: Path) -> None:
    ended = run_script(
        file,
        """
import signal
state = {"n": 0}
inside, gate = threading.Event(), threading.Event()
log = holdfast.open(file).history("loop")
def read():
    inside.set()
    gate.wait()
    return state
saver = autosave(read, log, every=0.001).start()
inside.wait()
# As a timer that is writing would leave it.
holder = threading.Thread(target=saver._timer.writing.acquire)
holder.start()
holder.join()
child = os.fork()
if not child:
    signal.alarm(30)
    gate = threading.Event()
    assert threading.active_count() == 1
    gate.set()
    saver.stop()
    with saver:
        state["n"] = 1
    assert log.head.state == {"n": 1}
    saver.start()
    state["n"] = 2
    while log.head.state != {"n": 2}:
        pass
    os._exit(0)
os._exit(os.waitpid(child, 0)[1] != 0)
""",
    )
    assert (ended.returncode, ended.stderr) == (0, "")
