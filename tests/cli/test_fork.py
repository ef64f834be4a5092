"""`holdfast fork`."""

from __future__ import annotations

import stat
from pathlib import Path

import flows
import project_folder
import pytest
from project_folder import ProjectFolder, one_line

import holdfast

project = project_folder.project


@pytest.fixture
def shop(project: ProjectFolder) -> ProjectFolder:
    project.run(flows.shop, run_id="shop-1", state={"n": 0, "plan": {"days": 3}})
    project.forget()
    return project


def editor(project: ProjectFolder, code: str) -> dict[str, str]:
    """An editor that does this to the file's text."""
    path = project.folder / "editor"
    path.write_text(
        "#!/bin/sh\nexec python3 - \"$1\" <<'END'\n"
        "import os, pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "text = path.read_text()\n"
        f"{code}\n"
        "END\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"EDITOR": str(path), "VISUAL": str(path)}


SAVE = "path.write_text(text); os.utime(path, (1e9, 1e9))"


def state_of(project: ProjectFolder, run: str) -> object:
    with project.open() as hf:
        return holdfast.thaw(hf.get(run).state)


def test_fork_creates_a_run_from_a_version(shop: ProjectFolder) -> None:
    done = shop.call("fork", "shop-1@3", "shop-2", "--note", "to try")
    assert (done.code, done.out) == (0, "shop-2\n")
    assert "A new run shop-2 will start with the state of shop-1@3." in done.err
    assert state_of(shop, "shop-2") == {"n": 1, "plan": {"days": 3}, "orders": ["kelp"]}
    with shop.open() as hf:
        assert hf.get("shop-2").head.note == "to try"


def test_fork_prints_json_and_takes_an_id(shop: ProjectFolder) -> None:
    found = shop.json("fork", "shop-1@2")
    assert found["source"] == "shop-1@2"
    assert found["run"].startswith("shop-1-fork-")


def test_fork_sets_values(shop: ProjectFolder) -> None:
    done = shop.call(
        "fork",
        "shop~1",
        "shop-2",
        "--set",
        "n=7",
        "--set",
        "plan.days=[1, null]",
        "--set",
        'title="Kelp = \\"good\\""',
    )
    assert done.code == 0, done
    assert "plan.days will be [1, null]." in done.err
    assert state_of(shop, "shop-2") == {
        "n": 7,
        "plan": {"days": [1, None]},
        "orders": ["kelp", "rock"],
        "title": 'Kelp = "good"',
    }


@pytest.mark.parametrize(
    ("setting", "code", "text"),
    [
        ("title=Kelp", 2, "is not JSON; write a text in double quotes"),
        ("title=", 2, "is not JSON"),
        ("title", 2, "--set takes PATH=JSON"),
        ("=3", 2, "--set takes PATH=JSON"),
        ("x[y=3", 2, "x[y"),
        ("orders[9]=3", 3, "the state has no place 'orders[9]'"),
        ("n.deep=3", 3, "the state has no place 'n.deep'"),
        ("nothing.deep=3", 3, "the state has no place 'nothing.deep'"),
        ('x={"$holdfast": "nonsense", "value": 1}', 2, "nonsense"),
    ],
)
def test_fork_reports_invalid_values_before_any_change(
    shop: ProjectFolder, setting: str, code: int, text: str
) -> None:
    before = shop.bytes()
    assert text in one_line(shop.call("fork", "shop-1@3", "shop-2", "--set", setting), code)
    assert text in shop.json("fork", "shop-1@3", "--set", setting, "--dry-run", code=code)["message"]
    assert shop.bytes() == before


def test_fork_dry_run_changes_nothing(shop: ProjectFolder) -> None:
    before = shop.bytes()
    done = shop.call("fork", "shop-1@3", "shop-2", "--set", "n=7", "--dry-run")
    assert (done.code, done.out) == (
        0,
        "A new run shop-2 will start with the state of shop-1@3.\nn will be 7.\n",
    )
    found = shop.json("fork", "shop-1@3", "shop-2", "--set", "n=7", "--dry-run")
    assert found == {"dry_run": True, "source": "shop-1@3", "run": "shop-2", "set": {"n": 7}}
    assert shop.bytes() == before


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("\n", 1), ("\x03", 130)])
def test_fork_asks_on_a_terminal(shop: ProjectFolder, typed: str, code: int) -> None:
    before = shop.bytes()
    screen = shop.terminal("fork", "shop-1@3", "shop-2").until("Go ahead?")
    assert screen.type(typed).end() == code
    assert "Traceback" not in screen.text
    assert (shop.bytes() == before) is (typed != "y\n")


def test_fork_never_overwrites_a_run(shop: ProjectFolder) -> None:
    shop.run(flows.shop, run_id="other")
    done = shop.call("fork", "shop-1@3", "other")
    assert done.code == 4
    assert "run 'other' exists" in done.err.splitlines()[-1]
    for name, code in (("other", 4), ("a@b", 2)):
        screen = shop.terminal("fork", "shop-1@3", name)
        assert screen.end() == code, "an impossible change is not confirmed"
        assert shop.call("fork", "shop-1@3", name, "--dry-run").code == code
    assert shop.json("fork", "shop-1@3", "other", code=4)["code"] == "already_exists"


def test_fork_resumes_at_once(shop: ProjectFolder) -> None:
    line = one_line(shop.call("fork", "shop-1@3", "shop-2", "--resume"), 2)
    assert "fork --resume needs the code of workflow 'cli_shop'" in line
    done = shop.call("fork", "shop-1@3", "shop-2", "--set", "n=40", "--resume", "--app", "flows")
    assert (done.code, done.out) == (0, "completed  shop-2@4: 41\n")
    assert shop.world == ["order rock", "count 41"]
    assert shop.look("shop-1")[1] == 2


def test_fork_edits_the_state_in_an_editor(shop: ProjectFolder) -> None:
    more = editor(shop, f"text = text.replace('\"days\": 3', '\"days\": 9'); {SAVE}")
    done = shop.call("fork", "shop-1@1", "shop-2", "--edit", **more)
    assert done.code == 0, done
    assert state_of(shop, "shop-2") == {"n": 0, "plan": {"days": 9}}


def test_fork_edit_and_set_are_combined(shop: ProjectFolder) -> None:
    more = editor(shop, f"text = text.replace('\"days\": 3', '\"days\": 9'); {SAVE}")
    done = shop.call("fork", "shop-1@1", "shop-2", "--edit", "--set", "plan.more=true", **more)
    assert done.code == 0, done
    assert state_of(shop, "shop-2") == {"n": 0, "plan": {"days": 9, "more": True}}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("pass", "the state was not saved in the editor; nothing was forked"),
        (f"text = text[:-2]; {SAVE}", "the edited state cannot be read: Expecting"),
        (f"text = ''; {SAVE}", "the edited state cannot be read"),
        ("sys.exit(3)", "Editing failed"),
    ],
)
def test_fork_with_an_unsaved_edit_is_refused(shop: ProjectFolder, code: str, text: str) -> None:
    before = shop.bytes()
    line = one_line(shop.call("fork", "shop-1@1", "shop-2", "--edit", **editor(shop, code)), 2)
    assert text.lower() in line.lower()
    assert shop.bytes() == before


def test_fork_lets_an_invalid_edit_be_corrected(shop: ProjectFolder) -> None:
    """The editor shows the invalid text again."""
    mark = shop.folder / "mark"
    code = (
        f"mark = pathlib.Path({str(mark)!r}); first = not mark.exists(); mark.touch()\n"
        "text = text.replace('3', '3,,', 1) if first else text.replace('3,,', '5')\n" + SAVE
    )
    screen = shop.terminal("fork", "shop-1@1", "shop-2", "--edit", **editor(shop, code))
    screen.until("the edited state cannot be read").until("Edit it again?").type("y\n")
    screen.until("Go ahead?").type("y\n")
    assert screen.end() == 0
    assert state_of(shop, "shop-2") == {"n": 0, "plan": {"days": 5}}


def test_fork_with_a_missing_editor_is_refused(shop: ProjectFolder) -> None:
    missing = str(Path("/nowhere/editor"))
    done = shop.call("fork", "shop-1@1", "shop-2", "--edit", EDITOR=missing, VISUAL=missing)
    assert "editor" in one_line(done, 2).lower()
