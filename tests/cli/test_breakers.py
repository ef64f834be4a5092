"""`holdfast breakers`"""

from __future__ import annotations

import project_folder
import pytest
from project_folder import ProjectFolder

from holdfast import Breaker, step, workflow
from holdfast.cli import exit_codes
from holdfast.testing import isolated_definitions

project = project_folder.project

HOSTILE = "[red]\x1b[31m/=cmd()"

with isolated_definitions():

    @step(name="called", breaker=Breaker(failures=2, reset=3600))
    def called() -> None:
        raise ConnectionError("\x1b[31mdown\nhere")

    @step(name="hostile", breaker=Breaker(failures=1, reset=3600, name=HOSTILE))
    def hostile() -> None:
        raise ConnectionError("down")

    @workflow(name="calls")
    def calls() -> None:
        called()

    @workflow(name="hostile_calls")
    def hostile_calls() -> None:
        hostile()


@pytest.fixture
def broken(project: ProjectFolder) -> ProjectFolder:
    for number in range(2):
        project.run(calls, run_id=f"r{number}")
    return project


def test_breakers_lists_them(broken: ProjectFolder) -> None:
    (found,) = broken.json("breakers")
    assert (found["name"], found["status"], found["failures"]) == ("called", "open", 2)
    assert found["retry_at"] > found["since"]
    assert found["error"] == "ConnectionError: \x1b[31mdown\nhere"
    fields = broken.call("breakers").out.rstrip("\n").split("\t")
    assert fields[:3] == ["called", "open", "2"]
    assert "\x1b" not in broken.call("breakers").out


def test_breakers_of_a_store_without_any(project: ProjectFolder) -> None:
    with project.open():
        pass
    assert project.json("breakers") == []


def test_breakers_reset_closes_one(broken: ProjectFolder) -> None:
    found = broken.json("breakers", "reset", "called", "--actor", "ana")
    assert (found["status"], found["failures"], found["retry_at"]) == ("closed", 0, None)
    with broken.open() as hf:
        events = [event for event in hf.history("r1").events() if event.kind == "breaker.closed"]
        assert [event.data["actor"] for event in events] == ["ana"]


def test_breakers_reset_of_a_hostile_name(project: ProjectFolder) -> None:
    project.run(hostile_calls, run_id="r")
    done = project.call("breakers", "reset", HOSTILE)
    assert done.code == exit_codes.DONE
    assert "\x1b" not in done.out + done.err
    assert project.json("breakers")[0]["status"] == "closed"


def test_breakers_reset_needs_a_name_that_exists(broken: ProjectFolder) -> None:
    missing = broken.call("breakers", "reset", "caled")
    assert missing.code == exit_codes.NOT_FOUND
    assert "did you mean 'called'?" in missing.err
    unnamed = broken.call("breakers", "reset")
    assert unnamed.code == exit_codes.USAGE
    assert "name the breaker" in unnamed.err
    unknown = broken.call("breakers", "called")
    assert unknown.code == exit_codes.USAGE
