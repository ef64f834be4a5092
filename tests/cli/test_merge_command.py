"""`holdfast merge`."""

from __future__ import annotations

import project_folder
import pytest
from project_folder import ProjectFolder, one_line

project = project_folder.project


@pytest.fixture
def two(project: ProjectFolder) -> ProjectFolder:
    """Two timelines: both changed `both` and `list`, each something of its own."""
    with project.open() as hf:
        log = hf.history("plan-1")
        log.commit({"both": 0, "list": [1], "gone": 1})
        log.commit({"both": "left", "list": [1, 2], "gone": 1, "left": True})
        log.rollback(to=1)
        log.commit({"both": "right", "list": [1, 3], "right": True})
    return project


@pytest.fixture
def apart(project: ProjectFolder) -> ProjectFolder:
    """Two timelines without a conflict."""
    with project.open() as hf:
        log = hf.history("plan-1")
        log.commit({})
        log.commit({"left": True})
        log.rollback(to=1)
        log.commit({"right": True})
    return project


@pytest.mark.parametrize("other", [["2"], ["plan-1@2"], ["@2"], ["--timeline", "1"]])
def test_merge_takes_changes_of_one_side(apart: ProjectFolder, other: list[str]) -> None:
    done = apart.call("merge", "plan-1", *other, "--note", "together")
    assert (done.code, done.out) == (0, "plan-1@4 merges 3 and 2\n")
    assert "merge plan-1@2 into plan-1@3; they differ in 2 paths" in done.err
    assert apart.look("plan-1")[2] == {"right": True, "left": True}
    with apart.open() as hf:
        assert (hf.get("plan-1").head.kind, hf.get("plan-1").head.note) == ("merge", "together")


def test_merge_of_a_merged_version_is_refused(apart: ProjectFolder) -> None:
    assert apart.call("merge", "plan-1", "2").code == 0
    with apart.open() as hf:
        hf.history("plan-1").commit({"more": 1})
    assert "nothing to merge" in one_line(apart.call("merge", "plan-1", "--timeline", "1"), 2)


def test_merge_prints_json(apart: ProjectFolder) -> None:
    assert apart.json("merge", "plan", "2") == {"run": "plan-1", "head": 3, "other": 2, "version": 4}


def test_merge_dry_run_changes_nothing(apart: ProjectFolder) -> None:
    before = apart.bytes()
    done = apart.call("merge", "plan-1", "2", "--dry-run")
    assert (done.code, done.out) == (0, "merge plan-1@2 into plan-1@3; they differ in 2 paths\n")
    assert apart.json("merge", "plan-1", "2", "--dry-run") == {
        "dry_run": True,
        "run": "plan-1",
        "head": 3,
        "other": 2,
    }
    assert apart.bytes() == before


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("\x03", 130)])
def test_merge_asks_on_a_terminal(apart: ProjectFolder, typed: str, code: int) -> None:
    before = apart.bytes()
    screen = apart.terminal("merge", "plan-1", "2").until("differ in 2 paths").until("Go ahead?")
    assert screen.type(typed).end() == code
    assert "Traceback" not in screen.text
    assert (apart.bytes() == before) is (typed != "y\n")


def test_merge_conflict_names_both_sides(two: ProjectFolder) -> None:
    before = two.bytes()
    done = two.call("merge", "plan-1", "2")
    assert done.code == 4
    assert done.err.splitlines()[-1] == (
        'holdfast: both changed both: plan-1@3 has "right", plan-1@2 has "left"; use --prefer head or --prefer other'
    )
    assert "both changed both" in one_line(two.call("merge", "plan-1", "2", "--dry-run"), 4)
    assert two.call("merge", "plan-1", "2", "--dry-run", "--prefer", "head").code == 0
    assert two.terminal("merge", "plan-1", "2").end() == 4, "an impossible change is not confirmed"
    found = two.json("merge", "plan-1", "2", code=4)
    assert found["code"] == "merge_conflict"
    assert found["details"] == {
        "path": "both",
        "paths": ["both"],
        "base": 0,
        "head": "right",
        "other": "left",
    }
    assert two.bytes() == before


@pytest.mark.parametrize(("side", "stays"), [("head", "right"), ("other", "left")])
def test_merge_prefer_keeps_the_side(two: ProjectFolder, side: str, stays: str) -> None:
    done = two.call("merge", "plan-1", "2", "--prefer", side)
    assert done.code == 0, done
    state = two.look("plan-1")[2]
    assert state["both"] == stays
    assert state["list"] == [1, 3, 2]
    assert (state["left"], state["right"], "gone" in state) == (True, True, False)


@pytest.mark.parametrize(("side", "there"), [("head", False), ("other", True)])
def test_merge_prefer_keeps_a_deletion(project: ProjectFolder, side: str, there: bool) -> None:
    with project.open() as hf:
        log = hf.history("plan-1")
        log.commit({"x": 0})
        log.commit({"x": 1})
        log.rollback(to=1)
        log.commit({})
    assert "deletes it" in project.call("merge", "plan-1", "2").err
    assert project.json("merge", "plan-1", "2", code=4)["details"]["head"] is None
    assert project.call("merge", "plan-1", "2", "--prefer", side).code == 0
    assert ("x" in project.look("plan-1")[2]) is there


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "name a version, or --timeline N"),
        (["2", "--timeline", "1"], 2, "name a version, or --timeline N"),
        (["9"], 3, "no version 9"),
        (["--timeline", "9"], 3, "no timeline 9"),
        (["1"], 2, "nothing to merge: plan-1@3 already contains plan-1@1"),
        (["head"], 2, "nothing to merge"),
        (["2", "--prefer", "unknown"], 2, "unknown"),
    ],
)
def test_merge_usage_errors_are_reported(
    two: ProjectFolder, arguments: list[str], code: int, text: str
) -> None:
    assert text in one_line(two.call("merge", "plan-1", *arguments), code)
