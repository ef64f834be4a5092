"""Where the code and the store come from: --app, HOLDFAST_APP, pyproject.toml, and what can be wrong there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import flows
import project_folder
import pytest
import terminal
from project_folder import ProjectFolder, one_line

import holdfast

project = project_folder.project


@pytest.fixture
def failed(project: ProjectFolder) -> ProjectFolder:
    """A run that can be resumed with the code in `flows`."""
    broken = project.touch("broken")
    project.run(flows.failing, run_id="fail-1")
    broken.unlink()
    return project


def write(project: ProjectFolder, name: str, text: str) -> Path:
    path = project.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


RESUME = ("resume", "fail-1")


@pytest.mark.parametrize(
    ("app", "code", "text"),
    [
        ("nowhere", None, "there is no module 'nowhere' in this folder or installed"),
        ("nowhere.deep", None, "there is no module 'nowhere' in this folder"),
        ("app.deep", "x = 1", "there is no module 'app.deep' in this folder"),
        ("app", "import nowhere", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("app", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("app", "def", "cannot be imported: SyntaxError"),
        (
            "app",
            "raise ValueError('one\\ntwo')",
            "cannot be imported: ValueError: one (--debug shows the traceback)",
        ),
        ("app", "import sys; sys.exit(0)", "cannot be imported: SystemExit: 0 (put code that starts"),
        (
            "app",
            "import holdfast; holdfast.open(3)",
            'the program below `if __name__ == "__main__":`',
        ),
        ("app", "x = 1", "the app 'app' does not define it"),
        ("app:hf", "x = 1", "names 'hf', which does not exist"),
        ("app:hf", "hf = 3", "names 'hf', which is int, not an open store"),
        ("flows.py", None, "write it as in an import"),
        ("./flows", None, "write it as in an import"),
        (":hf", None, "write it as in an import"),
        ("a b", None, "write it as in an import"),
    ],
)
def test_app_that_cannot_be_loaded_is_refused(
    failed: ProjectFolder, app: str, code: str | None, text: str
) -> None:
    if code is not None:
        write(failed, "app.py", code)
    before = failed.bytes()
    assert text in one_line(failed.call(*RESUME, "--app", app), 2)
    found = failed.json(*RESUME, "--app", app, code=2)
    assert found["code"] == "invalid"
    assert text in found["message"]
    assert failed.bytes() == before


def test_debug_shows_where_an_import_fails(failed: ProjectFolder) -> None:
    write(failed, "app.py", "def deep():\n    1 / 0\ndeep()")
    done = failed.call(*RESUME, "--app", "app", "--debug")
    assert done.code != 0
    assert "in deep" in done.err


def test_doctor_reports_an_app_that_cannot_be_imported(failed: ProjectFolder) -> None:
    write(failed, "app.py", "1 / 0")
    found = {each["check"]: each for each in failed.json("doctor", "--app", "app", code=1)}
    assert "ZeroDivisionError" in found["app"]["what"]


def test_app_output_is_not_part_of_the_result(failed: ProjectFolder) -> None:
    write(failed, "app.py", "print('hello')\nfrom flows import *")
    done = failed.call(*RESUME, "--app", "app", "--json")
    assert (done.code, done.out.count("\n"), done.err) == (0, 1, "hello\n")


@pytest.mark.parametrize("named", ["option", "environment", "pyproject", "above", "package"])
def test_app_is_found_by_option_environment_and_project(failed: ProjectFolder, named: str) -> None:
    if named == "option":
        done = failed.call("--app", "flows", *RESUME)
    elif named == "environment":
        done = failed.call(*RESUME, HOLDFAST_APP="flows")
    elif named == "pyproject":
        write(failed, "pyproject.toml", '[tool.holdfast]\napp = "flows"\n')
        done = failed.call(*RESUME)
    elif named == "above":
        write(failed, "pyproject.toml", '[tool.holdfast]\napp = "flows"\nstore = "holdfast.db"\n')
        (failed.folder / "deep").mkdir()
        write(failed, "deep/pyproject.toml", "[tool.other]\n")
        # What the workflows do to the world is done where they are called.
        done = terminal.call(*RESUME, cwd=failed.folder / "deep")
    else:
        write(failed, "package/__init__.py", "")
        (failed.folder / "flows.py").rename(failed.folder / "package" / "flows.py")
        done = failed.call(*RESUME, "--app", "package.flows")
    assert (done.code, done.out) == (0, 'completed  fail-1@4: "whole"\n'), done


def test_app_option_precedes_environment_and_project(failed: ProjectFolder) -> None:
    write(failed, "pyproject.toml", '[tool.holdfast]\napp = "nowhere1"\n')
    assert "nowhere1" in one_line(failed.call(*RESUME), 2)
    assert "nowhere2" in one_line(failed.call(*RESUME, HOLDFAST_APP="nowhere2"), 2)
    assert "nowhere3" in one_line(failed.call(*RESUME, "--app", "nowhere3", HOLDFAST_APP="nowhere2"), 2)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[tool.holdfast", "cannot be read"),
        ("a = \xff", "cannot be read"),
        ("[tool]\nholdfast = 3", "[tool.holdfast] in"),
        ("[tool.holdfast]\nstore = 3", "store in [tool.holdfast]"),
        ('[tool.holdfast]\nstore = ""', "store in [tool.holdfast]"),
    ],
)
def test_unreadable_project_file_is_reported(failed: ProjectFolder, text: str, reported: str) -> None:
    (failed.folder / "pyproject.toml").write_bytes(text.encode("latin-1"))
    line = one_line(failed.call("runs"), 2)
    assert reported in line
    assert "pyproject.toml" in line
    assert failed.json("runs", code=2)["code"] == "invalid"
    # Who names everything needs no project.
    done = failed.call(*RESUME, "--store", "holdfast.db", "--app", "flows")
    assert done.code == 0, done


@pytest.mark.parametrize("text", ["", "tool = 3", "[tool]\n", "[project]\nname = 'x'\n"])
def test_project_file_without_holdfast_table_is_ignored(failed: ProjectFolder, text: str) -> None:
    write(failed, "pyproject.toml", text)
    assert failed.call("runs").code == 0
    assert "--app module" in one_line(failed.call(*RESUME), 2)


def test_project_file_that_is_a_folder_is_ignored(failed: ProjectFolder) -> None:
    (failed.folder / "pyproject.toml").mkdir()
    assert failed.call("runs").code == 0


def test_store_of_the_app_is_used_by_default(failed: ProjectFolder) -> None:
    (failed.folder / "holdfast.db").rename(failed.folder / "mine.db")
    write(failed, "app.py", "import holdfast\nfrom flows import *\nhf = holdfast.open('mine.db')\n")
    assert failed.json(*RESUME, "--app", "app:hf")["status"] == "completed"
    # The module alone says nothing of a store.
    assert "there is no store at holdfast.db" in one_line(failed.call(*RESUME, "--app", "app"), 10)


@pytest.mark.parametrize("named", ["option", "environment", "pyproject"])
def test_named_store_precedes_the_store_of_the_app(failed: ProjectFolder, named: str) -> None:
    write(failed, "app.py", "import holdfast\nfrom flows import *\nhf = holdfast.open('other.db')\n")
    more: dict[str, Any] = {}
    arguments = [*RESUME, "--app", "app:hf"]
    if named == "option":
        arguments += ["--store", "holdfast.db"]
    elif named == "environment":
        more["HOLDFAST_STORE"] = "holdfast.db"
    else:
        write(failed, "pyproject.toml", '[tool.holdfast]\nstore = "holdfast.db"\n')
    assert failed.json(*arguments, **more)["status"] == "completed"
    assert failed.look("fail-1")[0] == "completed"


def test_app_store_is_used_if_both_names_are_the_same_store(project: ProjectFolder) -> None:
    """The redaction of the app's store applies to runs that the command line resumes."""
    with holdfast.open(project.folder / "holdfast.db", redact=["secret*"]) as hf:
        hf.run(flows.failing, run_id="fail-1")
    write(
        project,
        "app.py",
        "import holdfast\nfrom flows import *\nhf = holdfast.open('holdfast.db', redact=['secret*'])\n",
    )
    project.rewrite('did("fragile")', 'did("fragile")\n    holdfast.state()["secret_key"] = "sesame"')
    for where in ("holdfast.db", "./holdfast.db", "sqlite:///holdfast.db"):
        done = project.call("rollback", "fail-1", "--to", "2", "--app", "app:hf", "--store", where)
        assert done.code == 0, done
        assert project.look("fail-1")[2]["secret_key"] != "sesame", where


def test_app_with_a_closed_store_is_refused(failed: ProjectFolder) -> None:
    write(
        failed,
        "app.py",
        "import holdfast\nfrom flows import *\nhf = holdfast.open('holdfast.db')\nhf.close()\n",
    )
    assert "is closed" in one_line(failed.call(*RESUME, "--app", "app:hf"), 10)


def test_deleted_working_folder_is_handled(project: ProjectFolder) -> None:
    gone = project.folder / "gone"
    gone.mkdir()
    code = (
        f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from holdfast.cli import main; main()"
    )
    done = subprocess.run(
        [terminal.PROGRAM[0], "-c", code, "runs"],
        cwd=project.folder,
        env=terminal.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 10, done
    assert "there is no store at holdfast.db" in done.stderr
