"""A folder with a store and the workflows of `flows`, and calls of the program in it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flows
import in_process
import pytest
import terminal

import holdfast
from holdfast import Holdfast

STORE = "holdfast.db"
DEADLINE = 60.0


class ProjectFolder:
    """The folder of a test, which is the current folder of this process, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(flows.__file__, folder / "flows.py")

    def open(self) -> Holdfast:
        return holdfast.open(self.folder / STORE, durability="fast")

    def run(self, workflow: Any, *args: Any, run_id: str, **more: Any) -> None:
        """Run a workflow, which may fail, in this process, and close the store."""
        with self.open() as hf:
            hf.run(workflow, *args, run_id=run_id, raises=False, **more)

    def look(self, run_id: str) -> Any:
        """Return the status of a run, its result if it has one, and its state."""
        with self.open() as hf:
            run = hf.get(run_id)
            return run.status, run.result if run.status == "completed" else None, holdfast.thaw(run.state)

    @property
    def world(self) -> list[str]:
        """The effects of the workflows, in order."""
        path = self.folder / "world.txt"
        return path.read_text().splitlines() if path.exists() else []

    def forget(self) -> None:
        (self.folder / "world.txt").unlink(missing_ok=True)

    def touch(self, name: str) -> Path:
        path = self.folder / name
        path.touch()
        return path

    def rewrite(self, old: str, new: str) -> None:
        """Change the code of the workflows."""
        path = self.folder / "flows.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def bytes(self) -> bytes:
        """Return the files of the store."""
        return b"".join(
            path.read_bytes()
            for path in sorted(self.folder.glob(f"{STORE}*"))
            if not path.name.endswith("-shm")
        )

    def call(self, *arguments: str, **more: Any) -> terminal.Done:
        """Call the program within this process."""
        return in_process.call(*arguments, cwd=self.folder, **more)

    def process(self, *arguments: str, **more: Any) -> terminal.Done:
        """Call the program in a process of its own."""
        return terminal.call(*arguments, cwd=self.folder, **more)

    def json(self, *arguments: str, code: int = 0, **more: Any) -> Any:
        """Return what a command prints with --json on standard output or, if it fails, on standard error."""
        done = self.call(*arguments, "--json", **more)
        assert done.code == code, done
        if done.out:
            assert done.err == "", done
            return json.loads(done.out)
        found = json.loads(done.err)
        assert set(found) == {"code", "message", "details"}, done
        return found

    def terminal(self, *arguments: str, **more: Any) -> terminal.Terminal:
        return terminal.Terminal(*arguments, cwd=self.folder, **more)

    def until(self, line: str) -> None:
        """Wait until a workflow has had an effect."""
        until(lambda: line in self.world)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectFolder:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HOLDFAST")]:
        monkeypatch.delenv(name)
    return ProjectFolder(tmp_path)


def one_line(done: terminal.Done, code: int) -> str:
    """Return the one-line error of a command."""
    assert done.code == code, done
    assert "Traceback" not in done.err, done
    lines = done.err.splitlines()
    assert len(lines) == 1, done
    assert lines[0].startswith("holdfast: "), done
    return lines[0]
