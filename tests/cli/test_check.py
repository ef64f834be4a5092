"""`holdfast check`."""

from __future__ import annotations

import json

import flows
import project_folder
from project_folder import ProjectFolder

project = project_folder.project


def test_check_exits_with_one_if_a_run_would_diverge(project: ProjectFolder) -> None:
    project.run(flows.asking_twice, run_id="ask-1")
    project.run(flows.asking_twice, run_id="ask-2")
    project.forget()
    done = project.call("check", "flows")
    assert (done.code, done.out) == (0, "")
    assert project.json("check", "--app", "flows") == []
    project.rewrite('@workflow(name="cli_twice")', '@workflow(name="cli_renamed")')
    done = project.call("check", "flows")
    assert done.code == 1
    assert done.out.count("missing") == 2
    done = project.call("check", "flows", "--run", "ask-1", "--json")
    assert done.code == 1
    (found,) = json.loads(done.out)
    assert (found["run"], found["kind"], found["workflow"]) == ("ask-1", "missing", "cli_twice")
    assert project.look("ask-1")[0] == "suspended"


def test_check_needs_an_app(project: ProjectFolder) -> None:
    project.run(flows.asking_twice, run_id="ask-1")
    done = project.call("check")
    assert done.code == 2
    assert "holdfast check MODULE" in done.err
