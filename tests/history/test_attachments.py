"""Attachments: values under the key of a version, stored without a version, protected, and deleted with it."""

from __future__ import annotations

import datetime as dt
import io
import random
import threading
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import apsw
import psycopg
import pytest

import holdfast
from database import Database
from holdfast import (
    CorruptStore,
    History,
    Holdfast,
    IncompatibleFormat,
    InvalidCall,
    InvalidSnapshot,
    NotFound,
    Opaque,
    UnknownTimeZone,
    UnsupportedValue,
)
from holdfast.history.attachments import MAX_ATTACHMENT
from holdfast.history.bundle import transfer

pytest_plugins = ["postgres_fixtures"]

SECRET = "sk-1234567890"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("url"))
    return ":memory:" if request.param == "memory" else str(tmp_path / "runs.db")


@pytest.fixture
def hf(where: str) -> Iterator[Holdfast]:
    with holdfast.open(where) as opened:
        yield opened


@pytest.fixture
def log(hf: Holdfast) -> History:
    log = hf.history("run")
    log.commit({"n": 0}, key="first")
    return log


def _attached(log: History, key: str) -> dict[str, Any]:
    return log.attachments(key)[key]


@holdfast.register
@dataclass
class Point:
    x: int


def test_attachments_are_stored_without_a_version(hf: Holdfast, log: History) -> None:
    before = hf.runs(), hf.events(), log.head.number
    assert log.attach("first", {"a": 1, "b": [1, {"c": None}]}) == ["a", "b"]
    assert log.head.attachments == _attached(log, "first") == {"a": 1, "b": [1, {"c": None}]}
    assert (hf.runs(), hf.events(), log.head.number) == before
    assert log.commit({"n": 1}, expected=1).number == 2
    assert log.head.attachments == {}


def test_order_of_arrival_does_not_matter(log: History) -> None:
    log.attach("later", {"a": 1})
    assert log.find("later") is None
    assert _attached(log, "later") == {"a": 1}
    version = log.commit({"n": 1}, key="later")
    assert version.attachments == {"a": 1}
    log.commit({"n": 2}, key="last")
    log.attach("later", {"b": 2})
    assert log.at(2).attachments == version.attachments == {"a": 1, "b": 2}
    assert log.attachments("last", "later", "never") == {"last": {}, "later": {"a": 1, "b": 2}, "never": {}}
    assert log.attachments() == {}


def test_taken_name_is_replaced_or_left(log: History) -> None:
    log.attach("first", {"a": 1})
    assert log.attach("first", {"a": 2, "b": 2}, replace=False) == ["b"]
    assert _attached(log, "first") == {"a": 1, "b": 2}
    assert log.attach("first", {"a": 3, "c": 3}) == ["a", "c"]
    assert _attached(log, "first") == {"a": 3, "b": 2, "c": 3}
    assert log.attach("first", {}) == []
    assert log.attach("first", {"a": 3}, replace=False) == []


def test_values_are_private_copies(log: History) -> None:
    value: dict[str, Any] = {"list": [1]}
    log.attach("first", {"a": value})
    value["list"].append(2)
    found = _attached(log, "first")
    found["a"]["list"].append(3)
    assert _attached(log, "first") == {"a": {"list": [1]}}


def test_any_storable_value_can_be_attached(log: History) -> None:
    log.commit({"deep": {"n": [1] * 2_000, "wide": {f"{n}": n for n in range(900)}}}, key="state")
    with log.edit() as draft:
        draft["deep"]["n"].append(2)
        values = {
            "none": None,
            "surrogate": "lone \ud800",
            "keys": {1: 1, (2, "b"): 2, None: 3},
            "point": Point(1),
            "set": {1, 2},
            "frozen": log.at(2).state,
            "draft": draft["deep"],
            "big": 1 << 200,
            "bytes": b"x" * 200_000,
            "opaque": Opaque("nobody.knows", [1]),
        }
        log.attach("first", values)
    found = _attached(log, "first")
    assert found.pop("draft")["n"][-1] == 2
    assert found.pop("frozen") == holdfast.thaw(log.at(2).state)
    values.pop("draft")
    values.pop("frozen")
    assert found == values
    assert type(found["point"]) is Point


def test_refused_value_says_where_it_is_and_stores_nothing(hf: Holdfast, log: History) -> None:
    with hf.history("other").edit() as state:
        state["file"] = holdfast.artifact(b"content")
    artifact = hf.version("other").state["file"]
    cases: list[tuple[Any, str]] = [
        ({"list": [1, object()]}, "list[1]"),
        (lambda: 1, "the root"),
        (artifact, "artifact cannot be attached"),
        ({"deep": [{"file": (artifact,)}]}, "artifact cannot be attached"),
        (hf.version("other").state, "artifact cannot be attached"),
        (holdfast.artifact(b"new"), "artifact cannot be attached"),
    ]
    for value, words in cases:
        with pytest.raises(UnsupportedValue) as refused:
            log.attach("first", {"fine": 1, "bad": value})
        assert words in str(refused.value)
        assert "'bad'" in str(refused.value)
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(UnsupportedValue):
        log.attach("first", {"cycle": cycle})
    assert _attached(log, "first") == {}


def test_invalid_arguments_are_refused(log: History) -> None:
    names: list[Any] = ["", "a\0", "\ud800", "x" * 1001, "\U0001f40b" * 251, 7, None, b"a", ("a",)]
    for name in names:
        with pytest.raises(InvalidCall, match="cannot be the name of an attachment"):
            log.attach("first", {"fine": 1, name: 1})
    values: list[Any] = [None, [("a", 1)], "a", {"a"}]
    for value in values:
        with pytest.raises(InvalidCall, match="attach takes a dict of names and values"):
            log.attach("first", value)
    assert _attached(log, "first") == {}
    for name in ("x" * 1000, "\U0001f40b" * 250, "line\nbreak", "\x1b[2J", " ", "'\"\\"):
        assert log.attach("first", {name: name}) == [name]
        assert _attached(log, "first")[name] == name
    assert log.attach("first", UserDict(a=1)) == ["a"]


def test_names_with_the_same_text_are_one_name(log: History) -> None:
    class Odd(str):
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = object.__hash__

    assert log.attach("first", {Odd("a"): 1, Odd("a"): 2, "a": 3}) == ["a"]
    assert _attached(log, "first") == {"a": 3}


@pytest.mark.slow
def test_largest_attachment_can_be_exported_and_larger_ones_are_refused(tmp_path: Path) -> None:
    """Random bytes, which do not compress, under the longest key and name."""
    key, name = "k" * 1000, "n" * 1000
    data = memoryview(b"".join(n.to_bytes(32, "big") for n in range(10))).tobytes()
    largest = (data * (MAX_ATTACHMENT // len(data) + 1))[: MAX_ATTACHMENT - 5]
    with holdfast.open(tmp_path / "a.db", durability="memory") as hf:
        log = hf.history("run")
        log.commit({}, key=key)
        with pytest.raises(UnsupportedValue, match="the maximum is"):
            log.attach(key, {name: largest + b"x"})
        assert log.attach(key, {name: largest}) == [name]
        hf.export_run("run", tmp_path / "bundle")
    with holdfast.open(tmp_path / "b.db", durability="memory") as hf:
        hf.import_run(tmp_path / "bundle")
        assert _attached(hf.history("run"), key) == {name: largest}


def test_secrets_are_redacted(where: str) -> None:
    """Under the same keys as in a state; the names of attachments are such keys."""
    with holdfast.open(where, redact=["*password*", "api_key"]) as hf:
        log = hf.history("run")
        log.commit({}, key="key")
        log.attach(
            "key", {"nested": {"api_key": SECRET, "n": [{"Password": SECRET}]}, "api_key": [SECRET], "n": 1}
        )
        assert _attached(log, "key") == {
            "nested": {"api_key": "[redacted]", "n": [{"Password": "[redacted]"}]},
            "api_key": "[redacted]",
            "n": 1,
        }
    if where.endswith(".db"):
        for path in Path(where).parent.glob("runs.db*"):
            assert SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "attached", [{"api_key": SECRET}, {"n": [{"api_key": SECRET}]}], ids=["name", "nested"]
)
def test_secrets_of_a_bundle_are_refused(hf: Holdfast, log: History, attached: dict[str, Any]) -> None:
    log.attach("first", attached)
    file = io.BytesIO()
    hf.export_run("run", file)
    with holdfast.open(":memory:", redact=["api_key"]) as guarded:
        file.seek(0)
        with pytest.raises(
            InvalidSnapshot, match=r"the attachment of key 'first' holds a value under .*api_key"
        ):
            guarded.import_run(file)
        assert guarded.runs() == []
        file.seek(0)
        guarded.import_run(file, secrets="keep")
        assert _attached(guarded.history("run"), "first") == attached


def test_redacted_attachments_of_a_bundle_are_accepted(tmp_path: Path) -> None:
    with holdfast.open(":memory:", redact=["api_key"]) as hf:
        hf.history("run").commit({}, key="key")
        hf.history("run").attach("key", {"api_key": SECRET, "n": {"api_key": SECRET}})
        hf.export_run("run", tmp_path / "bundle")
        hf.delete("run")
        hf.import_run(tmp_path / "bundle")
        assert _attached(hf.history("run"), "key") == {
            "api_key": "[redacted]",
            "n": {"api_key": "[redacted]"},
        }


def test_fork_has_copies(hf: Holdfast, log: History) -> None:
    log.attach("first", {"a": 1, "b": 2})
    log.attach("early", {"x": 1})
    fork = hf.fork("run@1", "fork")
    assert fork.head.attachments == {"a": 1, "b": 2}
    assert _attached(fork, "early") == {}
    fork.attach("first", {"a": 7})
    log.attach("first", {"b": 8})
    assert fork.head.attachments == {"a": 7, "b": 2}
    assert log.head.attachments == {"a": 1, "b": 8}
    assert hf.fork("fork", "again").head.attachments == {"a": 7, "b": 2}
    hf.delete("run")
    assert hf.history("fork").head.attachments == {"a": 7, "b": 2}
    assert hf.verify().ok


def test_fork_does_not_depend_on_when_the_version_was_read(hf: Holdfast, log: History) -> None:
    early = log.head
    log.attach("first", {"a": 1})
    log.commit({"n": 1}, key="second")
    assert hf.fork(early, "one").head.attachments == hf.fork("run@1", "two").head.attachments == {}


def test_fork_of_a_version_whose_run_was_created_again_is_refused(hf: Holdfast, log: History) -> None:
    old = log.head
    hf.delete("run")
    log.commit({"n": 1}, key="other")
    log.attach("first", {"a": 1})
    with pytest.raises(NotFound, match="deleted"):
        hf.fork(old, "fork")
    assert [run.id for run in hf.runs()] == ["run"]


def test_attachments_with_the_same_content_can_be_imported(tmp_path: Path) -> None:
    """They take much less space in a bundle, which must not pass for one that is made to exhaust memory."""
    content = random.Random(1).randbytes(150_000)
    with holdfast.open(":memory:") as hf:
        log = hf.history("run")
        log.commit({}, key="key")
        for number in range(700):
            log.attach("key", {str(number): content})
        hf.export_run("run", tmp_path / "bundle")
        hf.delete("run")
        hf.import_run(tmp_path / "bundle")
        assert len(log.attachment_names("key")) == 700


def test_attachments_of_a_long_key_after_a_rollback_can_be_imported(hf: Holdfast, tmp_path: Path) -> None:
    log = hf.history("long")
    key = "k" * 1000
    log.commit({"n": 0}, key=key)
    log.commit({"n": 1})
    log.rollback(to=1)
    log.attach(f"{key} ~2", {"a": 1})
    hf.export_run("long", tmp_path / "bundle")
    copy = hf.import_run(tmp_path / "bundle", run_id="copy")
    assert _attached(copy, f"{key} ~2") == {"a": 1}


def test_export_leaves_out_attachments_of_a_later_rollback(
    hf: Holdfast, log: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would belong to the next rollback of the copy."""
    log.attach("first", {"a": "before"})
    log.commit({"n": 1}, key="second")
    run = log.run_record()
    log.rollback(to=1)
    log.attach("first ~2", {"a": "since"})
    bundle, wrong = io.BytesIO(), io.BytesIO()
    transfer.export_run(hf._store, run, bundle)
    bundle.seek(0)
    copy = hf.import_run(bundle, run_id="copy")
    copy.rollback(to=1)
    assert copy.attachments("first", "first ~2") == {"first": {"a": "before"}, "first ~2": {}}
    monkeypatch.setattr(transfer, "rollback_of", lambda key: None)
    transfer.export_run(hf._store, run, wrong)
    wrong.seek(0)
    with pytest.raises(InvalidSnapshot, match="timeline that is missing"):
        hf.import_run(wrong, run_id="wrong")


def test_rollback_keeps_attachments(log: History) -> None:
    log.attach("first", {"a": 1})
    log.commit({"n": 1}, key="second")
    log.attach("second", {"b": 2})
    log.rollback(to=1)
    assert log.head.attachments == {"a": 1}
    assert log.at(2).attachments == {"b": 2}


def test_pruning_deletes_the_attachments_of_its_versions(hf: Holdfast, log: History) -> None:
    for number in range(1, 6):
        log.commit({"n": number, "text": "shared " * 50}, key=f"{number}")
        log.attach(f"{number}", {"a": number})
    log.attach("early", {"a": "early"})
    log.pin(2)
    held = log.at(3)
    assert log.prune(holdfast.Retention(last=2), dry_run=True).versions
    assert held.attachments == {"a": 2}
    log.prune(holdfast.Retention(last=2))
    assert log.attachments("first", "1", "2", "3", "4", "5", "early") == {
        "first": {},
        "1": {"a": 1},
        "2": {},
        "3": {},
        "4": {"a": 4},
        "5": {"a": 5},
        "early": {"a": "early"},
    }
    with pytest.raises(NotFound, match="version 3 of run 'run' was pruned"):
        held.attachments  # noqa: B018 - the property raises
    log.drop([5])
    assert _attached(log, "4") == {}
    assert hf.verify().ok


def test_pruning_deletes_old_attachments_that_no_version_has(tmp_path: Path) -> None:
    now = 1_000_000.0
    with holdfast.open(tmp_path / "runs.db", clock=lambda: now) as hf:
        log = hf.history("run")
        log.commit({"n": 0}, key="first")
        log.attach("lost", {"a": 1})
        log.attach("first", {"a": 1})
        now += 3_000
        log.attach("coming", {"a": 1})
        log.commit({"n": 1}, key="second")
        log.attach("second", {"a": 1})
        log.commit({"n": 2}, key="third")
        log.rollback(to=2)
        log.attach("second ~2", {"a": "since the rollback"})
        now += 3_000
        log.prune(holdfast.Retention(last=2))
        assert log.attachments("lost", "first", "coming", "second", "second ~2") == {
            "lost": {},
            "first": {},
            "coming": {"a": 1},
            "second": {"a": 1},
            "second ~2": {"a": "since the rollback"},
        }
        log.commit({"n": 3}, key="coming")
        now += 10_000
        log.prune(holdfast.Retention(last=1))
        assert log.attachments("coming", "second", "second ~2") == {
            "coming": {"a": 1},
            "second": {},
            "second ~2": {},
        }


def test_fork_of_a_rolled_back_head_has_the_attachments_since_the_rollback(
    hf: Holdfast, log: History
) -> None:
    log.attach("first", {"a": "before"})
    log.commit({"n": 1}, key="second")
    log.rollback(to=1)
    assert hf.fork("run", "empty").head.attachments == {}
    log.attach("first ~2", {"a": "since"})
    assert hf.fork("run", "open").head.attachments == {"a": "since"}
    log.commit({"n": 2}, key="third")
    assert hf.fork("run@1", "continued").head.attachments == {}
    log.attach("third", {"a": "third"})
    assert hf.fork("run", "latest").head.attachments == {"a": "third"}
    log.rollback(to="head")
    assert hf.fork("run", "again").head.attachments == {}
    log.commit({"n": 3}, key="fourth")
    assert hf.fork("run@3", "left").head.attachments == {}
    assert hf.verify().ok


def test_deleting_a_run_deletes_its_attachments(hf: Holdfast, log: History) -> None:
    """A run with the same id has none of them, and an old version does not return those of the new run."""
    log.attach("first", {"a": 1})
    old = log.head
    hf.delete("run")
    for use in (
        lambda: old.attachments,
        lambda: log.attach("first", {"b": 2}),
        lambda: log.attachments("first"),
    ):
        with pytest.raises(NotFound):
            use()
    log.commit({"n": 1}, key="first")
    assert log.head.attachments == {}
    assert log.attach("first", {"b": 2}) == ["b"]
    with pytest.raises(NotFound, match="deleted"):
        old.attachments  # noqa: B018 - the property raises
    assert hf.verify().ok


def test_run_that_another_process_created_again_gets_the_attachment(where: str, log: History) -> None:
    if where == ":memory:":
        return
    with holdfast.open(where) as other:
        other.delete("run")
        other.history("run").commit({"n": 9}, key="first")
        assert log.attach("first", {"a": 1}) == ["a"]
        assert _attached(other.history("run"), "first") == {"a": 1}


def test_bundle_has_keys_and_attachments(hf: Holdfast, log: History, tmp_path: Path) -> None:
    log.attach("first", {"a": [1], "line\nbreak": Point(2)})
    log.attach("\U0001f40b", {"b": 1 << 90})
    log.commit({"n": 1}, key="second")
    hf.export_run("run", tmp_path / "bundle")
    with holdfast.open(":memory:") as other:
        for run_id in (None, "under-another-id"):
            run = other.import_run(tmp_path / "bundle", run_id=run_id)
            found = other.history(run.id)
            assert [version.key for version in found.keyed_versions()] == ["second", "first"]
            assert found.attachments("first", "second", "\U0001f40b") == {
                "first": {"a": [1], "line\nbreak": Point(2)},
                "second": {},
                "\U0001f40b": {"b": 1 << 90},
            }
        assert other.verify().ok


def test_threads_attach_while_others_commit(hf: Holdfast, log: History) -> None:
    done = threading.Event()
    problems: list[BaseException] = []

    def attach() -> None:
        try:
            own = hf.history("run")
            number = 0
            while not done.is_set() or number < 10:
                number += 1
                assert own.attach(f"{number % 7}", {f"{number}": number}) == [f"{number}"]
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=attach)
    thread.start()
    for number in range(30):
        # Never stale: attachments do not change the run.
        log.commit({"n": number}, key=f"{number}", expected=number + 1)
    done.set()
    thread.join()
    assert problems == []
    assert hf.verify().ok


# Types that this program lacks, and damage


def test_value_of_a_changed_type_is_not_damage(
    hf: Holdfast, log: History, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    @dataclass
    class Changed:
        y: int

        def __post_init__(self) -> None:
            raise ValueError("it had no y")

    tag = f"test.{request.node.name}"
    log.attach("first", {"narrow": Opaque(tag, {"x": 1})})
    holdfast.register(Changed, tag)
    assert hf.verify().ok
    hf.export_run("run", tmp_path / "bundle")
    hf.import_run(tmp_path / "bundle", run_id="copy")
    with pytest.raises(
        IncompatibleFormat, match="attachment 'narrow' of key 'first' of run 'copy' cannot be read"
    ):
        hf.history("copy").attachments("first")


def test_time_zone_that_this_machine_lacks_is_not_damage(
    hf: Holdfast, log: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log.attach("first", {"at": dt.datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))})

    def lacks(key: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(key)

    with monkeypatch.context() as patch:
        patch.setattr("zoneinfo.ZoneInfo", lacks)
        assert hf.verify().ok
        hf.export_run("run", tmp_path / "bundle")
        hf.import_run(tmp_path / "bundle", run_id="copy")
        with pytest.raises(UnknownTimeZone, match="Europe/Berlin"):
            log.attachments("first")
    assert hf.history("copy").attachments("first") == log.attachments("first")


def _damage(where: str, *statements: str) -> None:
    if "://" not in where:
        with Database(where) as connection:
            for statement in statements:
                assert connection.change(statement)
        return
    server, _, schema = where.partition("&schema=")
    with psycopg.connect(server, options=f"-csearch_path={schema}") as own:
        for statement in statements:
            assert own.execute(statement).rowcount


#: Damage to the attachment `b` of the key `key`, and swapped rows.
DAMAGE: dict[str, tuple[str, ...]] = {
    "data": (
        "UPDATE attachment SET data = (SELECT data FROM attachment WHERE name = 'c') WHERE key = 'key' AND name = 'b'",
    ),
    "time": ("UPDATE attachment SET at = at + 1 WHERE key = 'key' AND name = 'b'",),
    "hash": ("UPDATE attachment SET hash = substr(hash, 2) WHERE key = 'key' AND name = 'b'",),
    "swapped names": (
        "UPDATE attachment SET name = 'x' WHERE key = 'key' AND name = 'b'",
        "UPDATE attachment SET name = 'b' WHERE name = 'c'",
        "UPDATE attachment SET name = 'c' WHERE name = 'x'",
    ),
    "of another key": (
        "UPDATE attachment SET key = 'x' WHERE key = 'key' AND name = 'b'",
        "UPDATE attachment SET key = 'key', name = 'b' WHERE key = 'other'",
    ),
    "of another run": (
        "UPDATE attachment SET name = 'x' WHERE key = 'key' AND name = 'b'",
        "UPDATE attachment SET run = 1, name = 'b' WHERE run = 2",
    ),
}


@pytest.mark.parametrize("statements", DAMAGE.values(), ids=DAMAGE)
def test_damaged_attachment_is_not_served(where: str, statements: tuple[str, ...]) -> None:
    if where == ":memory:":
        return
    with holdfast.open(where) as hf:
        for run_id in ("run", "second"):
            log = hf.history(run_id)
            log.commit({"n": 1}, key="key")
            log.attach(
                "key", {name: f"value {name}" for name in ("a", "b", "c") if run_id == "run" or name == "a"}
            )
        hf.history("run").attach("other", {"b": "of the other key"})
        hf.history("run").attach("sound", {"b": 1})
        assert hf.verify().ok
    _damage(where, *statements)
    with holdfast.open(where) as hf:
        log = hf.history("run")
        for use in (
            lambda: log.attachments("key"),
            lambda: log.attachments("sound", "key"),
            lambda: log.head.attachments,
            lambda: hf.fork("run", "fork"),
            lambda: hf.export_run("run", io.BytesIO()),
        ):
            with pytest.raises(
                CorruptStore, match=r"attachment '\w' of key '\w+' of run 'run' fails its hash"
            ):
                use()
        # The rest stays readable, and can be replaced.
        assert log.head.state == {"n": 1}
        assert log.attachments("sound") == {"sound": {"b": 1}}
        assert hf.runs()[0].id == "second"
        problems = hf.verify().problems
        assert {problem.run for problem in problems} == {"run"}
        assert all("fails its hash" in problem.what for problem in problems)
        log.attach("key", dict.fromkeys(("b", "c", "x"), "again"))
        assert _attached(log, "key")["b"] == "again"


def test_verify_names_every_damaged_attachment(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    with holdfast.open(path) as hf:
        log = hf.history("run")
        log.commit({}, key="key")
        log.attach("key", {f"{number}": number for number in range(20)})
    _damage(path, "UPDATE attachment SET at = 0 WHERE name LIKE '1_'")
    with holdfast.open(path) as hf:
        problems = [problem.what for problem in hf.verify().problems]
        assert [text.split("'")[1] for text in problems] == [f"1{number}" for number in range(10)]


def test_rows_of_a_wrong_type_are_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    for column, value in (
        ("data", "'text'"),
        ("hash", "7"),
        ("data", "x''"),
        ("at", "'soon'"),
        ("name", "x'ff'"),
    ):
        with holdfast.open(path) as hf:
            log = hf.history("run")
            log.commit({"n": 1}) if not hf.runs() else None
            log.attach("key", {"a": 1})
        _damage(path, f"UPDATE attachment SET {column} = {value}")
        with holdfast.open(path) as hf:
            with pytest.raises(CorruptStore):
                hf.history("run").attachments("key")
            assert not hf.verify().ok
        _damage(path, "DELETE FROM attachment")


def test_any_changed_byte_of_the_file_is_detected_or_harmless(tmp_path: Path) -> None:
    """What is read is what was attached, or an error is raised."""
    path = tmp_path / "runs.db"
    value = "unmistakable " * 5
    with holdfast.open(path) as hf:
        log = hf.history("run")
        log.commit({}, key="key")
        log.attach("key", {"name": value})
        hf.gc(grace=0, compact=True)
    whole = path.read_bytes()
    start = whole.index(b"keyname")
    rest = [Path(f"{path}{end}") for end in ("-wal", "-shm")]
    detected = 0
    for place in range(start - 12, start + len(value) + 40):
        for other in rest:
            other.unlink(missing_ok=True)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            with holdfast.open(path) as hf:
                found = hf.history("run").attachments("key")
                assert found in ({"key": {"name": value}}, {"key": {}})
                if found != {"key": {"name": value}}:
                    # Its key cannot be found any more.
                    assert not hf.verify().ok
                    detected += 1
        except holdfast.HoldfastError:
            detected += 1
    assert detected > 60


def test_swapped_run_ids_are_refused(tmp_path: Path) -> None:
    """The hash covers the id of the run, so that attachments cannot be moved with their rows."""
    path = str(tmp_path / "runs.db")
    with holdfast.open(path) as hf:
        for run_id in ("a", "b"):
            hf.history(run_id).commit({}, key="key")
            hf.history(run_id).attach("key", {"of": run_id})
    connection = apsw.Connection(path)
    connection.execute("UPDATE attachment SET run = 3 - run + 100")
    connection.execute("UPDATE attachment SET run = run - 100")
    connection.close()
    with holdfast.open(path) as hf:
        for run_id in ("a", "b"):
            with pytest.raises(CorruptStore):
                hf.history(run_id).attachments("key")
