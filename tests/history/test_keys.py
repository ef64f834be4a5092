"""Versions with keys: found, listed in order, unique in a run, and protected by the version's hash."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from database import Database
from holdfast import (
    AlreadyExists,
    CorruptVersion,
    History,
    Holdfast,
    InvalidReference,
    NotFound,
    StaleVersion,
)
from holdfast.errors import HoldfastError

pytest_plugins = ["postgres_fixtures"]


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
    return hf.history("run")


def _keys(log: History) -> list[str | None]:
    return [version.key for version in log.keyed_versions()]


def _found(log: History, key: str) -> holdfast.Version:
    found = log.find(key)
    assert found is not None
    return found


def test_version_is_found_by_its_key(log: History) -> None:
    log.commit({"n": 1})
    assert log.commit({"n": 2}, key="two", note="second", tags=["tag"]).key == "two"
    log.commit({"n": 3}, key="three")
    found = _found(log, "two")
    assert (found.number, found.key, found.state, found.note) == (2, "two", {"n": 2}, "second")
    assert found.tags == ("tag",)
    assert [version.key for version in log.versions()] == ["three", "two", None]
    assert log.at("tag").key == "two"
    assert log.find("tw") is log.find("TWO") is None
    assert log.attachments("two") == {"two": {}}


def test_key_is_not_a_reference(log: History) -> None:
    """A key may look like a number or a tag, and is found by `find` only."""
    for key in ("1", "head", "~2", "@1", "run:x", "../etc", "%", "\U0001f40b"):
        log.commit({"key": key}, key=key)
        assert _found(log, key).state == {"key": key}
    assert log.at("head").key == "\U0001f40b"
    assert log.at(1).key == "1"


def test_keys_need_a_run(hf: Holdfast) -> None:
    log = hf.history("none")
    for use in (
        lambda: log.find("key"),
        log.keyed_versions,
        lambda: log.attachments("key"),
        lambda: log.attach("key", {"a": 1}),
    ):
        with pytest.raises(NotFound, match="'none'"):
            use()
    assert hf.runs() == []


def test_keyed_versions_are_listed_page_by_page(log: History) -> None:
    keys = [f"2024-{number:03}" for number in range(25)]
    for number, key in enumerate(sorted(keys, key=lambda key: key[::-1])):
        log.commit({"n": number}, key=key)
        log.commit({"n": number})
    found: list[Any] = []
    while page := log.keyed_versions(before=found[-1].key if found else None, limit=7):
        assert len(page) <= 7
        found += page
    assert [version.key for version in found] == keys[::-1]
    assert [version.state["n"] for version in found] == [_found(log, key).state["n"] for key in keys[::-1]]
    assert log.keyed_versions(before="2024") == []
    assert [version.key for version in log.keyed_versions(before="2024-001x", limit=1)] == ["2024-001"]


def test_list_of_keys_sees_the_commits_of_others(where: str, log: History) -> None:
    log.commit({"n": 1}, key="one")
    if where == ":memory:":
        return
    with holdfast.open(where) as other:
        other.history("run").commit({"n": 2}, key="two")
        assert _keys(log) == ["two", "one"]
        other.history("run").drop([1])
        assert log.find("one") is None
        assert _keys(log) == ["two"]


def test_taken_key_is_refused_and_nothing_is_written(hf: Holdfast, log: History) -> None:
    first = log.commit({"n": 1}, key="one")
    log.commit({"n": 2}, key="two")
    before = hf.events()
    commits: list[Any] = [
        lambda: log.commit({"n": 3}, key="one"),
        lambda: log.commit({"n": 3}, key="one", expected=2),
        lambda: log.commit({"n": 3}, key="two", after=first),
        lambda: log.commit({"n": 3}, key="one", after=2),
        lambda: log.commit({"n": 3}, key="one", after=1, move=False),
        lambda: hf.history("run").commit({"n": 3}, key="one", events=[("app.seen", {})]),
    ]
    for commit in commits:
        with pytest.raises(
            AlreadyExists, match=r"version [12] of run 'run' has the key '(one|two)'"
        ) as refused:
            commit()
        details = refused.value.details
        assert (details["run"], details["version"]) == ("run", {"one": 1, "two": 2}[details["key"]])
    assert hf.events() == before
    assert log.commit({"n": 3}, key="three").number == 3


def test_expected_version_is_checked_before_the_key(log: History) -> None:
    log.commit({"n": 1}, key="one")
    log.commit({"n": 2})
    with pytest.raises(StaleVersion):
        log.commit({"n": 3}, key="one", expected=1)
    with pytest.raises(StaleVersion):
        log.commit({"n": 3}, key="one", expected=1, after=2)


def test_same_key_in_two_runs_is_two_versions(hf: Holdfast) -> None:
    for name in ("a", "b"):
        hf.history(name).commit({"name": name}, key="key")
    assert [_found(hf.history(name), "key").state for name in ("a", "b")] == [{"name": "a"}, {"name": "b"}]


def test_version_after_another_has_a_key(log: History) -> None:
    log.commit({"n": 1}, key="1")
    log.commit({"n": 2}, key="2")
    other = log.commit({"n": 3}, key="3", after=1)
    aside = log.commit({"n": 4}, key="4", after=2, move=False)
    assert [_found(log, key).number for key in "1234"] == [1, 2, other.number, aside.number]
    assert [_found(log, key).timeline for key in "1234"] == [1, 1, 2, 1]
    assert log.head.key == "3"


def test_rollback_keeps_keys(log: History) -> None:
    """A key stays taken on a timeline that was left."""
    log.commit({"n": 1}, key="1")
    log.commit({"n": 2}, key="2")
    log.rollback(to=1)
    assert log.head.key == "1"
    assert _keys(log) == ["2", "1"]
    with pytest.raises(AlreadyExists):
        log.commit({"n": 3}, key="2")
    assert log.commit({"n": 3}, key="3").parent == 1
    with log.edit() as state:
        state["n"] = 4
    assert log.head.key is None


def test_merged_commit_keeps_its_key(hf: Holdfast, log: History) -> None:
    log.commit({"a": 1, "b": 1})
    stale = dict(log.head.state)
    hf.history("run").commit({"a": 1, "b": 2}, key="other")
    merged = log.commit({**stale, "a": 2}, key="mine")
    assert (merged.key, merged.number) == ("mine", 3)


def test_fork_has_the_key_of_its_origin(hf: Holdfast, log: History) -> None:
    log.commit({"n": 1}, key="one")
    log.commit({"n": 2})
    fork = hf.fork("run@1", "fork", edit={"n": 7})
    assert (fork.head.key, fork.head.number, fork.head.state) == ("one", 1, {"n": 7})
    with pytest.raises(AlreadyExists):
        fork.commit({"n": 8}, key="one")
    assert hf.fork("run@2", "other").head.key is None
    hf.delete("run")
    assert _found(hf.history("fork"), "one").state == {"n": 7}
    assert hf.verify().ok


def test_pruned_version_frees_its_key(hf: Holdfast, log: History) -> None:
    log.commit({"text": "shared " * 100}, key="one")
    for number in range(5):
        with log.edit() as state:
            state["n"] = number
    log.prune(holdfast.Retention(last=2))
    assert log.find("one") is None
    assert _keys(log) == []
    assert log.commit({"n": 9}, key="one").key == "one"
    assert hf.verify().ok


def test_deleted_run_frees_its_keys(hf: Holdfast, log: History) -> None:
    log.commit({"n": 1}, key="one")
    hf.delete("run")
    assert log.commit({"n": 2}, key="one").number == 1
    assert _found(log, "one").state == {"n": 2}


def test_one_of_many_threads_commits_a_key(hf: Holdfast) -> None:
    hf.history("run").commit({})
    start = threading.Barrier(6)
    outcomes: list[object] = []

    def commit(index: int) -> None:
        log = hf.history("run")
        start.wait()
        try:
            outcomes.append(log.commit({f"of {index}": 1}, key="key").number)
        except AlreadyExists as error:
            outcomes.append(error.details["version"])

    threads = [threading.Thread(target=commit, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The winner's number, and the same in each error.
    assert outcomes == [2] * 6
    assert len(hf.history("run").versions()) == 2


def test_invalid_keys_are_refused_before_anything_is_read(log: History) -> None:
    class Named(str):
        def __str__(self) -> str:
            return "another"

    log.commit({"n": 1}, key=Named("named"))
    found = _found(log, "named").key
    assert (found, type(found)) == ("named", str)
    for key in (
        "",
        "a\nb",
        "a\0b",
        "\x1b[2J",
        "\u202e",
        "\ud800",
        "x" * 1001,
        "ä" * 501,
        "x" * 10**7,
        7,
        b"key",
    ):
        uses: list[Any] = [
            lambda key=key: log.commit({"n": 2}, key=key),
            lambda key=key: log.commit({"n": 2}, key=key, after=1),
            lambda key=key: log.find(key),
            lambda key=key: log.keyed_versions(before=key),
            lambda key=key: log.attach(key, {"a": 1}),
            lambda key=key: log.attachments("named", key),
        ]
        for use in uses:
            with pytest.raises(InvalidReference) as refused:
                use()
            assert len(str(refused.value)) < 250
    for key in ("x" * 1000, "ä" * 500, "\U0001f40b" * 250, " "):
        assert log.commit({"n": 2}, key=key).key == key
        assert _found(log, key).state == {"n": 2}
    for limit in (0, -1, True, "9"):
        with pytest.raises(HoldfastError):
            log.keyed_versions(limit=limit)  # type: ignore[arg-type]


# Damage


def _damage(where: str, statement: str) -> None:
    if "://" not in where:
        with Database(where) as connection:
            assert connection.change(statement) == 1
        return
    server, _, schema = where.partition("&schema=")
    with psycopg.connect(server, options=f"-csearch_path={schema}") as own:
        assert own.execute(statement).rowcount == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET external = 'other' WHERE number = 2",
        "UPDATE journal SET external = NULL WHERE number = 2",
        "UPDATE journal SET external = 'other' WHERE number = 1",
    ],
)
def test_damaged_key_is_detected(where: str, statement: str) -> None:
    if where == ":memory:":
        return
    with holdfast.open(where) as hf:
        log = hf.history("run")
        log.commit({"n": 1})
        log.commit({"n": 2}, key="key")
        log.commit({"n": 3}, key="zzz")
    _damage(where, statement)
    damaged = int(statement[-1])
    with holdfast.open(where) as hf:
        log = hf.history("run")
        if "other" in statement:
            with pytest.raises(CorruptVersion):
                log.find("other")
            listed = {version.key: version.is_damaged for version in log.keyed_versions()}
            assert listed.pop("other")
            assert not any(listed.values())
        with pytest.raises(CorruptVersion):
            log.at(damaged)
        assert _found(log, "zzz").state == {"n": 3}
        assert hf.verify().problems[0].version == damaged


def test_key_of_a_pruned_version_is_detected(tmp_path: Path) -> None:
    """A guard protects what a pruned version still has, which is not a key."""
    path = str(tmp_path / "runs.db")
    with holdfast.open(path) as hf:
        log = hf.history("run")
        log.commit({"text": "shared " * 100}, key="one")
        with log.edit() as state:
            state["n"] = 1
        log.drop([1])
        assert hf.verify().ok
    _damage(path, "UPDATE journal SET external = 'one' WHERE number = 1 AND pruned = 1")
    with holdfast.open(path) as hf:
        with pytest.raises(CorruptVersion):
            hf.history("run").find("one")
        assert hf.verify().problems[0].version == 1


def test_key_of_attachments_after_a_rollback_is_refused(log: History) -> None:
    log.commit({}, key="k")
    with pytest.raises(InvalidReference, match="after a rollback"):
        log.commit({}, key="k ~2")
    log.commit({}, key="~2 k ~x")
    assert log.find("k ~2") is None
