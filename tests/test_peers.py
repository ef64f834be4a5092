"""`make peers`: the counts from JUnit files, and the page with them. The suites themselves are not run here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from peers.report import Comparison, Outcome, Run, explain, page, read_junit, table

_TESTS = """
import pytest

@pytest.fixture
def uses(request):
    request.node.user_properties.append(("uses", "Saver"))

@pytest.fixture
def broken_at_the_end():
    yield
    raise RuntimeError("teardown")

def test_passes(uses): pass
def test_fails(uses): assert False
def test_is_skipped(uses): pytest.skip("not here")
def test_fails_at_the_end(uses, broken_at_the_end): pass
@pytest.mark.xfail(reason="tests SQL")
def test_is_expected_to_fail(uses): assert False
def test_without_it(): pass
class TestGroup:
    @pytest.mark.parametrize("case", ["a", "b"])
    def test_cases(self, uses, case): assert case == "a"
"""


def test_junit_file_gives_the_outcome_of_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(_TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=results.xml"]
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, check=False).returncode == 1
    found = read_junit(tmp_path / "results.xml")
    assert found.outcomes == {
        "test_suite::test_passes": Outcome.PASSED,
        "test_suite::test_fails": Outcome.FAILED,
        "test_suite::test_is_skipped": Outcome.SKIPPED,
        "test_suite::test_fails_at_the_end": Outcome.FAILED,
        "test_suite::test_is_expected_to_fail": Outcome.FAILED,
        "test_suite::test_without_it": Outcome.PASSED,
        "test_suite.TestGroup::test_cases[a]": Outcome.PASSED,
        "test_suite.TestGroup::test_cases[b]": Outcome.FAILED,
    }
    assert found.reasons == {"test_suite::test_is_expected_to_fail": "tests SQL"}
    assert found.users == {
        test: {"Saver"} for test in found.outcomes if test != "test_suite::test_without_it"
    }


def run(*, users: str = "", **outcomes: Outcome) -> Run:
    return Run(outcomes, {test: frozenset({"Saver"}) for test in users.split()})


P, F, S = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED


def test_comparison_counts_tests_that_used_the_class_or_passed_with_the_official_one_only() -> None:
    both = Comparison(
        "suite 1.0",
        run(users="a b c d g", a=P, b=P, c=P, d=S, e=P, f=F, g=P),
        run(users="a b d f", a=P, b=F, c=P, d=S, e=F, f=P),
    )
    # c used the official class in both runs, d was skipped, e uses neither class, g is missing with Holdfast.
    assert both.tests == ["a", "b", "f", "g"]
    assert both.regressions == ["b", "g"]
    assert both.improvements == ["f"]


def test_comparison_counts_every_lost_test_if_use_of_the_official_class_is_not_recorded() -> None:
    both = Comparison("suite 1.0", run(a=P, b=P, c=P, d=P), run(users="a b", a=P, b=F, c=F, d=P))
    assert both.tests == ["a", "b", "c"]
    assert both.regressions == ["b", "c"]


def test_expected_failures_are_explained_and_stale_expectations_named() -> None:
    found, stale = explain(
        Run({"a::x[1]": F, "a::x[2]": P, "a::y": P, "b::z": F}, reasons={"b::z": "of a plugin"}),
        {"tests SQL": ("a::x", "a::y"), "is gone": ("c",)},
    )
    assert found.reasons == {"a::x[1]": "tests SQL", "b::z": "of a plugin"}
    assert stale == ["a::y", "c"]


def test_table_shows_both_counts_and_why_a_suite_was_not_run() -> None:
    passed = {f"test_{number}": P for number in range(1200)}
    users = dict.fromkeys(passed, frozenset({"HoldfastSaver"}))
    shown = table(
        [
            Comparison(
                "suite 1.0", Run(passed), Run(passed | {"test_7": F, "test_8": F}, users, {"test_8": "SQL"})
            ),
            Comparison("other 2.0", remark="the source archive contains no tests"),
        ]
    )
    assert shown.splitlines()[2:] == [
        "| suite 1.0 | HoldfastSaver | 1,200 | 1,200 | 1,198 | 1 |",
        "| other 2.0 |  | the source archive contains no tests |  |  |  |",
    ]


def test_page_names_regressions_and_tests_left_out() -> None:
    official = {"tests.test_a::test_x[1]": P, "tests.test_a::test_x[2]": P, "tests.test_a::test_y": P}
    failed = Run(dict.fromkeys(official, F), reasons={"tests.test_a::test_y": "tests SQL"})
    left_out = {"need a Redis server": ("tests/test_b.py", "redis")}
    lines = page([Comparison("suite 1.0", Run(official), failed, left_out)]).splitlines()
    assert "- `tests.test_a::test_x` (2 cases)" in lines
    assert sum("test_y" in line for line in lines) == 1
    assert "- tests SQL: `tests.test_a::test_y`" in lines
    assert "- need a Redis server: `tests/test_b.py`, `redis`" in lines


def test_page_without_regressions_has_no_empty_section() -> None:
    good = run(users="a", a=P)
    assert "##" not in page([Comparison("suite 1.0", good, good)])


def test_page_has_the_remark_on_the_official_class_if_it_fails_more() -> None:
    good, bad = run(users="a", a=P), run(users="a", a=F)
    for official, shown in ((good, False), (bad, True)):
        assert (
            "cannot load" in page([Comparison("suite 1.0", official, good, remark="cannot load")])
        ) is shown
