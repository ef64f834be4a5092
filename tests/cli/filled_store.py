"""A store with runs of every kind, and calls of the program on it: in a pipe and on a terminal."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import in_process
from in_process import Screen
from terminal import Done

import holdfast
from holdfast import Holdfast, Retention, step, workflow
from holdfast.cli import app
from holdfast.testing import isolated_definitions

STORE = "holdfast.db"
#: Clears the screen, sets the title, rings, colours, reverses the line, or starts another row or field, if not escaped.
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eabc\r\n\t[red]loud[/red]"
LONG = "long-" + "x" * 150

#: Sequences that Rich sends: colours, and those that redraw a line.
_COLOUR = re.compile(rb"\x1b\[([0-9;]*m|\?25[lh]|1A|2K)")


# Other helpers of tests define steps of these names.
with isolated_definitions():

    @step(name="plan")
    def plan() -> dict[str, bool]:
        tasks = [{"name": "a", "done": False}, {"name": "b", "done": True}]
        holdfast.state()["plan"] = {"days": 3, "tasks": tasks}
        return {"ok": True}

    @step(name="search")
    def search(query: str) -> str:
        holdfast.state().setdefault("found", []).append(query)
        holdfast.annotate(model="small-1", tokens=5, cost=0.01)
        return query


@step(name="publish")
def publish() -> str:
    holdfast.state()["published"] = True
    return "done"


@step(name="boom")
def boom() -> None:
    raise ValueError(f"no [bold]press[/bold] {EVIL}")


@step(name="die")
def die() -> None:
    raise KeyboardInterrupt


@workflow(name="report")
def report(then: str = "") -> str:
    plan()
    search("kelp")
    search("urchin")
    if then == "fail":
        boom()
    if then == "die":
        die()
    if then == "ask":
        holdfast.ask("may I publish [b]this[/b]?")
    return publish()


def fill(hf: Holdfast) -> None:
    hf.run(report, run_id="report-1")
    hf.run(report, "fail", run_id="report-2", raises=False)
    hf.run(report, "ask", run_id="asks")
    with suppress(KeyboardInterrupt):
        hf.run(report, "die", run_id="died")
    hf.fork("report-1@3", "forked", edit={"plan.days": 9}, note="another try")
    _hand(hf)
    _hostile(hf)
    pruned = hf.history("pruned")
    for number in range(8):
        pruned.commit({"n": number}, step="count", tags=["kept"] if number == 3 else [])
    pruned.prune(Retention(last=2))
    for number in range(6):
        hf.history("counted").commit({"n": number}, step="count", tags=["third"] if number == 2 else [])
    hf.history(LONG).commit({"語": "海" * 200, "numbers": list(range(100))}, step="記" * 30)


def _hand(hf: Holdfast) -> None:
    """Write a manual run with three timelines, the second of which was merged into the third."""
    hand = hf.history("hand")
    for number in range(5):
        hand.commit({"n": number, "deep": {"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}})
    hand.rollback(3, reason="a wrong turn")
    hand.commit({**hand.head.state, "second": 1})
    hand.commit({**hand.head.state, "second": 2}, tags=["good"], note="better")
    hand.rollback(2, reason="again")
    hand.commit({**hand.head.state, "third": True})
    hand.merge(7)
    hand.pin(3)


def _hostile(hf: Holdfast) -> None:
    history = hf.history("[red]hostile[/red]")
    history.commit({"a": 1}, step="start")
    state = {EVIL: EVIL, "[bold]key[/bold]": "[red]value[/red]", "bytes": EVIL.encode(), "tab\tkey": 2}
    history.commit(
        state, step=EVIL, note=EVIL, actor=EVIL, annotations={EVIL: EVIL}, result=EVIL, tags=["[red]tag"],
        error={"type": EVIL, "message": EVIL, "traceback": f"Traceback\n  {EVIL}\n"},
    )  # fmt: skip


class SampleStore:
    """A folder with a store. Every call asserts the exit code and the stream of the output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def store(self) -> str:
        return str(self.folder / STORE)

    def open(self) -> Holdfast:
        return holdfast.open(self.store, durability="fast")

    def pipe(self, *arguments: str, code: int = 0, **more: Any) -> str:
        """Return the output of the program in a pipe."""
        done = in_process.call(*arguments, cwd=self.folder, **more)
        assert done.code == code, done
        return done.out

    def rows(self, *arguments: str, code: int = 0) -> list[list[str]]:
        """Return the output of the program in a pipe, as fields by line."""
        return [line.split("\t") for line in self.pipe(*arguments, code=code).splitlines()]

    def screen(self, *arguments: str, code: int = 0, columns: int = 120, **more: Any) -> str:
        """Return the screen of the program on a terminal. Nothing in the store may control the terminal."""
        opened = Screen(*arguments, cwd=self.folder, columns=columns, **more)
        assert opened.code == code, opened.text
        left = _COLOUR.sub(b"", opened.raw)
        assert not re.search(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]", left), left
        assert not re.search("[\x80-\x9f\u202a-\u202e]", left.decode()), left
        return opened.text

    def call(self, *arguments: str) -> Done:
        """Call the program within this process, with the definitions of this process."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = app.run(["--store", self.store, *arguments])
        return Done(code, out.getvalue(), err.getvalue())

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Return the document that a command prints with --json."""
        done = self.call("--json", *arguments)
        assert (done.code, done.err) == (code, ""), done
        return json.loads(done.out)

    def refused(self, *arguments: str, code: int) -> str:
        """Return the one-line error of a command; with --json, it must be a record."""
        done = self.call(*arguments)
        assert (done.code, done.out) == (code, ""), done
        assert re.fullmatch(r"holdfast: [^\n]*\n", done.err), done
        reported = self.call("--json", *arguments)
        assert (reported.code, reported.out) == (code, ""), reported
        record = json.loads(reported.err)
        assert set(record) == {"code", "message", "details"}
        return done.err.removeprefix("holdfast: ").rstrip("\n")
