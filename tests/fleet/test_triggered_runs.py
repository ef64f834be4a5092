"""Workflows that events start, over the death of processes: no event is lost, none starts two runs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, HoldfastWarning, InvalidCall, workflow
from holdfast.history.journal import EVENT_KINDS
from holdfast.workflow import definition
from patience import until

pytest_plugins = ["postgres_fixtures"]

#: The application of all processes: `slow` blocks until a file is there.
APP = """
import os, sys, time
import holdfast

FOLDER = os.path.dirname(os.path.abspath(__file__))

@holdfast.step(name="hold")
def hold(run):
    print(f"holds {run}\\n", end="", flush=True)
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.01)
    return run

@holdfast.workflow(name="source")
def source():
    return 1

@holdfast.workflow(name="reaction", on="run.completed", of=source)
def reaction(event):
    return hold(event["run"])
"""
#: Runs `source` once, then waits to be killed.
STARTER = (
    APP
    + """
with holdfast.open(sys.argv[1], lease=1.0) as hf:
    hf.run(source, run_id="first")
    time.sleep(600)
"""
)
#: Is killed after the event, before the run that it starts is made.
KILLED_BEFORE = (
    APP
    + """
import signal
from holdfast.fleet.triggers import Triggers

Triggers._enqueue = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with holdfast.open(sys.argv[1], lease=1.0) as hf:
    hf.run(source, run_id="first")
    time.sleep(600)
"""
)
#: Listens, and does nothing else.
LISTENER = (
    APP
    + """
with holdfast.open(sys.argv[1], lease=1.0) as hf:
    hf.start_triggers()
    print("listens\\n", end="", flush=True)
    sys.stdin.read()
"""
)
#: Works, and knows the code.
WORKER = (
    APP
    + """
with holdfast.open(sys.argv[1], lease=1.0) as hf, hf.worker(poll=0.05):
    print("works\\n", end="", flush=True)
    sys.stdin.read()
"""
)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("url"))


@pytest.fixture
def isolated() -> Iterator[None]:
    with definition.isolated_definitions():
        yield


class Program:
    """A Python program in a process of its own."""

    def __init__(self, folder: Path, name: str, program: str, where: str) -> None:
        (folder / f"{name}.py").write_text(program)
        self.popen = subprocess.Popen(
            [sys.executable, str(folder / f"{name}.py"), where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.communicate()


def reactions(hf: Holdfast) -> list[tuple[str, str]]:
    return [(run.id, run.status) for run in hf.iter_runs(workflow="reaction")]


def is_completed(hf: Holdfast, count: int = 1) -> bool:
    found = reactions(hf)
    return len(found) >= count and all(status == "completed" for _, status in found)


@pytest.mark.parametrize("other", [WORKER, LISTENER], ids=["worker", "listener"])
def test_run_started_by_an_event_survives_its_process(tmp_path: Path, where: str, other: str) -> None:
    with Program(tmp_path, "starter", STARTER, where) as starter:
        assert starter.line() == "holds first"
        starter.popen.send_signal(signal.SIGKILL)
        starter.popen.wait(30)
    with holdfast.open(where, lease=1.0) as hf, Program(tmp_path, "other", other, where) as second:
        assert second.line() in ("works", "listens")
        assert second.line() == "holds first"
        (tmp_path / "go").touch()
        until(lambda: is_completed(hf), "the run of the dead process")
        assert len(reactions(hf)) == 1
        assert hf.get(reactions(hf)[0][0]).result == "first"


def test_event_is_not_lost_if_the_process_dies_before_the_run_is_made(tmp_path: Path, where: str) -> None:
    (tmp_path / "go").touch()
    with Program(tmp_path, "starter", KILLED_BEFORE, where) as starter:
        assert starter.popen.wait(60) == -signal.SIGKILL
    with holdfast.open(where) as hf:
        assert reactions(hf) == []
        with Program(tmp_path, "listener", LISTENER, where):
            until(lambda: is_completed(hf), "the run of the event")
            assert len(reactions(hf)) == 1


def test_event_starts_one_run_however_many_processes_listen(tmp_path: Path, where: str) -> None:
    (tmp_path / "go").touch()
    with (
        Program(tmp_path, "one", LISTENER, where) as one,
        Program(tmp_path, "two", WORKER, where) as two,
        Program(tmp_path, "three", LISTENER, where) as three,
    ):
        assert {one.line(), two.line(), three.line()} == {"listens", "works"}
        with holdfast.open(where) as hf, definition.isolated_definitions():

            @workflow(name="source")
            def source() -> int:
                return 1

            for number in range(8):
                hf.run(source, run_id=f"run-{number}")
            until(lambda: is_completed(hf, 8), "a run for each event")
            found = sorted(hf.get(run_id).result for run_id, _ in reactions(hf))
            assert found == sorted(f"run-{number}" for number in range(8))


@pytest.mark.usefixtures("isolated")
def test_trigger_defined_while_an_engine_works_hears_at_once(tmp_path: Path) -> None:
    @workflow(name="trigger_source")
    def source() -> int:
        return 1

    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as other:
        hf.run(source)

        @workflow(name="reaction", on="run.completed", of="trigger_source")
        def reaction(event: dict[str, Any]) -> Any:
            return event["run"]

        # The other engine does not listen, and the first one is not called again.
        other._fleet.queues.triggers.close()
        other.run(source, run_id="later")
        until(lambda: is_completed(hf))
        assert [hf.get(run_id).result for run_id, _ in reactions(hf)] == ["later"]


@pytest.mark.usefixtures("isolated")
def test_monitor_starts_triggers(tmp_path: Path) -> None:
    @workflow(name="reaction", on="agent.*")
    def reaction(event: dict[str, Any]) -> Any:
        return event["kind"]

    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as other:
        hf.monitor()
        log = other.history("by hand")
        log.commit({})
        log.add_event("agent.woke")
        until(lambda: is_completed(hf))
        assert hf.get(reactions(hf)[0][0]).result == "agent.woke"


@pytest.mark.usefixtures("isolated")
def test_redefined_trigger_runs_the_new_code(tmp_path: Path) -> None:
    def define(answer: str) -> None:
        @workflow(name="reaction", on="agent.woke")
        def reaction(event: dict[str, Any]) -> str:
            return answer

    with holdfast.open(tmp_path / "runs.db") as hf:
        define("old")
        hf.start_triggers()
        define("new")
        log = hf.history("by hand")
        log.commit({})
        log.add_event("agent.woke")
        until(lambda: is_completed(hf))
        assert hf.get(reactions(hf)[0][0]).result == "new"


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("on", "of", "text"),
    [
        ("run.complete", None, "run.completed"),
        ("run.*ed.x", None, "no event of that kind"),
        ("step.started", None, "no event of that kind"),
        ("completed", None, "no event of that kind"),
        ("run completed", None, "no event of that kind"),
        (None, "anything", "without on"),
        ("run.completed", 7, "of"),
    ],
)
def test_trigger_that_nothing_can_set_off_is_refused(on: Any, of: Any, text: str) -> None:
    with pytest.raises(InvalidCall, match=text):

        @workflow(name="reaction", on=on, of=of)
        def reaction(event: dict[str, Any]) -> None: ...

    assert "reaction" not in definition.workflows()


@pytest.mark.usefixtures("isolated")
def test_trigger_that_does_not_take_the_event_is_refused() -> None:
    def without() -> None: ...
    def with_two(event: Any, other: Any) -> None: ...
    def by_keyword(*, event: Any) -> None: ...
    async def without_async() -> None: ...

    wrong: Any
    for wrong in (without, with_two, by_keyword, without_async):
        with pytest.raises(InvalidCall, match=rf"{wrong.__name__}.*def {wrong.__name__}\(event\)"):
            workflow(name="reaction", on="run.completed")(wrong)
    assert "reaction" not in definition.workflows()

    def with_defaults(event: Any, times: int = 1, *, loud: bool = False) -> None: ...
    def with_any(*args: Any, **named: Any) -> None: ...

    workflow(name="reaction", on="run.completed")(with_defaults)
    workflow(name="reaction to any", on="run.completed")(with_any)


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("of", "hint"), [("trigger_sources", "did you mean 'trigger_source'"), ("orders", "")]
)
def test_trigger_of_an_unknown_workflow_warns_once(tmp_path: Path, of: str, hint: str) -> None:
    @workflow(name="trigger_source")
    def source() -> int:
        return 1

    @workflow(name="reaction", on="run.completed", of=of)
    def reaction(event: dict[str, Any]) -> str:
        return str(event["workflow"])

    with holdfast.open(tmp_path / "runs.db") as hf:
        with pytest.warns(HoldfastWarning, match=f"'reaction'.*'{of}'.*{hint}"):
            assert hf.run(source).result == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert hf.run(source).result == 1

        # The program that has the workflow starts the reaction.
        with definition.isolated_definitions():

            @workflow(name=of)
            def elsewhere() -> None: ...

            hf.run(elsewhere)
        until(lambda: is_completed(hf))
        assert [hf.get(run).result for run, *_ in reactions(hf)] == [of]


def test_event_kinds_are_those_that_the_code_writes() -> None:
    """Kinds that are not in the journal are left out."""
    words = r'"((?:run|step|timeline|version|versions|question|signal)\.[a-z_]+)"'
    folders = [
        Path(holdfast.__file__).parent / name for name in ("history", "workflow", "execution", "fleet")
    ]
    found = {
        kind
        for folder in folders
        for path in folder.rglob("*.py")
        for kind in re.findall(words, path.read_text())
    }
    assert {"run.forked", "question.opened", "signal.sent", "step.started"} <= found
    assert found - {"step.started", "step.progress"} <= set(EVENT_KINDS)
