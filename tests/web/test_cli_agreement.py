"""Responses of the API equal the output of the command line with --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import in_process
import pytest
from filled_store import LONG, STORE, SampleStore
from web_server import Served, serving

import holdfast
from holdfast import Holdfast

HOSTILE = "[red]hostile[/red]"


@pytest.fixture(scope="module")
def cli(filled: Path) -> Any:
    return SampleStore(filled).json


def test_runs_agree_with_the_cli(served: Served, cli: Any) -> None:
    assert served.get("/runs") == {"runs": cli("runs"), "next": None}
    assert served.get("/runs", status=["failed", "interrupted"])["runs"] == cli(
        "runs", "--status", "failed", "--status", "interrupted"
    )
    assert served.get("/runs", workflow="report", since="2h")["runs"] == cli("runs", "--workflow", "report")
    assert served.get("/runs", tag="good")["runs"] == cli("runs", "--tag", "good")


def test_versions_found_by_annotations_agree_with_the_cli(served: Served, cli: Any) -> None:
    for where in (
        ["model=small-1"],
        ["cost>0.005", "tokens=5"],
        ["cost>0.5"],
        ['tokens="5"'],
        ["model != small-1"],
    ):
        options = [part for each in where for part in ("--where", each)]
        assert served.get("/runs/report-1/versions", where=where)["versions"] == cli(
            "log", "report-1", *options
        )
    found = served.get("/runs/report-1/versions", where="cost>=0.01")["versions"]
    assert [each["step"] for each in found] == ["search", "search"]
    for wrong in ("model", "=x", "cost>null", "cost=>1"):
        served.problem("GET", "/runs/report-1/versions", 422, params={"where": wrong})


def test_runs_pages_agree_with_the_list(served: Served) -> None:
    found: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        page = served.get("/runs", limit=3, **after)
        found += page["runs"]
        if page["next"] is None:
            break
        assert len(page["runs"]) == 3
        after = {"after": page["next"]}
    assert found == served.get("/runs")["runs"]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("REPORT-", ["report-2", "report-1"]),
        ("good", ["hand"]),
        ("urchin", []),
        ("hostile", [HOSTILE]),
        ("long-x", [LONG]),
    ],
)
def test_search_finds_runs(served: Served, text: str, runs: list[str]) -> None:
    assert [run["id"] for run in served.get("/runs", search=text)["runs"]] == runs


@pytest.mark.parametrize("run", ["hand", HOSTILE, LONG, "report-2"])
def test_versions_agree_with_the_cli(served: Served, cli: Any, run: str) -> None:
    found = served.get(f"/runs/{quote(run, safe='')}/versions")
    assert found["versions"] == cli("log", run)
    assert found["head"] == cli("show", run)["version"]
    for version in found["versions"]:
        whole = served.get(f"/runs/{quote(run, safe='')}/versions/{version['version']}")
        state = served.get(f"/runs/{quote(run, safe='')}/versions/{version['version']}/state")
        assert {**whole, "state": state["value"]} == cli("show", state["ref"])


def test_keys_and_attachments_agree_with_the_cli(own: Holdfast, tmp_path: Path) -> None:
    log = own.history("keyed")
    log.commit({"n": 1}, key="thread 1")
    log.attach("thread 1", {"writes": [1], "<script>": 2})
    log.commit({"n": 2})
    where = str(tmp_path / "own" / STORE)
    with serving(own, where=where) as served:
        cli = SampleStore(tmp_path / "own").json
        found = served.get("/runs/keyed/versions")["versions"]
        assert [version["key"] for version in found] == [None, "thread 1"]
        assert found == cli("log", "keyed")
        whole = served.get("/runs/keyed/versions/1")
        assert (whole["key"], whole["attachments"]) == ("thread 1", ["<script>", "writes"])
        assert {**whole, "state": {"n": 1}} == cli("show", "keyed@1")
        assert served.get("/runs/keyed/versions/2")["attachments"] == []


def test_versions_pages_and_filters_agree(served: Served) -> None:
    numbers = [each["version"] for each in served.get("/runs/counted/versions")["versions"]]
    page = served.get("/runs/counted/versions", limit=4)
    rest = served.get("/runs/counted/versions", limit=4, before=page["next"])
    assert [each["version"] for each in page["versions"] + rest["versions"]] == numbers
    assert rest["next"] is None
    assert [each["version"] for each in served.get("/runs/counted/versions", tag="third")["versions"]] == [3]
    assert [each["version"] for each in served.get("/runs/hand/versions", timeline=2)["versions"]] == [7, 6]
    metas = served.get("/runs/report-1/versions", step="search", annotations=True)["versions"]
    assert [each["annotations"] for each in metas] == [{"model": "small-1", "tokens": 5, "cost": 0.01}] * 2
    merged = {each["version"]: each["merged"] for each in served.get("/runs/hand/versions")["versions"]}
    assert merged[9] == 7


def test_run_agrees_with_the_cli(served: Served, cli: Any) -> None:
    listed = {run["id"]: run for run in cli("runs")}
    for run in ("report-1", "report-2", "asks", "hand", "forked"):
        found = served.get(f"/runs/{run}")
        assert {name: found[name] for name in listed[run]} == listed[run]
    assert served.get("/runs/report-2")["failure"]["type"] == "ValueError"
    assert served.get("/runs/asks")["questions"] == cli("inbox", "--run", "asks")
    assert served.get("/runs/asks")["waits"] == ["asks#1"]
    assert served.get("/runs/report-1")["totals"] == {"tokens": 10, "cost": 0.02}
    assert [line["reason"] for line in served.get("/runs/hand")["timelines"]] == [
        None,
        "a wrong turn",
        "again",
    ]
    assert served.get("/runs/hand/timelines") == served.get("/runs/hand")["timelines"]
    assert served.get("/runs/hand/tags") == [{"tag": "good", "version": 7, "step": None}]
    assert served.get("/runs/forke")["id"] == "forked", "the beginning is enough"


def test_differences_agree_with_the_cli(served: Served, cli: Any) -> None:
    for a, b in (("hand@4", "hand@7"), ("report-1@2", "@4"), (f"{HOSTILE}@1", "~0"), ("report-1", "forked")):
        found = served.get("/diff", a=a, b=b)
        reported = cli("diff", a, b)
        assert {name: found[name] for name in reported} == reported
        assert found["count"] == len(reported["changes"])
        assert served.get("/diff/patch", a=a, b=b) == cli("diff", a, b, "--json-patch")
        compared = served.get("/compare", a=a, b=b)
        reported = cli("compare", a, b)
        assert {name: compared[name] for name in reported} == reported
    assert served.get("/diff", a="report-1")["b"] == "report-1@6"
    below = served.get("/diff", a="report-1@1", b="@2", path="plan.tasks[0]")
    reported = cli("diff", "report-1@1", "@2", "--path", "plan.tasks[0]")
    assert below["changes"] == reported["changes"]


def test_differences_are_truncated(served: Served) -> None:
    found = served.get("/diff", a="report-1@1", b="@2", cut=True)["changes"][0]
    assert (found["path"], found["old"]) == ("plan", None)
    assert [entry["path"] for entry in found["new"]["entries"]] == ["plan.days", "plan.tasks"]
    limited = served.get("/diff", a="hand@1", b="@7", limit=1)
    assert (len(limited["changes"]), limited["count"] > 1) == (1, True)


def test_blame_agrees_with_the_cli(served: Served, cli: Any) -> None:
    assert served.get("/runs/report-1/versions/head/blame", values=True) == cli("blame", "report-1")
    found = served.get("/runs/report-1/versions/3/blame", path="plan.tasks", depth=2)
    reported = cli("blame", "report-1@3", "plan.tasks", "--depth", "2")
    assert found == [{name: value for name, value in part.items() if name != "value"} for part in reported]


def test_inbox_events_and_stats_agree_with_the_cli(served: Served, cli: Any) -> None:
    assert served.get("/inbox") == cli("inbox")
    assert served.get("/inbox/asks%231") == served.get("/inbox")[0]
    assert served.get("/inbox", answered=True) == cli("inbox", "--answered")
    assert served.get("/queues") == cli("queues")
    stats = served.get("/stats")
    reported = cli("stats")
    assert {name: stats[name] for name in reported if name != "store"} == {
        name: value for name, value in reported.items() if name != "store"
    }
    sizes = [run["size"] for run in stats["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert served.get("/runs/hand/preview", to=2)["description"][0].startswith(
        "hand will be rolled back to version 2"
    )
    checks = {each["check"] for each in served.get("/doctor")}
    assert {"format", "interrupted", "questions"} <= checks


def test_events_agree_with_the_cli(served: Served, filled: Path) -> None:
    done = in_process.call("events", "--json", "--store", STORE, cwd=filled)
    reported = [json.loads(line) for line in done.out.splitlines()]
    assert served.get("/events") == {"events": reported, "cursor": reported[-1]["cursor"], "more": False}
    of_one = served.get("/events", run="report-2", kind="run.*")["events"]
    assert [event["kind"] for event in of_one] == ["run.started", "run.failed"]
    page = served.get("/events", limit=5)
    assert page["more"]
    assert served.get("/events", after=page["cursor"])["events"] == reported[5:]


# Last: it changes the runs.


def test_runs_found_by_metadata_agree_with_the_cli(filled: Path, served: Served, cli: Any) -> None:
    with holdfast.open(filled / STORE) as hf:
        for run_id, customer in (("report-1", 7), ("report-2", "7")):
            hf.get(run_id).set_meta({"customer": customer, "b": "x=y"})
    for given, found in [
        (["customer=7"], ["report-1"]),
        (['customer="7"'], ["report-2"]),
        (["customer=7", "b=x=y"], ["report-1"]),
        (["customer=7", "<b>=x=y"], None),
        (["customer=8"], []),
        (["customer=true"], []),
    ]:
        options = [part for each in given for part in ("--meta", each)]
        if found is None:
            served.problem("GET", "/runs", 422, params={"meta": given})
            continue
        runs = served.get("/runs", meta=given)["runs"]
        assert runs == cli("runs", *options)
        assert [run["id"] for run in runs] == found
    for wrong in ("customer", "=7", " =7"):
        served.problem("GET", "/runs", 422, params={"meta": wrong})
    served.problem("GET", "/runs", 422, params={"meta": ["a=1", "a=2"]})
