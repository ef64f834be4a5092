"""`holdfast demo`: an agent is killed, resumed, and corrected by a rollback.

The agent (`holdfast.demo`) runs in processes of its own. Only the model is simulated: everything shown is read from the
store, which remains for the user to inspect.
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

import click

from holdfast import demo
from holdfast.cli.commands.diff import diff_lines
from holdfast.cli.commands.log import version_graph
from holdfast.cli.context import CommandContext, command
from holdfast.cli.output import Output
from holdfast.cli.settings import relative_path
from holdfast.engine import Holdfast
from holdfast.engine import open as open_store
from holdfast.errors import AlreadyExists, StepFailed
from holdfast.operator_view.text import age, count

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

_SIGNS = {"end": ("✓", "green"), "retry": ("↻", "yellow")}


class Demo:
    """The scenes of the demo, printed to an output."""

    def __init__(self, out: Output, path: Path) -> None:
        if path.exists():
            raise AlreadyExists(f"{path} exists, and the demo creates a new store: name another file")
        self._out = out
        self._path = path

    def play(self) -> dict[str, Any]:
        """Play all scenes, in a few seconds; return a summary for programs."""
        # If the store cannot be created, fail first.
        open_store(self._path).close()
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as notes:
            self._say("An agent researches kelp. Each step is a version, durable on disk when the step ends.")
            self._command("hf.run(research, …)")
            self._run_agent(notes, kill_at="draft")
            before = self._versions()
            self._line("✗", "red", f"kill -9 in the middle of “draft”, after {count(before - 1, 'step')}")
            self._say("Another process resumes the run.")
            self._command(f'hf.resume("{demo.RUN}")')
            self._run_agent(notes)
            repeated = demo.count_repeated(Path(notes))
            self._line(
                "•", "bold", f"{count(repeated, 'step')} repeated, {count(self._versions(), 'version')}"
            )
            with open_store(self._path) as hf:
                self._correct(hf, notes)
                self._inspect(hf)
        self._print_next_steps()
        return {
            "store": str(self._path),
            "run": demo.RUN,
            "versions": self._versions(),
            "repeated": repeated,
        }

    def _correct(self, hf: Holdfast, notes: str) -> None:
        log = hf.history(demo.RUN)
        blamed = log.blame("facts.growth")
        self._say("The report is wrong: kelp does not grow 60 metres a day. Which step wrote that?")
        self._command(f"holdfast blame {demo.RUN} facts.growth")
        self._line(
            "•",
            "bold",
            f"facts.growth  version {blamed.version.number}  {blamed.step}  {age(blamed.version.at)}",
        )
        back = blamed.version.parent or 1
        self._say(
            f"Roll back to version {back} and resume with a better “{blamed.step}”. Nothing is deleted."
        )
        self._command(f'hf.rollback("{demo.RUN}", to={back}, overrides={{"extract": extract_with_care}})')
        self._run_agent(notes, str(back))

    def _inspect(self, hf: Holdfast) -> None:
        log = hf.history(demo.RUN)
        self._say("Both timelines are in the history.")
        self._command(f"holdfast log {demo.RUN}")
        for line in version_graph(self._out, log, log.versions()):
            self._text(self._out.styled("  ").append_text(line))
        left = next(each for each in log.versions(kind="final") if each.timeline == 1)
        self._command(f"holdfast diff {demo.RUN}@{left.number} {demo.RUN}")
        for change in diff_lines(hf.diff(left, log.head)):
            if change.of == "state":
                self._text(self._out.styled("  ").append_text(change.line(self._out)))

    def _print_next_steps(self) -> None:
        store = (
            f"--store {os.path.relpath(self._path) if self._path.is_relative_to(Path.cwd()) else self._path}"
        )
        program = _program()
        self._say("Try it on the same store:")
        for words in (f"log {demo.RUN}", f"show {demo.RUN}@7 facts", f"compare {demo.RUN}@10 {demo.RUN}"):
            self._command(f"{program} {store} {words}")
        self._say("The same in a browser, on this machine, without an account:")
        self._command(f"{program} {store} ui")
        self._text(self._out.styled(""))

    def _run_agent(self, notes: str, *back: str, kill_at: str | None = None) -> None:
        """Run the agent's process and print its steps; kill it when it starts the step `kill_at`."""
        command = [sys.executable, "-m", "holdfast.demo", str(self._path), notes, *back]
        with (
            self._working() as status,
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process,  # noqa: S603 - this package
        ):
            assert process.stdout is not None
            for line in process.stdout:
                self._print_step(line, status)
                if kill_at is not None and line.startswith(f"begin\t{kill_at}\t"):
                    process.kill()
                    return
            if process.wait():
                raise StepFailed("the agent of the demo failed: see its output above")

    def _print_step(self, line: str, status: Status | None) -> None:
        """Print one line of the agent's output."""
        happens, name, what = line.rstrip("\n").split("\t")
        if happens in _SIGNS:
            self._line(*_SIGNS[happens], f"{name:8} {what}")
        elif status is not None:
            status.update(f"{name}: {what} …")

    @contextmanager
    def _working(self) -> Iterator[Status | None]:
        """Show a spinner on a terminal while the agent works."""
        if not self._out.can_redraw:
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


def choose_path(given: str | None) -> Path:
    """Return the path of the demo's store: the given one, a new one in this folder, or one in a temporary folder."""
    if given is not None:
        return Path(given)
    if not os.access(Path.cwd(), os.W_OK):
        return Path(tempfile.mkdtemp(prefix="holdfast-")) / "demo.db"
    number = 1
    while (path := Path(f"demo{'' if number == 1 else f'-{number}'}.db")).exists():
        number += 1
    return path.absolute()


def _program() -> str:
    """Return how to call this program."""
    called = Path(sys.argv[0])
    if called.name != "holdfast":
        return f"{Path(sys.executable).name} -m holdfast"
    found = shutil.which("holdfast")
    if found is not None and Path(found).resolve() == called.resolve():
        return "holdfast"
    return relative_path(called)


@command("demo")
@click.argument("path", required=False)
@click.option("--picture", metavar="FILE.svg", help="Also write the output as a picture.")
def demo_command(ctx: CommandContext, *, path: str | None, picture: str | None) -> None:
    """Show an agent that is killed, resumed, and corrected by a rollback.

    Takes a few seconds, needs no network, and leaves its store at PATH (./demo.db) for you to inspect.
    """
    out = ctx.out
    if out.json and picture is not None:
        raise click.UsageError("a picture shows the output for people: omit --json")
    if picture is not None:
        out.record(width=96)
    summary = Demo(out, choose_path(path)).play()
    if picture is not None:
        out.save_picture(Path(picture), "holdfast demo")
    if out.json:
        out.document(summary)
