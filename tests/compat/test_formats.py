"""Every format that was ever written stays readable, exactly: stores, bundles and snapshots in this folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from make_fixture import BUNDLED, EXPORTED, FORMAT, HERE, clock, describe, digest, play, values

import holdfast
from holdfast import Holdfast, Opaque
from holdfast.store_url import formats

FORMATS = sorted(int(path.name.split("-")[1].split(".")[0]) for path in HERE.glob("format-*.expected.json"))


#: Public names that have changed since the expectations were written, in the order of writing.
RENAMED = {'"meta":': '"annotations":', '"prompt.opened"': '"question.opened"', '"prompt":': '"question_id":'}


def _expected(number: int) -> dict[str, Any]:
    text = (HERE / f"format-{number}.expected.json").read_text()
    for before, now in RENAMED.items():
        text = text.replace(before, now)
    return dict(json.loads(text))


def _text(document: Any) -> str:
    """Return a value as text, in which the order of keys matters, and 1 differs from 1.0."""
    return json.dumps(document)


def _check_versions(hf: Holdfast, expected: dict[str, Any]) -> None:
    assert expected
    for ref, parts in expected.items():
        version = hf.version(ref)
        for name, expected_digest in parts.items():
            assert digest(getattr(version, name)) == expected_digest, f"{name} of {ref}"


def _copied(number: int, folder: Path) -> Path:
    return Path(shutil.copyfile(HERE / f"format-{number}.sqlite", folder / "runs.db"))


@pytest.mark.parametrize("number", FORMATS)
class TestEveryFormat:
    def test_store_of_every_format_is_readable(self, number: int, tmp_path: Path) -> None:
        expected = _expected(number)
        with holdfast.open(_copied(number, tmp_path)) as hf:
            _check_versions(hf, expected["versions"])
            assert _text(describe(hf)) == _text(expected["runs"])
            listed = {
                f"{run.id}@{version.number}"
                for run in hf.runs()
                for version in hf.history(run.id).versions(limit=10_000)
            }
            assert listed == expected["versions"].keys()
            assert hf.verify().problems == ()

    def test_store_of_every_format_is_writable(self, number: int, tmp_path: Path) -> None:
        path = _copied(number, tmp_path)
        with holdfast.open(path) as hf:
            log = hf.history("talk")
            head = log.head.number
            with log.edit(step="on") as state:
                state["messages"].append("and on")
            log.rollback(to="tenth")
            log.prune(holdfast.Retention(last=3))
            assert hf.version(f"talk@{head + 1}").state["messages"][-1] == "and on"
            orphan = hf.history("orphan")
            with orphan.edit() as state:
                state["kept"].append("here")
        with holdfast.open(path) as hf:
            assert len(hf.version("orphan").state["kept"]) == 41
            assert hf.verify().problems == ()

    def test_store_of_every_format_takes_keys_and_attachments(self, number: int, tmp_path: Path) -> None:
        """A file of an earlier format is migrated when it is opened."""
        path = _copied(number, tmp_path)
        with holdfast.open(path) as hf:
            log = hf.history("talk")
            known = [version.key for version in log.keyed_versions()]
            version = log.commit({"n": 1}, key="new")
            log.attach("new", {"a": 1})
            with pytest.raises(holdfast.AlreadyExists):
                log.commit({"n": 2}, key="new")
        assert formats(path) == (FORMAT, FORMAT)
        with holdfast.open(path) as hf:
            log = hf.history("talk")
            found = log.find("new")
            assert found is not None
            assert (found.number, found.attachments) == (version.number, {"a": 1})
            assert {version.key for version in log.keyed_versions()} == {*known, "new"}
            assert hf.verify().problems == ()

    def test_artifacts_of_every_format_are_readable(self, number: int, tmp_path: Path) -> None:
        with holdfast.open(_copied(number, tmp_path)) as hf:
            version = hf.version("large/1@7")
            assert version.state["file"][0].read() == b"content of a file " * 20
            assert version.state["file"][0].name == "file.txt"
            assert version.result["report"].read() == b"report"
            assert version.state["leaf"] == "leaf " * 14_000

    def test_unknown_types_of_every_format_are_opaque(self, number: int, tmp_path: Path) -> None:
        with holdfast.open(_copied(number, tmp_path)) as hf:
            found = hf.version("values@1").state["unknown"]
            assert found == Opaque("fixture.Gone", {"kept": [1, "two"]})
            assert hf.history("values").commit({"again": found}).state["again"] == found

    def test_bundle_of_every_format_is_importable(self, number: int, tmp_path: Path) -> None:
        expected = _expected(number)
        bundled = {ref: parts for ref, parts in expected["versions"].items() if ref.startswith(f"{BUNDLED}@")}
        with holdfast.open(tmp_path / "new.db") as hf:
            hf.import_run(HERE / f"format-{number}.bundle")
            _check_versions(hf, bundled)
            described = describe(hf)[BUNDLED]
            for name in ("status", "head", "origin", "versions", "timelines", "keys", "attachments"):
                assert _text(described.get(name)) == _text(expected["runs"][BUNDLED].get(name))
            assert hf.verify().problems == ()

    def test_snapshot_of_every_format_is_importable(self, number: int, tmp_path: Path) -> None:
        text = (HERE / f"format-{number}.json").read_text()
        assert holdfast.validate(json.loads(text))
        with holdfast.open(tmp_path / "new.db") as hf:
            version = hf.import_snapshot(text)
            expected = _expected(number)["versions"][EXPORTED]
            for name, expected_digest in expected.items():
                assert digest(getattr(version, name)) == expected_digest


@pytest.mark.parametrize("number", FORMATS[1:])
def test_workflow_of_an_old_format_can_be_resumed(number: int, tmp_path: Path) -> None:
    with holdfast.open(_copied(number, tmp_path)) as hf:
        (question,) = hf.inbox()
        run = hf.answer(question.id, True)
        assert run.status == "completed"
        assert run.result == [*({"there": [by] * by} for by in range(1, 4)), True]
        assert run.totals == {"tokens": 6}
        assert hf.verify().problems == ()


@pytest.mark.parametrize("number", FORMATS[3:])
def test_attachments_of_every_format_are_readable(number: int, tmp_path: Path) -> None:
    with holdfast.open(_copied(number, tmp_path)) as hf:
        found = hf.history("talk").find("Grüße 🪸")
        assert found is not None
        attached = found.attachments
        assert digest(attached.pop("before")) == digest(values())
        assert attached == {"after": ["long " * 2_000], "with\nnewline": None}
        assert hf.history("talk").attachments("not yet", "first") == {
            "not yet": {"name": {"n": 1}},
            "first": {},
        }


def test_current_format_has_fixtures() -> None:
    assert list(range(1, FORMAT + 1)) == FORMATS


def test_fixtures_equal_those_that_the_current_code_makes(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", durability="memory", clock=clock()) as hf:
        played = play(hf)
        _check_versions(hf, played)
        assert _text(played) == _text(_expected(FORMAT)["versions"])
