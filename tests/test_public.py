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
    "Breaker",
    "BreakerOpen",
    "Cancelled",
    "CodeChanged",
    "CommitUnknown",
    "CompensationFailed",
    "CorruptStore",
    "CorruptVersion",
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
    "QuestionTimeout",
    "ReplayDiverged",
    "Retention",
    "Retry",
    "Run",
    "RunMismatch",
    "StaleVersion",
    "StepFailed",
    "StepTimeout",
    "StoreBusy",
    "StoreUnavailable",
    "Suspended",
    "UnknownTimeZone",
    "UnsupportedValue",
    "Version",
    "Watch",
    "artifact",
    "ask",
    "autosave",
    "idempotency_key",
    "note",
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
    "trial",
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


def test_the_public_names() -> None:
    assert holdfast.__all__ == NAMES
    assert not [name for name in NAMES if not hasattr(holdfast, name)]


def test_the_release_is_the_one_that_is_installed() -> None:
    assert holdfast.__version__ == version("holdfast")


def test_every_error_is_public_or_a_family_of_public_ones() -> None:
    families = {"TryAgain", "Decide", "BadData", "RunEnded"}
    errors = {name for name, value in vars(holdfast.errors).items() if _is_error(value)}
    assert errors - families <= set(NAMES)


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, holdfast.HoldfastError)


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
def test_nothing_heavy_is_imported(program: str, used: tuple[str, ...], tmp_path: object) -> None:
    report = "; import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program + report], capture_output=True, check=True, cwd=str(tmp_path)
    )
    loaded = json.loads(done.stdout)
    assert [name for name in HEAVY if name in loaded and name not in used] == []
