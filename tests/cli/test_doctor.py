"""`holdfast doctor`"""

from __future__ import annotations

import json

from filled_store import STORE, SampleStore

import holdfast


def findings(sample: SampleStore, *arguments: str, code: int) -> dict[str, tuple[bool, str]]:
    return {
        each["check"]: (each["ok"], each["what"]) for each in sample.json("doctor", *arguments, code=code)
    }


def test_doctor_on_a_terminal_shows_advice(sample: SampleStore) -> None:
    lines = sample.screen("doctor", code=1).splitlines()
    assert lines[0] == "✓ store       holdfast.db, named by the default"
    assert "! interrupted 1 run interrupted: died" in lines
    assert "! failed      1 run failed: report-2" in lines
    assert "              → holdfast resume RUN" in lines
    assert "✓ questions   no question open for more than a day" in lines


def test_doctor_in_a_pipe_prints_fields(sample: SampleStore) -> None:
    rows = sample.rows("doctor", code=1)
    assert all(len(row) == 4 for row in rows)
    assert [
        "warning",
        "failed",
        "1 run failed: report-2",
        "holdfast show RUN, then holdfast resume RUN",
    ] in rows
    assert {row[0] for row in rows} == {"ok", "warning"}


def test_doctor_prints_json(sample: SampleStore) -> None:
    found = json.loads(sample.pipe("doctor", "--json", code=1))
    assert {"format", "sqlite", "space", "size", "interrupted", "failed", "questions", "app"} <= {
        each["check"] for each in found
    }


def test_doctor_of_a_sound_store_exits_with_zero(empty: SampleStore) -> None:
    text = empty.screen("doctor")
    assert "! " not in text
    assert "✓ interrupted no run interrupted" in text
    assert all(ok for ok, _ in findings(empty, code=0).values())


def test_doctor_accepts_a_store_url(empty: SampleStore) -> None:
    found = json.loads(empty.pipe("doctor", "--json", "--store", f"sqlite:///{STORE}"))
    assert all(each["ok"] for each in found)


def test_doctor_reports_old_questions_and_a_wrong_clock(empty: SampleStore) -> None:
    from filled_store import report

    with holdfast.open(empty.store, clock=lambda: 1_000_000_000.0) as hf:
        hf.run(report, "ask", run_id="asks")
    with holdfast.open(empty.store, clock=lambda: 10_000_000_000.0) as hf:
        hf.history("ahead").commit({})
    found = findings(empty, code=1)
    assert found["questions"] == (False, "1 question open for more than a day: asks#1")
    assert found["clock"] == (False, "1 run changed in the future: ahead")


def test_doctor_ignores_runs_that_failed_long_ago(empty: SampleStore) -> None:
    with holdfast.open(empty.store, clock=lambda: 1_000_000_000.0) as hf:
        hf.history("old").commit({}, status="failed")
    found = findings(empty, code=0)
    assert found["failed"] == (True, "no run failed within a day, 1 run earlier: old")


def test_doctor_reports_stalled_runs(empty: SampleStore) -> None:
    with empty.open() as hf:
        hf.history("stuck").commit({}, status="stalled")
    assert findings(empty, code=1)["stalled"] == (False, "1 run stalled: stuck")


def test_doctor_counts_many_runs(empty: SampleStore) -> None:
    with empty.open() as hf:
        for number in range(7):
            hf.history(f"failed-{number}").commit({}, status="failed")
    ok, reported = findings(empty, code=1)["failed"]
    assert (ok, reported.startswith("7 runs failed: "), reported.endswith(" …")) == (False, True, True)


def test_doctor_reports_an_app_that_cannot_be_imported(own: SampleStore) -> None:
    (own.folder / "broken.py").write_text("import nothing_of_this_name\n")
    (own.folder / "fine.py").write_text("import holdfast\n")
    rows = {row[1]: row for row in own.rows("doctor", "--app", "broken", code=1)}
    assert rows["app"][0] == "warning"
    assert "nothing_of_this_name" in rows["app"][2]
    rows = {row[1]: row for row in own.rows("doctor", "--app", "fine", code=1)}
    assert rows["app"][:3] == ["ok", "app", "fine can be imported"]


def test_doctor_without_a_store_is_refused(bare: SampleStore) -> None:
    bare.pipe("doctor", code=10)
    assert bare.refused("doctor", code=10)
