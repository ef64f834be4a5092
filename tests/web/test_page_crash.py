"""A crash during watching: the process of a run is killed, the page shows it by itself, and resumes the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page_sample_runs
import pytest
from page_browser import tab
from playwright.sync_api import Browser, expect
from web_server import DEADLINE, serving

import holdfast

#: Runs until it is killed in its second step.
PROGRAM = """
import sys, threading
import holdfast, page_sample_runs
page_sample_runs.HINDERED = threading.Event()
holdfast.open(sys.argv[1], durability="fast").run(page_sample_runs.slow, "kelp", run_id="watched")
"""


@contextmanager
def _running(where: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(where)], cwd=Path(__file__).parent)
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE)


@pytest.mark.parametrize("view", ["runs", "run/watched"])
def test_run_of_a_killed_process_is_interrupted_and_resumed(
    tmp_path: Path, browser: Browser, view: str
) -> None:
    where = tmp_path / "runs.db"
    with (
        holdfast.open(where, durability="fast") as hf,
        serving(hf, where=str(where)) as served,
        tab(browser, served) as found,
    ):
        page = found.open("runs")
        with _running(where) as process:
            row = page.get_by_role("link", name="watched")
            expect(row).to_contain_text("outline")  # its first step is done
            expect(row).to_contain_text("running")
            found.open(view)
            status = row if view == "runs" else page.locator(".run-head .status")
            expect(status).to_contain_text("running")
            os.kill(process.pid, signal.SIGKILL)
            process.wait(DEADLINE)
            expect(status).to_contain_text("interrupted")
        found.open("run/watched")
        page.get_by_role("button", name="Resume…").click()
        box = page.get_by_role("dialog", name="Resume watched")
        expect(box).to_contain_text("1 completed step will be replayed from history")
        box.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator(".run-head .status")).to_have_text("completed")
        assert hf.get("watched").result == "over"
        assert [each.step for each in hf.history("watched").versions()].count("outline") == 1
        found.check()


def test_helper_step_blocks_only_in_its_process() -> None:
    assert page_sample_runs.HINDERED is None
