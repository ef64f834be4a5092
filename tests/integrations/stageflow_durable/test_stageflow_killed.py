"""kill -9 of a process that runs a durable pipeline: the next one goes on as if nothing had happened.

After every kill: what is recorded is what one of the stage's executions gave, and never changes; no stage that was
recorded is executed again; the stages that ran more than once were under way when the process died.
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


class Life:
    """What has happened to the run, life after life."""

    def __init__(self, where: str, effects: Path) -> None:
        self.where, self.effects = where, effects
        self.recorded: dict[str, Any] = {}
        self.deaths = 0

    def live(self, doom: str = "", after: int | None = None) -> bool:
        """One process: until it kills itself, is killed once so many stages have run, or is done."""
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
        self.deaths += code == -9
        assert code in (0, -9)
        self.look(self.ran() - before)
        return lines[-1:] == ["done"]

    def ran(self) -> Counter[str]:
        lines = self.effects.read_text().splitlines() if self.effects.exists() else []
        return Counter(line.split()[0] for line in lines)

    def look(self, ran: Counter[str]) -> None:
        nonces = dict.fromkeys(line.split()[1] for line in self.effects.read_text().splitlines())
        with holdfast.open(self.where) as hf:
            head = hf.history("doomed").head
            outputs = results_of(head)
            assert snapshot_of(head).input_text == "kelp"
            assert hf.history("doomed").verify().ok
        for name, data in self.recorded.items():
            assert outputs[name].data == data, f"what {name} gave was replaced"
            assert name not in ran, f"{name} was recorded, and executed again"
        self.recorded = {name: output.data for name, output in outputs.items()}
        for data in self.recorded.values():
            assert data["nonce"] in nonces
            assert data["seen"] == {stage: self.recorded[stage]["nonce"] for stage in data["seen"]}

    def check(self) -> None:
        """It is completed, and each stage ran once, but for those that were under way at a death."""
        assert set(self.recorded) == set(STAGES)
        ran = self.ran()
        assert sum(ran.values()) - len(STAGES) <= self.deaths * len(PARTS)
        assert len({data["request"] for data in self.recorded.values()}) == 1
        with holdfast.open(self.where) as hf:
            assert hf.get("doomed").status == "completed"


def test_it_dies_in_the_midst_of_each_stage(where: str, tmp_path: Path) -> None:
    life = Life(where, tmp_path / "effects")
    for name in ("plan", "part2", "write"):
        assert not life.live(name)
    assert life.deaths == 3
    assert {name: life.ran()[name] for name in ("plan", "join", "write")} == {
        "plan": 2,
        "join": 1,
        "write": 1,
    }
    assert life.live()
    assert life.ran()["write"] == 2
    life.check()


def test_it_dies_right_after_a_stage_was_written(where: str, tmp_path: Path) -> None:
    life = Life(where, tmp_path / "effects")
    for name in ("part1", "write"):
        assert not life.live(f"saved:{name}")
        assert name in life.recorded
    assert life.live()
    assert life.ran()["write"] == 1
    life.check()


def test_it_dies_at_any_moment(where: str, tmp_path: Path) -> None:
    """From outside, once so many stages have run: before, while or after the last of them is written."""
    life = Life(where, tmp_path / "effects")
    for after in (1, 2, 2):
        life.live(after=after)
    assert life.deaths >= 2
    assert life.live()
    life.check()
