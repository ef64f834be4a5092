"""The public names, and what importing them must not load."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import holdfast

NAMES = [
    "MISSING",
    "AlreadyExists",
    "AlreadyRunning",
    "Artifact",
    "BadData",
    "Blame",
    "Breaker",
    "BreakerOpen",
    "BreakerSummary",
    "Cancelled",
    "Change",
    "CodeChanged",
    "Collected",
    "CommitUnknown",
    "Comparison",
    "CompensationFailed",
    "CorruptStore",
    "CorruptVersion",
    "DecisionNeeded",
    "Diff",
    "Difference",
    "Event",
    "FrozenDict",
    "FrozenList",
    "FrozenStateChanged",
    "History",
    "Holdfast",
    "HoldfastError",
    "HoldfastWarning",
    "IncompatibleFormat",
    "InvalidAnswer",
    "InvalidCall",
    "InvalidReference",
    "InvalidSnapshot",
    "InvalidState",
    "LeaseExpired",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "MergeConflict",
    "NotAwaited",
    "NotFinished",
    "NotFound",
    "NotStored",
    "Opaque",
    "OverridesMissing",
    "Preview",
    "Problem",
    "Pruned",
    "Question",
    "QuestionPolicy",
    "QuestionTimeout",
    "QueueSummary",
    "ReplayDiverged",
    "Report",
    "Retention",
    "Retry",
    "Run",
    "RunEnded",
    "RunMismatch",
    "RunSummary",
    "Spent",
    "StaleVersion",
    "StepFailed",
    "StepTimeout",
    "StoreBusy",
    "StoreStats",
    "StoreUnavailable",
    "StoredArtifact",
    "Subscription",
    "Suspended",
    "Timeline",
    "TryAgain",
    "UnknownTimeZone",
    "UnsupportedValue",
    "Version",
    "VersionSummary",
    "Watchdog",
    "annotate",
    "artifact",
    "ask",
    "autosave",
    "call_steps_directly",
    "idempotency_key",
    "now",
    "open",
    "parallel",
    "patched",
    "progress",
    "random",
    "register",
    "sanitize",
    "sleep",
    "state",
    "step",
    "thaw",
    "uuid4",
    "validate",
    "wait_for",
    "workflow",
]

#: Modules that take long to load, and that many programs need not have.
HEAVY = (
    "asyncio",
    "numpy",
    "pydantic",
    "apsw",
    "sqlite3",
    "http",
    "email",
    "unittest",
    "difflib",
    "multiprocessing",
)


def test_public_names_are_those_listed() -> None:
    assert holdfast.__all__ == NAMES
    assert not [name for name in NAMES if not hasattr(holdfast, name)]


def test_version_is_that_of_the_installed_package() -> None:
    assert holdfast.__version__ == version("holdfast")


def test_every_error_is_public() -> None:
    errors = {name for name, value in vars(holdfast.errors).items() if _is_error(value)}
    assert errors <= set(NAMES)


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, holdfast.HoldfastError)


def test_import_loads_at_most_20_modules_of_holdfast() -> None:
    program = "import sys, holdfast; print(sum(name.split('.')[0] == 'holdfast' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(done.stdout) <= 20


def test_import_leaves_every_public_name_in_reach() -> None:
    program = "import holdfast; assert set(holdfast.__all__) <= set(dir(holdfast)); from holdfast import *; open, ask"
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = holdfast.nothing


@pytest.mark.parametrize(
    ("program", "used"),
    [
        ("import holdfast", ()),
        ("import holdfast; holdfast.open(':memory:').history('run').commit({'a': [1, 'b', 2.5]})", ()),
        (
            "import holdfast; holdfast.open('runs.db').history('run').commit({'a': [1, 'b', 2.5]})",
            ("apsw",),
        ),
    ],
    ids=["import", "memory", "sqlite"],
)
def test_import_loads_no_heavy_module(program: str, used: tuple[str, ...], tmp_path: object) -> None:
    report = "; import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program + report], capture_output=True, check=True, cwd=str(tmp_path)
    )
    loaded = json.loads(done.stdout)
    assert [name for name in HEAVY if name in loaded and name not in used] == []
