"""The API over PostgreSQL: the same answers, hostile names included, and live events of other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from filled_store import fill
from web_server import Listener, Served, serving

import holdfast
from holdfast import Holdfast

pytest_plugins = ["postgres_fixtures"]

HOSTILE = ["a%00b", "%ff", "..%2Fetc", "%F0%9F%90%99", "a%0d%0ab", "%22;drop table run;--", "x" * 3000]


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.open(url) as found:
        fill(found)
        yield found


@pytest.fixture
def served(hf: Holdfast, url: str) -> Iterator[Served]:
    with serving(hf, where=url) as found:
        yield found


def test_server_on_postgres_answers_and_streams(hf: Holdfast, served: Served, url: str) -> None:
    assert {run["id"] for run in served.get("/runs")["runs"]} == {run.id for run in hf.runs()}
    assert served.get("/diff", a="hand@4", b="@7")["count"] == len(hf.diff("hand@4", "hand@7"))
    assert served.get("/runs", search="hostile")["runs"][0]["id"] == "[red]hostile[/red]"
    assert served.post("/verify", wait=30)["result"]["ok"]
    for run in HOSTILE:
        for path in (f"/runs/{run}", f"/runs/hand/versions/{run}", f"/inbox/{run}", f"/diff?a={run}"):
            found = served.client().get(f"/api/v1{path}")
            assert found.status_code in (404, 422), (path, found.text)
        for query in ({"workflow": "a\0b"}, {"tag": "a\0b"}, {"search": "a\0b"}, {"after": "a\0b"}):
            assert served.client().get("/api/v1/runs", params=query).status_code in (200, 404, 422)
    end = served.get("/events", limit=1000)["cursor"]
    listener = Listener(served.client(), params={"after": 0})
    listener.until(lambda: len(listener.messages) == len(hf.events(limit=1000)))
    with holdfast.open(url) as other:
        other.history("new").commit({})
    listener.until(lambda: listener.messages[-1]["run"] == "new")
    assert listener.messages[-1]["cursor"] > end
    assert [each["cursor"] for each in listener.messages] == [each.cursor for each in hf.events(limit=1000)]
