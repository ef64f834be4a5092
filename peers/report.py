"""The counts of two runs of a suite, from their JUnit files, and the page that shows them.

Invariant: both counts of a row are about the same tests. A test that passes without Holdfast's class in the run with
Holdfast is not counted; one that fails there and passes with the official class always is.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Run:
    """Outcomes of the tests of one run, by the id of the test."""

    outcomes: Mapping[str, Outcome]
    #: Names of the compared classes that each test used; empty if the run does not record it.
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Why tests fail that a plugin expects to fail.
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A suite's outcomes with the official class and with Holdfast's."""

    suite: str
    #: None if the suite could not be run: see `remark`.
    official: Run | None = None
    holdfast: Run | None = None
    #: Tests that were not run, by reason.
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: About the official class; or why the suite could not be run.
    remark: str = ""

    @property
    def classes(self) -> list[str]:
        """Holdfast's classes that the counted tests used."""
        return [] if self.holdfast is None else sorted(frozenset().union(*self.holdfast.users.values()))

    @property
    def tests(self) -> list[str]:
        """The tests that are counted."""
        if self.official is None or self.holdfast is None:
            return []
        ran = {test for test, outcome in self.official.outcomes.items() if outcome is not Outcome.SKIPPED}
        ran |= {test for test, outcome in self.holdfast.outcomes.items() if outcome is not Outcome.SKIPPED}
        return sorted((self.holdfast.users.keys() & ran) | set(self.regressions))

    @property
    def regressions(self) -> list[str]:
        """The tests that use the class and pass with the official one only."""
        if self.official is None or self.holdfast is None:
            return []
        using = self.official.users.keys() | self.holdfast.users.keys()
        return sorted(
            test
            for test in (using if self.official.users else self.official.outcomes)
            if self.official.outcomes.get(test) is Outcome.PASSED
            and self.holdfast.outcomes.get(test) is not Outcome.PASSED
        )

    @property
    def explained(self) -> dict[str, list[str]]:
        """The functions of the regressions that a plugin expects, by reason."""
        found: dict[str, dict[str, None]] = {}
        for test in self.regressions:
            if self.holdfast is not None and test in self.holdfast.reasons:
                found.setdefault(self.holdfast.reasons[test], {})[test.partition("[")[0]] = None
        return {why: list(functions) for why, functions in sorted(found.items())}

    @property
    def improvements(self) -> list[str]:
        """The tests that pass with Holdfast only."""
        if self.official is None or self.holdfast is None:
            return []
        return [
            test
            for test in self.tests
            if self.holdfast.outcomes.get(test) is Outcome.PASSED
            and self.official.outcomes.get(test) is not Outcome.PASSED
        ]


def read_junit(path: Path) -> Run:
    """Return the outcomes in a JUnit file that pytest has written."""
    outcomes: dict[str, Outcome] = {}
    users: dict[str, frozenset[str]] = {}
    reasons: dict[str, str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        expected = case.find("skipped[@type='pytest.xfail']")
        if expected is not None:
            reasons[name] = expected.get("message", "").removeprefix("[NOTRUN] ")
        if kinds & {"failure", "error"} or expected is not None:
            outcomes[name] = Outcome.FAILED
        elif outcomes.get(name) is not Outcome.FAILED:
            outcomes[name] = Outcome.SKIPPED if "skipped" in kinds else Outcome.PASSED
        used = case.findall("properties/property[@name='uses']")
        if used:
            users[name] = frozenset(each.get("value", "") for each in used)
    return Run(outcomes, users, reasons)


def explain(run: Run, expected: Mapping[str, Sequence[str]]) -> tuple[Run, list[str]]:
    """Return a run with the reasons of failures that are expected, and the expected ones that did not occur."""
    reasons, stale = dict(run.reasons), []
    for why, starts in expected.items():
        for start in starts:
            failed = [
                test
                for test, outcome in run.outcomes.items()
                if test.startswith(start) and outcome is Outcome.FAILED
            ]
            reasons.update(dict.fromkeys(failed, why))
            if not failed:
                stale.append(start)
    return replace(run, reasons=reasons), stale


def table(found: Sequence[Comparison]) -> str:
    """Return the counts as a Markdown table."""
    lines = [
        "| suite | Holdfast's class | tests | pass with the official class | pass with Holdfast's | expected to fail |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        cells = ["", one.remark or "not run", "", "", ""]
        if one.official is not None and one.holdfast is not None:
            tests = one.tests
            passed = (_passed(run, tests) for run in (one.official, one.holdfast))
            expected = sum(test in one.holdfast.reasons for test in one.regressions)
            counts = (len(tests), *passed, expected)
            cells = [", ".join(one.classes), *(f"{count:,}" for count in counts)]
        lines.append(f"| {one.suite} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _passed(run: Run, tests: Sequence[str]) -> int:
    return sum(run.outcomes.get(test) is Outcome.PASSED for test in tests)


def page(found: Sequence[Comparison]) -> str:
    """Return the page for the documentation."""
    lines = [
        "# The frameworks' own tests",
        "",
        "Written by `make peers`, as measured. It fetches the source archives of the frameworks and runs their own",
        "test suites twice: with the class that the framework ships, and with Holdfast's class in its place. The",
        "substitutes, in `peers/`, have the constructors of the official classes; each module says what else it adds.",
        "Tests that do not use the class are not counted.",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d}",
        f"- software: Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        "",
        table(found),
    ]
    remarks = [f"{one.suite}: {one.remark}." for one in found if one.remark and one.improvements]
    if remarks:
        lines += ["", *remarks]
    for title, listed in (
        ("Pass with the official class only", [_by_function(_unexplained(one)) for one in found]),
        ("Expected to fail", [_by_reason(one.explained) for one in found]),
        ("Pass with Holdfast's class only", [_by_function(one.improvements) for one in found]),
        ("Left out", [_by_reason(one.left_out) for one in found]),
    ):
        if any(listed):
            lines += ["", f"## {title}"]
        for one, entries in zip(found, listed, strict=True):
            if entries:
                lines += ["", f"{one.suite}:", "", *(f"- {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"


def _by_reason(tests: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{why}: {', '.join(f'`{test}`' for test in names)}" for why, names in tests.items()]


def _unexplained(one: Comparison) -> list[str]:
    return [test for test in one.regressions if one.holdfast is None or test not in one.holdfast.reasons]


def _by_function(tests: Sequence[str]) -> list[str]:
    """Return the functions of tests, each with the number of its cases."""
    counts: dict[str, int] = {}
    for test in tests:
        name = test.partition("[")[0]
        counts[name] = counts.get(name, 0) + 1
    return [f"`{name}`" + (f" ({count} cases)" if count > 1 else "") for name, count in counts.items()]
