"""`holdfast check`."""

from __future__ import annotations

import json

import flows
import place as places
from place import Place

place = places.place


def test_check_exits_with_one_if_a_run_would_diverge(place: Place) -> None:
    place.run(flows.asking_twice, run_id="ask-1")
    place.run(flows.asking_twice, run_id="ask-2")
    place.forget()
    done = place.call("check", "flows")
    assert (done.code, done.out) == (0, "")
    assert place.json("check", "--app", "flows") == []
    place.rewrite('@workflow(name="cli_twice")', '@workflow(name="cli_renamed")')
    done = place.call("check", "flows")
    assert done.code == 1
    assert done.out.count("missing") == 2
    done = place.call("check", "flows", "--run", "ask-1", "--json")
    assert done.code == 1
    (found,) = json.loads(done.out)
    assert (found["run"], found["kind"], found["workflow"]) == ("ask-1", "missing", "cli_twice")
    assert place.look("ask-1")[0] == "suspended"


def test_check_needs_an_app(place: Place) -> None:
    place.run(flows.asking_twice, run_id="ask-1")
    done = place.call("check")
    assert done.code == 2
    assert "holdfast check MODULE" in done.err
