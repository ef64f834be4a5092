"""`holdfast worker`, `queues`, `enqueue` and `requeue`."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

import flows
import project_folder
import pytest
import terminal
from project_folder import ProjectFolder, one_line, until

from holdfast import Watchdog, workflow

project = project_folder.project

#: The fields of all statuses, for one queued run.
QUEUED = "1\t0\t0\t0\t0\t0\t0\t0"


@pytest.fixture
def stocked(project: ProjectFolder) -> ProjectFolder:
    """A store with the runs of two queues."""
    with project.open() as hf:
        hf.enqueue(flows.shop, run_id="shop-1")
        hf.enqueue(flows.sleeping, 3600, run_id="sleep-1", queue="slow", delay=3600)
    return project


def worker(project: ProjectFolder, *arguments: str) -> subprocess.Popen[str]:
    """The program in a pipe, at work."""
    return subprocess.Popen(
        [*terminal.PROGRAM, "worker", *arguments], cwd=project.folder, env=terminal.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def status(project: ProjectFolder, run_id: str) -> Any:
    return project.look(run_id)[0]


class TestWorker:
    def test_serves_on_a_terminal_until_interrupted(self, stocked: ProjectFolder) -> None:
        screen = stocked.terminal("worker", "flows", "--queue", "default", "--queue", "slow")
        screen.until("serving default (1 run queued), slow (1 run queued)")
        until(lambda: status(stocked, "shop-1") == "completed")
        assert screen.interrupt().end() == 0, screen.text
        assert "stopping after the current steps" in screen.text
        assert screen.text.endswith("stopped; 1 execution")
        assert "Traceback" not in screen.text
        assert stocked.world == ["order kelp", "count 1", "order rock", "count 2"]

    def test_serves_in_a_pipe_until_terminated(self, stocked: ProjectFolder) -> None:
        process = worker(stocked, "flows", "--concurrency", "1", "--json")
        until(lambda: status(stocked, "shop-1") == "completed")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert out == '{"executed": 1, "queues": ["default"]}\n'

    @pytest.mark.parametrize("how", ["app", "environment", "pyproject"])
    def test_worker_finds_the_app_as_other_commands_do(self, stocked: ProjectFolder, how: str) -> None:
        if how == "pyproject":
            (stocked.folder / "pyproject.toml").write_text('[tool.holdfast]\napp = "flows"\n')
        more = {"HOLDFAST_APP": "flows"} if how == "environment" else {}
        screen = stocked.terminal("worker", *(["--app", "flows"] if how == "app" else []), **more)
        until(lambda: status(stocked, "shop-1") == "completed")
        assert screen.interrupt().end() == 0

    def test_worker_uses_the_store_of_the_app(self, stocked: ProjectFolder) -> None:
        with (stocked.folder / "flows.py").open("a") as file:
            file.write('\nhf = holdfast.open("holdfast.db", lease=5)\n')
        screen = stocked.terminal("worker", "flows:hf")
        until(lambda: status(stocked, "shop-1") == "completed")
        assert screen.interrupt().end() == 0

    def test_worker_ends_its_step_and_returns_the_run_to_the_queue(self, project: ProjectFolder) -> None:
        with project.open() as hf:
            hf.enqueue(flows.long, ["a", "b"], run_id="long-1")
        screen = project.terminal("worker", "flows")
        project.until("begin a")
        screen.interrupt().until("stopping after the current steps")
        project.touch("go-a")
        assert screen.end() == 0, screen.text
        assert project.world == ["count 1", "begin a", "end a"]
        assert status(project, "long-1") == "queued"
        project.touch("go-b")
        other = worker(project, "flows")
        until(lambda: status(project, "long-1") == "completed")
        other.terminate()
        other.communicate(timeout=30)
        assert project.world == ["count 1", "begin a", "end a", "begin b", "end b", "count 2"]

    def test_worker_ends_at_once_by_a_second_interrupt(self, project: ProjectFolder) -> None:
        with project.open() as hf:
            hf.enqueue(flows.long, ["a"], run_id="long-1")
        screen = project.terminal("worker", "flows")
        project.until("begin a")
        screen.interrupt().until("stopping")
        assert screen.interrupt().end() == 128 + signal.SIGINT
        assert "stopped at once" in screen.text
        assert "Traceback" not in screen.text

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            ([], 2, "needs the code of workflows"),
            (["nowhere"], 2, "cannot be found"),
            (["flows:hf"], 2, "which does not exist"),
            (["flows", "--queue", ""], 2, "a queue has a name"),
            (["flows", "--concurrency", "0"], 2, "concurrency"),
            (["flows", "--concurrency", "many"], 2, "concurrency"),
            (["flows", "--store", "nowhere.db"], 10, "no store"),
            (["flows", "--store", "postgresql://none@127.0.0.1:1/none"], 10, ""),
        ],
    )
    def test_worker_usage_errors_are_reported(
        self, stocked: ProjectFolder, arguments: list[str], code: int, words: str
    ) -> None:
        assert words in one_line(stocked.call("worker", *arguments, HOLDFAST_PATIENCE="0.2"), code)


class TestQueues:
    def test_queues_are_listed(self, stocked: ProjectFolder) -> None:
        code, text = terminal.seen("queues", cwd=stocked.folder)
        assert code == 0
        assert [line.split() for line in text.splitlines()] == [
            ["queue", "queued", "concurrency", "rate"],
            ["default", "1"],
            ["slow", "1"],
        ]
        assert stocked.call("queues").out == f"default\t{QUEUED}\t\t\t\nslow\t{QUEUED}\t\t\t\n"
        assert stocked.json("queues")[0] == {
            "queue": "default", "runs": {"queued": 1}, "concurrency": None, "rate": None, "per": None,
        }  # fmt: skip

    def test_queue_limits_are_set_and_removed(self, stocked: ProjectFolder) -> None:
        done = stocked.call("queues", "slow", "--concurrency", "5", "--rate", "100/60s")
        assert (done.code, done.out) == (0, f"slow\t{QUEUED}\t5\t100\t60\n")
        assert stocked.call("queues", "slow", "--concurrency", "none").out == f"slow\t{QUEUED}\t\t100\t60\n"
        assert stocked.call("queues", "slow", "--rate", "3").out == f"slow\t{QUEUED}\t\t3\t1\n"
        assert stocked.call("queues", "slow", "--rate", "none").out == f"slow\t{QUEUED}\t\t\t\n"
        assert stocked.json("queues", "new", "--rate", "7/1h")[0]["per"] == 3600

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["slwo"], 3, "did you mean 'slow'?"),
            (["nothing-like-it"], 3, "`holdfast queues` lists"),
            (["--rate", "5"], 2, "name the queue to limit"),
            (["slow", "--rate", "fast"], 2, "whole number"),
            (["slow", "--rate", "5/soon"], 2, "not a duration"),
            (["slow", "--rate", "0"], 2, "rate"),
            (["slow", "--concurrency", "-1"], 2, "concurrency"),
            (["slow", "--concurrency", "1.5"], 2, "whole number"),
        ],
    )
    def test_usage_errors_are_reported(
        self, stocked: ProjectFolder, arguments: list[str], code: int, words: str
    ) -> None:
        before = stocked.bytes()
        assert words in one_line(stocked.call("queues", *arguments), code)
        assert stocked.bytes() == before

    def test_queues_of_an_empty_store(self, project: ProjectFolder) -> None:
        project.open().close()
        code, text = terminal.seen("queues", cwd=project.folder)
        assert (code, text) == (0, "no queues")
        assert project.json("queues") == []


class TestEnqueue:
    def test_enqueue_by_name_needs_no_code(self, stocked: ProjectFolder) -> None:
        done = stocked.call(
            "enqueue", "anything", "3", "text", '{"a": [1]}', "--with", "b=true", "--run-id", "one"
        )
        assert (done.code, done.out) == (0, "queued one on default\n")
        with stocked.open() as hf:
            assert hf.get("one").status == "queued"

    def test_enqueue_passes_arguments(self, stocked: ProjectFolder) -> None:
        reported = stocked.json(
            "enqueue", "cli_asking", "--with", 'schema={"type": "string"}', "--run-id", "asks"
        )
        assert reported == {"run": "asks", "status": "queued"}
        process = worker(stocked, "flows")
        until(lambda: status(stocked, "asks") == "suspended")
        answered = stocked.call("answer", "asks", "fine", "--no-resume")
        assert answered.code == 0, answered
        until(lambda: status(stocked, "asks") == "completed")
        process.terminate()
        process.communicate(timeout=30)
        assert stocked.look("asks")[1] == "fine"

    def test_enqueue_with_a_state_starts_from_it(self, stocked: ProjectFolder) -> None:
        stocked.json("enqueue", "cli_shop", "--state", '{"messages": [1]}', "--run-id", "one")
        assert stocked.json("show", "one@1", "messages") == [1]
        refused = stocked.call("enqueue", "cli_shop", "--state", "{")
        assert "--state: '{' is not JSON" in one_line(refused, 2)

    def test_enqueue_options(self, stocked: ProjectFolder) -> None:
        first = stocked.json("enqueue", "cli_shop", "--dedupe", "x", "--queue", "q", "--priority", "-3")
        assert stocked.json("enqueue", "cli_shop", "--dedupe", "x") == first
        stocked.json("enqueue", "cli_shop", "--delay", "2h", "--tag", "night", "--run-id", "later")
        with stocked.open() as hf:
            assert hf.runs(tags=["night"])[0].id == "later"
            assert {queue.name for queue in hf.queues()} == {"default", "slow", "q"}

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["cli_shop", "1", "--app", "flows"], 2, "cannot be called like this"),
            (["cli_shpo", "--app", "flows"], 2, "defines no workflow 'cli_shpo': did you mean 'cli_shop'?"),
            (["unlike", "--app", "flows"], 2, "defines no workflow 'unlike': it defines cli_"),
            (["cli_shop", "--with", "nothing"], 2, "NAME=JSON"),
            *(
                (["cli_shop", "--with", f"{name}=1"], 2, "enqueue has a parameter of that name")
                for name in ("queue", "watchdog", "if_exists", "self")
            ),
            (["cli_shop", "--delay", "soon"], 2, "not a duration"),
            (["cli_shop", "--priority", "high"], 2, "priority"),
            (["cli_shop", "--queue", "\n"], 2, "a queue has a name"),
            (["cli_shop", "--run-id", "shop-1"], 4, "exists"),
            (["cli_shop", "--dedupe", "a", "--run-id", "b"], 2, "dedupe or run_id"),
            ([""], 2, "a workflow has a name"),
        ],
    )
    def test_usage_errors_are_reported(
        self, stocked: ProjectFolder, arguments: list[str], code: int, words: str
    ) -> None:
        before = stocked.bytes()
        assert words in one_line(stocked.call("enqueue", *arguments), code)
        assert stocked.bytes() == before


class TestRequeue:
    def test_requeue_of_a_paused_run(self, stocked: ProjectFolder) -> None:
        assert stocked.call("pause", "shop-1").code == 0
        done = stocked.call("requeue", "shop", "--reason", "continue", "--queue", "slow", "--delay", "1s")
        assert (done.code, done.out) == (0, "queued shop-1\n")
        assert stocked.json("requeue", "shop-1") == {"run": "shop-1", "status": "queued"}

    def test_usage_errors_are_reported(self, stocked: ProjectFolder) -> None:
        stocked.run(flows.shop, run_id="done-1")
        assert "is completed" in one_line(stocked.call("requeue", "done-1"), 2)
        assert "there is no run" in one_line(stocked.call("requeue", "missing"), 3)


def test_workers_of_one_store_share_the_queue(project: ProjectFolder) -> None:
    with project.open() as hf:
        ids = [hf.enqueue(flows.shop).id for _ in range(20)]
    processes = [worker(project, "flows", "--concurrency", "2") for _ in range(2)]
    for process in processes:
        # One may have executed all runs before the other handles signals.
        assert process.stderr is not None
        assert process.stderr.readline().startswith("serving default")
    until(lambda: all(status(project, run_id) == "completed" for run_id in ids))
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=30) is not None
        assert process.returncode == 0
    assert project.world.count("order kelp") == 20


class TestMonitor:
    def test_serves_on_a_terminal_until_interrupted(self, stocked: ProjectFolder) -> None:
        screen = stocked.terminal("monitor", "flows", "--interval", "0.2").until("monitoring the store every")
        assert screen.interrupt().end() == 0, screen.text
        assert screen.text.endswith("stopped")
        assert "Traceback" not in screen.text

    def test_monitor_once_without_findings(self, stocked: ProjectFolder) -> None:
        done = stocked.call("monitor", "--once")
        assert (done.code, done.out, done.err) == (0, "", "0 runs needed action\n")
        assert stocked.json("monitor", "--once") == []

    def test_monitor_once_reports_findings(self, project: ProjectFolder) -> None:
        @workflow(name="cli_dying")
        def dying() -> None:
            raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            project.run(dying, run_id="died")
        (found,) = project.json("monitor", "--once", code=1)
        assert (found["run"], found["symptom"], found["action"]) == ("died", "dead", "report")

    def test_monitor_dry_run_describes_actions(self, project: ProjectFolder) -> None:
        @workflow(name="cli_dying_too")
        def dying() -> None:
            raise KeyboardInterrupt

        for run_id, watch in (("reported", None), ("asked", Watchdog())):
            with suppress(KeyboardInterrupt):
                project.run(dying, run_id=run_id, watchdog=watch)
        before = project.call("events").out
        for _ in range(2):
            done = project.call("monitor", "--dry-run")
            lines = sorted(done.out.splitlines())
            assert lines[0].startswith("asked is dead (its owner is gone")
            assert lines[0].endswith("it would be stalled, with a question in the inbox")
            assert lines[1].endswith("an event would be written, as it has no watchdog that says what to do")
            assert (done.code, done.err) == (0, "nothing was changed (--dry-run)\n")
        found = project.json("monitor", "--dry-run")
        assert found["dry_run"] is True
        assert sorted((run["run"], run["action"]) for run in found["runs"]) == [
            ("asked", "stall"),
            ("reported", "report"),
        ]
        assert project.call("events").out == before
        assert {run["action"] for run in project.json("monitor", "--once", code=1)} == {"stall", "report"}
        assert project.call("monitor", "--dry-run").out == "nothing to do\n"

    def test_monitor_help_says_that_it_acts(self, project: ProjectFolder) -> None:
        assert "Check once, act, report" in project.call("monitor", "--help").out

    def test_usage_errors_are_reported(self, stocked: ProjectFolder) -> None:
        assert "interval" in one_line(stocked.call("monitor", "--interval", "0"), 2)
        assert "no store" in one_line(stocked.call("monitor", "--store", "nowhere.db"), 10)
