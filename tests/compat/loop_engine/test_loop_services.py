"""Services as processes of their own (`holdfast monitor`, `worker`, `serve`) find agents that killed processes left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
from terminal import PROGRAM, environment

import holdfast
from holdfast import Holdfast
from holdfast.loops import LoopEngine
from patience import until

pytest_plugins = ["postgres_fixtures"]

WORKER = Path(__file__).with_name("loop_worker.py")
#: Started with the store in `HOLDFAST_STORE` and the module `loop_flows` in the current folder.
SERVICES = {
    "monitor": ["monitor", "--interval", "0.2"],
    "worker": ["worker", "loop_flows"],
    "serve": ["serve", "--port", "0", "--json"],
}
FLOWS = """
from holdfast import workflow

@workflow
def nothing() -> None:
    pass
"""


class Service:
    """A process of the program, or of `loop_worker.py`, on a store."""

    def __init__(self, folder: Path, where: str, *command: str) -> None:
        self._log = folder / f"{uuid4().hex}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, *command] if command[0] in SERVICES else [sys.executable, str(WORKER), *command],
                cwd=folder,
                env=environment(HOLDFAST_STORE=where, PYTHONPATH=str(folder), PYTHONUNBUFFERED="1"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until_ready(self) -> Service:
        """Wait until the service says that it works: its first line."""
        until(lambda: "\n" in self.log or self.process.poll() is not None, "the start")
        assert self.process.poll() is None, self.log
        return self

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.log.splitlines()]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


class Services:
    """The processes of a test, on one store."""

    def __init__(self, folder: Path, where: str) -> None:
        self.folder, self.where = folder, where
        self.started: list[Service] = []
        (folder / "loop_flows.py").write_text(FLOWS)

    def start(self, name: str, *options: str) -> Service:
        return self._add(*SERVICES[name], *options).until_ready()

    def role(self, name: str, *arguments: str) -> Service:
        """Start a role of `loop_worker.py`, on the clock of the machine."""
        return self._add(self.where, name, "", *arguments)

    def leave_an_agent(self, project: str = "p", timeout: float = 0.5) -> None:
        """Start an agent in a process that is killed at once."""
        agent = self.role("leave", project, str(timeout)).until_ready()
        agent.end(signal.SIGKILL)

    def _add(self, *command: str) -> Service:
        self.started.append(Service(self.folder, self.where, *command))
        return self.started[-1]

    def close(self) -> None:
        for each in self.started:
            # A stopped process does not end otherwise.
            each.end(signal.SIGKILL)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    return str(request.getfixturevalue("url"))


@pytest.fixture
def hf(where: str) -> Iterator[Holdfast]:
    with holdfast.open(where) as opened:
        yield opened


@pytest.fixture
def engine(hf: Holdfast) -> LoopEngine:
    """An engine that does not check: the services of the test do."""
    made = LoopEngine(hf, check_every=None)
    made.save_loop_snapshot("p", {"loop_count": 1})
    made.configure("p", loop_autoresume=True, max_restores=100)
    return made


@pytest.fixture
def services(hf: Holdfast, where: str, tmp_path: Path) -> Iterator[Services]:
    found = Services(tmp_path, where)
    yield found
    found.close()


def lease(hf: Holdfast) -> tuple[int, int]:
    """Return the id of the process that checks the loops of a store, and until when; 0 and 0 for none."""
    stored = hf._store.value("loops")
    if stored is None:
        return 0, 0
    found = msgspec.msgpack.decode(stored[0])
    return int(found["owner"].split("|")[1]), found["until"]


def timelines(hf: Holdfast, project: str = "p") -> int:
    return len(hf.history(f"loop/{project}").timelines())


def restored(hf: Holdfast, project: str) -> bool:
    return timelines(hf, project) == 2


@pytest.mark.parametrize("service", SERVICES)
def test_service_finds_the_agent_of_a_killed_process(
    hf: Holdfast, engine: LoopEngine, services: Services, service: str
) -> None:
    """The agent was started by another process, before the service was and after it."""
    services.leave_an_agent()
    process = services.start(service).process
    until(lambda: timelines(hf) == 2, "the first restore")
    services.leave_an_agent()
    until(lambda: timelines(hf) == 3, "the second restore")
    assert lease(hf)[0] == process.pid, "this process has found them"
    audit = engine.get_audit("p")["audit"]
    assert [each["action"] for each in audit if each["action"].startswith(("agent.", "rest"))] == [
        "agent.started",
        "agent.stalled",
        "restored",
    ] * 2
    assert process.poll() is None


def test_three_services_restore_each_project_once(
    hf: Holdfast, engine: LoopEngine, services: Services
) -> None:
    for service in SERVICES:
        services.start(service)
    projects = [f"p{number}" for number in range(4)]
    for project in projects:
        engine.save_loop_snapshot(project, {"loop_count": 1})
        engine.configure(project, loop_autoresume=True)
    for project in projects:
        services.leave_an_agent(project)
    for project in projects:
        until(partial(restored, hf, project), project)
    # The check that finds this one looks at the others again.
    services.leave_an_agent("p")
    until(lambda: timelines(hf) == 2)
    for project in projects:
        assert timelines(hf, project) == 2
        actions = [each["action"] for each in engine.get_audit(project)["audit"]]
        assert (actions.count("agent.stalled"), actions.count("restored")) == (1, 1)
    assert hf.verify().ok


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_service_that_ends_hands_over(
    hf: Holdfast, engine: LoopEngine, services: Services, number: signal.Signals
) -> None:
    """One that is stopped releases the lease; that of one that was killed is taken from it, and not waited for."""
    first = services.start("monitor").process
    until(lambda: lease(hf)[0] == first.pid)
    second = services.start("serve").process
    first.send_signal(number)
    assert first.wait(60) == (-9 if number is signal.SIGKILL else 0)
    if number is not signal.SIGKILL:
        pid, end = lease(hf)
        assert (pid, end) == (first.pid, 0) or pid == second.pid
    services.leave_an_agent()
    until(lambda: timelines(hf) == 2)
    assert lease(hf)[0] == second.pid


def test_service_that_checks_more_often_takes_over(
    hf: Holdfast, engine: LoopEngine, services: Services
) -> None:
    """An agent is found within the shortest interval, not within that of the process that came first."""
    slow = services.role("check_all_the_time", "0.5").until_ready().process
    assert lease(hf)[0] == slow.pid
    fast = services.start("monitor").process
    until(lambda: lease(hf)[0] == fast.pid)
    services.leave_an_agent()
    until(lambda: timelines(hf) == 2)
    assert (lease(hf)[0], slow.poll()) == (fast.pid, None)


def test_question_of_a_killed_process_is_in_the_inbox(
    hf: Holdfast, engine: LoopEngine, services: Services
) -> None:
    engine.configure("p", loop_autoresume=False)
    services.start("monitor")
    services.leave_an_agent()
    (question,) = until(hf.inbox)
    assert (question.project, question.details["agents"], timelines(hf)) == ("p", ["planner"], 1)
    assert "timeout of agent 'planner' after 0.5 s" in question.text
    hf.answer(question.id, "rollback", actor="Ada")
    assert engine.get_project_state("p")["state"] == {"loop_count": 1, "loop_autoresume": False}


def test_loop_in_another_process_is_woken(hf: Holdfast, engine: LoopEngine, services: Services) -> None:
    """Whichever process restores or answers, each subscriber hears of it once, after it is in the store."""
    mine = services.role("recoveries", "p").until_ready()
    every = services.role("recoveries").until_ready()
    services.start("monitor")
    services.leave_an_agent()
    # Each reads the state when it is called: nothing is changed before both have.
    until(lambda: (len(mine.lines()), len(every.lines())) == (2, 2), "the restore by the monitor")
    engine.configure("p", loop_autoresume=False)
    question = engine.auto_restore_if_configured("p", "crash")["question_id"]
    hf.answer(question, "reinitialize", actor="Ada")
    until(lambda: (len(mine.lines()), len(every.lines())) == (3, 3), "the answer")
    engine.save_loop_snapshot("q", {"loop_count": 7})
    engine.restore_last_snapshot("q", actor="Bob")
    engine.restore_last_snapshot("p", reason="again", actor="Bob")
    until(lambda: (len(mine.lines()), len(every.lines())) == (4, 5), "the restores by hand")
    found = [(each["project_id"], each["event"], each["actor"], each["state"]) for each in every.lines()[1:]]
    off = {"loop_autoresume": False}
    assert found == [
        ("p", "restored", None, {"loop_count": 1, "loop_autoresume": True}),
        ("p", "reinitialized", "Ada", off),
        ("q", "restored", "Bob", {"loop_count": 7}),
        ("p", "restored", "Bob", off),
    ]
    assert mine.lines()[1:] == [each for each in every.lines()[1:] if each["project_id"] == "p"]


@pytest.mark.parametrize("legacy", [True, False])
def test_client_of_the_original_is_served(
    hf: Holdfast, engine: LoopEngine, services: Services, legacy: bool
) -> None:
    """It changes with GET, which `holdfast serve` accepts with `--legacy-get` only."""
    service = services.start("serve", *(["--legacy-get"] if legacy else []))
    (started,) = service.lines()
    with httpx.Client(
        base_url=f"{started['url']}/api/debug/loop",
        headers={"authorization": f"Bearer {started['token']}"},
        timeout=60,
    ) as client:

        def get(route: str, **query: Any) -> Any:
            found = client.get(f"/{route}", params=query)
            assert found.status_code == (200 if legacy else 405), found.text
            return found.json()

        get("agent/start/p", agent="writer", timeout=0.2)
        get("snapshot/save/p")
        get("snapshot/restore/p")
        history = client.get("/snapshot/history/p").json()
        assert (history["snapshot_count"], history["has_last_snapshot"]) == (1 + legacy, True)
        assert client.get("/snapshot/history/none").status_code == 404
    # The server finds the agent that this client has left.
    until(lambda: not legacy or timelines(hf) == 3)
    assert engine.get_agents("p")["running"] == {}
