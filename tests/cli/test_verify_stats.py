"""`holdfast verify` and `holdfast stats`, of a store that is sound and of one that is not."""

from __future__ import annotations

import json
import re

from filled_store import SampleStore

from database import Database
from holdfast.model.records import STATUSES


def test_verify_of_a_sound_store(sample: SampleStore) -> None:
    assert re.fullmatch(
        r"ok  \d+ runs, \d+ versions, 0 artifacts: every hash matches", sample.screen("verify")
    )
    assert sample.pipe("verify", "hand") == "ok  1 run, 9 versions, 0 artifacts: every hash matches\n"
    found = json.loads(sample.pipe("verify", "--json"))
    assert found["ok"] is True
    assert found["problems"] == []


def test_verify_shows_progress_on_a_terminal_only(sample: SampleStore) -> None:
    assert sample.call("verify").err == ""


def test_verify_and_stats_of_an_empty_store(empty: SampleStore) -> None:
    assert empty.json("verify") == {"ok": True, "runs": 0, "versions": 0, "artifacts": 0, "problems": []}
    assert empty.json("stats")["runs"] == 0
    assert "no runs" in empty.screen("prune", "--all", "--keep-last", "1", "--dry-run")


def test_verify_lists_damaged_versions(own: SampleStore) -> None:
    damage(own, "hand", 4)
    text = own.screen("verify", code=6)
    assert "hand@4: " in text
    assert "import the damaged runs from bundles" in text
    rows = [row[:2] for row in own.rows("verify", code=6)]
    assert ["hand", "4"] in rows
    found = json.loads(own.pipe("verify", "--json", code=6))
    assert found["ok"] is False
    assert {problem["run"] for problem in found["problems"]} == {"hand"}
    assert own.json("verify", "report-1")["ok"] is True


def test_verify_of_a_missing_run_is_refused(sample: SampleStore) -> None:
    assert "no run 'nosuch'" in sample.refused("verify", "nosuch", code=3)


def test_stats_on_a_terminal(sample: SampleStore) -> None:
    facts = dict(line.split(maxsplit=1) for line in sample.screen("stats").splitlines())
    assert facts["store"] == "holdfast.db"
    assert {"1 completed", "1 failed", "1 interrupted", "1 suspended"} <= set(facts["runs"].split(", "))
    assert facts["file_bytes"].endswith("kB")
    assert "(" in facts["largest"]


def test_stats_for_programs(sample: SampleStore) -> None:
    facts = dict(sample.rows("stats"))
    found = json.loads(sample.pipe("stats", "--json"))
    assert int(facts["runs"]) == found["runs"] == len(sample.json("runs"))
    assert int(facts["file_bytes"]) == found["file_bytes"] > 10_000
    statuses = found["statuses"]
    assert set(statuses) == {*STATUSES, "interrupted", "manual"}
    assert statuses["failed"] == statuses["interrupted"] == 1
    assert statuses["cancelled"] == 0
    assert sum(statuses.values()) == found["runs"]
    assert {name: int(facts[f"{name}_runs"]) for name in statuses} == statuses


def damage(own: SampleStore, run: str, version: int) -> None:
    """Change bits of a version behind Holdfast's back."""
    connection = Database(own.store)
    key = connection.value("SELECT key FROM run WHERE id = ?", (run,))
    pack = connection.value("SELECT pack FROM journal WHERE run = ? AND number = ?", (key, version))
    broken = bytes([*pack[:-1], pack[-1] ^ 1])
    connection.execute("UPDATE journal SET pack = ? WHERE run = ? AND number = ?", (broken, key, version))
    connection.close()
