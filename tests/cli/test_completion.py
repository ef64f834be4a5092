"""`holdfast completion`, and what a shell then offers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from filled_store import SampleStore
from terminal import environment


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(sample: SampleStore, shell: str) -> None:
    done = sample.call("completion", shell)
    assert done.code == 0
    assert "_HOLDFAST_COMPLETE" in done.out
    assert json.loads(sample.call("--json", "completion", shell).out)["script"] + "\n" == done.out


def test_completion_works_in_the_real_program(sample: SampleStore) -> None:
    assert "_HOLDFAST_COMPLETE" in sample.pipe("completion", "bash")
    assert "complete -o nosort" in sample.screen("completion", "bash")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_script_is_valid_bash(sample: SampleStore) -> None:
    script = sample.call("completion", "bash").out
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["holdfast", "lo"], {"log"}),
        (["holdfast", "rep"], {"replay"}),
        (["holdfast", "log", "repor"], {"report-1", "report-2"}),
        (["holdfast", "log", "nosuch"], set()),
        (["holdfast", "log", "--on"], {"--oneline"}),
        (["holdfast", "runs", "--status", "int"], {"interrupted"}),
        (["holdfast", "artifacts", ""], {"ls", "get", "put"}),
        (["holdfast", "nosuch", ""], None),
    ],
)
def test_completion_offers_commands_options_and_runs(
    sample: SampleStore, words: list[str], offered: set[str] | None
) -> None:
    found, err = _offered(sample, words)
    assert err == "", "nothing may appear on the line that is typed"
    assert offered is None or found == offered


def test_completion_without_a_store_offers_no_runs(bare: SampleStore) -> None:
    assert _offered(bare, ["holdfast", "log", "a"]) == (set(), "")


def test_completion_escapes_hostile_step_names(sample: SampleStore) -> None:
    done = _completed(sample, ["holdfast", "show", "[red]"], "zsh")
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 3, "kind, name and help of one run"


def test_completion_usage_errors_are_reported(sample: SampleStore) -> None:
    assert "'bash', 'zsh', 'fish'" in sample.refused("completion", "csh", code=2)


def _offered(sample: SampleStore, words: list[str]) -> tuple[set[str], str]:
    done = _completed(sample, words, "bash")
    return {line.split(",", 1)[1] for line in done.stdout.splitlines() if line}, done.stderr


def _completed(sample: SampleStore, words: list[str], shell: str) -> subprocess.CompletedProcess[str]:
    settings = environment(
        _HOLDFAST_COMPLETE=f"{shell}_complete", COMP_WORDS=" ".join(words), COMP_CWORD=str(len(words) - 1)
    )
    return subprocess.run(
        [sys.executable, "-m", "holdfast"],
        cwd=sample.folder,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
