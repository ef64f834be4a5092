"""Applications of Burr as runs: killed, resumed, continued from earlier actions, concurrent."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from burr.core import Application, State, action, default
from burr_apps import Builder, build, builder, persisted, steps

import holdfast
from database import Database
from holdfast import AlreadyExists, Holdfast, Retention, StaleVersion, UnsupportedValue
from holdfast.integrations.burr import AsyncHoldfastPersister, HoldfastPersister

pytest_plugins = ["postgres_fixtures"]


@dataclass
class Order:
    number: int = 1


@action(reads=["count", "log"], writes=["count", "log"])
async def count_later(state: State[Any]) -> State[Any]:
    await asyncio.sleep(0)
    return state.update(count=state["count"] + 1).append(log=f"count {state['count'] + 1}")


def test_application_resumes_with_its_next_action(path: Path) -> None:
    with holdfast.open(path) as hf:
        assert steps(build(HoldfastPersister(hf)), 3) == ["count", "report", "count"]
    with holdfast.open(path) as hf:
        app = build(HoldfastPersister(hf))
        assert (app.state["count"], app.sequence_id, type(app.state["log"])) == (2, 2, list)
        assert steps(app, 1) == ["report"]
        log = hf.history("burr/app")
        assert [version.step for version in log.versions()][::-1] == ["count", "report", "count", "report"]
        assert log.head.get("state.log") == ["count 1", "report 1", "count 2", "report 2"]
        assert [change.path for change in log.diff(3, 4).changes if "log" in change.path] != []
        assert len(log.timelines()) == 1
        assert hf.verify()


_KILLED = """
import os, signal, sys, holdfast
from burr.core import ApplicationBuilder, action
from holdfast.integrations.burr import HoldfastPersister

@action(reads=["count"], writes=["count"])
def work(state):
    if os.environ.get("DIE_AT") == str(state["count"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return state.update(count=state["count"] + 1)

@action(reads=["count"], writes=[])
def rest(state):
    return state

with holdfast.open(sys.argv[1]) as hf:
    persister = HoldfastPersister(hf)
    app = (
        ApplicationBuilder().with_actions(work=work, rest=rest)
        .with_transitions(("work", "rest"), ("rest", "work")).with_identifiers(app_id="app")
        .initialize_from(persister, resume_at_next_action=True, default_state={"count": 0}, default_entrypoint="work")
        .with_state_persister(persister).build()
    )
    while app.state["count"] < 3:
        app.step()
"""


def test_application_resumes_after_a_kill(path: Path) -> None:
    for die_at, code in (("1", -signal.SIGKILL), ("2", -signal.SIGKILL), ("-", 0)):
        command = [sys.executable, "-c", _KILLED, str(path)]
        done = subprocess.run(command, env={"DIE_AT": die_at}, timeout=60, check=False)
        assert done.returncode == code
    with holdfast.open(path) as hf:
        log = hf.history("burr/app")
        assert [version.step for version in log.versions()][::-1] == ["work", "rest", "work", "rest", "work"]
        assert [version.get("state.count") for version in log.versions()][::-1] == [1, 1, 2, 2, 3]
        assert [version.get("sequence_id") for version in log.versions()][::-1] == [0, 1, 2, 3, 4]


def test_failed_action_is_recorded_and_retried(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    app = build(persister)
    steps(app, 1)
    app.update_state(app.state.update(broken=True))
    with pytest.raises(RuntimeError, match="no printer"):
        app.step()
    found = persister.load(None, "app")
    assert found is not None
    assert (found["status"], found["position"], found["sequence_id"]) == ("failed", "report", 1)
    assert hf.runs()[0].status == "failed"
    anew = build(HoldfastPersister(hf))
    anew.update_state(anew.state.update(broken=False))
    assert steps(anew, 2) == ["report", "count"]
    assert hf.runs()[0].status == "running"
    sequence = [version.get("sequence_id") for version in hf.history("burr/app").versions()]
    assert sequence == [3, 2, 1, 0]


def test_load_of_an_earlier_sequence_id_continues_on_a_timeline(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    steps(build(persister), 6)
    for number in range(6):
        found = persister.load(None, "app", number)
        assert found is not None
        assert (found["sequence_id"], len(found["state"]["log"])) == (number, number + 1)
    assert persister.load(None, "app", 6) is None
    app = build(persister, sequence_id=2)
    assert app.state["count"] == 2
    assert steps(app, 1) == ["report"]
    log = hf.history("burr/app")
    assert [(line.number, line.parent) for line in log.timelines()] == [(1, None), (2, 3)]
    assert [version.get("sequence_id") for version in log.ancestors()] == [3, 2, 1, 0]
    assert persister.load(None, "app", 5) is None
    assert len(log.at(6).get("state.log")) == 6
    steps(app, 2)
    found = persister.load(None, "app", 4)
    assert found is not None
    assert found["state"]["log"][-1] == "count 3"


def test_application_continues_from_a_rollback(hf: Holdfast) -> None:
    steps(build(HoldfastPersister(hf)), 4)
    hf.rollback("burr/app", to=1, reason="miscounted")
    app = build(HoldfastPersister(hf))
    assert (app.state["count"], steps(app, 1)) == (1, ["report"])
    hf.fork("burr/app", "burr/twin", at=2)
    twin = build(HoldfastPersister(hf), "twin")
    assert (twin.state["log"], steps(twin, 1)) == (["count 1", "report 1"], ["count"])
    assert set(HoldfastPersister(hf).list_app_ids(None)) == {"app", "twin"}
    assert hf.history("burr/app").head.get("state.count") == 1


def test_running_application_continues_from_its_own_state(hf: Holdfast) -> None:
    """A rollback affects the next process: a running one continues its own timeline, and both stay readable."""
    app = build(HoldfastPersister(hf))
    steps(app, 4)
    log = hf.history("burr/app")
    hf.rollback("burr/app", to=1)
    steps(app, 1)
    assert [version.get("sequence_id") for version in log.ancestors()] == [4, 3, 2, 1, 0]
    assert build(HoldfastPersister(hf)).sequence_id == 4
    hf.rollback("burr/app", to=1)
    assert build(HoldfastPersister(hf)).sequence_id == 0


def test_burr_fork_is_another_run(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    steps(build(persister), 5)
    fork = build(persister, "other", fork_from_app_id="app", fork_from_sequence_id=2)
    assert (fork.state["count"], steps(fork, 2)) == (2, ["report", "count"])
    assert hf.history("burr/other").head.get("sequence_id") == 4
    assert hf.history("burr/app").head.get("state.count") == 3


def test_application_stays_on_its_timeline_if_its_persister_loads_an_older_state(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    app = build(persister)
    steps(app, 6)
    log = hf.history("burr/app")

    def look() -> None:
        for number in (2, 5, 0, 99):
            persister.load(None, "app", number)
        persister.load(None, None)

    def fork() -> None:
        steps(build(persister, f"fork-{app.sequence_id}", fork_from_app_id="app", fork_from_sequence_id=2), 1)

    for disturb in (look, fork):
        disturb()
        steps(app, 1)
        # An application that was resumed and has saved nothing yet.
        app = build(persister)
        disturb()
        steps(app, 1)
    assert len(log.timelines()) == 1
    assert [version.get("sequence_id") for version in log.ancestors()] == [*range(9, -1, -1)]


def test_new_application_of_a_persister_continues_the_timeline_of_another_writer(hf: Holdfast) -> None:
    one, two = HoldfastPersister(hf), HoldfastPersister(hf)
    steps(build(one), 2)
    apps = build(one), build(two)
    for app in apps:
        steps(app, 1)
    log = hf.history("burr/app")
    assert [(line.number, line.parent) for line in log.timelines()] == [(1, None), (2, 2)]
    # Both writers have saved sequence id 2; the state that `one` loads is that of `two`.
    steps(build(one), 1)
    assert [version.number for version in log.ancestors()] == [5, 4, 2, 1]


def test_action_that_could_not_be_saved_leaves_a_gap(hf: Holdfast) -> None:
    steps(build(HoldfastPersister(hf)), 3)
    persister = HoldfastPersister(hf)
    app = build(persister)
    other = build(HoldfastPersister(hf))
    app.update_state(app.state.update(extra=object()))
    with pytest.raises(UnsupportedValue):
        app.step()
    steps(other, 1)
    persister.load(None, "app", 0)
    app.update_state(app.state.update(extra=None))
    steps(app, 1)
    log = hf.history("burr/app")
    assert [version.get("sequence_id") for version in log.ancestors()] == [4, 2, 1, 0]


def test_persister_continues_no_older_state_after_its_own_was_pruned(hf: Holdfast) -> None:
    log = hf.history("burr/app")
    one, two = HoldfastPersister(hf), HoldfastPersister(hf)
    for number in range(3):
        one.save(None, "app", number, "count", State({"writer": 1}), "completed")
    two.load(None, "app", 0)
    two.save(None, "app", 1, "count", State({"writer": 2}), "completed")
    log.pin(1)
    log.prune(Retention(last=1))
    one.load(None, "app", 0)
    with pytest.raises(StaleVersion, match=r"burr/app.*was pruned.*load it"):
        one.save(None, "app", 3, "count", State({"writer": 1}), "completed")
    one.save(None, "app", 1, "count", State({"writer": 1}), "completed")
    assert log.head.parent == 1


def test_two_writers_get_separate_timelines(hf: Holdfast) -> None:
    steps(build(HoldfastPersister(hf)), 1)
    one, two = build(HoldfastPersister(hf)), build(HoldfastPersister(hf))
    one.update_state(one.state.update(count=100))
    two.update_state(two.state.update(count=200))
    for _ in range(3):
        steps(one, 1)
        steps(two, 1)
    log = hf.history("burr/app")
    writers = [version.get("state.count") // 100 for version in log.versions()]
    assert (writers.count(1), writers.count(2), len(log.timelines())) == (3, 3, 2)
    for writer in (1, 2):
        last = next(version for version in log.versions() if version.get("state.count") // 100 == writer)
        assert [version.get("sequence_id") for version in log.ancestors(last)] == [3, 2, 1, 0]
        assert {version.get("state.count") // 100 for version in log.ancestors(last)} == {0, writer}
    assert hf.verify()


def test_persister_separates_applications(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    one, two = build(persister), build(persister)
    steps(one, 1)
    with pytest.raises(StaleVersion, match="past sequence id 0"):
        steps(two, 1)
    fresh = builder("app").with_entrypoint("count").with_state(count=0, log=[], broken=False)
    with pytest.raises(AlreadyExists, match=r"burr/app.*initialize_from"):
        fresh.with_state_persister(HoldfastPersister(hf)).build().step()
    assert len(hf.history("burr/app").versions()) == 1


def test_persister_does_not_continue_an_application_that_was_created_again(hf: Holdfast) -> None:
    log = hf.history("burr/app")
    # The new application has as many actions as the deleted one, or fewer.
    for count in (4, 1):
        old = HoldfastPersister(hf)
        for number in range(4):
            old.save(None, "app", number, "count", State({"writer": "old"}), "completed")
        hf.delete("burr/app")
        new = HoldfastPersister(hf)
        for number in range(count):
            new.save(None, "app", number, "count", State({"writer": "new"}), "completed")
        with pytest.raises(StaleVersion, match=r"burr/app.*created again: load it"):
            old.save(None, "app", 4, "count", State({"writer": "old"}), "completed")
        assert [version.get("state.writer") for version in log.versions()] == ["new"] * count
        found = old.load(None, "app")
        assert found is not None
        assert found["state"]["writer"] == "new"
        old.save(None, "app", count, "count", State({"writer": "loaded"}), "completed")
        assert log.head.parent == count
        hf.delete("burr/app")
    # A deleted application that another writer has not created again is created by the next action.
    old.save(None, "app", 5, "count", State({"writer": "old"}), "completed")
    assert [version.get("sequence_id") for version in log.versions()] == [5]


def test_persister_does_not_continue_another_timeline_after_its_own_was_pruned(hf: Holdfast) -> None:
    log = hf.history("burr/app")
    one, two = HoldfastPersister(hf), HoldfastPersister(hf)
    for number in range(3):
        one.save(None, "app", number, "count", State({"writer": 1}), "completed")
    two.load(None, "app", 0)
    two.save(None, "app", 1, "count", State({"writer": 2}), "completed")
    assert log.prune(Retention(last=1)).versions == (1, 2, 3)
    with pytest.raises(StaleVersion, match=r"burr/app.*was pruned.*load it"):
        one.save(None, "app", 3, "count", State({"writer": 1}), "completed")
    assert [version.get("state.writer") for version in log.versions()] == [2]


def test_copies_of_a_persister_are_separate_writers(hf: Holdfast) -> None:
    """Burr copies the persister for each application of a parallel action: a retry may meet an attempt that
    still runs."""
    persister = HoldfastPersister(hf)
    steps(build(persister), 1)
    attempt, retry = build(persister.copy()), build(persister.copy())
    assert steps(attempt, 2) == steps(retry, 2) == ["report", "count"]
    log = hf.history("burr/app")
    assert [(line.number, line.parent) for line in log.timelines()] == [(1, None), (2, 1)]
    assert [version.get("sequence_id") for version in log.ancestors()] == [2, 1, 0]

    async def save() -> None:
        made = AsyncHoldfastPersister(hf, allow=iter([Order]))
        for writer in (made, made.copy()):
            await writer.load(None, "app", 0)
            await writer.save(None, "app", 1, "report", State({"order": Order()}), "completed")

    asyncio.run(save())
    assert len(log.timelines()) == 4


def test_async_application_is_persisted(hf: Holdfast, path: Path) -> None:
    async def make(persister: AsyncHoldfastPersister, app_id: str = "app") -> Application[Any]:
        builder = (
            Builder()
            .with_actions(count=count_later)
            .with_transitions(("count", "count", default))
            .with_identifiers(app_id=app_id, partition_key="p")
        )
        made: Application[Any] = await persisted(builder, persister).abuild()
        return made

    async def run() -> None:
        persister = AsyncHoldfastPersister(hf)
        assert await persister.is_initialized()
        app = await make(persister)
        for _ in range(3):
            await app.astep()
        app = await make(AsyncHoldfastPersister(hf))
        await app.astep()
        assert app.state["count"] == 4
        assert await persister.list_app_ids("p") == ["app"]
        found = await persister.load("p", "app", sequence_id=1)
        assert found is not None
        assert found["state"]["count"] == 2
        apps = [await make(persister, f"app-{number}") for number in range(10)]
        await asyncio.gather(*(app.astep() for app in apps))
        assert len(await persister.list_app_ids("p")) == 11
        # While another process holds the store, the event loop is not blocked.
        other = Database(path)
        other.execute("BEGIN IMMEDIATE")
        saving = asyncio.create_task(apps[0].astep())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not saving.done()
        other.execute("ROLLBACK")
        other.close()
        await saving
        assert apps[0].state["count"] == 2

    asyncio.run(run())


def test_persister_works_on_postgres(url: str) -> None:
    with holdfast.open(url) as hf:
        persister = HoldfastPersister(hf)
        steps(build(persister, "app", "p"), 3)
        app = build(persister, "app", "p", 0)
        assert steps(app, 2) == ["report", "count"]
        assert persister.list_app_ids("p") == ["app"]
        assert len(hf.history("burr/p/app").timelines()) == 2

        async def load() -> Any:
            return await AsyncHoldfastPersister(hf).load("p", "app", 1)

        assert asyncio.run(load())["position"] == "report"
        assert hf.verify()
