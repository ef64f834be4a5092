"""Circuit breakers over HTTP."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from web_server import serving

from holdfast import Breaker, Holdfast, step, workflow
from holdfast.testing import isolated_definitions
from holdfast.web.operation import Role

NAMES = ("plain", "a/b/../c", "<script>alert(1)</script>", "Ünï→流 %2F?#")


@pytest.fixture
def broken(store: Holdfast) -> Holdfast:
    with isolated_definitions():
        for number, name in enumerate(NAMES):

            @step(name=f"called-{number}", breaker=Breaker(failures=1, reset=3600, name=name))
            def called() -> None:
                raise ConnectionError("down")

            @workflow(name=f"calls-{number}")
            def calls() -> None:
                called()

            store.run(calls, raises=False)
    return store


def test_breakers_are_listed_and_reset_by_an_operator(broken: Holdfast) -> None:
    with serving(broken) as served:
        found = served.get("/breakers", Role.VIEWER)
        assert [each["name"] for each in found] == sorted(NAMES)
        assert {each["status"] for each in found} == {"open"}
        assert set(found[0]) == {"name", "status", "failures", "since", "retry_at", "error"}
        for name in NAMES:
            closed = served.post(f"/breakers/{quote(name, safe='')}/reset", 200, Role.OPERATOR, actor="ana")
            assert (closed["name"], closed["status"], closed["retry_at"]) == (name, "closed", None)
        assert {each["status"] for each in served.get("/breakers")} == {"closed"}


def test_breaker_reset_is_refused_to_a_viewer_and_for_an_unknown_name(
    broken: Holdfast,
) -> None:
    with serving(broken) as served:
        refused = served.client(Role.VIEWER).post("/api/v1/breakers/plain/reset", json={})
        assert refused.status_code == 403
        assert served.problem("POST", "/breakers/plane/reset", 404, json={})["code"] == "not_found"
        assert served.problem("POST", "/breakers/%00/reset", 422, json={})["code"] == "invalid"
    assert {each.status for each in broken.breakers()} == {"open"}
