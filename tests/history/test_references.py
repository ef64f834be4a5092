"""References to versions: by number, head, distance and tag, within a run and with a run id; pins."""

from __future__ import annotations

import pytest

from holdfast import History, Holdfast, InvalidReference, NotFound


@pytest.fixture
def four(log: History) -> History:
    for number in range(1, 5):
        log.commit({"n": number})
    return log


def test_reference_by_number_head_and_distance_is_resolved(four: History, subtests: pytest.Subtests) -> None:
    cases: list[tuple[int | str, int]] = [
        (1, 1),
        (4, 4),
        ("1", 1),
        ("@3", 3),
        ("head", 4),
        ("@head", 4),
        ("", 4),
        ("~0", 4),
        ("~1", 3),
        ("~3", 1),
    ]
    for ref, number in cases:
        with subtests.test(ref=ref, number=number):
            version = four.at(ref)
            assert (version.number, version.state) == (number, {"n": number})


def test_reference_to_a_missing_version_is_not_found(four: History, subtests: pytest.Subtests) -> None:
    missing: list[int | str] = [5, "5", "@5", "~4", "~9", "good", ":good"]
    for ref in missing:
        with subtests.test(ref=ref), pytest.raises(NotFound, match="run-1"):
            four.at(ref)


def test_distance_counts_along_the_ancestors_of_the_head(four: History) -> None:
    four.rollback(to=2)
    four.commit({"n": 5})
    assert [four.at(f"~{back}").number for back in range(3)] == [5, 2, 1]
    with pytest.raises(NotFound):
        four.at("~3")


def test_version_object_is_a_reference(four: History) -> None:
    assert four.at(four.at(2)).number == 2
    assert four.diff(four.at(2), four.at(2)).changes == ()


def test_tag_names_the_newest_version_that_has_it(four: History) -> None:
    four.tag(1, "good")
    four.tag(3, "good")
    four.tag(2, "first-draft")
    assert four.at("good").number == four.at(":good").number == 3
    four.untag(3, "good")
    assert four.at("good").number == 1
    assert four.at("first-draft").number == 2


def test_tags_are_listed_and_searched(four: History) -> None:
    four.tag("~1", "good")
    four.tag("~1", "better")
    four.tag(1, "good")
    four.tag(1, "good")  # harmless
    assert sorted(four.at(3).tags) == ["better", "good"]
    assert [version.number for version in four.versions(tag="good")] == [3, 1]
    assert {version.number: version.tags for version in four.versions()}[1] == ("good",)
    assert four.versions(tag="none") == []


def test_missing_tag_or_pin_cannot_be_removed(four: History) -> None:
    four.tag(1, "good")
    for number, name in ((2, "good"), (1, "bad")):
        with pytest.raises(NotFound, match=f"version {number} .* {name!r}"):
            four.untag(number, name)
    with pytest.raises(NotFound, match=r"version 1 .* not pinned"):
        four.unpin(1)


def test_pin_and_unpin_set_pinned(four: History) -> None:
    four.pin(2)
    four.pin(2)
    assert [version.number for version in four.versions() if version.pinned] == [2]
    assert four.at(2).tags == ()
    four.unpin(2)
    assert not four.at(2).pinned


def test_each_mark_is_recorded_once_in_the_journal(four: History) -> None:
    four.tag(1, "good")
    four.tag(1, "good")
    four.untag(1, "good")
    four.pin(2)
    four.unpin(2)
    entries = [(event.kind, event.version, event.data) for event in four.events()][4:]
    assert entries == [
        ("version.tagged", 1, {"tag": "good"}),
        ("version.untagged", 1, {"tag": "good"}),
        ("version.pinned", 2, {}),
        ("version.unpinned", 2, {}),
    ]


def test_reference_with_a_run_is_resolved(hf: Holdfast, four: History, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int]] = [
        ("run-1", 4),
        ("run-1@2", 2),
        ("run-1@head", 4),
        ("run-1~1", 3),
        ("run-1:good", 1),
        ("ru", 4),
        ("r@3", 3),
    ]
    four.tag(1, "good")
    for ref, number in cases:
        with subtests.test(ref=ref, number=number):
            version = hf.version(ref)
            assert (version.run, version.number) == ("run-1", number)


def test_run_prefix_must_be_unique(hf: Holdfast) -> None:
    for run_id in ("alpha-1", "alpha-2", "alp", "beta"):
        hf.history(run_id).commit({"id": run_id})
    assert hf.version("b").run == "beta"
    assert hf.version("alp").run == "alp", "the whole id wins"
    with pytest.raises(InvalidReference, match="alpha-1, alpha-2"):
        hf.version("alpha@1")
    assert hf.version("alpha-2@1").run == "alpha-2"


def test_get_takes_a_prefix_only_if_asked(hf: Holdfast) -> None:
    """A program that asks for 'order-1' must not get 'order-10'."""
    hf.history("order-10").commit({})
    with pytest.raises(NotFound, match="did you mean 'order-10'"):
        hf.get("order-1")
    assert hf.get("order-1", prefix=True).id == "order-10"
    hf.history("order-11").commit({})
    with pytest.raises(InvalidReference, match="order-10, order-11"):
        hf.get("order-1", prefix=True)
    hf.history("order-1").commit({})
    assert [hf.get("order-1", prefix=prefix).id for prefix in (False, True)] == ["order-1", "order-1"]


def test_run_prefix_is_not_a_pattern(hf: Holdfast, subtests: pytest.Subtests) -> None:
    hf.history("alpha-1").commit({})
    for wild in ("%", "_", "alpha%", "a_pha-1", "ALPHA", "*"):
        with subtests.test(wild=wild), pytest.raises(NotFound):
            hf.version(wild)


def test_run_id_can_contain_a_colon(hf: Holdfast) -> None:
    log = hf.history("team:bot")
    log.commit({"n": 1}, tags=["good"])
    hf.history("team").commit({"n": 2}, tags=["bot"])
    assert hf.version("team:bot").state == {"n": 1}, "the run of this very id comes first"
    assert hf.version("team:bot:good").number == 1
    hf.delete("team:bot")
    assert hf.version("team:bot").state == {"n": 2}, "else it is a tag"


def test_misspelt_run_id_gets_a_suggestion(hf: Holdfast) -> None:
    hf.history("marketing-7").commit({})
    for call in (lambda: hf.version("marketng-7"), lambda: hf.delete("marketng-7")):
        with pytest.raises(NotFound, match="did you mean 'marketing-7'"):
            call()
