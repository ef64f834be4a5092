"""All integrations: each is an extra of its own, and costs nothing if its framework is not installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Modules of ours, the packages that they need, and the extras that install these.
INTEGRATIONS = [
    ("langgraph", "langgraph", "langgraph"),
    ("stageflow", "stageflow", "stageflow"),
    ("openai_agents", "agents", "openai-agents"),
    ("agent_framework", "agent_framework", "agent-framework"),
    ("burr", "burr", "burr"),
    ("mcp", "mcp", "mcp"),
]


@pytest.mark.parametrize(("module", "package", "extra"), INTEGRATIONS)
def test_integration_without_its_framework_names_the_extra(module: str, package: str, extra: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import holdfast.integrations.{module}"
    last = _run(program).stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: holdfast.integrations.{module} needs ")
    assert last.endswith(f": pip install 'holdfast[{extra}]'")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra in extras
    assert f"holdfast[{extra}]" in (ROOT / "docs/integrations/index.md").read_text()


def test_frameworks_are_not_loaded_by_other_modules() -> None:
    program = (
        "import sys, holdfast, holdfast.snapshots, holdfast.loops\n"
        "from holdfast.cli.app import run\n"
        "run(['runs', '--help'])\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names & {'stageflow', 'agents', 'agent_framework', 'burr', 'langgraph', 'mcp', 'pydantic'}))"
    )
    done = _run(program)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def _run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
