"""kill -9 of a process that runs a durable pipeline: the next process resumes it.

After every kill: a recorded output is that of one execution of its stage, and never changes; no recorded stage is
executed again; the stages that ran more than once were running when the process was killed.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stageflow_worker import PARTS, STAGES

import holdfast
from holdfast.integrations.stageflow import results_of, snapshot_of

pytest_plugins = ["postgres_fixtures"]

PROGRAM = str(Path(__file__).with_name("stageflow_worker.py"))


class KilledRun:
    """A run and the processes that executed it."""

    def __init__(self, where: str, effects: Path) -> None:
        self.where, self.effects = where, effects
        self.recorded: dict[str, Any] = {}
        self.kills = 0

    def execute(self, doom: str = "", after: int | None = None) -> bool:
        """Execute the run in a process, until it kills itself, is killed after `after` stages, or has ended."""
        before = self.ran()
        command = [sys.executable, PROGRAM, self.where, str(self.effects), doom]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line.strip())
                if after is not None and len(lines) == after:
                    process.kill()
            code = process.wait(60)
        self.kills += code == -9
        assert code in (0, -9)
        self.check_recorded(self.ran() - before)
        return lines[-1:] == ["done"]

    def ran(self) -> Counter[str]:
        lines = self.effects.read_text().splitlines() if self.effects.exists() else []
        return Counter(line.split()[0] for line in lines)

    def check_recorded(self, ran: Counter[str]) -> None:
        nonces = dict.fromkeys(line.split()[1] for line in self.effects.read_text().splitlines())
        with holdfast.open(self.where) as hf:
            head = hf.history("doomed").head
            outputs = results_of(head)
            assert snapshot_of(head).input_text == "kelp"
            assert hf.history("doomed").verify().ok
        for name, data in self.recorded.items():
            assert outputs[name].data == data, f"the output of {name} was replaced"
            assert name not in ran, f"{name} was recorded, and executed again"
        self.recorded = {name: output.data for name, output in outputs.items()}
        for data in self.recorded.values():
            assert data["nonce"] in nonces
            assert data["seen"] == {stage: self.recorded[stage]["nonce"] for stage in data["seen"]}

    def check_completed(self) -> None:
        """Check that each stage ran once, except those that were running at a kill."""
        assert set(self.recorded) == set(STAGES)
        ran = self.ran()
        assert sum(ran.values()) - len(STAGES) <= self.kills * len(PARTS)
        assert len({data["request"] for data in self.recorded.values()}) == 1
        with holdfast.open(self.where) as hf:
            assert hf.get("doomed").status == "completed"


def test_pipeline_resumes_after_a_kill_during_a_stage(where: str, tmp_path: Path) -> None:
    run = KilledRun(where, tmp_path / "effects")
    for name in ("plan", "part2", "write"):
        assert not run.execute(name)
    assert run.kills == 3
    assert {name: run.ran()[name] for name in ("plan", "join", "write")} == {
        "plan": 2,
        "join": 1,
        "write": 1,
    }
    assert run.execute()
    assert run.ran()["write"] == 2
    run.check_completed()


def test_pipeline_resumes_after_a_kill_right_after_a_commit(where: str, tmp_path: Path) -> None:
    run = KilledRun(where, tmp_path / "effects")
    for name in ("part1", "write"):
        assert not run.execute(f"saved:{name}")
        assert name in run.recorded
    assert run.execute()
    assert run.ran()["write"] == 1
    run.check_completed()


def test_pipeline_resumes_after_kills_at_any_time(where: str, tmp_path: Path) -> None:
    """Killed from outside after some stages: before, while or after the last of them is written."""
    run = KilledRun(where, tmp_path / "effects")
    for after in (1, 2, 2):
        run.execute(after=after)
    assert run.kills >= 2
    assert run.execute()
    run.check_completed()
