"""`holdfast demo` shows what the README says, in a terminal and in a pipe, and creates a store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import holdfast

PROGRAM = [sys.executable, "-m", "holdfast"]


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_demo_shows_crash_resume_and_rollback(tmp_path: Path) -> None:
    done = call("demo", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines_in_order = [
        "↻ search   the search engine does not answer",
        "kill -9 in the middle of “draft”, after 6 steps",
        "0 steps repeated, 10 versions",
        "facts.growth  version 7  extract",
        'timeline 2: "centimetres, not metres"',
        "├─╯",
        '~ facts.growth  "60 metres a day" → "60 centimetres a day"',
    ]
    places = [done.stdout.find(part) for part in lines_in_order]
    assert -1 not in places, done.stdout
    assert places == sorted(places)
    with holdfast.open(tmp_path / "demo.db", create=False) as hf:
        run = hf.get("research")
        assert run.status == "completed"
        assert "60 centimetres" in run.result
        assert "60 metres" in hf.version("research@10").result
        assert run.history().at(4).attempt == 2
        assert run.head.state["notes"] == ["what is it", "how fast does it grow", "who lives there"]
        assert hf.verify().ok


def test_demo_commands_at_its_end_work(tmp_path: Path) -> None:
    done = call("demo", cwd=tmp_path)
    advised = [
        line.split("-m holdfast ")[1] for line in done.stdout.splitlines() if "--store demo.db" in line
    ]
    *looks, page = advised
    assert len(looks) == 3
    assert page == "--store demo.db ui"  # runs until it is stopped; see tests/web
    for command in looks:
        followed = call(*command.split(), cwd=tmp_path)
        assert followed.returncode == 0, followed.stderr
        assert followed.stdout


def test_demo_does_not_overwrite_an_earlier_file(tmp_path: Path) -> None:
    (tmp_path / "demo.db").write_text("other")
    assert call("demo", cwd=tmp_path).returncode == 0
    assert (tmp_path / "demo.db").read_text() == "other"
    assert (tmp_path / "demo-2.db").exists()


def test_demo_refuses_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "mine.db").write_text("mine")
    done = call("demo", "mine.db", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "mine.db exists" in done.stderr
    assert (tmp_path / "mine.db").read_text() == "mine"


def test_demo_prints_json(tmp_path: Path) -> None:
    done = call("demo", "mine.db", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"store": "mine.db", "run": "research", "versions": 14, "repeated": 0}
    refused = call("demo", "--json", "--picture", "demo.svg", cwd=tmp_path)
    assert (refused.returncode, json.loads(refused.stderr)["code"]) == (2, "usage")


def test_demo_reports_an_unwritable_folder_in_one_line(tmp_path: Path) -> None:
    done = call("demo", "no/such/folder/demo.db", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (10, "", 1)
    assert "does not exist: create it" in done.stderr


def test_demo_draws_a_picture(tmp_path: Path) -> None:
    assert call("demo", "--picture", "demo.svg", cwd=tmp_path).returncode == 0
    drawn = (tmp_path / "demo.svg").read_text()
    assert drawn.startswith("<svg")
    assert "0&#160;steps&#160;repeated" in drawn
    assert "url(" not in drawn.replace("url(#", "")
