"""What `holdfast demo` tells: an agent works, is really killed, goes on, makes a mistake, and is put right.

The agent (`holdfast.demo`) runs in processes of its own. Nothing is pretended but the model: what is shown is read from
the store that stays behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import demo
from holdfast.cli.commands.diff import shown
from holdfast.cli.commands.log import picture
from holdfast.cli.output import Output
from holdfast.cli.settings import near
from holdfast.desk.words import age, count
from holdfast.engine import Holdfast
from holdfast.engine import open as open_store
from holdfast.errors import AlreadyExists, StepFailed

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

_SIGNS = {"end": ("✓", "green"), "retry": ("↻", "yellow")}


class Story:
    """The demo, told on an output."""

    def __init__(self, out: Output, path: Path) -> None:
        if path.exists():
            raise AlreadyExists(f"{path} is there, and the demo begins with nothing: name a file that is not")
        self._out = out
        self._path = path

    def tell(self) -> dict[str, Any]:
        """The whole of it, in a few seconds; for programs, what came of it."""
        # What keeps it from being made is told before anything else.
        open_store(self._path).close()
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as notes:
            self._say("An agent researches kelp. Each step is a version, safe on disk when the step ends.")
            self._command("hf.run(research, …)")
            self._live(notes, kill_at="draft")
            before = self._versions()
            self._line("✗", "red", f"kill -9 in the middle of “draft”, with {count(before - 1, 'step')} done")
            self._say("Another process goes on where that one was.")
            self._command(f'hf.resume("{demo.RUN}")')
            self._live(notes)
            repeated = demo.repeated(Path(notes))
            self._line(
                "•", "bold", f"{count(repeated, 'step')} repeated, {count(self._versions(), 'version')}"
            )
            with open_store(self._path) as hf:
                self._put_right(hf, notes)
                self._look(hf)
        self._farewell()
        return {
            "store": str(self._path),
            "run": demo.RUN,
            "versions": self._versions(),
            "repeated": repeated,
        }

    def _put_right(self, hf: Holdfast, notes: str) -> None:
        log = hf.history(demo.RUN)
        blamed = log.blame("facts.growth")
        self._say("The report is wrong: kelp does not grow 60 metres a day. Which step said so?")
        self._command(f"holdfast blame {demo.RUN} facts.growth")
        self._line(
            "•",
            "bold",
            f"facts.growth  version {blamed.version.number}  {blamed.step}  {age(blamed.version.at)}",
        )
        back = blamed.version.parent or 1
        self._say(
            f"Back to version {back}, and on from there with a better “{blamed.step}”. Nothing is deleted."
        )
        self._command(f'hf.rollback("{demo.RUN}", to={back}, overrides={{"extract": extract_with_care}})')
        self._live(notes, str(back))

    def _look(self, hf: Holdfast) -> None:
        log = hf.history(demo.RUN)
        self._say("Both timelines are there.")
        self._command(f"holdfast log {demo.RUN}")
        for line in picture(self._out, log, log.versions()):
            self._text(self._out.styled("  ").append_text(line))
        left = next(each for each in log.versions(kind="final") if each.timeline == 1)
        self._command(f"holdfast diff {demo.RUN}@{left.number} {demo.RUN}")
        for change in shown(hf.diff(left, log.head)):
            if change.of == "state":
                self._text(self._out.styled("  ").append_text(change.line(self._out)))

    def _farewell(self) -> None:
        store = (
            f"--store {os.path.relpath(self._path) if self._path.is_relative_to(Path.cwd()) else self._path}"
        )
        program = _program()
        self._say("Your turn, on the same store:")
        for command in (f"log {demo.RUN}", f"show {demo.RUN}@7 facts", f"compare {demo.RUN}@10 {demo.RUN}"):
            self._command(f"{program} {store} {command}")
        self._say("The same in a browser, on this machine, without an account:")
        self._command(f"{program} {store} ui")
        self._text(self._out.styled(""))

    def _live(self, notes: str, *back: str, kill_at: str | None = None) -> None:
        """Run the agent's process and show what it says; kill it when it comes to a step."""
        command = [sys.executable, "-m", "holdfast.demo", str(self._path), notes, *back]
        with (
            self._working() as status,
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process,  # noqa: S603 - itself
        ):
            assert process.stdout is not None
            for line in process.stdout:
                self._heard(line, status)
                if kill_at is not None and line.startswith(f"begin\t{kill_at}\t"):
                    process.kill()
                    return
            if process.wait():
                raise StepFailed("the agent of the demo has failed: what it wrote above says why")

    def _heard(self, line: str, status: Status | None) -> None:
        """Show what the agent said."""
        happens, name, what = line.rstrip("\n").split("\t")
        if happens in _SIGNS:
            self._line(*_SIGNS[happens], f"{name:8} {what}")
        elif status is not None:
            status.update(f"{name}: {what} …")

    @contextmanager
    def _working(self) -> Iterator[Status | None]:
        """A line that moves while the agent works, where somebody is looking."""
        if not self._out.moves:
            yield None
            return
        with self._out.console.status("…") as status:
            yield status

    def _versions(self) -> int:
        with open_store(self._path) as hf:
            return hf.history(demo.RUN).head.number

    def _say(self, text: str) -> None:
        self._text(self._out.styled(f"\n{text}", "bold"))

    def _command(self, text: str) -> None:
        self._text(self._out.styled(f"  $ {text}" if text[:3] != "hf." else f"  > {text}", "cyan"))

    def _line(self, sign: str, colour: str, text: str) -> None:
        self._text(self._out.styled(f"    {sign} ", colour).append(text))

    def _text(self, text: Text) -> None:
        if not self._out.json:
            self._out.text(text)


def place(given: str | None) -> Path:
    """Where the demo leaves its store: the file that is named, or a new one here, or in a temporary folder."""
    if given is not None:
        return Path(given)
    if not os.access(Path.cwd(), os.W_OK):
        return Path(tempfile.mkdtemp(prefix="holdfast-")) / "demo.db"
    number = 1
    while (path := Path(f"demo{'' if number == 1 else f'-{number}'}.db")).exists():
        number += 1
    return path.absolute()


def _program() -> str:
    """How this program is called."""
    called = Path(sys.argv[0])
    if called.name != "holdfast":
        return f"{Path(sys.executable).name} -m holdfast"
    found = shutil.which("holdfast")
    if found is not None and Path(found).resolve() == called.resolve():
        return "holdfast"
    return near(called)
