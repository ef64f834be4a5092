"""Each example runs in a process of its own, prints what its README says, and leaves that in its store."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, Run

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@contextmanager
def run_example(name: str, folder: Path, *lines: str) -> Iterator[Holdfast]:
    """Run an example in an empty folder, check that its output has the lines, and open its store."""
    done = call_example(name, folder, str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    for line in lines:
        assert line in done.stdout, done.stdout
    with holdfast.open(folder / "runs.db") as hf:
        assert hf.verify().ok
        yield hf


def call_example(name: str, cwd: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *args]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def steps(run: Run) -> list[str]:
    """Return the address or kind of each version of a run, oldest first."""
    return [version.address or version.kind for version in reversed(run.history().versions())]


def kinds(run: Run) -> Counter[str]:
    return Counter(event.kind for event in run.events())


def test_tool_calling_agent_pays_once(tmp_path: Path) -> None:
    with run_example(
        "tool_calling_agent",
        tmp_path,
        "model → pay\nProcess, continued:\n  pay → Paid 12 € for the 16:10 ferry.",
        "stopped: 4 of 4 steps are used up",
        "completed: Done. Paid 12 € for the 16:10 ferry.  (600 tokens, 0.03 €)",
        "Payments: 1.",
    ) as hf:
        run = hf.get("ferry")
        assert steps(run) == [
            "initial",
            "ask_model",
            "call_tool",
            "ask_model#2",
            "call_tool#2",
            "ask_model#3",
            "final",
        ]
        assert [message["role"] for message in run.state["messages"]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "tool",
            "assistant",
        ]
        assert run.history().at(2).annotations["model"] == "fake-1"
        assert kinds(run)["run.resumed"] == 2


def test_crash_and_resume_repeats_only_the_interrupted_step(tmp_path: Path) -> None:
    with run_example(
        "crash_and_resume",
        tmp_path,
        "💥 kill -9. On disk: version 4, 3 completed steps",
        "Started twice: “write”",
        "sent: Dear reader",
    ) as hf:
        run = hf.get("newsletter")
        assert run.status == "completed"
        assert run.result.startswith("sent: Dear reader, you have a page on what kelp is")
        assert steps(run) == ["initial", "plan", "read", "read#2", "write", "send", "final"]
        assert run.history().at(4).state == {"notes": ["what kelp is", "where kelp grows"]}
        assert run.history().at(5).state["draft"] == "Dear reader"
        events = [event for event in run.events() if event.kind in ("step.completed", "run.resumed")]
        done = [event.step or event.kind for event in events]
        assert done == ["plan", "read", "read", "run.resumed", "write", "send"]


def test_human_approval_waits_without_a_process(tmp_path: Path) -> None:
    with run_example(
        "human_approval",
        tmp_path,
        "the run is suspended; this process ends",
        "article asks: Publish this article?",
        "does not fit at decision: 'perhaps'",
        "no answer before the deadline: the working title stays",
        "The run is completed: kelp, in one sentence",
    ) as hf:
        run = hf.get("article")
        assert (run.status, run.result) == ("completed", "kelp, in one sentence")
        assert steps(run) == ["initial", "draft", "ask", "ask#2", "publish", "final"]
        answered, missed = run.history().at(3), run.history().at(4)
        assert answered.result == {"decision": "publish", "comment": "charming"}
        assert answered.actor == "ada"
        assert "QuestionTimeout" in str(missed.error)
        assert run.state["comments"] == ["charming"]
        assert kinds(run)["question.opened"] == 2
        assert kinds(run)["question.answered"] == 1
        assert kinds(run)["run.suspended"] == 2
        assert hf.inbox() == []


def test_parallel_research_merges_changes(tmp_path: Path) -> None:
    with run_example(
        "parallel_research",
        tmp_path,
        "look_up[kelp]     best so far: urchins",
        "1700 words",
        "Two editors, one title: the run has failed",
        "the title is “Kelp and its friends”",
    ) as hf:
        run = hf.get("research")
        assert run.result == 1700
        assert run.state["words"] == {"kelp": 300, "urchins": 900, "otters": 500}
        assert sorted(run.state["found"]) == ["kelp", "otters", "urchins"]
        assert run.state["best"] == "urchins"
        assert sorted(steps(run)[1:-1]) == ["look_up[kelp]", "look_up[otters]", "look_up[urchins]"]
        stubborn, polite = hf.get("stubborn"), hf.get("polite")
        assert isinstance(stubborn.error, holdfast.MergeConflict)
        assert stubborn.state["title"] in ("Kelp", "Kelp and its friends")
        assert len(stubborn.history().versions(kind="step")) == 1
        assert polite.state["title"] == "Kelp and its friends"
        assert len(polite.history().versions(kind="step")) == 2


def test_ab_test_compares_two_forks(tmp_path: Path) -> None:
    with run_example(
        "ab_test",
        tmp_path,
        "  frugal    1 of 3 facts    80 tokens   0.013 €",
        "  thorough  3 of 3 facts   450 tokens   0.130 €",
        "  write: @2 ≠ @2",
        "(result: 1 → 3)",
        "forked from base@4",
    ) as hf:
        runs = {summary.id: summary for summary in hf.runs()}
        assert {name: summary.origin for name, summary in runs.items()} == {
            "base": None,
            "frugal": "base@4",
            "thorough": "base@4",
        }
        assert {name: hf.get(name).result for name in runs} == {"base": 2, "frugal": 1, "thorough": 3}
        for name, model, tokens in (("frugal", "small-1", 80), ("thorough", "large-1", 450)):
            assert steps(hf.get(name)) == ["fork", "write", "judge", "final"]
            assert hf.get(name).totals["tokens"] == tokens
            assert hf.history(name).at(2).annotations["model"] == model
            assert hf.get(name).state["facts"] == hf.history("base").at(4).state["facts"]
        assert hf.get("base").totals["tokens"] == 800


def test_order_is_compensated_once(tmp_path: Path) -> None:
    with run_example(
        "order_with_compensation",
        tmp_path,
        "failed: the carrier does not take wet goods",
        "💥 kill -9",
        "refund (known key: already done)",
        "the warehouse is closed: the rollback is unfinished",
        "completed: ['reservation of kelp', 'receipt for 20 €', 'kelp, by boat']",
    ) as hf:
        run = hf.get("order-7")
        names = [version.step or version.kind for version in reversed(run.history().versions())]
        first, second = names[:5], names[5:]
        assert first == ["initial", "reserve", "charge", "undo charge", "undo reserve"]
        assert second == ["reserve", "charge", "ship", "final"]
        assert run.history().at(6).parent == 1
        (line,) = run.history().timelines()[1:]
        assert (line.parent, line.reason) == (1, "it cannot be shipped")
        assert run.result == ["reservation of kelp", "receipt for 20 €", "kelp, by boat"]
        assert kinds(run)["run.rolled_back"] == 1
    ledger = [line.split() for line in (tmp_path / "ledger.txt").read_text().splitlines()]
    assert " ".join(what for what, _ in ledger) == "reserve charge refund release reserve charge ship"
    assert len({key for _, key in ledger}) == 7


def test_snapshots_around_existing_code_are_saved(tmp_path: Path) -> None:
    with run_example(
        "snapshots_around_existing_code",
        tmp_path,
        "at tools.search",
        "A sanitized copy replaces tools.search, transcript",
        "turn raised ConnectionError",
        "+ messages[4]: {'role': 'user', 'content': 'who eats it?'}",
        "the checksum does not match",
        "agent-copy: 6 messages, equal: True",
    ) as hf:
        log = hf.history("agent")
        parents = [(version.number, version.parent) for version in reversed(log.versions())]
        assert parents == [(1, None), (2, 1), (3, 2), (4, 3), (5, 3)]
        assert log.at("good").number == 3
        assert len(log.at(4).state["messages"]) == 5
        assert log.head.state["messages"][-1] == {"role": "agent", "content": "urchins do"}
        assert log.head.state["transcript"].startswith("<open file")
        assert [line.reason for line in log.timelines()[1:]] == ["the search engine was down"]
        document = json.loads((tmp_path / "snapshot.json").read_text())
        assert holdfast.validate(document)
        with holdfast.open(tmp_path / "elsewhere.db") as other:
            assert [summary.id for summary in other.runs()] == ["agent-copy"]
            copy = other.history("agent-copy").head
            assert (copy.kind, copy.state) == ("import", log.head.state)


@pytest.mark.parametrize("name", NAMES)
def test_example_uses_a_new_folder(name: str, tmp_path: Path) -> None:
    """An example creates its folder, a temporary one by default, and refuses a folder that has runs."""
    done = call_example(name, tmp_path, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    (made,) = tmp_path.iterdir()
    done = call_example(name, tmp_path, "new/folder")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "new/folder/runs.db").exists()
    before = (made / "runs.db").read_bytes()
    again = call_example(name, tmp_path, str(made))
    assert again.returncode == 1
    assert again.stderr == f"there are runs in {made} already: name another folder\n"
    assert (made / "runs.db").read_bytes() == before


def test_readme_lists_every_example() -> None:
    rows = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == NAMES
    assert len(NAMES) == 7
    for name in NAMES:
        assert f"python examples/{name}.py [FOLDER]" in (EXAMPLES / f"{name}.py").read_text()
