"""Bundles with values that the store redacts: refused, unless the caller accepts them."""

from __future__ import annotations

import io
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bundle_helpers
import pytest

import holdfast
from holdfast import Holdfast, InvalidCall, InvalidSnapshot, Retention, step, workflow
from holdfast.history.bundle.secret_keys import SecretKeys
from holdfast.tree.codec import encode
from holdfast.tree.fold import Redactor

hf, other = bundle_helpers.hf, bundle_helpers.other

#: What is under a key that is to be redacted.
HUSH = "hush-hush"


@holdfast.register
@dataclass
class Account:
    user: str
    password: Any


@step
def log_in(user: str, password: str, *rest: str) -> dict[str, str]:
    return {"user": user}


@workflow
def session(how: str) -> str:
    return log_in("ada", HUSH)["user"] if how == "place" else log_in("ada", password=HUSH)["user"]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Holdfast]:
    """A store that redacts passwords."""
    with holdfast.open(tmp_path / "guarded.db", durability="fast") as opened:
        opened.change_redaction(add=["*password*"])
        yield opened


def _refused(guarded: Holdfast, data: bytes) -> InvalidSnapshot:
    before = bundle_helpers.snapshot(guarded)
    with pytest.raises(InvalidSnapshot, match="cannot be imported") as refused:
        guarded.import_run(io.BytesIO(data))
    assert bundle_helpers.snapshot(guarded) == before
    assert HUSH not in str(refused.value)
    assert HUSH not in str(refused.value.details)
    return refused.value


WIDE = {f"key-{number}": {"n": number} for number in range(300)}
LONG = [{"n": number, "text": "x" * 50} for number in range(300)]
STATES: list[tuple[Any, str]] = [
    ({"password": HUSH}, "password"),
    ({"n": 1, "db": {"db_password": HUSH}}, "db.db_password"),
    ({"a": [1, {"b": [{"password": HUSH * 1000}]}]}, "a[1].b[0].password"),
    ({"wide": {**WIDE, "Password": HUSH}}, "wide.Password"),
    ({"wide": {**WIDE, "deep": {"password": [HUSH]}}}, "wide.deep.password"),
    ({"long": [*LONG[:250], {"password": HUSH}, *LONG[250:]]}, "long[250].password"),
    ({"long": [*LONG, {"password": HUSH}]}, "long[300].password"),
    ({"odd": {1.5: 1, b"password": HUSH}}, "odd[b'password']"),
    ({"odd": {("user", "password"): HUSH}}, "odd[('user', 'password')]"),
    ({"a": Account("ada", HUSH)}, "a.password"),
    ({"a": [Account("ada", HUSH * 200)]}, "a[0].password"),
    ({"a": ({"password": HUSH},)}, "a[0].password"),
    ({"a": deque([OrderedDict(password=HUSH)])}, "a[0][0].password"),
    ({"large": Account(HUSH * 20_000, HUSH)}, "large.password"),
    ({"large": Account("ada", HUSH * 20_000)}, "large.password"),
    ({"large": [({"password": HUSH * 20_000, "a": "x" * 70_000},)]}, "large[0][0].password"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "path"), STATES, ids=[path for _, path in STATES])
def test_import_of_a_state_with_secrets_names_their_path(
    hf: Holdfast, guarded: Holdfast, state: Any, path: str
) -> None:
    log = hf.history("r")
    log.commit({"n": 0, "plain": WIDE})
    log.commit(state)
    data = bundle_helpers.exported(hf, "r")
    details = _refused(guarded, data).details
    assert (details["path"], details["part"], details["version"]) == (path, "state", 2)
    assert guarded.import_run(io.BytesIO(data), secrets="keep").head.state == log.head.state
    assert guarded.verify()


def test_import_searches_all_parts_of_a_version_for_secrets(hf: Holdfast, guarded: Holdfast) -> None:
    hf.history("result").commit({}, result={"password": HUSH})
    hf.history("meta").commit({}, annotations={"password": HUSH})
    hf.history("told").commit({}, events=[("agent.woke", {"password": HUSH})])
    for name in ("place", "name"):
        hf.run(session, name, run_id=name)
    parts = {"result": "result", "meta": "annotations", "told": "event 'agent.woke'"}
    for run, part in {**parts, "place": "arguments", "name": "arguments"}.items():
        details = _refused(guarded, bundle_helpers.exported(hf, run)).details
        assert (details["part"], details["path"].split(".")[-1]) == (part, "password")


def test_import_searches_events_of_kinds_that_only_start_like_holdfasts_own() -> None:
    """Kinds that start with `question.` or `signal.` were free to use once; fields of own events are not secrets."""
    secrets = SecretKeys(Redactor(["password"]))
    data = encode({"password": HUSH})
    for kind in ("agent.woke", "question.asked", "signal.caught", "run.invented"):
        assert secrets.in_event(kind, data) is not None
    for kind in (
        "question.opened",
        "prompt.opened",
        "run.rolled_back",
        "timeline.begun",
    ):  # words: stored names
        assert secrets.in_event(kind, data) is None
        assert secrets.in_event(kind, encode({"by": {"password": HUSH}})) is not None


def test_import_searches_stubs_of_pruned_versions_for_secrets(hf: Holdfast, guarded: Holdfast) -> None:
    log = hf.history("r")
    shared = {"text": "x" * 200, "password": HUSH}
    log.commit({"n": 1, "kept": shared})
    with log.edit() as draft:
        draft["n"] = 2
    log.prune(Retention(last=1))
    assert "password" in _refused(guarded, bundle_helpers.exported(hf, "r")).details["path"]


def test_runs_without_secrets_are_imported(hf: Holdfast, guarded: Holdfast, other: Holdfast) -> None:
    bundle_helpers.full_run(hf)
    full = bundle_helpers.exported(hf, "full")
    guarded.import_run(io.BytesIO(full))
    assert bundle_helpers.facts(guarded, "full") == bundle_helpers.facts(hf, "full")
    # What is redacted already.
    for state, _ in STATES:
        guarded.history("redacted").commit(state)
    guarded.run(session, "place", run_id="session")
    for run in ("redacted", "session"):
        guarded.import_run(io.BytesIO(bundle_helpers.exported(guarded, run)), run_id=f"{run} again")
    # A store that redacts nothing.
    hf.history("r").commit({"password": HUSH})
    other.import_run(io.BytesIO(bundle_helpers.exported(hf, "r")))
    with pytest.raises(InvalidCall, match="'refuse' or 'keep'"):
        guarded.import_run(io.BytesIO(full), run_id="x", secrets="drop")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(8))
def test_random_runs_without_secrets_are_imported(hf: Holdfast, guarded: Holdfast, seed: int) -> None:
    run = bundle_helpers.random_run(hf, seed)
    guarded.import_run(io.BytesIO(bundle_helpers.exported(hf, run)))
    assert guarded.verify()


def test_keys_of_bytes_and_tuples_hide_their_values() -> None:
    redactor = Redactor(["*password*"])
    secret: list[Any] = ["Password", b"db-password", b"\xffpassword", ("a", "password"), (1, (b"password",))]
    assert all(map(redactor.hides, secret))
    plain: list[Any] = ["pass", b"pass", ("pass", "word"), (), 1, None, 1.5, (1, 2)]
    assert not any(map(redactor.hides, plain))
    with holdfast.open(":memory:", redact=["*password*"]) as hf:
        state = {b"password": HUSH, ("db", "password"): {"n": HUSH}, "x": {frozenset({"password"}): HUSH}}
        assert hf.history("r").commit(state).state == {
            b"password": "[redacted]",
            ("db", "password"): "[redacted]",
            "x": {frozenset({"password"}): "[redacted]"},
        }
