"""`holdfast tag` and `holdfast pin`"""

from __future__ import annotations

import json

import pytest
from filled_store import SampleStore


def test_tag_is_added_and_removed(own: SampleStore) -> None:
    assert own.screen("tag", "hand@2", "first") == "tagged hand@2 as hand:first"
    assert own.json("show", "hand:first")["version"] == 2
    assert own.pipe("tag", "hand@2", "first", "-d") == "removed tag first from hand@2\n"
    assert "first" not in own.json("show", "hand@2")["tags"]


def test_tag_prints_json(own: SampleStore) -> None:
    found = json.loads(own.pipe("tag", "hand", "now", "--json"))
    assert found == {"run": "hand", "version": 9, "tag": "now", "removed": False}


def test_tag_lists_the_tags_of_a_run(own: SampleStore) -> None:
    own.call("tag", "hand@2", "[red]first")
    lines = [line.split()[:3] for line in own.screen("tag", "hand").splitlines()]
    assert lines == [["tag", "version", "step"], ["good", "7", "manual"], ["[red]first", "2", "manual"]]
    assert [row[:2] for row in own.rows("tag", "hand")] == [["good", "7"], ["[red]first", "2"]]
    assert [tag["tag"] for tag in own.json("tag", "hand")] == ["good", "[red]first"]
    assert own.screen("tag", "report-1") == "no tags"
    assert own.json("tag", "report-1") == []


def test_tag_can_be_on_several_versions(own: SampleStore) -> None:
    own.call("tag", "hand@2", "good")
    assert {tag["version"] for tag in own.json("tag", "hand")} == {7, 2}


def test_tag_refers_to_the_newest_version(own: SampleStore) -> None:
    reported = own.pipe("tag", "hand@2", "good")
    assert reported.startswith("hand@2 is tagged good; hand:good is hand@7, the newest with that tag")
    assert own.pipe("tag", "hand@8", "good") == "tagged hand@8 as hand:good\n"


def test_tag_is_removed_from_the_version_that_has_it(own: SampleStore) -> None:
    assert own.pipe("tag", "-d", "hand", "good") == "removed tag good from hand@7\n"
    own.call("tag", "hand@2", "twice")
    own.call("tag", "hand@3", "twice")
    assert "hand@3, hand@2: name one" in own.refused("tag", "-d", "hand", "twice", code=2)
    assert "has no tag 'good'" in own.refused("tag", "-d", "hand", "good", code=3)


def test_pin_is_added_and_removed(own: SampleStore) -> None:
    assert own.screen("pin", "pruned@7") == "pinned pruned@7"
    assert own.json("show", "pruned@7")["pinned"] is True
    own.call("prune", "pruned", "--keep-last", "1", "-y")
    assert own.json("show", "pruned@7")["version"] == 7
    assert own.pipe("pin", "pruned@7", "--delete") == "unpinned pruned@7\n"
    assert own.json("pin", "hand@1") == {"run": "hand", "version": 1, "pinned": True}
    own.call("prune", "pruned", "--keep-last", "1", "-y")
    assert own.refused("show", "pruned@7", code=3)


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["tag", "hand@2", "12"], 2, "would read as a version"),
        (["tag", "hand@2", "head"], 2, "would read as a version"),
        (["tag", "hand@2", "a\x1bb"], 2, "cannot be a tag"),
        (["tag", "hand@2", "x" * 200], 2, "the maximum is 100"),
        (["tag", "hand@2", "-d"], 2, "which tag?"),
        (["tag", "hand@2", "nosuch", "-d"], 3, "has no tag 'nosuch'"),
        (["tag", "nosuch", "a"], 3, "no run 'nosuch'"),
        (["pin", "hand@99"], 3, "no version 99"),
        (["pin"], 2, "missing argument 'REF'"),
    ],
)
def test_tag_and_pin_usage_errors_are_reported(
    own: SampleStore, arguments: list[str], code: int, reported: str
) -> None:
    assert reported in own.refused(*arguments, code=code)
