"""All integrations: each is an extra of its own, and costs nothing if its framework is not installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

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


def test_integration_without_its_framework_names_the_extra() -> None:
    program = (
        "import importlib, sys\n"
        f"integrations = {INTEGRATIONS!r}\n"
        "sys.modules.update({package: None for _, package, _ in integrations})\n"
        "for module, _, _ in integrations:\n"
        "    try:\n"
        "        importlib.import_module(f'holdfast.integrations.{module}')\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error.name.partition('.')[0], error)\n"
    )
    messages = _run(program).stdout.splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs/integrations/index.md").read_text()
    assert len(messages) == len(INTEGRATIONS)
    for (module, package, extra), message in zip(INTEGRATIONS, messages, strict=True):
        assert message.startswith(f"{package} holdfast.integrations.{module} needs ")
        assert message.endswith(f": pip install 'holdfast[{extra}]'")
        assert extra in extras
        assert f"holdfast[{extra}]" in page


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
