"""`holdfast rollback`."""

from __future__ import annotations

import flows
import project_folder
import pytest
from project_folder import ProjectFolder, one_line

project = project_folder.project


@pytest.fixture
def shop(project: ProjectFolder) -> ProjectFolder:
    project.run(flows.shop, run_id="shop-1", state={"n": 0})
    project.forget()
    return project


def test_rollback_compensates_and_resumes(shop: ProjectFolder) -> None:
    done = shop.call(
        "rollback", "shop-1", "--to", "2", "--app", "flows", "--reason", "wrong", "--actor", "ann"
    )
    assert (done.code, done.out) == (0, "completed  shop-1@11: 2\n")
    assert done.err.splitlines() == [
        "shop-1 will be rolled back to version 2, on a new timeline.",
        "4 later versions will stay readable.",
        "Compensations will run first, in this order: order#2.",
        "1 completed step will be replayed from history.",
        "These steps will run again: count, order#2, count#2.",
    ]
    assert shop.world == ["undo rock", "count 1", "order rock", "count 2"]
    with shop.open() as hf:
        timeline = hf.history("shop-1").timelines()[-1]
        assert (timeline.parent, timeline.reason, timeline.actor) == (2, "wrong", "ann")
        assert hf.version("shop-1@6").result == 2


@pytest.mark.parametrize(
    "target", ["2", "@2", "~4", "shop-1@2", "shop-1~4", "sh@2", "good", "shop-1:good", ":good"]
)
def test_rollback_accepts_every_reference(shop: ProjectFolder, target: str) -> None:
    with shop.open() as hf:
        hf.history("shop-1").tag(2, "good")
    assert shop.json("rollback", "shop", "--to", target, "--dry-run")["version"] == 2


def test_rollback_dry_run_needs_no_code(shop: ProjectFolder) -> None:
    before = shop.bytes()
    done = shop.call("rollback", "shop-1", "--to", "1", "--dry-run")
    assert done.code == 0
    assert "Compensations will run first, in this order: order#2, order.\n" in done.out
    assert done.err == "nothing was changed (--dry-run)\n"
    assert shop.json("rollback", "shop-1", "--to", "1", "--dry-run") == {
        "dry_run": True,
        "run": "shop-1",
        "status": "completed",
        "workflow": "cli_shop",
        "version": 1,
        "left": [2, 3, 4, 5, 6],
        "replayed": [],
        "again": ["order", "count", "order#2", "count#2"],
        "undo": ["order#2", "order"],
        "cancelled": [],
        "rewound": [],
        "waits": [],
        "known": False,
    }
    assert shop.bytes() == before
    assert shop.world == []


def test_rollback_no_resume_leaves_the_run_paused(shop: ProjectFolder) -> None:
    found = shop.json("rollback", "shop-1", "--to", "1", "--no-resume", "--app", "flows")
    assert found == {"run": "shop-1", "status": "paused", "version": 1, "timeline": 2}
    assert shop.world == ["undo rock", "undo kelp"]
    assert shop.look("shop-1") == ("paused", None, {"n": 0})


@pytest.mark.parametrize("typed", ["y\n", "n\n", "\x03"])
def test_rollback_asks_on_a_terminal(shop: ProjectFolder, typed: str) -> None:
    before = shop.bytes()
    screen = shop.terminal("rollback", "shop-1", "--to", "2", "--app", "flows")
    screen.until("Compensations will run first, in this order: order#2.").until("Go ahead?")
    assert shop.bytes() == before
    code = screen.type(typed).end()
    assert "Traceback" not in screen.text
    if typed == "y\n":
        assert code == 0
        assert "✓ [undo]/order#2" in screen.text
        assert "completed  shop-1@11: 2" in screen.text
    else:
        assert code == (130 if typed == "\x03" else 1)
        assert "nothing" in screen.text.splitlines()[-1]
        assert shop.bytes() == before
        assert shop.world == []


def test_rollback_without_code_says_how_to_name_it(shop: ProjectFolder) -> None:
    before = shop.bytes()
    for more in ([], ["--no-resume"]):
        line = one_line(shop.call("rollback", "shop-1", "--to", "1", *more), 2)
        assert "rollback needs the code of workflow 'cli_shop'" in line
        assert "--app module" in line
    assert shop.bytes() == before


def test_rollback_without_compensations_needs_no_code(shop: ProjectFolder) -> None:
    """Nothing has to be undone, and nothing is run."""
    done = shop.call("rollback", "shop-1", "--to", "4", "--no-resume")
    assert (done.code, done.out) == (0, "rolled back shop-1 to version 4\n")


def test_rollback_with_a_failed_compensation_says_how_to_complete_it(shop: ProjectFolder) -> None:
    stuck = shop.touch("stuck-kelp")
    done = shop.call("rollback", "shop-1", "--to", "1", "--no-resume", "--app", "flows")
    line = done.err.splitlines()[-1]
    assert done.code == 4
    assert line.startswith(
        "holdfast: the compensation of step 'order' of run 'shop-1' failed with ConnectionError: kelp cannot"
    )
    assert "`holdfast resume shop-1` completes it and resumes the run" in line
    assert "`holdfast rollback shop-1 --to 1 --no-resume` only completes it" in line
    found = shop.json("rollback", "shop-1", "--to", "1", "--app", "flows", code=4)
    assert (found["code"], found["details"]) == ("compensation_failed", {"run": "shop-1", "address": "order"})
    assert shop.world == ["undo rock"]
    # What is left to be undone is reported before it is done.
    plan = shop.json("resume", "shop-1", "--dry-run")
    assert (plan["undo"], plan["version"]) == (["order"], 1)
    assert plan["again"] == ["order", "count", "order#2", "count#2"]
    stuck.unlink()
    done = shop.call("rollback", "shop-1", "--to", "1", "--no-resume", "--app", "flows")
    assert (done.code, shop.world) == (0, ["undo rock", "undo kelp"])
    assert shop.look("shop-1")[0] == "paused"


def test_rollback_that_is_incomplete_is_completed_by_resume(shop: ProjectFolder) -> None:
    stuck = shop.touch("stuck-kelp")
    assert shop.call("rollback", "shop-1", "--to", "1", "--no-resume", "--app", "flows").code == 4
    stuck.unlink()
    done = shop.call("resume", "shop-1", "--app", "flows")
    assert "Compensations will run first, in this order: order.\n" in done.err
    assert done.code == 0
    assert shop.world == ["undo rock", "undo kelp", "order kelp", "count 1", "order rock", "count 2"]


def test_rollback_cancels_children(project: ProjectFolder) -> None:
    project.run(flows.parent, run_id="parent-1")
    done = project.call("rollback", "parent-1", "--to", "1", "--no-resume", "--app", "flows")
    assert done.code == 0, done
    assert "Children will be cancelled: parent-1.cli_child." in done.err
    assert project.look("parent-1.cli_child")[0] == "cancelled"
    assert project.world == ["order kelp", "count 1", "undo kelp"]


def test_rollback_of_an_asynchronous_workflow(project: ProjectFolder) -> None:
    project.run(flows.walking, run_id="walk-1")
    done = project.call("rollback", "walk-1", "--to", "2", "--app", "flows")
    assert (done.code, done.out) == (0, "completed  walk-1@6: 2\n")
    assert project.world == ["acount"] * 3


def test_rollback_of_a_manual_run_needs_no_code(project: ProjectFolder) -> None:
    with project.open() as hf:
        log = hf.history("by-hand")
        for number in range(3):
            log.commit({"n": number})
    done = project.call("rollback", "by-hand", "--to", "~1")
    assert (done.code, done.out) == (0, "rolled back by-hand to version 2\n")
    assert project.look("by-hand")[2] == {"n": 1}


def test_rollback_to_the_head_is_announced(project: ProjectFolder) -> None:
    with project.open() as hf:
        hf.history("by-hand").commit({"n": 1})
    reported = "by-hand will stay at version 1, on a new timeline."
    project.terminal("rollback", "by-hand", "--to", "head").until(reported).until("Go ahead?").type(
        "y\n"
    ).end()
    assert project.call("rollback", "by-hand", "--to", "head", "--dry-run").out == reported + "\n"
    with project.open() as hf:
        assert len(hf.history("by-hand").timelines()) == 2


def test_rollback_of_a_version_is_refused(shop: ProjectFolder) -> None:
    line = one_line(shop.call("rollback", "shop-1@2", "--to", "2", "--app", "flows"), 2)
    assert line == "holdfast: shop-1@2 is a version, but a run is expected: name the version with --to"


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("99", 3, "99"),
        ("nothing", 3, "nothing"),
        ("~99", 3, "99"),
        ("@x", 2, "x"),
        ("other@1", 2, "other"),
    ],
)
def test_rollback_to_a_missing_version_is_refused(
    shop: ProjectFolder, target: str, code: int, text: str
) -> None:
    shop.run(flows.shop, run_id="other")
    before = shop.bytes()
    done = shop.call("rollback", "shop-1", "--to", target, "--app", "flows")
    assert text in one_line(done, code)
    assert shop.bytes() == before


def test_rollback_needs_a_target(shop: ProjectFolder) -> None:
    assert "--to" in one_line(shop.call("rollback", "shop-1"), 2)


def test_rollback_with_changed_code_is_refused_before_any_change(project: ProjectFolder) -> None:
    for run_id, command in (
        ("one", ["rollback", "one", "--to", "1"]),
        ("two", ["fork", "two@1", "--resume"]),
    ):
        project.run(flows.strict, run_id=run_id)
        project.rewrite('version="strict 1"', 'version="strict 2"')
        before = project.bytes()
        reported = one_line(project.call(*command, "--app", "flows"), 4)
        assert f"has changed since run '{run_id}' was last executed: restore the old code, or use" in reported
        assert reported.endswith("--changed allow")
        assert project.bytes() == before
        assert project.call(*command, "--app", "flows", "--changed", "allow").code == 0
        project.rewrite('version="strict 2"', 'version="strict 1"')
