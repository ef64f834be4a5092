"""Ctrl-C at any instant: exit code 130, one line, nothing lost; the run can be resumed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import flows
import project_folder
import pytest
import terminal
from project_folder import ProjectFolder

project = project_folder.project

#: The program, which gets SIGINT when the main thread has called, or come back from, so many functions.
_AT = """
import os, signal, sys
limit = int(sys.argv.pop(1))
import holdfast.cli, holdfast.cli.app, holdfast.cli.commands.resume
import flows, apsw
count = 0
def tick(*_):
    global count
    count += 1
    if count == limit:
        os.kill(os.getpid(), signal.SIGINT)
def begin(run=holdfast.cli.app.run):
    def counted(arguments):
        sys.setprofile(tick)
        code = run(arguments)
        sys.setprofile(None)
        return code
    return counted
holdfast.cli.app.run = begin()
if not limit:
    import atexit
    atexit.register(lambda: open("total", "w").write(str(count)))
holdfast.cli.main()
"""
#: The program, which gets SIGINT when it imports a module.
_IMPORTING = """
import os, signal, sys
class At:
    name = sys.argv.pop(1)
    def find_spec(self, name, *_):
        if name == self.name:
            os.kill(os.getpid(), signal.SIGINT)
from holdfast.cli import main
sys.meta_path.insert(0, At())
main()
"""


def python(project: ProjectFolder, code: str, *arguments: str) -> terminal.Done:
    done = subprocess.run(
        [terminal.PROGRAM[0], "-c", code, *arguments],
        cwd=project.folder,
        env=terminal.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return terminal.Done(done.returncode, done.stdout, done.stderr)


def interrupted(done: terminal.Done) -> None:
    assert done.code == 130, done
    assert "Traceback" not in done.err, done
    reported = done.err.splitlines()
    assert reported[-1:] in ([], ["holdfast: interrupted; nothing is lost"]), done
    assert "" not in reported, done


@pytest.mark.parametrize(
    "module",
    [
        "holdfast.cli.app",
        "click",
        "holdfast.cli.commands",
        "holdfast.cli.commands.resume",
        "apsw",
        "flows",
    ],
)
def test_interrupt_while_the_program_loads(project: ProjectFolder, module: str) -> None:
    project.run(flows.sleeping, 3600, run_id="wait-1")
    interrupted(python(project, _IMPORTING, module, "resume", "wait-1", "--app", "flows"))
    assert project.look("wait-1")[0] == "suspended"


def _fail(project: ProjectFolder, run: str) -> None:
    broken = project.touch("broken")
    project.run(flows.failing, run_id=run)
    broken.unlink()


#: How many calls a command takes; it is the same in each folder.
_TOTALS: dict[tuple[str, ...], int] = {}


def sweep(project: ProjectFolder, make: Callable[[], None], arguments: tuple[str, ...], part: float) -> None:
    """Interrupt a command after this part of it."""
    make()
    if arguments not in _TOTALS:
        assert python(project, _AT, "0", *arguments).code == 0
        _TOTALS[arguments] = int((project.folder / "total").read_text())
        for path in project.folder.glob("holdfast.db*"):
            path.unlink()
        make()
    project.forget()
    interrupted(python(project, _AT, str(1 + int((_TOTALS[arguments] - 200) * part)), *arguments))


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1])
def test_interrupt_at_any_time_of_a_resume(project: ProjectFolder, part: float) -> None:
    arguments = ("resume", "fail-1", "--yes", "--app", "flows")
    sweep(project, lambda: _fail(project, "fail-1"), arguments, part)
    done = project.process(*arguments)
    assert (done.code, done.out) == (0, 'completed  fail-1@4: "whole"\n')
    # Only a step that was under way is run a second time.
    assert project.world in (["fragile"], ["fragile", "fragile"])
    assert project.json("verify")["ok"]


@pytest.mark.parametrize("part", [0.2, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95, 1])
def test_interrupt_at_any_time_of_a_rollback(project: ProjectFolder, part: float) -> None:
    arguments = ("rollback", "shop-1", "--to", "1", "--no-resume", "--yes", "--app", "flows")
    sweep(project, lambda: project.run(flows.shop, run_id="shop-1", state={}), arguments, part)
    done = project.process(*arguments)
    assert done.code == 0, done
    undone = project.world
    assert list(dict.fromkeys(undone)) == ["undo rock", "undo kelp"]
    assert len(undone) <= 3
    assert project.look("shop-1") == ("paused", None, {})
    assert project.json("verify")["ok"]


def test_interrupt_in_a_step_on_a_terminal(project: ProjectFolder) -> None:
    project.run(flows.long, [], run_id="seed")
    _resumable(project)
    screen = project.terminal("resume", "fail-1", "--yes", "--app", "flows")
    project_folder.until(lambda: "begin" in project.world)
    assert screen.interrupt().end() == 130
    assert screen.text.splitlines()[-1] == "holdfast: interrupted; nothing is lost"
    assert "Traceback" not in screen.text
    assert {run["id"]: run["status"] for run in project.json("runs")}["fail-1"] == "interrupted"
    project.touch("go")
    assert project.process("resume", "fail-1", "--app", "flows").code == 0


def _resumable(project: ProjectFolder) -> None:
    """A failed run whose step will wait for a file."""
    _fail(project, "fail-1")
    project.rewrite('did("fragile")', 'did("begin")\n    wait_for_file("go")')


def test_interrupt_in_a_step_by_a_signal(project: ProjectFolder) -> None:
    _resumable(project)
    process = _started(project, "resume", "fail-1", "--app", "flows")
    project_folder.until(lambda: "begin" in project.world)
    interrupted(_signalled(process))
    assert project.json("runs")[0]["status"] == "interrupted"


def test_interrupt_in_an_asynchronous_step(project: ProjectFolder) -> None:
    broken = project.touch("broken")
    project.run(flows.walking, run_id="walk-1")
    broken.unlink()
    project.rewrite(
        'did("acount")',
        'did("begin")\n    while not Path("go").exists():\n        await asyncio.sleep(0.005)',
    )
    process = _started(project, "resume", "walk-1", "--app", "flows")
    project_folder.until(lambda: "begin" in project.world)
    interrupted(_signalled(process))
    project.touch("go")
    assert project.process("resume", "walk-1", "--app", "flows").code == 0


def test_interrupt_in_a_compensation(project: ProjectFolder) -> None:
    project.run(flows.heavy_flow, run_id="heavy-1")
    project.touch("go-undo-b")
    process = _started(project, "rollback", "heavy-1", "--to", "1", "--no-resume", "--app", "flows")
    project.until("begin undo a")
    interrupted(_signalled(process))
    project.touch("go-undo-a")
    assert project.json("resume", "heavy-1", "--dry-run")["undo"] == ["heavy"]
    assert project.process("rollback", "heavy-1", "--to", "1", "--no-resume", "--app", "flows").code == 0
    assert project.world.count("end undo b") == 1


def test_interrupt_in_a_python_callback_is_repeated(project: ProjectFolder) -> None:
    """In a callback of Python's own, from which nothing goes up."""
    _resumable(project)
    project.rewrite(
        'did("begin")',
        'did("begin")\n    import os, signal\n    kill = os.kill\n'
        "    class Loud:\n        def __del__(self):\n            kill(os.getpid(), signal.SIGINT)\n"
        "    Loud()",
    )
    interrupted(project.process("resume", "fail-1", "--app", "flows"))


def test_interrupt_ends_watch(project: ProjectFolder) -> None:
    project.run(flows.sleeping, 3600, run_id="wait-1")
    screen = project.terminal("watch", "wait-1").until("wait-1@")
    assert screen.interrupt().end() == 130
    assert "Traceback" not in screen.text
    process = _started(project, "watch", "wait-1")
    assert process.stdout is not None
    assert process.stdout.readline()
    done = _signalled(process)
    assert (done.code, "Traceback" in done.err) == (130, False)


def test_interrupt_ends_verify(project: ProjectFolder) -> None:
    with project.open() as hf:
        log = hf.history("many")
        for number in range(300):
            log.commit({"n": number})
    for limit in ("2000", "9000", "20000"):
        interrupted(python(project, _AT, limit, "verify"))


def test_interrupt_given_twice_ends_at_once(project: ProjectFolder) -> None:
    """A running thread does not delay the exit by a second interrupt."""
    _resumable(project)
    project.rewrite(
        'wait_for_file("go")',
        'import threading\n    threading.Thread(target=wait_for_file, args=("go",)).start()\n    wait_for_file("go")',
    )
    process = _started(project, "resume", "fail-1", "--app", "flows")
    project_folder.until(lambda: "begin" in project.world)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    reported = [process.stderr.readline() for _ in range(2)]
    assert "interrupted" in reported[1]
    project_folder.until(lambda: _signal_until_gone(process))
    assert process.wait() == 130
    assert process.stderr.read() == ""


def _signal_until_gone(process: subprocess.Popen[str]) -> bool:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    return process.poll() is not None


def _started(project: ProjectFolder, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*terminal.PROGRAM, *arguments],
        cwd=project.folder,
        env=terminal.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _signalled(process: subprocess.Popen[str]) -> terminal.Done:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return terminal.Done(process.returncode, out, err)
