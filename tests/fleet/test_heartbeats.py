"""Signs of life: told while there is something to tell, taken away afterwards, also for those that died."""

from __future__ import annotations

import os
import threading
from itertools import pairwise

import monitor_stage as s
import msgspec
import pytest
from monitor_stage import Stage, control

from holdfast import Watchdog
from holdfast.execution import heartbeat
from holdfast.execution.heartbeat import Heartbeat, heartbeat_name, read_heartbeat

stage = s.stage
pytest_plugins = ["postgres_fixtures"]
HOUR = 3600.0


def names(stage: Stage) -> list[str]:
    return stage.hf._store.value_names("pulse/")


def begun(stage: Stage) -> str:
    """A run that hangs, and the name under which its engine tells of it."""
    control.hangs["hang"] = 1
    stage.begin(s.stuck, watchdog=Watchdog(heartbeat_timeout=10 * HOUR))
    s.wait_until(lambda: "hang" in control.begun)
    stage.hf._engine.keeper.beat()
    return heartbeat_name(stage.hf._engine.owner)


def test_heartbeat_is_not_written_without_watched_runs(stage: Stage) -> None:
    services = stage.hf._engine
    services.keeper.beat()
    assert names(stage) == []
    name = begun(stage)
    assert names(stage) == [name]
    stage.join()
    services.keeper.beat()
    assert names(stage) == []
    end = stage.hf._store.journal_end()
    for _ in range(3):
        services.keeper.beat()
    assert (names(stage), stage.hf._store.journal_end()) == ([], end)
    # And speaks again when there is.
    control.reset()
    control.hangs["hang"] = 1
    stage.begin(s.stuck, run_id="second")
    s.wait_until(lambda: "hang" in control.begun)
    services.keeper.beat()
    assert names(stage) == [name]


def test_heartbeat_is_removed_when_the_engine_closes(stage: Stage) -> None:
    if stage.where == ":memory:":
        pytest.skip("what is gone with its engine")
    begun(stage)
    with stage.open() as other:
        stage.hf._engine.close()
        assert other._store.value_names("pulse/") == []
        # What is still on its way comes too late.
        stage.hf._engine.heartbeats.beat()
        assert other._store.value_names("pulse/") == []


def test_heartbeat_of_a_dead_process_is_removed_later(stage: Stage) -> None:
    store = stage.hf._store
    now = int(stage.seconds * 1e6)
    for number in range(450):
        store.set_value(f"pulse/dead{number:03}", msgspec.msgpack.encode(Heartbeat(now)), 0)
    store.set_value("pulse/nonsense", b"\xc1", 0)
    store.set_value("pulses", b"something else", 0)
    stage.look(after=HOUR)
    assert len(names(stage)) == 451
    name = begun(stage)
    left = [452]
    while len(left) < 8:
        stage.look(after=61)
        left.append(len(names(stage)))
    # A bounded number each time, and in the end only who lives, and what cannot be read.
    assert all(before - after <= 200 for before, after in pairwise(left))
    assert sorted(names(stage)) == sorted([name, "pulse/nonsense"])
    assert store.value("pulses") is not None


def test_heartbeat_is_written_again_after_it_was_removed(stage: Stage) -> None:
    name = begun(stage)
    found = stage.hf._store.value(name)
    assert found is not None
    stage.hf._store.drop_value(name, found[1])
    stage.hf._engine.keeper.beat()
    said = read_heartbeat(stage.hf._store, stage.hf._engine.owner)
    assert said is not None
    assert len(said.runs) == 1


def test_heartbeat_last_write_has_the_latest_state(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that renews leases and a monitor tell at once: neither is refused, none is late."""
    begun(stage)
    services = stage.hf._engine
    inside, go_on = threading.Event(), threading.Event()
    collected = heartbeat.collected

    def slow(given: object) -> Heartbeat:
        found = collected(services)
        if threading.current_thread() is first:
            inside.set()
            assert go_on.wait(s.PATIENCE)
        return found

    monkeypatch.setattr(heartbeat, "collected", slow)
    first = threading.Thread(target=services.heartbeats.beat)
    first.start()
    assert inside.wait(s.PATIENCE)
    stage.seconds += 5
    second = threading.Thread(target=services.heartbeats.beat)
    second.start()
    go_on.set()
    first.join(s.PATIENCE)
    second.join(s.PATIENCE)
    said = read_heartbeat(stage.hf._store, services.owner)
    assert said is not None
    assert said.at == int(stage.seconds * 1e6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_heartbeat_of_a_parent_survives_the_end_of_a_forked_child(stage: Stage) -> None:
    if stage.where == ":memory:":
        pytest.skip("a child has a store of its own")
    name = begun(stage)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            stage.hf._engine.keeper.beat()
            stage.hf._engine.heartbeats.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert names(stage) == [name]
